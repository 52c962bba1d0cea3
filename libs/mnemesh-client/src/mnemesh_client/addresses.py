"""Where the rooms of a mesh are: from arguments, the environment, or the default ports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

DEFAULT_PORTS: Final[Mapping[str, int]] = {
    "orchestrator": 50050,
    "blocks": 50051,
    "recall": 50052,
    "archival": 50053,
    "tools": 50054,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The gRPC target of each room: `host:port`, `unix:path` or `dns:///name:port`."""

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
        """The addresses of a mesh.

        Args:
            target: the orchestrator; else MNEMESH_TARGET, else localhost:50050. A host without a port gets 50050.
            blocks: and the other rooms likewise: else MNEMESH_BLOCKS_TARGET and so on, else the room's default port
                on the orchestrator's host.
            env: where the variables are looked up.
        """
        orchestrator = _with_port(target or env.get("MNEMESH_TARGET") or "localhost")
        host = _host(orchestrator)
        given = {"blocks": blocks, "recall": recall, "archival": archival, "tools": tools}
        rooms = {
            room: address or env.get(f"MNEMESH_{room.upper()}_TARGET") or f"{host}:{DEFAULT_PORTS[room]}"
            for room, address in given.items()
        }
        return cls(orchestrator=orchestrator, **rooms)

    def items(self) -> tuple[tuple[str, str], ...]:
        """Each room with its address, the orchestrator first."""
        return tuple((room, str(getattr(self, room))) for room in DEFAULT_PORTS)


def _with_port(target: str) -> str:
    bare_v6 = target.startswith("[") and target.endswith("]")
    if bare_v6 or ":" not in target:
        return f"{target}:{DEFAULT_PORTS['orchestrator']}"
    return target


def _host(target: str) -> str:
    if target.startswith("unix:"):
        return "localhost"
    return target.rpartition("/")[2].rpartition(":")[0]
