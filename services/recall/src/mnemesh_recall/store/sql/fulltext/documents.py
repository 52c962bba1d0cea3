"""The documents of the full-text index: the words of a message, and those of its neighbours in the dialogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Protocol

import sqlalchemy as sa
from mnemesh_retrieval.words.analysis import indexed
from mnemesh_retrieval.words.languages import DEFAULT

from mnemesh_recall.model.candidates import SECTION, Candidate
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.tables import messages
from mnemesh_recall.store.sql.word_segments.building import DocumentRow
from mnemesh_recall.store.sql.word_segments.changed import ChangedAgents

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
