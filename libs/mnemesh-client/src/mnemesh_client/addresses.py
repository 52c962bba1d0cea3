"""The addresses of a mesh's services: from arguments, the environment, or the default ports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mnemesh_kit.services import SERVICES, service


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
    ) -> Addresses:
        """Returns the addresses of a mesh.

        Args:
            target: the orchestrator. Defaults to MNEMESH_TARGET, then to localhost:50050. A host without a port gets
                port 50050.
            blocks: the blocks service. Defaults to MNEMESH_BLOCKS_TARGET, then to the default port of the service on
                the host of the orchestrator.
            recall: the recall service. Has the same defaults with MNEMESH_RECALL_TARGET.
            archival: the archival service. Has the same defaults with MNEMESH_ARCHIVAL_TARGET.
            tools: the tools service. Has the same defaults with MNEMESH_TOOLS_TARGET.
            env: the environment to read the variables from.
        """
        orchestrator = _with_port(target or env.get("MNEMESH_TARGET") or "localhost")
        host = _host(orchestrator)
        arguments = {"blocks": blocks, "recall": recall, "archival": archival, "tools": tools}
        others = {
            name: address or env.get(service(name).target_variable) or f"{host}:{service(name).port}"
            for name, address in arguments.items()
        }
        return cls(orchestrator=orchestrator, **others)

    def items(self) -> tuple[tuple[str, str], ...]:
        """Returns the name and address of each service, the orchestrator first."""
        return tuple((spec.name, str(getattr(self, spec.name))) for spec in SERVICES)


def _with_port(target: str) -> str:
    is_bare_ipv6 = target.startswith("[") and target.endswith("]")
    if is_bare_ipv6 or ":" not in target:
        return f"{target}:{service('orchestrator').port}"
    return target


def _host(target: str) -> str:
    if target.startswith("unix:"):
        return "localhost"
    return target.rpartition("/")[2].rpartition(":")[0]
