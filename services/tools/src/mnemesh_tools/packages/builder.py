"""Runs the programs that resolve and install packages, in a sandbox whose network is the package index."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from mnemesh_sandbox import Access, Outcome, OutcomeStatus, Sandbox, SandboxSettings, Task
from mnemesh_sandbox.egress.connections import NetworkConnection, Refusal
from mnemesh_sandbox.egress.grants import GrantedHost, NetworkGrant, grant_of, normalized_host
from mnemesh_sandbox.egress.policy import EgressPolicy
from mnemesh_sandbox.egress.proxy import EgressProxy
from mnemesh_sandbox.egress.resolver import Resolve
from mnemesh_sandbox.task import clean

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
