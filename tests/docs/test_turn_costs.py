"""The costs of a turn are those in docs/architecture.md."""

from collections import Counter
from typing import Any

import pytest
from mnemesh_client import Agent
from mnemesh_kit.call_context import current_correlation_id
from mnemesh_kit.interceptors import Call
from mnemesh_kit.sql import Database
from mnemesh_testkit.mesh.in_process import Mesh

pytestmark = pytest.mark.mesh(in_memory=False)
"""Files name the services in the counts."""


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls by method, and transactions by kind and database, of the mesh in this process."""
    counted: Counter[str] = Counter()

    def counting(verb: str) -> Any:
        real = getattr(Database, verb)

        async def transaction(self: Database, fn: Any, **options: Any) -> Any:
            if current_correlation_id():  # background work belongs to no call
                counted[f"{verb} {self._name.rpartition('/')[2]}"] += 1
            return await real(self, fn, **options)

        return transaction

    class CountedCall(Call):
        def __init__(self, method: str, context: Any) -> None:
            if not method.startswith("/mnemesh.agents."):
                counted[method.rpartition("/")[2]] += 1
            super().__init__(method, context)

    for verb in ("read", "write"):
        monkeypatch.setattr(Database, verb, counting(verb))
    monkeypatch.setattr("mnemesh_kit.interceptors.Call", CountedCall)
    return counted


async def _turn(agent: Agent, text: str, cost: Counter[str]) -> dict[str, int]:
    cost.clear()
    await agent.ask(text)
    return dict(cost)


@pytest.mark.mesh(in_memory=False, settings={"orchestrator": {"organization_runs": 4}})
async def test_limit_on_the_runs_of_organizations_costs_a_read_after_the_turn(mesh: Mesh, cost: Counter[str]) -> None:
    agent = await mesh.client.agents.create(blocks={"human": "", "persona": ""})
    await agent.ask("Hello.")
    turn = await _turn(agent, "Hello again.", cost)
    assert (turn["write orchestrator.db"], turn["read orchestrator.db"]) == (2, 1)


async def test_cost_of_a_plain_text_turn(mesh: Mesh, cost: Counter[str]) -> None:
    agent = await mesh.client.agents.create(blocks={"human": "", "persona": ""})
    await agent.ask("Hello.")
    assert await _turn(agent, "Hello again.", cost) == {
        "GetContext": 1,
        "GetCoreMemory": 1,
        "CommitStep": 1,
        "write orchestrator.db": 2,
        "write recall.db": 1,
        "read recall.db": 1,
        "read blocks.db": 1,
    }


async def test_cost_of_a_turn_that_edits_memory(mesh: Mesh, cost: Counter[str]) -> None:
    agent = await mesh.client.agents.create(blocks={"human": "", "persona": ""})
    assert await _turn(agent, "My name is Ada.", cost) == {
        "GetContext": 1,
        "GetCoreMemory": 1,
        "EditBlock": 1,
        "GetArchivalSummary": 1,
        "CommitStep": 2,
        "write orchestrator.db": 3,
        "write recall.db": 2,
        "write blocks.db": 1,
        "read recall.db": 1,
        "read blocks.db": 1,
        "read archival.db": 1,
    }


async def test_cost_of_a_round_of_four(mesh: Mesh, cost: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # The events of a member's turn are one batch, however long the turn takes on a loaded machine.
    monkeypatch.setattr("mnemesh_orchestrator.groups.executor.BATCH_SECONDS", 3600.0)
    blocks = {"human": "", "persona": ""}
    members = [await mesh.client.agents.create(name=name, blocks=blocks) for name in ("Ada", "Bob", "Cleo", "Dan")]
    for member in members:
        await member.ask("Hello.")
    group = await mesh.client.groups.create([member.id for member in members])
    cost.clear()
    assert len(await group.ask("Hello again.")) == 4
    assert dict(cost) == {
        "GetContext": 5,
        "GetCoreMemory": 5,
        "CommitStep": 4,
        "write orchestrator.db": 14,
        "write recall.db": 4,
        "read recall.db": 5,
        "read blocks.db": 5,
        "read orchestrator.db": 3,
    }
