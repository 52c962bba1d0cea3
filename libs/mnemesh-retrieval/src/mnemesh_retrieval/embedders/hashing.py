"""A deterministic embedder for tests: words are hashed into 256 signed buckets."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence

import numpy as np

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.handles import HASHING

DIMENSION = 256
WORD = re.compile(r"\w+")
INLINE_CHARACTERS = 20_000
"""Longer texts are embedded in a thread, so that they do not delay other calls."""


class HashingEmbedder:
    """Embeds texts so that those with common words are similar, and no others."""

    handle = HASHING
    dimension = DIMENSION
    similarity_weight = 0.0001
    least_similarity = 0.0

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See Embedder.embed; never fails."""
        if sum(map(len, texts)) > INLINE_CHARACTERS:
            return await asyncio.to_thread(_vectors, texts)
        return _vectors(texts)

    async def close(self) -> None:
        """See Embedder.close."""


def _vectors(texts: Sequence[str]) -> list[Vector]:
    return [_vector(text) for text in texts]


def _vector(text: str) -> Vector:
    total = np.zeros(DIMENSION, dtype=np.float32)
    for word in WORD.findall(text.casefold()):
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).digest()
        total[digest[0]] += 1.0 if digest[1] & 1 else -1.0
    norm = float(np.linalg.norm(total))
    return total / np.float32(norm) if norm > 0 else total
