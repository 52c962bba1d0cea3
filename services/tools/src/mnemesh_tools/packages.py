"""The directories of installed packages on this host: shared when equal, read-only, and evicted by size."""

import asyncio
import json
import os
import re
import signal
import stat
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from mnemesh_sandbox import OUTPUT_DIRECTORY, Access, Language, Outcome, OutcomeStatus, Sandbox, SandboxSettings, Task
from mnemesh_sandbox.egress.policy import (
    EgressPolicy,
    GrantedHost,
    NetworkConnection,
    NetworkGrant,
    Refusal,
    Resolve,
    grant_of,
    normalized_host,
)
from mnemesh_sandbox.egress.proxy import EgressProxy
from mnemesh_sandbox.inside.node import EXPORT
from mnemesh_sandbox.node import NodeProgram
from mnemesh_sandbox.task import clean
from mnemesh_sandbox.work_directory import remove_tree
from uv import find_uv_bin

from mnemesh_tools.model.packages import INSTALL_NODE

_BUILDING: Final = "building-"
_SIZE: Final = "size"
_BLOCK: Final = 512


MAX_BYTES: Final = 4 << 30
"""The size of the installed packages that are kept; beyond it, those used longest ago are removed."""


class PackageCache:
    """Directories of packages by key. The modification time of the file `size` is the time of the last use."""

    def __init__(self, root: Path, max_bytes: int = MAX_BYTES) -> None:
        """Opens the cache, and removes what killed builds left.

        Args:
            root: The directory of the cache, which belongs to this process.
            max_bytes: The size of all directories together that eviction keeps. Those in use are never evicted.
        """
        self._root = root
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for entry in root.iterdir():
            size = None if entry.name.startswith(_BUILDING) else _stored_size(entry)
            if size is None:
                remove_tree(str(entry))
            else:
                self._sizes[entry.name] = size

    def size(self, key: str) -> int | None:
        """Returns the bytes of a complete directory, or None if there is none."""
        return self._sizes.get(key)

    @property
    def total(self) -> int:
        """The bytes of all directories."""
        return sum(self._sizes.values())

    @contextmanager
    def hold(self, key: str) -> Iterator[Path]:
        """Yields the directory of packages, which is not evicted until the block ends.

        Raises:
            KeyError: There is none.
        """
        if key not in self._sizes:
            raise KeyError(key)
        self._held[key] += 1
        os.utime(self._root / key / _SIZE)
        try:
            yield self._root / key / "site"
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def new_directory(self) -> Path:
        """Returns a new empty directory for a build. Its parent is private."""
        parent = self._root / f"{_BUILDING}{uuid.uuid4().hex}"
        parent.mkdir(mode=0o700)
        directory = parent / "output"
        directory.mkdir()
        directory.chmod(0o777)
        return directory

    def discard(self, directory: Path) -> None:
        """Removes a directory of `new_directory`."""
        if directory.parent.exists():
            remove_tree(str(directory.parent))

    async def publish(self, key: str, site: Path) -> None:
        """Makes the directory of a finished build available, and evicts others if all are too large together."""
        if key not in self._sizes:
            self._sizes[key] = await asyncio.to_thread(self._publish, key, site)
        for doomed in self._evicted():
            await asyncio.to_thread(remove_tree, str(doomed))

    def _publish(self, key: str, site: Path) -> int:
        size = _taken_over(site)
        complete = site.parent.parent / "complete"
        complete.mkdir(mode=0o755)
        site.rename(complete / "site")
        (complete / _SIZE).write_text(str(size))
        os.sync()
        complete.rename(self._root / key)
        return size

    def _evicted(self) -> list[Path]:
        """Takes directories out of the cache that must be removed. Not in a thread: `hold` must not come between."""
        doomed: list[Path] = []
        by_use = sorted(self._sizes, key=lambda key: (self._root / key / _SIZE).stat().st_mtime)
        for key in by_use[:-1]:  # the newest stays, however large it is
            if self.total <= self._max_bytes:
                break
            if not self._held[key]:
                del self._sizes[key]
                # Renamed first: a directory with a name is always complete.
                doomed.append((self._root / key).rename(self._root / f"{_BUILDING}{key}-{time.monotonic_ns()}"))
        return doomed


def _stored_size(directory: Path) -> int | None:
    """Returns the size of a complete directory; None for one that is not complete."""
    try:
        return int((directory / _SIZE).read_text())
    except (OSError, ValueError):
        return None


def _taken_over(directory: Path) -> int:
    """Returns the bytes of a directory, and makes it that of this process: the uid of its build is that of later tools.

    The build has ended. Its directories are readable afterwards, and links are not followed.
    """
    total, is_root = 0, os.geteuid() == 0
    for parent, directories, files in os.walk(_owned(str(directory), is_root=is_root)[0]):
        for name in (*directories, *files):
            total += _owned(f"{parent}/{name}", is_root=is_root)[1]
    return total


def _owned(path: str, *, is_root: bool) -> tuple[str, int]:
    found = os.lstat(path)
    if is_root:
        os.chown(path, 0, 0, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        os.chmod(path, 0o755)  # noqa: S103, PTH101 - tools read it
    return path, found.st_blocks * _BLOCK


SOURCE: Final = '''
import json
import os
import signal
import subprocess
import time

ORPHAN_SECONDS = 5.0


def orphans():
    """Returns the processes whose parents have ended: those that the code of a build left behind."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == os.getppid():
            found.append(int(name))
    return found


def wait_for(process):
    """Returns the status of uv. It waits for builds, and these for processes that they left, which are ended."""
    known = {}
    while True:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        known = {pid: known.get(pid, now) for pid in orphans()}
        for pid, since in known.items():
            if now - since > ORPHAN_SECONDS:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def run_uv(uv, arguments, environment, requirements, output):
    """Runs uv on requirements from a file. Returns a JSON list: its status, its output and the end of its messages."""
    os.umask(0o022)  # other uids read what it installs
    with open("requirements.txt", "w", encoding="utf-8") as file:  # in the work directory
        file.write(requirements)
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    # Files, because a process that a build left behind would keep pipes open.
    form = {"mode": "w+", "encoding": "utf-8", "errors": "replace"}
    with open("output", **form) as said, open("messages", **form) as told:
        status = wait_for(
            subprocess.Popen(
                [uv, *arguments, "requirements.txt"],
                env={**environment, **proxies, "HOME": os.getcwd(), "UV_CACHE_DIR": f"{output}/cache"},
                stdout=said,
                stderr=told,
            )
        )
        said.seek(0)
        told.seek(0)
        return json.dumps([status, said.read(), told.read()[-4000:]], ensure_ascii=False)
'''
FUNCTION: Final = "run_uv"
SITE: Final = "site"
"""The directory of the output that receives the packages."""


_MEMORY_MB: Final = 2_048
_PROCESSES: Final = 64
_OPEN_FILES: Final = 1_024
_FILES: Final = 200_000
MAX_BUILD_MB: Final = 2_048
# The operator names the index, so its addresses need not be public.
_ANY_ADDRESS: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))
_CERTIFICATE_FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_SHOWN: Final = 1_000
_FAILED_BUILD: Final = "Failed to build"
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """The settings of the installation of packages."""

    file_hosts: tuple[str, ...]
    """The hosts of the files that an index names, beside its own."""
    seconds: float
    max_mb: int
    """The size of one directory while it is being installed, with the downloaded files."""


class PackagesUnavailable(Exception):
    """The packages cannot be installed. The message is for the author of the tool."""


class Installer(Protocol):
    """The packages of one language."""

    async def resolve(self, lines: Sequence[str], output: Path) -> str:
        """Returns the lock of requirements, for which `output` is an empty directory of files.

        Raises:
            PackagesUnavailable: They cannot be resolved, or the index cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """

    async def install(self, lock: str, output: Path) -> Path:
        """Installs the packages of a lock, and returns their directory within `output`.

        Raises:
            PackagesUnavailable: A package is missing or has another hash, or the index cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """


class Builds:
    """Runs a program that resolves or installs packages."""

    def __init__(
        self,
        sandbox: Sandbox,
        settings: BuildSettings,
        limits: SandboxSettings,
        audit: Callable[[NetworkConnection], None],
        resolve: Resolve,
    ) -> None:
        """Stores the settings.

        Args:
            sandbox: The sandbox of tools.
            settings: How packages are obtained.
            limits: The limits of tools, which apply where builds do not need more.
            audit: Is called with each connection of a build.
            resolve: Resolves the names of the index and its hosts.
        """
        self._settings = settings
        self._audit = audit
        self._resolve = resolve
        limits = replace(
            limits,
            memory_mb=max(limits.memory_mb, _MEMORY_MB),
            cpu_seconds=round(settings.seconds),
            disk_mb=settings.max_mb,
            processes=_PROCESSES,
            open_files=_OPEN_FILES,
            files=_FILES,
        )
        self._sandbox = sandbox.with_settings(limits)

    async def run(self, program: str, task: Task, index: str, output: Path, programs: tuple[str, ...]) -> str:
        """Returns the output of a program. The task returns its status, its output and its messages.

        Args:
            program: The name of the program, for errors.
            task: The task that runs it.
            index: The URL of the index, whose host it can reach.
            output: The directory that it fills.
            programs: Files and directories that it needs.

        Raises:
            PackagesUnavailable: It has failed.
            SandboxUnavailable: The host cannot confine a build.
        """
        refusals: list[NetworkConnection] = []

        def audit(connection: NetworkConnection) -> None:
            self._audit(connection)
            if connection.refusal is not None:
                refusals.append(connection)

        policy = EgressPolicy(private_networks=_ANY_ADDRESS, max_bytes=self._settings.max_mb * 1024 * 1024)
        proxy = EgressProxy(self._grant(index), policy, audit, self._resolve)
        access = Access(serve=proxy.serve, programs=programs, output=str(output))
        outcome = await self._sandbox.run(task, self._settings.seconds, access)
        return _output(program, task, outcome, refusals, self._settings.seconds)

    def _grant(self, index: str) -> NetworkGrant:
        parts = urlsplit(index)
        own = GrantedHost(normalized_host(parts.hostname or ""), parts.port)
        return NetworkGrant((own, *grant_of(self._settings.file_hosts).hosts))


def certificate_file() -> str | None:
    """Returns the file with the certificates of authorities that this host trusts."""
    return next((path for path in _CERTIFICATE_FILES if Path(path).exists()), None)


def _output(program: str, task: Task, outcome: Outcome, refusals: Sequence[NetworkConnection], seconds: float) -> str:
    if outcome.status is OutcomeStatus.TIMED_OUT:
        raise PackagesUnavailable(f"{program} did not end within {seconds:g} seconds")
    if outcome.status is not OutcomeStatus.SUCCESS:
        raise PackagesUnavailable(outcome.text.removeprefix(f"Error executing function {task.function}: "))
    try:
        status, output, messages = json.loads(outcome.text)
        output, messages = clean(str(output)), clean(str(messages))
    except (ValueError, TypeError, RecursionError) as error:  # too long, or written by the code of a build
        raise PackagesUnavailable(f"the output of {program} cannot be read") from error
    if status == 0:
        return output
    if status == -signal.SIGXFSZ:
        raise PackagesUnavailable("a file of the packages is too large")
    if isinstance(status, int) and status < 0:
        raise PackagesUnavailable(f"{program} was stopped by the signal {-status}: it may need too much memory")
    text = " ".join(_COLOUR.sub("", messages).replace("╰─▶", "").replace("×", "").split())
    if _FAILED_BUILD not in text:  # the code of a build may connect to anything, which says nothing about the index
        _raise_for(refusals)
    text = text.removeprefix("error: ").rstrip(".")
    raise PackagesUnavailable(text[-_SHOWN:] or f"{program} ended with the status {status}")


def _raise_for(refusals: Sequence[NetworkConnection]) -> None:
    for connection in refusals:
        if connection.refusal in (Refusal.UNRESOLVED, Refusal.UNREACHABLE):
            raise PackagesUnavailable("the package index cannot be reached")
        if connection.refusal is Refusal.NOT_GRANTED:
            text = f"the index leads to the host {connection.host}, which is not one of its own"
            raise PackagesUnavailable(f"{text} (MNEMESH_TOOLS_PACKAGE_HOSTS)")
        if connection.refusal is Refusal.TOO_MUCH:
            raise PackagesUnavailable("the packages are too large")


_NPM: Final = "npm"
_LOCK: Final = "package-lock.json"
_MANIFEST: Final = "package.json"
_COMMON: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_SOURCE: Final = f"""
import {{ spawnSync }} from 'node:child_process';
import {{ mkdirSync, readFileSync, writeFileSync }} from 'node:fs';

function run_npm(npm, options, environment, files, result, output) {{
  process.umask(0o022); // other uids read what it installs
  const directory = `${{output}}/{SITE}`;
  mkdirSync(directory);
  for (const [name, text] of Object.entries(files)) writeFileSync(`${{directory}}/${{name}}`, text);
  const proxies = Object.entries(process.env).filter(([name]) => name.toLowerCase().endsWith('_proxy'));
  const env = {{ ...environment, ...Object.fromEntries(proxies), HOME: output, npm_config_cache: `${{output}}/cache` }};
  const done = spawnSync(process.execPath, [`${{npm}}/bin/npm-cli.js`, ...options], {{
    cwd: directory,
    env,
    encoding: 'utf8',
    maxBuffer: 16000000,
  }});
  const text = done.status === 0 && result ? readFileSync(`${{directory}}/${{result}}`, 'utf8') : '';
  return [done.status ?? -1, text, `${{done.stderr ?? ''}}${{done.error?.message ?? ''}}`.slice(-4000)];
}}
export {{ run_npm as {EXPORT} }};
"""
_PARAMETERS: Final = ("npm", "options", "environment", "files", "result", "output")


class NpmInstaller:
    """Packages of an npm registry."""

    def __init__(self, builds: Builds, registry: str, node: NodeProgram | None) -> None:
        """Stores the settings.

        Args:
            builds: Runs npm.
            registry: The URL of the registry.
            node: Node, with which npm was installed; None if this server has none.
        """
        self._builds = builds
        self._registry = registry
        self._npm = None if node is None else node.npm

    async def resolve(self, lines: Sequence[str], output: Path) -> str:
        """Returns the lock of requirements: the text of package-lock.json, with the hash of each package.

        Args:
            lines: The requirements, such as "zod@^3".
            output: An empty directory for the files of npm.

        Raises:
            PackagesUnavailable: They cannot be resolved, or the registry cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """
        dependencies = {name: version for name, _, version in (line.rpartition("@") for line in lines)}
        files = {_MANIFEST: json.dumps({"name": "tool", "version": "0.0.0", "dependencies": dependencies})}
        text = await self._run(("install", "--package-lock-only", *_COMMON), files, _LOCK, output)
        _require_hashes(text)
        return text

    async def install(self, lock: str, output: Path) -> Path:
        """Installs the packages of a lock, and returns their directory within `output`.

        Raises:
            PackagesUnavailable: A package is missing or has another hash, or the registry cannot be reached.
            SandboxUnavailable: The host cannot confine a build.
        """
        root = _packages(lock).get("", {})
        files = {_MANIFEST: json.dumps({**root, "name": "tool"}), _LOCK: lock}
        await self._run(("ci", "--omit=dev", *_COMMON), files, "", output)
        site = output / SITE
        if site.is_symlink() or not (site / "node_modules").is_dir():
            raise PackagesUnavailable("the installation left no directory of packages")
        return site

    async def _run(self, options: Sequence[str], files: Mapping[str, str], result: str, output: Path) -> str:
        if self._npm is None:
            raise PackagesUnavailable(f"this server has no npm. {INSTALL_NODE}")
        certificates = certificate_file()
        values = {
            "npm": self._npm,
            "options": [*options, f"--registry={self._registry}", "--fetch-retries=0"],
            "environment": {} if certificates is None else {"NODE_EXTRA_CA_CERTS": certificates},
            "files": dict(files),
            "result": result,
            "output": OUTPUT_DIRECTORY,
        }
        task = Task(_SOURCE, "run_npm", values, language=Language.JAVASCRIPT, parameters=_PARAMETERS)
        return await self._builds.run(_NPM, task, self._registry, output, (self._npm,))


def _packages(lock: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        found = json.loads(lock)["packages"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackagesUnavailable("the lock of npm cannot be read") from error
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.values()):
        raise PackagesUnavailable("the lock of npm cannot be read")
    return found


def _require_hashes(lock: str) -> None:
    """Checks that every package comes from a registry, with a hash of its content."""
    for path, item in _packages(lock).items():
        if path and not item.get("inBundle") and not isinstance(item.get("integrity"), str):
            raise PackagesUnavailable(f"the package {path.rpartition('node_modules/')[2]} is not one of a registry")


_UV: Final = "uv"


@cache
def _uv_program() -> str:
    return str(Path(find_uv_bin()).resolve())


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
        self._uv = _uv_program()
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
        target = ("--target", f"{OUTPUT_DIRECTORY}/{SITE}")
        options = ("pip", "install", *target, "--no-deps", "--require-hashes", "--compile-bytecode")
        await self._run((*options, *self._common(), "--requirements"), lock, output)
        site = output / SITE
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
        task = Task(SOURCE, FUNCTION, values)
        return await self._builds.run(_UV, task, self._index, output, (self._uv,))


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
