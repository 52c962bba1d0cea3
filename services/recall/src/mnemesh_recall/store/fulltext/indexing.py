"""Which documents of the word index are written when messages are stored, changed and deleted."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

import sqlalchemy as sa
import structlog
from mnemesh_kit.sql import Database, DatabaseFull
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.ranking.scores import REACH
from mnemesh_retrieval.words.languages import DEFAULT

from mnemesh_recall.store import tables
from mnemesh_recall.store.fulltext.documents import DIALOGUE_ROLES, Document, SearchableMessage, alone, with_context
from mnemesh_recall.store.fulltext.words import WordIndex
from mnemesh_recall.store.tables import DIALOGUE, agents, messages, unindexed_agents, word_languages

_STORED: Final = (
    sa.select(word_languages.c.language)
    .where(word_languages.c.organization_id == sa.bindparam("organization"))
    .order_by(word_languages.c.language)
)
_ADD: Final = sa.text(
    "INSERT INTO word_languages (organization_id, language) VALUES (:organization, :language) ON CONFLICT DO NOTHING"
)


def note_languages(conn: sa.Connection, texts: Collection[tuple[str, str]]) -> None:
    """Stores the organization and the language of each text that is indexed in this transaction."""
    if others := sorted({text for text in texts if text[1] != DEFAULT}):
        conn.execute(_ADD, [{"organization": organization, "language": language} for organization, language in others])


def stored_languages(conn: sa.Connection, organization_id: str) -> list[str]:
    """Returns the languages of an organization's indexed texts other than English."""
    return list(conn.execute(_STORED, {"organization": organization_id}).scalars())


PAGE: Final = 200
"""The number of messages that a rebuild indexes in one transaction."""
PAGE_CHARACTERS: Final = 100_000
"""The length of the messages that are indexed in one transaction, unless it is a single one: some 50 ms."""

COLUMNS: Final = (
    messages.c.row_id,
    messages.c.id,
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


_OF_AGENT: Final = Prepared(
    sa.select(*COLUMNS)
    .where(
        messages.c.agent_id == sa.bindparam("agent"),
        messages.c.sequence_id > sa.bindparam("after"),
        messages.c.search_text.is_not(None),
    )
    .order_by(messages.c.sequence_id)
    .limit(sa.bindparam("most"))
)
_NEIGHBOURS: Final = {
    (before, known): Prepared(_neighbours_statement(before=before, in_conversation=known))
    for before in (True, False)
    for known in (True, False)
}


def index_new(conn: sa.Connection, index: WordIndex, sources: Sequence[SearchableMessage]) -> None:
    """Indexes messages that were just stored, and updates the context of the messages before them."""
    documents = [alone(source) for source in sources if source.role not in DIALOGUE_ROLES]
    dialogues: dict[tuple[str, str | None], list[SearchableMessage]] = {}
    for source in sources:
        if source.role in DIALOGUE_ROLES:
            dialogues.setdefault((source.agent_id, source.conversation_id), []).append(source)
    for dialogue in dialogues.values():
        earlier = _neighbours(conn, dialogue[0], before=True)
        documents += with_context(earlier + dialogue, start=max(0, len(earlier) - REACH))
    _put(conn, index, documents)


def _put(conn: sa.Connection, index: WordIndex, documents: Sequence[Document]) -> None:
    if documents:
        note_languages(conn, [(document.source.organization_id, document.language) for document in documents])
        index.put(conn, documents)


def index_all(conn: sa.Connection, index: WordIndex) -> int:
    """Rebuilds the index from all messages, agent by agent. Returns the number of indexed messages."""
    index.clear(conn)
    count = 0
    for agent_id in conn.execute(sa.select(agents.c.agent_id).order_by(agents.c.agent_id)).scalars().all():
        after: int | None = 0
        while after is not None:
            number, after = index_page(conn, index, agent_id, after)
            count += number
    return count


def index_page(
    conn: sa.Connection, index: WordIndex, agent_id: str, after: int, *, most: int | None = None
) -> tuple[int, int | None]:
    """Indexes the messages of an agent that follow a sequence id, at most `most` or PAGE of them; fewer long ones.

    Returns:
        Their number, and the sequence id after which to continue; None if there are no more.
    """
    most = PAGE if most is None else most
    found = sources_from_rows(_OF_AGENT.all(conn, {"agent": agent_id, "after": after, "most": most}))
    lengths = accumulate(len(source.text) for source in found)
    sources = found[: max(1, sum(length <= PAGE_CHARACTERS for length in lengths))]
    index_new(conn, index, sources)
    has_more = len(found) == most or len(found) > len(sources)
    return len(sources), sources[-1].sequence_id if has_more else None


def reindex_around(conn: sa.Connection, index: WordIndex, at: SearchableMessage, *, exists: bool) -> None:
    """Updates the documents around a message that changed (`exists`) or was deleted."""
    if at.role not in DIALOGUE_ROLES:
        if exists and at.text:
            _put(conn, index, [alone(at)])
        return
    earlier, later = _neighbours(conn, at, before=True), _neighbours(conn, at, before=False)
    dialogue = [*earlier, *([at] if exists and at.text else []), *later]
    documents = list(with_context(dialogue, start=max(0, len(earlier) - REACH)))
    nearby = [document for document in documents if document.source not in later[REACH:]]
    _put(conn, index, nearby)


def _neighbours(conn: sa.Connection, at: SearchableMessage, *, before: bool) -> list[SearchableMessage]:
    parameters = {"agent": at.agent_id, "sequence_id": at.sequence_id}
    in_conversation = at.conversation_id is not None
    if in_conversation:
        parameters["conversation"] = at.conversation_id
    found = _NEIGHBOURS[before, in_conversation].all(conn, parameters)
    return sources_from_rows(reversed(found) if before else found)


def sources_from_rows(rows: Iterable[sa.Row[*tuple[Any, ...]]]) -> list[SearchableMessage]:
    """Returns the sources of rows that select COLUMNS."""
    return [SearchableMessage(*row) for row in rows]


def remove_agent(conn: sa.Connection, index: WordIndex, agent_id: str) -> None:
    """Removes the documents of all messages of an agent, which must still exist."""
    after = 0
    while found := sources_from_rows(_OF_AGENT.all(conn, {"agent": agent_id, "after": after, "most": PAGE})):
        index.remove(conn, found)
        after = found[-1].sequence_id


MOST_MESSAGES: Final = 32
"""The number of messages after which a transaction ends: about 10 ms, so that commits do not wait long. Long messages
end it, too; see `indexing.PAGE_CHARACTERS`."""
MOST_AGENTS: Final = 16
"""The largest number of agents whose messages one transaction indexes."""
WAIT_SECONDS: Final = 1.0
"""How long a search indexes messages before it looks for them."""

_u = unindexed_agents.c
_NOTE: Final = Prepared(
    sa.text(
        "INSERT INTO unindexed_agents (agent_id, organization_id, position, since)"
        " VALUES (:agent_id, :organization_id, :position, :since) ON CONFLICT DO NOTHING"
    ).bindparams(sa.bindparam("since", type_=_u.since.type))
)
_organization: Final[sa.BindParameter[Any]] = sa.bindparam("organization", type_=sa.Text)
_before: Final[sa.BindParameter[Any]] = sa.bindparam("before", type_=_u.since.type)
_SOME: Final = {
    dialect: Prepared(
        sa.select(_u.agent_id, _u.position)
        .where(
            sa.or_(_organization.is_(None), _u.organization_id == _organization),
            sa.or_(_before.is_(None), _u.since < _before),
            sa.or_(sa.bindparam("of_all", type_=sa.Boolean), is_one_of),
        )
        .order_by(_u.since, _u.agent_id)
        .limit(MOST_AGENTS)
    )
    for dialect, is_one_of in tables.among(_u.agent_id).items()
}
_THIS: Final = _u.agent_id == sa.bindparam("this")
_DELETE: Final = sa.delete(unindexed_agents).where(_THIS)
_ADVANCE: Final = sa.update(unindexed_agents).where(_THIS).values(position=sa.bindparam("indexed"))

_log = structlog.get_logger("mnemesh.recall.words")


def noted(rows: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, Any]:
    """Returns the row of the agent of some new messages, whose rows are in order of their sequence ids."""
    first = rows[0]
    return {
        "agent_id": first["agent_id"],
        "organization_id": first["organization_id"],
        "position": first["sequence_id"] - 1,
        "since": now,
    }


def note(conn: sa.Connection, rows: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """Notes new messages of an agent on SQLite, where one transaction writes at a time."""
    if rows:
        _NOTE.send(conn, noted(rows, now))


def forget(conn: sa.Connection, agent_id: str) -> None:
    """Deletes the row of an agent whose messages are deleted."""
    conn.execute(_DELETE, {"this": agent_id})


def forget_all(conn: sa.Connection) -> None:
    """Deletes all rows, because all messages are indexed."""
    conn.execute(sa.delete(unindexed_agents))


class UnindexedMessages:
    """Indexes the messages that wait for it."""

    def __init__(self, database: Database, index: WordIndex) -> None:
        self._database = database
        self._index = index

    async def index_some(
        self,
        agent_ids: Sequence[str] | None = None,
        *,
        organization_id: str | None = None,
        before: datetime | None = None,
    ) -> bool:
        """Indexes some messages that wait, first those that have waited longest.

        Args:
            agent_ids: only of these agents.
            organization_id: only of this organization.
            before: only of agents with messages that were committed earlier.

        Returns:
            Whether there may be more.
        """
        conditions = {"organization": organization_id, "before": before, "of_all": agent_ids is None}

        def index(conn: sa.Connection) -> bool:
            left = MOST_MESSAGES
            parameters = {**conditions, **tables.listed(conn, agent_ids or ())}
            rows = _SOME[conn.dialect.name].all(conn, parameters)
            for row in rows:
                count, indexed = index_page(conn, self._index, row.agent_id, row.position, most=left)
                # The row is written last: commits of steps write it, too, and wait for this transaction from then on.
                if indexed is None:
                    forget(conn, row.agent_id)
                else:
                    conn.execute(_ADVANCE, {"this": row.agent_id, "indexed": indexed})
                left -= count
                if left <= 0 or indexed is not None:
                    return True
            return len(rows) == MOST_AGENTS

        return await self._database.write(index, name="words.index_some")

    async def finish(self, organization_id: str, agent_id: str | None) -> None:
        """Indexes the messages of an agent, or of an organization, for a limited time."""
        until = time.monotonic() + WAIT_SECONDS
        agent_ids = None if agent_id is None else (agent_id,)
        try:
            while await self.index_some(agent_ids, organization_id=organization_id) and time.monotonic() < until:
                pass
        except DatabaseFull as error:  # What is indexed can still be searched.
            _log.warning("messages_not_indexed", agent_id=agent_id, error=error.message)
