"""The messages around the hits of a search, and the questions that hits may answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from mnemesh_kit.principal import Principal
from mnemesh_retrieval.ranking.texts import utterance
from mnemesh_types.messages import Message, Role

from mnemesh_recall.model.search import MessageHit, MessageSearch, Surroundings
from mnemesh_recall.model.searchable_text import searchable_text, speaker_of
from mnemesh_recall.store.base import MessageStore

LONGEST_PAUSE: Final = timedelta(hours=6)
"""The longest time between a question and its answer."""


async def with_surroundings(
    store: MessageStore, caller: Principal, search: MessageSearch, hits: Sequence[MessageHit]
) -> tuple[MessageHit, ...]:
    """Returns the hits with the messages around them that the search requests, and with their questions.

    Hits of a query have their questions already; see `MessageFinder`.
    """
    if search.queries and not search.messages_before and not search.messages_after:
        return tuple(hits)
    ids = [hit.message.id for hit in hits]
    around = await store.read_around(caller.organization_id, ids, max(1, search.messages_before), search.messages_after)
    return tuple(_with(hit, around.get(hit.message.id, Surroundings()), search) for hit in hits)


def with_question(hit: MessageHit, previous: Message | None) -> MessageHit:
    """Returns the hit with the message before it, if that asks a question which the hit may answer."""
    return replace(hit, question=previous) if previous is not None and _may_answer(previous, hit) else hit


def _with(hit: MessageHit, around: Surroundings, search: MessageSearch) -> MessageHit:
    before = around.before[-search.messages_before :] if search.messages_before else ()
    previous = around.before[-1] if around.before else None
    return with_question(replace(hit, before=before, after=around.after, question=None), previous)


def _may_answer(previous: Message, hit: MessageHit) -> bool:
    """Returns whether a message asks a question, and the hit is what another speaker said soon after it."""
    asked = searchable_text(previous)
    is_soon = hit.message.created_at - previous.created_at <= LONGEST_PAUSE
    return is_soon and _speaker(previous, asked) != _speaker(hit.message, hit.text) and utterance(asked).asks


def _speaker(message: Message, text: str) -> tuple[Role, str]:
    return message.role, speaker_of(message, text)
