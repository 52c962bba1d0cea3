"""The Python client: agents, their memory, lists and errors."""

from typing import Any

import pytest
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_client import Mnemesh, RunFailed
from mnemesh_client.addresses import Addresses
from mnemesh_client.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from mnemesh_client.inputs import package_requirements, source_text
from mnemesh_kit.server_info import version_of


async def test_agent_is_created_with_its_blocks_and_answers(mnemesh: Mnemesh) -> None:
    agent = await mnemesh.agents.create(
        "ada", model="mnemesh/rehearsal", blocks={"human": "Likes tea.", "persona": "Kind."}, tools=["web_search"]
    )

    assert agent.id.startswith("agent-")
    assert [tool.name for tool in agent.proto.tools] == ["web_search"]
    assert {block.label: block.value for block in (await agent.memory()).blocks} == {
        "human": "Likes tea.",
        "persona": "Kind.",
    }
    assert await agent.ask("hello") == "You said: hello"


async def test_blocks_can_be_given_as_messages(mnemesh: Mnemesh) -> None:
    block = blocks_pb2.Block(label="rules", value="Be brief.", read_only=True)
    agent = await mnemesh.agents.create(model="mnemesh/rehearsal", blocks=[block])

    assert [block.label for block in (await agent.memory()).blocks] == ["rules"]


async def test_turn_yields_its_events_in_order_up_to_stop_and_usage(mnemesh: Mnemesh) -> None:
    agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": ""})

    kinds = [_kind(event) async for event in agent.send("remember Ada likes tea")]

    assert kinds == ["accepted", "tool_call", "tool_return", "assistant", "stop", "usage"]
    assert "Ada likes tea" in (await agent.memory()).blocks[0].value


async def test_failed_turn_is_an_event_of_send_and_an_error_of_ask(mnemesh: Mnemesh) -> None:
    agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")

    assert "error" in [_kind(event) async for event in agent.send("refuse")]
    with pytest.raises(RunFailed) as failure:
        await agent.ask("refuse")
    assert failure.value.reason == "PROVIDER_AUTH"
    assert failure.value.metadata["provider"] == "openai"


async def test_repeated_request_id_returns_the_same_agent(mnemesh: Mnemesh) -> None:
    first = await mnemesh.agents.create("ada", model="mnemesh/rehearsal", request_id="once")
    second = await mnemesh.agents.create("ada", model="mnemesh/rehearsal", request_id="once")

    assert first.id == second.id


async def test_list_yields_the_rows_of_all_pages(mnemesh: Mnemesh) -> None:
    ids = [(await mnemesh.agents.create(f"a{n}", model="mnemesh/rehearsal")).id for n in range(5)]

    assert [agent.id async for agent in mnemesh.agents.list()] == ids
    assert [agent.id async for agent in mnemesh.agents.list(limit=3)] == ids[:3]


async def test_agent_is_found_by_id_and_by_a_unique_name(mnemesh: Mnemesh) -> None:
    ada = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")
    await mnemesh.agents.create("bob", model="mnemesh/rehearsal")
    await mnemesh.agents.create("bob", model="mnemesh/rehearsal")

    assert (await mnemesh.agents.find(ada.id)).name == "ada"
    assert (await mnemesh.agents.find("ada")).id == ada.id
    with pytest.raises(NotFound):
        await mnemesh.agents.find("eve")
    with pytest.raises(InvalidArgument):
        await mnemesh.agents.find("bob")


async def test_errors_of_the_server_are_raised_as_typed_errors(mnemesh: Mnemesh) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await mnemesh.agents.create("no model")
    assert refused.value.field == "agent.model"
    with pytest.raises(InvalidArgument, match="letta_v9"):
        await mnemesh.agents.create(model="mnemesh/rehearsal", type="letta_v9")
    agent = await mnemesh.agents.create(model="mnemesh/rehearsal", blocks={"human": ""})
    with pytest.raises(AlreadyExists) as taken:
        await mnemesh.blocks.create("human", agent_ids=[agent.id])
    assert taken.value.reason == "BLOCK_LABEL_TAKEN"


async def test_blocks_can_be_shared_and_edited_and_have_revisions(mnemesh: Mnemesh) -> None:
    ada = await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": "Ada."})
    bob = await mnemesh.agents.create("bob", model="mnemesh/rehearsal")
    block = (await ada.memory()).blocks[0]

    await mnemesh.blocks.attach(bob.id, block.id)
    await ada.append("human", "Likes tea.")
    await bob.replace("human", "tea", "coffee")
    await mnemesh.blocks.update(block.id, description="The person.", limit=500)
    await mnemesh.blocks.insert(ada.id, "human", 0, "About:")

    after = (await ada.memory()).blocks[0]
    assert (after.value, after.description, after.limit) == (
        "About:\nAda.\nLikes coffee.",
        "The person.",
        500,
    )
    assert (await bob.memory()).blocks[0].value == after.value
    assert [revision.revision async for revision in mnemesh.blocks.revisions(block.id)] == [5, 4, 3, 2, 1]


async def test_none_clears_a_field(mnemesh: Mnemesh) -> None:
    block = await mnemesh.blocks.create("notes", description="Temporary.")

    await mnemesh.blocks.update(block.id, description=None)

    assert (await mnemesh.blocks.get(block.id)).description != "Temporary."


async def test_unreachable_mesh_is_unavailable(closed_port: int) -> None:
    async with Mnemesh(f"127.0.0.1:{closed_port}", patience=0.2) as mnemesh:
        with pytest.raises(Unavailable):
            await mnemesh.agents.get("agent-00000000-0000-4000-8000-000000000000")
        with pytest.raises(Unavailable):
            async for _ in mnemesh.runs.send("agent-00000000-0000-4000-8000-000000000000", "hello"):
                pass


def test_addresses_are_resolved_from_arguments_then_environment_then_the_orchestrator() -> None:
    env = {"MNEMESH_TARGET": "mesh:7000", "MNEMESH_RECALL_TARGET": "recall:7002"}

    assert Addresses.resolve(env={}).orchestrator == "localhost:50050"
    addresses = Addresses.resolve("example.org", env={})
    assert (addresses.orchestrator, addresses.blocks) == ("example.org:50050", "example.org:50050")
    resolved = Addresses.resolve(blocks="b:1", env=env)
    assert (resolved.orchestrator, resolved.blocks, resolved.recall, resolved.tools) == (
        "mesh:7000",
        "b:1",
        "recall:7002",
        "mesh:7000",
    )


@pytest.mark.parametrize(
    ("target", "env", "expected"),
    [
        (None, {}, ("localhost:50050", "localhost:50050")),
        (None, {"MNEMESH_BLOCKS_PORT": "7"}, ("localhost:50050", "localhost:7")),
        (None, {"MNEMESH_ORCHESTRATOR_PORT": "6", "MNEMESH_HOST": "::1"}, ("[::1]:6", "[::1]:6")),
        (None, {"MNEMESH_HOST": "0.0.0.0"}, ("localhost:50050", "localhost:50050")),
        ("mesh", {"MNEMESH_ORCHESTRATOR_PORT": "6", "MNEMESH_HOST": "::1"}, ("mesh:6", "mesh:6")),
        ("mesh:5", {"MNEMESH_BLOCKS_PORT": "7", "MNEMESH_BLOCKS_TARGET": "b:1"}, ("mesh:5", "b:1")),
    ],
)
def test_addresses_come_from_the_variables_that_the_services_read(
    target: str | None, env: dict[str, str], expected: tuple[str, str]
) -> None:
    resolved = Addresses.resolve(target, env=env)
    assert (resolved.orchestrator, resolved.blocks) == expected


@pytest.mark.parametrize(
    ("target", "env", "expected"),
    [
        (None, {}, ("here:1", "here:2", "here:1")),
        (None, {"MNEMESH_BLOCKS_PORT": "7"}, ("here:1", "here:7", "here:1")),
        (None, {"MNEMESH_BLOCKS_TARGET": "b:1"}, ("here:1", "b:1", "here:1")),
        ("mesh", {}, ("mesh:50050", "mesh:50050", "mesh:50050")),
        (None, {"MNEMESH_TARGET": "mesh:5"}, ("mesh:5", "mesh:5", "mesh:5")),
    ],
)
def test_addresses_of_a_running_mesh_come_after_the_environment(
    target: str | None, env: dict[str, str], expected: tuple[str, str, str]
) -> None:
    running = {"orchestrator": "here:1", "blocks": "here:2"}
    resolved = Addresses.resolve(target, env=env, running=running)
    assert (resolved.orchestrator, resolved.blocks, resolved.recall) == expected


async def test_ambiguous_name_is_refused_with_the_ids(mnemesh: Mnemesh) -> None:
    agents = [await mnemesh.agents.create("ada", model="mnemesh/rehearsal") for _ in range(2)]
    with pytest.raises(InvalidArgument) as refused:
        await mnemesh.agents.find("ada")
    assert all(agent.id in refused.value.message for agent in agents)


def test_function_is_converted_to_its_source_code() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert source_text(add).startswith("def add(a: int, b: int)")
    assert source_text("def f(): ...") == "def f(): ..."
    with pytest.raises(InvalidArgument):
        source_text(len)


async def test_service_reports_its_name_and_version(mnemesh: Mnemesh) -> None:
    info = await mnemesh.server_info("blocks")

    assert (info.service, info.version) == ("blocks", version_of("mnemesh-blocks"))
    assert "mnemesh.blocks.v1.BlockService" in info.proto_services


def _kind(event: Any) -> str:
    kind = event.WhichOneof("event")
    return event.message.WhichOneof("message") if kind == "message" else kind


def test_requirements_are_names_with_versions() -> None:
    found = package_requirements(["requests", " numpy >=2,<3 ", "uvicorn[standard]==0.34.0", "a.b-c_d~=1.2"])
    assert [(item.name, item.version if item.HasField("version") else None) for item in found] == [
        ("requests", None),
        ("numpy", ">=2,<3"),
        ("uvicorn[standard]", "==0.34.0"),
        ("a.b-c_d", "~=1.2"),
    ]
    for text in ("", "-r file", "numpy 2", "git+https://example.com/x", "a; python_version>'3'"):
        with pytest.raises(InvalidArgument, match="is not a requirement"):
            package_requirements([text])
