"""OpenAI's Responses API, and every server that implements it."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

from mnemesh_types.messages import ContentPart, ReasoningPart, SummarizedReasoningPart, TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.assembly import (
    CallPart,
    Kind,
    Part,
    StreamedAnswer,
    count_of,
    finish_reason_of,
    object_of,
    objects_of,
)
from mnemesh_orchestrator.llm.calls import OpenAiModel
from mnemesh_orchestrator.llm.errors import error_from_response
from mnemesh_orchestrator.llm.history import PLAIN, HistoryForm, history_turns
from mnemesh_orchestrator.llm.openai_chat import reasons
from mnemesh_orchestrator.llm.port import FinishReason, LlmRequest, ReasoningDelta, ToolChoiceKind
from mnemesh_orchestrator.llm.schemas import response_schema, sendable_tool, strict_schema
from mnemesh_orchestrator.llm.settings import Api, Dialect, dialect_for
from mnemesh_orchestrator.llm.wire import (
    CALL,
    REASONING,
    TEXT,
    AssistantTurn,
    RenderCache,
    ReturnsTurn,
    SystemTurn,
    Turn,
    UserTurn,
    WireCall,
    WireImage,
    carried_list,
    carried_order,
    decode_carried,
    encode_carried,
    hidden_image,
    image_url,
    in_order,
    ordered_texts,
    other_fields,
    with_parameters,
    with_provider_options,
)
from mnemesh_orchestrator.model.models import ResponseFormat, ToolSchema

Item = dict[str, Any]

_PROTECTED: Final = frozenset({"instructions", "input", "stream", "store", "tools"})
PHASE: Final = "phase:"
"""The start of the signature of a text that the provider marked as commentary or final answer."""

_KINDS: Final = {"message": Kind.TEXT, "reasoning": Kind.REASONING, "function_call": Kind.CALL}
_TEXT_EVENTS: Final = {
    "response.output_text": ("message", "content", "text"),
    "response.refusal": ("message", "content", "refusal"),
    "response.reasoning_text": ("reasoning", "content", "text"),
    "response.reasoning_summary_text": ("reasoning", "summary", "text"),
    "response.function_call_arguments": ("function_call", "", "arguments"),
}
"""Events of pieces (.delta) and of whole texts (.done): the type of the item, its list of texts, the field of .done."""
_END_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_STREAMED: Final = frozenset({"content", "summary", "arguments"})
"""The fields of an item that are complete at its end."""
_HELD_OF_CALL: Final = frozenset({"type", "id", "call_id", "name", "arguments", "status"})
_TRACED_FIELDS: Final = frozenset({"id", "object", "model", "status", "incomplete_details", "usage"})

__all__ = ["OpenAiResponsesClient", "render_body"]


def render_body(request: LlmRequest, cache: RenderCache | None = None, form: HistoryForm = PLAIN) -> dict[str, Any]:
    """Returns the body that `stream` sends.

    Raises:
        ProviderOptionsInvalid: the agent's provider_options or response schema are not JSON.
    """
    cache = cache if cache is not None else RenderCache()
    dialect, settings = dialect_for(*request.model.vendor), request.settings
    history = history_turns(request, cache, form)
    body: dict[str, Any] = {"model": request.model.provider_model}
    if heads := [turn.text for turn in history if isinstance(turn, SystemTurn)]:
        body["instructions"] = heads[0]
    body["input"] = [item for turn in history for item in _items(turn, cache)]
    if request.tools:
        is_strict = bool(settings.strict_tool_schemas) and dialect.strict_tools
        key = (dialect.type, is_strict)
        body["tools"] = [
            cache.tool(tool, key, lambda tool: _tool(sendable_tool(tool, dialect), is_strict)) for tool in request.tools
        ]
        body["tool_choice"] = _tool_choice(request, dialect)
        if dialect.parallel_flag:
            body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format.kind != "text":
        body["text"] = {"format": _format(request.response_format)}
    body.update(_sampling(request))
    body["store"] = False
    body["stream"] = True
    with_parameters(body, request.parameters, {"service_tier": "service_tier"})
    return with_provider_options(body, settings.provider_options, _PROTECTED)


def _sampling(request: LlmRequest) -> dict[str, Any]:
    settings, is_reasoning = request.settings, reasons(request.model)
    thinks = is_reasoning or bool(settings.enable_reasoner)
    reasoning = {
        "effort": settings.reasoning_effort,
        # Some organizations must be verified before they may request summaries, so they are requested on demand only.
        "summary": "auto" if settings.enable_reasoner else None,
    }
    reasoning = {key: value for key, value in reasoning.items() if value is not None}
    sampling = {
        "max_output_tokens": settings.max_output_tokens,
        "temperature": None if is_reasoning else settings.temperature,
        "top_p": None if is_reasoning else settings.top_p,
        "reasoning": reasoning if thinks and reasoning else None,
        "include": ["reasoning.encrypted_content"] if thinks else None,
    }
    return {key: value for key, value in sampling.items() if value is not None}


def _items(turn: Turn, cache: RenderCache) -> Iterator[Item]:
    match turn:
        case SystemTurn():
            return
        case UserTurn():
            yield {"role": "user", "content": _with_images(turn.text, turn.images, cache)}
        case AssistantTurn():
            yield from _assistant(turn)
        case ReturnsTurn():
            for returned in turn.returns:
                output = _with_images(returned.text, returned.images, cache)
                yield {"type": "function_call_output", "call_id": returned.call_id, "output": output}


def _assistant(turn: AssistantTurn) -> Iterator[Item]:
    """Yields the items of a message of the model, those of its provider in their own order."""
    order = carried_list(decode_carried(turn.message, Api.RESPONSES), "order") if turn.is_own else []
    texts = ordered_texts(order, turn.message.content)
    reasoning = [part for part in turn.message.content if isinstance(part, SummarizedReasoningPart) and turn.is_own]
    items: list[Item] = []
    for kind, part, fields in in_order(order, texts, reasoning, turn.calls):
        match kind:
            case "text":
                items.append(_text_item(part, is_own=turn.is_own))
            case "reasoning" if part.encrypted_content is not None:
                items.append(_reasoning_item(part))
            case "call":
                items.append(_call_item(part, fields))
            case None:
                items.append(dict(fields))
    for item, following in zip(items, [*items[1:], None], strict=False):
        # The API refuses reasoning without the output that followed it.
        if item.get("type") != "reasoning" or following is not None:
            yield item


def _call_item(call: WireCall, fields: Mapping[str, Any]) -> Item:
    return {**fields, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _reasoning_item(part: SummarizedReasoningPart) -> Item:
    summary = [{"type": "summary_text", "text": text} for text in part.summaries]
    return {"type": "reasoning", "id": part.id, "summary": summary, "encrypted_content": part.encrypted_content}


def _text_item(part: TextPart, *, is_own: bool) -> Item:
    item: Item = {"role": "assistant", "content": part.text}
    if is_own and part.signature is not None and part.signature.startswith(PHASE):
        item["phase"] = part.signature.removeprefix(PHASE)
    return item


def _with_images(text: str, images: tuple[WireImage, ...], cache: RenderCache) -> str | list[Item]:
    if not images:
        return text
    return [{"type": "input_text", "text": text}, *(_image(image, cache) for image in images)]


def _image(image: WireImage, cache: RenderCache) -> Item:
    url = image_url(image, cache)
    if url is None:
        return {"type": "input_text", "text": hidden_image(image)}
    return {"type": "input_image", "image_url": url, "detail": image.part.detail or "auto"}


def _tool(tool: ToolSchema, is_strict: bool) -> Item:
    strict = strict_schema(tool.parameters) if is_strict else None
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters if strict is None else strict,
        "strict": strict is not None,  # An omitted value means true here.
    }


def _tool_choice(request: LlmRequest, dialect: Dialect) -> str | Item:
    choice = request.tool_choice
    if choice.kind is ToolChoiceKind.NAMED and dialect.named_choice:
        return {"type": "function", "name": choice.name}
    return "auto" if choice.kind is ToolChoiceKind.AUTO else dialect.required_choice


def _format(response_format: ResponseFormat) -> Item:
    if response_format.kind != "json_schema":
        return {"type": response_format.kind}
    schema: Item = {
        "type": "json_schema",
        "name": response_format.name or "answer",
        "schema": response_schema(response_format),
    }
    if response_format.strict is not None:
        schema["strict"] = response_format.strict
    return schema


class ResponsesAnswer(StreamedAnswer):
    """A response in progress. Each item of its output is a part, whose fields are the item in its latest form."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._items: dict[Hashable, Part] = {}
        self._response: Mapping[str, Any] | None = None

    @property
    def carried(self) -> str | None:
        """The order of the items, and those that are not a text, encrypted reasoning or a call."""
        return encode_carried(Api.RESPONSES, {"order": carried_order(self._ordered())})

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the model stopped."""
        if (self._response or {}).get("status") == "incomplete":
            found = finish_reason_of(self.finish_word)
            return FinishReason.LENGTH if found is FinishReason.STOP else found
        return FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP

    @property
    def finish_word(self) -> str | None:
        """The reason of an incomplete response, or the status, as the server sent them."""
        response = self._response or {}
        word = object_of(response.get("incomplete_details")).get("reason") or response.get("status")
        return word if isinstance(word, str) else None

    @property
    def usage(self) -> Usage:
        """The token counts of the provider. Missing counts stay None."""
        usage = object_of((self._response or {}).get("usage"))
        read, written = object_of(usage.get("input_tokens_details")), object_of(usage.get("output_tokens_details"))
        return Usage(
            prompt_tokens=count_of(usage.get("input_tokens")),
            completion_tokens=count_of(usage.get("output_tokens")),
            total_tokens=count_of(usage.get("total_tokens")),
            cached_input_tokens=count_of(read.get("cached_tokens")),
            cache_write_tokens=count_of(read.get("cache_write_tokens")),
            reasoning_tokens=count_of(written.get("reasoning_tokens")),
        )

    @property
    def body(self) -> dict[str, Any]:
        """The answer as a call without streaming would have returned it, for the trace."""
        head = {key: value for key, value in (self._response or {}).items() if key in _TRACED_FIELDS}
        return {**head, "output": [self._item(part) for part in self._parts]}

    def _read(self, event: Any) -> None:
        match event:
            case {"type": "error"}:
                raise error_from_response(self._provider, None, event)
            case {"type": str(kind), "response": Mapping() as response} if kind in _END_EVENTS:
                self._end_response(response)
            case {
                "type": "response.output_item.added" | "response.output_item.done" as kind,
                "item": Mapping() as item,
            }:
                self._take_item(_place(event), item, is_done=kind.endswith("done"))
            case {"type": str(kind)} if (known := _TEXT_EVENTS.get(kind.rpartition(".")[0])) is not None:
                self._extend(*known, event, is_done=kind.endswith(".done"))
            case {"object": "response", "output": list()}:
                self._end_response(event)
            case {"type": str()}:
                pass  # created, in_progress, the ends of parts and texts, and future events of the API.
            case _:
                self._has_unknown = True

    @property
    def is_finished(self) -> bool:
        """Whether the provider said why the model stopped."""
        return self._response is not None

    def _end_response(self, response: Mapping[str, Any]) -> None:
        """Takes what the whole response has that was not streamed. Items are compared by their order in each type."""
        if response.get("status") in ("failed", "cancelled") or response.get("error"):
            raise error_from_response(self._provider, None, {"error": response.get("error") or {}})
        self._response = response
        streamed: dict[object, list[Part]] = {}
        for part in self._parts:
            streamed.setdefault(part.fields.get("type"), []).append(part)
        for item in objects_of(response.get("output")):
            rest = streamed.get(item.get("type"))
            if rest:
                self._complete(rest.pop(0), item)
            else:
                self._complete(self._new_item(None, item), item)

    def _take_item(self, place: Hashable, item: Mapping[str, Any], *, is_done: bool) -> None:
        """Takes the start or the final form of an item. Some servers number all items alike."""
        part = self._items.get(place)
        if part is None or not _is_same(part, item, is_done=is_done):
            part = self._new_item(place, item)
        if is_done:
            self._complete(part, item)
            part.is_closed = True
        else:
            part.fields = {**part.fields, **{key: value for key, value in item.items() if key not in _STREAMED}}
        if isinstance(part, CallPart) and part.provider_id is not None:
            self._calls_by_id[part.provider_id] = part

    def _new_item(self, place: Hashable, item: Mapping[str, Any]) -> Part:
        fields, kind = {"type": item.get("type")}, _KINDS.get(str(item.get("type")), Kind.OPAQUE)
        if kind is Kind.CALL:
            id_, arguments = item.get("call_id"), item.get("arguments")
            given = (
                str(id_) if id_ else None,
                str(item.get("name") or ""),
                arguments if isinstance(arguments, str) else "",
            )
            part: Part = self._add_whole_call(("item", len(self._parts)), *given)
            part.fields = fields
        else:
            part = self._open(kind, fields)
        if place is not None:
            self._items[place] = part
        return part

    def _complete(self, part: Part, item: Mapping[str, Any]) -> None:
        """Takes the final form of an item, which replaces its pieces. What was not streamed is sent now."""
        part.fields = dict(item)
        if isinstance(part, CallPart):
            part.provider_id = part.provider_id or str(item.get("call_id") or "") or None
            arguments = item.get("arguments")
            self._finish_call(part, str(item.get("name") or ""), arguments if isinstance(arguments, str) else "")
        elif not part.has_begun and part.kind is not Kind.OPAQUE:
            for field in ("summary", "content"):
                for number, row in enumerate(objects_of(item.get(field))):
                    self._add_piece(part, field, number, str(row.get("text") or row.get("refusal") or ""))

    def _finish_call(self, call: CallPart, name: str, arguments: str) -> None:
        self._extend_name(call, name)
        self._extend_arguments(call, "" if call.arguments.length else arguments, may_announce=True)

    def _extend(self, type_: str, field: str, whole: str, event: Mapping[str, Any], *, is_done: bool) -> None:
        """Takes a piece of an item, or the whole text of which no piece came."""
        piece, place = event.get(whole if is_done else "delta"), _place(event)
        if not isinstance(piece, str):
            return
        part = self._items.get(place)
        if part is None or part.fields.get("type") != type_:
            part = self._new_item(place, {"type": type_})
        number = event.get("summary_index" if field == "summary" else "content_index")
        number = number if isinstance(number, int) else 0
        if isinstance(part, CallPart):
            if not (is_done and part.arguments.length):
                self._extend_arguments(part, piece, may_announce=True)
        elif not (is_done and (field, number) in part.texts):
            self._add_piece(part, field, number, piece)

    def _add_piece(self, part: Part, field: str, number: int, piece: str) -> None:
        if field == "summary" and number > 0 and piece and (field, number) not in part.texts:
            self._events.append(ReasoningDelta("\n"))
        self._add_text(part, piece, (field, number))

    def _arguments_of(self, call: CallPart) -> str:
        final = call.fields.get("arguments")
        # Some servers stream the arguments, and end with an empty object.
        return final if isinstance(final, str) and final.strip() not in ("", "{}") else str(call.arguments)

    def _item(self, part: Part) -> dict[str, Any]:
        """Returns an item in the form of a response that is not streamed."""
        if isinstance(part, CallPart):
            call = {"call_id": part.provider_id, "name": part.name, "arguments": self._arguments_of(part)}
            return {**part.fields, **call}
        types = {"summary": "summary_text", "content": "output_text" if part.kind is Kind.TEXT else "reasoning_text"}
        texts = {
            field: [{"type": type_, "text": text} for text in _streamed(part, field)] for field, type_ in types.items()
        }
        return {**{field: rows for field, rows in texts.items() if rows}, **part.fields}

    def _ordered(self) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
        for part in self._parts:
            parts = self._content_of(part)
            if isinstance(part, CallPart):
                if part in self._ordered_calls():
                    yield CALL, other_fields(part.fields, _HELD_OF_CALL)
            elif part.kind is Kind.TEXT:
                yield from ((TEXT, {}) for _ in parts)
            elif part.kind is Kind.REASONING:
                is_plain = any(isinstance(found, ReasoningPart) for found in parts)
                yield from ((None, self._item(part)) if is_plain else (REASONING, {}) for _ in parts)
            else:
                yield None, part.fields

    def _content_of(self, part: Part) -> tuple[ContentPart, ...]:
        match part.kind:
            case Kind.TEXT:
                phase = part.fields.get("phase")
                signature = f"{PHASE}{phase}" if isinstance(phase, str) else None
                final = _texts(part.fields, "content") if part.thoughts is None else []
                texts = final or _streamed(part, "content")
                return tuple(TextPart(text, signature) for text in texts if text)
            case Kind.REASONING:
                return _reasoning(part)
            case _:
                return ()


def _reasoning(part: Part) -> tuple[ContentPart, ...]:
    plain_text = "".join(_texts(part.fields, "content")) or "".join(_streamed(part, "content"))
    if plain_text:  # Open-weight models return their reasoning as text.
        return (ReasoningPart(plain_text, is_native=True),)
    summaries = tuple(_texts(part.fields, "summary")) or tuple(_streamed(part, "summary"))
    encrypted = part.fields.get("encrypted_content")
    if not (summaries or encrypted):
        return ()
    return (SummarizedReasoningPart(str(part.fields.get("id") or ""), summaries, encrypted or None),)


def _texts(item: Mapping[str, Any], field: str) -> list[str]:
    # A refusal is text of the model, which the user reads.
    return [str(row.get("text") or row.get("refusal") or "") for row in objects_of(item.get(field))]


def _streamed(part: Part, field: str) -> list[str]:
    slots = sorted(key for key in part.texts if isinstance(key, tuple) and key[0] == field)
    return [str(part.texts[key]) for key in slots]


def _place(event: Mapping[str, Any]) -> Hashable:
    """Returns what identifies the item of an event."""
    index = event.get("output_index")
    if isinstance(index, int):
        return index
    return str(event.get("item_id") or object_of(event.get("item")).get("id") or "")


def _is_same(part: Part, item: Mapping[str, Any], *, is_done: bool) -> bool:
    """Returns whether an item is the one of a part with the same place."""
    if part.fields.get("type") != item.get("type"):
        return False
    key = "call_id" if isinstance(part, CallPart) else "id"
    known, given = part.fields.get(key), item.get(key)
    if part.is_closed:
        return known == given is not None
    # The end of a call is that of the open one. Some servers give it another id than its start.
    return is_done or not isinstance(part, CallPart) or not (known and given) or known == given


class OpenAiResponsesClient(OpenAiModel):
    """A client of the Responses API."""

    api_path = "/responses"

    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        return render_body(request, cache, form)

    def _answer(self, provider: str) -> StreamedAnswer:
        return ResponsesAnswer(provider)
