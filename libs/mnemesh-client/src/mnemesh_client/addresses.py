"""The addresses of a mesh: given, from the environment, or from the lock file of the data directory that it runs on."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mnemesh_kit.errors import Unavailable
from mnemesh_kit.services import SERVICES, Protocol, ports_from_env, service
from mnemesh_kit.tls.credentials import SCHEME, host_of

LOCK_NAME: Final = "mnemesh.lock"


def running_addresses(directory: str | os.PathLike[str]) -> Mapping[str, str]:
    """Returns the addresses of the services by name. If the mesh was killed, they are those that it had.

    Raises:
        Unavailable: no mesh runs on the directory.
    """
    path = Path(directory).expanduser() / LOCK_NAME
    try:
        # The file is empty while no mesh runs.
        addresses = json.loads(path.read_text(encoding="utf-8"))["addresses"]
    except (OSError, ValueError, KeyError, TypeError):
        addresses = None
    if not isinstance(addresses, dict) or not addresses:
        raise Unavailable(f"No mesh runs on {directory}. Start it with `mnemesh up --data-dir {directory}`.")
    return {str(name): str(address) for name, address in addresses.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The target of each service: `host:port`; over gRPC also `unix:path`, `dns:///name:port` and `tls://host:port`."""

    orchestrator: str
    blocks: str
    recall: str
    archival: str
    tools: str
    files: str = service("files").default_target
    gateway: str = service("gateway").default_target

    @classmethod
    def resolve(
        cls,
        target: str | None = None,
        *,
        blocks: str | None = None,
        recall: str | None = None,
        archival: str | None = None,
        tools: str | None = None,
        files: str | None = None,
        gateway: str | None = None,
        env: Mapping[str, str] = os.environ,
        running: Mapping[str, str] | None = None,
    ) -> "Addresses":
        """Returns the addresses of a mesh. For each service, the first of these that is given:

        1. the argument;
        2. MNEMESH_TARGET for the orchestrator, MNEMESH_<SERVICE>_TARGET for another service;
        3. MNEMESH_<SERVICE>_PORT, on the host of the orchestrator, which is MNEMESH_HOST or localhost by default;
        4. `running`, unless the orchestrator is named by 1 or 2;
        5. the orchestrator itself, which forwards the calls of the other services; the default port for the
           orchestrator and for the gateway, which is on the same host.

        Args:
            target: the orchestrator. A host without a port gets the port of 3 or 5. After `tls://`, the addresses of 3
                and 5 begin with it too.
            blocks: the blocks service.
            recall: the recall service.
            archival: the archival service.
            tools: the tools service.
            files: the files service.
            gateway: the gateway.
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
        host, scheme = host_of(orchestrator), SCHEME if orchestrator.startswith(SCHEME) else ""
        host = "localhost" if host.startswith("unix:") else host
        arguments = {
            "blocks": blocks,
            "recall": recall,
            "archival": archival,
            "tools": tools,
            "files": files,
            "gateway": gateway,
        }
        others = {}
        for name, address in arguments.items():
            is_grpc = service(name).protocol is Protocol.GRPC
            by_port = f"{scheme if is_grpc else ''}{host}:{ports.get(name, service(name).port)}"
            found = address or env.get(service(name).target_variable) or (by_port if name in ports else None)
            others[name] = found or known.get(name, orchestrator if is_grpc else by_port)
        return cls(orchestrator=orchestrator, **others)

    def items(self) -> tuple[tuple[str, str], ...]:
        """Returns the name and address of each service, callers first."""
        return tuple((spec.name, str(getattr(self, spec.name))) for spec in SERVICES)


def _local_host(env: Mapping[str, str]) -> str:
    """Returns the host of a mesh that listens on MNEMESH_HOST."""
    host = env.get("MNEMESH_HOST") or "localhost"
    if host in ("0.0.0.0", "::") or host.startswith("unix:"):  # noqa: S104  (addresses to connect to, not to bind)
        return "localhost"
    return f"[{host}]" if ":" in host else host


def _with_port(target: str, ports: Mapping[str, int]) -> str:
    address = target.removeprefix(SCHEME)
    is_bare_ipv6 = address.startswith("[") and address.endswith("]")
    if is_bare_ipv6 or ":" not in address:
        return f"{target}:{ports.get('orchestrator', service('orchestrator').port)}"
    return target
