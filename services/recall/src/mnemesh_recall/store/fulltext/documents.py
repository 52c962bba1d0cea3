"""The languages of indexed texts: each word of a query is also searched as a word of these languages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import Any, Final, Protocol

import sqlalchemy as sa
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_retrieval.ranking.scores import DEFAULTS, REACH, Utterance, utterance
from mnemesh_retrieval.words.analysis import analysed, indexed
from mnemesh_retrieval.words.languages import DEFAULT

from mnemesh_recall.model.ranking import SECTION, Candidate
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.fulltext.segment_building import DocumentRow
from mnemesh_recall.store.fulltext.segment_rows import ChangedAgents
from mnemesh_recall.store.tables import DIALOGUE, agents, messages, word_languages

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


READ_CHARACTERS: Final = 8_000
"""The length of the part of a candidate's body that is read for the ranking."""
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchableMessage:
    """The fields of a searchable message that its document is built from."""

    row_id: int
    id: str
    organization_id: str
    agent_id: str
    conversation_id: str | None
    role: str
    created_at: datetime
    sequence_id: int
    name: str | None
    text: str
    """In lower case."""


@dataclass(frozen=True, slots=True)
class Document:
    """One entry of the full-text index. Its texts are analysed; those of neighbours lack the names of speakers."""

    source: SearchableMessage
    language: str
    """The language of the message."""
    body: str
    """The words of the message, without the name of the speaker at its beginning."""
    speaker: str = ""
    """The name at the beginning of the text."""
    asked: str = ""
    """The words of the question sentences of the message before in the dialogue."""
    beside: str = ""
    """The other words of the message before, and those of the message after, as two sections."""
    around: str = ""
    """The words of the messages at distance two, as two sections."""
    before_id: str | None = None
    """The message before in the dialogue."""
    after_id: str | None = None
    ends_in_question: bool = False

    @property
    def about(self) -> str:
        """The speaker and the day (UTC) as two sections of words, such as `carolin / 8 mai 2023`."""
        day = self.source.created_at
        name = " ".join(dict.fromkeys(_label(f"{self.source.name or ''} {self.speaker}".strip()).split()))
        return sections(name, _label(f"{day.day} {_MONTHS[day.month - 1]} {day.year}"))

    def to_row(self) -> dict[str, Any]:
        """Returns the columns that both engines have."""
        return {
            "row_id": self.source.row_id,
            "body": self.body,
            "asked": self.asked,
            "beside": self.beside,
            "around": self.around,
            "about": self.about,
            "before_id": self.before_id,
            "after_id": self.after_id,
            "ends_in_question": self.ends_in_question,
        }


@lru_cache(maxsize=1_024)
def _label(text: str) -> str:
    """Returns the analysed form of a name or a day, which many messages share.

    Its language is not guessed: "Tom", "Kim" and "Mia" are function words of other languages. A query has the words of
    the default language always, those of others only if there are texts in them.
    """
    return indexed(text, language=DEFAULT)


def sections(first: str, second: str) -> str:
    """Returns two analysed texts as sections of one; "" if both are empty."""
    return f"{first} {SECTION} {second}" if first or second else ""


@dataclass(frozen=True, slots=True)
class CandidateQuery:
    """The candidates that a search selects by words."""

    weights: Mapping[str, float]
    """The terms with their weights."""
    fingerprint: str
    """That of the query; messages with it are always among the candidates. "" selects none."""
    limit: int
    are_few: bool
    """False if a term is so common that only the newest 1,000 or more messages are considered."""
    are_all_candidates: bool = False
    """Whether the messages with the terms are not more than `limit`, so that none of them has to be left out."""


class FulltextIndex(Protocol):
    """A full-text index inside the SQL database.

    It is updated in the transaction that writes the messages, except for those of committed steps; see `unindexed`.
    """

    changed: ChangedAgents
    """Where changed agents are noted."""

    def put(self, conn: sa.Connection, documents: Sequence[Document]) -> None:
        """Writes documents. Each replaces the document of its row."""

    def remove(self, conn: sa.Connection, agent_id: str, row_ids: Sequence[int]) -> None:
        """Removes documents of an agent."""

    def remove_agent(self, conn: sa.Connection, agent_id: str) -> None:
        """Removes all documents of an agent. Its messages must still exist."""

    def clear(self, conn: sa.Connection) -> None:
        """Removes all documents."""

    def merge(self, conn: sa.Connection, *, first: bool) -> bool:
        """Merges some of the parts in which the index stores documents, so that searches read less.

        Args:
            conn: the connection.
            first: whether this call begins to merge all parts into one; further calls continue.

        Returns:
            Whether there is more to merge.
        """

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
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, query: CandidateQuery
    ) -> list[Candidate]:
        """Returns messages in scope that match by words: approximately the best ones, newest first.

        At most ten messages that equal the query are added to the others.
        """

    def document_rows(self, conn: sa.Connection, row_ids: Sequence[int]) -> list[DocumentRow]:
        """Returns the documents that exist among these rows, oldest first."""

    def read(
        self, conn: sa.Connection, organization_id: str, scope: SearchScope, ids: Sequence[str], leaders: Sequence[str]
    ) -> list[Candidate]:
        """Returns the messages in scope that have these ids or follow the leaders in their dialogues, newest first."""


_SIZE: Final = "(SELECT CAST(coalesce(sum(message_count), 0) AS bigint) FROM agents WHERE "
SIZE_OF_ORGANIZATION: Final = f"{_SIZE}organization_id = :organization)"
SIZE_OF_AGENT: Final = f"{_SIZE}organization_id = :organization AND agent_id = :agent)"
"""The number of messages of the searched organization or agent, as an SQL expression."""

_CANDIDATE: Final = (
    "id", "body", "body_characters", "asked", "beside", "around", "about", "before_id", "after_id", "ends_in_question",
    "created_at", "has_word", "is_exact",
)  # fmt: skip
CANDIDATE_COLUMNS: Final = """id, substr(body, 1, :characters), length(body), asked, beside, around, about,
    before_id, after_id, ends_in_question, created_at"""
"""The columns of a candidate from both tables, except for the last two."""


DOCUMENT_ROW_COLUMNS: Final = """row_id, id, conversation_id, role, speaker, sender_id, created_at, search_text, body,
    asked, beside, around, about, before_id, after_id, ends_in_question"""
"""The columns of a DocumentRow from both tables."""


def document_row_statement(sql: str) -> sa.TextualSelect:
    """Returns a statement whose rows have the fields of a DocumentRow."""
    typed = {"created_at": messages.c.created_at.type, "ends_in_question": sa.Boolean()}
    return sa.text(sql).columns(*(sa.column(name, typed.get(name)) for name in DocumentRow._fields))


def candidate_statement(sql: str) -> sa.TextualSelect:
    """Returns a statement whose rows have the fields of a Candidate."""
    created_at = sa.column("created_at", messages.c.created_at.type)
    is_question = sa.column("ends_in_question", sa.Boolean())
    typed = {"created_at": created_at, "ends_in_question": is_question}
    return sa.text(sql).columns(*(typed.get(name, sa.column(name)) for name in _CANDIDATE))


def filters_rows(scope: SearchScope) -> bool:
    """Returns whether a scope has conditions that the full-text index cannot check."""
    return bool(scope.from_time or scope.before_time or scope.exclude_ids or scope.speakers or scope.sender_ids)


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
