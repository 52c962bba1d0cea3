"""The turns of a request, independent of the API of the provider, and what providers put into their messages.

Equal requests give equal bytes.
"""

import base64
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import structlog
from mnemesh_kit.unicode import MAX_TEXT_BYTES, well_formed_value
from mnemesh_types.messages import ContentPart, ImagePart, Message, ReasoningPart, TextPart

from mnemesh_orchestrator.llm.errors import ProviderOptionsInvalid

T = TypeVar("T")

_TEXTS: Final = 32_768
_CHARACTERS: Final = 24_000_000
_HISTORIES: Final = 128
_TOOLS: Final = 512


@dataclass(frozen=True, slots=True)
class SystemTurn:
    """The system message at the head."""

    text: str


@dataclass(frozen=True, slots=True)
class WireImage:
    """An image of a message, and its number among the images of that message."""

    part: ImagePart
    source: Message
    ordinal: int


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A user message, a summary or an event, as the model reads it."""

    text: str
    images: tuple[WireImage, ...] = ()
    rendered: "Rendered" = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WireCall:
    """A call as the provider receives it: the id is unique in the request, and the arguments are an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """Text and calls of the model. Parts that only their provider can read, such as signatures, are sent to it only."""

    message: Message
    calls: tuple[WireCall, ...]
    is_own: bool = True
    """True if the called model wrote it and gets back what only it can read."""
    rendered: "Rendered" = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WireReturn:
    """A packaged return under the id of its call. The return of a call that failed has no images."""

    call_id: str
    text: str
    is_error: bool
    images: tuple[WireImage, ...] = ()


@dataclass(frozen=True, slots=True)
class ReturnsTurn:
    """The returns of the preceding assistant turn, and the ids of its calls."""

    returns: list[WireReturn] = field(default_factory=list)
    call_ids: tuple[str, ...] = ()
    rendered: "Rendered" = field(default_factory=dict, compare=False, repr=False)


Turn = SystemTurn | UserTurn | AssistantTurn | ReturnsTurn
Rendered = dict[str, list[dict[str, Any]]]
"""The forms in which renderers have sent a turn, by renderer. Turns of one history are reused by the next request."""


class RenderCache:
    """A bounded LRU cache of texts. Each is a pure function of its key and its source.

    The key holds the message id, the time zone and everything else that the text depends on. The source is the message,
    or the fields of it that are rendered: an entry is valid only for the same or an equal object, so an edited message
    is rendered again.
    """

    def __init__(self, max_texts: int = _TEXTS, max_characters: int = _CHARACTERS) -> None:
        self._max_texts = max_texts
        self._max_characters = max_characters
        self._entries: OrderedDict[Hashable, tuple[object, str]] = OrderedDict()
        self._characters = 0
        self._histories: OrderedDict[Hashable, Any] = OrderedDict()
        self._tools: OrderedDict[tuple[int, Hashable], tuple[object, Any]] = OrderedDict()

    def tool(self, source: T, key: Hashable, render: Callable[[T], Any]) -> Any:
        """Returns a rendered tool, which is kept for this object: a comparison would take as long as the conversion."""
        known = self._tools.get((id(source), key))
        if known is None:
            # The object is kept, so that no other one gets its id.
            known = self._tools[id(source), key] = (source, render(source))
            if len(self._tools) > _TOOLS:
                self._tools.popitem(last=False)
        return known[1]

    def history(self, key: Hashable) -> Any:
        """Returns the history that was kept last under `key`, or None."""
        return self._histories.get(key)

    def keep_history(self, key: Hashable, history: Any) -> None:
        """Keeps the rendered history of a window until its next request. Holds the latest 128 windows."""
        self._histories[key] = history
        self._histories.move_to_end(key)
        while len(self._histories) > _HISTORIES:
            self._histories.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)

    def text(self, key: Hashable, source: object, render: Callable[[], str]) -> str:
        """Returns the text under `key`, which is rendered if it is not cached for this source."""
        entry = self._entries.get(key)
        if entry is not None and (entry[0] is source or entry[0] == source):
            self._entries.move_to_end(key)
            return entry[1]
        text = render()
        self._keep(key, source, text)
        return text

    def _keep(self, key: Hashable, source: object, text: str) -> None:
        if (old := self._entries.pop(key, None)) is not None:
            self._characters -= len(old[1])
        if len(text) * 8 > self._max_characters:  # One image must not evict a whole window.
            return
        self._entries[key] = (source, text)
        self._characters += len(text)
        while len(self._entries) > self._max_texts or self._characters > self._max_characters:
            _, (_, evicted) = self._entries.popitem(last=False)
            self._characters -= len(evicted)


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Returns a body as compact JSON, with keys in the order of the renderer."""
    return msgspec.json.encode(body, enc_hook=_to_plain)


def with_provider_options(body: dict[str, Any], options: str | None, protected: frozenset[str]) -> dict[str, Any]:
    """Returns the body with an agent's own options, except for the fields that mnemesh controls.

    Raises:
        ProviderOptionsInvalid: the options are not the text of a JSON object.
    """
    if not options or not options.strip():
        return body
    try:
        decoded = json.loads(options)
    except ValueError as error:
        raise ProviderOptionsInvalid(f"The provider options are not JSON: {error}.") from error
    if not isinstance(decoded, dict):
        raise ProviderOptionsInvalid("The provider options are not a JSON object.")
    body.update({key: value for key, value in decoded.items() if key not in protected})
    return body


def with_parameters(body: dict[str, Any], parameters: str | None, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the body with the parameters of a run that an API has.

    Args:
        parameters: a JSON object in the words of OpenAI's chat API, or None.
        names: the names of the parameters in the API, by those in the object.
    """
    given = json.loads(parameters) if parameters else {}
    body.update({names[key]: value for key, value in given.items() if key in names and value is not None})
    return body


def image_base64(image: WireImage, cache: RenderCache) -> str:
    """Returns the bytes of an inline image as base64 text."""

    def encode() -> str:
        return base64.b64encode(image.part.data or b"").decode("ascii")

    return cache.text(("image", image.source.id, image.ordinal), image.source, encode)


def image_url(image: WireImage, cache: RenderCache) -> str | None:
    """Returns the URL of an image, which is a data URL with its bytes if it is inline; None if neither is known."""
    if image.part.data is not None:
        return f"data:{image.part.media_type or 'image/png'};base64,{image_base64(image, cache)}"
    return image.part.url


def hidden_image(image: WireImage) -> str:
    """Returns the text in place of an image whose content is not known."""
    return f"[image {image.part.file_id}: not shown here]"


def _to_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} in a request body")


_log = structlog.get_logger("mnemesh.llm")

MAX_CARRIED_BYTES: Final = MAX_TEXT_BYTES
"""The largest number of bytes of carried parts. A message with more loses them, as it does at a change of model."""

# These name a thing, and servers repeat them in every piece.
_NAMES: Final = frozenset({"type", "id", "index", "format", "role", "name", "object"})
_TEXT_FIELDS: Final = frozenset({"text", "thinking", "summary", "data", "content"})
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
                if name in _TEXT_FIELDS or len(known) > 1 or known[0] != value:
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
    return item.get("index") is not None or (
        place == len(items.items) - 1 and bool(_TEXT_FIELDS & item.keys() - {"data"})
    )


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
