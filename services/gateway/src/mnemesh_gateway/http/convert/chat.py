"""Conversions of chat completions: requests, answers and chunks."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from mnemesh.agents.v1.agents_pb2 import (
    Agent,
    JsonObjectFormat,
    JsonSchemaFormat,
    ModelSettings,
    ResponseFormat,
    TextFormat,
)
from mnemesh.agents.v1.runs_pb2 import ClientTool, InputMessage, RunConfig
from mnemesh.types.v1.message_pb2 import ROLE_ASSISTANT, ROLE_USER, ToolCall, Usage

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter
from mnemesh_gateway.http.convert.messages import (
    between,
    joined,
    last_user_text,
    messages_from_json,
    of_type,
    one_of,
    optional,
    parts_from_json,
    required,
)
from mnemesh_gateway.http.parameters import PASSED, ignored_parameters
from mnemesh_gateway.usecases.chat import Answer, Caller, ChatRequest
from mnemesh_gateway.usecases.tasks import Task, is_task

_MAX_INT: Final = 2**31 - 1
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
_STREAM_OPTIONS: Final = {"include_usage", "include_obfuscation"}
_RANGES: Final = (
    ("frequency_penalty", -2, 2),
    ("presence_penalty", -2, 2),
    ("top_k", -1, _MAX_INT),
    ("min_p", 0, 1),
    ("repetition_penalty", 0, 1_000),
)
_MAX_TOKENS: Final = 2**31 - 1


def chat_request_from_json(body: Mapping[str, Any], *, strict: bool = False) -> ChatRequest:
    """Returns the request of a body of /v1/chat/completions. Raises InvalidRequest.

    Args:
        body: The body.
        strict: Refuses parameters that would be ignored.
    """
    ignored = ignored_parameters(body, strict=strict)
    model = required(body, "model", str)
    messages = required(body, "messages", list)
    instructions, delta = messages_from_json(messages, optional(body, "tool_results", list) or [])
    stream_options = optional(body, "stream_options", dict) or {}
    stream = optional(body, "stream", bool) or False
    for name in stream_options.keys() - _STREAM_OPTIONS:
        raise InvalidRequest(
            f"Unknown parameter: 'stream_options.{name[:100]}'.", f"stream_options.{name[:100]}", "unknown_parameter"
        )
    if stream_options and not stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    form = format_from_json(optional(body, "response_format", dict))
    config, tool_paths = config_from_json(body, settings_from_json(body), form)
    return ChatRequest(
        model=model,
        instructions=instructions,
        delta=delta,
        config=config,
        tool_paths=tool_paths,
        ignored=ignored,
        user=optional(body, "safety_identifier", str) or optional(body, "user", str),
        metadata=optional(body, "metadata", dict) or {},
        include_usage=optional(stream_options, "include_usage", bool, "stream_options") or False,
    )


def task_from_json(body: Mapping[str, Any], chat: ChatRequest, client: Caller) -> Task | None:
    """Returns the front end's own task if a request is one, otherwise None. Raises InvalidRequest."""
    messages = body["messages"]
    texts = (chat.instructions or "", last_user_text(messages))
    if not is_task(client.task, chat.metadata, texts, has_tools=bool(chat.config.client_tools)):
        return None
    shown = [
        InputMessage(
            role=ROLE_ASSISTANT if message["role"] == "assistant" else ROLE_USER,
            content=parts_from_json(message["content"], f"messages[{index}].content"),
        )
        for index, message in enumerate(messages)
        if message["role"] in ("user", "assistant") and message.get("content")
    ]
    config = RunConfig(stream_tokens=chat.config.stream_tokens)
    for name in ("model_settings", "response_format"):
        if chat.config.HasField(name):
            getattr(config, name).CopyFrom(getattr(chat.config, name))
    return Task(chat.instructions, tuple(shown), config) if shown else None


def config_from_json(
    body: Mapping[str, Any],
    settings: ModelSettings | None,
    form: ResponseFormat | None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[RunConfig, tuple[str, ...]]:
    """Returns the configuration of the run of a request, and the paths of its tools. Raises InvalidRequest.

    Args:
        body: the body.
        settings: those of the model call.
        form: that of the response.
        more: parameters of the provider that were read before.
    """
    tools = tools_from_json(body)
    name, is_required = choice_from_json(body, tools)
    parameters = {**parameters_from_json(body), **more}
    config = RunConfig(
        stream_tokens=optional(body, "stream", bool) or False,
        client_tools=[tool for tool, _ in tools],
        parameters=msgspec.json.encode(parameters).decode() if parameters else None,
        forced_tool=name,
        requires_tool=is_required,
        response_format=form,
        model_settings=settings,
    )
    return config, tuple(path for _, path in tools)


def settings_from_json(body: Mapping[str, Any], effort: str | None = None) -> ModelSettings | None:
    """Returns the settings of the model call, with an effort that was read before. Raises InvalidRequest."""
    temperature, top_p = optional(body, "temperature", float), optional(body, "top_p", float)
    between(temperature, 0, 2, "temperature")
    between(top_p, 0, 1, "top_p")
    limit = None
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        value = optional(body, name, int)
        between(value, 1, _MAX_TOKENS, name)
        limit = value if value is not None else limit
    effort = effort or effort_from_json(body, "reasoning_effort")
    settings = ModelSettings(
        temperature=temperature,
        top_p=top_p,
        max_output_tokens=limit,
        parallel_tool_calls=optional(body, "parallel_tool_calls", bool),
        reasoning_effort=effort,
    )
    return settings if settings.ListFields() else None


def effort_from_json(value: Mapping[str, Any], name: str, path: str = "") -> str | None:
    """Returns the reasoning effort that a field has. Raises InvalidRequest."""
    effort = optional(value, name, str, path)
    return None if effort is None else one_of(effort, _EFFORTS, joined(path, name))


def tools_from_json(body: Mapping[str, Any]) -> list[tuple[ClientTool, str]]:
    """Returns the client's tools, each with its path in the request. Raises InvalidRequest."""
    items = optional(body, "tools", list) or []
    tools = [_tool(of_type(item, dict, f"tools[{n}]"), f"tools[{n}]") for n, item in enumerate(items)]
    choice = body.get("tool_choice")
    if choice == "none":
        return []
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        names = _allowed_names(choice)
        return [(tool, path) for tool, path in tools if tool.name in names]
    return tools


def choice_from_json(body: Mapping[str, Any], tools: Sequence[tuple[ClientTool, str]]) -> tuple[str | None, bool]:
    """Returns what the model must call: the name of a tool, or whether any. Raises InvalidRequest.

    Args:
        body: The body.
        tools: The client's tools that the choice leaves.
    """
    choice = body.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return None, False
    if isinstance(choice, str):
        one_of(choice, ("auto", "none", "required"), "tool_choice")
        mode, name = "required", None
    else:
        kind = required(of_type(choice, dict, "tool_choice"), "type", str, "tool_choice")
        one_of(kind, ("function", "allowed_tools"), "tool_choice.type")
        if kind == "function":
            inner = "function" in choice
            named = required(choice, "function", dict, "tool_choice") if inner else choice
            mode, name = "named", required(named, "name", str, "tool_choice.function" if inner else "tool_choice")
        else:
            mode, name = optional(_allowed(choice), "mode", str, "tool_choice") or "auto", None
            one_of(mode, ("auto", "required"), "tool_choice.mode")
    if mode == "auto":
        return None, False
    if not tools or (name is not None and name not in {tool.name for tool, _ in tools}):
        wanted = "at least one tool" if name is None else f"the tool {name[:100]!r}"
        raise InvalidRequest(f"Invalid value for 'tool_choice': 'tools' must have {wanted}.", "tool_choice")
    return name, name is None


def _allowed(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the object with mode and tools: the Chat API has it one level deeper than the Responses API."""
    inner = optional(choice, "allowed_tools", dict, "tool_choice")
    return choice if inner is None else inner


def _allowed_names(choice: Mapping[str, Any]) -> set[str]:
    names = set()
    for number, item in enumerate(required(_allowed(choice), "tools", list, "tool_choice")):
        path = f"tool_choice.tools[{number}]"
        tool = of_type(item, dict, path)
        names.add(required(optional(tool, "function", dict, path) or tool, "name", str, path))
    return names


def parameters_from_json(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that are passed on to the provider. Raises InvalidRequest."""
    optional(body, "seed", int)
    between(body.get("seed"), -(2**63), 2**63 - 1, "seed")
    for name, low, high in _RANGES:
        between(optional(body, name, float), low, high, name)
    optional(body, "logit_bias", dict)
    for name in ("service_tier", "verbosity"):
        optional(body, name, str)
    stop = body.get("stop")
    if stop is not None and not isinstance(stop, str):
        for number, item in enumerate(of_type(stop, list, "stop")):
            of_type(item, str, f"stop[{number}]")
    return {name: body[name] for name in PASSED if body.get(name) not in (None, "", [], {})}


def _tool(item: Mapping[str, Any], path: str) -> tuple[ClientTool, str]:
    kind = required(item, "type", str, path)
    if kind != "function":
        raise UnsupportedParameter(f"{path}.type", "Agents take tools of the type 'function'.")
    nested = "function" in item
    function = required(item, "function", dict, path) if nested else item
    path = f"{path}.function" if nested else path
    parameters = optional(function, "parameters", dict, path) or {}
    tool = ClientTool(
        name=required(function, "name", str, path),
        description=optional(function, "description", str, path),
        parameters=msgspec.json.encode(parameters).decode(),
    )
    return tool, path


def format_from_json(value: Mapping[str, Any] | None, path: str = "response_format") -> ResponseFormat | None:
    """Returns the response format. Raises InvalidRequest."""
    if value is None:
        return None
    kind = one_of(required(value, "type", str, path), ("text", "json_object", "json_schema"), f"{path}.type")
    if kind != "json_schema":
        is_text = kind == "text"
        return ResponseFormat(text=TextFormat()) if is_text else ResponseFormat(json_object=JsonObjectFormat())
    nested = "json_schema" in value or path == "response_format"
    given = required(value, "json_schema", dict, path) if nested else value
    path = f"{path}.json_schema" if nested else path
    schema = JsonSchemaFormat(
        name=required(given, "name", str, path),
        schema=msgspec.json.encode(required(given, "schema", dict, path)).decode(),
        strict=optional(given, "strict", bool, path),
    )
    return ResponseFormat(json_schema=schema)


def completion_id(answer: Answer) -> str:
    """Returns the id of an answer: that of its run, so that a repeat has the same one."""
    return "chatcmpl-" + (answer.run_id.removeprefix("run-") if answer.run_id is not None else "empty")


def completion_to_json(
    answer: Answer, model: str, text: str | None, reasoning: str, calls: Sequence[ToolCall], finish: str, usage: Usage
) -> dict[str, Any]:
    """Returns a chat.completion object."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return {
        "id": completion_id(answer),
        "object": "chat.completion",
        "created": int(answer.created_at.timestamp()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": usage_to_json(usage),
        "system_fingerprint": None,
    }


def calls_delta(calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Returns the delta of a chunk with tool calls."""
    return {"tool_calls": [{"index": index, **_call(call)} for index, call in enumerate(calls)]}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage_to_json(usage: Usage) -> dict[str, Any]:
    """Returns a usage object. Figures that the provider did not report are 0."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": usage.total_tokens if usage.HasField("total_tokens") else prompt + completion,
    }
    if usage.HasField("cached_input_tokens"):
        found["prompt_tokens_details"] = {"cached_tokens": usage.cached_input_tokens}
    if usage.HasField("reasoning_tokens"):
        found["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return found


def model_to_json(agent: Agent, name: str) -> dict[str, Any]:
    """Returns a model object for an agent, under its id or its name."""
    return {
        "id": name,
        "object": "model",
        "created": agent.create_time.seconds,
        "owned_by": "mnemesh",
        "name": agent.name,
        "agent_id": agent.id,
    }
