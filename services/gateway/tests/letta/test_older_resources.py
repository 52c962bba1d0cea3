"""Resources of Letta's API for which the newest SDK has no methods: groups, identities, providers, jobs, sizes."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.timeouts import scaled
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .conftest import FakedMesh
from .drivers.tools import SOURCE
from .lab import MODEL, Lab
from .rest import Rest

NOBODY = "group-123e4567-e89b-42d3-8456-426614174000"


def test_a_group_is_made_changed_and_deleted(lab: Lab, rest: Rest) -> None:
    first, second, manager = lab.agent(), lab.agent(), lab.agent()
    block = lab.client.blocks.create(label="plan", value="Sail.")
    body = {"agent_ids": [first.id, second.id], "description": "Two sailors."}
    made = rest.call("POST", "/groups/", json=body)
    assert (made["manager_type"], made["agent_ids"], made["max_turns"]) == ("round_robin", [first.id, second.id], None)
    assert rest.call("GET", f"/groups/{made['id']}") == made
    assert rest.call("GET", f"/agents/{first.id}/groups") == [made]
    assert made in rest.call("GET", "/groups/", params={"manager_type": "round_robin", "limit": 1000})
    assert made not in rest.call("GET", "/groups/", params={"manager_type": "dynamic", "limit": 1000})
    assert rest.call("GET", "/groups/count") >= 1

    changed = rest.call(
        "PATCH", f"/groups/{made['id']}", json={"manager_config": {"manager_type": "round_robin", "max_turns": 3}}
    )
    assert (changed["max_turns"], changed["description"]) == (3, "Two sailors.")
    config = {"manager_type": "dynamic", "manager_agent_id": manager.id, "termination_token": "LAND!"}
    changed = rest.call("PATCH", f"/groups/{made['id']}", json={"manager_config": config, "description": "A crew."})
    assert (changed["manager_type"], changed["manager_agent_id"]) == ("dynamic", manager.id)
    assert (changed["termination_token"], changed["max_turns"]) == ("LAND!", None)
    kept = {"manager_config": {"manager_type": "dynamic", "max_turns": 5}}
    changed = rest.call("PATCH", f"/groups/{made['id']}", json=kept)
    assert (changed["max_turns"], changed["termination_token"], changed["manager_agent_id"]) == (5, "LAND!", manager.id)

    rest.call("PATCH", f"/groups/{made['id']}/blocks/attach/{block.id}")
    assert {held.label for held in lab.client.agents.retrieve(second.id).blocks} == {"human", "plan"}
    assert rest.call("GET", f"/groups/{made['id']}")["shared_block_ids"] == [block.id]
    rest.call("PATCH", f"/groups/{made['id']}/blocks/detach/{block.id}")
    assert {held.label for held in lab.client.agents.retrieve(second.id).blocks} == {"human"}

    assert made["id"] in rest.call("DELETE", f"/groups/{made['id']}")["message"]
    rest.call("GET", f"/groups/{made['id']}", 404)
    assert lab.client.agents.retrieve(first.id).id == first.id


def test_blocks_that_are_attached_at_the_same_moment_are_all_shared(lab: Lab, rest: Rest) -> None:
    agent = lab.agent()
    blocks = [lab.client.blocks.create(label=f"part{number}", value="").id for number in range(8)]
    group = rest.call("POST", "/groups/", json={"agent_ids": [agent.id], "description": ""})["id"]

    def both(what: str) -> None:
        with ThreadPoolExecutor(len(blocks)) as pool:
            list(pool.map(lambda block: rest.call("PATCH", f"/groups/{group}/blocks/{what}/{block}"), blocks))

    both("attach")
    assert set(rest.call("GET", f"/groups/{group}")["shared_block_ids"]) == set(blocks)
    assert {held.label for held in lab.client.agents.retrieve(agent.id).blocks} >= {f"part{n}" for n in range(8)}
    both("detach")
    assert rest.call("GET", f"/groups/{group}")["shared_block_ids"] == []


def test_a_wrong_group_is_refused_and_nothing_is_made(lab: Lab, rest: Rest) -> None:
    agent, before = lab.agent(), rest.call("GET", "/groups/count")
    bodies: list[tuple[dict[str, Any], int, str]] = [
        ({"agent_ids": [agent.id]}, 422, "description"),
        ({"agent_ids": [agent.id], "description": "", "manager_config": {"manager_type": "king"}}, 422, "king"),
        (
            {"agent_ids": [agent.id], "description": "", "manager_config": {"manager_type": "supervisor"}},
            422,
            "manager_agent_id",
        ),
        ({"agent_ids": ["agent-123e4567-e89b-42d3-8456-426614174000"], "description": ""}, 404, "agent-123e4567"),
    ]
    for body, status, words in bodies:
        assert words in rest.call("POST", "/groups/", status, json=body)["detail"], body
    assert rest.call("GET", "/groups/count") == before
    rest.call("PATCH", f"/groups/{NOBODY}", 404, json={"description": "x"})
    rest.call("DELETE", f"/groups/{NOBODY}", 404)
    rest.call("GET", "/groups/group-1", 422)


def test_the_members_of_a_group_answer_in_turn(lab: Lab, rest: Rest) -> None:
    first, second = lab.agent(name="ada"), lab.agent(name="grace")
    group = rest.call("POST", "/groups/", json={"agent_ids": [first.id, second.id], "description": "Two."})["id"]
    lab.fake.script = [Reply(text="Ahoy."), Reply(text="Land!")]
    answer = rest.call("POST", f"/groups/{group}/messages", json={"messages": [{"role": "user", "content": "Well?"}]})
    assert [message["content"] for message in answer["messages"]] == ["Ahoy.", "Land!"]
    assert answer["stop_reason"]["stop_reason"] == "end_turn"
    listed = rest.call("GET", f"/groups/{group}/messages", params={"order": "asc", "limit": 100})
    said = [message["content"] for message in listed if message["message_type"] == "assistant_message"]
    assert said == ["Ahoy.", "Land!"]

    lab.fake.script = [Reply(text="Aye."), Reply(text="No.")]
    url = f"{lab.client.base_url}/v1/groups/{group}/messages/stream"
    with httpx.stream("POST", url, json={"input": "Again?"}, timeout=scaled(60)) as stream:
        text = "".join(stream.iter_text())
    assert text.index("Aye.") < text.index("No.") < text.index("stop_reason") < text.index("[DONE]")

    rest.call("PATCH", f"/groups/{group}/reset-messages")
    assert len(lab.client.agents.retrieve(first.id).message_ids or ()) == 1
    approval = {"messages": [{"type": "approval", "approve": True, "approval_request_id": "message-1"}]}
    assert "group" in rest.call("POST", f"/groups/{group}/messages", 422, json=approval)["detail"]


def test_an_identity_is_made_upserted_and_deleted(lab: Lab, rest: Rest) -> None:
    agent, block = lab.agent(), lab.client.blocks.create(label="human", value="Ada.")
    properties = [
        {"key": "city", "value": "Bonn", "type": "string"},
        {"key": "age", "value": 36, "type": "number"},
        {"key": "height", "value": 1.7, "type": "number"},
        {"key": "admin", "value": True, "type": "boolean"},
        {"key": "pets", "value": {"cats": 2}, "type": "json"},
    ]
    body = {"identifier_key": "rest-ada", "name": "Ada", "identity_type": "user", "agent_ids": [agent.id]}
    made = rest.call("POST", "/identities/", json=body | {"properties": properties})
    assert (made["identifier_key"], made["identity_type"], made["agent_ids"]) == ("rest-ada", "user", [agent.id])
    assert (made["properties"], made["block_ids"]) == (properties, [])
    assert rest.call("GET", f"/identities/{made['id']}") == made
    assert rest.call("GET", "/identities/", params={"identifier_key": "rest-ada"}) == [made]
    assert rest.call("GET", "/identities/", params={"identifier_key": "rest-ada", "identity_type": "org"}) == []
    assert rest.call("GET", "/identities/count") >= 1
    assert "rest-ada" in rest.call("POST", "/identities/", 409, json=body)["detail"]

    again = rest.call("PUT", "/identities/", json=body | {"name": "Ada L.", "agent_ids": None})
    assert (again["id"], again["name"], again["agent_ids"]) == (made["id"], "Ada L.", [agent.id])
    rest.call("PUT", f"/identities/{made['id']}/properties", json=[{"key": "city", "value": "Rom", "type": "string"}])
    (city,) = [item for item in rest.call("GET", f"/identities/{made['id']}")["properties"] if item["key"] == "city"]
    assert city["value"] == "Rom"
    changed = rest.call("PATCH", f"/identities/{made['id']}", json={"block_ids": [block.id], "identity_type": "other"})
    assert (changed["block_ids"], changed["identity_type"], changed["name"]) == ([block.id], "other", "Ada L.")
    assert [held["id"] for held in rest.call("GET", f"/identities/{made['id']}/agents")] == [agent.id]
    assert [held["id"] for held in rest.call("GET", f"/identities/{made['id']}/blocks")] == [block.id]
    rest.call("PATCH", f"/blocks/{block.id}/identities/detach/{made['id']}")
    assert rest.call("GET", f"/identities/{made['id']}/blocks") == []
    assert rest.call("PATCH", f"/blocks/{block.id}/identities/attach/{made['id']}")["id"] == block.id
    assert len(rest.call("GET", f"/identities/{made['id']}/blocks")) == 1
    assert rest.call("GET", f"/identities/{made['id']}/agents")[0]["identities"] == []
    (holder,) = rest.call("GET", f"/identities/{made['id']}/agents", params={"include": "agent.identities"})
    assert [identity["id"] for identity in holder["identities"]] == [made["id"]]

    rest.call("DELETE", f"/identities/{made['id']}")
    rest.call("GET", f"/identities/{made['id']}", 404)
    rest.call("DELETE", f"/identities/{made['id']}", 404)
    assert lab.client.agents.retrieve(agent.id).identity_ids == []


@pytest.mark.parametrize(
    ("kind", "value"), [("string", 3), ("number", "3"), ("number", True), ("boolean", 1), ("json", None)]
)
def test_a_property_of_another_type_than_it_says_is_refused(rest: Rest, kind: str, value: Any) -> None:
    item = {"key": "x", "value": value, "type": kind}
    body = {"identifier_key": "wrong", "name": "W", "identity_type": "user", "properties": [item]}
    assert "properties" in rest.call("POST", "/identities/", 422, json=body)["detail"]
    assert rest.call("GET", "/identities/", params={"identifier_key": "wrong"}) == []


def test_a_provider_is_registered_checked_and_deleted(lab: Lab, faked: FakedMesh, rest: Rest) -> None:
    address = {"provider_type": "openai", "api_key": "sk-secret-1", "base_url": faked.fake.base_url}
    made = rest.call("POST", "/providers/", json=address | {"name": "mine"})
    assert made["id"].startswith("provider-")
    assert (made["name"], made["provider_type"], made["provider_category"]) == ("mine", "openai", "byok")
    assert "sk-secret-1" not in str(made)
    assert made["last_synced"] is not None
    assert rest.call("GET", f"/providers/{made['id']}") == made
    assert rest.call("GET", "/providers/", params={"name": "mine"}) == [made]
    assert rest.call("GET", "/providers/", params={"name": "mine", "provider_type": "anthropic"}) == []
    assert "mine/fake-model" in {model.handle for model in lab.client.models.list()}
    agent = lab.agent(model="mine/fake-model")
    assert lab.client.agents.messages.create(agent.id, input="Hi").messages[0].content == "Hello."
    assert "Bearer sk-secret-1" in str(faked.fake.requests[-1].headers)

    assert "openai" in rest.call("POST", "/providers/check", json=address)["message"]
    assert "openai" in rest.call("POST", f"/providers/{made['id']}/check")["message"]
    rest.call("PATCH", f"/providers/{made['id']}", json={"api_key": "sk-secret-2"})
    lab.client.agents.messages.create(agent.id, input="Hi")
    assert "Bearer sk-secret-2" in str(faked.fake.requests[-1].headers)
    assert rest.call("PATCH", f"/providers/{made['id']}/refresh")["name"] == "mine"

    rest.call("POST", "/providers/", 409, json=address | {"name": "mine"})
    unknown = address | {"name": "a", "provider_type": "abacus"}
    assert "type" in rest.call("POST", "/providers/", 400, json=unknown)["detail"]
    assert "api_key" in rest.call("POST", "/providers/", 422, json={"name": "b", "provider_type": "openai"})["detail"]
    assert rest.call("GET", "/providers/", params={"name": "b"}) == []
    assert made["id"] in rest.call("DELETE", f"/providers/{made['id']}")["message"]
    rest.call("GET", f"/providers/{made['id']}", 404)
    rest.call("DELETE", f"/providers/{made['id']}", 404)


async def test_a_provider_that_refuses_the_key_is_reported(rest: Rest) -> None:
    def refuse(_: Request) -> Response:
        return JSONResponse({"error": {"message": "Incorrect API key provided."}}, 401)

    async with FakeOpenAI(routes=[Route("/strict/v1/models", refuse)]) as fake:
        body = {"provider_type": "openai", "api_key": "wrong", "base_url": f"{fake.origin}/strict/v1"}
        answer = await asyncio.to_thread(rest.call, "POST", "/providers/check", 401, json=body)
    assert "error" in answer


def test_the_files_of_folders_have_sizes_and_jobs(lab: Lab, rest: Rest) -> None:
    folder, other = lab.client.folders.create(name="sizes"), lab.client.folders.create(name="sizes-2")
    file = lab.client.folders.files.upload(folder.id, file=("a.txt", b"12345"))
    lab.client.folders.files.upload(folder.id, file=("b.txt", b"123"))
    whole = rest.call("GET", "/folders/metadata", params={"include_detailed_per_source_metadata": True})
    sizes = {each["source_name"]: each for each in whole["sources"]}
    assert (sizes["sizes"]["file_count"], sizes["sizes"]["total_size"], sizes["sizes-2"]["files"]) == (2, 8, [])
    assert [(each["file_name"], each["file_size"]) for each in sizes["sizes"]["files"]] == [("a.txt", 5), ("b.txt", 3)]
    assert (whole["total_sources"], whole["total_size"]) == (len(sizes), sum(s["total_size"] for s in sizes.values()))
    short = rest.call("GET", "/sources/metadata")
    assert [each["files"] for each in short["sources"]] == [[]] * len(sizes)

    jobs = rest.call("GET", "/jobs/", params={"source_id": folder.id})
    assert [job["metadata"]["filename"] for job in jobs] == ["b.txt", "a.txt"], "newest first"
    assert rest.call("GET", "/jobs/", params={"source_id": other.id}) == []
    first = jobs[1]["id"]
    assert jobs[1]["metadata"]["file_id"] == file.id
    assert [
        job["id"] for job in rest.call("GET", "/jobs/", params={"source_id": folder.id, "after": jobs[0]["id"]})
    ] == [first]
    deadline = time.monotonic() + scaled(60)
    while (job := rest.call("GET", f"/jobs/{first}"))["status"] != "completed":
        assert job["status"] in {"created", "running"}
        assert time.monotonic() < deadline, job
        time.sleep(0.02)
    assert job["completed_at"] is not None
    assert first not in {each["id"] for each in rest.call("GET", "/jobs/active", params={"source_id": folder.id})}
    assert "delete the file" in rest.call("PATCH", f"/jobs/{first}/cancel", 501)["detail"]
    rest.call("GET", "/jobs/job-123e4567-e89b-42d3-8456-426614174000", 404)
    rest.call("GET", "/jobs/7", 422)


def test_source_code_has_a_schema_and_runs_without_being_stored(lab: Lab, rest: Rest) -> None:
    schema = rest.call("POST", "/tools/generate-schema", json={"code": SOURCE})
    assert (schema["name"], schema["parameters"]["required"]) == ("roll", ["sides"])
    result = rest.call("POST", "/tools/run", json={"source_code": SOURCE, "args": {"sides": 6}})
    assert (result["message_type"], result["status"]) == ("tool_return_message", "success")
    assert result["tool_return"] == "rolled 1 of 6"
    failing = "def fail() -> str:\n    '''Fails.'''\n    raise ValueError('no luck')\n"
    result = rest.call("POST", "/tools/run", json={"source_code": failing, "args": {}})
    assert (result["status"], "no luck" in result["tool_return"]) == ("error", True)
    rest.call("POST", "/tools/run", 400, json={"source_code": SOURCE, "args": {"sides": "many"}})
    rest.call("POST", "/tools/generate-schema", 400, json={"code": "def broken(:"})
    rest.call("POST", "/tools/generate-schema", 422, json={"code": SOURCE, "source_type": "cobol"})
    assert [tool for tool in lab.client.tools.list(limit=1000) if tool.name in {"roll", "fail"}] == []
    assert "send_message" in {tool["name"] for tool in rest.call("POST", "/tools/add-base-tools")}


def test_older_paths_of_runs_steps_and_prompts(lab: Lab, rest: Rest) -> None:
    agent = lab.agent(system="You sail.")
    done = lab.client.agents.messages.create(agent.id, input="Hi")
    assert rest.call("GET", "/runs/active", params={"agent_id": agent.id}) == []
    (step,) = rest.call("GET", f"/runs/{done.messages[0].run_id}/steps")
    assert rest.call("GET", f"/telemetry/{step['id']}") == rest.call("GET", f"/steps/{step['id']}/trace")
    assert "You sail." in rest.call("POST", f"/agents/{agent.id}/system-prompt/recompile", params={"dry_run": True})
    conversation = lab.client.conversations.create(agent_id=agent.id)
    preview = rest.call(
        "POST", f"/conversations/{conversation.id}/messages/preview-raw-payload", json={"input": "Ahoy"}
    )
    assert preview["model"] == MODEL.partition("/")[2]
    assert "Ahoy" in str(preview["messages"][-1])
