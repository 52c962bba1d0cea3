"""The schema of the memories that a model extracts from turns, and the lenient interpretation of its answer."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from time import perf_counter
from typing import Any, Final

from mnemesh_kit.text import well_formed
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.compaction.summarizers import transcript
from mnemesh_orchestrator.model.episodes import Change, EpisodeCommit, Fact, FactChange, MemoryScope, NewEpisode
from mnemesh_orchestrator.model.models import ResponseFormat

Memories = Mapping[str, list[dict[str, Any]]]
"""The readable items of an answer: `episodes` and `facts`, whose fields have the types of the schema."""

_NAMES: Final = ("episodes", "facts")
_DECODER: Final = json.JSONDecoder(strict=False)
_FENCE: Final = re.compile(r"```[\w-]*\s*\n?(.*?)(?:```|\Z)", re.DOTALL)
_MAX_OPENINGS: Final = 500
_MAX_PIECE: Final = 2_500
"""The largest text that is repaired at once. The library needs more than linear time for texts full of quotes."""
_REPAIR_SECONDS: Final = 1.0
_LEVELS: Final = {"very high": 1.0, "high": 0.9, "medium": 0.6, "moderate": 0.6, "low": 0.3, "very low": 0.1}
_LABEL: Final = re.compile(r"(?i)\b([mf])[ _#-]?(\d{1,6})\b|^\D{0,3}(\d{1,6})\D{0,3}$")
_NOTHING: Final = frozenset({"", "none", "null", "nil", "n/a", "-"})
_MAX_TAGS_READ: Final = 100


def read_memories(text: str) -> Memories | None:
    """Returns the memories of an answer; None if it has none that can be read and does not say that there are none.

    Documents in several blocks are read together. A fact or an episode whose fields cannot be read is left out; one
    that was cut off is left out as well.
    """
    for documents in (_whole, _embedded):
        if (found := _joined(documents(text))) is not None:
            return found
    # Neither reading has everything of each text: one takes only what is valid, the other may stop early.
    read = [found for documents in (_single_items, _repaired) if (found := _joined(documents(text))) is not None]
    largest = max(read, key=_count, default=None)
    return largest if largest is not None and _count(largest) else None


def _joined(documents: Iterator[Any]) -> Memories | None:
    found = [part for document in documents if (part := _memories(document)) is not None]
    return {name: [item for part in found for item in part[name]] for name in _NAMES} if found else None


def _count(memories: Memories) -> int:
    return sum(len(memories[name]) for name in _NAMES)


def _whole(text: str) -> Iterator[Any]:
    """Yields the documents that the text, or a block of code in it, consists of."""
    for candidate in (text, *_FENCE.findall(text)):
        try:
            yield json.loads(candidate.strip(), strict=False)
        except (ValueError, RecursionError):
            continue


def _embedded(text: str) -> Iterator[Any]:
    """Yields the valid documents in other text that have the lists of memories."""
    return (document for document in _valid_objects(text) if not _is_item(document))


def _single_items(text: str) -> Iterator[Any]:
    """Yields the valid facts and episodes in other text, such as one in each line."""
    return filter(_is_item, _valid_objects(text))


def _valid_objects(text: str) -> Iterator[Any]:
    at = 0
    for _ in range(_MAX_OPENINGS):
        at = text.find("{", at)
        if at < 0:
            return
        try:
            document, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        yield document


def _repaired(text: str) -> Iterator[Any]:
    """Yields the documents of damaged text: all of it if it is short, else its objects one by one."""
    import json_repair  # noqa: PLC0415  (it is loaded with the first damaged answer)

    began, start = perf_counter(), text.find("{")
    if start < 0:
        return
    if len(text) - start <= _MAX_PIECE:
        keyed = re.search(r"[\[{]\s*[\"'“]?(?:facts|episodes)\b", text)
        pieces = [text[start if keyed is None else keyed.start() :]]
    else:
        openings = [found.start() for found in re.finditer(r"\{", text)]
        pieces = [text[one:end] for one, end in zip(openings, [*openings[1:], len(text)], strict=True)]
    for piece in pieces:
        if perf_counter() - began > _REPAIR_SECONDS:
            return
        try:
            yield json_repair.loads(piece[:_MAX_PIECE], skip_json_loads=True)
        except (ValueError, RecursionError):
            continue


def _memories(document: Any, depth: int = 0) -> Memories | None:
    """Returns the memories of a document; None if it is something else, or nothing of its items can be read."""
    if isinstance(document, list):
        if document and all(isinstance(item, list | Mapping) and not _is_item(item) for item in document):
            parts = [part for item in document if depth < 2 and (part := _memories(item, depth + 1)) is not None]
            return {name: [item for part in parts for item in part[name]] for name in _NAMES} if parts else None
        return _items({"facts": document, "episodes": [item for item in document if _is_episode(item)]})
    if not isinstance(document, Mapping):
        return None
    named = {str(key).strip().lower(): value for key, value in document.items()}
    if any(name in named for name in _NAMES):
        return _items(named)
    if _is_item(document):
        return _items({"facts": [document], "episodes": [document]})
    inner = [value for value in named.values() if isinstance(value, Mapping)]
    return _memories(inner[0], depth + 1) if len(inner) == 1 and depth < 2 else None


def _items(named: Mapping[str, Any]) -> Memories | None:
    found: dict[str, list[dict[str, Any]]] = {}
    given = 0
    for name, read in (("episodes", _episode), ("facts", _fact)):
        value = named.get(name)
        if isinstance(value, Mapping):
            value = [value] if _is_item(value) else list(value.values())
        if isinstance(value, str) and value.strip().lower() in _NOTHING:
            value = None
        if not isinstance(value, list | None):
            return None
        given += len(value or ())
        found[name] = [item for one in value or () if (item := read(one)) is not None]
    return found if not given or any(found.values()) else None


def _is_item(value: Any) -> bool:
    return isinstance(value, Mapping) and ("text" in value or "summary" in value)


def _is_episode(value: Any) -> bool:
    return isinstance(value, Mapping) and "summary" in value


def _fact(value: Any) -> dict[str, Any] | None:
    """Returns a fact with the types of the schema. One without messages was cut off."""
    if not (isinstance(value, Mapping) and isinstance(value.get("text"), str) and "messages" in value):
        return None
    relation = value.get("relation")
    return {
        "text": value["text"],
        "tags": _tag_names(value.get("tags")),
        "confidence": _share(value.get("confidence")),
        "salience": _share(value.get("salience")),
        "messages": _labels(value["messages"], "m"),
        "relation": relation.strip().lower() if isinstance(relation, str) else "new",
        "known_fact": next(iter(_labels(value.get("known_fact"), "f")), None),
    }


def _episode(value: Any) -> dict[str, Any] | None:
    """Returns an episode with the types of the schema. One without a message was cut off."""
    if not (isinstance(value, Mapping) and isinstance(value.get("summary"), str)):
        return None
    if "first_message" not in value and "last_message" not in value:
        return None
    first, last = (_labels(value.get(name), "m") for name in ("first_message", "last_message"))
    return {
        "summary": value["summary"],
        "tags": _tag_names(value.get("tags")),
        "salience": _share(value.get("salience")),
        "first_message": next(iter(first), ""),
        "last_message": next(iter(last), ""),
    }


def _tag_names(value: Any) -> list[str]:
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return [str(tag) for tag in given[:_MAX_TAGS_READ] if isinstance(tag, str | int | float)]


def _share(value: Any) -> float:
    """Returns a share from 0 to 1: a number, its text, a percentage or a word. Half if it is none of them."""
    read: Callable[[Any], float] = float
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _LEVELS:
            return _LEVELS[text]
        value, read = text.rstrip("% "), (lambda given: float(given) / 100) if text.endswith("%") else float
    try:
        number = 0.5 if isinstance(value, bool) or value is None else read(value)
    except (TypeError, ValueError, OverflowError):
        return 0.5
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.5


def _labels(value: Any, letter: str) -> list[str]:
    """Returns labels such as m1 from a list or a text, which may have brackets, or numbers alone.

    What is not a label stays as it is, so that it is reported as unknown.
    """
    given = value if isinstance(value, list) else [value]
    labels: list[str] = []
    for one in given:
        for text in str(one).split(",") if isinstance(one, str | int) and not isinstance(one, bool) else ():
            if text.strip().lower() in _NOTHING:
                continue
            found = _LABEL.search(text)
            labels.append(text.strip() if found is None else f"{(found[1] or letter).lower()}{found[2] or found[3]}")
    return labels


MAX_SUMMARY_CHARACTERS: Final = 20_000
_MAX_FACT_CHARACTERS: Final = 1_000
_MAX_TAG_CHARACTERS: Final = 100
_MAX_MESSAGE_CHARACTERS: Final = 20_000
_MAX_EPISODES: Final = 10
_MAX_FACTS: Final = 100
_MAX_TAGS: Final = 20
_CHANGES: Final = {
    "new": Change.ADD,
    "contradicts": Change.SUPERSEDE,
    "confirms": Change.CONFIRM,
    "retracts": Change.RETRACT,
}

_SHARE: Final = {"type": "number", "description": "from 0 to 1"}
_TAGS: Final = {"type": "array", "items": {"type": "string"}}


def _object_schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_EPISODE: Final = _object_schema(
    summary={"type": "string"},
    tags=_TAGS,
    salience=_SHARE,
    first_message={"type": "string", "description": "label of the first message that it covers, as m1"},
    last_message={"type": "string", "description": "label of the last message that it covers"},
)
_FACT: Final = _object_schema(
    text={"type": "string", "description": "one statement that is understood by itself"},
    tags=_TAGS,
    confidence=_SHARE,
    salience=_SHARE,
    messages={"type": "array", "items": {"type": "string"}, "description": "labels of the messages it comes from"},
    relation={"type": "string", "enum": list(_CHANGES)},
    known_fact={
        "type": ["string", "null"],
        "description": "label of the known fact that it contradicts, confirms or retracts",
    },
)
SCHEMA: Final = _object_schema(episodes={"type": "array", "items": _EPISODE}, facts={"type": "array", "items": _FACT})
FORMAT: Final = ResponseFormat("json_schema", "memories", json.dumps(SCHEMA, separators=(",", ":")), strict=True)
FACTS_FORMAT: Final = replace(
    FORMAT,
    schema=json.dumps(_object_schema(facts={"type": "array", "items": _FACT}), separators=(",", ":")),
)
_UNREADABLE: Final = "it is not JSON with the lists of the schema"


@dataclass(frozen=True, slots=True)
class Material:
    """The material of an extraction: the turns that leave, the known facts, and the scope of the memory.

    `messages` are those of the turns, without an earlier summary. `turns` maps messages to turns, as far as known.
    """

    scope: MemoryScope
    conversation_id: str | None
    messages: Sequence[Message]
    facts: Sequence[Fact]
    turns: Mapping[str, str]

    def render(self, limit: int, earlier: str = "", earlier_heading: str = "Earlier notes") -> str:
        """Returns the material as the model reads it, the conversation in at most about `limit` characters."""
        facts = "\n".join(f"[f{index}] {' '.join(fact.text.split())}" for index, fact in enumerate(self.facts, 1))
        parts = [
            f"Known facts:\n{facts}" if facts else "",
            f"{earlier_heading}:\n{earlier}" if earlier else "",
            f"Conversation:\n{_conversation(self.messages, limit)}",
        ]
        return "\n\n".join(filter(None, parts))


def rendered_length(messages: Sequence[Message]) -> int:
    """Returns the approximate number of characters of messages in the material."""
    return sum(len(_labelled(9_999, message, _MAX_MESSAGE_CHARACTERS)) + 1 for message in messages)


def answer_problem(text: str, material: Material) -> str | None:
    """Returns why an answer cannot be used, or None."""
    memories = read_memories(text)
    return _UNREADABLE if memories is None else _AnswerReader(material).problem(memories)


def facts_problem(text: str, material: Material) -> str | None:
    """Returns why an answer with facts alone cannot be used, or None."""
    memories = read_memories(text)
    return _UNREADABLE if memories is None else _AnswerReader(material).facts_problem(memories["facts"])


def parse_changes(text: str, material: Material) -> tuple[FactChange, ...] | None:
    """Returns the changes of facts of an answer, without what cannot be used; None if the answer is unreadable."""
    memories = read_memories(text)
    return None if memories is None else _AnswerReader(material).changes(memories["facts"])


def parse_commits(text: str, material: Material, model: str) -> tuple[EpisodeCommit, ...]:
    """Returns one commit for each episode of an answer, the facts with the last.

    Items that do not match the schema, and unknown labels, are left out. Empty if no episode is left.
    """
    memories = read_memories(text)
    return () if memories is None else _AnswerReader(material).commits(memories, model)


class _AnswerReader:
    """An answer and the material that it was extracted from."""

    def __init__(self, material: Material) -> None:
        self._material = material
        self._indexes = {f"m{index}": index - 1 for index in range(1, len(material.messages) + 1)}
        self._facts = {f"f{index}": fact for index, fact in enumerate(material.facts, 1)}

    def problem(self, value: Memories) -> str | None:
        """Returns what is wrong with the memories of an answer, or None."""
        if not any(item["summary"].strip() for item in value["episodes"]):
            return "episodes: there must be at least one, with a summary"
        for index, item in enumerate(value["episodes"]):
            for name in ("first_message", "last_message"):
                if item[name] not in self._indexes:
                    return f"episodes[{index}].{name}: there is no message {item[name]!r}"
            if len(item["summary"]) > MAX_SUMMARY_CHARACTERS:
                return f"episodes[{index}].summary: it is longer than {MAX_SUMMARY_CHARACTERS} characters"
        return self.facts_problem(value["facts"])

    def facts_problem(self, facts: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns what is wrong with facts, or None."""
        return next(filter(None, (self._fact_problem(*numbered) for numbered in enumerate(facts))), None)

    def changes(self, facts: Sequence[Mapping[str, Any]]) -> tuple[FactChange, ...]:
        """Returns the usable changes of facts, one for each known fact and each text."""
        changes = (self._change(item) for item in facts[:_MAX_FACTS])
        return _deduplicated(change for change in changes if change is not None)

    def commits(self, value: Memories, model: str) -> tuple[EpisodeCommit, ...]:
        episodes = [self._episode(item) for item in value["episodes"][:_MAX_EPISODES]]
        episodes = [episode for episode in episodes if episode.summary]
        own_changes = self.changes(value["facts"])
        scope, conversation_id = self._material.scope, self._material.conversation_id
        return tuple(
            EpisodeCommit(scope, conversation_id, episode, own_changes if episode is episodes[-1] else (), model)
            for episode in episodes
        )

    def _fact_problem(self, index: int, item: Mapping[str, Any]) -> str | None:
        unknown = [label for label in item["messages"] if label not in self._indexes]
        if unknown:
            return f"facts[{index}].messages: there is no message {unknown[0]!r}"
        if not item["messages"]:
            return f"facts[{index}].messages: name the messages that it comes from"
        if not item["text"].strip() or len(item["text"]) > _MAX_FACT_CHARACTERS:
            return f"facts[{index}].text: it must have between 1 and {_MAX_FACT_CHARACTERS} characters"
        if item["relation"] not in _CHANGES:
            return f"facts[{index}].relation: it must be one of {', '.join(_CHANGES)}"
        if item["relation"] != "new" and item["known_fact"] not in self._facts:
            return f"facts[{index}].known_fact: there is no known fact {item['known_fact']!r}"
        return None

    def _episode(self, item: Mapping[str, Any]) -> NewEpisode:
        messages = self._material.messages
        first = self._indexes.get(item["first_message"], 0)
        last = self._indexes.get(item["last_message"], len(messages) - 1)
        covered = messages[first : last + 1] if first <= last else messages
        turns = self._material.turns
        return NewEpisode(
            summary=_plain(item["summary"])[:MAX_SUMMARY_CHARACTERS],
            message_ids=tuple(message.id for message in covered),
            turn_ids=tuple(dict.fromkeys(turns[message.id] for message in covered if message.id in turns)),
            tags=_tags(item["tags"]),
            salience=item["salience"],
        )

    def _change(self, item: Mapping[str, Any]) -> FactChange | None:
        text = " ".join(_plain(item["text"]).split())
        indexes = sorted({self._indexes[label] for label in item["messages"] if label in self._indexes})
        if not item["messages"]:  # The model was asked again, and named none again: it is one of the user's.
            indexes = [index for index, one in enumerate(self._material.messages) if one.role is Role.USER]
        if not text or len(text) > _MAX_FACT_CHARACTERS or not indexes:
            return None
        messages = self._material.messages
        known = self._facts.get(item["known_fact"] or "")
        change = Change.ADD if known is None else _CHANGES.get(item["relation"], Change.ADD)
        if known is None and item["relation"] in ("confirms", "retracts"):
            return None
        if known is not None and change is Change.SUPERSEDE and is_same_text(known.text, text):
            change = Change.CONFIRM
        # A fact is valid from its first message. A contradiction or a retraction counts from its last.
        closes = change in (Change.SUPERSEDE, Change.RETRACT)
        told_at = messages[indexes[-1 if closes else 0]].created_at
        if closes and known is not None and known.valid_from is not None:
            told_at = max(told_at, known.valid_from + timedelta(microseconds=1))
        return FactChange(
            change=change,
            text=known.text if known is not None and change is Change.RETRACT else text,
            message_ids=tuple(messages[index].id for index in indexes),
            told_at=told_at,
            tags=_tags(item["tags"]),
            confidence=item["confidence"],
            salience=item["salience"],
            fact_id=None if change is Change.ADD or known is None else known.id,
        )


def _deduplicated(changes: Iterable[FactChange]) -> tuple[FactChange, ...]:
    """Leaves out a second change of the same fact, which recall would refuse. A repeated text adds its messages."""
    result: list[FactChange] = []
    for change in changes:
        same = [index for index, other in enumerate(result) if is_same_text(change.text, other.text)]
        if same:
            first = result[same[0]]
            message_ids = tuple(dict.fromkeys((*first.message_ids, *change.message_ids)))
            result[same[0]] = replace(first, message_ids=message_ids)
        elif change.fact_id is None or all(change.fact_id != other.fact_id for other in result):
            result.append(change)
    return tuple(result)


def is_same_text(one: str, other: str) -> bool:
    """Returns whether two texts of facts differ in case, white space and final punctuation only."""
    return " ".join(one.casefold().split()).rstrip(".!") == " ".join(other.casefold().split()).rstrip(".!")


def _conversation(messages: Sequence[Message], limit: int) -> str:
    message_limit = max(200, limit // max(1, min(len(messages), 20)))
    lines = [_labelled(index, message, limit) for index, message in enumerate(messages, 1)]
    if sum(map(len, lines)) <= limit:
        return "\n".join(filter(None, lines))
    lines = [_labelled(index, message, message_limit) for index, message in enumerate(messages, 1)]
    return _without_middle([line for line in lines if line], limit)


def _without_middle(lines: list[str], limit: int) -> str:
    """Returns the beginning and the end. Whole lines are left out, so that no label is cut."""
    head: list[str] = []
    tail: list[str] = []
    head_size = tail_size = 0
    while len(head) + len(tail) < len(lines):
        takes_head = head_size * 2 <= tail_size
        line = lines[len(head)] if takes_head else lines[-1 - len(tail)]
        if head_size + tail_size + len(line) + 1 > limit:
            break
        if takes_head:
            head.append(line)
            head_size += len(line) + 1
        else:
            tail.append(line)
            tail_size += len(line) + 1
    missing = len(lines) - len(head) - len(tail)
    gap = [f"[... {missing} messages are left out here ...]"] if missing else []
    return "\n".join((*head, *gap, *reversed(tail)))


def _labelled(index: int, message: Message, limit: int) -> str:
    text = transcript((message,), limit)
    if not text:
        return ""
    when = f" {message.created_at:%Y-%m-%d %H:%M}" if message.role is Role.USER else ""
    return f"[m{index}{when}] {text}"


def _plain(text: str) -> str:
    return well_formed(text).strip()


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    plain = (" ".join(_plain(tag).split())[:_MAX_TAG_CHARACTERS] for tag in tags)
    return tuple(dict.fromkeys(filter(None, plain)))[:_MAX_TAGS]
