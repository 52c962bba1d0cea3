"""The output and exit codes of the `mnemesh` command."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.commands.version import CLIENT_VERSION
from mnemesh_cli.main import app
from mnemesh_cli.supervisor.config import DataDirectoryLock
from mnemesh_client import Mnemesh
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.ids import new_id
from mnemesh_kit.oidc import issuer_id
from mnemesh_kit.revocations import Revocations
from mnemesh_kit.services import SERVICE_NAMES, service
from typer.testing import CliRunner

if TYPE_CHECKING:
    from mnemesh_testkit.mesh.fake_mesh import FakeMesh

KEY = "k" * 40


async def test_agents_are_created_listed_shown_and_deleted(mesh: "FakeMesh") -> None:
    code, agent_id, err = await mesh.run(
        "agents", "create", "ada", "--model", "mnemesh/rehearsal", "--human", "Likes tea.", "--block", "rules=Be brief."
    )
    agent_id = agent_id.strip()
    assert (code, err) == (0, "")

    _, listed, _ = await mesh.run("agents", "list")
    assert agent_id in listed
    assert "mnemesh/rehearsal" in listed
    _, shown, _ = await mesh.run("agents", "show", "ada")
    assert "Likes tea." in shown
    assert "Be brief." in shown
    assert "letta_v1" in shown
    assert (await mesh.run("agents", "delete", "ada", "--yes"))[0] == 0
    _, listed, _ = await mesh.run("agents", "list")
    assert agent_id not in listed


async def test_delete_asks_for_confirmation(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")

    code, _, _ = await mesh.run("agents", "delete", "ada", stdin="n\n")

    assert code == 1
    assert (await mnemesh.agents.get(agent.id)).name == "ada"


async def test_memory_is_shown_and_edited(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": "Likes tea."})

    await mesh.run("memory", "edit", "ada", "human", "--append", "Has a cat.")
    code, shown, err = await mesh.run("memory", "edit", "ada", "human", "--replace", "tea", "coffee")
    assert (code, err) == (0, "")
    assert "[human (" in shown
    assert "Likes coffee.\nHas a cat." in shown

    code, _, err = await mesh.run("memory", "edit", "ada", "human", "--replace", "gin", "rum")
    assert code == 1
    assert "BLOCK_TEXT_NOT_FOUND" in err
    assert len(err.splitlines()) == 1


async def test_memory_edit_without_options_opens_the_editor(mesh: "FakeMesh", mnemesh: Mnemesh, tmp_path: Path) -> None:
    await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": "Likes tea."})
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho 'Likes milk.' > \"$1\"\n")
    editor.chmod(0o755)

    code, shown, _ = await mesh.run("memory", "edit", "ada", "human", EDITOR=str(editor), PATH="/bin:/usr/bin")

    assert code == 0
    assert "Likes milk." in shown


async def test_chat_without_a_terminal_prints_only_the_replies(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    await mnemesh.agents.create("ada", model="mnemesh/rehearsal", blocks={"human": ""})

    code, out, err = await mesh.run_process(
        "chat", stdin="remember tea\n\nhow are you [bold]?[/bold] :smile:\nno newline"
    )

    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "You said: remember tea",
        "You said: how are you [bold]?[/bold] :smile:",
        "You said: no newline",
    ]


async def test_refused_api_key_is_one_error_line_and_exit_code_1(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    await mnemesh.agents.create("ada", model="mnemesh/rehearsal")

    code, out, err = await mesh.run_process("chat", "--agent", "ada", stdin="refuse\nhello\n")

    assert code == 1
    assert out == "You said: hello\n"
    assert err.splitlines() == [
        (
            "mnemesh: openai refused the API key. Check OPENAI_API_KEY and restart the mesh, or, if you registered the "
            "provider, use `mnemesh providers update openai --key-file FILE`. (Bad key.)"
        )
    ]


async def test_chat_without_an_agent_needs_exactly_one_agent(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    code, _, err = await mesh.run_process("chat")
    assert code == 3
    assert "mnemesh agents create" in err
    await mnemesh.agents.create("ada", model="mnemesh/rehearsal")
    await mnemesh.agents.create("bob", model="mnemesh/rehearsal")
    code, _, err = await mesh.run_process("chat")
    assert code == 1
    assert "several agents" in err


def found_message(text: str, **more: Any) -> message_pb2.Message:
    content = [message_pb2.ContentPart(text=message_pb2.TextPart(text=text))] if text else []
    return message_pb2.Message(id=new_id("message"), role=message_pb2.ROLE_USER, content=content, **more)


async def test_search_shows_who_said_what_when_and_around_it(mesh: "FakeMesh", mnemesh: Mnemesh) -> None:
    await mnemesh.agents.create("ada", model="mnemesh/rehearsal", time_zone="Europe/Berlin")
    sent = message_pb2.ToolCall(id="call-1", name="send_message", arguments='{"message": "Where do you live?"}')
    question = message_pb2.Message(id=new_id("message"), role=message_pb2.ROLE_ASSISTANT, tool_calls=[sent])
    said = found_message("In Rome.", name="Zoë", create_time=Timestamp(seconds=1_700_000_000))
    after = found_message("And you?")
    mesh.orchestrator.found = messages_service_pb2.SearchMessagesResponse(
        hits=[
            messages_service_pb2.MessageHit(message=said, text="In Rome.", score=0.75, question=question, after=[after])
        ],
        time_ranges=[
            messages_service_pb2.ResolvedTimeRange(expression="before May", end_time=Timestamp(seconds=1_682_892_000))
        ],
    )
    asked = ("search", "Where does Zoë live?", "home", "--in", "messages", "--speaker", "Zoë", "--after", "1")
    code, out, err = await mesh.run(*asked)
    assert (code, err) == (0, "mnemesh: times are in Europe/Berlin\n")
    assert out.splitlines() == [
        "before May: from … until 2023-05-01 00:00",
        "                        assistant Where do you live?",
        " 0.75  2023-11-14 23:13 Zoë       In Rome.",
        "                        user      And you?",
    ]
    (request,) = mesh.orchestrator.searched
    assert (request.query, list(request.further_queries)) == ("Where does Zoë live?", ["home"])
    assert (list(request.speakers), request.messages_before, request.messages_after) == (["Zoë"], 0, 1)
    assert (request.time_zone, request.HasField("reference_time")) == ("Europe/Berlin", True)
    _, out, _ = await mesh.run(*asked, "--json")
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (row["kind"], row["text"], row["message"]["name"], len(row["after"])) == ("message", "In Rome.", "Zoë", 1)


async def test_unreachable_mesh_is_one_error_line(mesh: "FakeMesh", closed_port: int) -> None:
    code, out, err = await mesh.run("agents", "list", MNEMESH_TARGET=f"127.0.0.1:{closed_port}")

    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1
    assert "mnemesh up" in err


async def test_doctor_reports_the_state_and_version_of_each_service(
    mesh: "FakeMesh", closed_port: int, tmp_path: Path
) -> None:
    stopped = {
        service(name).target_variable: f"127.0.0.1:{closed_port}" for name in ("recall", "archival", "tools", "files")
    }

    code, out, _ = await mesh.run("doctor", MNEMESH_DATA_DIR=str(tmp_path), **stopped)

    assert code == 1
    assert f"✓ orchestrator  {mesh.address} is serving version {CLIENT_VERSION}" in out
    assert f"✓ blocks        {mesh.blocks} is serving version {CLIENT_VERSION}" in out
    assert f"✗ recall        127.0.0.1:{closed_port} does not answer" in out
    assert "✓ model         mnemesh/rehearsal" in out
    assert "✓ embedder      mnemesh/wordllama-256" in out
    assert str(tmp_path) in out


async def test_commands_find_the_mesh_that_runs_on_the_data_directory(
    mesh: "FakeMesh", tmp_path: Path, closed_port: int
) -> None:
    lock = DataDirectoryLock.acquire(tmp_path)
    lock.write_status(ready=True, addresses={"orchestrator": mesh.address, "blocks": mesh.blocks})
    nothing = {"MNEMESH_TARGET": "", "MNEMESH_BLOCKS_TARGET": "", "MNEMESH_DATA_DIR": str(tmp_path)}

    listed = await mesh.run("agents", "list", **nothing)
    doctor = await mesh.run("doctor", **nothing)
    refused = await mesh.run("agents", "list", **nothing, MNEMESH_ORCHESTRATOR_PORT=str(closed_port))
    lock.release()

    assert listed[0] == 0, listed
    assert f"✓ orchestrator  {mesh.address} is serving" in doctor[1]
    assert f"✓ blocks        {mesh.blocks} is serving" in doctor[1]
    assert (refused[0], f":{closed_port}" in refused[2]) == (4, True), "the environment comes first"


async def test_import_of_a_malformed_file_is_one_error_line(mesh: "FakeMesh", tmp_path: Path) -> None:
    (tmp_path / "raw_traces.jsonl").write_text('{"a": 1}\n')
    code, out, err = await mesh.run("import", str(tmp_path), "--agent", "x")
    assert (code, out) == (1, "")
    assert (
        err
        == f"mnemesh: {tmp_path}/raw_traces.jsonl, line 1: id is missing or has the wrong type. [INVALID_ARGUMENT]\n"
    )


async def test_version_prints_the_version_of_the_client_and_of_each_service(
    mesh: "FakeMesh", start_empty: Callable[[str], Awaitable[str]]
) -> None:
    others = ("recall", "archival", "tools", "files")
    targets = {service(name).target_variable: await start_empty(name) for name in others}

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"service": "gateway", "version": CLIENT_VERSION})
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as gateway:
        targets["MNEMESH_GATEWAY_TARGET"] = f"127.0.0.1:{gateway.sockets[0].getsockname()[1]}"
        code, out, err = await mesh.run("version", **targets)

    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        [name, CLIENT_VERSION] for name in ("client", *SERVICE_NAMES)
    ]
    assert (await mesh.run("--version"))[:2] == (0, f"mnemesh {CLIENT_VERSION}\n")


async def test_version_reports_a_service_that_does_not_answer(
    mesh: "FakeMesh", closed_port: int, start_empty: Callable[[str], Awaitable[str]]
) -> None:
    targets = {
        service(name).target_variable: f"127.0.0.1:{closed_port}" for name in ("archival", "tools", "files", "gateway")
    }

    targets["MNEMESH_RECALL_TARGET"] = await start_empty("recall")

    code, out, err = await mesh.run("version", **targets)

    assert code == 1
    assert f"recall        {CLIENT_VERSION}" in out
    assert [line.split()[1] for line in err.splitlines()] == ["gateway:", "files:", "archival:", "tools:"]


def test_token_has_the_requested_organization_and_lifetime(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    organization = "org-11111111-1111-4111-8111-111111111111"

    result = CliRunner().invoke(
        app, ["tokens", "create", "--key-file", str(keys), "--organization", organization, "--days", "2"]
    )

    claims = jwt.decode(result.stdout.strip(), KEY.encode(), algorithms=["HS256"], audience="mnemesh")
    assert (claims["org"], claims["roles"]) == (organization, ["admin"])
    assert claims["exp"] - time.time() > 1.9 * 86_400


def test_token_has_the_requested_role_and_agents(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    agents = [f"agent-{number * 8}-{number * 4}-4{number * 3}-8{number * 3}-{number * 12}" for number in "12"]
    options = ["tokens", "create", "--key-file", str(keys), "--role", "writer"]
    result = CliRunner().invoke(app, [*options, *(part for agent in agents for part in ("--agent", agent))])
    claims = jwt.decode(result.stdout.strip(), KEY.encode(), algorithms=["HS256"], audience="mnemesh")
    assert (claims["roles"], claims["agents"]) == (["writer"], agents)
    assert CliRunner().invoke(app, [*options, "--agent", "ada"]).exit_code != 0
    assert CliRunner().invoke(app, [*options, "--role", "service"]).exit_code != 0


def test_revoked_tokens_are_in_the_file_beside_the_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    given = ["--key-file", str(keys)]
    token = CliRunner().invoke(app, ["tokens", "create", *given]).stdout.strip()
    claims = jwt.decode(token, KEY.encode(), algorithms=["HS256"], audience="mnemesh")
    issuer = ["--issuer", "https://issuer.example"]
    organization = "org-11111111-1111-4111-8111-111111111111"
    before = time.time()
    for named in ([token], ["another"], ["--organization", organization], ["--subject", "auth0|ada", *issuer]):
        assert CliRunner().invoke(app, ["tokens", "revoke", *given, *named]).exit_code == 0
    ada = issuer_id("user", "https://issuer.example", "auth0|ada")
    entries = Revocations.read(tmp_path / "keys.revoked").entries
    assert [*entries] == [
        *(("token", id_) for id_ in (claims["jti"], "another")), ("organization", organization), ("subject", ada)
    ]  # fmt: skip
    assert all(before <= moment + 0.001 for moment in entries.values())
    without_id = mint_token(KEY.encode(), DEFAULT_PRINCIPAL, 600)
    for wrong in ([], [without_id], ["a.b.c"], ["a b"], ["--subject", "ada"], [token, "--organization", organization]):
        assert CliRunner().invoke(app, ["tokens", "revoke", *given, *wrong]).exit_code != 0, wrong
    assert Revocations.read(tmp_path / "keys.revoked").entries == entries


async def test_missing_key_file_is_one_error_line(mesh: "FakeMesh", tmp_path: Path) -> None:
    code, out, err = await mesh.run("tokens", "create", "--key-file", str(tmp_path / "none"))

    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "cannot be read" in err
