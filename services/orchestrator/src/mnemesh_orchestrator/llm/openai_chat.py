"""OpenAI chat completions, and every server that implements them: the request, and the assembly of the answer."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from mnemesh_types.messages import ContentPart, ReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.assembly import (
    CallPart,
    Kind,
    Part,
    StreamedAnswer,
    count_of,
    finish_reason_of,
    is_interruption,
    object_of,
    objects_of,
)
from mnemesh_orchestrator.llm.calls import OpenAiModel
from mnemesh_orchestrator.llm.errors import ProviderUnavailable, error_from_response
from mnemesh_orchestrator.llm.history import BRIDGE, CLOSING, OPENING, PLAIN, HistoryForm, history_turns
from mnemesh_orchestrator.llm.port import FinishReason, LlmEvent, LlmRequest, ToolChoiceKind
from mnemesh_orchestrator.llm.schemas import response_schema, sendable_tool, strict_schema
from mnemesh_orchestrator.llm.settings import Api, Dialect, dialect_for
from mnemesh_orchestrator.llm.wire import (
    AssistantTurn,
    MergedFields,
    RenderCache,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireImage,
    carried_list,
    decode_carried,
    encode_carried,
    hidden_image,
    image_url,
    with_parameters,
    with_provider_options,
)
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema

REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""The fields in which servers send the text of their reasoning."""
# The stored message has the others. A refusal is part of its text.
_HELD_OF_MESSAGE: Final = frozenset({*REASONING_FIELDS, "role", "content", "refusal", "tool_calls", "function_call"})
_HELD_OF_CALL: Final = frozenset({"id", "type", "index", "function"})
_HELD_OF_FUNCTION: Final = frozenset({"name", "arguments"})

_FIELDS = frozenset({"choices", "usage", "id", "object"})
"""The fields of which a completion has one at least."""
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_THOUGHTS = frozenset({"thinking", "reasoning"})
"""The types of content parts that are reasoning."""


class ChatCarried:
    """The carried parts of a message in progress."""

    def __init__(self) -> None:
        self._reasoning: dict[str, None] = {}
        self._fields = MergedFields()
        self._content = MergedFields()
        self._whole: dict[str, Any] = {}

    def add(self, message: Mapping[str, Any], *, is_whole: bool) -> None:
        """Adds the delta of a message, or the whole message of an answer that is not streamed."""
        # DeepSeek requires a field that it sent, though it was empty.
        self._reasoning |= {name: None for name in REASONING_FIELDS if isinstance(message.get(name), str)}
        fields = {name: value for name, value in message.items() if name not in _HELD_OF_MESSAGE}
        if is_whole:
            self._whole = {name: value for name, value in fields.items() if value}
        elif fields:
            self._fields.add(fields)
        self._add_content(message.get("content"))

    def encoded(self, calls: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns the carried parts as text for the message, with the other fields of its calls, in their order."""
        content = self._content.value.get("content")
        if content and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            content = None
        fields = {**self._fields.value, **self._whole, **({"content": content} if content else {})}
        return encode_carried(
            Api.CHAT,
            {"reasoning": list(self._reasoning), "fields": fields, "calls": list(calls) if any(calls) else []},
        )

    def _add_content(self, content: object) -> None:
        """Adds content in typed parts, such as Mistral's thinking. Text that follows them is one of the parts."""
        if isinstance(content, list):
            self._content.add({"content": content})
        elif isinstance(content, str) and content and self._content.has_fields:
            self._content.add({"content": [{"type": "text", "text": content}]})


def call_fields(piece: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a call that the stored call does not hold, such as Gemini's signature of thoughts."""
    fields = {name: value for name, value in piece.items() if name not in _HELD_OF_CALL}
    function = piece.get("function")
    if isinstance(function, Mapping):
        others = {name: value for name, value in function.items() if name not in _HELD_OF_FUNCTION}
        if others:
            fields["function"] = others
    return fields


class ChatAnswer(StreamedAnswer):
    """A chat completion in progress."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._finish: str | None = None
        self._choice = 0
        self._has_choices = False
        self._has_chunks = False
        self._has_deltas = False
        self._is_legacy: bool | None = None
        self._id: object = None
        self._model: object = None
        self._usage: Mapping[str, Any] | None = None
        self._carried = ChatCarried()
        self._others: defaultdict[CallPart, MergedFields] = defaultdict(MergedFields)

    def end(self, *, is_done: bool) -> list[LlmEvent]:
        """Ends the answer; see the base class."""
        if is_interruption(self._finish):
            raise ProviderUnavailable(f"{self._provider} ended in the middle of its answer.", provider=self._provider)
        return super().end(is_done=is_done)

    @property
    def carried(self) -> str | None:
        """The other parts of the provider's message, for its next request."""
        return self._carried.encoded([self._others[call].value for call in self._ordered_calls()])

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped. Servers report "stop" for forced calls too, so calls take precedence."""
        finish = finish_reason_of(self._finish)
        return FinishReason.TOOL_CALLS if finish is FinishReason.STOP and self._calls else finish

    @property
    def finish_word(self) -> str | None:
        """The finish reason as the server sent it."""
        return self._finish

    @property
    def usage(self) -> Usage:
        """The token counts of the provider. Missing counts stay None."""
        usage = self._usage or {}
        prompt, completion = (
            object_of(usage.get("prompt_tokens_details")),
            object_of(usage.get("completion_tokens_details")),
        )
        cached = prompt.get("cached_tokens", usage.get("cached_tokens"))  # Moonshot and SGLang have no details.
        return Usage(
            prompt_tokens=count_of(usage.get("prompt_tokens")),
            completion_tokens=count_of(usage.get("completion_tokens")),
            total_tokens=count_of(usage.get("total_tokens")),
            cached_input_tokens=count_of(usage.get("prompt_cache_hit_tokens") if cached is None else cached),
            cache_write_tokens=count_of(prompt.get("cache_write_tokens")),
            reasoning_tokens=count_of(completion.get("reasoning_tokens", usage.get("reasoning_tokens"))),
        )

    @property
    def body(self) -> dict[str, Any]:
        """The answer as a call without streaming would have returned it, for the trace."""
        texts = {
            kind: "".join(part.wire_text for part in self._parts if part.kind is kind)
            for kind in (Kind.TEXT, Kind.REASONING)
            if any(part.kind is kind for part in self._parts)
        }
        message: dict[str, Any] = {"role": "assistant", "content": texts.get(Kind.TEXT)}
        if Kind.REASONING in texts:
            message["reasoning_content"] = texts[Kind.REASONING]
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call.provider_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": str(call.arguments)},
                }
                for call in self._calls
            ]
        choices = [{"index": 0, "message": message, "finish_reason": self._finish}] if self._has_choices else []
        return {"id": self._id, "model": self._model, "choices": choices, "usage": self._usage}

    def _read(self, event: Any) -> None:
        if not isinstance(event, dict) or _FIELDS.isdisjoint(event):
            self._has_unknown = True
            return
        self._has_chunks = True
        self._id = self._id or event.get("id")
        self._model = self._model or event.get("model")
        choice = self._only_choice(objects_of(event.get("choices")))
        # Groq and Moonshot have places of their own for usage.
        for place in (event, choice or {}, object_of(event.get("x_groq"))):
            if isinstance(usage := place.get("usage"), dict) and (not self._usage or any(map(usage.get, _COUNTS))):
                self._usage = usage
                break
        if choice is not None:
            self._read_choice(choice)

    def _only_choice(self, choices: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Returns the piece of the one choice that is read, if a server sends several: the first."""
        for choice in sorted(choices, key=lambda row: _index(row) or 0) if len(choices) > 1 else choices:
            if not self._has_choices:
                self._has_choices, self._choice = True, _index(choice) or 0
            if (_index(choice) or 0) == self._choice:
                return choice
        return None

    def _read_choice(self, choice: Mapping[str, Any]) -> None:
        if error := choice.get("error"):
            raise error_from_response(self._provider, None, {"error": error})
        delta = object_of(choice.get("delta"))
        is_whole = not delta and isinstance(choice.get("message"), dict)
        message = object_of(choice.get("message")) if is_whole else delta
        if is_whole and self._has_deltas:
            message = self._missing(message)  # Some servers repeat the whole message behind its pieces.
        self._has_deltas = self._has_deltas or bool(delta)
        self._carried.add(message, is_whole=is_whole)
        self._read_text(message)
        self._read_calls(message, is_whole=is_whole)
        finish = choice.get("finish_reason")
        if not isinstance(finish, str) or finish.lower() in ("null", "none"):  # Some servers write null as a text.
            finish = None
        self._finish = finish or self._finish or ("stop" if is_whole else None)

    def _missing(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the fields of a whole message whose pieces have not arrived."""
        kinds = {part.kind for part in self._parts}
        known = {"content", "refusal"} if Kind.TEXT in kinds else set[str]()
        known |= set(REASONING_FIELDS) if Kind.REASONING in kinds else set()
        known |= {"tool_calls", "function_call"} if Kind.CALL in kinds else set()
        return {name: value for name, value in message.items() if name not in known}

    def _read_text(self, message: Mapping[str, Any]) -> None:
        self._say(Kind.REASONING, _text_of(message.get("reasoning_content")) or _text_of(message.get("reasoning")))
        content = message.get("content")
        if isinstance(content, list):
            for part in objects_of(content):
                is_thought = part.get("type") in _THOUGHTS
                text = part.get("thinking") if is_thought else part.get("text")
                self._say(Kind.REASONING if is_thought else Kind.TEXT, _text_of(text) or _text_of(part.get("text")))
        else:
            self._say(Kind.TEXT, _text_of(content))
        self._say(Kind.TEXT, _text_of(message.get("refusal")))  # A refusal is text of the model, which the user reads.

    def _say(self, kind: Kind, piece: str) -> None:
        if piece:
            is_same = bool(self._parts) and self._parts[-1].kind is kind
            self._add_text(self._parts[-1] if is_same else self._open(kind), piece)

    def _read_calls(self, message: Mapping[str, Any], *, is_whole: bool) -> None:
        given, legacy = message.get("tool_calls"), message.get("function_call")
        pieces = objects_of([given] if isinstance(given, dict) else given)
        if not pieces and isinstance(legacy, dict):
            pieces = [{"index": 0, "function": legacy}]
            is_legacy = True
        else:
            is_legacy = False
        if pieces and self._is_legacy is None:
            self._is_legacy = is_legacy
        if is_legacy != self._is_legacy:
            return  # Some servers send a call in both forms.
        for position, piece in enumerate(pieces):
            function = object_of(piece.get("function")) or piece  # Some servers send the fields of the function bare.
            # Pieces without an index are told apart by their places if there are several.
            index = _index(piece)
            place = ("place", position) if index is None and len(pieces) > 1 else index
            fields = _id(piece), _name(function), _arguments(function.get("arguments"))
            call = self._add_whole_call(place, *fields) if is_whole else self._add_call(place, *fields)
            if others := call_fields(piece):
                self._others[call].add(others)

    @property
    def is_finished(self) -> bool:
        """Whether the provider said why the model stopped."""
        return self._finish is not None

    @property
    def _may_be_empty(self) -> bool:
        return self._has_chunks and not self._has_choices

    def _content_of(self, part: Part) -> tuple[ContentPart, ...]:
        match part.kind:
            case Kind.TEXT:
                return (TextPart(part.text),) if part.text else ()
            case Kind.REASONING:
                return (ReasoningPart(part.text, is_native=True),)
            case _:
                return ()


def _id(piece: Mapping[str, Any]) -> str | None:
    given = piece.get("id")
    return str(given) if given not in (None, "") else None


def _name(function: Mapping[str, Any]) -> str:
    name = function.get("name")
    return name if isinstance(name, str) else ""


def _arguments(value: object) -> str:
    """Returns the arguments as text. Some servers send an object, or an empty list for none."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value or {}, ensure_ascii=False)


def _index(row: Mapping[str, Any]) -> int | None:
    index = row.get("index")
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _text_of(value: object) -> str:
    """Returns text, either plain or joined from typed parts."""
    if isinstance(value, str):
        return value
    return "".join(text for part in objects_of(value) if isinstance(text := part.get("text"), str)) if value else ""


Message = dict[str, Any]

# The loop depends on these fields, so no provider option may change them.
_PROTECTED = frozenset({"messages", "stream", "tools"})
_REASONS = re.compile(r"^(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat))")
_REFUSES_PARALLEL_FLAG = re.compile(r"^o\d")
_OFFICIAL: Final = frozenset({"openai", "azure"})
_SAMPLERS: Final = frozenset({"openrouter", "together"})
"""Vendors that take parameters of samplers that OpenAI does not have. So do local servers."""
_PARAMETERS: Final = ("seed", "stop", "frequency_penalty", "presence_penalty")
_SERVICE: Final = ("service_tier", "verbosity")
_RETURNED_IMAGES: Final = "[Images that the tool call {call} returned:]"
# No carried field replaces one that is rendered.
_HELD: Final = frozenset({"role", "tool_calls", *REASONING_FIELDS})
# Gemini documents this value for calls that it did not make.
_NO_SIGNATURE: Final = "skip_thought_signature_validator"

__all__ = ["OpenAiChatClient", "render_body"]


def render_body(request: LlmRequest, cache: RenderCache | None = None, form: HistoryForm = PLAIN) -> dict[str, Any]:
    """Returns the body that `stream` sends, in the dialect of the model's vendor and a form of history.

    Raises:
        ProviderOptionsInvalid: the agent's provider_options or response schema are not JSON.
    """
    cache = cache if cache is not None else RenderCache()
    dialect = dialect_for(*request.model.vendor)
    body: dict[str, Any] = {"model": request.model.provider_model}
    body["messages"] = _messages(history_turns(request, cache, form), cache, dialect, form)
    if request.tools:
        is_strict = bool(request.settings.strict_tool_schemas) and dialect.strict_tools
        key = (dialect.type, is_strict)
        body["tools"] = [
            cache.tool(tool, key, lambda tool: _tool(sendable_tool(tool, dialect), is_strict)) for tool in request.tools
        ]
        body["tool_choice"] = _tool_choice(request, dialect)
        if dialect.parallel_flag and not _is_official(request.model, _REFUSES_PARALLEL_FLAG):
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format.kind != "text":
        body["response_format"] = _response_format(request.response_format, dialect)
    body.update(_sampling(request, dialect))
    body["stream"] = True
    if dialect.stream_usage:
        body["stream_options"] = {"include_usage": True}
    with_parameters(body, request.parameters, _parameters(request.model, dialect))
    return with_provider_options(body, request.settings.provider_options, _PROTECTED)


def reasons(model: ModelInfo) -> bool:
    """Returns whether this is one of OpenAI's reasoning models, which refuse a temperature."""
    return _is_official(model, _REASONS)


def _is_official(model: ModelInfo, names: re.Pattern[str]) -> bool:
    return dialect_for(*model.vendor).type in _OFFICIAL and names.match(model.provider_model) is not None


def _parameters(model: ModelInfo, dialect: Dialect) -> dict[str, str]:
    """Returns the names of the parameters of a run that the vendor takes."""
    if reasons(model):
        return {name: name for name in _SERVICE}
    names = {name: name for name in _PARAMETERS}
    if dialect.type in _OFFICIAL:
        names |= {name: name for name in ("logit_bias", *_SERVICE)}
    if dialect.is_local or dialect.type in _SAMPLERS:
        names |= {name: name for name in ("logit_bias", "top_k", "min_p", "repetition_penalty")}
    if dialect.type == "mistral":
        names["seed"] = "random_seed"
    return names


def _sampling(request: LlmRequest, dialect: Dialect) -> dict[str, Any]:
    settings, is_reasoning = request.settings, reasons(request.model)
    takes_effort = is_reasoning or dialect.type not in _OFFICIAL
    sampling: dict[str, Any] = {
        dialect.limit.value: settings.max_output_tokens,
        # OpenAI's reasoning models refuse both, and its other models refuse an effort.
        "temperature": None if is_reasoning else settings.temperature,
        "top_p": None if is_reasoning else settings.top_p,
        "reasoning_effort": settings.reasoning_effort if takes_effort else None,
    }
    if dialect.thinking_switch and settings.enable_reasoner is not None:
        sampling["thinking"] = {"type": "enabled" if settings.enable_reasoner else "disabled"}
    return {key: value for key, value in sampling.items() if value is not None}


def _messages(history: Sequence[Turn], cache: RenderCache, dialect: Dialect, form: HistoryForm) -> list[Message]:
    """Returns the turns with roles in an order that servers accept.

    Neighbours of one role are one message, the first is the user's, and so is the last unless it is a tool's. A message
    that is appended changes the last one at most, so that a provider's cache of the others stays valid.
    """
    messages: list[Message] = []
    needs_bridge = form.strict_roles or not dialect.user_after_tool
    last = ""
    for message in _single_messages(history, cache, dialect, form):
        role = message["role"]
        if role == last and role != "tool":
            messages[-1] = _joined(messages[-1], message)
            continue
        if last == "tool" and role == "user" and needs_bridge:
            messages.append({"role": "assistant", "content": BRIDGE})
        elif last in ("", "system") and role == "assistant":
            messages.append({"role": "user", "content": OPENING})
        messages.append(message)
        last = role
    if last in ("assistant", "system", ""):
        messages.append({"role": "user", "content": CLOSING if last == "assistant" else OPENING})
    required = "" if form.reasoning is None and dialect.returns_reasoning else form.reasoning
    return messages if required is None else [_with_reasoning(message, required) for message in messages]


def _with_reasoning(message: Message, required: str) -> Message:
    """Returns a message of a server that requires the reasoning of every answer."""
    name = REASONING_FIELDS[0]
    return message if message["role"] != "assistant" or message.get(name) else {**message, name: required}


def _single_messages(history: Sequence[Turn], cache: RenderCache, dialect: Dialect, form: HistoryForm) -> list[Message]:
    """Returns the messages of each turn. Strict servers get one call per message, each followed by its return."""
    shared = form.of_model
    key = dialect.type if shared == PLAIN else f"{dialect.type} {shared}"  # the hash of a text is computed once
    found: list[Message] = []
    assistant: Message | None = None
    for turn in history:
        messages = _turn_messages(turn, cache, dialect, form, key)
        if assistant is not None:
            messages, assistant = _one_by_one(assistant, messages), None
        elif form.strict_roles and isinstance(turn, AssistantTurn) and len(turn.calls) > 1:
            (assistant,) = messages  # The turn of its returns follows.
            continue
        found += messages
    return found


def _one_by_one(assistant: Message, returns: list[Message]) -> list[Message]:
    of_call = {message["tool_call_id"]: message for message in returns if message["role"] == "tool"}
    messages: list[Message] = []
    for call in assistant["tool_calls"]:
        first = {"role": "assistant", "content": None} if messages else assistant
        messages += ({**first, "tool_calls": [call]}, of_call[call["id"]])
    return messages + [message for message in returns if message["role"] != "tool"]


def _joined(first: Message, second: Message) -> Message:
    """Returns two messages of one role as one. No call of the first is without its return."""
    joined = {**first, **second}
    for name in {*first} & {*second} - {"role", "tool_calls"}:
        one, other = first[name], second[name]
        if not one or not other:
            joined[name] = one or other
        elif isinstance(one, str) and isinstance(other, str):
            joined[name] = f"{one}\n\n{other}"
        elif name == "content":
            joined[name] = [*_content_parts(one), *_content_parts(other)]
        elif isinstance(one, list) and isinstance(other, list):
            joined[name] = [*one, *other]
    return joined


def _content_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else content


def _turn_messages(turn: Turn, cache: RenderCache, dialect: Dialect, form: HistoryForm, key: str) -> list[Message]:
    if isinstance(turn, SystemTurn):
        return [{"role": "system" if form.has_system else "user", "content": turn.text}]
    if key in turn.rendered:
        return turn.rendered[key]
    messages = _rendered(turn, cache, dialect, form)
    if not _has_images(turn):  # The cache bounds the memory of images.
        turn.rendered[key] = messages
    return messages


def _rendered(
    turn: UserTurn | AssistantTurn | ReturnsTurn, cache: RenderCache, dialect: Dialect, form: HistoryForm
) -> list[Message]:
    match turn:
        case UserTurn():
            return [{"role": "user", "content": _user_content(turn, cache)}]
        case AssistantTurn():
            message = _assistant(turn, dialect, form)
            return [message] if message.get("content") or turn.calls else []  # Servers refuse a message without both.
        case ReturnsTurn():
            return list(_returns(turn, cache))


def _has_images(turn: UserTurn | AssistantTurn | ReturnsTurn) -> bool:
    match turn:
        case UserTurn():
            return bool(turn.images)
        case AssistantTurn():
            return False
        case ReturnsTurn():
            return any(returned.images for returned in turn.returns)


def _assistant(turn: AssistantTurn, dialect: Dialect, form: HistoryForm) -> Message:
    carried = decode_carried(turn.message, Api.CHAT) if turn.is_own else {}
    text = None if form.lone_calls and turn.calls else turn.message.text
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    names = [name for name in REASONING_FIELDS if name in carried_list(carried, "reasoning")]
    if not names and (form.reasoning is not None or dialect.returns_reasoning):
        names = [REASONING_FIELDS[0]]
    message.update(dict.fromkeys(names, _reasoning(turn)))
    if isinstance(fields := carried.get("fields"), dict):
        message.update({name: value for name, value in fields.items() if name not in _HELD})
    if turn.calls:
        is_signed = dialect.signs_calls or form.signs_calls
        message["tool_calls"] = list(_calls(turn, carried_list(carried, "calls"), form, is_signed=is_signed))
    return {name: value for name, value in message.items() if name not in form.left_out}


def _reasoning(turn: AssistantTurn) -> str:
    parts = (part for part in turn.message.content if isinstance(part, ReasoningPart) and part.is_native)
    return "".join(part.text for part in parts) if turn.is_own else ""


def _calls(turn: AssistantTurn, others: Sequence[object], form: HistoryForm, *, is_signed: bool) -> Iterator[Message]:
    """Returns the calls of a message, with the fields that the provider added to each."""
    has_signature = any(others)
    for ordinal, call in enumerate(turn.calls):
        function: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
        wire: dict[str, Any] = {"id": call.id, "type": "function", "function": function}
        fields = others[ordinal] if ordinal < len(others) else None
        if isinstance(fields, dict):
            if isinstance(extra := fields.get("function"), dict):
                wire["function"] = {**extra, **function}
            wire = {**{name: value for name, value in fields.items() if name not in form.left_out}, **wire}
        elif is_signed and not has_signature and ordinal == 0:  # The other calls of an answer have no signature.
            wire["extra_content"] = {"google": {"thought_signature": _NO_SIGNATURE}}
        yield wire


def _user_content(turn: UserTurn, cache: RenderCache) -> str | list[dict[str, Any]]:
    if not turn.images:
        return turn.text
    return [_text(turn.text), *(_image(image, cache) for image in turn.images)]


def _returns(turn: ReturnsTurn, cache: RenderCache) -> Iterator[dict[str, Any]]:
    """Returns the messages of returns. The API accepts images in messages of users only, which follow them."""
    for returned in turn.returns:
        yield {"role": "tool", "tool_call_id": returned.call_id, "content": returned.text}
    shown: list[dict[str, Any]] = []
    for returned in turn.returns:
        if returned.images:
            shown.append(_text(_RETURNED_IMAGES.format(call=returned.call_id)))
            shown += [_image(image, cache) for image in returned.images]
    if shown:
        yield {"role": "user", "content": shown}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: WireImage, cache: RenderCache) -> dict[str, Any]:
    url, detail = image_url(image, cache), image.part.detail
    if url is None:
        return _text(hidden_image(image))
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}


def _tool(tool: ToolSchema, is_strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    strict = strict_schema(tool.parameters) if is_strict else None
    function["parameters"] = tool.parameters if strict is None else strict
    if strict is not None:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(request: LlmRequest, dialect: Dialect) -> str | dict[str, Any]:
    choice = request.tool_choice
    if choice.kind is ToolChoiceKind.NAMED and dialect.named_choice:
        return {"type": "function", "function": {"name": choice.name}}
    # A named tool is the only one offered, so "any tool" has the same meaning.
    return "auto" if choice.kind is ToolChoiceKind.AUTO else dialect.required_choice


def _response_format(response_format: ResponseFormat, dialect: Dialect) -> dict[str, Any]:
    if response_format.kind != "json_schema" or not dialect.json_schema:
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": response_format.name or "answer", "schema": response_schema(response_format)}
    if response_format.strict is not None:
        schema["strict"] = response_format.strict
    return {"type": "json_schema", "json_schema": schema}


class OpenAiChatClient(OpenAiModel):
    """A client of chat completions."""

    api_path = "/chat/completions"

    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        return render_body(request, cache, form)

    def _path(self, model: str) -> str:
        """Returns the path of a call. Azure's dated API has the deployment in it."""
        is_dated = self._settings.type == "azure" and self._settings.api_version is not None
        return f"/deployments/{quote(model, safe='')}{self.api_path}" if is_dated else self.api_path

    def _answer(self, provider: str) -> StreamedAnswer:
        return ChatAnswer(provider)
