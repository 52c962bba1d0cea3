"""System prompts by key: built-in prompts, files of an operator, and agents that are created with them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound, PageTokenInvalid
from mnemesh_testkit.mesh.command_line import run_command
from mnemesh_testkit.mesh.in_process import Mesh

BUILT_IN = [
    "letta_v1",
    "memgpt_chat",
    "memgpt_generate_tool",
    "memgpt_v2_chat",
    "react",
    "sleeptime_doc_ingest",
    "sleeptime_v2",
    "summary_system_prompt",
    "voice_chat",
    "voice_sleeptime",
    "workflow",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """One mesh for all of them; each cleans its files away."""
    async with Mesh(tmp_path_factory.mktemp("mesh"), in_memory=True) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def files(mesh: Mesh) -> Any:
    """The operator's directory, which the server has made."""
    directory = mesh.directory / "system_prompts"
    yield directory
    for path in directory.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()


async def keys(mesh: Mesh) -> list[str]:
    return [prompt.key async for prompt in mesh.client.prompts.list()]


async def system_text(mesh: Mesh, agent: Any) -> str:
    window = await mesh.client.messages.window(agent.proto.default_conversation_id)
    return str(window.messages[0].content[0].text.text)


async def test_every_built_in_prompt_is_returned_by_its_key(mesh: Mesh, files: Path) -> None:
    assert files.is_dir()
    listed = [prompt async for prompt in mesh.client.prompts.list()]
    assert [prompt.key for prompt in listed] == BUILT_IN
    for prompt in listed:
        assert prompt.built_in
        assert len(prompt.text) > 300
        assert await mesh.client.prompts.get(prompt.key) == prompt


async def test_prompt_file_is_read_without_a_restart(mesh: Mesh, files: Path) -> None:
    (files / "pirate.txt").write_text("Arr {CORE_MEMORY} {}", encoding="utf-8")
    prompt = await mesh.client.prompts.get("pirate")
    assert prompt == agents_pb2.SystemPrompt(key="pirate", text="Arr {CORE_MEMORY} {}", built_in=False)
    assert await keys(mesh) == sorted([*BUILT_IN, "pirate"])

    (files / "pirate.txt").write_text("Ahoy\r\nthere", encoding="utf-8-sig")
    assert (await mesh.client.prompts.get("pirate")).text == "Ahoy\nthere"
    (files / "pirate.txt").unlink()
    with pytest.raises(NotFound) as gone:
        await mesh.client.prompts.get("pirate")
    assert gone.value.metadata["resource_id"] == "pirate"


async def test_file_does_not_replace_a_built_in_prompt(mesh: Mesh, files: Path) -> None:
    (files / "react.txt").write_text("other", encoding="utf-8")
    assert (await mesh.client.prompts.get("react")).built_in
    assert await keys(mesh) == BUILT_IN


async def test_prompts_are_paged(mesh: Mesh, files: Path) -> None:
    (files / "Zebra.txt").write_text("z", encoding="utf-8")
    call = mesh.client.agents.stub.ListSystemPrompts
    request = agents_service_pb2.ListSystemPromptsRequest(page_size=5)
    seen: list[str] = []
    while True:
        page = await call(request)
        seen += [prompt.key for prompt in page.system_prompts]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == ["Zebra", *BUILT_IN]
    request = agents_service_pb2.ListSystemPromptsRequest(
        order=paging_pb2.SORT_ORDER_DESCENDING, after_id="react", before_id="letta_v1"
    )
    between = [prompt.key for prompt in (await call(request)).system_prompts]
    assert between == BUILT_IN[BUILT_IN.index("react") - 1 : BUILT_IN.index("letta_v1") : -1]
    request = agents_service_pb2.ListSystemPromptsRequest(page_token="AAAA")
    with pytest.raises(PageTokenInvalid):
        await call(request)
    with pytest.raises(InvalidArgument) as unknown:
        await call(agents_service_pb2.ListSystemPromptsRequest(order_by=9))  # type: ignore[arg-type]
    assert unknown.value.field == "order_by"


@pytest.mark.parametrize(
    "key",
    ["..", "../secret", "../system_prompts/pirate", "a/b", "/etc/passwd", "pirate.txt/", "pirate\n", "PIRATE",
     ".hidden", " pirate", "x" * 101, "x" * 1_000_000, "\u202e", "%2e%2e", "~", "*", "pirate\u0001"],
    ids=lambda key: repr(key[:24]),
)  # fmt: skip
async def test_key_is_never_a_path(mesh: Mesh, files: Path, key: str) -> None:
    (mesh.directory / "secret.txt").write_text("hidden", encoding="utf-8")
    (files / "pirate.txt").write_text("Arr", encoding="utf-8")
    (files / ".hidden.txt").write_text("hidden", encoding="utf-8")
    before = [agent.id async for agent in mesh.client.agents.list()]
    with pytest.raises(NotFound) as missing:
        await mesh.client.prompts.get(key)
    assert "hidden" not in missing.value.message or key == ".hidden"
    assert len(missing.value.message) < 400
    with pytest.raises(NotFound):
        await mesh.client.agents.create("a", system_prompt_key=key)
    assert [agent.id async for agent in mesh.client.agents.list()] == before


@pytest.mark.parametrize("key", ["", "a\0b"])
async def test_missing_key_is_refused_with_the_field(mesh: Mesh, key: str) -> None:
    for call, field in (
        (mesh.client.prompts.get(key), "key"),
        (mesh.client.agents.create("a", system_prompt_key=key), "system_prompt_key"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await call
        assert refused.value.field == field


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe not UTF-8", b"a\0b", b"x" * 1_000_001, b"\xf0\x9f\x90\x8d" * 1_000_001],
    ids=["no text", "NUL", "too long", "far too long"],
)
async def test_invalid_file_is_not_listed_as_a_prompt(mesh: Mesh, files: Path, content: bytes) -> None:
    (files / "broken.txt").write_bytes(content)
    (files / "folder.txt").mkdir()
    (files / "fine.txt").write_bytes(b"x" * 1_000_000)
    assert await keys(mesh) == sorted([*BUILT_IN, "fine"])
    with pytest.raises(NotFound) as refused:
        await mesh.client.prompts.get("broken")
    assert "broken" in refused.value.message
    assert len((await mesh.client.prompts.get("fine")).text) == 1_000_000


async def test_agent_is_created_with_a_prompt_key(mesh: Mesh, files: Path) -> None:
    (files / "pirate.txt").write_text("Arr {{who}} <{CORE_MEMORY}> {}", encoding="utf-8")
    agent = await mesh.client.agents.create(
        system_prompt_key="pirate", blocks={"human": "Ada."}, memory_variables={"who": "Anne"}
    )
    assert agent.proto.system == "Arr Anne <{CORE_MEMORY}> {}"
    text = await system_text(mesh, agent)
    assert text.startswith("Arr Anne <<memory_blocks>")
    assert "Ada." in text
    assert text.endswith("> {}")
    (files / "pirate.txt").write_text("other", encoding="utf-8")
    assert (await agent.refresh()).proto.system == "Arr Anne <{CORE_MEMORY}> {}"


async def test_prompt_text_and_prompt_key_are_exclusive(mesh: Mesh) -> None:
    before = [agent.id async for agent in mesh.client.agents.list()]
    with pytest.raises(InvalidArgument) as refused:
        await mesh.client.agents.create(system="Mine.", system_prompt_key="react", request_id="once")
    assert refused.value.field == "system_prompt_key"
    with pytest.raises(NotFound):
        await mesh.client.agents.create(system_prompt_key="nobody_wrote_it", request_id="once")
    assert [agent.id async for agent in mesh.client.agents.list()] == before
    agent = await mesh.client.agents.create(system_prompt_key="react", request_id="once")
    assert agent.proto.system == (await mesh.client.prompts.get("react")).text


async def test_prompt_with_variables_keeps_its_length_limit(mesh: Mesh, files: Path) -> None:
    (files / "wide.txt").write_text("{{a}}{{a}}", encoding="utf-8")
    with pytest.raises(InvalidArgument) as refused:
        await mesh.client.agents.create(system_prompt_key="wide", memory_variables={"a": "x" * 600_000})
    assert refused.value.field == "memory_variables"


async def test_agent_is_updated_with_a_prompt_key(mesh: Mesh, files: Path) -> None:
    (files / "pirate.txt").write_text("Arr", encoding="utf-8")
    agent = await mesh.client.agents.create("ada", system="Mine.", blocks={"human": "Ada."})
    await agent.update(system_prompt_key="pirate")
    assert (agent.proto.system, agent.name) == ("Arr", "ada")
    await agent.update(system_prompt_key="react", name="grace")
    assert (agent.proto.system, agent.name) == ((await mesh.client.prompts.get("react")).text, "grace")

    for wrong, field in (
        ({"system_prompt_key": "pirate", "system": "Both."}, "system_prompt_key"),
        ({"system_prompt_key": ""}, "system_prompt_key"),
        ({}, "update_mask"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await agent.update(**wrong)
        assert refused.value.field == field
    with pytest.raises(NotFound):
        await agent.update(system_prompt_key="nobody_wrote_it", name="other")
    await agent.refresh()
    assert (agent.name, agent.proto.system[:3]) == ("grace", (await mesh.client.prompts.get("react")).text[:3])

    request = agents_service_pb2.UpdateAgentRequest(
        request_id="once", agent=agents_pb2.Agent(id=agent.id), update_mask=FieldMask(), system_prompt_key="pirate"
    )
    for _ in range(2):
        assert (await mesh.client.agents.stub.UpdateAgent(request)).agent.system == "Arr"
    await agent.ask("Hello")
    assert (await system_text(mesh, agent)).startswith("Arr")


async def test_prompts_on_the_command_line(mesh: Mesh, files: Path) -> None:
    (files / "pirate.txt").write_text("Arr [b]", encoding="utf-8")
    targets = {f"MNEMESH_{service.upper()}_TARGET": address for service, address in mesh.addresses.items()}
    environment = {"PATH": "", "MNEMESH_TARGET": mesh.addresses["orchestrator"], **targets}

    async def typed(*arguments: str) -> str:
        code, out, _ = await asyncio.to_thread(run_command, *arguments, environment=environment)
        assert code == 0
        return out

    listed, shown = await typed("prompts", "list"), await typed("prompts", "show", "pirate")
    agent_id = await typed("agents", "create", "anne", "--prompt", "pirate")
    assert "memgpt_v2_chat" in listed
    assert "operator" in listed
    assert shown == "Arr [b]\n"
    assert (await mesh.client.agents.get(agent_id.strip())).proto.system == "Arr [b]"
