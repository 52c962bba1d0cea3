"""The two voice agent types: one stores messages and rewrites a block, the other finds them."""

import json

from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import window_of

MODEL = "openai/fake-model"
TRANSCRIPT = """(Older)
0. user: My sister Mia plays the cello in Lisbon.
1. assistant: How lovely.
(Newer)
2. user: What shall I give her?"""


async def test_memories_stored_by_one_agent_are_found_by_the_other(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    tender = await mesh.client.agents.create(
        model=MODEL,
        type="voice_sleeptime",
        blocks={"human": "{{name}}: nothing else is known."},
        memory_variables={"name": "Ada"},
    )
    assert (await tender.memory()).blocks[0].value == "Ada: nothing else is known."
    chunk = {"start_index": 0, "end_index": 1, "context": "Her sister makes music."}
    fake_openai.script = [
        Reply(tool_calls=[Call("store_memories", {"chunks": [chunk]})]),
        Reply(tool_calls=[Call("rethink_user_memory", {"new_memory": "Ada has a sister, Mia, a cellist."})]),
        Reply(tool_calls=[Call("finish_rethinking_memory", {})]),
    ]
    async for _ in tender.send(TRANSCRIPT):
        pass
    assert (await tender.memory()).blocks[0].value == "Ada has a sister, Mia, a cellist."
    (found,) = await tender.search_passages("who plays an instrument in Lisbon?")
    assert found.passage.text == (
        "Her sister makes music.\n\nuser: My sister Mia plays the cello in Lisbon.\nassistant: How lovely."
    )
    archives = [archive.id async for archive in mesh.client.archives.list(agent_id=tender.id)]
    speaker = await mesh.client.agents.create(model=MODEL, type="voice_convo", archive_ids=archives)
    fake_openai.script = [
        Reply(tool_calls=[Call("search_memory", {"convo_keyword_queries": ["cello"], "request_heartbeat": True})]),
        Reply(tool_calls=[Call("send_message", {"message": "New strings."})]),
    ]
    assert await speaker.ask("What would please Mia, who plays the cello in Lisbon?") == "New strings."
    returned = [item for message in await window_of(mesh.client, speaker) for item in message.tool_returns]
    results = json.loads(next(item for item in returned if item.name == "search_memory").content[0].text.text)
    assert [hit["content"] for hit in results["archival_search_results"]] == [found.passage.text]
    assert list(results["convo_keyword_search_results"]) == ["cello"]
