"""Core memory: the blocks that one agent holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_no_nul, require_text
from mnemesh_types.blocks import Block, CoreMemory

MAX_AGENTS: Final = 1000
"""The maximum number of agents in one batch."""
MAX_LABELS: Final = 1000
"""The maximum number of labels in one request."""
MAX_LINKED: Final = 100
"""The maximum number of agents whose blocks are kept equal."""
MAX_LINK_ID: Final = 200


@dataclass(frozen=True, slots=True)
class Holder:
    """The state of a holder. A holder that never held a block has the defaults."""

    is_erased: bool = False
    link_id: str | None = None
    """The set of agents with which the holder shares its blocks."""


def with_conversation(memory: CoreMemory, own: CoreMemory) -> CoreMemory:
    """Returns the core memory that a conversation shows.

    Args:
        memory: The agent's.
        own: The blocks of the conversation. Each replaces the agent's block with the same label, at its position; the
            others follow at the end.
    """
    by_label = {block.label: block for block in own.blocks}
    blocks = [by_label.pop(block.label, block) for block in memory.blocks]
    times = [time for time in (memory.updated_at, own.updated_at) if time is not None]
    return CoreMemory(
        memory.agent_id,
        memory.revision + own.revision,
        (*blocks, *by_label.values()),
        max(times) if times else None,
    )


@dataclass(frozen=True, slots=True)
class EditedBlock:
    """A block after an edit, and the revision of the core memory that the edit went through."""

    block: Block
    core_memory_revision: int


def require_labels(labels: Sequence[str]) -> Sequence[str]:
    """Returns `labels` if a request may name them.

    Raises:
        InvalidArgument: There is none, there are too many, or one contains a NUL character.
    """
    if not labels:
        raise InvalidArgument("labels must name at least one label.", field="labels")
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"labels must have at most {MAX_LABELS} entries.", field="labels")
    for label in labels:
        require_no_nul(label, "labels")
    return labels


def require_agents(agent_ids: Sequence[str], field: str = "agent_ids") -> Sequence[str]:
    """Returns `agent_ids` if one batch may ask for that many.

    Raises:
        InvalidArgument: There are too many.
    """
    if len(agent_ids) > MAX_AGENTS:
        raise InvalidArgument(f"{field} must have at most {MAX_AGENTS} entries.", field=field)
    return agent_ids


def require_link_id(link_id: str) -> str:
    """Returns `link_id` if it can identify a link.

    Raises:
        InvalidArgument: It is empty, too long, or contains a NUL character.
    """
    return require_text(link_id, "link_id", min_chars=1, max_chars=MAX_LINK_ID)


def require_link(agent_ids: Sequence[str], source_agent_id: str) -> Sequence[str]:
    """Returns `agent_ids` if these agents can share their blocks.

    Raises:
        InvalidArgument: An id is malformed or repeated, there are fewer than two or too many, or the source is not one
            of them.
    """
    for agent_id in agent_ids:
        require_id(agent_id, "agent", "agent_ids")
    if len(set(agent_ids)) != len(agent_ids) or not 2 <= len(agent_ids) <= MAX_LINKED:
        raise InvalidArgument(f"agent_ids must name 2 to {MAX_LINKED} agents, each once.", field="agent_ids")
    if source_agent_id not in agent_ids:
        raise InvalidArgument("source_agent_id must be one of agent_ids.", field="source_agent_id")
    return agent_ids
