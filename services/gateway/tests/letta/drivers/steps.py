"""Steps."""

import letta_client
import pytest

from ..lab import Lab, drives


@drives(
    "steps.list",
    "steps.retrieve",
    "steps.metrics.retrieve",
    "steps.trace.retrieve",
    "steps.messages.list",
    "steps.feedback.create",
)
def steps(lab: Lab) -> None:
    agent = lab.agent()
    lab.client.agents.messages.create(agent.id, input="Hi")
    (step,) = lab.client.steps.list(agent_id=agent.id)
    assert (step.status, step.stop_reason, step.api_model_handle) == ("success", "end_turn", "openai/fake-model")
    assert (step.prompt_tokens, step.total_tokens) == (11, 18)
    assert lab.client.steps.retrieve(step.id) == step
    metrics = lab.client.steps.metrics.retrieve(step.id)
    assert metrics.id == step.id
    assert (metrics.step_ns or 0) > 0
    trace = lab.client.steps.trace.retrieve(step.id)
    assert trace is not None
    assert trace.request_json["model"] == "fake-model"
    kinds = [message.message_type for message in lab.client.steps.messages.list(step.id)]
    assert kinds == ["user_message", "assistant_message"]
    liked = lab.client.steps.feedback.create(step.id, feedback="positive", tags=["nice"])
    assert (liked.feedback, liked.tags) == ("positive", ["nice"])
    assert [each.id for each in lab.client.steps.list(agent_id=agent.id, feedback="positive")] == [step.id]
    with pytest.raises(letta_client.UnprocessableEntityError, match="feedback"):
        lab.client.steps.feedback.create(step.id, feedback="so-so")  # type: ignore[arg-type]
