"""Dialogues in sessions with questions whose evidence is known, and their file formats.

`read_dialogues` recognises the format.

The project's own format:

    {"dialogues": [{
        "id": "nora-tomas",
        "sessions": [{
            "started_at": "2024-01-14T18:20:00Z",
            "utterances": [{"id": "1:1", "speaker": "Nora", "text": "…", "said_at": "2024-01-14T18:21:00Z"}]}],
        "questions": [{"text": "…", "evidence": ["1:1"], "kind": "when", "answer": "…"}]}]}

Sessions and utterances are in order; `evidence` lists the utterances that answer. Optional: `id`, by default a number;
`said_at`, by default half a minute after the utterance before; `kind`; `answer`; `asked_at`; `unanswerable`.

LoCoMo's format: samples with `conversation` (`session_1`, `session_1_date_time`, …) and `qa`. LongMemEval's format:
questions, each with its own history (`haystack_sessions`).
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

T = TypeVar("T")
Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One utterance."""

    id: str
    """Unique in its dialogue."""
    speaker: str
    """A name, or an empty string if the data has roles only."""
    role: Role
    text: str
    said_at: datetime
    picture: str = ""
    """The description of a picture that was sent with the text."""

    @property
    def text_with_picture(self) -> str:
        """The text, followed by the description of the picture if there is one."""
        return f"{self.text} [picture: {self.picture}]".strip() if self.picture else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns of one sitting, oldest first."""

    id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a dialogue."""

    id: str
    """Unique in its dialogue."""
    text: str
    category: str
    evidence: frozenset[str] = frozenset()
    """The ids of the turns that answer. Search is scored on questions with evidence only."""
    answer: str | None = None
    """The expected answer, None if the data has none."""
    is_unanswerable: bool = False
    """True if the dialogue does not contain the answer, and a reader should say so."""
    asked_at: datetime | None = None
    judged_only: bool = False
    """True if the answer is free text, which a comparison of words cannot score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """Sessions, oldest first, and the questions about them."""

    id: str
    """Unique in its dataset."""
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]
    speakers: tuple[str, ...] = ()
    """The names in order of appearance, without the empty one."""

    def turns(self) -> Iterator[Turn]:
        """Yields all turns, oldest first."""
        for session in self.sessions:
            yield from session.turns

    def questions_with_evidence(self) -> tuple[Question, ...]:
        """Returns the questions on which search can be scored."""
        return tuple(question for question in self.questions if question.evidence)


class DatasetInvalid(Exception):
    """A file does not contain dialogues in a known format. The text names file and field, or line and column."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a JSON document and its place. Every method raises DatasetInvalid if the value has another type."""

    value: Any
    place: str
    """File and path, such as `talks.json: dialogues[0].sessions[2]`."""

    def invalid(self, problem: str) -> DatasetInvalid:
        """Returns the error that this field has a problem."""
        return DatasetInvalid(f"{self.place} {problem}.")

    def __getitem__(self, key: str) -> "Field":
        """Returns a required member of an object."""
        found = self.get(key)
        if found is None:
            raise DatasetInvalid(f"{self._place_of(key)} is missing.")
        return found

    def get(self, key: str) -> "Field | None":
        """Returns a member of an object, None if it is absent or null."""
        if not isinstance(self.value, dict):
            raise self.invalid(f"is {_kind(self.value)}, not an object")
        value = self.value.get(key)
        return None if value is None else Field(value, self._place_of(key))

    def items(self) -> "Iterator[Field]":
        """Yields the elements of a list."""
        if not isinstance(self.value, list):
            raise self.invalid(f"is {_kind(self.value)}, not a list")
        return (Field(value, f"{self.place}[{number}]") for number, value in enumerate(self.value))

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.invalid(f"is {_kind(self.value)}, not a string")
        return self.value

    def filled_text(self) -> str:
        """Returns a string that is not blank."""
        if not self.text().strip():
            raise self.invalid("is blank")
        return self.text()

    def plain(self) -> str:
        """Returns a string or a number as a string."""
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            raise self.invalid(f"is {_kind(self.value)}, not a string or a number")
        return str(self.value)

    def truth(self) -> bool:
        """Returns a Boolean."""
        if not isinstance(self.value, bool):
            raise self.invalid(f"is {_kind(self.value)}, not true or false")
        return self.value

    def time(self, parse: Callable[[str], datetime], example: str) -> datetime:
        """Returns a time. Without an offset it is in UTC."""
        try:
            time = parse(self.text().strip())
        except ValueError:
            raise self.invalid(f"is {self.value!r}, not a time such as {example!r}") from None
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    def _place_of(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place.endswith("]") or ": " in self.place else f"{self.place}: {key}"


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a Boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


PAUSE: Final = timedelta(seconds=30)
_OWN_TIME: Final = "2024-01-14T18:20:00Z"


def own_dialogue(sample: Field, number: int) -> Dialogue:
    """Returns a dialogue. Raises DatasetInvalid."""
    speakers: dict[str, None] = {}
    ids: set[str] = set()
    sessions = tuple(
        _own_session(each, at, speakers, ids) for at, each in enumerate(sample["sessions"].items(), start=1)
    )
    questions = tuple(_own_question(each, at, ids) for at, each in enumerate(sample["questions"].items(), start=1))
    named = sample.get("id")
    return Dialogue(
        id=named.plain() if named else str(number + 1), sessions=sessions, questions=questions, speakers=tuple(speakers)
    )


def _own_session(session: Field, number: int, speakers: dict[str, None], ids: set[str]) -> Session:
    now = _own_time(session["started_at"])
    turns: list[Turn] = []
    for utterance in session["utterances"].items():
        said_at = utterance.get("said_at")
        now = _own_time(said_at) if said_at else now + PAUSE
        id_ = utterance["id"].plain()
        if id_ in ids:
            raise utterance["id"].invalid(f"is {id_!r}, the id of an earlier utterance")
        ids.add(id_)
        speaker = utterance["speaker"].filled_text()
        speakers.setdefault(speaker)
        role: Role = "user" if speaker == next(iter(speakers)) else "assistant"
        turns.append(Turn(id=id_, speaker=speaker, role=role, text=utterance["text"].filled_text(), said_at=now))
    return Session(id=str(number), turns=tuple(turns))


def _own_question(question: Field, number: int, ids: set[str]) -> Question:
    evidence = [(each, each.plain()) for each in question["evidence"].items()]
    for each, id_ in evidence:
        if id_ not in ids:
            raise each.invalid(f"is {id_!r}, which is not the id of an utterance")
    named, kind, answer = question.get("id"), question.get("kind"), question.get("answer")
    asked_at, unanswerable = question.get("asked_at"), question.get("unanswerable")
    return Question(
        id=named.plain() if named else str(number),
        text=question["text"].filled_text(),
        category=kind.plain() if kind else "all",
        evidence=frozenset(id_ for _, id_ in evidence),
        answer=answer.plain() if answer else None,
        is_unanswerable=unanswerable.truth() if unanswerable else False,
        asked_at=_own_time(asked_at) if asked_at else None,
    )


def _own_time(value: Field) -> datetime:
    return value.time(datetime.fromisoformat, _OWN_TIME)


CATEGORIES: Final = {"1": "multi-hop", "2": "temporal", "3": "open-domain", "4": "single-hop", "5": "adversarial"}
_LOCOMO_TIME: Final = "%I:%M %p on %d %B, %Y"
_SESSION: Final = re.compile(r"session_(\d+)")
_ID: Final = re.compile(r"D:?\s*(\d+)\s*:\s*(\d+)")
"""Matches also the spellings "D:11:26" and "D30:05", which occur in the published data."""


def locomo_dialogue(sample: Field, number: int) -> Dialogue:
    """Returns the dialogue of a sample.

    Evidence that names no turn is ignored, because the published data contains such ids.

    Raises:
        DatasetInvalid: a field is missing or wrong.
    """
    conversation = sample["conversation"]
    numbers = sorted(int(found[1]) for key in _keys(conversation) if (found := _SESSION.fullmatch(key)))
    if not numbers:
        raise conversation.invalid("has no session_1")
    speakers = {
        named.filled_text(): None for key in ("speaker_a", "speaker_b") if (named := conversation.get(key)) is not None
    }
    ids: set[str] = set()
    sessions = tuple(_locomo_session(conversation, each, speakers, ids) for each in numbers)
    questions = tuple(_locomo_question(each, at, ids) for at, each in enumerate(sample["qa"].items(), start=1))
    named = sample.get("sample_id")
    return Dialogue(
        id=named.plain() if named else str(number + 1), sessions=sessions, questions=questions, speakers=tuple(speakers)
    )


def _keys(conversation: Field) -> list[str]:
    if not isinstance(conversation.value, dict):
        raise conversation.invalid("is not an object")
    return list(conversation.value)


def _locomo_session(conversation: Field, number: int, speakers: dict[str, None], ids: set[str]) -> Session:
    now = conversation[f"session_{number}_date_time"].time(
        lambda text: datetime.strptime(text, _LOCOMO_TIME),  # noqa: DTZ007 - Field.time adds the zone
        "1:56 pm on 8 May, 2023",
    )
    turns: list[Turn] = []
    for turn in conversation[f"session_{number}"].items():
        now += PAUSE
        id_ = _id(turn["dia_id"], ids)
        ids.add(id_)
        speaker = turn["speaker"].filled_text()
        speakers.setdefault(speaker)
        role: Role = "user" if speaker == next(iter(speakers)) else "assistant"
        text, caption = turn["text"].text(), turn.get("blip_caption")
        picture = caption.text() if caption else ""
        turns.append(Turn(id=id_, speaker=speaker, role=role, text=text, said_at=now, picture=picture))
    return Session(id=f"session_{number}", turns=tuple(turns))


def _id(field: Field, earlier: set[str]) -> str:
    found = _ids(field.text())
    if len(found) != 1:
        raise field.invalid(f"is {field.value!r}, not an id such as 'D1:3'")
    if found[0] in earlier:
        raise field.invalid(f"is {field.value!r}, the id of an earlier turn")
    return found[0]


def _locomo_question(question: Field, number: int, ids: set[str]) -> Question:
    category = question["category"].plain()
    if category not in CATEGORIES:
        raise question["category"].invalid(f"is {category}, not a number from 1 to 5")
    named = question.get("evidence")
    evidence = [id_ for each in named.items() for id_ in _ids(each.text())] if named else []
    answer = question.get("answer")
    return Question(
        id=str(number),
        text=question["question"].filled_text(),
        category=CATEGORIES[category],
        evidence=frozenset(evidence) & ids,
        answer=answer.plain() if answer else None,
        is_unanswerable=category == "5",
    )


def _ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _ID.findall(text)]


ABSTENTION: Final = "_abs"
"""The end of the ids of questions that the history does not answer."""
_LONGMEMEVAL_TIME: Final = "%Y/%m/%d %H:%M"
_WEEKDAY: Final = re.compile(r"\s*\([^)]*\)\s*")


def longmemeval_dialogue(sample: Field, number: int) -> Dialogue:  # noqa: ARG001 - the readers have one signature
    """Returns a question's history as a dialogue with that one question.

    Evidence are the turns with `has_answer` in the sessions of `answer_session_ids`. Questions with the suffix `_abs`
    have none.

    Raises:
        DatasetInvalid: a field is missing or wrong, or the lists of sessions, dates and ids differ in length.
    """
    sessions, dates, ids = (
        list(sample[key].items()) for key in ("haystack_sessions", "haystack_dates", "haystack_session_ids")
    )
    if not len(sessions) == len(dates) == len(ids):
        raise sample.invalid(
            f"has {len(sessions)} haystack_sessions, {len(dates)} haystack_dates and {len(ids)} haystack_session_ids"
        )
    id_ = sample["question_id"].plain()
    answering = {each.plain() for each in sample["answer_session_ids"].items()}
    evidence: set[str] = set()
    read: list[Session] = []
    for at in sorted(range(len(sessions)), key=lambda at: _longmemeval_time(dates[at])):
        name = ids[at].plain()
        session = _longmemeval_session(
            sessions[at], _longmemeval_time(dates[at]), f"{name}#{at + 1}" if _is_repeated(name, ids) else name
        )
        read.append(session)
        if name in answering:
            evidence |= _answering(sessions[at], session)
    question = _longmemeval_question(sample, id_, frozenset(evidence))
    return Dialogue(id=id_, sessions=tuple(read), questions=(question,))


def _is_repeated(name: str, ids: list[Field]) -> bool:
    return len([each for each in ids if each.value == name]) > 1


def _longmemeval_session(session: Field, started_at: datetime, name: str) -> Session:
    turns: list[Turn] = []
    for number, turn in enumerate(session.items(), start=1):
        role = turn["role"].text()
        if role not in ("user", "assistant"):
            raise turn["role"].invalid(f"is {role!r}, not 'user' or 'assistant'")
        said_at = started_at + number * PAUSE
        text = turn["content"].text()
        which: Role = "user" if role == "user" else "assistant"
        turns.append(Turn(id=f"{name}:{number}", speaker="", role=which, text=text, said_at=said_at))
    return Session(id=name, turns=tuple(turns))


def _answering(data: Field, session: Session) -> set[str]:
    marks = [turn.get("has_answer") for turn in data.items()]
    return {turn.id for turn, mark in zip(session.turns, marks, strict=True) if mark is not None and mark.truth()}


def _longmemeval_question(sample: Field, id_: str, evidence: frozenset[str]) -> Question:
    abstention = id_.endswith(ABSTENTION)
    asked_at = sample.get("question_date")
    return Question(
        id=id_,
        text=sample["question"].filled_text(),
        category="abstention" if abstention else sample["question_type"].filled_text(),
        evidence=frozenset() if abstention else evidence,
        answer=sample["answer"].plain(),
        is_unanswerable=abstention,
        asked_at=_longmemeval_time(asked_at) if asked_at else None,
        judged_only=True,
    )


def _longmemeval_time(value: Field) -> datetime:
    return value.time(
        lambda text: datetime.strptime(_WEEKDAY.sub(" ", text), _LONGMEMEVAL_TIME),  # noqa: DTZ007 - Field.time adds the zone
        "2023/05/20 (Sat) 02:21",
    )


FORMATS: Final = "a list of LoCoMo samples, a list of LongMemEval questions, or an object with dialogues"


def read_dialogues(path: Path) -> tuple[Dialogue, ...]:
    """Returns the dialogues of a JSON file, or of a JSON Lines file with one sample a line (`.jsonl`).

    The format is recognised by the fields of the first sample: `haystack_sessions` for LongMemEval, `conversation` for
    LoCoMo, otherwise the format of `py`.

    Raises:
        DatasetInvalid: the file cannot be read, is not JSON, has no dialogues, or a field of it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetInvalid(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    samples = list(_lines(path.name, text) if path.suffix == ".jsonl" else _samples(path.name, text))
    if not samples:
        raise DatasetInvalid(f"{path.name} has no dialogues. Expected {FORMATS}.")
    read = _reader(samples[0])
    dialogues = tuple(read(sample, number) for number, sample in enumerate(samples))
    seen: set[str] = set()
    for sample, dialogue in zip(samples, dialogues, strict=True):
        if dialogue.id in seen:
            raise sample.invalid(f"has the id {dialogue.id!r} of an earlier dialogue")
        seen.add(dialogue.id)
    return dialogues


def _reader(sample: Field) -> Callable[[Field, int], Dialogue]:
    if sample.get("haystack_sessions") is not None:
        return longmemeval_dialogue
    if sample.get("conversation") is not None:
        return locomo_dialogue
    if sample.get("sessions") is not None:
        return own_dialogue
    raise sample.invalid(f"has none of the fields haystack_sessions, conversation and sessions. Expected {FORMATS}")


def _samples(name: str, text: str) -> Iterator[Field]:
    whole = Field(_parsed(name, text, 1), name)
    if isinstance(whole.value, list):
        return (Field(value, f"{name}: [{number}]") for number, value in enumerate(whole.value))
    if isinstance(whole.value, dict) and "dialogues" not in whole.value and _is_sample(whole.value):
        return iter((whole,))
    return whole["dialogues"].items()


def _is_sample(value: dict[str, Any]) -> bool:
    return bool(value.keys() & {"haystack_sessions", "conversation", "sessions"})


def _lines(name: str, text: str) -> Iterator[Field]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield Field(_parsed(name, line, number), f"{name}: line[{number}]")


def _parsed(name: str, text: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise DatasetInvalid(f"{name} is not JSON at line {line}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise DatasetInvalid(f"{name} is nested too deeply.") from None
