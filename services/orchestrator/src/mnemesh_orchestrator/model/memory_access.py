"""The scopes of an agent's memories in a turn or a window: where new ones are stored, and where all are found."""

from collections.abc import Iterable
from dataclasses import dataclass

from mnemesh_kit.ids import is_id

from mnemesh_orchestrator.model.episodes import MemoryScope
from mnemesh_orchestrator.model.memory_extraction import ExtractionScope, MemoryExtractionSettings


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """`stored` is the scope of new memories. `found` are the scopes that may be shown, `stored` among them."""

    stored: MemoryScope
    found: tuple[MemoryScope, ...]


def memory_access(
    agent_id: str,
    shared_name: str | None,
    extraction: MemoryExtractionSettings | None,
    *,
    conversation_id: str | None = None,
    senders: Iterable[str | None] = (),
    group_id: str | None = None,
) -> MemoryAccess:
    """Returns the scopes of an agent's memories. Those of an identity are found only if it is the only sender.

    Args:
        agent_id: The agent.
        shared_name: The named scope that the agent shares with others.
        extraction: The agent's settings.
        conversation_id: The conversation.
        senders: The senders of the messages that users sent; None for a message without one.
        group_id: The group of the run.
    """
    own = MemoryScope(agent_id)
    base = own if shared_name is None else MemoryScope(agent_id, shared_name)
    only = sole_identity(senders)
    identity = None if only is None else MemoryScope(agent_id, identity_id=only)
    conversation = None if conversation_id is None else MemoryScope(agent_id, conversation_id=conversation_id)
    group = None if group_id is None else MemoryScope(agent_id, group_id=group_id)
    stored = base
    if extraction is not None and extraction.scope is ExtractionScope.SENDER:
        stored = identity or conversation or base
    found = (own, base, identity, group, conversation)
    return MemoryAccess(stored, tuple(dict.fromkeys(scope for scope in found if scope is not None)))


def sole_identity(senders: Iterable[str | None]) -> str | None:
    """Returns the identity that sent all messages; None if it is not one, or if a message has another sender."""
    distinct = set(senders)
    if len(distinct) != 1:
        return None
    sender_id = distinct.pop()
    return sender_id if sender_id is not None and is_id(sender_id, "identity") else None
