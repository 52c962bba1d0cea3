"""Calls of models through the SDKs of their vendors, whose answers are made well-formed and bounded.

A step whose tools ran must be stored, so whatever cannot be stored is replaced or refused here, before a tool runs. The
bounds are those of recall's messages.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, Final

import structlog
from mnemesh_kit.errors import MnemeshError, typed_error
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.unicode import MAX_TEXT_BYTES, PieceJoiner, well_formed, well_formed_json, well_formed_value
from mnemesh_types.messages import (
    ContentPart,
    ImagePart,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
)
from mnemesh_types.usage import Usage
from msgspec import structs

from mnemesh_orchestrator.llm.assembly import MAX_ANSWER_BYTES, MAX_CALLS, StreamedAnswer
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderError
from mnemesh_orchestrator.llm.history import HistoryForm, HistoryForms
from mnemesh_orchestrator.llm.port import (
    DEFAULT_LIMITS,
    SHORT_SECONDS,
    AnsweredCall,
    AttemptBudget,
    CallLimits,
    LlmAnswer,
    LlmClient,
    LlmEvent,
    LlmRequest,
    ReasoningDelta,
    Sleep,
    TextDelta,
    ToolCallDelta,
)
from mnemesh_orchestrator.llm.schemas import with_own_arguments
from mnemesh_orchestrator.llm.settings import ProviderSettings
from mnemesh_orchestrator.llm.spans import recorded_events
from mnemesh_orchestrator.llm.transport import DONE, SdkClient, read_events, remove_environment, translate_error
from mnemesh_orchestrator.llm.wire import RenderCache, encode_body

_log = structlog.get_logger("mnemesh.llm")

UNNAMED: Final = "unnamed"
"""The name of a call that has none. No tool has it, so the model is told that there is no such tool."""
TOO_LONG: Final = "(The arguments had "
"""The beginning of the text in place of arguments that are too long."""
UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The exceptions of reading an answer that has another form than the API documents."""

_SHORT: Final[Any] = {"timeout": SHORT_SECONDS}
_MAX_NAME: Final = 512
_MAX_OPAQUE_BYTES: Final = 10 << 20
_MAX_TOKENS: Final = 10**12


async def model_events(
    client: LlmClient, request: LlmRequest, budget: AttemptBudget | None = None
) -> AsyncIterator[LlmEvent]:
    """Calls a model. Yields the events with well-formed texts; a character that is split between two deltas is kept.

    Raises:
        ProviderBadAnswer: the answer exceeds `MAX_CALLS` or `MAX_ANSWER_BYTES`.
        ProviderError: see `LlmClient.stream`.
    """
    text, reasoning, calls = PieceJoiner(), PieceJoiner(), dict[int, PieceJoiner]()
    events = recorded_events(client, request, budget)
    async with aclosing(events):  # type: ignore[type-var]
        async for event in events:
            match event:
                case TextDelta(piece):
                    yield TextDelta(text.add(piece))
                case ReasoningDelta(piece):
                    yield ReasoningDelta(reasoning.add(piece))
                case ToolCallDelta(index, name, arguments):
                    joiner = calls.setdefault(index, PieceJoiner())
                    yield ToolCallDelta(index, well_formed(name)[:_MAX_NAME], joiner.add(arguments))
                case _:
                    for rest in _rests(text, reasoning, calls):
                        yield rest
                    yield well_formed_answer(event, request.model.provider)


def well_formed_answer(answer: LlmAnswer, provider: str) -> LlmAnswer:
    """Returns an answer that can be stored: its texts are well-formed and bounded, and every call has a name.

    Args:
        answer: the answer as the provider gave it.
        provider: the provider's name, for errors.

    Raises:
        ProviderBadAnswer: the answer exceeds `MAX_CALLS` or `MAX_ANSWER_BYTES`.
    """
    if len(answer.tool_calls) > MAX_CALLS:
        raise _refused(answer, provider, f"{len(answer.tool_calls):,} tool calls", MAX_CALLS)
    try:
        content = tuple(part for given in answer.content if (part := _part(given)) is not None)
        calls = tuple(_call(call) for call in answer.tool_calls)
        size = sum(map(_size, content)) + sum(len(call.arguments) for call in calls)
    except UNREADABLE as error:
        raise unreadable(provider, error) from error
    if size > MAX_ANSWER_BYTES:
        raise _refused(answer, provider, f"{size:,} bytes", MAX_ANSWER_BYTES)
    return replace(
        answer,
        content=content,
        tool_calls=calls,
        usage=valid_usage(answer.usage),
        response_body=well_formed(answer.response_body),
    )


def _refused(answer: LlmAnswer, provider: str, size: str, limit: int) -> ProviderBadAnswer:
    error = ProviderBadAnswer(f"The model's answer has {size}; at most {limit:,} are accepted.", provider=provider)
    error.usage = valid_usage(answer.usage)
    return error


def unreadable(provider: str, error: Exception) -> ProviderBadAnswer:
    """Returns the error for an answer whose form no adapter expects, which caused one of the UNREADABLE exceptions."""
    _log.warning("provider_answer_unreadable", provider=provider, exc_info=error)
    return ProviderBadAnswer(f"{provider} returned an answer in an undocumented form.", provider=provider)


def _rests(text: PieceJoiner, reasoning: PieceJoiner, calls: dict[int, PieceJoiner]) -> Iterator[LlmEvent]:
    """Yields what the last deltas left over: halves of characters, whose other halves never came."""
    if rest := text.end():
        yield TextDelta(rest)
    if rest := reasoning.end():
        yield ReasoningDelta(rest)
    for index, joiner in calls.items():
        if rest := joiner.end():
            yield ToolCallDelta(index, "", rest)


def _part(part: ContentPart) -> ContentPart | None:
    """Returns a part that can be stored; None if nothing of it can."""
    match part:
        case TextPart(text, signature):
            return TextPart(well_formed(text, MAX_TEXT_BYTES), _opaque(signature))
        case ReasoningPart(text, is_native, signature):
            return ReasoningPart(well_formed(text, MAX_TEXT_BYTES), is_native, _opaque(signature))
        case RedactedReasoningPart(data):
            return part if _opaque(data) is not None else None
        case OmittedReasoningPart(signature):
            return OmittedReasoningPart(_opaque(signature))
        case SummarizedReasoningPart(id_, summaries, encrypted):
            if well_formed(id_) != id_ or len(id_) > _MAX_NAME:
                return ReasoningPart(well_formed("\n".join(summaries), MAX_TEXT_BYTES), is_native=True)
            texts = tuple(well_formed(summary, MAX_TEXT_BYTES) for summary in summaries)
            return SummarizedReasoningPart(id_, texts, _opaque(encrypted))
        case ImagePart():
            return None


def _opaque(text: object) -> str | None:
    """Returns a text that only the provider can read; None if it cannot be stored, because a changed one is invalid."""
    if not isinstance(text, str) or len(text) > _MAX_OPAQUE_BYTES or well_formed(text) != text:
        return None
    return text if text.isascii() or len(text.encode()) <= _MAX_OPAQUE_BYTES else None


def _call(call: AnsweredCall) -> AnsweredCall:
    name, provider_id = well_formed(str(call.name))[:_MAX_NAME], call.provider_id
    if provider_id is not None:
        provider_id = well_formed(str(provider_id))[:_MAX_NAME]
    return AnsweredCall(name if name.strip() else UNNAMED, _arguments(str(call.arguments)), provider_id)


def _arguments(text: str) -> str:
    """Returns the arguments of a call. Those that are too long become a text that says so, and no tool runs."""
    text = well_formed_json(text)
    size = len(text) if text.isascii() else len(text.encode())
    if size <= MAX_TEXT_BYTES:
        return text
    return f"{TOO_LONG}{size:,} bytes; at most {MAX_TEXT_BYTES:,} are accepted.)"


def valid_usage(usage: Usage) -> Usage:
    """Returns the token counts without those that are not counts."""
    counts = {name: getattr(usage, name) for name in Usage.__dataclass_fields__}
    return Usage(**{name: count if _is_count(count) else None for name, count in counts.items()})


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and 0 <= value <= _MAX_TOKENS)


def _size(part: ContentPart) -> int:
    return sum(
        len(text.encode())
        for value in structs.astuple(part)
        for text in (value if isinstance(value, tuple) else (value,))
        if isinstance(text, str)
    )


async def stream_answer(
    sdk_client: SdkClient, path: str, body: bytes, answer: StreamedAnswer, request: LlmRequest
) -> AsyncIterator[LlmEvent]:
    """Sends a request once. Yields the deltas of the answer as they arrive, and the whole answer at the end.

    Args:
        sdk_client: the client of the provider's SDK.
        path: the endpoint below the client's base URL.
        body: the body of the request.
        answer: an empty answer of the API that is called.
        request: the request that the body was rendered from.

    Raises:
        ProviderError: the call failed, before or after the first event. The error has the part that arrived.
    """
    provider = sdk_client.provider
    try:
        await async_failpoint("model.before_request", provider)
        response, is_done = await sdk_client.send(path, body), False
        received = read_events(sdk_client, response, answer)
        async with aclosing(response), aclosing(received) as events:
            async for event in events:
                if event is DONE:
                    is_done = True
                    continue
                for delta in _deltas(provider, answer, event):
                    yield delta
        for delta in answer.end(is_done=is_done):
            yield delta
        whole = _whole(provider, answer, request, body)
    except ProviderError as error:
        _add_partial_answer(error, answer)
        raise
    except sdk_client.errors as error:
        translated = translate_error(sdk_client.sdk, provider, error, sdk_client.secrets)
        _add_partial_answer(translated, answer)
        raise translated from error
    yield whole


def _deltas(provider: str, answer: StreamedAnswer, event: Any) -> list[LlmEvent]:
    try:
        return answer.add(event)
    except UNREADABLE as error:
        raise unreadable(provider, error) from error


def _whole(provider: str, answer: StreamedAnswer, request: LlmRequest, body: bytes) -> LlmAnswer:
    try:
        return LlmAnswer(
            content=answer.content,
            tool_calls=with_own_arguments(answer.tool_calls, request) if answer.tool_calls else (),
            finish_reason=answer.finish_reason,
            usage=answer.usage,
            carried=answer.carried,
            finish_word=answer.finish_word,
            request_body=body.decode(),
            response_body=json.dumps(answer.body, ensure_ascii=False),
        )
    except UNREADABLE as error:
        raise unreadable(provider, error) from error


def _add_partial_answer(error: ProviderError, answer: StreamedAnswer) -> None:
    """Adds to an error what arrived before it: the counted tokens, and the answer for the trace."""
    with suppress(*UNREADABLE):  # The pieces of a broken answer may not fit together.
        error.usage = valid_usage(answer.usage)
        if answer.content or answer.tool_calls or error.usage != Usage():
            error.response_body = well_formed(json.dumps(answer.body, ensure_ascii=False))


async def with_retries(
    attempt_call: Callable[[], AsyncIterator[LlmEvent]],
    limits: CallLimits,
    sleep: Sleep,
    secrets: tuple[str, ...],
    budget: AttemptBudget,
) -> AsyncIterator[LlmEvent]:
    """Yields the events of the first attempt that starts to answer.

    A rate limit, an overload or a broken connection is retried after the provider's Retry-After, or with exponential
    back-off and jitter, within the budget. After the first event an error is final here, because the consumer has seen
    a part of the answer. No error quotes any of the secrets.
    """
    budget.limits = limits
    while True:
        if budget.due:
            due, budget.due = budget.due, 0.0
            budget.waited += due
            await sleep(due)
        has_begun = False
        try:
            async with aclosing(attempt_call()) as events:  # type: ignore[type-var]
                async for event in events:
                    has_begun = True
                    yield event
            return
        except ProviderError as error:
            error.redact(secrets)
            if has_begun or not error.is_retryable or not budget.may_repeat(error):
                raise


class SdkModel(ABC):
    """An LlmClient for one endpoint. The first call imports the SDK of its vendor, which takes a second."""

    sdk: ClassVar[str]
    """The module of the SDK."""
    api_path: ClassVar[str]

    def __init__(
        self, settings: ProviderSettings, limits: CallLimits = DEFAULT_LIMITS, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.name = settings.name
        """The name of the provider, for messages."""
        self._settings = settings
        self._secrets = settings.secrets
        self._limits = limits
        self._sleep = sleep
        self._cache = RenderCache()
        self._forms = HistoryForms()
        self._opened: SdkClient | None = None

    @abstractmethod
    def _body(self, request: LlmRequest, cache: RenderCache, form: HistoryForm) -> dict[str, Any]:
        """Renders the request for the API, in a form of history."""

    @abstractmethod
    def _answer(self, provider: str) -> StreamedAnswer:
        """Creates an empty answer."""

    @abstractmethod
    def _open(self, sdk: Any, headers: dict[str, str], **options: Any) -> Any:
        """Returns a client of the SDK with these options, and the headers of the API in addition to these."""

    def render(self, request: LlmRequest) -> str:
        """Returns the request body as JSON text."""
        return self._encoded(request, self._forms.form(request)).decode()

    def stream(self, request: LlmRequest, budget: AttemptBudget | None = None) -> AsyncIterator[LlmEvent]:
        """Calls the model; see the port."""
        spent = budget or AttemptBudget()
        return with_retries(lambda: self._attempt(request, spent), self._limits, self._sleep, self._secrets, spent)

    def prepare(self) -> None:
        """Imports the SDK and opens the client, so that the first turn does not wait. May run in a thread."""
        _ = self.sdk_client

    @property
    def sdk_client(self) -> SdkClient:
        """The SDK's client with its HTTP client. It is opened on first use."""
        if self._opened is None:
            from mnemesh_orchestrator.llm.http_client import as_provider_errors, open_http_client

            settings, headers, sdk = self._settings, dict(self._settings.headers), import_module(self.sdk)
            http = open_http_client(settings, self._limits)
            with as_provider_errors(settings.name):
                client = self._open(
                    sdk,
                    headers,
                    api_key=settings.api_key or "none",  # A local server needs no key, but the SDK requires one.
                    base_url=settings.endpoint,
                    max_retries=0,  # with_retries retries: it has a budget and waits by the clock of the test.
                    http_client=http,
                )
            if settings.is_registered:
                remove_environment(client, headers)
            self._opened = SdkClient(sdk, client, http, settings)
        return self._opened

    async def get(self, path: str) -> Any:
        """Returns the decoded answer to a GET below the base URL, or at an absolute URL.

        Raises:
            ProviderError: the endpoint could not be called.
        """
        return await self._ask(self.sdk_client.client.get, path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Returns the decoded answer to a POST without streaming.

        Raises:
            ProviderError: the endpoint could not be called.
        """
        return await self._ask(self.sdk_client.client.post, path, body=body)

    async def _ask(self, method: Callable[..., Awaitable[Any]], path: str, **arguments: Any) -> Any:
        sdk = self.sdk_client.sdk
        try:
            return well_formed_value(await method(path, cast_to=object, options=_SHORT, **arguments))
        except (sdk.APIError, ValueError) as error:
            raise translate_error(sdk, self.name, error, self._secrets) from None

    async def close(self) -> None:
        """Closes the connection pool."""
        if self._opened is not None:
            await self._opened.client.close()
            self._opened = None

    def _encoded(self, request: LlmRequest, form: HistoryForm) -> bytes:
        return encode_body(self._body(request, self._cache, form))

    def _attempt(self, request: LlmRequest, budget: AttemptBudget) -> AsyncIterator[LlmEvent]:
        return self._forms.stream(
            request, lambda form: self._encoded(request, form), lambda body: self._send(request, body), budget
        )

    def _path(self, model: str) -> str:  # noqa: ARG002
        return self.api_path

    def _send(self, request: LlmRequest, body: bytes) -> AsyncIterator[LlmEvent]:
        path = self._path(request.model.provider_model)
        return stream_answer(self.sdk_client, path, body, self._answer(self.name), request)


class OpenAiModel(SdkModel):
    """A client of the openai SDK. A subclass chooses the API."""

    sdk = "openai"

    def _open(self, sdk: Any, headers: dict[str, str], **options: Any) -> Any:
        settings = self._settings
        if settings.type == "azure" and settings.api_key:
            headers.setdefault("api-key", settings.api_key)
        query = {"api-version": settings.api_version} if settings.api_version else None
        return sdk.AsyncOpenAI(default_headers=headers or None, default_query=query, **options)


def rendered(client: LlmClient, request: LlmRequest) -> str:
    """Returns the body of a request as JSON text; an empty object if it cannot be rendered."""
    try:
        return client.render(request)
    except MnemeshError:
        return "{}"


def failed_response(error: BaseException) -> str:
    """Returns what a trace shows in place of a response, as JSON text.

    `error` has the reason, the message and the metadata; `partial_response` is what arrived of the response, if any.
    """
    if isinstance(error, asyncio.CancelledError):
        return json.dumps({"error": {"reason": "CANCELLED", "message": "The call was cancelled.", "metadata": {}}})
    known = typed_error(error) if isinstance(error, Exception) else typed_error(Exception())
    document = json.dumps(
        {"error": {"reason": known.reason, "message": known.message, "metadata": known.metadata}}, ensure_ascii=False
    )
    partial = error.response_body if isinstance(error, ProviderError) else None
    return document if partial is None else f'{document[:-1]}, "partial_response": {partial}}}'
