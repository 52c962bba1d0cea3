"""The port of rerankers, and their construction from handles: `provider/model`."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from mnemesh_kit.extras import install_hint
from mnemesh_kit.network import base_url_problem

from mnemesh_retrieval.errors import RerankerMisconfigured
from mnemesh_retrieval.rerankers.http import COHERE, JINA, TEI, VOYAGE, WireForm


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
    from mnemesh_retrieval.rerankers.http import HttpReranker  # noqa: PLC0415 - loaded if configured

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
