"""The schema of the memories that a model extracts from turns, and the interpretation of its answer.

Messages and known facts have short labels, `m1` and `f1`, which a model repeats without mistakes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from mnemesh_kit.text import well_formed
from mnemesh_types.messages import Message, Role

from mnemesh_orchestrator.compaction.memory_json import Memories, read_memories
from mnemesh_orchestrator.compaction.transcript import transcript
from mnemesh_orchestrator.model.episodes import Change, EpisodeCommit, Fact, FactChange, MemoryScope, NewEpisode
from mnemesh_orchestrator.model.models import ResponseFormat

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
        """See `parse_commits`."""
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
