"""The turns of a history, in a form that is independent of the API of the provider."""

from dataclasses import dataclass, field
from typing import Any

from mnemesh_types.messages import ImagePart, Message


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
