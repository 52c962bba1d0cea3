"""Requests about resources that do not exist."""

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_service_pb2, conversations_service_pb2, models_service_pb2, runs_service_pb2
from mnemesh_kit.errors import NotFound

from ..conftest import Wire
from .calls import AGENT, CONVERSATION, RUN, STEP, said

pytestmark = pytest.mark.asyncio(loop_scope="module")
A = agents_service_pb2
R = runs_service_pb2
C = conversations_service_pb2


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
