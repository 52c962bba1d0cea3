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
    batches,
    blocks,
    conversations,
    folders,
    groups,
    health,
    identities,
    jobs,
    mcp_connections,
    mcp_servers,
    messages,
    models,
    passages,
    providers,
    runs,
    steps,
    tags,
    text_generation,
    tool_mcp_servers,
    tools,
)


def resources() -> list[Operations]:
    """Returns the operations of all resources. Within a resource, the first path that matches counts.

    The most frequent operations of a resource come first: a path is compared with those before it.
    """
    return [
        health.operations,
        agent_messages.operations,
        agent_files.operations,
        agents.operations,
        text_generation.operations,
        agent_memory.operations,
        agent_tools.operations,
        runs.operations,
        steps.operations,
        conversations.operations,
        batches.operations,
        messages.operations,
        blocks.operations,
        archives.operations,
        passages.operations,
        folders.operations,
        jobs.operations,
        groups.operations,
        identities.operations,
        mcp_connections.operations,
        mcp_servers.operations,
        models.operations,
        providers.operations,
        tags.operations,
        tool_mcp_servers.operations,
        tools.operations,
        administration.operations,
    ]
