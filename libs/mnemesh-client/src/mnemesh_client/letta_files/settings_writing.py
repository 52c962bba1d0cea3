"""The models, compaction and response format of an agent in the form of Letta's agent files."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1.agents_pb2 import Agent

from mnemesh_client.letta_files.agents import COMPACTION_MODES
from mnemesh_client.letta_files.values import carried_json

_MODE_NAMES: Final = {value: name for name, value in COMPACTION_MODES.items()}
_EMBEDDING_DIMENSIONS: Final = 1536
_CONTEXT_WINDOW: Final = 32_000


def llm_config(agent: Agent) -> dict[str, Any]:
    """Returns the model of an agent with its settings."""
    provider, _, model = agent.model.partition("/")
    settings: Any = agent.model_settings
    config: dict[str, Any] = {
        "model": model,
        "model_endpoint_type": provider if provider in _ENDPOINT_TYPES else "openai",
        "handle": agent.model,
        "context_window": settings.context_window or _CONTEXT_WINDOW,
    }
    names = {
        "max_output_tokens": "max_tokens",
        "temperature": "temperature",
        "parallel_tool_calls": "parallel_tool_calls",
        "inner_thoughts_in_kwargs": "put_inner_thoughts_in_kwargs",
        "reasoning_effort": "reasoning_effort",
        "enable_reasoner": "enable_reasoner",
        "max_reasoning_tokens": "max_reasoning_tokens",
        "strict_tool_schemas": "strict",
    }
    config |= {name: getattr(settings, field) for field, name in names.items() if settings.HasField(field)}
    config.update(carried_json(settings.provider_options))
    return config


_ENDPOINT_TYPES: Final = frozenset(
    {"openai", "anthropic", "google_ai", "azure", "groq", "ollama", "vllm", "mistral", "together", "bedrock",
     "deepseek", "xai", "zai", "openrouter"}
)  # fmt: skip


def embedding_config(agent: Agent) -> dict[str, Any] | None:
    """Returns the embedder of an agent."""
    return embedding(agent.embedder, 300) if agent.HasField("embedder") else None


def embedding(handle: str, chunk_size: int) -> dict[str, Any] | None:
    """Returns an embedder; None for one that Letta does not know: its importer then chooses its default."""
    provider, _, model = handle.partition("/")
    if provider != "openai":
        return None
    return {
        "embedding_endpoint_type": provider,
        "embedding_model": model,
        "embedding_dim": _EMBEDDING_DIMENSIONS,
        "embedding_chunk_size": chunk_size or 300,
        "handle": handle,
    }


def compaction(agent: Agent) -> dict[str, Any] | None:
    """Returns the compaction settings of an agent; None for a mode that Letta does not have."""
    settings: Any = agent.compaction_settings
    if not agent.HasField("compaction_settings") or settings.mode not in _MODE_NAMES:
        return None
    names = ("model", "prompt", "prompt_acknowledgement", "clip_chars", "sliding_window_percentage")
    chosen = {name: getattr(settings, name) for name in names if settings.HasField(name)}
    return {"mode": _MODE_NAMES[settings.mode], **chosen}


def response_format(agent: Agent) -> dict[str, Any] | None:
    """Returns the response format of an agent."""
    match agent.response_format.WhichOneof("format"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            schema = agent.response_format.json_schema
            return {
                "type": "json_schema",
                "json_schema": {"name": schema.name, "schema": carried_json(schema.schema), "strict": schema.strict},
            }
        case "text":
            return {"type": "text"}
        case _:
            return None
