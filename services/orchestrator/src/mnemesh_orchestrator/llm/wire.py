"""The turns of a request, independent of the API of the provider, and their bytes. Equal requests give equal bytes."""

import base64
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from mnemesh_types.messages import ImagePart, Message

from mnemesh_orchestrator.llm.errors import ProviderOptionsInvalid

_TEXTS: Final = 32_768
_CHARACTERS: Final = 24_000_000
_HISTORIES: Final = 128


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
        body: the body.
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
