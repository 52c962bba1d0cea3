"""The history that every provider receives: packaged texts, and calls with unique ids, each followed by its returns.

It is independent of the API. A renderer only converts these turns to the form of its provider.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_types.messages import (
    ContentPart,
    ImagePart,
    Message,
    ReasoningPart,
    Role,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

from mnemesh_orchestrator.llm.dialects import CallIds, dialect_of
from mnemesh_orchestrator.llm.history_forms import PLAIN, HistoryForm
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.render_cache import RenderCache
from mnemesh_orchestrator.llm.turns import (
    AssistantTurn,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireCall,
    WireImage,
    WireReturn,
)
from mnemesh_orchestrator.prompt.packaging import (
    package_tool_return,
    package_user_message,
    plain_tool_return,
    plain_user_message,
    system_alert,
    time_of_last_message,
)

THINKING: Final = "thinking"
# Some APIs require a user message at the start and end, or an assistant message between a return and a user message.
OPENING: Final = "[The conversation that is in view begins here.]"
CLOSING: Final = "[Please go on.]"
BRIDGE: Final = "[The tools have returned.]"
NO_RETURN: Final = "[The result of this call is not in view.]"
_WORD = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_NAME: Final = 64
_NAME = re.compile(rf"[\w-]{{1,{_MAX_NAME}}}")
_NO_NAME = re.compile(r"[^\w-]+")
_ALPHANUMERIC = re.compile(r"[a-zA-Z0-9]+")
_DIGITS: Final = string.digits + string.ascii_letters


@dataclass(frozen=True, slots=True)
class _History:
    """The turns of a request without its first message, for the next request of the same window.

    `marks` has an item per message: the numbers of turns and of call ids up to it, or None while a call is open. Turns
    before a mark do not change, whatever follows.
    """

    messages: tuple[Message, ...]
    turns: list[Turn]
    call_ids: list[str]
    marks: list[tuple[int, int] | None]

    def reusable(self, messages: tuple[Message, ...]) -> int:
        """Returns the number of messages at the head of `messages` whose turns can be reused."""
        count = 0
        for known, message in zip(self.messages, messages, strict=False):
            # An edited message is another object, and unequal under the same id.
            if known is not message and known != message:
                break
            count += 1
        while count and self.marks[count - 1] is None:
            count -= 1
        return count


def history_turns(request: LlmRequest, cache: RenderCache, form: HistoryForm = PLAIN) -> list[Turn]:
    """Returns the window as turns.

    Returns directly follow their calls, whatever came between them. A return without its call in the window is left
    out, and a call without its return gets one that says so, because no provider accepts either alone.
    """
    thinking_tools = _tools_with_thinking(request)
    head, messages = list[Turn](), request.messages
    if messages and messages[0].role is Role.SYSTEM:
        head, messages = [SystemTurn(_system_text(request))], messages[1:]
    if not messages:
        return head
    key = (
        messages[0].id,
        request.model.handle,
        dialect_of(request.model).type,
        request.time_zone,
        request.tool_return_char_limit,
        request.inner_thoughts,
        thinking_tools,
        request.is_verbatim,
        request.settings.plain_messages,
        form,
    )
    known: _History | None = cache.history(key)
    history = _extend(request, cache, form, known or _History((), [], [], []), messages, thinking_tools)
    cache.keep_history(key, history)
    return head + [_complete(turn) if isinstance(turn, ReturnsTurn) else turn for turn in history.turns]


def _extend(
    request: LlmRequest,
    cache: RenderCache,
    form: HistoryForm,
    known: _History,
    messages: tuple[Message, ...],
    thinking_tools: frozenset[str],
) -> _History:
    """Returns the history of `messages`: the known turns that they have in common, and new ones after them."""
    start = known.reusable(messages)
    turn_count, call_count = (known.marks[start - 1] if start else None) or (0, 0)
    turns, call_ids = known.turns[:turn_count], known.call_ids[:call_count]
    marks, used_ids = known.marks[:start], set(call_ids)
    open_calls: dict[str, tuple[str, ReturnsTurn]] = {}
    for message in messages[start:]:
        for ordinal, returned in enumerate(message.tool_returns):
            if (call := open_calls.pop(returned.tool_call_id, None)) is not None:
                text = _return_text(request, cache, message, ordinal, returned)
                is_error = returned.status is ToolStatus.ERROR
                images = () if is_error else _return_images(message, ordinal)
                call[1].returns.append(WireReturn(call[0], text, is_error, images))
        if message.role is Role.APPROVAL and all(call.id in open_calls for call in message.tool_calls):
            pass  # It repeats calls of an earlier message, or decides them.
        elif message.role is Role.ASSISTANT or message.tool_calls:
            calls = tuple(_wire_calls(request, cache, message, used_ids, thinking_tools))
            turns.append(AssistantTurn(message, calls, form.returns_parts(message, request)))
            if calls:
                returns_turn = ReturnsTurn(call_ids=tuple(call.id for call in calls))
                turns.append(returns_turn)
                call_ids += returns_turn.call_ids
                for stored, wire_call in zip(message.tool_calls, calls, strict=True):
                    open_calls[stored.id] = (wire_call.id, returns_turn)
        elif message.role in (Role.USER, Role.SUMMARY, Role.SYSTEM):
            turns.append(UserTurn(_user_text(request, cache, message), _images(message, message.content)))
        marks.append(None if open_calls else (len(turns), len(call_ids)))
    return _History(messages, turns, call_ids, marks)


def _complete(turn: ReturnsTurn) -> ReturnsTurn:
    """Returns a turn with a return of every call."""
    if len(turn.returns) == len(turn.call_ids):
        return turn
    returned = {each.call_id for each in turn.returns}
    missing = (WireReturn(call_id, NO_RETURN, is_error=True) for call_id in turn.call_ids if call_id not in returned)
    return ReturnsTurn([*turn.returns, *missing], turn.call_ids)


def arguments_object(arguments: str) -> dict[str, Any]:
    """Returns the arguments of a stored call as an object. Any other value becomes the value of "raw"."""
    try:
        decoded = json.loads(arguments or "{}")
    except ValueError:
        decoded = None
    return decoded if isinstance(decoded, dict) else {"raw": arguments}


def _system_text(request: LlmRequest) -> str:
    text = request.messages[0].text
    times = (message.created_at for message in reversed(request.messages) if message.is_from_user)
    if request.is_verbatim or not request.settings.plain_messages or (last := next(times, None)) is None:
        return text
    return f"{text}\n\n{time_of_last_message(last, request.time_zone)}"


def _user_text(request: LlmRequest, cache: RenderCache, message: Message) -> str:
    if request.is_verbatim:
        return message.text
    zone, is_plain = request.time_zone, bool(request.settings.plain_messages)

    def render() -> str:
        text = message.text
        if message.is_event:
            return text
        if message.role is Role.USER:
            package = plain_user_message if is_plain else package_user_message
            return package(text, message.created_at, zone, message.name)
        return system_alert(text, message.created_at, zone)

    # Storing the input of a turn changes other fields of it.
    source = (message.role, message.content, message.created_at, message.name, message.is_event)
    return cache.text(("user", message.id, zone, is_plain), source, render)


def _return_text(request: LlmRequest, cache: RenderCache, message: Message, ordinal: int, returned: ToolReturn) -> str:
    limit, zone, is_plain = request.tool_return_char_limit, request.time_zone, bool(request.settings.plain_messages)

    def render() -> str:
        text = returned.text
        if limit is not None and len(text) > limit:
            text = f"{text[:limit]}… [{len(text) - limit} more characters are left out of this request]"
        if is_plain:
            return plain_tool_return(returned.status, text)
        return package_tool_return(returned.status, text, message.created_at, zone)

    return cache.text(("return", message.id, ordinal, zone, limit, is_plain), message, render)


def _images(message: Message, content: tuple[ContentPart, ...], first: int = 0) -> tuple[WireImage, ...]:
    parts = (part for part in content if isinstance(part, ImagePart))
    return tuple(WireImage(part, message, ordinal) for ordinal, part in enumerate(parts, first))


def _return_images(message: Message, ordinal: int) -> tuple[WireImage, ...]:
    earlier = (part for returned in message.tool_returns[:ordinal] for part in returned.content)
    first = sum(isinstance(part, ImagePart) for part in (*message.content, *earlier))
    return _images(message, message.tool_returns[ordinal].content, first)


def _wire_calls(
    request: LlmRequest, cache: RenderCache, message: Message, used_ids: set[str], thinking_tools: frozenset[str]
) -> Iterator[WireCall]:
    id_format = dialect_of(request.model).call_ids
    # What its provider signed may name its own ids.
    is_own = message.model == request.model.handle
    for ordinal, call in enumerate(message.tool_calls):
        keeps_thinking = request.inner_thoughts or call.name in thinking_tools
        thoughts = _inner_thoughts(message) if request.inner_thoughts and ordinal == 0 else None
        arguments = cache.text(
            ("call", message.id, ordinal, keeps_thinking, thoughts is not None),
            message,
            lambda call=call, keeps_thinking=keeps_thinking, thoughts=thoughts: _arguments(
                call, keeps_thinking, thoughts
            ),  # type: ignore[misc]
        )
        wire_id = call.provider_id if is_own and call.provider_id else None
        if wire_id is None or wire_id in used_ids:  # Some providers give one id to many calls.
            wire_id = _unique_id(call.id, used_ids, id_format)
        used_ids.add(wire_id)
        yield WireCall(wire_id, _wire_name(call.name), arguments)


def _wire_name(name: str) -> str:
    """Returns the name of a call in the history. Providers refuse a whole request for a name that no tool can have."""
    return name if _NAME.fullmatch(name) else _NO_NAME.sub("_", name)[:_MAX_NAME] or "_"


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


def _tools_with_thinking(request: LlmRequest) -> frozenset[str]:
    """Returns the tools that have a "thinking" parameter of their own, which is not the one that mnemesh adds."""
    if request.inner_thoughts:
        return frozenset()
    return frozenset(tool.name for tool in request.tools if THINKING in (tool.parameters.get("properties") or ()))


def _unique_id(call_id: str, used_ids: set[str], id_format: CallIds) -> str:
    """Returns the id of a call in the request: its own if the vendor accepts it, otherwise one derived from it.

    Both depend only on the id and its number of occurrences in the window, so a call keeps its id from one request to
    the next.
    """
    wire, repetition = call_id if _is_valid_id(call_id, id_format) else _derived_id(call_id, id_format), 1
    while wire in used_ids:
        repetition += 1
        wire = _derived_id(f"{call_id}#{repetition}", id_format)
    used_ids.add(wire)
    return wire


def _is_valid_id(call_id: str, id_format: CallIds) -> bool:
    length, pattern = len(call_id), _ALPHANUMERIC if id_format.is_alphanumeric else _WORD
    has_valid_length = length == id_format.longest if id_format.is_exact else 0 < length <= id_format.longest
    return has_valid_length and pattern.fullmatch(call_id) is not None


def _derived_id(call_id: str, id_format: CallIds) -> str:
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest())
    characters = []
    for _ in range(min(id_format.longest, 24)):
        number, digit = divmod(number, len(_DIGITS))
        characters.append(_DIGITS[digit])
    text = "".join(characters)
    return text if id_format.is_alphanumeric or id_format.longest < 29 else f"call_{text}"
