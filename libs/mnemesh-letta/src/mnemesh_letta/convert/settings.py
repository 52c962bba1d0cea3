"""The settings of agents: models, compaction, response formats and tool rules, in both directions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1.agents_pb2 import (
    Agent,
    ChildArguments,
    CompactionSettings,
    ConditionalOutcome,
    ConditionalRule,
    ConstrainChildToolsRule,
    ContinueLoopRule,
    ExitLoopRule,
    JsonObjectFormat,
    JsonSchemaFormat,
    MaxCountPerStepRule,
    ModelSettings,
    ParentLastToolRule,
    RequiredBeforeExitRule,
    RequiresApprovalRule,
    ResponseFormat,
    RunFirstRule,
    Secret,
    TextFormat,
    ToolRule,
)

from mnemesh_letta.convert.values import Row, carried_json, id_of, json_text, optional_text, time_zone, timestamp


def tool_rule(rule: Row) -> ToolRule:
    """Returns a rule.

    Raises:
        ValueError: its type is not known.
    """
    read = _READERS.get(str(rule.get("type")))
    if read is None:
        raise ValueError(f"the tool rule of {rule.get('tool_name')!r} has the unknown type {rule.get('type')!r}")
    return read(rule)


def letta_rule(rule: ToolRule) -> dict[str, Any]:
    """Returns a rule in Letta's form."""
    kind = rule.WhichOneof("rule")
    if kind is None:
        raise ValueError("a tool rule is empty")
    inner = getattr(rule, kind)
    return {"tool_name": inner.tool_name, "type": kind, "prompt_template": None, **_letta_fields(kind, inner)}


def _letta_fields(kind: str, inner: Any) -> dict[str, Any]:
    match kind:
        case "run_first":
            return {"args": carried_json(inner.arguments) or None}
        case "conditional":
            return {
                "default_child": inner.default_child if inner.HasField("default_child") else None,
                "child_output_mapping": {_letta_output(outcome): outcome.child for outcome in inner.outcomes},
                "require_output_mapping": inner.require_output_mapping,
            }
        case "constrain_child_tools":
            nodes = [{"name": item.tool_name, "args": carried_json(item.arguments)} for item in inner.child_arguments]
            return {"children": list(inner.children), "child_arg_nodes": nodes or None}
        case "max_count_per_step":
            return {"max_count_limit": inner.max_count}
        case "parent_last_tool":
            return {"children": list(inner.children)}
        case _:
            return {}


def _letta_output(outcome: ConditionalOutcome) -> str:
    kind = outcome.WhichOneof("output") or "text"
    value = getattr(outcome, kind)
    return value if isinstance(value, str) else json.dumps(value)


def _conditional(rule: Row) -> ToolRule:
    mapping: Mapping[Any, str] = rule.get("child_output_mapping") or {}
    return ToolRule(
        conditional=ConditionalRule(
            tool_name=rule["tool_name"],
            outcomes=[_outcome(output, child) for output, child in mapping.items()],
            default_child=rule.get("default_child"),
            require_output_mapping=bool(rule.get("require_output_mapping")),
        )
    )


def _outcome(output: Any, child: str) -> ConditionalOutcome:
    """JSON has keys of text only: "true" and "5" are the value of which they are the text."""
    value = output
    if isinstance(output, str):
        try:
            parsed = json.loads(output)
        except (ValueError, RecursionError):
            parsed = output
        value = parsed if isinstance(parsed, bool | int | float) else output
    match value:
        case bool():
            return ConditionalOutcome(boolean=value, child=child)
        case int():
            return ConditionalOutcome(integer=value, child=child)
        case float():
            return ConditionalOutcome(number=value, child=child)
        case _:
            return ConditionalOutcome(text=str(value), child=child)


def _constrain_child_tools(rule: Row) -> ToolRule:
    nodes = rule.get("child_arg_nodes") or ()
    return ToolRule(
        constrain_child_tools=ConstrainChildToolsRule(
            tool_name=rule["tool_name"],
            children=rule.get("children") or (),
            child_arguments=[
                ChildArguments(tool_name=node["name"], arguments=json_text(node["args"]) or "")
                for node in nodes
                if node.get("args")
            ],
        )
    )


def _max_count(rule: Row) -> ToolRule:
    inner = MaxCountPerStepRule(tool_name=rule["tool_name"], max_count=rule["max_count_limit"])
    return ToolRule(max_count_per_step=inner)


def _parent_last(rule: Row) -> ToolRule:
    return ToolRule(
        parent_last_tool=ParentLastToolRule(tool_name=rule["tool_name"], children=rule.get("children") or ())
    )


def _run_first(rule: Row) -> ToolRule:
    return ToolRule(run_first=RunFirstRule(tool_name=rule["tool_name"], arguments=json_text(rule.get("args"))))


_READERS: Final[Mapping[str, Callable[[Row], ToolRule]]] = {
    "run_first": _run_first,
    "exit_loop": lambda rule: ToolRule(exit_loop=ExitLoopRule(tool_name=rule["tool_name"])),
    "continue_loop": lambda rule: ToolRule(continue_loop=ContinueLoopRule(tool_name=rule["tool_name"])),
    "conditional": _conditional,
    "constrain_child_tools": _constrain_child_tools,
    "max_count_per_step": _max_count,
    "parent_last_tool": _parent_last,
    "required_before_exit": lambda rule: ToolRule(
        required_before_exit=RequiredBeforeExitRule(tool_name=rule["tool_name"])
    ),
    "requires_approval": lambda rule: ToolRule(requires_approval=RequiresApprovalRule(tool_name=rule["tool_name"])),
}


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
