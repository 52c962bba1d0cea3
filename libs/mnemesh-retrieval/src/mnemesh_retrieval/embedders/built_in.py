"""The embedders that work offline: wordllama, the default, and the hashing of words, for tests.

wordllama averages 256-dimensional token vectors over a text. Its weights are part of the wordllama package and are
read from its files. Importing the package would cost 45 MB and half a second, reconfigure the root logger, and pad
every text of a batch to the longest one.
"""

import asyncio
import hashlib
import importlib.util
import math
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.embedder import HASHING, WORDLLAMA, CountedVectors, Vector
from mnemesh_retrieval.errors import EmbedderMisconfigured

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WEIGHTS = Path("weights") / "l2_supercat_256.safetensors"
TOKENIZER = Path("tokenizers") / "l2_supercat_tokenizer_config.json"
DIMENSION = 256
PIECE_CHARS = 16_384
"""Longer texts are tokenized in pieces of this many characters, which bounds the memory for one text."""
SHORT_CHARS = 1_000
"""Texts of so few characters, such as a query, take less time than the way to a thread and back."""


class WordLlamaEmbedder:
    """Embeds in its own thread, except for short texts. The model is loaded by `load`, or at the first text."""

    handle = WORDLLAMA
    dimension = DIMENSION
    similarity_weight = 0.5
    least_similarity = 0.3  # measured; see docs/retrieval.md
    averages_words = True

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wordllama")
        self._model: _Model | None = None

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See Embedder.embed. Raises EmbedderMisconfigured if the installed wordllama has no weights."""
        return (await self.embed_counted(texts)).vectors

    async def embed_counted(self, texts: Sequence[str]) -> CountedVectors:
        """See CountingEmbedder. The tokens are those of the tokenizer."""
        if self._model is not None and sum(map(len, texts)) <= SHORT_CHARS:
            return self._embed(list(texts))
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._embed, list(texts))

    async def load(self) -> None:
        """See LoadedEmbedder.load."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._embed, [])

    async def close(self) -> None:
        """See Embedder.close."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._model = None

    def _embed(self, texts: list[str]) -> CountedVectors:
        if self._model is None:
            self._model = _load()
        found = [self._model.vector(text) for text in texts]
        return CountedVectors([vector for vector, _ in found], sum(tokens for _, tokens in found))


class _Model:
    def __init__(self, tokenizer: "Tokenizer", rows: npt.NDArray[np.float16]) -> None:
        self._tokenizer = tokenizer
        self._rows = rows

    def vector(self, text: str) -> tuple[Vector, int]:
        """Returns the vector of a text and the number of its tokens."""
        total = np.zeros(DIMENSION, dtype=np.float32)
        tokens = 0
        for piece in _pieces(text):
            ids = self._tokenizer.encode(piece, add_special_tokens=False).ids
            tokens += len(ids)
            if ids:
                total += self._rows.take(ids, axis=0, mode="clip").sum(axis=0, dtype=np.float32)
        norm = math.sqrt(total.dot(total))
        return total / np.float32(norm) if norm > 0 else total, tokens


def _pieces(text: str) -> Iterator[str]:
    if text.strip():
        for start in range(0, len(text), PIECE_CHARS):
            yield text[start : start + PIECE_CHARS]


def _load() -> _Model:
    from safetensors import safe_open  # noqa: PLC0415 - loaded at the first text
    from tokenizers import Tokenizer  # noqa: PLC0415

    spec = importlib.util.find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderMisconfigured(f"embedder {WORDLLAMA}: the package wordllama is not installed")
    package = Path(spec.submodule_search_locations[0])
    for needed in (WEIGHTS, TOKENIZER):
        if not (package / needed).is_file():
            raise EmbedderMisconfigured(f"embedder {WORDLLAMA}: the installed wordllama has no {needed}")
    tokenizer = Tokenizer.from_file(str(package / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with safe_open(package / WEIGHTS, framework="np") as weights:
        stored = weights.get_slice("embedding.weight")
        count, width = stored.get_shape()
        rows = _mapped(package / WEIGHTS, count, width)
        # Whether the numbers are the end of the file, as the library reads it.
        if not all(np.array_equal(rows[at], stored[at : at + 1][0]) for at in (0, count - 1)):
            rows = weights.get_tensor("embedding.weight")
    return _Model(tokenizer, rows)


def _mapped(path: Path, count: int, width: int) -> npt.NDArray[np.float16]:
    """Returns the numbers at the end of a file. Only those that are used take memory, which processes share."""
    offset = path.stat().st_size - 2 * count * width
    return np.asarray(np.memmap(path, np.float16, "r", offset, (count, width)))


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
