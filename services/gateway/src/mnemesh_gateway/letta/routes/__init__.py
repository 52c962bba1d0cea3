"""The operations of each resource: HTTP in, calls of the mesh, JSON out."""

from __future__ import annotations

from mnemesh_gateway.letta.operations import Operations
from mnemesh_gateway.letta.routes import agents, health


def resources() -> list[Operations]:
    """Returns the operations of all resources. Within a resource, the first path that matches counts."""
    return [health.operations, agents.operations]
