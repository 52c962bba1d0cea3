"""Embeddings over HTTP, by the API that OpenAI made common: POST {base_url}/embeddings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import EmbedderError, EmbedderRejected, EmbedderUnavailable

if TYPE_CHECKING:
    import httpx

BATCH_TEXTS = 128
BATCH_CHARACTERS = 200_000
CONNECT_SECONDS = 1.5
RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})


class OpenAICompatibleEmbedder:
    """Sends texts in batches, in order; retries what may pass with growing, jittered waits.

    Few attempts by default, and short waits: somebody waits for an answer, if only for a refusal. Work in the
    background tries again by itself. An address where nobody answers at all is not tried again.

    The key is sent in the Authorization header and appears in no error and no repr.
    """

    hybrid_weight = 1.0

    def __init__(
        self,
        *,
        handle: str,
        model: str,
        base_url: str,
        api_key: str,
        dimension: int,
        ask_dimension: bool = False,
        timeout_seconds: float = 30.0,
        attempts: int = 3,
        first_wait_seconds: float = 0.25,
        longest_wait_seconds: float = 4.0,
    ) -> None:
        self.handle = handle
        self.dimension = dimension
        self._model = model
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._api_key = api_key
        self._ask_dimension = ask_dimension
        self._timeout = timeout_seconds
        self._attempts = attempts
        self._first_wait = first_wait_seconds
        self._longest_wait = longest_wait_seconds
        self._client: httpx.AsyncClient | None = None

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See Embedder.embed."""
        vectors: list[Vector] = [np.zeros(self.dimension, dtype=np.float32) for _ in texts]
        for batch in _batches(texts):
            for place, vector in zip(batch, await self._batch([texts[place] for place in batch]), strict=True):
                vectors[place] = vector
        return vectors

    async def close(self) -> None:
        """See Embedder.close."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _batch(self, texts: list[str]) -> list[Vector]:
        body: dict[str, Any] = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._ask_dimension:
            body["dimensions"] = self.dimension
        for attempt in range(1, self._attempts + 1):
            try:
                return await self._once(body, len(texts))
            except _Again as again:
                if attempt == self._attempts or again.hopeless:
                    raise EmbedderUnavailable(f"embedder {self.handle}: {again} ({attempt} attempts)") from None
                await asyncio.sleep(self._wait(attempt, again.retry_after))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, body: dict[str, Any], expected: int) -> list[Vector]:
        import httpx  # noqa: PLC0415 - imported where this embedder is configured

        if self._client is None:
            headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
            patience = httpx.Timeout(self._timeout, connect=min(self._timeout, CONNECT_SECONDS))
            self._client = httpx.AsyncClient(headers=headers, timeout=patience)
        try:
            response = await self._client.post(self._url, json=body)
        except httpx.HTTPError as error:
            away = isinstance(error, httpx.ConnectTimeout)
            raise _Again(f"cannot be reached ({type(error).__name__})", hopeless=away) from None
        if response.status_code in RETRIED:
            raise _Again(f"answered {response.status_code}", _retry_after(response.headers.get("retry-after")))
        if response.status_code != 200:
            raise EmbedderRejected(f"embedder {self.handle}: answered {response.status_code}")
        return self._vectors(response, expected)

    def _vectors(self, response: httpx.Response, expected: int) -> list[Vector]:
        try:
            items = sorted(response.json()["data"], key=lambda item: int(item["index"]))
            vectors = [np.asarray(item["embedding"], dtype=np.float32) for item in items]
        except (ValueError, KeyError, TypeError):
            raise EmbedderError(f"embedder {self.handle}: the answer is not an embeddings object") from None
        if len(vectors) != expected:
            raise EmbedderError(f"embedder {self.handle}: {len(vectors)} vectors for {expected} texts")
        return [self._normal(vector) for vector in vectors]

    def _normal(self, vector: Vector) -> Vector:
        if vector.shape != (self.dimension,):
            raise EmbedderError(
                f"embedder {self.handle}: a vector of shape {vector.shape}, not of {self.dimension} numbers"
            )
        norm = float(np.linalg.norm(vector))
        if not np.isfinite(norm):
            raise EmbedderError(f"embedder {self.handle}: a vector with numbers that are not finite")
        return vector / np.float32(norm) if norm > 0 else vector

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        grown: float = self._first_wait * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        return min(self._longest_wait, max(grown, retry_after or 0.0))


class _Again(Exception):
    def __init__(self, what: str, retry_after: float | None = None, *, hopeless: bool = False) -> None:
        super().__init__(what)
        self.retry_after = retry_after
        self.hopeless = hopeless


def _batches(texts: Sequence[str]) -> list[list[int]]:
    """Places of the texts that have something to embed, grouped under both limits. Such APIs refuse empty texts."""
    batches: list[list[int]] = []
    size = 0
    for place, text in enumerate(texts):
        if not text.strip():
            continue
        if not batches or len(batches[-1]) == BATCH_TEXTS or size + len(text) > BATCH_CHARACTERS:
            batches.append([])
            size = 0
        batches[-1].append(place)
        size += len(text)
    return batches


def _retry_after(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None
