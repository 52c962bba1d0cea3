"""A budget that is used up: its refusal over every API, with the time of the next period."""

from datetime import UTC, datetime, timedelta

import grpc
import httpx
import openai
import pytest
from google.rpc import error_details_pb2, status_pb2
from mnemesh.agents.v1 import budgets_pb2, runs_service_pb2
from mnemesh_client import Agent
from mnemesh_client.errors import MnemeshError
from mnemesh_kit.errors import DETAILS_KEY, to_trailers
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

HELLO = [{"role": "user", "content": "Hello"}]


async def limit(mesh: Mesh, agent: Agent, requests: int) -> None:
    month = budgets_pb2.BudgetLimit(period=budgets_pb2.BUDGET_PERIOD_MONTH, max_requests=requests)
    await mesh.client.budgets.set([month], agent_id=agent.id)


def require_next_month(seconds: float) -> None:
    """Checks a delay until the next month. It may begin while this test runs."""
    now = datetime.now(UTC)
    first = (now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=31)).replace(day=1)
    assert -120 < seconds - (first - now).total_seconds() < 120 or seconds < 120


async def test_refusal_says_when_to_try_again(
    mesh: Mesh, agent: Agent, sdk: openai.AsyncOpenAI, base_url: str, fake_openai: FakeOpenAI
) -> None:
    await limit(mesh, agent, 0)
    with pytest.raises(openai.RateLimitError) as openais:
        await sdk.chat.completions.create(model="ada", messages=HELLO)  # type: ignore[arg-type]
    assert openais.value.code == "insufficient_quota"
    require_next_month(float(openais.value.response.headers["retry-after"]))
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60)) as raw:
        letta = await raw.post(f"/v1/agents/{agent.id}/messages", json={"messages": HELLO})
        request = {"agentId": agent.id, "messages": [{"content": [{"text": {"text": "Hello"}}]}]}
        connect = await raw.post("/mnemesh.agents.v1.RunService/SendMessageAndWait", json=request)
    assert letta.json()["error"]["type"] == "llm_insufficient_credits"
    assert connect.json()["code"] == "resource_exhausted"
    assert "RetryInfo" in connect.text
    for answer in (letta, connect):
        assert answer.status_code == 429
        require_next_month(float(answer.headers["retry-after"]))
    with pytest.raises(MnemeshError) as refused:
        await mesh.stubs["mnemesh.agents.v1.RunService"].StartRun(
            runs_service_pb2.StartRunRequest(agent_id=agent.id, messages=[{"content": [{"text": {"text": "Hi"}}]}])
        )
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXCEEDED")
    require_next_month(refused.value.retry_after_seconds or 0)
    status = status_pb2.Status.FromString(dict(to_trailers(refused.value))[DETAILS_KEY])  # type: ignore[arg-type]
    delay = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(delay) for detail in status.details)
    assert fake_openai.requests == []


async def test_run_that_meets_its_limit_is_429_and_keeps_its_steps(
    mesh: Mesh, sdk: openai.AsyncOpenAI, fake_openai: FakeOpenAI
) -> None:
    agent = await mesh.client.agents.create("ada", model="openai/fake-model", blocks={"human": ""})
    await limit(mesh, agent, 1)
    fake_openai.script = lambda _: Reply(tool_calls=[("conversation_search", {"query": "tea"})])
    with pytest.raises(openai.RateLimitError) as stopped:
        await sdk.chat.completions.create(model="ada", messages=HELLO)  # type: ignore[arg-type]
    require_next_month(float(stopped.value.response.headers["retry-after"]))
    (budget,) = [budget async for budget in mesh.client.budgets.list(agent_id=agent.id)]
    assert {usage.requests for usage in budget.usage} == {1}
    assert len(fake_openai.requests) == 1
