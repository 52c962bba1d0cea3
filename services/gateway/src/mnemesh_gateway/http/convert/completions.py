"""Chat completions, and the chunks of their streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnemesh_gateway.model.agents import AgentInfo
from mnemesh_gateway.model.answers import ToolCall, Usage
from mnemesh_gateway.usecases.chat import Answer


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
