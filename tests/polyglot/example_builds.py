"""Builds of the examples, by the commands of their READMEs, kept outside the repository for unchanged sources."""

import asyncio
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from mnemesh_testkit.timeouts import scaled

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD_SECONDS: Final = scaled(900)
RUN_SECONDS: Final = scaled(300)
_BLOCK: Final = "\n## {}\n\n```sh\n(.*?)```\n"
_COMPLETE: Final = "complete"
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In a build of a minute, Java does not optimize itself: that takes as much CPU time as the build."""


class CommandError(Exception):
    """A command failed; the text is its output."""


def environment() -> dict[str, str]:
    """Returns the variables of builds and programs: buf and Node.js come from the packages of this Python."""
    foreign = ("MNEMESH_", "PYTHON", "VIRTUAL_ENV")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"MAVEN_OPTS": _JAVA, **inherited, "PATH": path}


def commands(language: str, heading: str) -> str:
    """Returns the shell commands below a heading of the example's README."""
    found = re.search(_BLOCK.format(heading), (ROOT / "examples" / language / "README.md").read_text(), re.DOTALL)
    assert found is not None, f"examples/{language}/README.md has no commands below {heading}"
    return found[1]


async def built(language: str) -> Path:
    """Returns the directory of the built example.

    Raises:
        CommandError: the build failed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mnemesh" / "polyglot"
    cache.mkdir(parents=True, exist_ok=True)
    name = f"{language}-{_digest(language)}"
    if not (cache / name / _COMPLETE).exists():
        # Links to absolute paths, such as those of a virtual environment, forbid a directory that is renamed later.
        directory = Path(mkdtemp(prefix=f"{name}-", dir=cache))
        try:
            for source in _sources(language):
                target = directory / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
            example = directory / "examples" / language
            await shell(commands(language, "Build"), example, environment(), BUILD_SECONDS)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        (directory / _COMPLETE).touch()
        _publish(directory, cache / name)
        for old in cache.glob(f"{language}-*"):
            if old in {directory, cache / name}:
                continue
            if old.is_symlink():
                old.unlink()
            elif (old / _COMPLETE).exists():  # Another process may be building in an incomplete one.
                shutil.rmtree(old, ignore_errors=True)
    return cache / name / "examples" / language


async def shell(script: str, directory: Path, variables: Mapping[str, str], seconds: float) -> str:
    """Returns the standard output of a script, with all its processes ended.

    Raises:
        CommandError: the script failed, or took longer.
    """
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-euc",
        script,
        cwd=directory,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise CommandError(f"{script}took longer than {seconds:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    text = output.decode(errors="replace")
    if process.returncode:
        raise CommandError(f"{script}failed with {process.returncode}:\n{text}\n{errors.decode(errors='replace')}")
    return text


def _sources(language: str) -> Iterator[Path]:
    """Yields the contracts and the files of the example that belong to the repository."""
    yield from sorted(path for path in (ROOT / "proto").rglob("*") if path.is_file())
    example = ROOT / "examples" / language
    made = {"gen", "build", "target", ".venv", "node_modules", "__pycache__", "example"}
    for directory, names, files in os.walk(example):
        if Path(directory) != example or language != "java":
            names[:] = sorted(set(names) - (made if Path(directory) == example else {"__pycache__"}))
        else:
            names[:] = ["src"]
        yield from (Path(directory, file) for file in sorted(files) if file not in made)
    if language == "go":
        yield example / "gen" / "go.mod"


def _digest(language: str) -> str:
    """Returns a digest of what the build depends on."""
    digest = hashlib.sha256(f"{sys.platform} {sys.version}".encode())
    for source in _sources(language):
        digest.update(str(source.relative_to(ROOT)).encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _publish(directory: Path, name: Path) -> None:
    """Makes a build known under its name. Another process may have done so: its build is as good."""
    link = directory.with_name(f"{directory.name}.link")
    link.symlink_to(directory)
    link.rename(name)
