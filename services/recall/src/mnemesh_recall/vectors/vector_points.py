"""Messages as points of the vector index: their ids, their payload, and the filter of a search."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import UUID

from mnemesh_kit.ids import derive_id
from mnemesh_retrieval.filters import Filter, HasId, Match, MatchAny, Not, TimeRange, all_of
from mnemesh_retrieval.index import Collection, instant
from mnemesh_types.messages import Message

from mnemesh_recall.model.candidates import ID_PREFIX
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.model.searchable_text import searchable_text, speaker_of

FORMAT: Final = 3
"""The version of the points. An index with points of another version is rebuilt."""
# One list of values takes half the memory of as many fields.
_SCOPE: Final = "scope"
_TIME: Final = "created_at"


def collection(handle: str, dimension: int) -> Collection:
    """Returns the collection of an embedder."""
    return Collection(
        f"messages.{FORMAT}.{handle}", dimension, uuid_fields=(_SCOPE,), datetime_fields=(_TIME,), tenant_field=_SCOPE
    )


def uuid_of(message_id: str) -> UUID:
    """Returns the point id of a message."""
    return UUID(message_id.removeprefix(ID_PREFIX))


def message_id_of(point_id: UUID) -> str:
    """Returns the message id of a point."""
    return f"{ID_PREFIX}{point_id}"


def payload(organization_id: str, message: Message) -> dict[str, str | list[str]]:
    """Returns the fields that are stored with the vector of a message."""
    # The agent comes first, because an index may store points with the same first value together.
    speaker = speaker_of(message, searchable_text(message))
    values = (
        message.agent_id,
        organization_id,
        message.conversation_id,
        message.role.value,
        _speaker(speaker) if speaker else None,
        message.sender_id,
    )
    return {_SCOPE: [_mark(value) for value in values if value is not None], _TIME: instant(message.created_at)}


def of_agent(agent_id: str) -> Filter:
    """Returns the filter for all messages of an agent."""
    return Match(_SCOPE, _mark(agent_id))


def condition(organization_id: str, scope: SearchScope) -> Filter:
    """Returns the filter of a search. The store checks that an agent belongs to the organization."""
    ids = (scope.agent_id or organization_id, scope.conversation_id)
    return all_of(
        *(Match(_SCOPE, _mark(id_)) for id_ in ids if id_ is not None),
        MatchAny(_SCOPE, tuple(_mark(role.value) for role in scope.roles)) if scope.roles else None,
        MatchAny(_SCOPE, tuple(_mark(_speaker(name)) for name in scope.speakers)) if scope.speakers else None,
        MatchAny(_SCOPE, tuple(map(_mark, scope.sender_ids))) if scope.sender_ids else None,
        TimeRange(_TIME, gte=scope.from_time, lt=scope.before_time)
        if scope.from_time is not None or scope.before_time is not None
        else None,
        Not(HasId(tuple(uuid_of(id_) for id_ in scope.exclude_ids))) if scope.exclude_ids else None,
    )


def _speaker(name: str) -> str:
    return f"speaker {name.casefold()}"


@lru_cache(maxsize=4096)
def _mark(value: str) -> str:
    """Returns an id, a role or a speaker as a UUID, because the field accepts only UUIDs."""
    return derive_id("mark", value).partition("-")[2]
