"""What every provider is told of a window: packaged texts, calls under unique ids, each with its returns behind it.

Neutral between the APIs: a renderer only puts these turns into its provider's words.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from engram_orchestrator.llm.port import LlmRequest
from engram_orchestrator.llm.render_cache import RenderCache
from engram_orchestrator.model.messages import (
    ImagePart,
    Message,
    ReasoningPart,
    Role,
    ToolCall,
    ToolReturn,
    ToolStatus,
)
from engram_orchestrator.prompt.packaging import event_type, package_tool_return, package_user_message, system_alert

THINKING: Final = "thinking"
_LONGEST_CALL_ID = 29
_FOREIGN_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class SystemTurn:
    """The system message at the head."""

    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """A user message, a summary or an event, as the model reads it."""

    text: str
    images: tuple[ImagePart, ...] = ()
    source: Message | None = None


@dataclass(frozen=True, slots=True)
class WireCall:
    """A call as the provider is shown it: an id that no other call of the request has, arguments that are an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """What the model said and called."""

    message: Message
    calls: tuple[WireCall, ...]


@dataclass(frozen=True, slots=True)
class WireReturn:
    """A packaged return, under its call's id."""

    call_id: str
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class ReturnsTurn:
    """The returns of the assistant turn before it."""

    returns: list[WireReturn] = field(default_factory=list)


Turn = SystemTurn | UserTurn | AssistantTurn | ReturnsTurn


def turns(request: LlmRequest, cache: RenderCache) -> list[Turn]:
    """The window as turns.

    Returns stand right behind their calls, whatever was said in between. A return whose call is not in the window is
    left out: no provider would accept it.
    """
    told: list[Turn] = []
    open_calls: dict[str, tuple[str, ReturnsTurn]] = {}
    call_ids: set[str] = set()
    own_thinkers = _tools_that_think(request)
    for position, message in enumerate(request.messages):
        for ordinal, returned in enumerate(message.tool_returns):
            if (call := open_calls.pop(returned.tool_call_id, None)) is not None:
                text = _return_text(request, cache, message, ordinal, returned)
                call[1].returns.append(WireReturn(call[0], text, returned.status is ToolStatus.ERROR))
        if message.role is Role.ASSISTANT or message.tool_calls:
            calls = tuple(_wire_calls(request, cache, message, call_ids, own_thinkers))
            told.append(AssistantTurn(message, calls))
            if calls:
                answers = ReturnsTurn()
                told.append(answers)
                for stored, shown in zip(message.tool_calls, calls, strict=True):
                    open_calls[stored.id] = (shown.id, answers)
        elif message.role is Role.SYSTEM and position == 0:
            told.append(SystemTurn(message.text))
        elif message.role in (Role.USER, Role.SUMMARY, Role.SYSTEM):
            images = tuple(part for part in message.content if isinstance(part, ImagePart))
            told.append(UserTurn(_user_text(request, cache, message), images, message))
    return [turn for turn in told if not (isinstance(turn, ReturnsTurn) and not turn.returns)]


def arguments_object(arguments: str) -> dict[str, Any]:
    """The arguments of a stored call as an object; what is no object stands under "raw"."""
    try:
        decoded = json.loads(arguments or "{}")
    except ValueError:
        decoded = None
    return decoded if isinstance(decoded, dict) else {"raw": arguments}


def _user_text(request: LlmRequest, cache: RenderCache, message: Message) -> str:
    zone = request.time_zone

    def make() -> str:
        text = message.text
        if event_type(text):
            return text
        if message.role is Role.USER:
            return package_user_message(text, message.created_at, zone, message.name)
        return system_alert(text, message.created_at, zone)

    return cache.text(("user", message.id, zone), message, make)


def _return_text(request: LlmRequest, cache: RenderCache, message: Message, ordinal: int, returned: ToolReturn) -> str:
    limit, zone = request.tool_return_char_limit, request.time_zone

    def make() -> str:
        text = returned.text
        if limit is not None and len(text) > limit:
            text = f"{text[:limit]}… [{len(text) - limit} more characters are left out of this request]"
        return package_tool_return(returned.status, text, message.created_at, zone)

    return cache.text(("return", message.id, ordinal, zone, limit), message, make)


def _wire_calls(
    request: LlmRequest, cache: RenderCache, message: Message, taken: set[str], own_thinkers: frozenset[str]
) -> Iterator[WireCall]:
    for ordinal, call in enumerate(message.tool_calls):
        keeps = request.inner_thoughts or call.name in own_thinkers
        thoughts = _inner_thoughts(message) if request.inner_thoughts and ordinal == 0 else None
        arguments = cache.text(
            ("call", message.id, ordinal, keeps, thoughts is not None),
            message,
            lambda call=call, keeps=keeps, thoughts=thoughts: _arguments(call, keeps, thoughts),  # type: ignore[misc]
        )
        yield WireCall(_unique_id(call.id, taken), call.name, arguments)


def _arguments(call: ToolCall, keeps_thinking: bool, thoughts: str | None) -> str:
    decoded = arguments_object(call.arguments)
    if thoughts is not None and THINKING not in decoded:
        return json.dumps({THINKING: thoughts, **decoded}, ensure_ascii=False)
    if not keeps_thinking and THINKING in decoded:
        return json.dumps({key: value for key, value in decoded.items() if key != THINKING}, ensure_ascii=False)
    if call.arguments and "raw" not in decoded:
        return call.arguments
    return json.dumps(decoded, ensure_ascii=False)


def _inner_thoughts(message: Message) -> str | None:
    texts = [part.text for part in message.content if isinstance(part, ReasoningPart) and not part.is_native]
    return "\n".join(texts) if texts else None


def _tools_that_think(request: LlmRequest) -> frozenset[str]:
    """Tools that own a "thinking" parameter themselves, so that it is theirs and not engram's."""
    if request.inner_thoughts:
        return frozenset()
    return frozenset(tool.name for tool in request.tools if THINKING in (tool.parameters.get("properties") or ()))


def _unique_id(call_id: str, taken: set[str]) -> str:
    wire = _FOREIGN_CHARACTERS.sub("_", call_id)[:_LONGEST_CALL_ID] or "call"
    repetition = 2
    while wire in taken:
        suffix = f"-{repetition}"
        wire = _FOREIGN_CHARACTERS.sub("_", call_id)[: _LONGEST_CALL_ID - len(suffix)] + suffix
        repetition += 1
    taken.add(wire)
    return wire
