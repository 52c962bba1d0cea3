"""Invalid requests are refused with their field, and unsupported ones with UNIMPLEMENTED."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import (
    agents_pb2,
    agents_service_pb2,
    conversations_service_pb2,
    models_service_pb2,
    runs_pb2,
    runs_service_pb2,
)
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import derive_id

from .conftest import Wire, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENT, RUN, STEP = derive_id("agent", "a test"), derive_id("run", "a test"), derive_id("step", "a test")
CONVERSATION = derive_id("conv", AGENT)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wire(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wire]:
    """One service for all requests, which change nothing."""
    async with serving(tmp_path_factory.mktemp("orchestrator")) as wire:
        yield wire


def compacting(**settings: Any) -> dict[str, Any]:
    return {"compaction_settings": settings}


def creating(*, agent: dict[str, Any] | None = None, **fields: Any) -> agents_service_pb2.CreateAgentRequest:
    return agents_service_pb2.CreateAgentRequest(agent=agents_pb2.Agent(**(agent or {})), **fields)


def said(**fields: Any) -> runs_pb2.InputMessage:
    fields.setdefault("content", [message_pb2.ContentPart(text=message_pb2.TextPart(text="Hello"))])
    return runs_pb2.InputMessage(**fields)


def part(**fields: Any) -> runs_pb2.InputMessage:
    return said(content=[message_pb2.ContentPart(**fields)])


def rule(**fields: Any) -> dict[str, Any]:
    return {"tool_rules": [agents_pb2.ToolRule(**fields)]}


BAD_AGENTS: list[tuple[Any, str]] = [
    (creating(agent={"type": 99}), "agent.type"),
    (creating(agent={"name": "a\nb"}), "agent.name"),
    (creating(agent={"name": "x" * 513}), "agent.name"),
    (creating(agent={"system": "a\0b"}), "agent.system"),
    (creating(agent={"tags": ["ok", ""]}), "agent.tags"),
    (creating(agent={"metadata": "[1]"}), "agent.metadata"),
    (creating(agent={"metadata": "{"}), "agent.metadata"),
    (creating(agent={"time_zone": "Mars/Olympus"}), "agent.time_zone"),
    (creating(agent={"time_zone": "../etc/passwd"}), "agent.time_zone"),
    (creating(agent={"prompt_policy": 9}), "agent.prompt_policy"),
    (creating(agent={"model_settings": {"context_window": 0}}), "agent.model_settings.context_window"),
    (creating(agent={"model_settings": {"temperature": 3}}), "agent.model_settings.temperature"),
    (creating(agent={"model_settings": {"provider_options": "x"}}), "agent.model_settings.provider_options"),
    (creating(agent={"type": 3, "continuation_message": "a\0b"}), "agent.continuation_message"),
    (creating(agent={"type": 3, "continuation_message": " "}), "agent.continuation_message"),
    (creating(agent={"type": 3, "continuation_message": "x" * 2001}), "agent.continuation_message"),
    (creating(agent={"type": 2, "continuation_message": "Continue."}), "agent.continuation_message"),
    (creating(agent={"compaction_settings": {"mode": 99}}), "agent.compaction_settings.mode"),
    (
        creating(agent={"compaction_settings": {"sliding_window_percentage": 1.5}}),
        "agent.compaction_settings.sliding_window_percentage",
    ),
    (creating(agent=compacting(trigger_ratio=0)), "agent.compaction_settings.trigger_ratio"),
    (creating(agent=compacting(trigger_ratio=1.1)), "agent.compaction_settings.trigger_ratio"),
    (creating(agent=compacting(clip_chars=0)), "agent.compaction_settings.clip_chars"),
    (creating(agent=compacting(model="no-provider")), "agent.compaction_settings.model"),
    (creating(agent=compacting(prompt="a\0b")), "agent.compaction_settings.prompt"),
    (
        creating(agent=compacting(model_settings={"temperature": 3})),
        "agent.compaction_settings.model_settings.temperature",
    ),
    (
        creating(agent={"response_format": {"json_schema": {"name": "n", "schema": "no"}}}),
        "agent.response_format.json_schema.schema",
    ),
    (creating(agent=rule()), "agent.tool_rules[0]"),
    (creating(agent=rule(exit_loop={"tool_name": ""})), "agent.tool_rules[0]"),
    (creating(agent=rule(max_count_per_step={"tool_name": "a", "max_count": 0})), "agent.tool_rules[0]"),
    (creating(agent=rule(constrain_child_tools={"tool_name": "a", "children": []})), "agent.tool_rules[0]"),
    (
        creating(
            agent=rule(
                constrain_child_tools={
                    "tool_name": "a",
                    "children": ["b"],
                    "child_arguments": [{"tool_name": "c", "arguments": "{}"}],
                }
            )
        ),
        "agent.tool_rules[0]",
    ),
    (creating(agent=rule(run_first={"tool_name": "a", "arguments": "[]"})), "agent.tool_rules[0]"),
    (creating(agent=rule(conditional={"tool_name": "a", "outcomes": [{"child": "b"}]})), "agent.tool_rules[0]"),
    (creating(blocks=[blocks_pb2.Block(value="x")]), "blocks[0].label"),
    (creating(tool_ids=["tool-1"]), "tool_ids"),
    (creating(block_ids=["x"]), "block_ids"),
    (creating(archive_ids=[derive_id("block", "a test")]), "archive_ids"),
    (creating(initial_messages={"messages": [said(), said(content=[])]}), "initial_messages.messages[1].content"),
    (creating(memory_variables={"": "x"}), "memory_variables"),
    (creating(memory_variables={"a}": "x"}), "memory_variables"),
    (creating(request_id="x" * 201), "request_id"),
    (creating(agent={"approval_timeout": {"seconds": -1}}), "agent.approval_timeout"),
    (creating(agent={"group_ids": ["group-1"]}), "agent.group_ids"),
    (creating(agent={"type": 7, "enable_sleeptime": True}), "agent.enable_sleeptime"),
    (creating(agent={"type": 9, "enable_sleeptime": True}), "agent.enable_sleeptime"),
    (
        creating(agent={"tool_rules": [{"requires_approval": {"tool_name": "t", "arguments_schema": '{"type": 1}'}}]}),
        "agent.tool_rules[0]",
    ),
    (creating(agent={"metadata": '{"a": "\\ud800"}'}), "agent.metadata"),
    (
        creating(agent={"model_settings": {"provider_options": '{"a": "\\ud800"}'}}),
        "agent.model_settings.provider_options",
    ),
    (
        creating(agent={"tool_rules": [{"run_first": {"tool_name": "t", "arguments": '{"a": "\\ud800"}'}}]}),
        "agent.tool_rules[0]",
    ),
    (
        creating(
            agent={
                "tool_rules": [
                    {
                        "constrain_child_tools": {
                            "tool_name": "t",
                            "children": ["c"],
                            "child_arguments": [{"tool_name": "c", "arguments": '{"a": "\\ud800"}'}],
                        }
                    }
                ]
            }
        ),
        "agent.tool_rules[0]",
    ),
    (
        creating(agent={"response_format": {"json_schema": {"name": "n", "schema": '{"title": "\\ud800"}'}}}),
        "agent.response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(("request_", "field"), BAD_AGENTS, ids=lambda value: value if isinstance(value, str) else "")
async def test_invalid_agent_is_refused_with_its_field(wire: Wire, request_: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.agents.CreateAgent(request_)
    assert raised.value.field == field


def sending(*messages: Any, agent_id: str = AGENT, **fields: Any) -> runs_service_pb2.SendMessageRequest:
    return runs_service_pb2.SendMessageRequest(agent_id=agent_id, messages=messages or [said()], **fields)


def configured(**config: Any) -> runs_service_pb2.SendMessageRequest:
    return sending(config=runs_pb2.RunConfig(**config))


BAD_MESSAGES: list[tuple[Any, str]] = [
    (runs_service_pb2.SendMessageRequest(messages=[said()]), "agent_id"),
    (sending(agent_id="agent-1"), "agent_id"),
    (sending(conversation_id="conv-1"), "conversation_id"),
    (runs_service_pb2.SendMessageRequest(agent_id=AGENT), "messages"),
    (sending(*[said()] * 101), "messages"),
    (sending(said(), said(role=message_pb2.ROLE_TOOL)), "messages[1].role"),
    (sending(said(content=[])), "messages[0].content"),
    (sending(part(text={"text": ""})), "messages[0].content[0]"),
    (sending(part(text={"text": "a\0b"})), "messages[0].content[0]"),
    (sending(part(text={"text": "ä" * 600_000})), "messages[0].content[0]"),
    (sending(part(image={"inline": {"data": b"x" * 10_485_761, "media_type": "image/png"}})), "messages[0].content[0]"),
    (sending(part(image={})), "messages[0].content[0]"),
    (sending(part(reasoning={"text": "hm"})), "messages[0].content[0]"),
    (sending(said(otid="x" * 513)), "messages[0].otid"),
    (sending(said(name="a\0")), "messages[0].name"),
    (sending(said(group_id="team")), "messages[0].group_id"),
    (configured(max_steps=0), "config.max_steps"),
    (configured(max_steps=1_001), "config.max_steps"),
    (configured(override_system="a\0"), "config.override_system"),
    (configured(override_system="x" * 1_000_001), "config.override_system"),
    (
        configured(response_format={"json_schema": {"name": "n", "schema": '{"type": "nothing"}'}}),
        "config.response_format.json_schema.schema",
    ),
    (configured(keepalive_seconds=0), "config.keepalive_seconds"),
    (configured(include_events=[99]), "config.include_events"),
    (configured(on_busy=9), "config.on_busy"),
    (configured(metadata="no"), "config.metadata"),
    (configured(metadata='{"a": "\\ud800"}'), "config.metadata"),
    (
        configured(client_tools=[{"name": "t", "parameters": '{"title": "\\ud800"}'}]),
        "config.client_tools[0].parameters",
    ),
]


@pytest.mark.parametrize(("request_", "field"), BAD_MESSAGES, ids=lambda value: value if isinstance(value, str) else "")
async def test_invalid_message_is_refused_with_its_field(wire: Wire, request_: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.SendMessage(request_):
            pass
    assert raised.value.field == field
    started = runs_service_pb2.StartRunRequest(
        agent_id=request_.agent_id,
        conversation_id=request_.conversation_id if request_.HasField("conversation_id") else None,
        messages=request_.messages,
        config=request_.config,
    )
    with pytest.raises(InvalidArgument) as raised:
        await wire.runs.StartRun(started)
    assert raised.value.field == field


A = agents_service_pb2
R = runs_service_pb2
C = conversations_service_pb2
BAD_CALLS: list[tuple[str, str, Any, str]] = [
    ("agents", "GetAgent", A.GetAgentRequest(agent_id="x"), "agent_id"),
    ("agents", "DeleteAgent", A.DeleteAgentRequest(agent_id=""), "agent_id"),
    ("agents", "ListAgents", A.ListAgentsRequest(page_size=1_001), "page_size"),
    ("agents", "ListAgents", A.ListAgentsRequest(page_size=-1), "page_size"),
    ("agents", "ListAgents", A.ListAgentsRequest(page_token="garbage"), "page_token"),
    ("agents", "ListAgents", A.ListAgentsRequest(order=9), "order"),
    ("agents", "ListAgents", A.ListAgentsRequest(order_by=9), "order_by"),
    ("agents", "ListAgents", A.ListAgentsRequest(filter={"agent_ids": ["x"]}), "filter.agent_ids"),
    ("agents", "ListAgents", A.ListAgentsRequest(filter={"types": [99]}), "filter.types"),
    ("agents", "ListAgents", A.ListAgentsRequest(filter={"name": "a\0"}), "filter.name"),
    ("agents", "ListAgents", A.ListAgentsRequest(filter={"tags_all": ["a\0"]}), "filter.tags_all"),
    ("agents", "CountAgents", A.CountAgentsRequest(filter={"last_stop_reason": 99}), "filter.last_stop_reason"),
    ("agents", "UpdateAgent", A.UpdateAgentRequest(agent={"id": AGENT}), "update_mask"),
    (
        "agents", "UpdateAgent",
        A.UpdateAgentRequest(agent={"id": AGENT}, update_mask=FieldMask(paths=["tools"])), "update_mask",
    ),
    (
        "agents", "UpdateAgent",
        A.UpdateAgentRequest(agent={"id": AGENT}, update_mask=FieldMask(paths=["name"])), "agent.name",
    ),
    (
        "agents", "UpdateAgent",
        A.UpdateAgentRequest(agent={"id": "x"}, update_mask=FieldMask(paths=["name"])), "agent.id",
    ),
    ("agents", "AttachTool", A.AttachToolRequest(agent_id=AGENT), "tool"),
    ("agents", "AttachTool", A.AttachToolRequest(agent_id=AGENT, tool_id="x"), "tool_id"),
    ("agents", "DetachTool", A.DetachToolRequest(agent_id=AGENT, name=""), "tool"),
    ("agents", "ResetMessages", A.ResetMessagesRequest(agent_id=AGENT, conversation_id="x"), "conversation_id"),
    ("agents", "ResetMessages", A.ResetMessagesRequest(agent_id=AGENT, on_busy=9), "on_busy"),
    ("agents", "RecompileAgent", A.RecompileAgentRequest(agent_id=AGENT, on_busy=9), "on_busy"),
    ("agents", "CompactConversation", A.CompactConversationRequest(agent_id=AGENT, on_busy=9), "on_busy"),
    (
        "conversations", "ForkConversation",
        C.ForkConversationRequest(conversation_id=CONVERSATION, on_busy=9), "on_busy",
    ),
    (
        "agents", "RecompileAgent",
        A.RecompileAgentRequest(agent_id=AGENT, conversation_id=derive_id("agent", "another")), "conversation_id",
    ),
    ("agents", "GetContextWindow", A.GetContextWindowRequest(agent_id=""), "agent_id"),
    ("runs", "GetRun", R.GetRunRequest(run_id="x"), "run_id"),
    ("runs", "ListRuns", R.ListRunsRequest(filter={"conversation_id": "x"}), "filter.conversation_id"),
    ("conversations", "CreateConversation", C.CreateConversationRequest(), "conversation.agent_id"),
    (
        "conversations", "CreateConversation",
        C.CreateConversationRequest(conversation={"agent_id": AGENT, "summary": "a\0b"}), "conversation.summary",
    ),
    (
        "conversations", "CreateConversation",
        C.CreateConversationRequest(conversation={"agent_id": AGENT, "description": "x" * 100_001}),
        "conversation.description",
    ),
    (
        "conversations", "CreateConversation",
        C.CreateConversationRequest(conversation={"agent_id": AGENT, "model_settings": {"temperature": 3}}),
        "conversation.model_settings.temperature",
    ),
    ("conversations", "GetConversation", C.GetConversationRequest(conversation_id="default"), "conversation_id"),
    ("conversations", "ListConversations", C.ListConversationsRequest(agent_id="x"), "agent_id"),
    ("conversations", "ListConversations", C.ListConversationsRequest(summary_search="\0"), "summary_search"),
    ("conversations", "ListConversations", C.ListConversationsRequest(order_by=9), "order_by"),  # type: ignore[arg-type]
    ("conversations", "UpdateConversation", C.UpdateConversationRequest(), "conversation.id"),
    (
        "conversations", "UpdateConversation", C.UpdateConversationRequest(conversation={"id": CONVERSATION}),
        "update_mask",
    ),
    (
        "conversations", "UpdateConversation",
        C.UpdateConversationRequest(
            conversation={"id": CONVERSATION}, update_mask=FieldMask(paths=["isolated_block_labels"])
        ),
        "update_mask",
    ),
    ("conversations", "DeleteConversation", C.DeleteConversationRequest(conversation_id="x"), "conversation_id"),
    ("conversations", "ForkConversation", C.ForkConversationRequest(), "conversation_id"),
    (
        "conversations", "ForkConversation",
        C.ForkConversationRequest(conversation_id=CONVERSATION, until_message_id="x"), "until_message_id",
    ),
    ("agents", "RunTool", A.RunToolRequest(agent_id="x"), "agent_id"),
    ("agents", "RunTool", A.RunToolRequest(agent_id=AGENT), "tool_name"),
    ("agents", "GenerateText", A.GenerateTextRequest(agent_id="x", prompt="Hi."), "agent_id"),
    ("agents", "GenerateText", A.GenerateTextRequest(agent_id=AGENT, prompt=" \n"), "prompt"),
    ("agents", "GenerateText", A.GenerateTextRequest(agent_id=AGENT, prompt="\0"), "prompt"),
    ("agents", "GenerateText", A.GenerateTextRequest(agent_id=AGENT, prompt="Hi.", system="\0"), "system"),
    (
        "agents", "GenerateText",
        A.GenerateTextRequest(
            agent_id=AGENT, prompt="Hi.", response_format={"json_schema": {"name": "a", "schema": '{"type": 1}'}}
        ),
        "response_format.json_schema.schema",
    ),
    ("agents", "PreviewRequest", A.PreviewRequestRequest(agent_id="x"), "agent_id"),
    ("agents", "PreviewRequest", A.PreviewRequestRequest(agent_id=AGENT, conversation_id="x"), "conversation_id"),
    (
        "agents", "PreviewRequest", A.PreviewRequestRequest(agent_id=AGENT, config={"max_steps": 0}),
        "config.max_steps",
    ),
    ("models", "ListModels", models_service_pb2.ListModelsRequest(order_by=9), "order_by"),  # type: ignore[arg-type]
    ("models", "ListModels", models_service_pb2.ListModelsRequest(handle_search="\0"), "handle_search"),
    (
        "models", "ListModels", models_service_pb2.ListModelsRequest(provider_categories=[9]),  # type: ignore[list-item]
        "provider_categories",
    ),
    ("runs", "ListRuns", R.ListRunsRequest(filter={"statuses": [99]}), "filter.statuses"),
    ("runs", "ListRuns", R.ListRunsRequest(filter={"stop_reason": 99}), "filter.stop_reason"),
    ("runs", "CancelRuns", R.CancelRunsRequest(), "target"),
    ("runs", "CancelRuns", R.CancelRunsRequest(runs={"run_ids": []}), "runs.run_ids"),
    ("runs", "CancelRuns", R.CancelRunsRequest(agent_id="x"), "agent_id"),
    ("runs", "RetryRun", R.RetryRunRequest(run_id="x"), "run_id"),
    ("runs", "DeleteRun", R.DeleteRunRequest(run_id="x"), "run_id"),
    ("runs", "ListSteps", R.ListStepsRequest(filter={"run_id": "x"}), "filter.run_id"),
    ("runs", "ListSteps", R.ListStepsRequest(filter={"agent_id": "x"}), "filter.agent_id"),
    ("runs", "ListSteps", R.ListStepsRequest(filter={"feedback": "fine"}), "filter.feedback"),
    ("runs", "ListSteps", R.ListStepsRequest(filter={"tags_any": [""]}), "filter.tags_any"),
    ("runs", "ListSteps", R.ListStepsRequest(filter={"trace_id": "\0"}), "filter.trace_id"),
    ("runs", "GetStep", R.GetStepRequest(step_id="x"), "step_id"),
    ("runs", "GetStepTrace", R.GetStepTraceRequest(step_id="x"), "step_id"),
    ("runs", "SetStepFeedback", R.SetStepFeedbackRequest(step_id="x"), "step_id"),
    ("runs", "SetStepFeedback", R.SetStepFeedbackRequest(step_id=STEP, feedback="good"), "feedback"),
    ("runs", "SetStepFeedback", R.SetStepFeedbackRequest(step_id=STEP, tags=["x" * 201]), "tags"),
    ("runs", "SetStepFeedback", R.SetStepFeedbackRequest(step_id=STEP, tags=["x"] * 51), "tags"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("service", "method", "request_", "field"), BAD_CALLS, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_invalid_request_is_refused_with_its_field(
    wire: Wire, service: str, method: str, request_: Any, field: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await getattr(getattr(wire, service), method)(request_)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (R.StreamRunRequest(run_id="x"), "run_id"),
        (R.StreamRunRequest(run_id=RUN, starting_after=-1), "starting_after"),
        (R.StreamRunRequest(run_id=RUN, keepalive_seconds=0), "keepalive_seconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_stream_request_is_refused_with_its_field(wire: Wire, request_: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.StreamRun(request_):
            pass
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("service", "method", "request_"),
    [
        ("agents", "GetAgent", A.GetAgentRequest(agent_id=AGENT)),
        ("agents", "GetContextWindow", A.GetContextWindowRequest(agent_id=AGENT)),
        ("agents", "ResetMessages", A.ResetMessagesRequest(agent_id=AGENT)),
        ("agents", "AttachTool", A.AttachToolRequest(agent_id=AGENT, name="send_message")),
        ("agents", "RunTool", A.RunToolRequest(agent_id=AGENT, tool_name="send_message", arguments="{}")),
        ("agents", "PreviewRequest", A.PreviewRequestRequest(agent_id=AGENT, messages=[said()])),
        ("agents", "GenerateText", A.GenerateTextRequest(agent_id=AGENT, prompt="Hi.")),
        ("runs", "StartRun", R.StartRunRequest(agent_id=AGENT, messages=[said()])),
        ("runs", "GetRun", R.GetRunRequest(run_id=RUN)),
        ("runs", "RetryRun", R.RetryRunRequest(run_id=RUN)),
        ("runs", "DeleteRun", R.DeleteRunRequest(run_id=RUN)),
        ("runs", "GetStep", R.GetStepRequest(step_id=STEP)),
        ("runs", "GetStepTrace", R.GetStepTraceRequest(step_id=STEP)),
        ("runs", "SetStepFeedback", R.SetStepFeedbackRequest(step_id=STEP)),
        ("conversations", "CreateConversation", C.CreateConversationRequest(conversation={"agent_id": AGENT})),
        ("conversations", "GetConversation", C.GetConversationRequest(conversation_id=CONVERSATION)),
        ("conversations", "GetConversation", C.GetConversationRequest(conversation_id=AGENT)),
        ("conversations", "DeleteConversation", C.DeleteConversationRequest(conversation_id=CONVERSATION)),
        ("conversations", "ForkConversation", C.ForkConversationRequest(conversation_id=CONVERSATION)),
        (
            "conversations",
            "UpdateConversation",
            C.UpdateConversationRequest(conversation={"id": CONVERSATION}, update_mask=FieldMask(paths=["summary"])),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_missing_resource_is_not_found(wire: Wire, service: str, method: str, request_: Any) -> None:
    with pytest.raises(NotFound):
        await getattr(getattr(wire, service), method)(request_)


async def test_unserved_model_is_unknown(wire: Wire) -> None:
    with pytest.raises(NotFound) as raised:
        await wire.models.GetModel(models_service_pb2.GetModelRequest(handle="gone/model"))
    assert (raised.value.reason, raised.value.metadata["model"]) == ("MODEL_UNKNOWN", "gone/model")
    with pytest.raises(NotFound) as raised:
        await wire.runs.StartRun(
            R.StartRunRequest(agent_id=AGENT, messages=[said()], config={"override_model": "gone/model"})
        )
    assert raised.value.reason == "MODEL_UNKNOWN"
    found = await wire.models.GetModel(models_service_pb2.GetModelRequest())
    assert found.model.handle == "mnemesh/rehearsal"


async def test_cancellation_of_missing_run_reports_not_found(wire: Wire) -> None:
    answer = await wire.runs.CancelRuns(R.CancelRunsRequest(runs={"run_ids": [RUN]}))
    assert dict(answer.outcomes) == {RUN: R.CANCEL_OUTCOME_NOT_FOUND}
    assert not (await wire.runs.CancelRuns(R.CancelRunsRequest(agent_id=AGENT))).outcomes


async def test_ids_of_folders_are_checked(wire: Wire) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.agents.CreateAgent(creating(folder_ids=["folder-1"]))
    assert raised.value.field == "folder_ids"


@pytest.mark.parametrize("labels", [["a\0"], [f"label-{n}" for n in range(101)]])
async def test_invalid_isolated_labels_are_refused(wire: Wire, labels: list[str]) -> None:
    request = C.CreateConversationRequest(conversation={"agent_id": AGENT, "isolated_block_labels": labels})
    with pytest.raises(InvalidArgument) as raised:
        await wire.conversations.CreateConversation(request)
    assert raised.value.field == "conversation.isolated_block_labels"


@pytest.mark.parametrize(
    "url", ["", "ftp://example.org", "https://", "https://a:b@example.org", "https://x.org/" + "a" * 2000]
)
async def test_a_callback_has_a_url_that_can_be_called(wire: Wire, url: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.SendMessage(configured(callback_url=url)):
            pass
    assert raised.value.field == "config.callback_url"


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "requests"),
        ([runs_service_pb2.BatchRequest(agent_id="agent-1", messages=[said()])], "requests[0].agent_id"),
        ([runs_service_pb2.BatchRequest(agent_id=AGENT)], "requests[0].messages"),
        ([runs_service_pb2.BatchRequest(agent_id=AGENT, conversation_id="x", messages=[said()])], "conversation_id"),
    ],
)
async def test_a_malformed_batch_is_refused(
    wire: Wire, requests: list[runs_service_pb2.BatchRequest], field: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.runs.StartBatch(runs_service_pb2.StartBatchRequest(requests=requests))
    assert raised.value.field == field
    for method, request in (
        (wire.runs.GetBatch, runs_service_pb2.GetBatchRequest(batch_id="batch-1")),
        (wire.runs.CancelBatch, runs_service_pb2.CancelBatchRequest(batch_id="batch-1")),
    ):
        with pytest.raises(InvalidArgument) as raised:
            await method(request)
        assert raised.value.field == "batch_id"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"organization_id": ""}, "organization_id"),
        ({"organization_id": "a\0b"}, "organization_id"),
        ({"target_id": ""}, "target_id"),
        ({"target_id": AGENT}, "target_id"),
        ({"attempt": 0}, "attempt"),
    ],
)
async def test_result_of_a_callback_is_refused_with_the_field(wire: Wire, changes: dict[str, Any], field: str) -> None:
    fields = {"organization_id": "org", "target_id": RUN, "attempt": 1, **changes}
    with pytest.raises(InvalidArgument) as refused:
        await wire.runs.RecordCallback(runs_service_pb2.RecordCallbackRequest(**fields))
    assert refused.value.field == field


@pytest.mark.parametrize("field", ["agent_id", "conversation_id"])
async def test_message_to_a_group_names_no_agent_and_no_conversation(wire: Wire, field: str) -> None:
    group_id = derive_id("group", "a test")
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.SendMessage(
            runs_service_pb2.SendMessageRequest(group_id=group_id, messages=[said()], **{field: AGENT})
        ):
            pass
    assert raised.value.field == field
    with pytest.raises(NotFound) as missing:
        await wire.runs.StartRun(runs_service_pb2.StartRunRequest(group_id=group_id, messages=[said()]))
    assert missing.value.metadata["resource_id"] == group_id


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"mode": 99}, "settings.mode"),
        ({"sliding_window_percentage": 0}, "settings.sliding_window_percentage"),
        ({"clip_chars": -1}, "settings.clip_chars"),
        ({"trigger_ratio": 2}, "settings.trigger_ratio"),
        ({"model": "/x"}, "settings.model"),
        ({"memory_scope": ""}, "settings.memory_scope"),
        ({"memory_scope": "x" * 256}, "settings.memory_scope"),
        ({"memory_scope": "a\0b"}, "settings.memory_scope"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_invalid_compaction_settings_are_refused(wire: Wire, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.agents.CompactConversation(A.CompactConversationRequest(agent_id=AGENT, settings=settings))
    assert raised.value.field == field
