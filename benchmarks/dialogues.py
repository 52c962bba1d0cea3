"""Dialogues and notes with questions and known evidence, generated or from a file, and how they are stored."""

import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks import datasets as data
from benchmarks.datasets import read_dialogues

NAMES: Final = (
    "Caroline", "Melanie", "Gina", "Jon", "Maria", "John", "Joanna", "Nate", "Tim", "Audrey", "Andrew", "James",
    "Deborah", "Jolene", "Evan", "Sam", "Calvin", "Dave", "Priya", "Mateo", "Ingrid", "Kwame", "Yuki", "Rosa",
)  # fmt: skip
SESSIONS: Final = 26
TOLD_TWICE: Final = 0.35
"""The share of a speaker's stories that happen a second time with other details."""
TOLD_WHEN_ASKED: Final = 0.4
"""The share of stories that answer a question and do not contain its words."""
LED: Final = 0.4
TAILED: Final = 0.4
"""LED and TAILED are the shares of turns that start, and end, with a text on another subject."""
_CONTENT: Final = Path(__file__).parent / "data" / "dialogues.toml"


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance of a dialogue."""

    number: int
    session: int
    speaker: str
    is_first_speaker: bool
    text: str
    said_at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the numbers of the turns any of which answers it."""

    kind: str
    text: str
    evidence: frozenset[int]


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The utterances of a dialogue and the questions about it."""

    speakers: tuple[str, ...]
    """Generated dialogues have two."""
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]


@dataclass(slots=True)
class _Story:
    event: dict[str, Any]
    teller: str
    listener: str
    slots: dict[str, str]
    told: list[int]
    """The turns that tell the story; shared by its two tellings."""
    twice: bool = False

    def filled(self, text: str) -> str:
        return text.format(S=self.teller, O=self.listener, **self.slots)


def dialogues(count: int, seed: int = 7) -> tuple[Dialogue, ...]:
    """Generates dialogues. The same seed generates the same dialogues."""
    content = tomllib.loads(_CONTENT.read_text(encoding="utf-8"))
    chance = random.Random(seed)
    return tuple(_Writer(content, random.Random(chance.random())).dialogue() for _ in range(count))


class _Writer:
    def __init__(self, content: dict[str, Any], chance: random.Random) -> None:
        self._content = content
        self._chance = chance
        self._speakers = tuple(chance.sample(NAMES, 2))
        self._turns: list[Turn] = []
        self._questions: list[Question] = []
        self._now = datetime(2023, chance.randrange(1, 6), chance.randrange(1, 28), 9, tzinfo=UTC)

    def dialogue(self) -> Dialogue:
        stories = list(self._stories())
        self._chance.shuffle(stories)
        for session in range(SESSIONS):
            self._now += timedelta(days=self._chance.randrange(2, 15))
            self._now = self._now.replace(hour=self._chance.randrange(8, 22), minute=self._chance.randrange(60))
            self._session(session, stories[session::SESSIONS])
        first, second = self._speakers
        return Dialogue((first, second), tuple(self._turns), tuple(self._questions))

    def _stories(self) -> Iterator[_Story]:
        for event in self._content["events"]:
            for teller, listener in (self._speakers, self._speakers[::-1]):
                twice = self._chance.random() < TOLD_TWICE
                particulars = {name: self._chance.sample(values, 2) for name, values in self._content["slots"].items()}
                told: list[int] = []
                for telling in range(1 + twice):
                    slots = {name: values[telling] for name, values in particulars.items()}
                    yield _Story(event, teller, listener, slots, told, twice)

    def _session(self, session: int, stories: list[_Story]) -> None:
        speaker, other = self._chance.sample(self._speakers, 2)
        self._say(session, speaker, other, self._any("greetings"))
        self._say(session, other, speaker, self._any("small_talk"))
        for story in stories:
            self._tell(session, story)
            for _ in range(self._chance.randrange(2)):
                self._say(session, story.listener, story.teller, self._any("small_talk"))
                self._say(session, story.teller, story.listener, self._any("reactions"))
        self._say(session, speaker, other, self._any("farewells"))

    def _tell(self, session: int, story: _Story) -> None:
        event, pick = story.event, self._chance.choice
        if self._chance.random() < TOLD_WHEN_ASKED:
            self._say(session, story.listener, story.teller, story.filled(pick(event["ask"])))
            told = self._say(session, story.teller, story.listener, self._padded(story.filled(pick(event["answer"]))))
        else:
            told = self._say(session, story.teller, story.listener, self._padded(story.filled(pick(event["say"]))))
        story.told.append(told.number)
        self._say(session, story.listener, story.teller, self._padded(story.filled(pick(event["reply"]))))
        first, second = self._chance.sample((0, 1), 2)
        self._add(session, story, first)
        self._say(session, story.listener, story.teller, self._any("reactions"))
        if self._chance.random() < 0.5:
            self._add(session, story, second)
            self._say(session, story.listener, story.teller, self._any("small_talk"))
        for kind in ("keyword", "paraphrase", "when"):
            if event[kind]:
                self._ask(kind, story, pick(event[kind]), told)
        if story.twice and len(story.told) == 2:
            asked = story.filled(pick(event["several"]))
            self._questions.append(Question("several", asked, frozenset(story.told)))

    def _add(self, session: int, story: _Story, which: int) -> None:
        """Adds a detail of a story that lacks most of the words of its question."""
        more = self._padded(story.filled(story.event["more"][which]))
        said = self._say(session, story.teller, story.listener, more)
        self._ask("after", story, story.event["after"][which], said)

    def _ask(self, kind: str, story: _Story, asked: str, told: Turn) -> None:
        text = story.filled(asked)
        if story.twice and kind in ("keyword", "paraphrase"):
            kind, text = "dated", f"{text.removesuffix('?')} in {told.said_at:%B %Y}?"
        self._questions.append(Question(kind, text, frozenset({told.number})))

    def _padded(self, text: str) -> str:
        lead = self._any("small_talk") + " " if self._chance.random() < LED else ""
        tail = " " + self._any("small_talk") if self._chance.random() < TAILED else ""
        return lead + text + tail

    def _any(self, kind: str) -> str:
        return str(self._chance.choice(self._content[kind]))

    def _say(self, session: int, speaker: str, other: str, text: str) -> Turn:
        self._now += timedelta(seconds=self._chance.randrange(20, 180))
        said = text.format(S=speaker, O=other) if "{" in text else text
        turn = Turn(len(self._turns), session, speaker, speaker == self._speakers[0], said, self._now)
        self._turns.append(turn)
        return turn


PEOPLE: Final = 20
"""The number of people in the notes of one archive."""
FACTS: Final = 14
"""The number of facts about each person."""
_FACTS: Final = Path(__file__).parent / "data" / "facts.toml"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the numbers of the passages any of which answers it."""

    kind: str
    text: str
    evidence: frozenset[int]


@dataclass(frozen=True, slots=True)
class Shelf:
    """The passages of one archive, and the questions about them."""

    passages: tuple[str, ...]
    questions: tuple[Asked, ...]


def notes(count: int, seed: int = 7) -> list[Shelf]:
    """Generates archives of short notes, each with the name of a person."""
    content = tomllib.loads(_FACTS.read_text(encoding="utf-8"))
    return [_noted(content, random.Random(seed * 1000 + number)) for number in range(count)]


def _noted(content: dict[str, Any], chance: random.Random) -> Shelf:
    told: list[tuple[str, list[Asked]]] = []
    for who in content["lists"]["who"][:PEOPLE]:
        for fact in chance.sample(content["facts"], FACTS):
            filled = {name: chance.choice(values) for name, values in content["lists"].items()} | {"who": who}
            asked_of = [Asked(kind, fact[kind].format(**filled), frozenset()) for kind in ("exact", "other")]
            told.append((f"{who}: {chance.choice(fact['said']).format(**filled)}", asked_of))
            told += [(f"{who}: {text}", []) for text in _around(content, fact, chance)]
    chance.shuffle(told)
    questions = tuple(
        Asked(asked.kind, asked.text, frozenset({number}))
        for number, (_, several) in enumerate(told)
        for asked in several
    )
    return Shelf(tuple(text for text, _ in told), questions)


def _around(content: dict[str, Any], fact: dict[str, Any], chance: random.Random) -> Iterator[str]:
    yield chance.choice(fact["talk"])
    for _ in range(chance.randrange(3)):
        yield chance.choice(content["chat"])


def chosen(source: str, seed: int) -> tuple[Dialogue, ...]:
    """Returns generated dialogues if `source` is a number, otherwise the dialogues of that file."""
    return dialogues(int(source), seed) if source.isdecimal() else transcripts(Path(source))


def transcripts(path: Path) -> tuple[Dialogue, ...]:
    """Returns the dialogues of a file, with the questions that have evidence. Raises DatasetInvalid."""
    return tuple(map(_dialogue, read_dialogues(path)))


def _dialogue(read: data.Dialogue) -> Dialogue:
    numbers: dict[str, int] = {}
    turns: list[Turn] = []
    for session, each in enumerate(read.sessions):
        for turn in each.turns:
            numbers[turn.id] = len(turns)
            first = turn.role == "user"
            turns.append(Turn(len(turns), session, turn.speaker or turn.role, first, turn.text, turn.said_at))
    questions = tuple(
        Question(question.category, question.text, frozenset(numbers[id_] for id_ in question.evidence))
        for question in read.questions_with_evidence()
    )
    return Dialogue(read.speakers or ("user", "assistant"), tuple(turns), questions)


@dataclass(frozen=True, slots=True)
class Variant:
    """The data that a caller stores with each turn."""

    times: Literal["turn", "session", "none"] = "turn"
    speaker: Literal["name", "text", "none"] = "name"
    roles: Literal["both", "user", "assistant"] = "both"
    sessions: Literal["together", "conversations"] = "together"
    """Selects whether each session is a conversation; ignored for passages."""
    batch: int = 100

    def text(self, turn: Turn) -> str:
        """Returns the stored text."""
        return f"{turn.speaker}: {turn.text}" if self.speaker == "text" else turn.text

    def texts(self, dialogue: Dialogue) -> list[str]:
        """Returns the texts of all turns."""
        return [self.text(turn) for turn in dialogue.turns]

    def time(self, dialogue: Dialogue, turn: Turn) -> datetime | None:
        """Returns the stored time, or None."""
        if self.times == "none":
            return None
        if self.times == "turn":
            return turn.said_at
        return next(each.said_at for each in dialogue.turns if each.session == turn.session)


VARIANTS: Final = {
    "named": Variant(),
    "in-text": Variant(speaker="text"),
    "nameless": Variant(speaker="none"),
    "session-times": Variant(times="session", speaker="text"),
    "conversations": Variant(sessions="conversations"),
    "timeless": Variant(times="none", speaker="text"),
    "timeless-named": Variant(times="none"),
    "users": Variant(roles="user"),
    "assistants": Variant(roles="assistant", times="session"),
    "one-by-one": Variant(speaker="text", batch=1),
}
