"""What full-text search keeps of a message: its words, and beside them those of its neighbours in the dialogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import sqlalchemy as sa

from mnemesh_recall.language.words import indexed
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.tables import SPOKEN, agents, messages

REACH: Final = 2
"""So many messages before and after one are its context."""
SESSION: Final = timedelta(hours=6)
"""Messages further apart than this are not of one session."""
NEIGHBOUR_CHARACTERS: Final = 2_000
"""So much of a neighbour's text counts as context."""
READ_CHARACTERS: Final = 8_000
"""So much of a candidate's body is read for its rank."""
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_SPOKEN_ROLES: Final = frozenset({"user", "assistant"})


@dataclass(frozen=True, slots=True)
class Source:
    """A searchable message, as far as its document needs it."""

    row_id: int
    organization_id: str
    agent_id: str
    conversation_id: str | None
    role: str
    created_at: datetime
    sequence_id: int
    name: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """One entry of the word index, its texts already analysed."""

    source: Source
    body: str
    beside: str = ""
    """The words of the messages next to it in the dialogue."""
    around: str = ""
    """The words of those one further."""

    @property
    def about(self) -> str:
        """Who said it, and on which day (UTC), as words: 'carolin 8 mai 2023'."""
        day = self.source.created_at
        return indexed(f"{self.source.name or ''} {day.day} {_MONTHS[day.month - 1]} {day.year}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message that has at least one of the terms, with the analysed texts that it is ranked by."""

    id: str
    body: str
    body_characters: int
    """How long the body is; `body` may be its beginning only."""
    beside: str
    around: str
    about: str


class WordIndex(Protocol):
    """Full-text search inside the SQL database, written in the transaction that writes the messages."""

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """Writes documents, each whole, in place of what its row had."""

    def remove(self, conn: sa.Connection, row_ids: Sequence[int]) -> None:
        """Takes documents out."""

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """Takes all documents of an agent out; its messages must still be there."""

    def clear(self, conn: sa.Connection) -> None:
        """Takes all documents out."""

    def is_empty(self, conn: sa.Connection) -> bool:
        """Whether there is no document at all."""

    def counts(
        self, conn: sa.Connection, scope: SearchScope, terms: Sequence[str], most: int
    ) -> tuple[int, dict[str, int]]:
        """How many messages the scope's agent or organization has, and how many of those of its conversation and roles
        have each term; counted to `most`. Terms that nobody has are left out."""

    def candidates(
        self, conn: sa.Connection, scope: SearchScope, weights: Mapping[str, float], limit: int, *, are_few: bool
    ) -> list[Candidate]:
        """The messages in scope that have at least one of the terms, roughly the best of them, the newest first; where
        they are not few, of the newest 1,000 or more."""


_SIZE: Final = "(SELECT CAST(coalesce(sum(message_count), 0) AS bigint) FROM agents WHERE "
SIZE_OF_ORGANIZATION: Final = f"{_SIZE}organization_id = :organization)"
SIZE_OF_AGENT: Final = f"{_SIZE}organization_id = :organization AND agent_id = :agent)"
"""How many messages there are where a search looks, as a value in a statement."""

COLUMNS: Final = (
    messages.c.row_id,
    messages.c.organization_id,
    messages.c.agent_id,
    messages.c.conversation_id,
    messages.c.role,
    messages.c.created_at,
    messages.c.sequence_id,
    messages.c.name,
    messages.c.search_text,
)


def _around(*, before: bool, in_conversation: bool) -> sa.Select[Any]:
    """Spoken messages of a dialogue on one side of a sequence id, nearest first."""
    m = messages.c
    here = sa.bindparam("sequence_id", type_=sa.BigInteger)
    return (
        sa.select(*COLUMNS)
        .where(
            m.agent_id == sa.bindparam("agent"),
            m.conversation_id == sa.bindparam("conversation") if in_conversation else m.conversation_id.is_(None),
            m.sequence_id < here if before else m.sequence_id > here,
            sa.text(SPOKEN),
        )
        .order_by(m.sequence_id.desc() if before else m.sequence_id.asc())
        .limit(2 * REACH)
    )


_OF_AGENT: Final = (
    sa.select(*COLUMNS)
    .where(messages.c.agent_id == sa.bindparam("agent"), messages.c.search_text.is_not(None))
    .order_by(messages.c.sequence_id)
)
_AROUND: Final = {
    (before, known): _around(before=before, in_conversation=known)
    for before in (True, False)
    for known in (True, False)
}


def index_new(conn: sa.Connection, index: WordIndex, sources: Sequence[Source]) -> None:
    """Indexes messages that were just stored, and renews the context of those that they follow."""
    documents = [Document(source, indexed(source.text)) for source in sources if source.role not in _SPOKEN_ROLES]
    dialogues: dict[tuple[str, str | None], list[Source]] = {}
    for source in sources:
        if source.role in _SPOKEN_ROLES:
            dialogues.setdefault((source.agent_id, source.conversation_id), []).append(source)
    for spoken in dialogues.values():
        earlier = _neighbours(conn, spoken[0], before=True)
        documents += _with_context(earlier + spoken, start=max(0, len(earlier) - REACH))
    if documents:
        index.put(conn, documents)


def index_all(conn: sa.Connection, index: WordIndex) -> int:
    """Indexes every message anew, agent by agent; returns how many."""
    index.clear(conn)
    count = 0
    for agent_id in conn.execute(sa.select(agents.c.agent_id).order_by(agents.c.agent_id)).scalars().all():
        sources = to_sources(conn.execute(_OF_AGENT, {"agent": agent_id}))
        index_new(conn, index, sources)
        count += len(sources)
    return count


def index_again(conn: sa.Connection, index: WordIndex, at: Source, *, kept: bool) -> None:
    """Renews the documents around a message that changed (`kept`) or that is gone."""
    if at.role not in _SPOKEN_ROLES:
        if kept and at.text:
            index.put(conn, [Document(at, indexed(at.text))])
        return
    earlier, later = _neighbours(conn, at, before=True), _neighbours(conn, at, before=False)
    dialogue = [*earlier, *([at] if kept and at.text else []), *later]
    documents = list(_with_context(dialogue, start=max(0, len(earlier) - REACH)))
    nearby = [document for document in documents if document.source not in later[REACH:]]
    if nearby:
        index.put(conn, nearby)


def _neighbours(conn: sa.Connection, at: Source, *, before: bool) -> list[Source]:
    statement = _AROUND[before, at.conversation_id is not None]
    found = conn.execute(
        statement, {"agent": at.agent_id, "conversation": at.conversation_id, "sequence_id": at.sequence_id}
    ).all()
    return to_sources(reversed(found) if before else found)


def to_sources(rows: Iterable[sa.Row[*tuple[Any, ...]]]) -> list[Source]:
    """Sources from rows that select COLUMNS."""
    return [Source(*row) for row in rows]


def _with_context(dialogue: Sequence[Source], start: int) -> Iterator[Document]:
    nearby = [indexed(source.text, NEIGHBOUR_CHARACTERS) for source in dialogue]
    for place in range(start, len(dialogue)):
        source = dialogue[place]
        beside, around = (
            " ".join(
                nearby[other]
                for other in (place - distance, place + distance)
                if 0 <= other < len(dialogue) and abs(dialogue[other].created_at - source.created_at) <= SESSION
            )
            for distance in (1, REACH)
        )
        yield Document(source, indexed(source.text), beside, around)
