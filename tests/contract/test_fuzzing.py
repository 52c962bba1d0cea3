"""No request makes a server fail or hang: it is executed, or refused with a reason of the contract.

The requests are generated: valid ones with hostile values, random ones, and bytes that are no messages.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.fuzzing.contract import GARBAGE, methods, no_utf8
from mnemesh_testkit.fuzzing.fuzzers import Known, MeshFuzzer
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

from .resources import everything
from .valid_requests import good_requests, least_request

SAMPLE: Final = 400
FULL: Final = 2_500
SWEEP: Final = 10_000
"""The number of requests without an option, with --full and with --sweep."""
_ANSWERED: Final = 100
"""How many generated requests must at least succeed, so that the others reach beyond the first check."""


@pytest_asyncio.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with Mesh(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def mesh_on_postgresql(tmp_path: Path, postgres_server: PostgresServer) -> AsyncIterator[Mesh]:
    databases = {service: await postgres_server.create_database() for service in STORE_NAMES}
    settings = {service: {"database_url": postgres_server.url(name)} for service, name in databases.items()}
    (tmp_path / "secrets").write_text("s" * 64)
    settings["orchestrator"]["secrets_key_file"] = str(tmp_path / "secrets")
    async with Mesh(tmp_path, settings=settings) as running:
        yield running
    for name in databases.values():
        await postgres_server.drop_database(name)


@pytest.mark.timeout(scaled(300))
async def test_generated_requests_are_executed_or_refused(mesh: Mesh) -> None:
    await _fuzz(mesh, iter(range(SAMPLE)))


@pytest.mark.full
@pytest.mark.timeout(scaled(900))
async def test_generated_requests_are_executed_or_refused_on_postgresql(
    mesh_on_postgresql: Mesh, is_sweep: bool
) -> None:
    await _fuzz(mesh_on_postgresql, iter(range(SAMPLE, SAMPLE + (SWEEP if is_sweep else FULL))))


async def test_malformed_bytes_are_invalid_arguments(mesh: Mesh) -> None:
    fuzzer = MeshFuzzer(mesh.addresses, _valid)
    for method in methods():
        codes = await fuzzer.codes_of(method, [*GARBAGE, *no_utf8(method.input_type, depth=1)])
        is_unread = method.client_streaming and set(codes) == {"UNIMPLEMENTED"}
        assert is_unread or set(codes) == {"INVALID_ARGUMENT"}, f"{method.full_name}: {codes}"


async def _fuzz(mesh: Mesh, seeds: Iterator[int]) -> None:
    known = await everything(mesh, "mat")
    fuzzer = MeshFuzzer(mesh.addresses, _valid, seconds=scaled(20))
    await fuzzer.run(seeds, known)
    found = fuzzer.findings
    assert not found.defects, "\n".join(map(str, found.defects))
    assert found.codes["OK"] > min(_ANSWERED, found.requests // 10), found.codes
    for budget in [budget async for budget in mesh.client.budgets.list()]:
        await mesh.client.budgets.delete(budget.id)
    agent = await mesh.client.agents.create(blocks={"human": ""})
    assert await asyncio.wait_for(agent.ask("Are you still there?"), scaled(60))


def _valid(method: MethodDescriptor, known: Known) -> Sequence[Any]:
    return [*good_requests(method, known), least_request(method, known)]
