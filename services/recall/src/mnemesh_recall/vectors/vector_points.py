"""Messages as points of the vector index: their ids, what is stored beside the vector, and how a search is narrowed."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import UUID

from mnemesh_kit.ids import derive_id
from mnemesh_retrieval.filters import Filter, HasId, Match, MatchAny, Not, TimeRange, all_of
from mnemesh_retrieval.index import Collection, instant

from mnemesh_recall.model.messages import Message
from mnemesh_recall.model.search import SearchScope

MAKE: Final = 2
"""Counts up where points are made in another way: an index of an earlier make is built anew."""
# One list of four takes half the memory of four fields, for each message.
_SCOPE: Final = "scope"
_TIME: Final = "created_at"


def collection(handle: str, dimension: int) -> Collection:
    """The collection of an embedder."""
    return Collection(
        f"messages.{MAKE}.{handle}", dimension, uuid_fields=(_SCOPE,), datetime_fields=(_TIME,), tenant_field=_SCOPE
    )


def uuid_of(message_id: str) -> UUID:
    """The point id of a message."""
    return UUID(message_id.partition("-")[2])


def payload(organization_id: str, message: Message) -> dict[str, str | list[str]]:
    """What is stored of a message beside its vector."""
    # The agent first: an index may keep together what has the same first mark.
    values = (message.agent_id, organization_id, message.conversation_id, message.role.value)
    marks = [_mark(value) for value in values if value is not None]
    return {_SCOPE: marks, _TIME: instant(message.created_at)}


def of_agent(agent_id: str) -> Filter:
    """All messages of an agent."""
    return Match(_SCOPE, _mark(agent_id))


def condition(scope: SearchScope) -> Filter:
    """Where a search looks; that an agent is the organization's is for the store to see."""
    narrowed = (scope.agent_id or scope.organization_id, scope.conversation_id)
    return all_of(
        *(Match(_SCOPE, _mark(value)) for value in narrowed if value is not None),
        MatchAny(_SCOPE, tuple(_mark(role.value) for role in scope.roles)) if scope.roles else None,
        TimeRange(_TIME, gte=scope.from_time, lt=scope.before_time)
        if scope.from_time is not None or scope.before_time is not None
        else None,
        Not(HasId(tuple(uuid_of(id_) for id_ in scope.exclude_ids))) if scope.exclude_ids else None,
    )


@lru_cache(maxsize=4096)
def _mark(value: str) -> str:
    """A UUID that stands for an id or a role: the index takes these only."""
    return derive_id("mark", value).partition("-")[2]
