"""A PgBouncer in transaction mode before the PostgreSQL server of the tests.

The program is the one of the system, or that of Debian's package, which is unpacked into the environment of the tests
without an installation.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mnemesh_testkit.databases.postgres import UNPRIVILEGED_UID, PostgresServer, open_process
from mnemesh_testkit.directories import is_open_to_all, shared_parent
from mnemesh_testkit.timeouts import scaled

PORT: Final = 6432
_UNPACKED: Final = Path(sys.prefix) / "share" / "pgbouncer"
_DOWNLOAD_SECONDS: Final = 120


class PooledServer(PostgresServer):
    """A server whose databases are reached through a PgBouncer. Each transaction may get another connection."""

    def __init__(self, server: PostgresServer, sockets: Path) -> None:
        super().__init__(server.directory, server.pid)
        self._sockets = sockets

    def url(self, database: str = "postgres") -> str:
        """Returns the URL of a database behind the pooler."""
        return f"postgresql://postgres@/{database}?host={self._sockets}&port={PORT}"


@contextmanager
def running_pgbouncer(server: PostgresServer, program: Path) -> Iterator[PooledServer]:
    """Starts a PgBouncer before a server, and stops it at the end."""
    root = Path(tempfile.mkdtemp(prefix="mnemesh-pgb-", dir=shared_parent()))
    account = pwd.getpwuid(UNPRIVILEGED_UID) if os.geteuid() == 0 else None
    try:
        settings = root / "settings.ini"
        # In turn and with few connections: what a connection keeps for the next transaction is seldom there.
        settings.write_text(
            f"[databases]\n* = host={server.directory} user=postgres\n"
            f"[pgbouncer]\nlisten_port = {PORT}\nunix_socket_dir = {root}\nauth_type = any\npool_mode = transaction\n"
            "server_round_robin = 1\nmin_pool_size = 2\ndefault_pool_size = 20\nmax_client_conn = 500\n"
        )
        if account is not None:
            os.chown(root, account.pw_uid, account.pw_gid)
            root.chmod(0o755)
        unpacked = _UNPACKED
        if account is not None and program.is_relative_to(unpacked) and not is_open_to_all(unpacked):
            unpacked = root / "unpacked"
            shutil.copytree(_UNPACKED, unpacked, symlinks=True)
            program = unpacked / program.relative_to(_UNPACKED)
        libraries = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, unpacked.glob("usr/lib/*")))}
        process = open_process([program, settings], account, root / "log", libraries)
        try:
            _wait_until_ready(root / f".s.PGSQL.{PORT}", process, root / "log")
            yield PooledServer(server, root)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(scaled(30))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def pgbouncer_program() -> Path:
    """Returns the program, which is downloaded if it is not installed.

    Raises:
        LookupError: PgBouncer is not installed, and the system has no package of it.
    """
    installed = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if installed is not None:
        return Path(installed)
    program = _UNPACKED / "usr" / "sbin" / "pgbouncer"
    _UNPACKED.mkdir(parents=True, exist_ok=True)
    with (_UNPACKED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes wait for the one that downloads
        if not program.exists():
            _download()
    return program


def _wait_until_ready(address: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + scaled(30)
    while time.monotonic() < give_up and process.poll() is None:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.connect(os.fspath(address))
            return
        time.sleep(0.02)
    raise RuntimeError(f"PgBouncer did not start: {log.read_text(errors='replace')}")


def _download() -> None:
    """Unpacks Debian's package, and the libraries that it needs and the system lacks."""
    apt, dpkg = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or dpkg is None:
        raise LookupError("PgBouncer is not installed, and this system has no Debian packages.")
    with tempfile.TemporaryDirectory(prefix="mnemesh-deb-") as directory:
        try:
            options: list[str] = []
            depends = _run(["apt-cache", "depends", "pgbouncer"])
            if "Depends:" not in depends:  # the lists of packages are empty, as in a container
                options = ["-o", f"Dir::State::lists={directory}", "-o", f"Dir::Cache={directory}"]
                _run([apt, *options, "update"])
                depends = _run(["apt-cache", *options, "depends", "pgbouncer"])
            needed = [line.split()[1] for line in depends.splitlines() if "Depends: lib" in line]
            missing = [name for name in needed if not _is_installed(name)]
            _run([apt, *options, "download", "pgbouncer", *missing], directory)
        except (OSError, subprocess.SubprocessError) as error:
            raise LookupError(f"The Debian package of PgBouncer cannot be downloaded: {error}") from error
        for package in Path(directory).glob("*.deb"):
            _run([dpkg, "-x", str(package), str(_UNPACKED)])


def _is_installed(package: str) -> bool:
    found = subprocess.run(["dpkg", "-s", package], capture_output=True, check=False, timeout=_DOWNLOAD_SECONDS)
    return found.returncode == 0


def _run(command: list[str], directory: str | None = None) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True, timeout=_DOWNLOAD_SECONDS)
    return done.stdout
