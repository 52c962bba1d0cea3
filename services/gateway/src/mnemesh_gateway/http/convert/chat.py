"""Conversions of chat completions: requests, answers and chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

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
from mnemesh_gateway.model.chat import Caller, ChatRequest, Choice, Format, Settings, Tool
from mnemesh_gateway.model.models import AgentInfo
from mnemesh_gateway.model.runs import ToolCall, Usage
from mnemesh_gateway.model.tasks import Task, TaskMessage, is_task
from mnemesh_gateway.usecases.chat import Answer

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
    return ChatRequest(
        model=model,
        instructions=instructions,
        delta=delta,
        tools=(tools := tools_from_json(body)),
        choice=choice_from_json(body, tools),
        settings=settings_from_json(body),
        parameters=parameters_from_json(body),
        ignored=ignored,
        format=format_from_json(optional(body, "response_format", dict)),
        user=optional(body, "safety_identifier", str) or optional(body, "user", str),
        metadata=optional(body, "metadata", dict) or {},
        stream=stream,
        include_usage=optional(stream_options, "include_usage", bool, "stream_options") or False,
    )


def task_from_json(body: Mapping[str, Any], chat: ChatRequest, client: Caller) -> Task | None:
    """Returns the front end's own task if a request is one, otherwise None. Raises InvalidRequest."""
    messages = body["messages"]
    texts = (chat.instructions or "", last_user_text(messages))
    if not is_task(client.task, chat.metadata, texts, has_tools=bool(chat.tools)):
        return None
    shown = [
        TaskMessage(message["role"], parts_from_json(message["content"], f"messages[{index}].content"))
        for index, message in enumerate(messages)
        if message["role"] in ("user", "assistant") and message.get("content")
    ]
    return Task(chat.instructions, tuple(shown), chat.settings, chat.format, chat.stream) if shown else None


def settings_from_json(body: Mapping[str, Any], effort: str | None = None) -> Settings:
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
    return Settings(temperature, top_p, limit, optional(body, "parallel_tool_calls", bool), effort)


def effort_from_json(value: Mapping[str, Any], name: str, path: str = "") -> str | None:
    """Returns the reasoning effort that a field has. Raises InvalidRequest."""
    effort = optional(value, name, str, path)
    return None if effort is None else one_of(effort, _EFFORTS, joined(path, name))


def tools_from_json(body: Mapping[str, Any]) -> tuple[Tool, ...]:
    """Returns the client's tools. Raises InvalidRequest."""
    items = optional(body, "tools", list) or []
    tools = [_tool(of_type(item, dict, f"tools[{n}]"), f"tools[{n}]") for n, item in enumerate(items)]
    choice = body.get("tool_choice")
    if choice == "none":
        return ()
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        names = _allowed_names(choice)
        return tuple(tool for tool in tools if tool.name in names)
    return tuple(tools)


def choice_from_json(body: Mapping[str, Any], tools: Sequence[Tool]) -> Choice:
    """Returns which tools the model must call. Raises InvalidRequest.

    Args:
        body: The body.
        tools: The client's tools that the choice leaves.
    """
    choice = body.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return Choice()
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
        return Choice()
    if not tools or (name is not None and name not in {tool.name for tool in tools}):
        wanted = "at least one tool" if name is None else f"the tool {name[:100]!r}"
        raise InvalidRequest(f"Invalid value for 'tool_choice': 'tools' must have {wanted}.", "tool_choice")
    return Choice(name, is_required=name is None)


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


def _tool(item: Mapping[str, Any], path: str) -> Tool:
    kind = required(item, "type", str, path)
    if kind != "function":
        raise UnsupportedParameter(f"{path}.type", "Agents take tools of the type 'function'.")
    nested = "function" in item
    function = required(item, "function", dict, path) if nested else item
    path = f"{path}.function" if nested else path
    parameters = optional(function, "parameters", dict, path) or {}
    return Tool(
        name=required(function, "name", str, path),
        description=optional(function, "description", str, path),
        parameters=msgspec.json.encode(parameters).decode(),
        path=path,
    )


def format_from_json(value: Mapping[str, Any] | None, path: str = "response_format") -> Format | None:
    """Returns the response format. Raises InvalidRequest."""
    if value is None:
        return None
    kind = one_of(required(value, "type", str, path), ("text", "json_object", "json_schema"), f"{path}.type")
    if kind != "json_schema":
        return Format(kind)
    nested = "json_schema" in value or path == "response_format"
    given = required(value, "json_schema", dict, path) if nested else value
    path = f"{path}.json_schema" if nested else path
    return Format(
        kind,
        required(given, "name", str, path),
        msgspec.json.encode(required(given, "schema", dict, path)).decode(),
        optional(given, "strict", bool, path),
    )


def completion_id(answer: Answer) -> str:
    """Returns the id of an answer: that of its run, so that a repeat has the same one."""
    return "chatcmpl-" + (answer.begun.run_id.removeprefix("run-") if answer.begun is not None else "empty")


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
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": usage.total_tokens if usage.total_tokens is not None else prompt + completion,
    }
    if usage.cached_tokens is not None:
        found["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return found


def model_to_json(agent: AgentInfo, name: str) -> dict[str, Any]:
    """Returns a model object for an agent, under its id or its name."""
    return {
        "id": name,
        "object": "model",
        "created": int(agent.created_at.timestamp()),
        "owned_by": "mnemesh",
        "name": agent.name,
        "agent_id": agent.id,
    }
