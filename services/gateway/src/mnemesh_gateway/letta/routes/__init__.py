"""The operations of each resource: HTTP in, calls of the mesh, JSON out."""

from __future__ import annotations

from mnemesh_gateway.letta.operations import Operations
from mnemesh_gateway.letta.routes import (
    administration,
    agent_files,
    agent_memory,
    agent_messages,
    agent_tools,
    agents,
    archives,
    blocks,
    conversations,
    folders,
    groups,
    identities,
    mcp_servers,
    messages,
    models,
    runs,
    tools,
)


def resources() -> list[Operations]:
    """Returns the operations of all resources. Within a resource, the first path that matches counts.

    The most frequent operations of a resource come first: a path is compared with those before it.
    """
    return [
        agent_messages.operations,
        agent_files.operations,
        agents.operations,
        agent_memory.operations,
        agent_tools.operations,
        runs.operations,
        conversations.operations,
        messages.operations,
        blocks.operations,
        archives.operations,
        folders.operations,
        groups.operations,
        identities.operations,
        mcp_servers.operations,
        models.operations,
        tools.operations,
        administration.operations,
    ]
