"""Invalid requests about agents, conversations, models, runs and steps are refused with their field."""

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_service_pb2, conversations_service_pb2, models_service_pb2, runs_service_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id

from ..conftest import Wire
from .calls import AGENT, CONVERSATION, RUN, STEP

pytestmark = pytest.mark.asyncio(loop_scope="module")
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


@pytest.mark.parametrize("labels", [["a\0"], [f"label-{n}" for n in range(101)]])
async def test_invalid_isolated_labels_are_refused(wire: Wire, labels: list[str]) -> None:
    request = C.CreateConversationRequest(conversation={"agent_id": AGENT, "isolated_block_labels": labels})
    with pytest.raises(InvalidArgument) as raised:
        await wire.conversations.CreateConversation(request)
    assert raised.value.field == "conversation.isolated_block_labels"


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
