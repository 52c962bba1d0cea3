"""The settings of Letta's agents as an agent of the contracts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1.agents_pb2 import (
    Agent,
    CompactionSettings,
    JsonObjectFormat,
    JsonSchemaFormat,
    ModelSettings,
    ResponseFormat,
    Secret,
    TextFormat,
)

from mnemesh_client.letta_files.rules import tool_rule
from mnemesh_client.letta_files.values import Row, id_of, json_text, optional_text, time_zone, timestamp

AGENT_TYPES: Final = {
    "memgpt_agent": agents_pb2.AGENT_TYPE_MEMGPT,
    "memgpt_v2_agent": agents_pb2.AGENT_TYPE_MEMGPT_V2,
    "letta_v1_agent": agents_pb2.AGENT_TYPE_LETTA_V1,
    "react_agent": agents_pb2.AGENT_TYPE_REACT,
    "workflow_agent": agents_pb2.AGENT_TYPE_WORKFLOW,
    "split_thread_agent": agents_pb2.AGENT_TYPE_SPLIT_THREAD,
    "sleeptime_agent": agents_pb2.AGENT_TYPE_SLEEPTIME,
    "voice_convo_agent": agents_pb2.AGENT_TYPE_VOICE_CONVO,
    "voice_sleeptime_agent": agents_pb2.AGENT_TYPE_VOICE_SLEEPTIME,
}
COMPACTION_MODES: Final = {
    "all": agents_pb2.COMPACTION_MODE_ALL,
    "sliding_window": agents_pb2.COMPACTION_MODE_SLIDING_WINDOW,
    "self_compact_all": agents_pb2.COMPACTION_MODE_SELF_COMPACT_ALL,
    "self_compact_sliding_window": agents_pb2.COMPACTION_MODE_SELF_COMPACT_SLIDING_WINDOW,
}


def agent(row: Row, *, tags: Iterable[str], secrets: Iterable[str], identity_ids: Iterable[str]) -> Agent:
    """Returns the settings of an agent, without its tools.

    Args:
        row: a row of `agents`, or an agent of an agent file.
        tags: of the agent.
        secrets: the names of its environment variables.
        identity_ids: of its identities.

    Raises:
        ValueError: its type, a tool rule or its compaction mode is not known.
    """
    kind = AGENT_TYPES.get(row.get("agent_type") or "memgpt_v2_agent")
    if kind is None:
        raise ValueError(f"the agent type {row['agent_type']!r} is not known")
    llm: dict[str, Any] = row.get("llm_config") or {}
    embedding: dict[str, Any] = row.get("embedding_config") or {}
    result = Agent(
        id=id_of(row["id"], "agent"),
        name=optional_text(row, "name") or "",
        description=optional_text(row, "description"),
        type=kind,
        system=row.get("system") or "",
        model=row.get("model") or model_handle(llm),
        model_settings=model_settings(llm),
        embedder=embedder_handle(embedding) or row.get("embedding"),
        tool_rules=[tool_rule(rule) for rule in row.get("tool_rules") or ()],
        tags=tags,
        metadata=json_text(row.get("metadata_", row.get("metadata"))),
        time_zone=time_zone(row),
        message_buffer_autoclear=bool(row.get("message_buffer_autoclear")),
        compaction_settings=_compaction(row.get("compaction_settings")),
        response_format=_response_format(row.get("response_format") or llm.get("response_format")),
        max_files_open=row.get("max_files_open"),
        per_file_view_window_char_limit=row.get("per_file_view_window_char_limit"),
        hidden=bool(row.get("hidden")),
        identity_ids=identity_ids,
        secrets=[Secret(key=name) for name in secrets],
        last_run_completion_time=timestamp(row.get("last_run_completion")),
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at") or row.get("created_at")),
    )
    for key in ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id"):
        if row.get(key):
            setattr(result.provenance, key, row[key])
    return result


def model_handle(config: Row) -> str:
    """Returns the handle in a model configuration of Letta; empty if there is none."""
    if config.get("handle"):
        return str(config["handle"])
    if not config.get("model"):
        return ""
    return f"{config.get('provider_name') or config.get('model_endpoint_type')}/{config['model']}"


def embedder_handle(config: Row) -> str | None:
    """Returns the handle in an embedding configuration of Letta."""
    if config.get("handle"):
        return str(config["handle"])
    if not config.get("embedding_model"):
        return None
    return f"{config.get('embedding_endpoint_type')}/{config['embedding_model']}"


def model_settings(config: Row) -> ModelSettings:
    """Returns the settings in a model configuration of Letta. Values that mean "not set" are left out."""
    settings = ModelSettings(
        context_window=config.get("context_window"),
        max_output_tokens=config.get("max_tokens"),
        temperature=config.get("temperature"),
        parallel_tool_calls=config.get("parallel_tool_calls"),
        inner_thoughts_in_kwargs=config.get("put_inner_thoughts_in_kwargs"),
        reasoning_effort=config.get("reasoning_effort") or config.get("effort"),
        strict_tool_schemas=config.get("strict"),
    )
    if 0 < settings.context_window <= settings.max_output_tokens:
        # Letta does not compare the two. No request leaves an answer the whole window.
        settings.ClearField("max_output_tokens")
    if config.get("enable_reasoner") is not None:
        settings.enable_reasoner = bool(config["enable_reasoner"])
    if config.get("max_reasoning_tokens"):
        settings.max_reasoning_tokens = config["max_reasoning_tokens"]
    options = {key: config[key] for key in ("frequency_penalty", "verbosity") if config.get(key) is not None}
    if options:
        settings.provider_options = json_text(options) or ""
    return settings


def conversation_settings(settings: Row) -> ModelSettings:
    """Returns the settings of a conversation, which Letta names as its API does, not as configurations of models."""
    reasoning, thinking = settings.get("reasoning") or {}, settings.get("thinking") or {}
    gemini = settings.get("thinking_config") or {}
    switches = {"enabled": True, "disabled": False}
    return model_settings(
        {
            **settings,
            "max_tokens": settings.get("max_output_tokens"),
            "reasoning_effort": reasoning.get("reasoning_effort"),
            "enable_reasoner": switches.get(thinking.get("type", ""), gemini.get("include_thoughts")),
            "max_reasoning_tokens": thinking.get("budget_tokens") or gemini.get("thinking_budget"),
        }
    )


def _compaction(settings: dict[str, Any] | None) -> CompactionSettings | None:
    if not settings:
        return None
    mode = COMPACTION_MODES.get(settings.get("mode") or "sliding_window")
    if mode is None:
        raise ValueError(f"the compaction mode {settings['mode']!r} is not known")
    percentage = settings.get("sliding_window_percentage")
    return CompactionSettings(
        mode=mode,
        model=settings.get("model"),
        prompt=settings.get("prompt"),
        prompt_acknowledgement=settings.get("prompt_acknowledgement"),
        clip_chars=settings.get("clip_chars"),
        sliding_window_percentage=percentage,
    )


def _response_format(value: dict[str, Any] | None) -> ResponseFormat | None:
    match (value or {}).get("type"):
        case "text":
            return ResponseFormat(text=TextFormat())
        case "json_object":
            return ResponseFormat(json_object=JsonObjectFormat())
        case "json_schema":
            schema = (value or {}).get("json_schema") or {}
            return ResponseFormat(
                json_schema=JsonSchemaFormat(
                    name=schema.get("name") or "response",
                    schema=json_text(schema.get("schema", schema)) or "{}",
                    strict=schema.get("strict"),
                )
            )
        case _:
            return None
