"""The documents of the word index: what is indexed of a message, and what its neighbours in the dialogue lend it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from typing import Any, Final

from mnemesh_retrieval.ranking.scores import DEFAULTS, Utterance, fingerprint, utterance
from mnemesh_retrieval.words.analysis import analysed, indexed
from mnemesh_retrieval.words.languages import DEFAULT

from mnemesh_recall.model.ranking import SECTION

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
    """The words of a message and of those beside it. Texts are analysed; neighbours' lack the names of speakers."""

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
        """Returns the row of `message_words`."""
        return {
            "row_id": self.source.row_id,
            "fingerprint": fingerprint(self.source.text),
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


SESSION: Final = timedelta(hours=DEFAULTS.neighbour_hours)
"""The longest time between a message and a neighbour."""
NEIGHBOUR_CHARACTERS: Final = 2_000
"""The length of the part of a neighbour's text that counts as context."""
DIALOGUE_ROLES: Final = frozenset({"user", "assistant"})


def alone(source: SearchableMessage) -> Document:
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
    ) -> "_Neighbour":
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


def with_context(dialogue: Sequence[SearchableMessage], start: int) -> Iterator[Document]:
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
