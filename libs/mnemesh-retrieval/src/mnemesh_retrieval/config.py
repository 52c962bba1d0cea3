"""Settings that every service with an embedder and a vector index has in common."""

from dataclasses import dataclass, field

from mnemesh_retrieval.registry import WORDLLAMA, EmbedderSettings


@dataclass(frozen=True, kw_only=True)
class EmbedderConfig:
    """The settings of the embedder. A service's Config extends it."""

    embedder: str = WORDLLAMA
    """The default embedder, as `provider/model`."""
    embedder_base_url: str = ""
    """Base URL of an OpenAI-compatible embeddings API, `…/v1`."""
    embedder_api_key: str = field(default="", repr=False)
    openai_api_key: str = field(default="", repr=False, metadata={"environment": False, "variable": "OPENAI_API_KEY"})
    """The key of `openai/…` at OpenAI's own address, if `embedder_api_key` is not set."""
    embedder_dimension: int = 0
    """The vector length of a model that mnemesh does not know; 0 for known models."""

    @property
    def embedder_settings(self) -> EmbedderSettings:
        """The settings that embedders over HTTP need."""
        own_key = "" if self.embedder_base_url else self.openai_api_key
        return EmbedderSettings(
            base_url=self.embedder_base_url,
            api_key=self.embedder_api_key or own_key,
            dimension=self.embedder_dimension,
        )


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The settings of the reranker. A service's Config extends it."""

    reranker: str = ""
    """The reranker, as `provider/model`. By default there is none."""
    reranker_base_url: str = ""
    """Base URL of a rerank API, without `/rerank`."""
    reranker_api_key: str = field(default="", repr=False)
    reranker_directory: str = ""
    """The directory of an ONNX model, for `onnx/…`."""
    reranker_timeout_ms: int = 800
    """The longest time in milliseconds that a search waits for the reranker; then it keeps the first ranking."""
    reranker_candidates: int = 50
    """The number of best candidates that the reranker orders."""


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """The settings of the vector index. A service's Config extends it and sets `qdrant_prefix`."""

    qdrant_url: str = ""
    """`http://host:6333` of a Qdrant server; by default the vectors are in the data directory."""
    qdrant_api_key: str = field(default="", repr=False)
    qdrant_grpc_port: int = 6334
    qdrant_prefix: str
    """Prefix of the service's collection names, for servers that several deployments share."""
    index_flush_seconds: float = 10.0
    """How often the embedded index is flushed to disk. With a Qdrant server, the time after which it has flushed a
    write by itself; longer than its own interval. Changes that are not flushed are kept in SQL and repeated."""
