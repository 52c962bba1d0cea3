"""The rerankers by their settings, and those of servers."""

import asyncio
import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from mnemesh_kit.extras import install_hint
from mnemesh_kit.network import base_url_problem, failure_of_connection, may_use_proxy
from mnemesh_kit.retries import Backoff

from mnemesh_retrieval.errors import RerankerError, RerankerMisconfigured, RerankerRejected, RerankerUnavailable

if TYPE_CHECKING:
    import httpx


class AnswerInvalid(ValueError):
    """An answer does not have one score for each text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireForm:
    """The names of the fields of an API. The path is always `/rerank`."""

    texts: str
    """The field of the request with the texts."""
    results: str | None
    """The field of the answer with the results; None if the answer is the list itself."""
    score: str
    count: str | None = None
    """The field of the request with the number of results to return; None if the API returns all without it."""
    sends_model: bool = True
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request."""

    def body(self, model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
        """Returns the body of a request."""
        body: dict[str, Any] = {"query": query, self.texts: list(texts), **self.more}
        if self.sends_model:
            body["model"] = model
        if self.count is not None:
            body[self.count] = len(texts)
        return body

    def scores(self, answer: Any, count: int) -> list[float]:
        """Returns the scores in the order of the texts. Results may come in any order.

        Raises:
            AnswerInvalid: a result is missing, repeated or malformed.
        """
        results = answer.get(self.results) if self.results is not None and isinstance(answer, dict) else answer
        if not isinstance(results, list):
            raise AnswerInvalid("the answer has no list of results")
        if len(results) != count:
            raise AnswerInvalid(f"{len(results)} results for {count} texts")
        found: dict[int, float] = {}
        for result in results:
            index, score = (result.get("index"), result.get(self.score)) if isinstance(result, dict) else (None, None)
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count or index in found:
                raise AnswerInvalid("the indexes of the results are not those of the texts")
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise AnswerInvalid("a score is not a finite number")
            found[index] = float(score)
        return [found[index] for index in range(count)]


COHERE: Final = WireForm(texts="documents", results="results", score="relevance_score", count="top_n")
"""Cohere's /v2/rerank; vLLM and other servers have the same."""
JINA: Final = WireForm(
    texts="documents", results="results", score="relevance_score", count="top_n", more={"return_documents": False}
)
VOYAGE: Final = WireForm(texts="documents", results="data", score="relevance_score", count="top_k")
TEI: Final = WireForm(texts="texts", results=None, score="score", sends_model=False, more={"truncate": True})
"""Text Embeddings Inference, which serves one model."""


RETRIED: Final = frozenset({408, 409, 429, 500, 502, 503, 504})
ATTEMPTS: Final = 3
BACKOFF: Final = Backoff(first=0.05, maximum=0.4, jitter=0.25)
MAX_ANSWER_BYTES: Final = 4 << 20
"""Larger answers are refused before they are read to the end. Some servers return the texts with the scores."""


class HttpReranker:
    """Sends a query with its texts in one request, and retries failures that may be temporary while there is time.

    The key is sent in the Authorization header only; it is in no error and no repr. Redirects are not followed.
    """

    def __init__(
        self,
        *,
        handle: str,
        model: str,
        base_url: str,
        api_key: str,
        form: WireForm,
        timeout_seconds: float,
        attempts: int = ATTEMPTS,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.handle = handle
        self._model = model
        self._url = f"{base_url.rstrip('/')}/rerank"
        self._api_key = api_key
        self._form = form
        self._timeout = timeout_seconds
        self._attempts = attempts
        self._backoff = backoff
        self._client: httpx.AsyncClient | None = None

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """See Reranker.rerank. `timeout_seconds` includes the retries and their delays."""
        body = self._form.body(self._model, query, texts)
        until = asyncio.get_running_loop().time() + self._timeout
        for attempt in range(1, self._attempts + 1):
            try:
                async with asyncio.timeout_at(until):
                    return await self._request(body, len(texts))
            except TimeoutError:
                raise RerankerUnavailable(f"reranker {self.handle}: no answer within {self._timeout:g} s") from None
            except _TemporaryError as error:
                delay = max(self._backoff.delay(attempt), error.retry_after)
                if attempt == self._attempts or asyncio.get_running_loop().time() + delay >= until:
                    raise RerankerUnavailable(f"reranker {self.handle}: {error} ({attempt} attempts)") from None
                await asyncio.sleep(delay)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        """See Reranker.close."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _request(self, body: dict[str, Any], count: int) -> list[float]:
        import httpx  # noqa: PLC0415 - imported where this reranker is configured

        if self._client is None:
            headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
            self._client = httpx.AsyncClient(
                headers=headers,
                timeout=None,  # noqa: S113 - `rerank` has the one limit
                trust_env=may_use_proxy(self._url),
            )
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                self._require_success(response)
                content = await self._content(response)
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise _TemporaryError(f"cannot be reached: {failure_of_connection(self._url, error)}") from None
        try:
            return self._form.scores(json.loads(content), count)
        except AnswerInvalid as error:
            raise RerankerError(f"reranker {self.handle}: {error}") from None
        except (ValueError, RecursionError):
            raise RerankerError(f"reranker {self.handle}: the answer is not JSON") from None

    def _require_success(self, response: "httpx.Response") -> None:
        status = response.status_code
        if status in RETRIED:
            raise _TemporaryError(f"answered {status}", _seconds(response.headers.get("retry-after")))
        if status != 200:
            raise RerankerRejected(f"reranker {self.handle}: answered {status}")

    async def _content(self, response: "httpx.Response") -> bytes:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_ANSWER_BYTES:
                raise RerankerError(f"reranker {self.handle}: the answer exceeds {MAX_ANSWER_BYTES >> 20} MB")
        return bytes(content)


class _TemporaryError(Exception):
    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0


class Reranker(Protocol):
    """Scores texts by how well they answer a query.

    Example:
        >>> reranker = make_reranker("cohere/rerank-v3.5", RerankerSettings(api_key=key))
        >>> await reranker.rerank("Who sold the boat?", ["Nora: I sold it.", "Tomas: It rained."])
        [0.91, 0.02]
    """

    @property
    def handle(self) -> str:
        """The name of the model in settings, logs and metrics, as `provider/model`."""

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Returns one finite score per text, in the order of the texts; higher is better.

        Scores of one call are comparable with each other only. Cancelling the call stops it.

        Raises:
            RerankerUnavailable: a temporary failure.
            RerankerRejected: the same call would fail again.
        """

    async def close(self) -> None:
        """Releases connections and threads."""


DEFAULT_TIMEOUT_SECONDS: Final = 0.8
ONNX: Final = "onnx"
_FORMS: Final[dict[str, WireForm]] = {"cohere": COHERE, "jina": JINA, "voyage": VOYAGE, "tei": TEI}
"""The forms by provider. Other providers have Cohere's."""
_BASE_URLS: Final = {
    "cohere": "https://api.cohere.com/v2",
    "jina": "https://api.jina.ai/v1",
    "voyage": "https://api.voyageai.com/v1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankerSettings:
    """The settings that rerankers need."""

    base_url: str = ""
    """The URL before `/rerank`. If empty, that of the provider, for `cohere/…`, `jina/…` and `voyage/…` only."""
    api_key: str = field(default="", repr=False)
    directory: str = ""
    """The directory of the model, for `onnx/…`."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


def make_reranker(handle: str, settings: RerankerSettings | None = None) -> Reranker:
    """Builds a reranker. It loads and connects nothing before its first `rerank`.

    `onnx/<name>` is a model in a directory; `tei/<name>` is a server of Text Embeddings Inference; every other provider
    has Cohere's API.

    Raises:
        RerankerMisconfigured: the handle has another form, settings that it needs are missing or wrong, or a package
            that it needs is not installed.
    """
    settings = settings or RerankerSettings()
    provider, _, model = handle.partition("/")
    if not provider or not model:
        raise RerankerMisconfigured(f"reranker {handle!r} is not of the form provider/model")
    if provider == ONNX:
        return _from_directory(handle, settings)
    return _over_http(handle, provider, model, settings)


def _from_directory(handle: str, settings: RerankerSettings) -> Reranker:
    from mnemesh_retrieval.rerankers.onnx import MODEL, TOKENIZER, OnnxReranker  # noqa: PLC0415 - loaded if configured

    if not settings.directory:
        raise RerankerMisconfigured(f"reranker {handle!r} needs the directory of its model")
    directory = Path(settings.directory).expanduser().absolute()
    for needed in (MODEL, TOKENIZER):
        if not (directory / needed).is_file():
            raise RerankerMisconfigured(f"reranker {handle!r}: the directory {directory} has no {needed}")
    if importlib.util.find_spec("onnxruntime") is None:
        raise RerankerMisconfigured(
            f"reranker {handle!r}: onnxruntime is not installed. {install_hint('mnemesh-retrieval', 'onnx')}"
        )
    return OnnxReranker(handle, directory)


def _over_http(handle: str, provider: str, model: str, settings: RerankerSettings) -> Reranker:

    base_url = settings.base_url or _BASE_URLS.get(provider, "")
    if not base_url:
        raise RerankerMisconfigured(f"reranker {handle!r} needs the base URL of a rerank API")
    problem = base_url_problem(base_url)
    if problem is not None:
        raise RerankerMisconfigured(f"reranker {handle!r}: the base URL {problem}")
    if not settings.api_key and base_url == _BASE_URLS.get(provider):
        raise RerankerMisconfigured(f"reranker {handle!r} needs an API key")
    return HttpReranker(
        handle=handle,
        model=model,
        base_url=base_url,
        api_key=settings.api_key,
        form=_FORMS.get(provider, COHERE),
        timeout_seconds=settings.timeout_seconds,
    )
