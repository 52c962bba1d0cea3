"""The JSON of runs, steps and batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from mnemesh_gateway.letta.pages import PageQuery
from mnemesh_gateway.letta.schemas.messages import SendMessages


class Run(msgspec.Struct, kw_only=True):
    """A run."""

    id: str
    agent_id: str
    status: str
    background: bool | None = None
    conversation_id: str | None = None
    created_at: datetime | None = None
    completed_at: datetime | None = None
    updated_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    request_config: dict[str, Any] | None = None
    stop_reason: str | None = None
    callback_url: str | None = None
    callback_sent_at: datetime | None = None
    callback_status_code: int | None = None
    callback_error: str | None = None
    ttft_ns: int | None = None
    total_duration_ns: int | None = None
    base_template_id: str | None = None


class RunUsage(msgspec.Struct, kw_only=True):
    """The tokens of a run."""

    completion_tokens: int = 0
    prompt_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None


class RunMetrics(msgspec.Struct, kw_only=True):
    """The durations of a run in nanoseconds, and what it did."""

    id: str
    agent_id: str | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    run_start_ns: int | None = None
    run_ns: int | None = None
    num_steps: int | None = None
    tools_used: list[str] | None = None


class Step(msgspec.Struct, kw_only=True):
    """A step."""

    id: str
    origin: str | None = None
    provider_id: str | None = None
    provider_name: str | None = None
    provider_category: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    model: str | None = None
    model_handle: str | None = None
    model_endpoint: str | None = None
    context_window_limit: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None
    stop_reason: str | None = None
    status: str | None = None
    error_type: str | None = None
    error_data: dict[str, Any] | None = None
    tags: list[str] = []
    feedback: str | None = None
    tid: str | None = None
    trace_id: str | None = None
    request_id: str | None = None
    messages: list[dict[str, Any]] = []
    project_id: str | None = None


class StepMetrics(msgspec.Struct, kw_only=True):
    """The durations of a step in nanoseconds."""

    id: str
    organization_id: str | None = None
    provider_id: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    step_start_ns: int | None = None
    llm_request_start_ns: int | None = None
    llm_request_ns: int | None = None
    tool_execution_ns: int | None = None
    step_ns: int | None = None
    base_template_id: str | None = None
    template_id: str | None = None
    project_id: str | None = None


class ProviderTrace(msgspec.Struct, kw_only=True):
    """The request of a step to its provider, and the answer."""

    id: str
    request_json: dict[str, Any]
    response_json: dict[str, Any]
    step_id: str | None = None
    run_id: str | None = None
    agent_id: str | None = None
    latency_ms: int | None = None


class ListRuns(msgspec.Struct, kw_only=True):
    """The query of a list of runs."""

    agent_id: str | None = None
    agent_ids: list[str] | None = None
    statuses: list[str] | None = None
    background: bool | None = None
    stop_reason: str | None = None
    conversation_id: str | None = None
    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    active: bool = False
    ascending: bool = False


class ActiveRuns(msgspec.Struct, kw_only=True):
    """The query of a list of the runs that have not ended."""

    agent_id: str | None = None
    agent_ids: list[str] | None = None
    background: bool | None = None


class TraceQuery(msgspec.Struct, kw_only=True):
    """How many spans a trace has at most."""

    limit: int = 1000


class StreamRun(msgspec.Struct, kw_only=True):
    """Where to attach to a run."""

    starting_after: int = 0
    include_pings: bool | None = True
    poll_interval: float | None = None
    batch_size: int | None = None


class AttachToConversation(StreamRun, kw_only=True):
    """The run of a conversation to attach to: by id, by the otid of a message it was sent, or the active one."""

    agent_id: str | None = None
    run_id: str | None = None
    otid: str | None = None


class ListSteps(msgspec.Struct, kw_only=True):
    """The query of a list of steps."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    agent_id: str | None = None
    model: str | None = None
    feedback: Literal["positive", "negative"] | None = None
    tags: list[str] | None = None
    trace_ids: list[str] | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    has_feedback: bool | None = None


class Feedback(msgspec.Struct, kw_only=True):
    """What a user thinks of a step; null withdraws it."""

    feedback: Literal["positive", "negative"] | None = None
    tags: list[str] | None = None


class BatchRequest(SendMessages, kw_only=True):
    """The messages for one agent."""

    agent_id: str


class CreateBatch(msgspec.Struct, kw_only=True):
    """The requests of a batch, and the URL that is called when all have ended."""

    requests: list[BatchRequest]
    callback_url: str | None = None


class ListBatchMessages(PageQuery, kw_only=True):
    """The query of the messages of a batch."""

    agent_id: str | None = None


class BatchMessages(msgspec.Struct, kw_only=True):
    """Messages as they are stored."""

    messages: list[dict[str, Any]]
