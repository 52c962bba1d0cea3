"""A plugin of buf that generates messages, type stubs and gRPC stubs with the compiler of grpcio-tools."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc


def main() -> None:
    request = CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    response = CodeGeneratorResponse(supported_features=CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL)
    with TemporaryDirectory() as scratch:
        descriptors, output = Path(scratch, "descriptors.binpb"), Path(scratch, "out")
        descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
        output.mkdir()
        options = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
        status = protoc.main(["protoc", f"--descriptor_set_in={descriptors}", *options, *request.file_to_generate])
        if status:
            sys.exit(status)
        for path in sorted(output.rglob("*.py*")):
            response.file.add(name=path.relative_to(output).as_posix(), content=path.read_text())
    sys.stdout.buffer.write(response.SerializeToString())


if __name__ == "__main__":
    main()
