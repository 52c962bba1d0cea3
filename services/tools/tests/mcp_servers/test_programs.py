"""Stdio servers: programs that the service starts in the sandbox."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal
from mnemesh_kit.ids import new_id
from mnemesh_sandbox import Level
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import growing, scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits

from ..conftest import Stubs, serve
from .program import SOURCE

LIMITS = McpLimits(connect_seconds=scaled(60), settle_seconds=0)
SECRET = "canary-0123456789"
KEY = "k" * 32


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A running service."""
    config = _config(tmp_path)
    if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
        pytest.skip("this host cannot confine a program with a directory")
    async with serve(config, LIMITS) as found:
        yield found


def _config(tmp_path: Path, **settings: Any) -> Config:
    return Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", warm_processes=0, **settings)


def _program(*arguments: str, env: dict[str, str] | None = None, **fields: Any) -> pb.McpServer:
    values = [pb.McpSecret(name=name, value=value) for name, value in (env or {}).items()]
    transport = pb.StdioTransport(command="python3", args=["-c", SOURCE, *arguments], env=values, **fields)
    return pb.McpServer(name="program", stdio=transport)


async def _create(stubs: Stubs, server: pb.McpServer) -> pb.McpServer:
    return (await stubs.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=server))).mcp_server


async def _get(stubs: Stubs, server: pb.McpServer) -> pb.McpServer:
    return (await stubs.mcp.GetMcpServer(rpc.GetMcpServerRequest(mcp_server_id=server.id))).mcp_server


async def _run(stubs: Stubs, server: pb.McpServer, tool: str, **fields: Any) -> Any:
    arguments = json.dumps(fields.pop("arguments", {}))
    seconds = fields.pop("seconds", scaled(20))
    request = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id,
        tool=rpc.McpToolReference(name=tool),
        arguments=arguments,
        timeout=Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9)),
        **fields,
    )
    return await stubs.mcp.RunMcpServerTool(request)


async def _text(stubs: Stubs, server: pb.McpServer, tool: str, **fields: Any) -> str:
    answer = await _run(stubs, server, tool, **fields)
    text: str = answer.content[0].text.text
    return text


async def _environment(stubs: Stubs, server: pb.McpServer, **fields: Any) -> dict[str, str]:
    found = json.loads(await _text(stubs, server, "env", **fields))
    return {name: value[::-1] for name, value in found.items()}


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(60)):
        while not condition():
            await asyncio.sleep(0.01)


def _children() -> set[int]:
    """Returns the processes of the sandbox that this process started."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


async def test_a_program_is_started_once_and_runs_in_the_sandbox(stubs: Stubs) -> None:
    server = await _create(stubs, _program(env={"TOKEN": SECRET, "WHO": "{{ AGENT_ID | nobody }}"}))
    assert (server.status, server.tool_count) == (pb.MCP_SERVER_STATUS_REACHABLE, 18), server.status_message
    pid, directory, uid = json.loads(await _text(stubs, server, "where"))
    assert (directory, pid < 10) == ("/tmp/work", True), "a work directory and a process table of its own"
    assert uid != os.getuid() or os.getuid() != 0
    assert json.loads(await _text(stubs, server, "where"))[0] == pid
    environment = await _environment(stubs, server)
    assert (environment["TOKEN"], environment["WHO"], environment["HOME"]) == (SECRET, "nobody", "/tmp/work")
    assert set(environment) <= {"TOKEN", "WHO", "HOME", "PATH", "LANG", "LC_CTYPE"}
    assert (await _text(stubs, server, "reach", arguments={"url": "http://192.0.2.1/"})) == "URLError"
    health = (await _get(stubs, server)).program
    assert (health.running, health.starts, health.crashes) == (1, 1, 0)
    # Another value of a variable is another process.
    caller = rpc.McpCaller(agent_id="agent-1")
    assert (await _environment(stubs, server, caller=caller))["WHO"] == "agent-1"
    assert (await _get(stubs, server)).program.running == 2


async def test_results_are_bounded_and_other_content_is_described(stubs: Stubs) -> None:
    server = await _create(stubs, _program())
    long = await _run(stubs, server, "big")
    assert len(long.content[0].text.text) == 50_000
    rich = await _run(stubs, server, "rich")
    assert rich.structured_content == '{"ok": true}'
    assert rich.content[1].image.inline.media_type == "image/png"
    texts = [part.text.text for part in rich.content]
    assert "audio/wav, 3 bytes" in texts[0]
    assert "application/zip, 3 bytes" in texts[2]
    assert "file:///a.txt" in texts[3]


async def test_a_changed_list_of_tools_is_read_again(stubs: Stubs) -> None:
    server = await _create(stubs, _program())
    assert await _text(stubs, server, "more") == "changed"
    request = rpc.GetMcpServerToolRequest(mcp_server_id=server.id, tool=rpc.McpToolReference(name="added"))
    async with asyncio.timeout(scaled(60)):
        while (await _get(stubs, server)).tool_count < 19:
            await asyncio.sleep(0.01)
    assert (await stubs.mcp.GetMcpServerTool(request)).tool.name == "added"


async def test_a_directory_outlives_the_program_and_is_deleted_with_the_server(stubs: Stubs, tmp_path: Path) -> None:
    settings = _program(env={"WHO": "{{ AGENT_ID | all }}"}, persistent_directory=True)
    server = await _create(stubs, settings)
    assert await _text(stubs, server, "note", arguments={"text": "one"}) == "one"
    await catch_refusal(_run(stubs, server, "crash"))
    assert await _text(stubs, server, "note", arguments={"text": "two"}) == "one two"
    caller = rpc.McpCaller(agent_id="agent-1")
    assert await _text(stubs, server, "note", arguments={"text": "mine"}, caller=caller) == "mine"
    # Settings that are only tried have a directory of their own.
    tried = rpc.TestMcpServerRequest(mcp_server=_program(persistent_directory=True))
    assert (await stubs.mcp.TestMcpServer(tried)).status == pb.MCP_SERVER_STATUS_REACHABLE
    assert [path.name for path in (tmp_path / "mcp").iterdir()] == [server.id]
    await stubs.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=server.id))
    assert not list((tmp_path / "mcp").iterdir())


@pytest.mark.full
async def test_a_program_whose_directory_is_too_large_starts_and_can_remove_files(tmp_path: Path) -> None:
    async with serve(_config(tmp_path, disk_mb=4), LIMITS) as stubs:
        server = await _create(stubs, _program(persistent_directory=True))
        assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
        path = tmp_path / "mcp" / server.id / "shared" / "large"
        await stubs.mcp.UpdateMcpServer(  # ends the program
            rpc.UpdateMcpServerRequest(
                mcp_server=pb.McpServer(id=server.id, name="other"), update_mask=FieldMask(paths=["name"])
            )
        )
        path.write_bytes(b"x" * (6 << 20))
        more = await catch_refusal(_run(stubs, server, "fill", arguments={"mb": 20}))
        assert more.reason == "ABORTED", "it must not have more than it had"
        path.write_bytes(b"x" * (6 << 20))
        assert await _text(stubs, server, "drop") == "removed"
        assert await _text(stubs, server, "note", arguments={"text": "one"}) == "one"


@pytest.mark.parametrize(
    ("tool", "reason", "text"),
    sampled(
        [
            ("crash", "ABORTED", "ended with the status 7"),
            ("close", "ABORTED", "closed its standard output"),
            ("flood", "ABORTED", "more than 8 MB"),
            ("hang", "DEADLINE_EXCEEDED", "{seconds:g} seconds"),
            ("slow", "DEADLINE_EXCEEDED", "4 of 10, indexing"),
        ],
        2,
    ),
)
async def test_a_failed_call_is_reported_and_the_next_one_works(
    stubs: Stubs, tool: str, reason: str, text: str
) -> None:
    for seconds in growing(0.3) if reason == "DEADLINE_EXCEEDED" else (scaled(60),):
        settings = _program(env={"TOKEN": SECRET})
        settings.name = f"within {seconds:g}"
        server = await _create(stubs, settings)
        before = _children()
        error = await catch_refusal(_run(stubs, server, tool, seconds=seconds))
        assert error.reason == reason, error.message
        if tool != "slow" or "progress" in error.message:
            break
    assert text.format(seconds=seconds) in error.message
    assert SECRET not in error.message
    assert await _text(stubs, server, "echo", arguments={"text": "a"}) == "a" if reason == "ABORTED" else True
    if tool == "crash":
        health = (await _get(stubs, server)).program
        assert (health.starts, health.crashes) == (2, 1)
    assert len(_children()) <= len(before)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["dies"], "no configuration"),
        (["noise"], "1,000 lines that are no messages"),
        (["silent"], "did not answer within"),
    ],
)
async def test_a_program_that_does_not_start_is_a_clear_status(tmp_path: Path, arguments: list[str], text: str) -> None:
    limits = McpLimits(connect_seconds=0.5 if arguments == ["silent"] else scaled(60))
    async with serve(_config(tmp_path), limits) as stubs:
        before = _children()
        server = await _create(stubs, _program(*arguments))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert text in server.status_message
        await _until(lambda: _children() <= before)
        if arguments == ["dies"]:
            await catch_refusal(stubs.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id)))
            again = await catch_refusal(
                stubs.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id))
            )
            assert "2 times in a row" in again.message, "it is not started at every call"
            health = (await _get(stubs, server)).program
            assert (health.starts, health.crashes) == (2, 2)
            assert "no configuration" in health.stderr


async def test_a_program_that_does_not_exist_is_one_sentence(stubs: Stubs) -> None:
    server = await _create(stubs, pb.McpServer(name="program", stdio=pb.StdioTransport(command="notaurl")))
    assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
    assert "The program 'notaurl' cannot be started: it does not exist." in server.status_message
    assert "Traceback" not in server.status_message


async def test_programs_of_other_organizations_share_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    tokens = [mint_token(KEY.encode(), Principal(new_id("org"), new_id("user")), 600) for _ in range(2)]
    mine, theirs = ((("authorization", f"Bearer {token}"),) for token in tokens)
    async with serve(_config(tmp_path, auth_key_file=str(keys)), LIMITS) as stubs:
        dying = rpc.TestMcpServerRequest(mcp_server=_program("dies"))
        for _ in range(3):
            tried = await stubs.mcp.TestMcpServer(dying, metadata=mine)
            assert "no configuration" in tried.status_message
            assert "in a row" not in tried.status_message, "trials share nothing with each other"
        good = rpc.TestMcpServerRequest(mcp_server=_program())
        for metadata in (theirs, mine):
            assert (await stubs.mcp.TestMcpServer(good, metadata=metadata)).status == pb.MCP_SERVER_STATUS_REACHABLE
        # A trial of other settings says nothing about the stored ones, and another organization cannot reach them.
        create = rpc.CreateMcpServerRequest(mcp_server=_program(persistent_directory=True))
        server = (await stubs.mcp.CreateMcpServer(create, metadata=mine)).mcp_server
        changed = rpc.TestMcpServerRequest(mcp_server_id=server.id, mcp_server=_program("dies"))
        for _ in range(3):
            assert "in a row" not in (await stubs.mcp.TestMcpServer(changed, metadata=mine)).status_message
        await stubs.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=server.id), metadata=theirs)
        found = await stubs.mcp.GetMcpServer(rpc.GetMcpServerRequest(mcp_server_id=server.id), metadata=mine)
        program = found.mcp_server.program
        assert (program.running, program.starts, program.crashes, program.stderr) == (1, 1, 0, "")
        assert (tmp_path / "mcp" / server.id).is_dir()


async def test_a_program_that_crashes_for_one_agent_starts_for_others(stubs: Stubs) -> None:
    server = await _create(stubs, _program(env={"WHO": "{{ AGENT_ID | all }}"}))
    crashing, other = rpc.McpCaller(agent_id="agent-1"), rpc.McpCaller(agent_id="agent-2")
    for _ in range(2):
        await catch_refusal(_run(stubs, server, "crash", caller=crashing))
    waiting = await catch_refusal(_run(stubs, server, "echo", caller=crashing))
    assert "2 times in a row" in waiting.message
    assert await _text(stubs, server, "echo", arguments={"text": "a"}, caller=other) == "a"


async def test_lines_that_are_no_messages_are_kept_as_its_output(stubs: Stubs) -> None:
    server = await _create(stubs, _program())
    assert await _text(stubs, server, "garbage") == "done"
    assert "this is not a message" in (await _get(stubs, server)).program.stderr


async def test_nothing_is_left_when_the_service_stops(tmp_path: Path) -> None:
    before = _children()
    async with serve(_config(tmp_path, mcp_trusted_organizations="*"), LIMITS) as stubs:
        server = await _create(stubs, _program())
        _, _, uid = json.loads(await _text(stubs, server, "where"))
        assert uid == os.getuid(), "a trusted program is not confined"
        child = int(await _text(stubs, server, "child"))
        os.kill(child, 0)
    await _until(lambda: not Path(f"/proc/{child}").exists())
    assert _children() <= before


async def test_an_idle_program_gives_its_place_to_another(tmp_path: Path) -> None:
    async with serve(_config(tmp_path, mcp_processes=1), LIMITS) as stubs:
        first = await _create(stubs, _program())
        second = _program()
        second.name = "second"
        second = await _create(stubs, second)
        assert second.status == pb.MCP_SERVER_STATUS_REACHABLE, second.status_message
        assert (await _get(stubs, first)).program.running == 0
        hanging = asyncio.ensure_future(_run(stubs, second, "hang", seconds=scaled(60)))
        async with asyncio.timeout(scaled(60)):
            while "the call hangs" not in (await _get(stubs, second)).program.stderr:
                await asyncio.sleep(0.01)
        error = await catch_refusal(_run(stubs, first, "echo"))
        assert "1 programs already" in error.message
        hanging.cancel()
        await asyncio.wait({hanging})


async def test_a_killed_program_is_started_again(tmp_path: Path) -> None:
    async with serve(_config(tmp_path, mcp_trusted_organizations="*"), LIMITS) as stubs:
        server = await _create(stubs, _program())
        pid = json.loads(await _text(stubs, server, "where"))[0]
        os.kill(pid, signal.SIGKILL)
        await _until(lambda: not Path(f"/proc/{pid}").exists())
        assert await _text(stubs, server, "echo", arguments={"text": "again"}) == "again"


async def test_an_update_starts_another_program(stubs: Stubs) -> None:
    server = await _create(stubs, _program(env={"TOKEN": SECRET}))
    secret = pb.McpSecret(name="TOKEN", value=SECRET)
    changed = pb.McpServer(id=server.id, stdio=pb.StdioTransport(args=["-c", SOURCE, "other"], env=[secret]))
    mask = FieldMask(paths=["stdio.args", "stdio.env"])
    await stubs.mcp.UpdateMcpServer(rpc.UpdateMcpServerRequest(mcp_server=changed, update_mask=mask))
    assert (await _get(stubs, server)).program.running == 0
    assert (await _environment(stubs, server))["TOKEN"] == SECRET


@pytest.mark.parametrize(
    ("transport", "field"),
    [
        (pb.StdioTransport(command="npx", args=["-y"]), "mcp_server.stdio.args"),
        (pb.StdioTransport(command="uvx", args=["--python", "3.12", "x"]), "mcp_server.stdio.args"),
        (pb.StdioTransport(command="a", env=[pb.McpSecret(name="A-B", value="c")]), "mcp_server.stdio.env[0].name"),
        (pb.StdioTransport(command="a", network_hosts=["http://a"]), "mcp_server.stdio.network_hosts"),
    ],
)
async def test_bad_settings_name_the_field(stubs: Stubs, transport: pb.StdioTransport, field: str) -> None:
    error = await catch_refusal(_create(stubs, pb.McpServer(name="a", stdio=transport)))
    assert error.field == field, error.message


async def test_another_program_does_not_get_the_secrets_of_the_first(stubs: Stubs) -> None:
    server = await _create(stubs, _program(env={"TOKEN": SECRET}))
    same = pb.McpServer(id=server.id, stdio=server.stdio)
    paths = FieldMask(paths=["stdio"])
    await stubs.mcp.UpdateMcpServer(rpc.UpdateMcpServerRequest(mcp_server=same, update_mask=paths))
    assert (await _environment(stubs, server))["TOKEN"] == SECRET
    for field, value in (("command", "env"), ("args", ["-c", "import os; print(os.environ)"])):
        other = pb.McpServer()
        other.CopyFrom(same)
        other.stdio.ClearField(field)
        other.MergeFrom(pb.McpServer(stdio=pb.StdioTransport(**{field: value})))
        for written in (paths, FieldMask(paths=[f"stdio.{field}"])):
            update = rpc.UpdateMcpServerRequest(mcp_server=other, update_mask=written)
            error = await catch_refusal(stubs.mcp.UpdateMcpServer(update))
            assert (error.reason, error.field) == ("INVALID_ARGUMENT", "mcp_server.stdio.env.value")
            assert "another program" in error.message
    assert (await _get(stubs, server)).stdio.args == server.stdio.args
