"""Generates libs/mnemesh-proto/src from proto/: messages, gRPC stubs and type stubs; and proto/service_config.json.

With --check, generates into a temporary directory and fails if the committed code differs.
"""

import argparse
import filecmp
import json
import os
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc
from mnemesh_kit.retries import service_config_of

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TARGET = ROOT / "libs" / "mnemesh-proto" / "src"
SERVICE_CONFIG = PROTO / "service_config.json"
_DESCRIPTORS = "descriptors.binpb"


def generate(target: Path) -> None:
    """Writes the code of every proto file to `target`, with the same relative paths."""
    # protoc finds the mypy plugins through PATH; they are installed next to this interpreter
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet,generate_concrete_servicer_stubs:{target}",
        f"--descriptor_set_out={target / _DESCRIPTORS}",
        "--include_imports",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed; its message is above")
    for stub in target.rglob("*_pb2_grpc.py"):
        source = PROTO / stub.relative_to(target).with_name(stub.name.replace("_pb2_grpc.py", ".proto"))
        if "\nservice " not in source.read_text():
            stub.unlink()
            stub.with_suffix(".pyi").unlink(missing_ok=True)


def service_config(descriptors: Path) -> str:
    """Returns the gRPC service config of all services, for clients in any language."""
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file
    pool = DescriptorPool()
    for file in files:
        pool.Add(file)
    names = [f"{file.package}.{service.name}" for file in files for service in file.service]
    return json.dumps(service_config_of([pool.FindServiceByName(name) for name in sorted(names)]), indent=2) + "\n"


def differences(fresh: Path) -> list[str]:
    """Returns the paths, relative to the generated tree, that are missing, superfluous or different."""
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*_pb2*.py*")}
    present = {path.relative_to(TARGET) for path in TARGET.rglob("*_pb2*.py*") if "__pycache__" not in path.parts}
    stale = [name for name in wanted & present if not filecmp.cmp(fresh / name, TARGET / name, shallow=False)]
    return sorted(str(name) for name in (wanted ^ present) | set(stale))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed code is not current")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        descriptors = Path(scratch) / _DESCRIPTORS
        config = service_config(descriptors)
        descriptors.unlink()
        stale = differences(Path(scratch))
        if not SERVICE_CONFIG.exists() or SERVICE_CONFIG.read_text() != config:
            stale.append(str(SERVICE_CONFIG.relative_to(ROOT)))
        if arguments.check and stale:
            sys.exit("generated code is not current; run `make proto`:\n  " + "\n  ".join(stale))
        if arguments.check:
            return
        SERVICE_CONFIG.write_text(config)
        for path in TARGET.rglob("*_pb2*.py*"):
            path.unlink()
        shutil.copytree(scratch, TARGET, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
