"""What Letta's API has beside the SDK's methods: documents, errors, idempotency, profiles."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mnemesh_gateway.config import Config
from mnemesh_gateway.http.errors import letta_response
from mnemesh_gateway.letta import agent_files
from mnemesh_kit.config import ConfigError
from mnemesh_kit.errors import Aborted
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply, status
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

from .drivers.agent_messages import WEATHER
from .lab import MODEL, Lab


@pytest.fixture
def http(base_url: str) -> Iterator[httpx.Client]:
    """A plain client of the gateway."""
    with httpx.Client(base_url=base_url, timeout=scaled(60)) as client:
        yield client


def test_the_document_describes_each_operation(http: httpx.Client) -> None:
    document: dict[str, Any] = http.get("/openapi.json").json()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert document["openapi"] == "3.1.0"
    assert [operation["operationId"] for operation in operations if not operation["summary"]] == []
    send = document["paths"]["/v1/agents/{agent_id}/messages"]["post"]
    assert send["parameters"][0]["schema"]["pattern"].startswith("^agent-")
    names = set(re.findall(r"#/components/schemas/(\w+)", http.get("/openapi.json").text))
    assert names
    assert names <= document["components"]["schemas"].keys()


def test_the_document_has_the_status_of_deletions(lab: Lab, http: httpx.Client) -> None:
    archive = lab.client.archives.create(name="old")
    passage = lab.client.archives.passages.create(archive.id, text="Long ago.")
    folder = lab.client.folders.create(name="old")
    file = lab.client.folders.files.upload(folder.id, file=("old.txt", b"Long ago."))
    config: Any = {"mcp_server_type": "stdio", "command": "no-such-program", "args": []}
    server = lab.client.mcp_servers.create(server_name="old", config=config)
    deletions = {
        "/v1/archives/{archive_id}/passages/{passage_id}": f"/v1/archives/{archive.id}/passages/{passage.id}",
        "/v1/archives/{archive_id}": f"/v1/archives/{archive.id}",
        "/v1/folders/{folder_id}/{file_id}": f"/v1/folders/{folder.id}/{file.id}",
        "/v1/folders/{folder_id}": f"/v1/folders/{folder.id}",
        "/v1/mcp-servers/{mcp_server_id}": f"/v1/mcp-servers/{server.id}",
        "/v1/agents/{agent_id}": f"/v1/agents/{lab.agent().id}",
    }
    paths = http.get("/openapi.json").json()["paths"]
    statuses = []
    for path, url in deletions.items():
        ((status, answer),) = paths[path]["delete"]["responses"].items()
        sent = http.delete(url)
        assert (str(sent.status_code), bool(sent.content)) == (status, "content" in answer), (path, sent.text)
        statuses.append(status)
    assert statuses == ["204", "204", "204", "200", "204", "200"]


def test_the_page_of_the_document_needs_no_other_host(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", page.text) == []


def test_paths_with_and_without_a_slash_are_the_same(http: httpx.Client) -> None:
    for path in ("/v1/agents", "/v1/agents/", "/v1/health", "/v1/health/"):
        assert http.get(path).status_code == 200, path
    assert http.get("/v1/models").json()["object"] == "list", "OpenAI's path has no slash"
    assert isinstance(http.get("/v1/models/").json(), list)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "ends too early"),
        (b"{]", "JSON is malformed"),
        (b'{"name": "\xff"}', "not encoded as UTF-8"),
        (b'{"name": "\\ud800"}', "a surrogate pair is not complete"),
        (b'{"metadata": {"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}", "nested too deeply"),
    ],
    ids=["truncated", "malformed", "not-utf-8", "surrogate", "deep"],
)
def test_bodies_and_agent_files_that_are_no_json(http: httpx.Client, body: bytes, problem: str) -> None:
    broken = http.post("/v1/agents/", content=body, headers={"content-type": "application/json"})
    assert (broken.status_code, "json_invalid" in broken.json()["detail"]) == (422, True), broken.text
    assert problem in broken.json()["detail"]
    broken = http.post("/v1/agents/import", files={"file": ("ada.af", body)})
    expected = (400, "no agents") if "surrogate" in problem else (422, "nested" if "nested" in problem else "not JSON")
    assert (broken.status_code, expected[1] in broken.json()["detail"]) == (expected[0], True), broken.text


def test_unknown_fields_are_ignored(http: httpx.Client) -> None:
    made = http.post("/v1/agents/", json={"name": "unknown-fields", "nonsense": 1})
    assert made.status_code == 200


def test_a_file_that_is_too_large_is_refused_and_not_stored(
    lab: Lab, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent_files.MAX_BYTES == 256 << 20, "the documentation names it"
    monkeypatch.setattr(agent_files, "MAX_BYTES", 2000)
    folder = lab.client.folders.create(name="large")
    for size, expected in ((3000, 413), (1000, 200)):
        answer = http.post(f"/v1/folders/{folder.id}/upload", files={"file": ("large.txt", b"a" * size)})
        assert answer.status_code == expected, answer.text
    assert [file.file_size for file in lab.client.folders.files.list(folder.id)] == [1000]


def test_messages_are_not_changed(lab: Lab, http: httpx.Client) -> None:
    agent = lab.agent()
    said = lab.client.agents.messages.create(agent.id, input="Hi").messages[0]
    change = {"message_type": "assistant_message", "content": "Never."}
    refused = http.patch(f"/v1/agents/{agent.id}/messages/{said.id}", json=change)
    assert (refused.status_code, "no longer supported" in refused.json()["detail"]) == (405, True)


def test_a_repeated_request_with_the_same_key_is_one_agent(lab: Lab) -> None:
    first, second = (
        lab.client.agents.create(name="once", tags=["once"], extra_headers={"Idempotency-Key": "letta-once"})
        for _ in range(2)
    )
    assert first.id == second.id
    assert len(list(lab.client.agents.list(tags=["once"]))) == 1


def test_a_turn_that_fails_after_its_first_message_ends_with_an_error_event(lab: Lab, base_url: str) -> None:
    agent = lab.client.agents.create(model=MODEL)
    lab.fake.script = [
        Reply(tool_calls=[("conversation_search", {"query": "x"})]),
        *[status(400, "No.")] * 5,
    ]
    lines: list[str] = []
    url = f"{base_url}/v1/agents/{agent.id}/messages/stream"
    with httpx.stream("POST", url, json={"input": "Search."}, timeout=scaled(60)) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.status_code == 200
    assert '"stop_reason"' in lines[-3]
    assert lines[-2] == "event: error"
    assert '"error_message"' in lines[-1]
    assert "data: [DONE]" not in lines


async def test_the_profile_of_an_older_release(tmp_path: Path, fake_openai: FakeOpenAI) -> None:
    settings = {"gateway": {"letta_profile": "0.16.1"}}
    async with (
        Mesh(tmp_path, openai_base_url=fake_openai.base_url, gateway=True, settings=settings) as mesh,
        httpx.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}", timeout=scaled(60)) as http,
    ):
        agent = (await http.post("/v1/agents/", json={"memory_blocks": [{"label": "human", "value": ""}]})).json()
        block = (await http.post("/v1/blocks/", json={"label": "plan", "value": ""})).json()
        for words in ("One.", "Two.", "Three."):
            assert (await http.post(f"/v1/agents/{agent['id']}/messages", json={"input": words})).status_code == 200
        streamed = (await http.post(f"/v1/agents/{agent['id']}/messages/stream", json={"input": "Four."})).text
        compacted = await http.post(f"/v1/agents/{agent['id']}/summarize")
    assert '"message_type":"ping"' not in streamed
    assert '"message_type":"stop_reason"' in streamed
    assert agent["agent_type"] == "memgpt_v2_agent"
    assert [agent["blocks"][0]["limit"], block["limit"]] == [20_000, 20_000]
    assert (compacted.status_code, compacted.content) == (204, b"")
    with pytest.raises(ConfigError, match="LETTA_PROFILE"):
        Config.from_env({"MNEMESH_GATEWAY_LETTA_PROFILE": "0.15"})


class Busy(Aborted):
    reason = "CONVERSATION_BUSY"


def test_clients_repeat_a_409_only_if_that_can_help(lab: Lab, http: httpx.Client) -> None:
    agent = lab.agent()
    lab.fake.script = [Reply(tool_calls=[("weather", {"city": "Bonn"})])]
    lab.client.agents.messages.create(agent.id, input="Weather?", client_tools=[WEATHER])  # type: ignore[list-item]
    waiting = http.post(f"/v1/agents/{agent.id}/messages", json={"input": "And?"})
    assert (waiting.status_code, waiting.json()["error_code"]) == (409, "PENDING_APPROVAL")
    assert waiting.headers["x-should-retry"] == "false"
    busy = letta_response(Busy("Run run-1 holds the conversation.", run_id="run-1"))
    assert (busy.status_code, json.loads(busy.body)["run_id"]) == (409, "run-1")
    assert "x-should-retry" not in busy.headers
