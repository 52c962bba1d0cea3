"""The real mesh in a thread, and the fixtures of pytest-grpc with blocking stubs for it.

`grpc_addr`, `grpc_server` and `grpc_stub_cls` are that plugin's seams; `grpc_channel` and `grpc_stub` follow from them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import pytest
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal, Role
from mnemesh_kit.revocations import revocation_file, revoke
from mnemesh_kit.services import SERVICES
from mnemesh_testkit.fakes.issuer import AUDIENCE, FakeIssuer
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from mnemesh_testkit.mesh.stubs import PROTO_SERVICES

KEY = b"k" * 32
REVOKED = "lost"
"""The id of a revoked token."""


@pytest.fixture(scope="module")
def threaded_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshThread]:
    """A running mesh with the built-in model."""
    with MeshThread(Mesh(tmp_path_factory.mktemp("mesh"), in_memory=True)) as running:
        yield running


@pytest.fixture(scope="module", params=PROTO_SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    """The full name of each service in turn."""
    return str(request.param)


@pytest.fixture(scope="module")
def grpc_addr(service: str, threaded_mesh: MeshThread) -> str:
    """The address of the service."""
    return threaded_mesh.mesh.addresses[PROTO_SERVICES[service][0]]


@pytest.fixture(scope="module")
def grpc_server(threaded_mesh: MeshThread) -> MeshThread:
    """The server runs already."""
    return threaded_mesh


@pytest.fixture(scope="module")
def grpc_stub_cls(service: str) -> Any:
    """The generated stub; over a plain channel it blocks."""
    return getattr(import_module(PROTO_SERVICES[service][1]), f"{service.rpartition('.')[2]}Stub")


@pytest.fixture(scope="module")
def known(threaded_mesh: MeshThread) -> Mapping[str, Sequence[str]]:
    """Ids of existing resources, so that invalid requests pass the first check."""
    return threaded_mesh.run(population(threaded_mesh.mesh))  # type: ignore[no-any-return]


def token(role: Role, seconds: float = 600, agents: frozenset[str] | None = None, id_: str | None = None) -> str:
    """Returns a token that the guarded mesh accepts."""
    organization, subject = DEFAULT_PRINCIPAL.organization_id, DEFAULT_PRINCIPAL.subject_id
    return mint_token(KEY, Principal(organization, subject, agents=agents), seconds, role=role, token_id=id_)


def bearer(role: Role) -> dict[str, str]:
    """Returns the headers of an HTTP request."""
    return {"Authorization": f"Bearer {token(role)}"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[FakeIssuer]:
    """An issuer whose tokens the mesh accepts."""
    with FakeIssuer() as running:
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, issuer: FakeIssuer) -> Iterator[MeshThread]:
    """A running mesh that requires tokens."""
    directory = tmp_path_factory.mktemp("mesh")
    keys = directory / "keys"
    keys.write_bytes(KEY)
    revoke(revocation_file(str(keys)), "token", REVOKED, time.time())
    shared = {"auth_key_file": str(keys), "oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
    settings: dict[str, dict[str, Any]] = {spec.name: dict(shared) for spec in SERVICES}
    settings["orchestrator"] |= {"provider_hosts": ("127.0.0.1",), "callback_hosts": ("127.0.0.1",)}
    with MeshThread(Mesh(directory, in_memory=True, gateway=True, settings=settings)) as running:
        yield running


async def population(mesh: Mesh, word: str = "mat") -> dict[str, list[str]]:
    """Something of every kind, for the current principal; `word` is in all of it. Ids by their kind."""
    agent = await mesh.client.agents.create(blocks={"law": f"Kind {word}.", "human": "A human.", "persona": "Kind."})
    await agent.ask(f"Remember that the key is under the {word}.")
    source = f'def ping_{word}() -> str:\n    """Answers {word}."""\n    return "pong"\n'
    tool = await mesh.client.tools.create(source)
    conversation = agent.proto.default_conversation_id
    runs = [run.id async for run in mesh.client.runs.list()]
    passages = [passage async for passage in agent.passages()]
    steps = [step.id async for step in mesh.client.runs.steps(runs[0])]
    batch = await ended_batch(mesh, agent.id, f"Where is the {word}?")
    group = await mesh.client.groups.create([agent.id], description=f"On the {word}.")
    return {
        "agent": [agent.id],
        "block": [block.id for block in (await agent.memory()).blocks],
        "conversation": [conversation],
        "message": [message.id for message in (await mesh.client.messages.window(conversation)).messages],
        "run": runs,
        "step": steps,
        "batch": [batch],
        "archive": [passage.archive_id for passage in passages],
        "passage": [passage.id for passage in passages],
        "tool": [tool.id],
        "group": [group.id],
    }


async def ended_batch(mesh: Mesh, agent_id: str, text: str) -> str:
    """Starts a batch of one run, waits for its end, and returns its id."""
    runs = mesh.stubs["mnemesh.agents.v1.RunService"]
    message = runs_pb2.InputMessage(content=[message_pb2.ContentPart(text=message_pb2.TextPart(text=text))])
    request = runs_service_pb2.BatchRequest(agent_id=agent_id, messages=[message])
    batch = (await runs.StartBatch(runs_service_pb2.StartBatchRequest(requests=[request]))).batch
    (run,) = (
        await runs.ListRuns(runs_service_pb2.ListRunsRequest(filter=runs_service_pb2.RunFilter(batch_id=batch.id)))
    ).runs
    async for _ in runs.StreamRun(runs_service_pb2.StreamRunRequest(run_id=run.id)):
        pass
    return str(batch.id)
