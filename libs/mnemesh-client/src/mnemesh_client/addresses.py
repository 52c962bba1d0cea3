"""The addresses of a mesh's services: from arguments, the environment, a running mesh, or the default ports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.config import ConfigError
from mnemesh_kit.services import SERVICES, service

_LARGEST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The gRPC target of each service: `host:port`, `unix:path` or `dns:///name:port`."""

    orchestrator: str
    blocks: str
    recall: str
    archival: str
    tools: str

    @classmethod
    def resolve(
        cls,
        target: str | None = None,
        *,
        blocks: str | None = None,
        recall: str | None = None,
        archival: str | None = None,
        tools: str | None = None,
        env: Mapping[str, str] = os.environ,
        running: Mapping[str, str] | None = None,
    ) -> Addresses:
        """Returns the addresses of a mesh. For each service, the first of these that is given:

        1. the argument;
        2. MNEMESH_TARGET for the orchestrator, MNEMESH_<SERVICE>_TARGET for another service;
        3. MNEMESH_<SERVICE>_PORT, on the host of the orchestrator, which is MNEMESH_HOST or localhost by default;
        4. `running`, unless the orchestrator is named by 1 or 2;
        5. the default port, on the host of the orchestrator.

        Args:
            target: the orchestrator. A host without a port gets the port of 3 or 5.
            blocks: the blocks service.
            recall: the recall service.
            archival: the archival service.
            tools: the tools service.
            env: the environment to read the variables from.
            running: the addresses of the services of a mesh that runs on this machine.

        Raises:
            ConfigError: the environment has an invalid port.
        """
        ports, named = ports_from_env(env), target or env.get("MNEMESH_TARGET")
        known = running if running is not None and not named else {}
        orchestrator = _with_port(named or _local_host(env), ports)
        if "orchestrator" not in ports:
            orchestrator = known.get("orchestrator", orchestrator)
        host = _host(orchestrator)
        arguments = {"blocks": blocks, "recall": recall, "archival": archival, "tools": tools}
        others = {}
        for name, address in arguments.items():
            default = f"{host}:{ports.get(name, service(name).port)}"
            found = address or env.get(service(name).target_variable)
            others[name] = found or (default if name in ports else known.get(name, default))
        return cls(orchestrator=orchestrator, **others)

    def items(self) -> tuple[tuple[str, str], ...]:
        """Returns the name and address of each service, the orchestrator first."""
        return tuple((spec.name, str(getattr(self, spec.name))) for spec in SERVICES)


def ports_from_env(env: Mapping[str, str]) -> dict[str, int]:
    """Returns the ports of the services for which MNEMESH_<SERVICE>_PORT is set.

    Raises:
        ConfigError: one is not a port number.
    """
    ports: dict[str, int] = {}
    for spec in SERVICES:
        text = env.get(spec.port_variable)
        if not text:
            continue
        if not text.isdecimal() or not 0 < int(text) <= _LARGEST_PORT:
            raise ConfigError(f"{spec.port_variable} must be a port number from 1 to {_LARGEST_PORT}, not {text!r}.")
        ports[spec.name] = int(text)
    return ports


def _local_host(env: Mapping[str, str]) -> str:
    """Returns the host of a mesh that listens on MNEMESH_HOST."""
    host = env.get("MNEMESH_HOST") or "localhost"
    if host in ("0.0.0.0", "::") or host.startswith("unix:"):  # noqa: S104  (addresses to connect to, not to bind)
        return "localhost"
    return f"[{host}]" if ":" in host else host


def _with_port(target: str, ports: Mapping[str, int]) -> str:
    is_bare_ipv6 = target.startswith("[") and target.endswith("]")
    if is_bare_ipv6 or ":" not in target:
        return f"{target}:{ports.get('orchestrator', service('orchestrator').port)}"
    return target


def _host(target: str) -> str:
    if target.startswith("unix:"):
        return "localhost"
    return target.rpartition("/")[2].rpartition(":")[0]
