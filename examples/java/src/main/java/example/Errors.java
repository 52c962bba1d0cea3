package example;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;

/** The typed details of errors. */
final class Errors {
  /** Returns the code of an error, its reason, and the field that is invalid. */
  static String describe(StatusRuntimeException error) {
    List<String> words = new ArrayList<>();
    words.add(error.getStatus().getCode().name());
    try {
      for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          words.add("reason " + info.getReason());
          new TreeMap<>(info.getMetadataMap()).forEach((key, value) -> words.add(key + "=" + value));
        } else if (detail.is(BadRequest.class)) {
          for (var violation : detail.unpack(BadRequest.class).getFieldViolationsList()) {
            words.add("field " + violation.getField() + ": " + violation.getDescription());
          }
        }
      }
    } catch (InvalidProtocolBufferException malformed) {
      words.add("unreadable details");
    }
    return String.join(", ", words);
  }

  private Errors() {}
}
