"""The round trips to PostgreSQL of a turn are those in docs/architecture.md."""

import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_kit.call_context import current_correlation_id
from mnemesh_kit.services import STORE_NAMES
from mnemesh_kit.sql import pipeline
from mnemesh_kit.sql.postgres_engine import PostgresEngine
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.mesh.in_process import Mesh

Cost = dict[str, tuple[int, int]]


class _OfThread(threading.local):
    """A counter of the kit, for the transaction that runs in a thread."""

    value = 0

    def inc(self) -> None:
        self.value += 1


class Costs:
    """The transactions of calls, by kind and service, each with its round trips and statements."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.trips, self.statements = _OfThread(), _OfThread()
        self._found: Counter[tuple[str, str]] = Counter()

    def clear(self) -> None:
        self._found.clear()

    def counted(self, real: Any) -> Any:
        def transact(engine: PostgresEngine, fn: Any, kind: Any) -> Any:
            service = self.names.get(engine._url.database)
            if service is None or not current_correlation_id():  # a template, or background work, which has no call
                return real(engine, fn, kind)
            self.trips.value = self.statements.value = 0
            result = real(engine, fn, kind)
            name = f"{kind.name.lower()} {service}"
            self._found[name, "trips"] += self.trips.value
            self._found[name, "statements"] += self.statements.value
            return result

        return transact

    def found(self) -> Cost:
        names = {name for name, _ in self._found}
        return {name: (self._found[name, "trips"], self._found[name, "statements"]) for name in names}


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    counted = Costs()
    monkeypatch.setattr(pipeline, "ROUND_TRIPS", counted.trips)
    monkeypatch.setattr(pipeline, "STATEMENTS", counted.statements)
    monkeypatch.setattr(PostgresEngine, "_transact", counted.counted(PostgresEngine._transact))
    return counted


@pytest_asyncio.fixture
async def mesh(tmp_path: Path, _direct_postgres: PostgresServer, costs: Costs) -> AsyncIterator[Mesh]:
    databases = {service: await _direct_postgres.create_database() for service in STORE_NAMES}
    costs.names |= {name: service for service, name in databases.items()}
    settings = {service: {"database_url": _direct_postgres.url(name)} for service, name in databases.items()}
    async with Mesh(tmp_path, settings=settings) as running:
        yield running
    for name in databases.values():
        await _direct_postgres.drop_database(name)


async def test_round_trips_of_turns(mesh: Mesh, costs: Costs) -> None:
    agent = await mesh.client.agents.create(blocks={"human": "", "persona": ""})
    await agent.ask("Hello.")
    costs.clear()
    await agent.ask("Hello again.")
    assert costs.found() == {
        "read recall": (1, 3),
        "read blocks": (1, 3),
        "write orchestrator": (4, 20),
        "write recall": (2, 8),
    }
    costs.clear()
    await agent.ask("My name is Ada.")
    found = costs.found()
    assert found == {
        "read recall": (1, 3),
        "read blocks": (1, 3),
        "read archival": (1, 4),
        "write orchestrator": (6, 30),
        "write recall": (4, 16),
        "write blocks": (2, 9),
    }


async def test_round_trips_of_the_creation_of_an_agent(mesh: Mesh, costs: Costs) -> None:
    await mesh.client.agents.create(blocks={"human": "", "persona": ""})
    costs.clear()
    await mesh.client.agents.create(blocks={"human": "", "persona": ""})
    assert costs.found() == {
        "write blocks": (3, 16),
        "write orchestrator": (4, 11),
        "write recall": (2, 11),
    }
