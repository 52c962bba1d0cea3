"""Names of enumerations: types of agents, reasons of stops, states of runs."""

from __future__ import annotations

from typing import Final

from mnemesh.agents.v1 import agents_pb2, groups_pb2, identities_pb2, runs_pb2

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
AGENT_TYPE_NAMES: Final = {value: name for name, value in AGENT_TYPES.items()}
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
STOP_REASON_NAMES: Final = {value: name for name, value in STOP_REASONS.items()} | {
    # Letta has no names of their own for these.
    agents_pb2.STOP_REASON_CONTEXT_WINDOW_OVERFLOW: "error",
    agents_pb2.STOP_REASON_CONTENT_FILTER: "llm_api_error",
    agents_pb2.STOP_REASON_UNSPECIFIED: "error",
}
RUN_STATUSES: Final = {
    "created": runs_pb2.RUN_STATUS_CREATED,
    "running": runs_pb2.RUN_STATUS_RUNNING,
    "completed": runs_pb2.RUN_STATUS_COMPLETED,
    "failed": runs_pb2.RUN_STATUS_FAILED,
    "cancelled": runs_pb2.RUN_STATUS_CANCELLED,
}
RUN_STATUS_NAMES: Final = {value: name for name, value in RUN_STATUSES.items()}
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
MESSAGE_EVENT_NAMES: Final = {value: name for name, value in MESSAGE_EVENTS.items()}
IDENTITY_TYPES: Final = {
    "org": identities_pb2.IDENTITY_TYPE_ORG,
    "user": identities_pb2.IDENTITY_TYPE_USER,
    "other": identities_pb2.IDENTITY_TYPE_OTHER,
}
IDENTITY_TYPE_NAMES: Final = {value: name for name, value in IDENTITY_TYPES.items()}
MANAGER_TYPES: Final = {
    "round_robin": groups_pb2.MANAGER_TYPE_ROUND_ROBIN,
    "supervisor": groups_pb2.MANAGER_TYPE_SUPERVISOR,
    "dynamic": groups_pb2.MANAGER_TYPE_DYNAMIC,
    "sleeptime": groups_pb2.MANAGER_TYPE_SLEEPTIME,
    "voice_sleeptime": groups_pb2.MANAGER_TYPE_VOICE_SLEEPTIME,
    "swarm": groups_pb2.MANAGER_TYPE_SWARM,
}
