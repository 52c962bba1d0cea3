"""What a provider put into its assistant message, and the other fields of a stored message do not hold.

An adapter collects it while an answer arrives, and its renderer sends it back to the same model. Texts, reasoning and
arguments of calls are not repeated here: the message has them, and a user may edit them there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import structlog
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed_value
from mnemesh_types.messages import ContentPart, Message, ReasoningPart, TextPart

_log = structlog.get_logger("mnemesh.llm")

MAX_CARRIED_BYTES: Final = MAX_TEXT_BYTES
"""The largest number of bytes of carried parts. A message with more loses them, as it does at a change of model."""

# These name a thing, and servers repeat them in every piece.
_NAMES: Final = frozenset({"type", "id", "index", "format", "role", "name", "object"})
_TEXTS: Final = frozenset({"text", "thinking", "summary", "data", "content"})
_MAX_ITEMS: Final = 10_000

TEXT = "text"
REASONING = "reasoning"
CALL = "call"


def encode_carried(api: str, carried: Mapping[str, Any]) -> str | None:
    """Returns the JSON text of carried parts for a message; None if there are none, or they are too long to store."""
    held = {name: value for name, value in carried.items() if value}
    if not held:
        return None
    text = json.dumps(well_formed_value({"api": api, **held}), ensure_ascii=False, separators=(",", ":"))
    if len(text) > MAX_CARRIED_BYTES or len(text.encode()) > MAX_CARRIED_BYTES:
        _log.warning("carried_parts_too_long", api=api, characters=len(text))
        return None
    return text


def decode_carried(message: Message, api: str) -> dict[str, Any]:
    """Returns the carried parts of a message; empty if it has none, or another API wrote them."""
    if message.carried is None:
        return {}
    try:
        carried = json.loads(message.carried)
    except (ValueError, RecursionError):  # An import may hold anything.
        return {}
    return carried if isinstance(carried, dict) and carried.get("api") == api else {}


def carried_list(carried: Mapping[str, Any], name: str) -> list[Any]:
    """Returns a list of carried parts; empty if it is absent or something else."""
    value = carried.get(name)
    return value if isinstance(value, list) else []


class MergedFields:
    """The fields of a streamed object: pieces of text are joined, objects merged, and lists merged by index and type.

    `add` costs as much as its piece, whatever was added before.
    """

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._size = 0

    def add(self, piece: Mapping[str, Any]) -> None:
        """Adds the fields of a piece. Those without a value are left out."""
        for name, value in piece.items():
            if value is None or value in ("", [], {}):
                continue
            self._size += len(value) if isinstance(value, str) else len(str(value))
            if self._size > MAX_CARRIED_BYTES:  # It is not kept, so nothing more is collected.
                return
            self._fields[name] = _merged(name, self._fields.get(name), value)

    @property
    def has_fields(self) -> bool:
        """True if a field with a value was added."""
        return bool(self._fields)

    @property
    def value(self) -> dict[str, Any]:
        """The fields so far; empty if they are too long to store."""
        if self._size > MAX_CARRIED_BYTES:
            _log.warning("carried_parts_too_long", characters=self._size)
            return {}
        return {name: _plain(field) for name, field in self._fields.items()}


class _Text(list[str]):
    """The pieces of a text."""


class _Items:
    """The items of a list, and where each item with an index is."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.places: dict[tuple[Any, Any], int] = {}


def _merged(name: str, known: Any, value: Any) -> Any:
    """Returns a field with one more piece of its value."""
    match value:
        case str():
            if isinstance(known, _Text) and name not in _NAMES:
                # A value that comes again as it was is repeated, unless the field is one of text.
                if name in _TEXTS or len(known) > 1 or known[0] != value:
                    known.append(value)
                return known
            return known if isinstance(known, _Text) else _Text([value])
        case dict():
            fields = known if isinstance(known, dict) else {}
            for key, item in value.items():
                if item is not None:
                    fields[key] = _merged(key, fields.get(key), item)
            return fields
        case list():
            items = known if isinstance(known, _Items) else _Items()
            for item in value:
                _add_item(items, item)
            return items
        case _:
            return value


def _add_item(items: _Items, item: Any) -> None:
    if not isinstance(item, dict):
        items.items.append(item)
        return
    place = items.places.get(key := (item.get("index"), item.get("type"))) if _is_hashable(item) else None
    if place is None or not _continues(items, place, item):
        place = len(items.items)
        if place >= _MAX_ITEMS:
            return
        items.items.append({})
        if _is_hashable(item):
            items.places[key] = place
    _merged("", items.items[place], item)


def _is_hashable(item: Mapping[str, Any]) -> bool:
    return all(isinstance(item.get(name), int | str | None) for name in ("index", "type"))


def _continues(items: _Items, place: int, item: Mapping[str, Any]) -> bool:
    """Returns whether a piece belongs to the item of its index and type. Without an index, only text goes on."""
    known_id = items.items[place].get("id")
    if item.get("id") is not None and known_id is not None and item["id"] != _plain(known_id):
        return False
    return item.get("index") is not None or (place == len(items.items) - 1 and bool(_TEXTS & item.keys() - {"data"}))


def _plain(value: Any) -> Any:
    match value:
        case _Text():
            return "".join(value)
        case _Items():
            return [_plain(item) for item in value.items]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case _:
            return value


def carried_names(message: Message) -> set[str]:
    """Returns the names of the fields that a message carries, as a refusal may name them."""
    try:
        carried = json.loads(message.carried or "{}")
    except (ValueError, RecursionError):
        return set()
    return set(_names(carried)) if isinstance(carried, dict) else set()


def _names(carried: Mapping[str, Any]) -> Iterator[str]:
    yield from (name for name in carried_list(carried, "reasoning") if isinstance(name, str))
    yield from carried.get("fields") or ()
    for fields in (*carried_list(carried, "calls"), *carried_list(carried, "order")):
        if isinstance(fields, dict):
            # A whole block is named by its type.
            is_block = "kind" in fields and fields["kind"] is None
            yield from [str(fields["fields"].get("type"))] if is_block else fields.get("fields", fields)


def in_order(
    order: Sequence[object], texts: Sequence[Any], reasoning: Sequence[Any], calls: Sequence[Any]
) -> Iterator[tuple[str | None, Any, Mapping[str, Any]]]:
    """Yields the parts of a message in the order of its provider: kind, part, and the fields that it does not hold.

    Texts and calls that the order does not have follow, so that an edited message is whole. A block that is not part of
    the message has no kind, and its fields are all of it.

    Args:
        order: the carried order: kinds, objects with a `kind` and the other fields of a block, and whole blocks.
        texts: the texts of the message.
        reasoning: its reasoning.
        calls: its calls.
    """
    queues = {REASONING: list(reasoning), TEXT: list(texts), CALL: list(calls)}
    for queue in queues.values():
        queue.reverse()
    for entry in order:
        kind, fields = (entry, {}) if isinstance(entry, str) else _entry(entry)
        if kind is None:
            if fields:
                yield None, None, fields
        elif queue := queues.get(kind, []):
            yield kind, queue.pop(), fields
    if order:
        queues[REASONING] = []  # It belongs before what it led to.
    for kind, queue in queues.items():
        yield from ((kind, part, {}) for part in reversed(queue))


def carried_order(blocks: Iterable[tuple[str | None, Mapping[str, Any]]]) -> list[Any]:
    """Returns the order to carry: of each block its kind and its other fields, or all of a block without a kind.

    It is empty if the blocks are texts and then calls, as a message renders without an order.
    """
    order = [
        kind if kind is not None and not fields else {"kind": kind, "fields": dict(fields)} for kind, fields in blocks
    ]
    is_plain = all(isinstance(entry, str) and entry != REASONING for entry in order)
    return [] if is_plain and order == sorted(order, key=(TEXT, CALL).index) else order


def other_fields(block: Mapping[str, Any], held: frozenset[str]) -> dict[str, Any]:
    """Returns the fields of a block that have a value and that the message does not hold."""
    return {name: value for name, value in block.items() if name not in held and value not in (None, "", [], {})}


def ordered_texts(order: Sequence[object], content: Sequence[ContentPart]) -> list[TextPart]:
    """Returns the texts of a message, with those that are stored as reasoning.

    Where an agent speaks by a tool, the text beside a call is stored as reasoning. It returns as text, because signed
    reasoning is valid only beside it. Thoughts that the message got later stand before.
    """
    texts = [part for part in content if isinstance(part, TextPart) and part.text]
    kinds = [entry if isinstance(entry, str) else _entry(entry)[0] for entry in order]
    missing = kinds.count(TEXT) - len(texts)
    if missing <= 0:
        return texts
    spoken = [TextPart(part.text) for part in content if isinstance(part, ReasoningPart) and not part.is_native]
    return spoken[-missing:] + texts


def _entry(entry: object) -> tuple[str | None, Mapping[str, Any]]:
    if not isinstance(entry, dict) or not isinstance(fields := entry.get("fields"), dict):
        return None, {}
    kind = entry.get("kind")
    return (kind if isinstance(kind, str) else None), fields
