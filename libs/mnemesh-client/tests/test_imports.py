"""What the client imports: gRPC and protobuf, nothing of servers, and nothing that only POSIX systems have."""

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "src" / "mnemesh_client"
POSIX_MODULES: Final = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
POSIX_NAMES: Final = {"O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "fchmod", "fork", "geteuid", "getuid", "pread", "pwrite"}


def modules() -> dict[str, ast.Module]:
    """Returns the code of the client, without its server for MCP, and of all modules of the mesh that it imports."""
    found: dict[str, ast.Module] = {}
    paths = [path for path in PACKAGE.rglob("*.py") if path.stem != "mcp_server"]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    waiting = [name.removesuffix(".__init__") for name in names]
    while waiting:
        name = waiting.pop()
        path = source(name) if name not in found else None
        if path is not None:
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
            waiting += [each for each in imports(found[name]) if each.startswith("mnemesh_")]
    return found


def source(name: str) -> Path | None:
    """Returns the file of a module; None if the name is that of something in a module."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def imports(tree: ast.Module) -> Iterator[str]:
    """Yields the modules that code imports when it is imported, and not later inside of functions."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("mnemesh_"))


def test_client_imports_grpc_and_protobuf_only() -> None:
    found = modules()
    assert {"mnemesh_client.mnemesh", "mnemesh_kit.channels", "mnemesh_kit.tls.certificates"} <= found.keys()
    tops = {name.partition(".")[0] for tree in found.values() for name in imports(tree)}
    own = {top for top in tops if top.startswith("mnemesh")}
    assert tops - own - sys.stdlib_module_names == {"google", "grpc"}


def test_client_needs_no_posix_system() -> None:
    for name, tree in modules().items():
        assert POSIX_MODULES.isdisjoint(imports(tree)), name
        if name.startswith("mnemesh_client"):
            used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert used.isdisjoint(POSIX_NAMES), name
