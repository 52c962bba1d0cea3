"""The toolchains of the examples: whether this machine has them, and whether an output says that it is offline."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mnemesh_testkit.timeouts import scaled


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a toolchain needs. `minimum` is compared with the first version in the program's output."""

    command: tuple[str, ...]
    minimum: tuple[int, ...]


TOOLCHAINS: Final[Mapping[str, tuple[Program, ...]]] = {
    "go": (Program(("go", "version"), (1, 25)),),
    "java": (Program(("javac", "-version"), (17,)), Program(("mvn", "-version"), (3, 8))),
    "python": (Program(("python3", "-c", "import ensurepip, platform; print(platform.python_version())"), (3, 11)),),
    "typescript": (Program(("node", "--version"), (20,)), Program(("npm", "--version"), (10,))),
}

_VERSION: Final = re.compile(r"\d+(?:\.\d+)+|(?<=javac )\d+")
_OFFLINE: Final = re.compile(
    r"dial tcp|no such host|i/o timeout|TLS handshake timeout|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT"
    r"|ENETUNREACH|Could not (?:transfer|find) artifact|Unknown host|Connection refused|Connection timed out"
    r"|NewConnectionError|Failed to establish a new connection|Temporary failure in name resolution"
    r"|No matching distribution|Network is unreachable|proxyconnect|SOCKET_TIMEOUT|Read timed out|took longer than"
    r"|x509:|PKIX path|SELF_SIGNED_CERT|UNABLE_TO_(?:GET|VERIFY)_|CERT_(?:HAS_EXPIRED|NOT_YET)"
    r"|CERTIFICATE_VERIFY_FAILED|HTTP error [45]\d\d|\bE[45]\d\d\b|status: [45]\d\d"
    r"|: (?:403 Forbidden|404 Not Found|407|410 Gone|429|50[0-4])\b",
    re.IGNORECASE,
)
"""What builds print without the registries, or with mirrors that lack a package. A build that hangs waits for them."""


def missing(language: str, path: str) -> str:
    """Returns what the toolchain of a language lacks on this PATH; empty if nothing."""
    for program in TOOLCHAINS[language]:
        name = program.command[0]
        found_at = shutil.which(name, path=path)
        if found_at is None:
            return f"{name} is not installed"
        command = (found_at, *program.command[1:])
        answer = subprocess.run(
            command,
            env={**os.environ, "PATH": f"{path}{os.pathsep}{os.defpath}"},
            capture_output=True,
            text=True,
            timeout=scaled(60),
            check=False,
        )
        found = _VERSION.search(answer.stdout + answer.stderr)
        if found is None:
            return f"{name} does not print its version: {(answer.stdout + answer.stderr).strip()[:200]}"
        if tuple(int(part) for part in found[0].split(".")) < program.minimum:
            return f"{name} {found[0]} is too old: {'.'.join(map(str, program.minimum))} is required"
    return ""


def unreachable_registry(output: str) -> str:
    """Returns the line of a failed command that says that a package could not be fetched; empty if none does."""
    return next((line.strip()[:300] for line in output.splitlines() if _OFFLINE.search(line)), "")
