"""Events of runs as the messages of a stream or of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mnemesh.agents.v1 import runs_pb2 as pb

from mnemesh_gateway.errors import RunFailed
from mnemesh_gateway.letta.convert.messages import calls_from_proto, content_from_proto, returns_from_proto
from mnemesh_gateway.letta.convert.values import STOP_REASON_NAMES, moment, present
from mnemesh_gateway.letta.schemas.messages import Usage

_INPUT: Final = frozenset({"system", "user", "approval_response"})
"""The kinds of messages that show the run's input. Letta's streams begin with the answer."""


class Conversion:
    """Converts the events of one run in order. Deltas take the place of the message that they complete to."""

    def __init__(self, *, tokens: bool) -> None:
        self._tokens = tokens
        self._streamed: set[str] = set()

    def message(self, event: pb.RunEvent) -> dict[str, Any] | None:
        """Returns the message of an event; None for one that clients do not see."""
        match event.WhichOneof("event"):
            case "message":
                return self._whole(event)
            case "delta" if self._tokens:
                self._streamed.add(event.delta.otid)
                return _delta(event)
            case "compaction":
                return _compaction(event)
        return None

    def _whole(self, event: pb.RunEvent) -> dict[str, Any] | None:
        message = event.message
        kind = message.WhichOneof("message")
        if kind is None or kind in _INPUT or message.otid in self._streamed:
            return None
        base = _base(event, message.message_id, message.otid, message)
        if kind == "approval_request" and event.agent_id:
            base |= {"sender_id": event.agent_id, "run_id": event.child_run_id}  # of the agent that is to be answered
        return base | _fields(kind, getattr(message, kind))


def _base(event: pb.RunEvent, message_id: str, otid: str, message: pb.MessageEvent | None) -> dict[str, Any]:
    return {
        "id": message_id,
        "date": moment(message, "message_time") if message is not None else moment(event, "create_time"),
        "name": present(message, "name") if message is not None else None,
        "otid": otid,
        "sender_id": present(message, "sender_id") if message is not None else None,
        "step_id": present(event, "step_id"),
        "is_err": present(message, "is_err") if message is not None else None,
        "seq_id": None,
        "run_id": event.run_id,
    }


def _fields(kind: str, given: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"message_type": f"{kind}_message"}
    match kind:
        case "assistant":
            return fields | {"content": content_from_proto(given.content)}
        case "reasoning":
            source = "reasoner_model" if given.is_native else "non_reasoner_model"
            return fields | {"reasoning": given.text, "source": source, "signature": present(given, "signature")}
        case "hidden_reasoning":
            state = "redacted" if given.redacted else "omitted"
            return fields | {"state": state, "hidden_reasoning": present(given, "data")}
        case "tool_call" | "approval_request":
            return fields | calls_from_proto(given.tool_calls)
        case "tool_return":
            return fields | returns_from_proto(given.tool_returns)
    return fields | {"summary": given.text}


def _delta(event: pb.RunEvent) -> dict[str, Any]:
    delta = event.delta
    base = _base(event, delta.message_id, delta.otid, None)
    match delta.WhichOneof("delta"):
        case "assistant_text":
            return base | {"message_type": "assistant_message", "content": delta.assistant_text}
        case "reasoning_text":
            fields = {"reasoning": delta.reasoning_text, "source": "reasoner_model", "signature": None}
            return base | {"message_type": "reasoning_message"} | fields
    call = {
        "name": delta.tool_call.name or None,
        "arguments": delta.tool_call.arguments or None,
        "tool_call_id": delta.tool_call.tool_call_id or None,
    }
    return base | {"message_type": "tool_call_message", "tool_call": call, "tool_calls": call}


def _compaction(event: pb.RunEvent) -> dict[str, Any]:
    result = event.compaction.result
    message_id = result.summary_message_id or f"message-{event.run_id.partition('-')[2]}"
    base = _base(event, message_id, "", None) | {"otid": None}
    return base | {"message_type": "summary_message", "summary": result.summary}


def with_whole_returns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages of a turn with one message for the returns of each step, as the history has it.

    Each return is an event of its own, as soon as its tool has ended. A message has them in the order of the calls.
    """
    returns: dict[str, list[dict[str, Any]]] = {}
    whole: list[dict[str, Any]] = []
    for message in messages:
        if message["message_type"] != "tool_return_message":
            whole.append(message)
            continue
        parts = returns.setdefault(message["id"], [])
        parts.append(message)
        if len(parts) == 1:
            whole.append(message)
    for index, message in enumerate(whole):
        if message["message_type"] == "tool_return_message":
            parts = sorted(returns[message["id"]], key=lambda part: str(part["otid"]))
            whole[index] = parts[0] | {"tool_returns": [one for part in parts for one in part["tool_returns"]]}
    return whole


def run_failed(error: pb.RunError) -> RunFailed:
    """Returns the error of a run."""
    return RunFailed(error.reason, error.message, dict(error.metadata))


def stop_reason(event: pb.RunEvent) -> str:
    """Returns the reason of a stop."""
    return STOP_REASON_NAMES.get(event.stop.reason, "error")


def usage_of(event: pb.RunEvent) -> Usage:
    """Returns the tokens of a turn, those of its conversation in the context window, and the runs that it started."""
    usage = usage_from_proto(event.usage.usage, event.usage.step_count)
    usage.run_ids = list(event.usage.child_run_ids) or None
    usage.context_tokens = present(event.usage, "context_tokens")
    return usage


def usage_from_proto(usage: Any, step_count: int) -> Usage:
    """Returns tokens."""
    return Usage(
        completion_tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        total_tokens=usage.total_tokens or usage.completion_tokens + usage.prompt_tokens,
        step_count=step_count,
        cached_input_tokens=present(usage, "cached_input_tokens"),
        cache_write_tokens=present(usage, "cache_write_tokens"),
        reasoning_tokens=present(usage, "reasoning_tokens"),
    )
