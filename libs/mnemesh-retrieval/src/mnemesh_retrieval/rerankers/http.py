"""Reranking over HTTP: POST {base_url}/rerank, in the forms of several vendors."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mnemesh_kit.network import failure_of_connection, may_use_proxy
from mnemesh_kit.retries import Backoff

from mnemesh_retrieval.errors import RerankerError, RerankerRejected, RerankerUnavailable

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
