"""Reranking offline: a cross-encoder in ONNX format, from a directory with `model.onnx` and `tokenizer.json`."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from mnemesh_kit.extras import install_hint

from mnemesh_retrieval.errors import RerankerError, RerankerMisconfigured

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Encoding, Tokenizer

MODEL: Final = "model.onnx"
TOKENIZER: Final = "tokenizer.json"
MAX_TOKENS: Final = 512
"""Longer pairs of query and text are truncated."""
BATCH_TEXTS: Final = 8
_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")


class OnnxReranker:
    """Runs a cross-encoder in its own thread. The model is loaded at the first call.

    The model takes `input_ids`, and optionally `attention_mask` and `token_type_ids`, of pairs of query and text. Its
    first output has a logit per pair, or two per pair, of which the second is for a good answer. Scores are
    probabilities.
    """

    def __init__(self, handle: str, directory: Path, *, threads: int = 2) -> None:
        self.handle = handle
        self._directory = directory
        self._threads = threads
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reranker")
        self._model: _Model | None = None

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """See Reranker.rerank. A cancelled call ends after the batch that runs.

        Raises:
            RerankerMisconfigured: the files are missing or damaged, or a package is not installed.
        """
        cancelled = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._rerank, query, list(texts), cancelled
            )
        finally:
            cancelled.set()

    async def close(self) -> None:
        """See Reranker.close."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._model = None

    def _rerank(self, query: str, texts: list[str], cancelled: threading.Event) -> list[float]:
        if self._model is None:
            self._model = _Model.load(self.handle, self._directory, self._threads)
        return self._model.scores(query, texts, cancelled)


class _Model:
    def __init__(self, handle: str, session: "InferenceSession", tokenizer: "Tokenizer") -> None:
        self._handle = handle
        self._session = session
        self._tokenizer = tokenizer
        self._inputs = [each.name for each in session.get_inputs()]

    @classmethod
    def load(cls, handle: str, directory: Path, threads: int) -> "_Model":
        onnxruntime, tokenizers = _packages(handle)
        for needed in (MODEL, TOKENIZER):
            if not (directory / needed).is_file():
                raise RerankerMisconfigured(f"reranker {handle}: the directory {directory} has no {needed}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER))
            session = onnxruntime.InferenceSession(str(directory / MODEL), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # both libraries raise errors of their own, without a common base
            raise RerankerMisconfigured(f"reranker {handle}: {directory} cannot be loaded ({error})") from error
        unknown = sorted({each.name for each in session.get_inputs()} - set(_INPUTS))
        if unknown:
            raise RerankerMisconfigured(f"reranker {handle}: {MODEL} needs unknown inputs: {', '.join(unknown)}")
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.enable_padding(pad_id=_padding(tokenizer))
        return cls(handle, session, tokenizer)

    def scores(self, query: str, texts: list[str], cancelled: threading.Event) -> list[float]:
        """Returns the scores; fewer if the call was cancelled."""
        # Texts of similar length in a batch need little padding.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        found = [0.0] * len(texts)
        for start in range(0, len(order), BATCH_TEXTS):
            if cancelled.is_set():
                return []
            batch = order[start : start + BATCH_TEXTS]
            encoded = self._tokenizer.encode_batch([(query, texts[index]) for index in batch])
            for index, score in zip(batch, self._run(encoded), strict=True):
                found[index] = score
        return found

    def _run(self, encoded: "list[Encoding]") -> list[float]:
        columns = {
            "input_ids": [each.ids for each in encoded],
            "attention_mask": [each.attention_mask for each in encoded],
            "token_type_ids": [each.type_ids for each in encoded],
        }
        inputs = {name: np.asarray(columns[name], dtype=np.int64) for name in self._inputs}
        try:
            logits = np.asarray(self._session.run(None, inputs)[0], dtype=np.float64).reshape(len(encoded), -1)
        except Exception as error:  # the library raises errors of its own, without a common base
            raise RerankerError(f"reranker {self._handle}: the model failed ({type(error).__name__})") from error
        if logits.shape[1] not in (1, 2) or not np.isfinite(logits).all():
            raise RerankerError(f"reranker {self._handle}: the model returned {logits.shape[1]} logits per text")
        return _probabilities(logits)


def _probabilities(logits: npt.NDArray[np.float64]) -> list[float]:
    margins = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    return [float(value) for value in 1 / (1 + np.exp(-np.clip(margins, -60, 60)))]


def _padding(tokenizer: "Tokenizer") -> int:
    ids = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
    return next((id_ for id_ in ids if id_ is not None), 0)


def _packages(handle: str) -> tuple[Any, Any]:
    try:
        import onnxruntime  # noqa: PLC0415 - optional, and loaded at the first call
        import tokenizers  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise RerankerMisconfigured(
            f"reranker {handle}: {error.name} is not installed. {install_hint('mnemesh-retrieval', 'onnx')}"
        ) from error
    return onnxruntime, tokenizers
