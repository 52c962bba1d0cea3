"""The upkeep of the full-text index: documents of new and changed messages, and of those beside them in a dialogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from itertools import accumulate
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.ranking.constants import DEFAULTS
from mnemesh_retrieval.ranking.scores import REACH
from mnemesh_retrieval.ranking.texts import Utterance, utterance
from mnemesh_retrieval.words.analysis import analysed

from mnemesh_recall.store.sql.fulltext.documents import Document, FulltextIndex, SearchableMessage, sections
from mnemesh_recall.store.sql.tables import DIALOGUE, agents, messages
from mnemesh_recall.store.sql.word_languages import note_languages

SESSION: Final = timedelta(hours=DEFAULTS.neighbour_hours)
"""The longest time between a message and a neighbour."""
NEIGHBOUR_CHARACTERS: Final = 2_000
"""The length of the part of a neighbour's text that counts as context."""
PAGE: Final = 200
"""The number of messages that a rebuild indexes in one transaction."""
PAGE_CHARACTERS: Final = 100_000
"""The length of the messages that are indexed in one transaction, unless it is a single one: some 50 ms."""
_DIALOGUE_ROLES: Final = frozenset({"user", "assistant"})

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


def index_new(conn: sa.Connection, index: FulltextIndex, sources: Sequence[SearchableMessage]) -> None:
    """Indexes messages that were just stored, and updates the context of the messages before them."""
    documents = [_alone(source) for source in sources if source.role not in _DIALOGUE_ROLES]
    dialogues: dict[tuple[str, str | None], list[SearchableMessage]] = {}
    for source in sources:
        if source.role in _DIALOGUE_ROLES:
            dialogues.setdefault((source.agent_id, source.conversation_id), []).append(source)
    for dialogue in dialogues.values():
        earlier = _neighbours(conn, dialogue[0], before=True)
        documents += _with_context(earlier + dialogue, start=max(0, len(earlier) - REACH))
    _put(conn, index, documents)


def _put(conn: sa.Connection, index: FulltextIndex, documents: Sequence[Document]) -> None:
    if documents:
        note_languages(conn, [(document.source.organization_id, document.language) for document in documents])
        index.put(conn, documents)


def index_all(conn: sa.Connection, index: FulltextIndex) -> int:
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
    conn: sa.Connection, index: FulltextIndex, agent_id: str, after: int, *, most: int | None = None
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


def reindex_around(conn: sa.Connection, index: FulltextIndex, at: SearchableMessage, *, exists: bool) -> None:
    """Updates the documents around a message that changed (`exists`) or was deleted."""
    if at.role not in _DIALOGUE_ROLES:
        if exists and at.text:
            _put(conn, index, [_alone(at)])
        return
    earlier, later = _neighbours(conn, at, before=True), _neighbours(conn, at, before=False)
    dialogue = [*earlier, *([at] if exists and at.text else []), *later]
    documents = list(_with_context(dialogue, start=max(0, len(earlier) - REACH)))
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


def _alone(source: SearchableMessage) -> Document:
    """Returns the document of a message outside of dialogues, such as a tool's."""
    said = utterance(source.text, is_folded=True)
    words, language = analysed(said.text)
    return Document(source, language, " ".join(words), said.speaker)


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """The words that a message shares with its neighbours."""

    source: SearchableMessage
    questions: str
    statements: str

    @classmethod
    def of(
        cls,
        source: SearchableMessage,
        said_in: Callable[[str], Utterance],
        analyse: Callable[..., tuple[list[str], str]],
    ) -> _Neighbour:
        said = said_in(source.text[:NEIGHBOUR_CHARACTERS])
        words, language = analyse(said.text)
        if not said.asks:
            return cls(source, "", " ".join(words))
        questions, statements = (
            " ".join(analyse(part, language=language)[0]) for part in (said.questions, said.statements)
        )
        return cls(source, questions, statements)

    @property
    def words(self) -> str:
        return f"{self.statements} {self.questions}".strip()


def _with_context(dialogue: Sequence[SearchableMessage], start: int) -> Iterator[Document]:
    # The parts and words of a message are often also those that its neighbours receive.
    said_in, analyse = cache(partial(utterance, is_folded=True)), cache(analysed)
    nearby = [_Neighbour.of(source, said_in, analyse) for source in dialogue]
    for position in range(start, len(dialogue)):
        source = dialogue[position]

        def neighbour(distance: int, at: int = position, of: SearchableMessage = source) -> _Neighbour | None:
            found = nearby[at + distance] if 0 <= at + distance < len(nearby) else None
            return found if found and abs(found.source.created_at - of.created_at) <= SESSION else None

        before, after = neighbour(-1), neighbour(1)
        second_before, second_after = neighbour(-2), neighbour(2)
        said = said_in(source.text)
        words, language = analyse(said.text)
        yield Document(
            source,
            language,
            " ".join(words),
            said.speaker,
            asked=before.questions if before else "",
            beside=sections(before.statements if before else "", after.words if after else ""),
            around=sections(second_before.words if second_before else "", second_after.words if second_after else ""),
            before_id=before.source.id if before else None,
            after_id=after.source.id if after else None,
            ends_in_question=said.ends_in_question,
        )
