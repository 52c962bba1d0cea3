"""Resolves and installs the packages of tools in Python with uv."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mnemesh_sandbox import OUTPUT_DIRECTORY, Task
from uv import find_uv_bin

from mnemesh_tools.packages import inside
from mnemesh_tools.packages.builder import Builds, PackagesUnavailable, certificate_file

_PROGRAM: Final = "uv"


class UvInstaller:
    """Packages of a Python index."""

    def __init__(self, builds: Builds, index: str, *, allows_source: bool) -> None:
        """Stores the settings.

        Args:
            builds: Runs uv.
            index: The URL of the index (PEP 503).
            allows_source: Packages without a wheel are built from their source, in the sandbox.
        """
        self._builds = builds
        self._index = index
        self._allows_source = allows_source
        self._uv = str(Path(find_uv_bin()).resolve())
        self._python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)

    async def resolve(self, lines: Sequence[str], output: Path) -> str:
        """Returns the lock of requirements: every package with its version and the hashes of its files.

        Args:
            lines: The requirements.
            output: An empty directory for the files of uv.

        Raises:
            PackagesUnavailable: They cannot be resolved, or the index cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """
        options = ("pip", "compile", "--no-header", "--no-annotate", "--generate-hashes", "--quiet")
        return await self._run((*options, *self._common()), "\n".join(lines), output)

    async def install(self, lock: str, output: Path) -> Path:
        """Installs the packages of a lock, and returns their directory within `output`.

        Raises:
            PackagesUnavailable: A file is missing or has another hash, or the index cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """
        target = ("--target", f"{OUTPUT_DIRECTORY}/{inside.SITE}")
        options = ("pip", "install", *target, "--no-deps", "--require-hashes", "--compile-bytecode")
        await self._run((*options, *self._common(), "--requirements"), lock, output)
        site = output / inside.SITE
        # A build of a source distribution executes its code, which could leave a link to another directory.
        if site.is_symlink() or not site.is_dir():
            raise PackagesUnavailable("the installation left no directory of packages")
        return site

    def _common(self) -> tuple[str, ...]:
        binary = () if self._allows_source else ("--only-binary", ":all:")
        return ("--python", self._python, "--default-index", self._index, *binary)

    async def _run(self, arguments: Sequence[str], requirements: str, output: Path) -> str:
        values = {
            "uv": self._uv,
            "arguments": list(arguments),
            "environment": _environment(),
            "requirements": requirements,
            "output": OUTPUT_DIRECTORY,
        }
        task = Task(inside.SOURCE, inside.FUNCTION, values)
        return await self._builds.run(_PROGRAM, task, self._index, output, (self._uv,))


def _environment() -> dict[str, str]:
    """Returns the variables of uv. Nothing else of the service's environment reaches it."""
    certificates = certificate_file()
    return {
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "UV_HTTP_RETRIES": "1",
        **({} if certificates is None else {"SSL_CERT_FILE": certificates}),
    }
