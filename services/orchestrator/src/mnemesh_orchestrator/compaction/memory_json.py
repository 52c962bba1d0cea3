"""Reads the memories of an answer leniently: JSON in other text or damaged, and values of other types than asked for.

"No memories" and "unreadable" are different values: an empty list and None.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final

import json_repair

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
        "tags": _tags(value.get("tags")),
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
        "tags": _tags(value.get("tags")),
        "salience": _share(value.get("salience")),
        "first_message": next(iter(first), ""),
        "last_message": next(iter(last), ""),
    }


def _tags(value: Any) -> list[str]:
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
