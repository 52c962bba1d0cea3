"""Query parameters of lists that older and newer SDKs send: each changes the result as it says."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from mnemesh_kit import paging
from mnemesh_testkit.fakes.server import Reply

from .drivers.tools import SOURCE
from .lab import MODEL, Lab
from .rest import Rest


def test_steps_are_found_by_time_and_feedback(lab: Lab, rest: Rest) -> None:
    agent = lab.agent()
    for words in ("One.", "Two."):
        lab.client.agents.messages.create(agent.id, input=words)
    second, first = lab.client.steps.list(agent_id=agent.id).items
    lab.client.steps.feedback.create(first.id, feedback="positive")
    (stored,) = rest.call("GET", "/steps/", params={"agent_id": agent.id, "has_feedback": True})
    assert stored["id"] == first.id
    (other,) = lab.client.steps.list(agent_id=agent.id, has_feedback=False).items
    assert other.id == second.id
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert list(lab.client.steps.list(agent_id=agent.id, start_date=tomorrow)) == []
    assert len(lab.client.steps.list(agent_id=agent.id, end_date=tomorrow).items) == 2
    without_zone = tomorrow.partition("+")[0]
    assert len(lab.client.steps.list(agent_id=agent.id, end_date=without_zone).items) == 2
    assert "start_date" in rest.call("GET", "/steps/", 422, params={"start_date": "soon"})["detail"]


def test_the_steps_of_a_run_begin_with_the_newest(lab: Lab, rest: Rest) -> None:
    agent = lab.client.agents.create(model=MODEL)
    lab.fake.script = [Reply(tool_calls=[("conversation_search", {"query": "x"})]), Reply(text="Nothing.")]
    run = str(lab.client.agents.messages.create(agent.id, input="Search.").messages[0].run_id)
    newest_first = [step["id"] for step in rest.call("GET", f"/runs/{run}/steps")]
    assert len(newest_first) == 2
    assert [step.id for step in lab.client.runs.steps.list(run, order="asc").items] == newest_first[::-1]
    assert [step.id for step in lab.client.steps.list(agent_id=agent.id).items] == newest_first


def test_searches_return_the_hits_of_all_pages(lab: Lab, rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = lab.agent()
    for number in range(3):
        lab.client.agents.messages.create(agent.id, input=f"A quokka {number}.")
        lab.client.agents.passages.create(agent.id, text=f"The quokka {number} smiles.")

    def found() -> list[Any]:
        query = {"agent_id": agent.id, "query": "quokka", "limit": 20, "search_mode": "fts"}
        in_archives = rest.call("GET", f"/agents/{agent.id}/archival-memory/search", params={"query": "quokka"})
        return [
            rest.call("POST", "/messages/search", json=query),
            rest.call("POST", "/agents/messages/search", json=query),
            rest.call("POST", "/passages/search", json={"agent_id": agent.id, "query": "quokka"}),
            in_archives["results"],
            rest.call("POST", "/tools/search", json={"query": "search", "limit": 20}),
        ]

    whole = found()
    assert all(len(hits) >= 3 for hits in whole)
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 1)
    assert found() == whole


def test_tools_are_found_by_type(lab: Lab, rest: Rest) -> None:
    made = lab.client.tools.create(source_code=SOURCE)

    def names(**query: Any) -> set[str]:
        found = {tool["name"] for tool in rest.call("GET", "/tools/", params={"limit": 1000, **query})}
        assert rest.call("GET", "/tools/count", params=query) == len(found)
        return found

    try:
        every, custom = names(), names(tool_types="custom")
        assert "roll" in custom
        core = names(tool_types="letta_core")
        assert core == {"send_message", "conversation_search", "archival_memory_insert", "archival_memory_search"}
        assert names(tool_types="letta_core,custom") == core | custom
        assert names(exclude_tool_types="letta_core,custom") == every - core - custom
        built_in = names(return_only_letta_tools=True)
        assert core < built_in
        assert names(exclude_letta_tools=True) == every - built_in
        assert names(return_only_letta_tools=True, tool_types="custom") == set()
        assert names(tool_types="external_composio") == set()
        page = rest.call("GET", "/tools/", params={"tool_types": "letta_core", "limit": 3, "order": "asc"})
        rest_of_it = rest.call(
            "GET", "/tools/", params={"tool_types": "letta_core", "after": page[-1]["id"], "order": "asc"}
        )
        assert {tool["name"] for tool in page + rest_of_it} == core
        assert len(rest_of_it) == 1
        hits = rest.call("POST", "/tools/search", json={"query": "message", "tool_types": ["letta_core"], "limit": 50})
        assert {hit["tool"]["tool_type"] for hit in hits} == {"letta_core"}
        assert "letta_core" in rest.call("GET", "/tools/", 422, params={"tool_types": "letta_pizza"})["detail"]
    finally:
        lab.client.tools.delete(made.id)


def test_blocks_are_found_by_the_key_of_an_identity(lab: Lab, rest: Rest) -> None:
    block = lab.client.blocks.create(label="keyed", value="")
    body = {"identifier_key": "holder", "name": "H", "identity_type": "user", "block_ids": [block.id]}
    identity = rest.call("POST", "/identities/", json=body)["id"]
    assert [each.id for each in lab.client.blocks.list(identifier_keys=["holder"])] == [block.id]
    assert list(lab.client.blocks.list(identifier_keys=["nobody"])) == []
    assert (
        rest.call("GET", "/blocks/", params={"identifier_keys": "holder", "identity_id": identity})[0]["id"] == block.id
    )
    several = {"identifier_keys": ["holder", "nobody"]}
    assert "identifier_keys" in str(rest.call("GET", "/blocks/", 422, params=several)["detail"])


def test_the_agents_of_a_block_have_the_parts_that_are_asked_for(lab: Lab, rest: Rest) -> None:
    block = lab.client.blocks.create(label="shared", value="")
    agent = lab.agent(block_ids=[block.id])
    body = {"identifier_key": "part", "name": "P", "identity_type": "user", "agent_ids": [agent.id]}
    identity = rest.call("POST", "/identities/", json=body)["id"]
    (plain,) = lab.client.blocks.agents.list(block.id).items
    (whole,) = lab.client.blocks.agents.list(block.id, include=["agent.identities"]).items
    assert (plain.identities or [], [each.id for each in whole.identities or ()]) == ([], [identity])


@pytest.mark.parametrize("place", ["params", "json"])
def test_a_reset_adds_the_first_messages_wherever_it_is_asked_for(lab: Lab, rest: Rest, place: str) -> None:
    agent = lab.client.agents.create(agent_type="memgpt_v2_agent")
    rest.call("PATCH", f"/agents/{agent.id}/reset-messages")
    (system,) = lab.client.agents.retrieve(agent.id).message_ids or ()
    rest.call("PATCH", f"/agents/{agent.id}/reset-messages", **{place: {"add_default_initial_messages": True}})
    after = lab.client.agents.retrieve(agent.id).message_ids or ()
    assert (after[0], len(after) > 1) == (system, True)


def test_the_default_conversation_is_recompiled(lab: Lab) -> None:
    agent = lab.agent()
    assert "Ada." in lab.client.conversations.recompile("default", agent_id=agent.id, dry_run=True)


def test_stored_messages_are_found_by_their_roles(lab: Lab, rest: Rest) -> None:
    agent = lab.agent()
    lab.fake.script = lambda _: "The lighthouse answers."
    lab.client.agents.messages.create(agent.id, input="The lighthouse is red.")

    def texts(**body: Any) -> list[str]:
        hits = rest.call("POST", "/agents/messages/search", json={"agent_id": agent.id, **body})
        return [hit["embedded_text"] for hit in hits]

    assert set(texts(query="lighthouse")) == {"The lighthouse is red.", "The lighthouse answers."}
    assert texts(query="lighthouse", roles=["user"], search_mode="fts") == ["The lighthouse is red."]
    (newest,) = rest.call("POST", "/agents/messages/search", json={"agent_id": agent.id, "limit": 1})
    assert (newest["message"]["role"], newest["fts_rank"]) == ("assistant", None)
    assert "roles" in rest.call("POST", "/agents/messages/search", 422, json={"roles": ["king"]})["detail"]
    assert "limit" in rest.call("POST", "/agents/messages/search", 422, json={"limit": 0})["detail"]


def test_blocks_are_counted_by_label_name_and_tags(lab: Lab, rest: Rest) -> None:
    for tags in (["sea", "red"], ["sea"], []):
        lab.client.blocks.create(label="counted", value="", tags=tags)
    lab.client.blocks.create(label="other", value="")

    def counted(**query: Any) -> int:
        return int(rest.call("GET", "/blocks/count", params=query))

    assert counted() > counted(label="counted") == 3
    assert (counted(tags="sea"), counted(tags=["sea", "red"])) == (2, 2)
    assert counted(tags=["sea", "red"], match_all_tags=True) == 1
    assert (counted(name="absent"), counted(templates_only=True)) == (0, 0)


def test_the_agents_of_an_archive_have_the_parts_that_are_asked_for(lab: Lab, rest: Rest) -> None:
    ada = rest.call("POST", "/identities/", json={"identifier_key": "ada-1", "name": "Ada", "identity_type": "user"})
    agent = lab.agent(identity_ids=[ada["id"]])
    archive = lab.client.archives.create(name="shared")
    lab.client.agents.archives.attach(archive.id, agent_id=agent.id)
    (holder,) = rest.call("GET", f"/archives/{archive.id}/agents", params={"include": "agent.identities"})
    assert [identity["name"] for identity in holder["identities"]] == ["Ada"]


def test_the_context_of_a_conversation_has_its_messages(lab: Lab, rest: Rest) -> None:
    agent = lab.agent()
    lab.client.agents.messages.create(agent.id, input="Hello.")
    conversation = lab.client.conversations.create(agent_id=agent.id)
    path = f"/agents/{agent.id}/context"
    own, other = rest.call("GET", path), rest.call("GET", path, params={"conversation_id": conversation.id})
    assert (own["num_messages"] > other["num_messages"], other["num_messages"]) == (True, 1)


def test_agents_are_listed_while_they_are_deleted(lab: Lab) -> None:
    tag = f"stale-{uuid4()}"
    agents = {lab.agent(tags=[tag]).id for _ in range(3)}
    deleted = []
    for agent in lab.client.agents.list(tags=[tag], limit=1):
        lab.client.agents.delete(agent.id)
        deleted.append(agent.id)
    assert len(deleted) == len(agents)
    assert set(deleted) == agents


def test_a_number_out_of_range_is_refused_by_its_field(lab: Lab, rest: Rest) -> None:
    agent = lab.agent()
    for number in (2**31, 2**63, -(2**63) - 1, 10**30, 10**400):
        for path in ("/tags/", "/blocks/", "/tools/", "/runs/", f"/agents/{agent.id}/messages"):
            shown = rest.text("GET", path, params={"limit": str(number)}) if number > 0 else "[]"
            assert shown.startswith(("[", "{")), "a large limit is the largest one"
        for path, body, field in (
            ("/agents/", {"context_window_limit": number}, "context_window_limit"),
            ("/agents/", {"model_settings": {"max_output_tokens": number}}, "model_settings"),
            (
                "/agents/",
                {
                    "llm_config": {
                        "model": "fake-model",
                        "handle": MODEL,
                        "model_endpoint_type": "openai",
                        "context_window": number,
                    }
                },
                "context_window",
            ),
            ("/blocks/", {"label": "a", "value": "b", "limit": number}, "limit"),
            (f"/agents/{agent.id}/messages", {"input": "x", "max_steps": number}, "max_steps"),
        ):
            assert field in rest.call("POST", path, 422, json=body)["detail"], (path, field, number)
