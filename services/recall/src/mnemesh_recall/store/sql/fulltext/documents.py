"""The documents of the full-text index: the words of a message, and those of its neighbours in the dialogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import sqlalchemy as sa

from mnemesh_recall.language.words import indexed
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.tables import DIALOGUE, agents, messages

REACH: Final = 2
"""The number of messages before and after a message that are its context."""
SESSION: Final = timedelta(hours=6)
"""The longest time between a message and a neighbour."""
NEIGHBOUR_CHARACTERS: Final = 2_000
"""The length of the part of a neighbour's text that counts as context."""
READ_CHARACTERS: Final = 8_000
"""The length of the part of a candidate's body that is read for the ranking."""
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DIALOGUE_ROLES: Final = frozenset({"user", "assistant"})


@dataclass(frozen=True, slots=True)
class SearchableMessage:
    """The fields of a searchable message that its document is built from."""

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
    """One entry of the full-text index. Its texts are analysed."""

    source: SearchableMessage
    body: str
    beside: str = ""
    """The words of the adjacent messages in the dialogue."""
    around: str = ""
    """The words of the messages at distance two."""

    @property
    def about(self) -> str:
        """The speaker and the day (UTC) as words, such as `carolin 8 mai 2023`."""
        day = self.source.created_at
        return indexed(f"{self.source.name or ''} {day.day} {_MONTHS[day.month - 1]} {day.year}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message with at least one of the terms, and the analysed texts for its ranking."""

    id: str
    body: str
    body_characters: int
    """The length of the whole body. `body` may be only its beginning."""
    beside: str
    around: str
    about: str


class FulltextIndex(Protocol):
    """A full-text index inside the SQL database, updated in the transaction that writes the messages."""

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """Writes documents. Each replaces the document of its row."""

    def remove(self, conn: sa.Connection, row_ids: Sequence[int]) -> None:
        """Removes documents."""

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """Removes all documents of an agent. Its messages must still exist."""

    def clear(self, conn: sa.Connection) -> None:
        """Removes all documents."""

    def is_empty(self, conn: sa.Connection) -> bool:
        """Returns whether the index has no document."""

    def counts(
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, terms: Sequence[str], limit: int
    ) -> tuple[int, dict[str, int]]:
        """Counts messages for the ranking.

        Returns:
            The number of messages of the scope's agent or organization, and for each term the number of messages of
            the scope's conversation and roles that contain it. Each count stops at `limit`. Terms without a message
            are left out.
        """

    def candidates(
        self,
        conn: sa.Connection,
        organization_id: str,
        scope: SearchScope,
        weights: Mapping[str, float],
        limit: int,
        *,
        are_few: bool,
    ) -> list[Candidate]:
        """Returns messages in scope with at least one of the terms: approximately the best ones, newest first.

        Args:
            conn: the caller's transaction.
            organization_id: the organization.
            scope: the scope of the search.
            weights: the terms with their weights.
            limit: the largest number of candidates.
            are_few: False if a term is so common that only the newest 1,000 or more messages are considered.
        """


_SIZE: Final = "(SELECT CAST(coalesce(sum(message_count), 0) AS bigint) FROM agents WHERE "
SIZE_OF_ORGANIZATION: Final = f"{_SIZE}organization_id = :organization)"
SIZE_OF_AGENT: Final = f"{_SIZE}organization_id = :organization AND agent_id = :agent)"
"""The number of messages of the searched organization or agent, as an SQL expression."""

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


def _neighbours_statement(*, before: bool, in_conversation: bool) -> sa.Select[Any]:
    """Returns a select of the messages of a dialogue on one side of a sequence id, nearest first."""
    m = messages.c
    here = sa.bindparam("sequence_id", type_=sa.BigInteger)
    return (
        sa.select(*COLUMNS)
        .where(
            m.agent_id == sa.bindparam("agent"),
            m.conversation_id == sa.bindparam("conversation") if in_conversation else m.conversation_id.is_(None),
            m.sequence_id < here if before else m.sequence_id > here,
            sa.text(DIALOGUE),
        )
        .order_by(m.sequence_id.desc() if before else m.sequence_id.asc())
        .limit(2 * REACH)
    )


_OF_AGENT: Final = (
    sa.select(*COLUMNS)
    .where(messages.c.agent_id == sa.bindparam("agent"), messages.c.search_text.is_not(None))
    .order_by(messages.c.sequence_id)
)
_NEIGHBOURS: Final = {
    (before, known): _neighbours_statement(before=before, in_conversation=known)
    for before in (True, False)
    for known in (True, False)
}


def index_new(conn: sa.Connection, index: FulltextIndex, sources: Sequence[SearchableMessage]) -> None:
    """Indexes messages that were just stored, and updates the context of the messages before them."""
    documents = [Document(source, indexed(source.text)) for source in sources if source.role not in _DIALOGUE_ROLES]
    dialogues: dict[tuple[str, str | None], list[SearchableMessage]] = {}
    for source in sources:
        if source.role in _DIALOGUE_ROLES:
            dialogues.setdefault((source.agent_id, source.conversation_id), []).append(source)
    for dialogue in dialogues.values():
        earlier = _neighbours(conn, dialogue[0], before=True)
        documents += _with_context(earlier + dialogue, start=max(0, len(earlier) - REACH))
    if documents:
        index.put(conn, documents)


def index_all(conn: sa.Connection, index: FulltextIndex) -> int:
    """Rebuilds the index from all messages, agent by agent. Returns the number of indexed messages."""
    index.clear(conn)
    count = 0
    for agent_id in conn.execute(sa.select(agents.c.agent_id).order_by(agents.c.agent_id)).scalars().all():
        sources = sources_from_rows(conn.execute(_OF_AGENT, {"agent": agent_id}))
        index_new(conn, index, sources)
        count += len(sources)
    return count


def reindex_around(conn: sa.Connection, index: FulltextIndex, at: SearchableMessage, *, exists: bool) -> None:
    """Updates the documents around a message that changed (`exists`) or was deleted."""
    if at.role not in _DIALOGUE_ROLES:
        if exists and at.text:
            index.put(conn, [Document(at, indexed(at.text))])
        return
    earlier, later = _neighbours(conn, at, before=True), _neighbours(conn, at, before=False)
    dialogue = [*earlier, *([at] if exists and at.text else []), *later]
    documents = list(_with_context(dialogue, start=max(0, len(earlier) - REACH)))
    nearby = [document for document in documents if document.source not in later[REACH:]]
    if nearby:
        index.put(conn, nearby)


def _neighbours(conn: sa.Connection, at: SearchableMessage, *, before: bool) -> list[SearchableMessage]:
    statement = _NEIGHBOURS[before, at.conversation_id is not None]
    found = conn.execute(
        statement, {"agent": at.agent_id, "conversation": at.conversation_id, "sequence_id": at.sequence_id}
    ).all()
    return sources_from_rows(reversed(found) if before else found)


def sources_from_rows(rows: Iterable[sa.Row[*tuple[Any, ...]]]) -> list[SearchableMessage]:
    """Returns the sources of rows that select COLUMNS."""
    return [SearchableMessage(*row) for row in rows]


def _with_context(dialogue: Sequence[SearchableMessage], start: int) -> Iterator[Document]:
    nearby = [indexed(source.text, NEIGHBOUR_CHARACTERS) for source in dialogue]
    for position in range(start, len(dialogue)):
        source = dialogue[position]
        beside, around = (
            " ".join(
                nearby[other]
                for other in (position - distance, position + distance)
                if 0 <= other < len(dialogue) and abs(dialogue[other].created_at - source.created_at) <= SESSION
            )
            for distance in (1, REACH)
        )
        yield Document(source, indexed(source.text), beside, around)
