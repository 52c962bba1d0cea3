"""Embeddings over HTTP with an OpenAI-compatible API: POST {base_url}/embeddings."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from mnemesh_kit.network import failure_of_connection, may_use_proxy
from mnemesh_kit.retries import Backoff
from mnemesh_kit.tracing import span_of_call

from mnemesh_retrieval.embedder import CountedVectors, Vector, normalized
from mnemesh_retrieval.errors import EmbedderError, EmbedderRejected, EmbedderUnavailable

if TYPE_CHECKING:
    import httpx

BATCH_TEXTS = 128
BATCH_CHARACTERS = 200_000
CONNECT_SECONDS = 1.5
RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
REFUSED_TEXTS = frozenset({400, 413, 422})
BACKOFF = Backoff(first=0.25, maximum=4.0, jitter=0.25)


class OpenAICompatibleEmbedder:
    """Sends texts in batches, in order, and retries failures that may be temporary.

    The default is few attempts with short delays, because a caller usually waits; background work retries by itself.
    An address that cannot be connected to in time is not retried.

    The key is sent in the Authorization header only; it is in no error and no repr.
    """

    similarity_weight = 0.5
    least_similarity = 0.0

    def __init__(
        self,
        *,
        handle: str,
        model: str,
        base_url: str,
        api_key: str,
        dimension: int,
        request_dimension: bool = False,
        timeout_seconds: float = 30.0,
        attempts: int = 3,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.handle = handle
        self.dimension = dimension
        self._model = model
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._api_key = api_key
        self._request_dimension = request_dimension
        self._timeout = timeout_seconds
        self._attempts = attempts
        self._backoff = backoff
        self._client: httpx.AsyncClient | None = None
        self._most_texts = BATCH_TEXTS
        """The texts of one request. Some providers take fewer than others, and say so by a refusal."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See Embedder.embed."""
        return (await self.embed_counted(texts)).vectors

    async def embed_counted(self, texts: Sequence[str]) -> CountedVectors:
        """See CountingEmbedder. The tokens are those that the provider reports; None if one answer reports none."""
        vectors: list[Vector] = [np.zeros(self.dimension, dtype=np.float32) for _ in texts]
        tokens: int | None = 0
        for batch in _batches(texts):
            embedded = await self._embed_parts([texts[index] for index in batch])
            for index, vector in zip(batch, embedded.vectors, strict=True):
                vectors[index] = vector
            tokens = None if tokens is None or embedded.tokens is None else tokens + embedded.tokens
        return CountedVectors(vectors, tokens)

    async def close(self) -> None:
        """See Embedder.close."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _embed_parts(self, texts: list[str]) -> CountedVectors:
        """Returns the vectors of texts, which are sent in smaller parts if the provider refuses so many at once."""
        size = self._most_texts
        if len(texts) <= size:
            try:
                return await self._embed_batch(texts)
            except _TextsRejected:
                if len(texts) == 1:
                    raise
            size = (len(texts) + 1) // 2
        parts = [await self._embed_parts(texts[start : start + size]) for start in range(0, len(texts), size)]
        self._most_texts = min(self._most_texts, size)  # not before: a single text may be the reason
        counts = [part.tokens for part in parts]
        tokens = None if None in counts else sum(count or 0 for count in counts)
        return CountedVectors([vector for part in parts for vector in part.vectors], tokens)

    async def _embed_batch(self, texts: list[str]) -> CountedVectors:
        body: dict[str, Any] = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._request_dimension:
            body["dimensions"] = self.dimension
        with span_of_call(f"embeddings {self._model}", self._attributes) as recorded:
            for attempt in range(1, self._attempts + 1):
                try:
                    embedded = await self._request(body, len(texts))
                except _TemporaryError as error:
                    if attempt == self._attempts or not error.retry:
                        raise EmbedderUnavailable(f"embedder {self.handle}: {error} ({attempt} attempts)") from None
                    await asyncio.sleep(self._delay(attempt, error.retry_after))
                else:
                    if recorded is not None and embedded.tokens is not None:
                        recorded.set_attribute("gen_ai.usage.input_tokens", embedded.tokens)
                    return embedded
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _attributes(self) -> dict[str, Any]:
        address = urlsplit(self._url)
        return {
            "gen_ai.operation.name": "embeddings",
            "gen_ai.provider.name": self.handle.partition("/")[0],
            "gen_ai.request.model": self._model,
            "gen_ai.embeddings.dimension.count": self.dimension,
            "server.address": address.hostname,
            "server.port": address.port,
        }

    async def _request(self, body: dict[str, Any], expected: int) -> CountedVectors:
        import httpx  # noqa: PLC0415 - imported where this embedder is configured

        if self._client is None:
            headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
            timeout = httpx.Timeout(self._timeout, connect=min(self._timeout, CONNECT_SECONDS))
            self._client = httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=may_use_proxy(self._url))
        try:
            response = await self._client.post(self._url, json=body)
        except httpx.HTTPError as error:
            retry = not isinstance(error, httpx.ConnectTimeout)
            raise _TemporaryError(
                f"cannot be reached: {failure_of_connection(self._url, error)}", retry=retry
            ) from None
        if response.status_code in RETRIED:
            retry_after = _retry_after(response.headers.get("retry-after"))
            raise _TemporaryError(f"answered {response.status_code}", retry_after)
        if response.status_code != 200:
            kind = _TextsRejected if response.status_code in REFUSED_TEXTS else EmbedderRejected
            raise kind(f"embedder {self.handle}: answered {response.status_code}")
        return self._vectors(response, expected)

    def _vectors(self, response: "httpx.Response", expected: int) -> CountedVectors:
        try:
            answer = response.json()
            items = sorted(answer["data"], key=lambda item: int(item.get("index") or 0))
            vectors = [np.asarray(item["embedding"], dtype=np.float32) for item in items]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise EmbedderError(f"embedder {self.handle}: the response is not an embeddings object") from None
        if len(vectors) != expected:
            raise EmbedderError(f"embedder {self.handle}: {len(vectors)} vectors for {expected} texts")
        return CountedVectors([self._normalized(vector) for vector in vectors], _tokens(answer.get("usage")))

    def _normalized(self, vector: Vector) -> Vector:
        if vector.shape != (self.dimension,):
            raise EmbedderError(
                f"embedder {self.handle}: a vector of shape {vector.shape}, not of {self.dimension} numbers"
            )
        if not np.isfinite(vector).all():
            raise EmbedderError(f"embedder {self.handle}: a vector with numbers that are not finite")
        return normalized(vector)

    def _delay(self, attempt: int, retry_after: float | None) -> float:
        return min(self._backoff.maximum, max(self._backoff.delay(attempt), retry_after or 0.0))


class _TextsRejected(EmbedderRejected):
    """The provider refuses the texts of a request, perhaps because there are too many."""


class _TemporaryError(Exception):
    def __init__(self, message: str, retry_after: float | None = None, *, retry: bool = True) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.retry = retry


def _tokens(usage: Any) -> int | None:
    """Returns the tokens that an answer reports. Some servers report none, or 0 without counting."""
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0 else None


def _batches(texts: Sequence[str]) -> list[list[int]]:
    """Groups the indexes of the texts that are not blank under both limits. Such APIs refuse empty texts."""
    batches: list[list[int]] = []
    size = 0
    for index, text in enumerate(texts):
        if not text.strip():
            continue
        if not batches or len(batches[-1]) == BATCH_TEXTS or size + len(text) > BATCH_CHARACTERS:
            batches.append([])
            size = 0
        batches[-1].append(index)
        size += len(text)
    return batches


def _retry_after(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None
