"""Reads answers through the SDK of a provider, and converts its errors.

Both SDKs come from one generator: their clients and errors have the same names and forms. A call sends a body of bytes
with the URL, the headers and the credentials of the SDK's client. The methods of the client compute URL and headers for
every call, and its typed `create` converts the whole window, which costs more CPU than the rest of a step. Its stream
leaves generators open, which the event loop closes in tasks, and its decoders of events refuse bytes that are not UTF-8
and have no bounds.
"""

import asyncio
import json
import re
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from io import IncrementalNewlineDecoder
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from mnemesh_kit.failpoints import async_failpoint

from mnemesh_orchestrator.llm.assembly import StreamedAnswer, is_interruption
from mnemesh_orchestrator.llm.errors import (
    ProviderBadAnswer,
    ProviderError,
    error_from_response,
    quote,
)
from mnemesh_orchestrator.llm.settings import ProviderSettings

if TYPE_CHECKING:
    import httpx2

    from mnemesh_orchestrator.llm.http_client import ProviderHttpClient, Target

MAX_EVENT_BYTES: Final = 16 << 20
"""The largest number of bytes of an event, and of a body that is not a stream."""

_Utf8: Final = getincrementaldecoder("utf-8-sig")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_log = structlog.get_logger("mnemesh.llm")
_MAX_TARGETS: Final = 64
_REST_SECONDS: Final = 0.1
_FINISHED_SECONDS: Final = 5.0
"""The time for what follows a complete answer: its usage, and the end of the stream."""
_SLICE_SECONDS: Final = 0.002
"""The time for which a fast stream keeps other coroutines waiting, and for which it waits then."""
_MAX_BLANK_BYTES: Final = 64 << 10
_STREAM_LINE: Final = re.compile(rb":|data|event|id|retry|error")
_KEEPALIVE_NAMES: Final = frozenset({"ping", "keepalive", "keep-alive", "heartbeat"})
_KEEPALIVE: Final = re.compile(r"(?i)\W*(?:ping|pong|keep[-_ ]?alive|heart[-_ ]?beat|processing|waiting)?\W*")
_ANSWER_KEYS: Final = frozenset({"choices", "output", "content", "candidates", "response", "delta", "item", "usage"})
DONE: Final = object()
"""The event that ends a stream of OpenAI's form."""


class EventTooLong(Exception):
    """An event has more than MAX_EVENT_BYTES."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An event. `name` is "" if the stream does not name it; the lines of its data are joined by line breaks."""

    name: str
    data: str


class EventStreamParser:
    """Parses a stream that arrives in pieces, which may end anywhere.

    Comments, `id`, `retry` and unknown fields are skipped, and so are events without data. Bytes that are not UTF-8
    become U+FFFD. The work for a piece depends on the size of the piece only.
    """

    def __init__(self) -> None:
        self._decoder = IncrementalNewlineDecoder(_Utf8("replace"), translate=True)
        self._line: list[str] = []
        self._length = 0
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes, *, is_last: bool = False) -> Iterator[ServerEvent]:
        """Yields the events that a piece completes. An event that ends with a lone CR may wait for the next piece.

        Raises:
            EventTooLong: an event is too long.
        """
        *ends, rest = self._decoder.decode(piece, is_last).split("\n")
        for end in ends:
            self._extend_line(end)
            if (event := self._end_line()) is not None:
                yield event
        self._extend_line(rest)

    def end(self) -> ServerEvent | None:
        """Returns the event that no blank line ended; None if there is none. The standard drops it.

        Some servers close a stream after the last line. The data of such an event may be incomplete.
        """
        whole = list(self.feed(b"\n\n", is_last=True))
        return whole[0] if whole else None

    def _extend_line(self, text: str) -> None:
        self._line.append(text)
        self._length += len(text)
        if self._length > MAX_EVENT_BYTES:
            raise EventTooLong

    def _end_line(self) -> ServerEvent | None:
        line = "".join(self._line)
        self._line.clear()
        field, _, value = line.partition(":")
        if field in ("data", "error"):  # Older releases of llama.cpp send errors as a field of their own.
            self._name = "error" if field == "error" else self._name
            self._data.append(value.removeprefix(" "))
            return None
        self._length -= len(line)
        if field == "event":
            self._name = value.removeprefix(" ")
        if line:
            return None
        event = ServerEvent(self._name, "\n".join(self._data)) if any(self._data) else None
        self._name, self._data, self._length = "", [], 0
        return event


class SdkClient:
    """The client of an SDK, and the HTTP client that it was created with."""

    def __init__(self, sdk: ModuleType, client: Any, http: "ProviderHttpClient", settings: ProviderSettings) -> None:
        """Keeps the client. Its URL, headers and credentials must not change after the first request."""
        import httpx2  # This is the transport of the SDKs. It is loaded with them, not before.

        self.sdk = sdk
        self.client = client
        self.provider = settings.name
        self.secrets = settings.secrets
        """The values that no error may quote."""
        self.errors = (TimeoutError, httpx2.HTTPError, ValueError, RecursionError)
        """The exceptions of a call and of reading its answer; see `translate_error`."""
        self._http = http
        self._targets: dict[str, Target] = {}

    async def send(self, path: str, body: bytes) -> "httpx2.Response":
        """Posts a body of JSON to a path below the base URL. The body of the response is still to be read."""
        return await self._http.post_stream(self._target(path), body)

    def contents(self, event: ServerEvent, headers: Mapping[str, str]) -> Iterator[Any]:
        """Yields the decoded content of an event: none for one that keeps the connection open, DONE for the last one.

        Raises:
            ProviderError: the event is an error, or is not JSON.
        """
        data = event.data.strip()
        # Some proxies send the comments of a stream as data.
        if event.name in _KEEPALIVE_NAMES or data.startswith(":") or (len(data) < 40 and _KEEPALIVE.fullmatch(data)):
            return
        if event.name == "error":
            self.refuse_errors(_decoded(data.encode()), headers, event.name)
        try:
            documents = _documents(data)
        except ValueError:
            raise self._not_json(data) from None
        for document in documents:
            self.refuse_errors(document, headers, event.name or None)
            yield document

    def refuse_errors(self, document: Any, headers: Mapping[str, str], event: str | None = None) -> None:
        """Raises ProviderError if a document of a good response reports an error. It quotes none of the secrets."""
        report = report_in_answer(document, event)
        if report is not None:
            raise error_from_response(self.provider, None, _redacted(report, self.secrets), headers)

    def whole_body(self, body: bytes, headers: Mapping[str, str]) -> Any:
        """Returns the decoded body of a server that does not stream.

        Raises:
            ProviderError: the body is an error, or is not JSON.
        """
        text = body.decode("utf-8-sig", errors="replace")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise self._not_json(text) from None
        self.refuse_errors(document, headers)
        return document

    def no_answer(self, body: bytes) -> ProviderBadAnswer:
        """Returns the error for a good response whose body is empty, or a text that is neither JSON nor a stream."""
        text = body.decode("utf-8-sig", errors="replace")
        if text.strip():
            return self._not_json(text)
        return ProviderBadAnswer(f"{self.provider} returned an empty answer.", provider=self.provider)

    def _not_json(self, text: str) -> ProviderBadAnswer:
        message = f"{self.provider} answered with something that is not JSON: {quote(text[:1000])}"
        return ProviderBadAnswer(message, provider=self.provider).redact(self.secrets)

    def _target(self, path: str) -> "Target":
        """Returns the URL of a path, with the headers of the client."""
        import httpx2

        known = self._targets.get(path)
        if known is None:
            client, headers = self.client, httpx2.Headers()
            for name, value in (*client.auth_headers.items(), *client.default_headers.items()):
                if isinstance(value, str):  # an omitted header has a marker
                    headers[name] = value
            headers["Content-Type"] = "application/json"
            url = f"{str(client.base_url).rstrip('/')}{path}"
            known = self._http.target(url, headers, client.default_query or None)
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            self._targets[path] = known
        return known


async def read_events(
    sdk_client: SdkClient, response: "httpx2.Response", answer: StreamedAnswer
) -> AsyncGenerator[Any]:
    """Yields the decoded events of an answer, or the one body of a server that does not stream.

    DONE is the last event if the provider marked the end. The first byte decides whether the body is a stream, because
    the content types of some servers are wrong.

    Args:
        sdk_client: the client that sent the request.
        response: the response, whose body is still to be read.
        answer: the answer to which the caller adds the events. Once it is finished, a connection that breaks, or stays
            open without another event, is its end.

    Raises:
        ProviderError: the status is not a success, an event or the body is an error, or the body is a page for people.
    """
    provider, headers = sdk_client.provider, response.headers
    if not response.is_success:
        content = _redacted(_decoded(await response.aread()), sdk_client.secrets)
        raise error_from_response(provider, response.status_code, content, headers)
    await async_failpoint("model.response_started", provider)
    if headers.get("content-type", "").partition(";")[0].strip().lower() == "text/html":
        raise ProviderBadAnswer(f"{provider} returned an HTML page.", provider=provider)
    # The HTTP client has decompressed the stream, so it needs no decoders of the response.
    pieces = cast("AsyncGenerator[bytes]", aiter(cast("httpx2.AsyncByteStream", response.stream)))
    async with aclosing(pieces):
        head = await _head(pieces)
        opening = head.lstrip().removeprefix(_BYTE_ORDER_MARK).lstrip()[:5]
        if opening[:1] in (b"{", b"["):
            yield sdk_client.whole_body(await _join(head, pieces, provider), headers)
            return
        is_empty = not _STREAM_LINE.match(opening)
        async with aclosing(_events(head, pieces, provider, answer)) as events:
            async for event in events:
                try:
                    documents = list(sdk_client.contents(event, headers))
                except ProviderError as error:
                    if not answer.is_finished or is_interruption(answer.finish_word):
                        raise
                    # The answer is whole, whatever the server reports behind it.
                    _log.info("error_behind_the_answer", error=error.message)
                    return
                for document in documents:
                    if document is DONE:
                        await _read_rest(pieces)
                        yield DONE
                        return
                    is_empty = False
                    yield document
        if is_empty:
            raise sdk_client.no_answer(head)


async def _events(
    head: bytes, pieces: AsyncIterator[bytes], provider: str, answer: StreamedAnswer
) -> AsyncGenerator[ServerEvent]:
    """Yields the events of a stream. A stream that is faster than its reader leaves time to other coroutines."""
    parser, turns = EventStreamParser(), _Turns()
    piece: bytes | None = head
    try:
        while piece is not None:
            for event in parser.feed(piece):
                yield event
                await turns.rest()
            await turns.rest()
            piece = await turns.read_piece(pieces, answer)
        if (last := parser.end()) is not None and _is_whole(last.data):
            yield last
    except EventTooLong:
        message = f"{provider} sent an event of more than {MAX_EVENT_BYTES >> 20} MB."
        raise ProviderBadAnswer(message, provider=provider) from None


class _Turns:
    """The turns that the reader of a stream has among the other coroutines.

    A read of bytes that have arrived already does not wait, so the reader has to. It waits as long as it worked: a mere
    turn would make each of the many steps of others wait for one of its own.
    """

    def __init__(self) -> None:
        self._began = perf_counter()

    async def rest(self) -> None:
        """Waits if the reader has had its time."""
        if perf_counter() - self._began > _SLICE_SECONDS:
            await asyncio.sleep(_SLICE_SECONDS)
            self._began = perf_counter()

    async def read_piece(self, pieces: AsyncIterator[bytes], answer: StreamedAnswer) -> bytes | None:
        """Returns the next piece of a body; None at its end."""
        asked = perf_counter()
        try:
            async with asyncio.timeout(_FINISHED_SECONDS if answer.is_settled else None):
                return await anext(pieces, None)
        except Exception as error:
            if not answer.is_finished:
                raise
            # The answer is whole, whatever the connection does.
            _log.info("stream_ended_badly_behind_the_answer", error=repr(error))
            return None
        finally:
            if perf_counter() - asked > _SLICE_SECONDS:
                self._began = perf_counter()  # The others had their turn.


async def _head(pieces: AsyncIterator[bytes]) -> bytes:
    """Returns the beginning of a body up to a piece that is not blank; all of it if it is blank."""
    head = bytearray()
    async for piece in pieces:
        head += piece
        # A blank head stays short, so this does not read much again.
        if len(head) > _MAX_BLANK_BYTES or (piece.strip() and head.removeprefix(_BYTE_ORDER_MARK).strip()):
            break
    return bytes(head)


async def _join(head: bytes, pieces: AsyncIterator[bytes], provider: str) -> bytes:
    body = bytearray(head)
    async for piece in pieces:
        body += piece
        if len(body) > MAX_EVENT_BYTES:
            message = f"{provider} answered with more than {MAX_EVENT_BYTES >> 20} MB."
            raise ProviderBadAnswer(message, provider=provider)
    return bytes(body)


async def _read_rest(pieces: AsyncIterator[bytes]) -> None:
    """Reads the end of a body, which follows its content at once, so that the connection is used again."""
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(_REST_SECONDS):
            async for _ in pieces:
                pass


def report_in_answer(document: object, event: str | None = None) -> object | None:
    """Returns the report of an error that a document of a good response is, or has; None if it is part of an answer.

    Args:
        document: a decoded body with status 200, or the decoded data of an event.
        event: the name of the event, if it has one.
    """
    found = _reported(document)
    return document if found is None and event == "error" else found


def _reported(document: object) -> object | None:
    """Returns the report of an error in a document; None if there is none."""
    if isinstance(document, list):
        return next((row for row in map(_reported, document[:1]) if row is not None), None)
    if not isinstance(document, Mapping):
        return None
    if document.get("error"):
        return document
    if "choices" in document:
        choices = document["choices"]
        first = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(first, Mapping) and isinstance(first.get("error"), Mapping):
            return {"error": first["error"]}
        if choices:
            return None
    if document.get("type") == "error" or document.get("object") == "error":
        return document
    base = document.get("base_resp")
    if isinstance(base, Mapping) and base.get("status_code"):
        return document
    if not _ANSWER_KEYS.isdisjoint(key for key, value in document.items() if value):
        return None
    names = ("errors", "detail", "error_code", "error_msg")
    is_report = any(document.get(name) for name in names) or document.get("success") is False
    words = document.get("message") or document.get("msg")
    return document if is_report or (isinstance(words, str) and words.strip()) else None


def translate_error(sdk: ModuleType, provider: str, error: Exception, secrets: Collection[str] = ()) -> ProviderError:
    """Returns the error for an exception of an SDK. It quotes none of the secrets."""
    from mnemesh_orchestrator.llm.http_client import RAISED, connection_error

    is_no_name = isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError)
    if is_no_name or isinstance(error, (*RAISED, sdk.APIConnectionError)):
        return connection_error(provider, error.__cause__ or error)
    if isinstance(error, sdk.APIStatusError):
        # An error event inside a stream has the status of the stream, which was good.
        status = error.status_code if error.status_code >= 300 else None
        return error_from_response(provider, status, _redacted(error.body, secrets), error.response.headers)
    if isinstance(error, sdk.APIError):
        return error_from_response(provider, None, _redacted(error.body or error.message, secrets))
    return ProviderBadAnswer(f"{provider} answered with something that is not JSON.", provider=provider)


def remove_environment(client: Any, headers: Mapping[str, str]) -> None:
    """Removes the process's environment from the requests of a client.

    The SDKs add the operator's account, project and headers. An organization's own provider must not receive them.
    """
    for name in ("organization", "project", "admin_api_key", "auth_token", "webhook_key", "webhook_secret"):
        if hasattr(client, name):
            setattr(client, name, None)
    client._custom_headers = dict(headers)


def _redacted(value: Any, secrets: Collection[str]) -> Any:
    """Returns a decoded body without the secrets. Some servers quote the key that they refuse."""
    match value:
        case str():
            for secret in secrets:
                value = value.replace(secret, "[key]")
            return value
        case dict():
            return {name: _redacted(item, secrets) for name, item in value.items()}
        case list():
            return [_redacted(item, secrets) for item in value]
        case _:
            return value


def _decoded(body: bytes) -> Any:
    """Returns the JSON of a body, or its text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")


def _documents(data: str) -> list[Any]:
    """Returns the JSON of an event, or DONE. Some servers omit the blank line between events, so there may be several.

    Raises:
        ValueError: it is neither.
    """
    try:
        try:
            return [_document(data)]
        except ValueError:
            return [_document(line) for line in data.split("\n") if line.strip()]
    except RecursionError as error:
        raise ValueError("It is nested too deeply.") from error


def _document(text: str) -> Any:
    return DONE if text.startswith("[DONE]") else json.loads(text)


def _is_whole(data: str) -> bool:
    try:
        _documents(data)
    except ValueError:
        return False
    return True
