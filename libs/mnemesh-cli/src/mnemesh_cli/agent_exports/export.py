"""The export of settings, tools, core memory, conversations and archives of an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mnemesh.agents.v1 import conversations_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.agent_exports.files import (
    ARCHIVES,
    BLOCKS,
    CONVERSATIONS,
    PASSAGES,
    SETTINGS,
    TOOLS,
    to_line,
    write,
)
from mnemesh_cli.json_lines import Line

if TYPE_CHECKING:
    from mnemesh_client.agent import Agent
    from mnemesh_client.mnemesh import Mnemesh


@dataclass(frozen=True, slots=True)
class ExportCounts:
    """The number of exported items, and the names of the secrets whose values are not exported."""

    blocks: int
    tools: int
    conversations: int
    archives: int
    passages: int
    secrets: tuple[str, ...]


async def export_agent(mnemesh: Mnemesh, agent: Agent, directory: Path, *, with_vectors: bool = False) -> ExportCounts:
    """Writes everything of an agent but its trace files. Values of secrets are left out.

    Args:
        mnemesh: the client.
        agent: the agent.
        directory: the directory of the files.
        with_vectors: also write the vectors of passages.

    Raises:
        Unavailable: a service cannot be reached. Files that were written before stay.
    """
    core = await mnemesh.blocks.core_memory(agent.id)
    blocks = write(directory, BLOCKS, map(to_line, core.blocks))
    tool_ids = [tool.tool_id for tool in agent.proto.tools if tool.tool_id and not tool.builtin]
    tools = write(directory, TOOLS, [to_line(await mnemesh.tools.get(tool_id)) for tool_id in tool_ids])
    conversations = [line async for line in _conversations(mnemesh, agent)]
    archives = [archive async for archive in mnemesh.archives.list(agent_id=agent.id, order="asc")]
    passages = [
        to_line(passage)
        for archive in archives
        async for passage in mnemesh.passages.list(archive_id=archive.id, order="asc", vectors=with_vectors)
    ]
    counts = ExportCounts(
        blocks=blocks,
        tools=tools,
        conversations=write(directory, CONVERSATIONS, conversations),
        archives=write(directory, ARCHIVES, map(to_line, archives)),
        passages=write(directory, PASSAGES, passages),
        secrets=tuple(secret.key for secret in agent.proto.secrets),
    )
    # Last: an export that is interrupted creates no agent.
    write(directory, SETTINGS, [{"format": 1, "agent": _settings(agent)}])
    return counts


def _settings(agent: Agent) -> Line:
    line = to_line(agent.proto)
    for secret in line.get("secrets", ()):
        secret.pop("value", None)
    return line


async def _conversations(mnemesh: Mnemesh, agent: Agent) -> AsyncIterator[Line]:
    async for conversation in mnemesh.conversations.list(agent_id=agent.id, order="asc"):
        blocks = [to_line(await mnemesh.blocks.get(block_id)) for block_id in conversation.isolated_block_ids]
        summary = await _summary(mnemesh, conversation)
        yield {
            "conversation": to_line(conversation),
            **({"blocks": blocks} if blocks else {}),
            **({"summary_message": to_line(summary)} if summary is not None else {}),
        }


async def _summary(mnemesh: Mnemesh, conversation: conversations_pb2.Conversation) -> message_pb2.Message | None:
    """Returns the summary at the head of a window, which is no trace; None if the window has none."""
    window = await mnemesh.messages.window(conversation.id)
    return next((message for message in window.messages if message.role == message_pb2.ROLE_SUMMARY), None)
