"""Chat requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter
from mnemesh_gateway.http.convert.fields import between, joined, of_type, one_of, optional, required
from mnemesh_gateway.http.convert.messages import last_user_text, messages_from_json, parts_from_json
from mnemesh_gateway.http.parameters import require_known_parameters
from mnemesh_gateway.model.chat import Caller, ChatRequest, Format, Settings, Tool
from mnemesh_gateway.model.tasks import Task, TaskMessage, is_task

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
_STREAM_OPTIONS: Final = {"include_usage", "include_obfuscation"}
_MAX_TOKENS: Final = 2**31 - 1


def chat_request_from_json(body: Mapping[str, Any]) -> ChatRequest:
    """Returns the request of a body of /v1/chat/completions. Raises InvalidRequest."""
    require_known_parameters(body)
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
        tools=tools_from_json(body),
        settings=settings_from_json(body),
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
    if choice is None or choice == "auto":
        return tuple(tools)
    if choice == "none":
        return ()
    if not isinstance(choice, str):
        of_type(choice, dict, "tool_choice")
    elif choice != "required":
        one_of(choice, ("auto", "none", "required"), "tool_choice")
    raise UnsupportedParameter("tool_choice", "An agent decides which tools it calls; use 'auto' or 'none'.")


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
