"""Requests of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnemesh_kit.ids import is_id

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter
from mnemesh_gateway.http.convert.chat import (
    choice_from_json,
    effort_from_json,
    format_from_json,
    parameters_from_json,
    settings_from_json,
    tools_from_json,
)
from mnemesh_gateway.http.convert.fields import of_type, one_of, optional, required
from mnemesh_gateway.http.convert.messages import messages_from_json
from mnemesh_gateway.http.parameters import ignored_responses_parameters
from mnemesh_gateway.model.chat import ChatRequest

_RESPONSE = "resp_"


def response_id(run_id: str) -> str:
    """Returns the id of the response of a run."""
    return _RESPONSE + run_id.removeprefix("run-")


def response_request_from_json(body: Mapping[str, Any], *, strict: bool = False) -> ChatRequest:
    """Returns the request of a body of /v1/responses. Raises InvalidRequest.

    Args:
        body: The body.
        strict: Refuses parameters that would be ignored.
    """
    ignored = ignored_responses_parameters(body, strict=strict)
    model = required(body, "model", str)
    if "input" not in body:
        raise InvalidRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    items = body["input"]
    messages = (
        [{"role": "user", "content": items}]
        if isinstance(items, str)
        else [_message(item, f"input[{index}]") for index, item in enumerate(of_type(items, list, "input"))]
    )
    found, delta = messages_from_json([item for item in messages if item is not None], [], "input")
    given = optional(body, "instructions", str)
    texts = [text for text in (given, found) if text is not None]
    text = optional(body, "text", dict) or {}
    verbosity = optional(text, "verbosity", str, "text")
    reasoning = optional(body, "reasoning", dict) or {}
    settings = settings_from_json(body, effort_from_json(reasoning, "effort", "reasoning"))
    return ChatRequest(
        model=model,
        instructions="\n\n".join(texts) if texts else None,
        delta=delta,
        tools=(tools := tools_from_json(body)),
        choice=choice_from_json(body, tools),
        settings=settings,
        parameters={**parameters_from_json(body), **({"verbosity": verbosity} if verbosity else {})},
        ignored=ignored,
        format=format_from_json(optional(text, "format", dict, "text"), "text.format"),
        user=optional(body, "safety_identifier", str) or optional(body, "user", str),
        metadata=optional(body, "metadata", dict) or {},
        stream=optional(body, "stream", bool) or False,
    )


def _message(item: Any, path: str) -> dict[str, Any] | None:
    """Returns an item of the input as a chat message; None for reasoning, which the mesh has."""
    item = of_type(item, dict, path)
    match optional(item, "type", str, path) or "message":
        case "message":
            one_of(required(item, "role", str, path), ("user", "assistant", "system", "developer"), f"{path}.role")
            return {key: value for key, value in item.items() if key in ("role", "content", "name")}
        case "function_call":
            name = required(item, "name", str, path)
            call_id, arguments = required(item, "call_id", str, path), required(item, "arguments", str, path)
            function = {"name": name, "arguments": arguments}
            return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
        case "function_call_output":
            if "output" not in item:
                raise InvalidRequest(
                    f"Missing required parameter: '{path}.output'.", f"{path}.output", "missing_required_parameter"
                )
            return {"role": "tool", "tool_call_id": required(item, "call_id", str, path), "content": item["output"]}
        case "reasoning":
            return None
        case kind:
            raise UnsupportedParameter(f"{path}.type", "Send messages, function calls and their outputs.", kind[:100])


def continued_run_id(body: Mapping[str, Any]) -> str | None:
    """Returns the run of `previous_response_id`. Raises InvalidRequest if it is no id of a response."""
    given = optional(body, "previous_response_id", str)
    if given is None:
        return None
    run_id = f"run-{given.removeprefix(_RESPONSE)}"
    if not given.startswith(_RESPONSE) or not is_id(run_id, "run"):
        raise InvalidRequest(
            f"There is no response {given[:100]!r}.", "previous_response_id", "previous_response_not_found"
        )
    if body.get("conversation") is not None:
        raise InvalidRequest("'previous_response_id' and 'conversation' exclude each other.", "conversation")
    return run_id


def continued_conversation_id(body: Mapping[str, Any]) -> str | None:
    """Returns the id of `conversation`, which is that of the mesh. Raises InvalidRequest."""
    given = body.get("conversation")
    if isinstance(given, dict):
        given = required(given, "id", str, "conversation")
    if given is None:
        return None
    if not is_id(of_type(given, str, "conversation"), "conv"):
        raise InvalidRequest(
            "'conversation' must be the id of a conversation of the agent: conv-<uuid4>.", "conversation"
        )
    return str(given)
