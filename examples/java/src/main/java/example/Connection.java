package example;

import com.google.gson.Gson;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.AbstractStub;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/** The connection to mnemesh: address, TLS, token, retries. README.md lists the environment variables. */
final class Connection {
  // Deadlines of calls, in seconds, for a busy laptop; docs/clients.md has those of a server.
  static final long READ = 30;
  static final long WRITE = 60;
  static final long TURN = 600;

  private static final Path SERVICE_CONFIG = Path.of("../../proto/service_config.json");

  /** Returns a channel for the stubs of all services: the orchestrator forwards the calls of the others. */
  static ManagedChannel connect() throws IOException {
    Map<String, ?> retries = new Gson().fromJson(Files.readString(SERVICE_CONFIG), Map.class);
    var builder =
        Grpc.newChannelBuilder(variable("TARGET").orElse("localhost:50050"), credentials())
            // gRPC repeats idempotent calls that fail with UNAVAILABLE.
            .defaultServiceConfig(retries)
            .enableRetry()
            .maxInboundMessageSize(64 << 20)
            .keepAliveTime(30, TimeUnit.SECONDS)
            .keepAliveTimeout(10, TimeUnit.SECONDS);
    variable("TOKEN").ifPresent(
        token -> {
          var metadata = new Metadata();
          metadata.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
          builder.intercept(MetadataUtils.newAttachHeadersInterceptor(metadata));
        });
    return builder.build();
  }

  /** Returns the stub with a deadline for its next call. */
  static <S extends AbstractStub<S>> S within(long seconds, S stub) {
    return stub.withDeadlineAfter(seconds, TimeUnit.SECONDS);
  }

  private static ChannelCredentials credentials() throws IOException {
    Optional<String> authorities = variable("GRPC_TLS_CA_FILE");
    if (authorities.isEmpty()) {
      return InsecureChannelCredentials.create();
    }
    var builder = TlsChannelCredentials.newBuilder().trustManager(new File(authorities.get()));
    Optional<String> certificate = variable("GRPC_TLS_CERT_FILE");
    if (certificate.isPresent()) {
      builder.keyManager(new File(certificate.get()), new File(variable("GRPC_TLS_KEY_FILE").orElseThrow()));
    }
    return builder.build();
  }

  private static Optional<String> variable(String name) {
    return Optional.ofNullable(System.getenv("MNEMESH_" + name)).filter(value -> !value.isEmpty());
  }

  private Connection() {}
}
