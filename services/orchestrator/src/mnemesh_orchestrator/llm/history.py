"""The history that every provider receives: packaged texts, and calls with unique ids, each followed by its returns.

It is independent of the API. A renderer only converts these turns to the form of its provider.
"""

import hashlib
import json
import re
import string
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from mnemesh_types.messages import (
    ContentPart,
    ImagePart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

from mnemesh_orchestrator.llm.errors import ProviderError, ProviderRefused, ProviderUnavailable
from mnemesh_orchestrator.llm.port import MAX_OTHER_FORMS, AttemptBudget, LlmEvent, LlmRequest
from mnemesh_orchestrator.llm.settings import Api, CallIds, dialect_for
from mnemesh_orchestrator.llm.wire import (
    AssistantTurn,
    RenderCache,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireCall,
    WireImage,
    WireReturn,
    carried_names,
)
from mnemesh_orchestrator.prompt.assembly import (
    package_tool_return,
    package_user_message,
    plain_tool_return,
    plain_user_message,
    system_alert,
    time_of_last_message,
)

_log = structlog.get_logger("mnemesh.llm")

_MAX_MODELS: Final = 1_000
_MAX_REFUSED: Final = 100_000

_ROLES: Final = re.compile(
    r"(?i)\broles?\b|alternat(?:e|ing|ion)\b|message_order|consecutive (?:user|assistant|message)|no user query found"
    r"|last message|(?:message|conversation|chat)s?\b.{0,60}\b(?:start|begin|end)s? with|jinja|chat template"
    r"|tool_calls?.{0,60}(?:must be followed|did not have response)|preceding.{0,40}tool_calls|single tool[- ]calls?\b"
)
_SYSTEM: Final = re.compile(
    r"(?i)system (?:role|message|prompt|instruction)s?\b.{0,60}\b(?:not |un)(?:support|allow|permit|enabled|available)"
    r"|not (?:support|allow)\w*.{0,40}\bsystem\b|developer instruction is not enabled"
)
_PRIVATE: Final = re.compile(r"(?i)reasoning|thinking|thought|signature|encrypted|redacted|\bitem with id\b")
_SIGNED_CALLS: Final = re.compile(r"(?i)thought[ _]?signature")
_LONE_CALLS: Final = re.compile(r"(?i)either content or tool_?calls\b.{0,20}\bnot both")
_IMAGES: Final = re.compile(r"(?i)\bimages?\b|image_url|multi-?modal|\bvision\b")
_NO_IMAGES: Final = re.compile(
    r"(?i)\bimages?\b.{0,40}(?:not support|unsupported)|(?:not support|unsupported|missing).{0,40}\bimages?\b"
)
_DEMAND: Final = re.compile(
    r"(?i)must be (?:passed|provided|included|sent|returned|set|present|non)|\bmissing\b|\brequired\b"
    r"|must (?:includ|contain|have)"
    r"|cannot be (?:empty|null|blank)|\brequires\b|should be (?:passed|provided|included|present)|passed back"
)
_UNKNOWN_FIELD: Final = re.compile(
    r"(?i)extra|unsupported|not supported|unknown|unrecogni[sz]ed|not permitted|not allowed"
    r"|additional propert|unexpected"
)
_WORDS: Final = re.compile(r"\w+")

THINKING: Final = "thinking"
# Some APIs require a user message at the start and end, or an assistant message between a return and a user message.
OPENING: Final = "[The conversation that is in view begins here.]"
CLOSING: Final = "[Please go on.]"
BRIDGE: Final = "[The tools have returned.]"
_HIDDEN_IMAGE: Final = "[An image that the provider refused is not shown.]"
_CALL: Final = "[I called the tool {name} with {arguments}]"
_RETURN: Final = "[The tool returned: {text}]"
NO_RETURN: Final = "[The result of this call is not in view.]"
_WORD = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_NAME: Final = 64
_NAME = re.compile(rf"[\w-]{{1,{_MAX_NAME}}}")
_NO_NAME = re.compile(r"[^\w-]+")
_ALPHANUMERIC = re.compile(r"[a-zA-Z0-9]+")
_DIGITS: Final = string.digits + string.ascii_letters


@dataclass(frozen=True, slots=True)
class HistoryForm:
    """A form of the history that a model receives.

    `strict_roles`: user and assistant alternate, and a message has one call. `has_system` is false if the system
    message is a part of the first user message. `calls_as_text`: calls and returns are text. `reasoning` is the text
    of `reasoning_content`, or the thinking, of messages that have none; None adds no such field. `signs_calls`: calls
    without a signature get the value that Gemini documents for them. `has_carried` is false if private parts are left
    out. `left_out` are the names of fields that the server does not know. `lone_calls`: a message with calls has no
    text. `refused` are the ids of messages whose private parts it refused, `as_text` of those whose calls it did, and
    `blind` of those whose images it did.
    """

    strict_roles: bool = False
    has_system: bool = True
    calls_as_text: bool = False
    reasoning: str | None = None
    signs_calls: bool = False
    has_carried: bool = True
    left_out: frozenset[str] = frozenset()
    lone_calls: bool = False
    refused: frozenset[str] = frozenset()
    as_text: frozenset[str] = frozenset()
    blind: frozenset[str] = frozenset()

    @property
    def of_model(self) -> "HistoryForm":
        """This form without what concerns single messages."""
        return replace(self, refused=frozenset(), as_text=frozenset(), blind=frozenset())

    def shows_as_text(self, message: Message) -> bool:
        """Returns whether the calls of a message, and their returns, are text."""
        return self.calls_as_text or message.id in self.as_text

    def returns_parts(self, message: Message, request: LlmRequest) -> bool:
        """Returns whether the model that is called wrote a message and gets its private parts back."""
        is_own = message.model == request.model.handle
        return is_own and self.has_carried and message.id not in self.refused


_BY_MESSAGE: Final = ("refused", "as_text", "blind")
PLAIN: Final = HistoryForm()


class HistoryForms:
    """The forms that the models of one provider accept. They are learned again after a restart."""

    def __init__(self) -> None:
        self._forms: OrderedDict[str, HistoryForm] = OrderedDict()
        self._refused: OrderedDict[str, frozenset[str]] = OrderedDict()

    def form(self, request: LlmRequest) -> HistoryForm:
        """Returns the form in which a request is sent first."""
        form = self._forms.get(request.model.provider_model, PLAIN)
        if not self._refused:
            return form
        known = {each.id: self._refused[each.id] for each in request.messages if each.id in self._refused}
        refused, as_text, blind = (frozenset(id_ for id_, of in known.items() if name in of) for name in _BY_MESSAGE)
        return replace(form, refused=refused, as_text=as_text, blind=blind) if known else form

    async def stream(
        self,
        request: LlmRequest,
        render: Callable[[HistoryForm], bytes],
        send: Callable[[bytes], AsyncIterator[LlmEvent]],
        budget: AttemptBudget,
    ) -> AsyncIterator[LlmEvent]:
        """Yields the events of an answer. A request that is refused for its history is sent again in other forms.

        Args:
            render: returns its body in a form.
            send: sends a body once.
            budget: the requests in other forms that the step may still send.

        Raises:
            ProviderError: the call failed, or the history is refused in every form.
        """
        form = self.form(request)
        body, refusals = render(form), list[ProviderError]()
        while True:
            has_begun = False
            try:
                async with aclosing(send(body)) as events:  # type: ignore[type-var]
                    async for event in events:
                        if not has_begun and refusals:
                            self._keep(request, form, refusals[0])
                        has_begun = True
                        yield event
                return
            except ProviderError as error:
                refusals.append(error)
                if has_begun or budget.forms >= MAX_OTHER_FORMS:
                    raise
                following = _following(form, body, request, error, render)
                if following is None:
                    # After a guess that failed, the first refusal says more.
                    raise (error if _says_what(refusals[0]) else refusals[0]) from None
                form, body = following
                budget.forms += 1

    def _keep(self, request: LlmRequest, form: HistoryForm, refusal: ProviderError) -> None:
        model = request.model.provider_model
        _log.warning("history_form_changed", model=request.model.handle, refusal=refusal.message)
        self._forms[model] = form.of_model
        self._forms.move_to_end(model)
        for name in _BY_MESSAGE:
            for id_ in getattr(form, name):
                self._refused[id_] = self._refused.get(id_, frozenset()) | {name}
        while len(self._forms) > _MAX_MODELS:
            self._forms.popitem(last=False)
        while len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)


def _says_what(error: ProviderError) -> bool:
    return any(words.search(error.message) for words in (_ROLES, _SYSTEM, _PRIVATE))


def _following(
    form: HistoryForm, body: bytes, request: LlmRequest, error: ProviderError, render: Callable[[HistoryForm], bytes]
) -> tuple[HistoryForm, bytes] | None:
    """Returns the next form after a refusal, with its body; None if no other form changes the request."""
    for candidate in _candidates(form, request, error):
        if candidate != form and (other := render(candidate)) != body:
            return candidate, other
    return None


def _candidates(form: HistoryForm, request: LlmRequest, error: ProviderError) -> list[HistoryForm]:
    text = error.message
    # Some servers report the exception of a template as an error of their own.
    is_exception = isinstance(error, ProviderUnavailable) and error.status in (None, 500)
    if type(error) is not ProviderRefused and not is_exception:
        return []
    if _SYSTEM.search(text):
        return [replace(form, has_system=False), *_role_forms(form)]
    if _LONE_CALLS.search(text) and not form.lone_calls:
        return [replace(form, lone_calls=True)]
    images = [message.id for message in request.messages if _has_images(message)]
    if images and (_NO_IMAGES if is_exception else _IMAGES).search(text):
        return [replace(form, blind=form.blind | set(ids)) for ids in (images[:-1], images)]
    own = [message for message in request.messages if form.returns_parts(message, request) and _has_private(message)]
    bare = replace(form, refused=form.refused | {message.id for message in own})
    calls = frozenset(message.id for message in request.messages if message.tool_calls)
    last_resort = replace(bare, as_text=form.as_text | calls, blind=form.blind | set(images))
    names = {name for message in own for name in carried_names(message)} & set(_WORDS.findall(text))
    if _PRIVATE.search(text) or names:
        is_demand = "passed back" in text if request.model.api == Api.MESSAGES else _DEMAND.search(text) is not None
        forms = _private_forms(form, own, names, text, is_demand)
        return [*forms, *(_role_forms(form) if _ROLES.search(text) else [last_resort])]
    if _ROLES.search(text):
        return _role_forms(form)
    if type(error) is not ProviderRefused or error.status not in (None, 400, 422):
        return []
    # The server does not say what it refuses.
    return [replace(bare, strict_roles=True), last_resort]


def _role_forms(form: HistoryForm) -> list[HistoryForm]:
    strict = replace(form, strict_roles=True)
    without_system = replace(strict, has_system=False)
    return [strict, without_system, replace(without_system, calls_as_text=True)]


def _private_forms(
    form: HistoryForm, own: list[Message], names: set[str], text: str, is_demand: bool
) -> list[HistoryForm]:
    """Returns the forms after a refusal that names private parts, the one that keeps most of them first."""
    forms = []
    is_unknown_field = _UNKNOWN_FIELD.search(text) is not None
    is_of_calls = _SIGNED_CALLS.search(text) is not None
    # A server that misses the signature of thinking gets no such thinking.
    if is_demand and not is_unknown_field and (is_of_calls or "signature" not in text):
        if is_of_calls:
            forms.append(replace(form, signs_calls=True))
        # A server that requires the field may refuse an empty one.
        demanded = "" if form.reasoning is None else " "
        forms.append(replace(form, reasoning=demanded, left_out=frozenset(), has_carried=True))
    if names and is_unknown_field:
        forms.append(replace(form, left_out=form.left_out | names))
    if is_unknown_field and form.reasoning is not None:
        forms.append(replace(form, reasoning=None))
    # Once the older parts of this window were refused and the newer ones are refused as well, none is accepted.
    if is_unknown_field or form.refused:
        forms.append(replace(form, has_carried=False))
    forms.append(replace(form, refused=form.refused | {message.id for message in own}))
    return forms


def _has_private(message: Message) -> bool:
    """Returns whether a message has parts that only its model may receive."""
    if message.role is not Role.ASSISTANT:
        return False
    return message.carried is not None or any(_is_private(part) for part in message.content)


def _has_images(message: Message) -> bool:
    parts = (*message.content, *(part for returned in message.tool_returns for part in returned.content))
    return any(isinstance(part, ImagePart) for part in parts)


def _is_private(part: object) -> bool:
    match part:
        case ReasoningPart(is_native=True) | RedactedReasoningPart() | SummarizedReasoningPart():
            return True
        case OmittedReasoningPart(signature) | TextPart(signature=signature):
            return signature is not None
    return False


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
        dialect_for(*request.model.vendor).type,
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
    turns = [_complete(turn) if isinstance(turn, ReturnsTurn) else turn for turn in history.turns]
    return head + (list(_with_text(turns, form)) if form.calls_as_text or form.as_text or form.blind else turns)


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


def _with_text(turns: list[Turn], form: HistoryForm) -> Iterator[Turn]:
    """Yields the turns with text in place of the calls, returns and images that the form shows so."""
    is_text = False
    for turn in turns:
        match turn:
            case AssistantTurn(message, calls) if calls and (is_text := form.shows_as_text(message)):
                lines = (_CALL.format(name=call.name, arguments=call.arguments) for call in calls)
                text = TextPart("\n\n".join(line for line in (message.text, *lines) if line))
                yield AssistantTurn(replace(message, content=(text,), carried=None), (), is_own=False)
            case ReturnsTurn(returns, call_ids):
                shown = [replace(one, **_shown(one.text, one.images, form)) for one in returns]
                images = tuple(image for one in shown for image in one.images)
                text_of_all = "\n\n".join(_RETURN.format(text=one.text) for one in shown)
                yield UserTurn(text_of_all, images) if is_text else ReturnsTurn(shown, call_ids)
            case UserTurn(text, images) if images:
                yield UserTurn(**_shown(text, images, form))
            case _:
                yield turn


def _shown(text: str, images: tuple[WireImage, ...], form: HistoryForm) -> dict[str, Any]:
    kept = tuple(image for image in images if image.source.id not in form.blind)
    notes = [_HIDDEN_IMAGE] * (len(images) - len(kept))
    return {"text": "\n".join((text, *notes)), "images": kept}


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
    id_format = dialect_for(*request.model.vendor).call_ids
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
