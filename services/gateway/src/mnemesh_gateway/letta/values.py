"""Conversions of values and names that several resources have."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from google.protobuf.message import Message
from mnemesh.agents.v1 import agents_pb2, groups_pb2, identities_pb2, runs_pb2
from mnemesh_kit.time import timestamp_from_proto, timestamp_to_proto

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


STOP_REASONS: Final = {
    "end_turn": agents_pb2.STOP_REASON_END_TURN,
    "error": agents_pb2.STOP_REASON_ERROR,
    "llm_api_error": agents_pb2.STOP_REASON_LLM_API_ERROR,
    "invalid_llm_response": agents_pb2.STOP_REASON_INVALID_LLM_RESPONSE,
    "invalid_tool_call": agents_pb2.STOP_REASON_INVALID_TOOL_CALL,
    "max_steps": agents_pb2.STOP_REASON_MAX_STEPS,
    "max_tokens_exceeded": agents_pb2.STOP_REASON_MAX_TOKENS_EXCEEDED,
    "no_tool_call": agents_pb2.STOP_REASON_NO_TOOL_CALL,
    "tool_rule": agents_pb2.STOP_REASON_TOOL_RULE,
    "cancelled": agents_pb2.STOP_REASON_CANCELLED,
    "requires_approval": agents_pb2.STOP_REASON_REQUIRES_APPROVAL,
    "context_window_overflow_in_system_prompt": agents_pb2.STOP_REASON_CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT,
    "insufficient_credits": agents_pb2.STOP_REASON_INSUFFICIENT_CREDITS,
}


RUN_STATUSES: Final = {
    "created": runs_pb2.RUN_STATUS_CREATED,
    "running": runs_pb2.RUN_STATUS_RUNNING,
    "completed": runs_pb2.RUN_STATUS_COMPLETED,
    "failed": runs_pb2.RUN_STATUS_FAILED,
    "cancelled": runs_pb2.RUN_STATUS_CANCELLED,
}


MESSAGE_EVENTS: Final = {
    "system_message": runs_pb2.EVENT_KIND_SYSTEM_MESSAGE,
    "user_message": runs_pb2.EVENT_KIND_USER_MESSAGE,
    "assistant_message": runs_pb2.EVENT_KIND_ASSISTANT_MESSAGE,
    "reasoning_message": runs_pb2.EVENT_KIND_REASONING_MESSAGE,
    "hidden_reasoning_message": runs_pb2.EVENT_KIND_HIDDEN_REASONING_MESSAGE,
    "tool_call_message": runs_pb2.EVENT_KIND_TOOL_CALL_MESSAGE,
    "tool_return_message": runs_pb2.EVENT_KIND_TOOL_RETURN_MESSAGE,
    "approval_request_message": runs_pb2.EVENT_KIND_APPROVAL_REQUEST_MESSAGE,
    "approval_response_message": runs_pb2.EVENT_KIND_APPROVAL_RESPONSE_MESSAGE,
    "summary_message": runs_pb2.EVENT_KIND_SUMMARY_MESSAGE,
    "event_message": runs_pb2.EVENT_KIND_COMPACTION,
}
"""The kinds of the events of a run, by the types of messages that show them."""


IDENTITY_TYPES: Final = {
    "org": identities_pb2.IDENTITY_TYPE_ORG,
    "user": identities_pb2.IDENTITY_TYPE_USER,
    "other": identities_pb2.IDENTITY_TYPE_OTHER,
}


MANAGER_TYPES: Final = {
    "round_robin": groups_pb2.MANAGER_TYPE_ROUND_ROBIN,
    "supervisor": groups_pb2.MANAGER_TYPE_SUPERVISOR,
    "dynamic": groups_pb2.MANAGER_TYPE_DYNAMIC,
    "sleeptime": groups_pb2.MANAGER_TYPE_SLEEPTIME,
    "voice_sleeptime": groups_pb2.MANAGER_TYPE_VOICE_SLEEPTIME,
    "swarm": groups_pb2.MANAGER_TYPE_SWARM,
}


AGENT_TYPE_NAMES: Final = {value: name for name, value in AGENT_TYPES.items()}


STOP_REASON_NAMES: Final = {value: name for name, value in STOP_REASONS.items()} | {
    # Letta has no names of their own for these.
    agents_pb2.STOP_REASON_CONTEXT_WINDOW_OVERFLOW: "error",
    agents_pb2.STOP_REASON_CONTENT_FILTER: "llm_api_error",
    agents_pb2.STOP_REASON_UNSPECIFIED: "error",
}


RUN_STATUS_NAMES: Final = {value: name for name, value in RUN_STATUSES.items()}


MESSAGE_EVENT_NAMES: Final = {value: name for name, value in MESSAGE_EVENTS.items()}


IDENTITY_TYPE_NAMES: Final = {value: name for name, value in IDENTITY_TYPES.items()}


def json_to_text(value: Any) -> str | None:
    """Returns a JSON value as text; None for None."""
    return None if value is None else msgspec.json.encode(value).decode()


def json_from_text(text: str) -> Any:
    """Returns the JSON value of a text; None for an empty one."""
    return msgspec.json.decode(text) if text else None


def present(message: Message, name: str) -> Any:
    """Returns a field of a message; None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


def moment(message: Message, name: str) -> datetime | None:
    """Returns a time of a message; None if it is absent."""
    return timestamp_from_proto(getattr(message, name), name) if message.HasField(name) else None


def milliseconds(message: Message, name: str) -> int | None:
    """Returns a duration of a message in milliseconds; None if it is absent."""
    return getattr(message, name).ToMilliseconds() if message.HasField(name) else None


def metadata(message: Message, name: str = "metadata") -> dict[str, Any] | None:
    """Returns a JSON object that a message carries as text; None if it is absent."""
    return json_from_text(getattr(message, name)) if message.HasField(name) else None


def provenance(message: Any) -> dict[str, str | None]:
    """Returns the origin of a resource as the fields of its schema."""
    origin = message.provenance
    return {
        "created_by_id": origin.created_by_id or None,
        "last_updated_by_id": origin.last_updated_by_id or None,
        "project_id": present(origin, "project_id"),
        "template_id": present(origin, "template_id"),
        "base_template_id": present(origin, "base_template_id"),
        "deployment_id": present(origin, "deployment_id"),
        "entity_id": present(origin, "entity_id"),
    }


def set_time(message: Any, name: str, value: datetime | None) -> None:
    """Sets a time of a message unless the value is None. A value without a time zone is UTC."""
    if value is not None:
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        getattr(message, name).CopyFrom(timestamp_to_proto(aware))


def set_present(message: Message, **values: Any) -> None:
    """Sets the fields whose value is not None."""
    for name, value in values.items():
        if value is not None:
            setattr(message, name, value)
