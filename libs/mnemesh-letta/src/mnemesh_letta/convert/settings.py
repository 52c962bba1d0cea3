"""The settings of agents in both directions: models, compactions, response formats and tool rules."""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1.agents_pb2 import (
    Agent,
    ChildArguments,
    CompactionSettings,
    ConditionalOutcome,
    JsonObjectFormat,
    JsonSchemaFormat,
    ModelSettings,
    ResponseFormat,
    Secret,
    TextFormat,
    ToolRule,
)

from mnemesh_letta.convert.values import (
    AGENT_TYPES,
    NAMES,
    ORIGIN,
    Row,
    fill,
    from_row,
    id_of,
    json_text,
    json_value,
    optional_text,
    present,
    set_present,
    time_zone,
)

COMPACTION_MODES: Final = {
    "sliding_window": agents_pb2.COMPACTION_MODE_SLIDING_WINDOW,
    "all": agents_pb2.COMPACTION_MODE_ALL,
    "self_compact_sliding_window": agents_pb2.COMPACTION_MODE_SELF_COMPACT_SLIDING_WINDOW,
    "self_compact_all": agents_pb2.COMPACTION_MODE_SELF_COMPACT_ALL,
    "episodic": agents_pb2.COMPACTION_MODE_EPISODIC,
}
"""The modes by their names in Letta's API. Letta itself does not have the last one."""
COMPACTION_MODE_NAMES: Final = {mode: name for name, mode in COMPACTION_MODES.items()}
_LEGACY_RULES: Final = {
    "InitToolRule": "run_first",
    "TerminalToolRule": "exit_loop",
    "ContinueToolRule": "continue_loop",
    "ChildToolRule": "constrain_child_tools",
    "ParentToolRule": "parent_last_tool",
    "ConditionalToolRule": "conditional",
    "MaxCountPerStepToolRule": "max_count_per_step",
    "RequiredBeforeExitToolRule": "required_before_exit",
    "RequiresApprovalToolRule": "requires_approval",
}
_OF_MODELS: Final = (
    *("context_window", "max_tokens", "temperature", "parallel_tool_calls", "put_inner_thoughts_in_kwargs"),
    *("enable_reasoner", "reasoning_effort", "max_reasoning_tokens", "strict"),
)
"""The settings in a configuration of a model."""
_PLAIN: Final = ("temperature", "max_output_tokens", "parallel_tool_calls", "top_p", "strict")
_UNDERSTOOD: Final = frozenset({*_PLAIN, "provider_type", "reasoning", "response_format", "thinking", "effort"})
_OPTIONS: Final = ("frequency_penalty", "verbosity")
_EMBEDDING_DIMENSIONS: Final = 1536
_CONTEXT_WINDOW: Final = 32_000
_ENDPOINT_TYPES: Final = frozenset(
    {
        *("openai", "anthropic", "google_ai", "azure", "groq", "ollama", "vllm", "mistral", "together", "bedrock"),
        *("deepseek", "xai", "zai", "openrouter"),
    }
)


class InvalidSetting(ValueError):
    """A setting cannot be read; `loc` is the path of what is wrong in it."""

    def __init__(self, message: str, *loc: str) -> None:
        super().__init__(message)
        self.loc = loc


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
    chosen: dict[str, Any] | None = row.get("compaction_settings")
    names = (
        *("description", "metadata", "metadata_", "message_buffer_autoclear", "max_files_open", "hidden"),
        *("per_file_view_window_char_limit", "last_run_completion", *ORIGIN),
    )
    result = from_row(
        Agent,
        row,
        names,
        id=id_of(row["id"], "agent"),
        name=optional_text(row, "name") or "",
        type=kind,
        system=row.get("system") or "",
        model=row.get("model") or model_handle(llm),
        model_settings=model_settings(llm),
        embedder=embedder_handle(embedding) or row.get("embedding"),
        tool_rules=[tool_rule(rule) for rule in row.get("tool_rules") or ()],
        tags=tags,
        time_zone=time_zone(row),
        compaction_settings=compaction(chosen.get("mode"), chosen) if chosen else None,
        identity_ids=identity_ids,
        secrets=[Secret(key=name) for name in secrets],
    )
    if given := row.get("response_format") or llm.get("response_format"):
        with suppress(InvalidSetting):
            result.response_format.CopyFrom(response_format(given))
    return result


def model_handle(config: Row) -> str:
    """Returns the handle in a model configuration of Letta; empty if there is none."""
    if config.get("handle"):
        return str(config["handle"])
    if not config.get("model"):
        return ""
    return f"{config.get('provider_name') or config.get('model_endpoint_type') or 'openai'}/{config['model']}"


def embedder_handle(config: Row) -> str | None:
    """Returns the handle in an embedding configuration of Letta."""
    if config.get("handle"):
        return str(config["handle"])
    if not config.get("embedding_model"):
        return None
    return f"{config.get('embedding_endpoint_type') or 'openai'}/{config['embedding_model']}"


def model_settings(config: Row) -> ModelSettings:
    """Returns the settings in a model configuration of Letta. Values that mean "not set" are left out."""
    settings = ModelSettings()
    effort = config.get("reasoning_effort") or config.get("effort")
    fill(settings, {name: config.get(name) for name in _OF_MODELS} | {"reasoning_effort": effort})
    if 0 < settings.context_window <= settings.max_output_tokens:
        # Letta does not compare the two. No request leaves an answer the whole window.
        settings.ClearField("max_output_tokens")
    if not settings.max_reasoning_tokens:
        settings.ClearField("max_reasoning_tokens")
    options = {key: config[key] for key in _OPTIONS if config.get(key) is not None}
    set_present(settings, provider_options=json_text(options or None))
    return settings


def llm_config(agent: Agent) -> dict[str, Any]:
    """Returns the model of an agent with its settings."""
    provider, _, model = agent.model.partition("/")
    settings = agent.model_settings
    config = {name: present(settings, NAMES.get(name, name)) for name in _OF_MODELS}
    return {
        "model": model,
        "model_endpoint_type": provider if provider in _ENDPOINT_TYPES else "openai",
        "handle": agent.model,
        **{name: value for name, value in config.items() if value is not None},
        "context_window": settings.context_window or _CONTEXT_WINDOW,
        **(json_value(settings.provider_options) or {}),
    }


def embedding_config(handle: str, chunk_size: int) -> dict[str, Any] | None:
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


def fill_api_settings(settings: ModelSettings, given: Row) -> None:
    """Sets the settings of a model as Letta's API names them. What only the provider knows is sent to it as it is.

    Raises:
        TypeError, ValueError, AttributeError: a setting has the wrong type.
    """
    reasoning, thinking = given.get("reasoning") or {}, given.get("thinking") or {}
    fill(settings, {name: given.get(name) for name in _PLAIN})
    set_present(
        settings,
        reasoning_effort=reasoning.get("reasoning_effort") or given.get("effort"),
        max_reasoning_tokens=thinking.get("budget_tokens"),
    )
    if "type" in thinking:
        settings.enable_reasoner = thinking["type"] != "disabled"
    further = {name: value for name, value in given.items() if name not in _UNDERSTOOD and value is not None}
    set_present(settings, provider_options=json_text(further or None))


def api_settings(provider_type: str, settings: ModelSettings) -> dict[str, Any]:
    """Returns the settings of a model as Letta's API names them."""
    found: dict[str, Any] = {"provider_type": provider_type}
    for name in ("max_output_tokens", "temperature", "parallel_tool_calls"):
        value = present(settings, name)
        if value is not None:
            found[name] = value
    effort = present(settings, "reasoning_effort")
    if effort is not None:
        found["reasoning"] = {"reasoning_effort": effort}
    if settings.HasField("strict_tool_schemas"):
        found["strict"] = settings.strict_tool_schemas
    if settings.HasField("enable_reasoner") and provider_type == "anthropic":
        thinking: dict[str, Any] = {"type": "enabled" if settings.enable_reasoner else "disabled"}
        if settings.HasField("max_reasoning_tokens"):
            thinking["budget_tokens"] = settings.max_reasoning_tokens
        found["thinking"] = thinking
    return found | (json_value(settings.provider_options) or {})


def conversation_settings(given: Row) -> ModelSettings:
    """Returns the settings of a conversation in a database, which has those of the API."""
    settings = ModelSettings()
    fill_api_settings(settings, {name: value for name, value in given.items() if name in _UNDERSTOOD | {*_OPTIONS}})
    gemini = given.get("thinking_config") or {}
    more = {"enable_reasoner": gemini.get("include_thoughts"), "max_reasoning_tokens": gemini.get("thinking_budget")}
    fill(settings, more)
    return settings


def compaction(mode: str | None, given: object) -> CompactionSettings:
    """Returns the compaction settings in a row or an object of the API, without the settings of a model.

    Raises:
        ValueError: the mode is not known.
    """
    if (mode or "sliding_window") not in COMPACTION_MODES:
        raise ValueError(f"the compaction mode {mode!r} is not known")
    settings = CompactionSettings(mode=COMPACTION_MODES[mode or "sliding_window"])
    fill(settings, given)
    return settings


def letta_compaction(agent: Agent) -> dict[str, Any] | None:
    """Returns the compaction settings of an agent for a file; None for a mode that Letta does not have."""
    settings = agent.compaction_settings
    mode = COMPACTION_MODE_NAMES.get(settings.mode, "episodic")
    if not agent.HasField("compaction_settings") or mode == "episodic":
        return None
    names = ("model", "prompt", "prompt_acknowledgement", "clip_chars", "sliding_window_percentage")
    chosen = {name: value for name in names if (value := present(settings, name)) is not None}
    return {"mode": mode, **chosen}


def response_format(given: Row) -> ResponseFormat:
    """Returns a response format.

    Raises:
        InvalidSetting: the type is unknown, or a schema has no object.
    """
    match given.get("type"):
        case "text":
            return ResponseFormat(text=TextFormat())
        case "json_object":
            return ResponseFormat(json_object=JsonObjectFormat())
        case "json_schema":
            schema = given.get("json_schema")
            if not isinstance(schema, Mapping):
                raise InvalidSetting("Input should be a valid dictionary", "json_schema")
            inner = schema.get("schema", schema)
            if not isinstance(inner, Mapping) or not inner:
                raise InvalidSetting("Input should have a JSON schema", "json_schema", "schema")
            # The title of a schema may have any characters, the name of a format may not.
            name = schema.get("name") or re.sub(r"[^A-Za-z0-9_-]", "_", str(inner.get("title", "")))[:64]
            message = JsonSchemaFormat(name=str(name or "answer"), schema=json_text(inner) or "{}")
            set_present(message, strict=schema.get("strict"))
            return ResponseFormat(json_schema=message)
    raise InvalidSetting("Input should be 'text', 'json_schema' or 'json_object'", "type")


def letta_response_format(agent: Agent) -> dict[str, Any] | None:
    match agent.response_format.WhichOneof("format"):
        case None:
            return None
        case "json_schema":
            given = agent.response_format.json_schema
            schema = {"name": given.name, "schema": json_value(given.schema), "strict": present(given, "strict")}
            return {"type": "json_schema", "json_schema": schema}
        case kind:
            return {"type": kind}


def tool_rule(rule: Row) -> ToolRule:
    """Returns a tool rule. One without a type has that which its fields name.

    Raises:
        KeyError: a field is missing.
        TypeError, ValueError, AttributeError: the type is not known, or a field has the wrong type.
    """
    given = str(rule.get("type") or _kind_of(rule))
    kind = _LEGACY_RULES.get(given, given)
    if kind not in ToolRule.DESCRIPTOR.fields_by_name:
        raise ValueError(f"the tool rule of {rule.get('tool_name')!r} has the unknown type {given!r}")
    result = ToolRule()
    inner: Any = getattr(result, kind)
    inner.tool_name = rule["tool_name"]
    match kind:
        case "run_first":
            set_present(inner, arguments=json_text(rule.get("args") or None))
        case "max_count_per_step":
            inner.max_count = rule["max_count_limit"]
        case "parent_last_tool" | "constrain_child_tools":
            inner.children.extend(rule["children"])
        case "conditional":
            outcomes: Mapping[Any, str] = rule["child_output_mapping"]
            inner.outcomes.extend(_outcome(output, child) for output, child in outcomes.items())
            inner.require_output_mapping = bool(rule.get("require_output_mapping"))
            set_present(inner, default_child=rule.get("default_child"))
    if kind == "constrain_child_tools":
        nodes = [node for node in rule.get("child_arg_nodes") or () if node.get("args")]
        inner.child_arguments.extend(
            ChildArguments(tool_name=node["name"], arguments=json_text(node["args"]) or "") for node in nodes
        )
    return result


def _kind_of(rule: Row) -> str:
    if "child_output_mapping" in rule:
        return "conditional"
    if "max_count_limit" in rule:
        return "max_count_per_step"
    return "constrain_child_tools" if "children" in rule else "run_first"


def _outcome(output: Any, child: str) -> ConditionalOutcome:
    """JSON has keys of text only: "true" and "5" are the value of which they are the text."""
    value = output
    if isinstance(output, str):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(output.lower() if output in ("True", "False") else output)
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


def letta_rule(rule: ToolRule) -> dict[str, Any]:
    """Returns a rule in Letta's form."""
    kind = rule.WhichOneof("rule")
    if kind is None:
        raise ValueError("a tool rule is empty")
    inner: Any = getattr(rule, kind)
    found: dict[str, Any] = {"tool_name": inner.tool_name, "type": kind, "prompt_template": None}
    match kind:
        case "run_first":
            found["args"] = json_value(inner.arguments)
        case "conditional":
            found |= {
                "default_child": present(inner, "default_child"),
                "child_output_mapping": {_output_text(outcome): outcome.child for outcome in inner.outcomes},
                "require_output_mapping": inner.require_output_mapping,
            }
        case "constrain_child_tools":
            nodes = [{"name": item.tool_name, "args": json_value(item.arguments)} for item in inner.child_arguments]
            found |= {"children": list(inner.children), "child_arg_nodes": nodes or None}
        case "parent_last_tool":
            found["children"] = list(inner.children)
        case "max_count_per_step":
            found["max_count_limit"] = inner.max_count
    return found


def _output_text(outcome: ConditionalOutcome) -> str:
    kind = outcome.WhichOneof("output") or "text"
    value = getattr(outcome, kind)
    return value if isinstance(value, str) else json.dumps(value)
