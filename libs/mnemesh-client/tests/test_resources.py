"""The resources of a whole mesh through the synchronous client: what each of its less common methods does."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from mnemesh.agents.v1 import agents_service_pb2, conversations_pb2, runs_pb2, runs_service_pb2
from mnemesh.archival.v1 import archives_pb2
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import InvalidArgument, NotFound, Unavailable
from mnemesh_client.episodes import memory_scope
from mnemesh_client.inputs import text_of, text_part
from mnemesh_client.sync import Agent, Mnemesh
from mnemesh_kit import paging
from mnemesh_kit.ids import new_id
from mnemesh_testkit.mesh.in_process import MeshThread

DOUBLE: Final = '''
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.
    """
    return 2 * number
'''


@pytest.fixture(scope="module")
def client(running: MeshThread) -> Iterator[Mnemesh]:
    """A client of a whole mesh."""
    with Mnemesh(running.mesh.client.addresses) as client:
        yield client


@pytest.fixture
def agent(client: Mnemesh, request: pytest.FixtureRequest) -> Agent:
    """An agent with the name of the test."""
    return client.agents.create(request.node.name, blocks={"human": "Ada."}, tags=[request.node.name])


def test_agents_are_counted_tagged_and_moved(client: Mnemesh, agent: Agent) -> None:
    assert client.agents.count(name=agent.name) == 1
    assert list(client.agents.tags(text_search=agent.name)) == [agent.name]

    records = list(client.agents.export(agent.id))
    copied = client.agents.import_(records, agents_service_pb2.ImportOptions(name="copy")).agent

    assert (copied.name, copied.id != agent.id) == ("copy", True)
    assert [block.value for block in client.agents.get(copied.id).memory().blocks] == ["Ada."]


def test_context_window_is_previewed_recompiled_and_reset(agent: Agent) -> None:
    agent.ask("My name is Ada.")

    assert "Still there?" in json.dumps(agent.preview("Still there?"))
    assert "Ada." in agent.recompile(dry_run=True).system_text
    assert len(agent.context_window().messages) > 1
    agent.reset_messages()
    assert len(agent.context_window().messages) <= 1
    assert len(list(agent.messages())) > 1


def test_tool_runs_outside_of_a_turn(client: Mnemesh, agent: Agent) -> None:
    tool = client.tools.create(DOUBLE)
    agent.attach_tool(tool.id)

    assert "42" in str(agent.run_tool("double", {"number": 21}))
    assert client.tools.update(tool.id, description="Two times.").description == "Two times."
    assert [each.name for each in client.tools.get_many("double", "no such tool")] == ["double"]
    assert client.tools.count() > client.tools.count(exclude_types=["custom"])


def test_steps_of_a_run_are_read_and_the_run_is_deleted(client: Mnemesh, agent: Agent) -> None:
    agent.ask("Hello.")
    (run,) = client.runs.list(agent_id=agent.id)
    (step,) = client.runs.steps(run.id)

    assert client.runs.step(step.id) == step
    client.runs.delete(run.id)
    with pytest.raises(NotFound):
        client.runs.get(run.id)


def test_runs_of_a_batch_are_found_and_cancelled(client: Mnemesh, agent: Agent) -> None:
    message = runs_pb2.InputMessage(content=[message_pb2.ContentPart(text=message_pb2.TextPart(text="Hello."))])
    request = runs_service_pb2.BatchRequest(agent_id=agent.id, messages=[message])
    batch = client.runs.start_batch([request, request])
    runs = list(client.runs.list(batch_id=batch.id))
    for run in runs:
        client.runs.wait(run.id)
    ended = client.runs.batch(batch.id)
    assert (ended.completed_count, ended.unfinished_count, len(runs)) == (2, 0, 2)
    assert list(client.runs.batches(limit=1)) == [ended]
    assert client.runs.cancel_batch(batch.id) == ended, "its runs have ended"


def test_conversations_are_forked_changed_and_deleted(client: Mnemesh, agent: Agent) -> None:
    made = client.conversations.create(conversations_pb2.Conversation(agent_id=agent.id, summary="First"))
    agent.ask("Hello.", conversation_id=made.id)

    fork = client.conversations.fork(made.id, summary="Second")

    assert client.conversations.update(fork.id, summary="Third").summary == "Third"
    found = client.conversations.get(fork.id, include_message_ids=True)
    assert (found.forked_from_id, len(found.message_ids) > 1) == (made.id, True)
    (window,) = client.messages.window_ids([fork.id])
    assert list(window.message_ids) == list(found.message_ids)
    client.conversations.delete(fork.id)
    with pytest.raises(NotFound):
        client.conversations.get(fork.id)


def test_identities_are_created_changed_and_attached(client: Mnemesh, agent: Agent) -> None:
    ada = client.identities.create("ada-1", "Ada", properties={"town": "Turin"})

    client.identities.attach(ada.id, agent_id=agent.id)
    client.identities.set_properties(ada.id, {"drink": "tea"})
    assert client.identities.update(ada.id, name="Ada L.").name == "Ada L."
    assert {each.key: each.text for each in client.identities.get(ada.id).properties} == {
        "town": "Turin",
        "drink": "tea",
    }
    assert list(client.identities.agents(ada.id)) == [agent.id]
    client.identities.detach(ada.id, agent_id=agent.id)
    assert list(client.identities.agents(ada.id)) == list(client.identities.blocks(ada.id)) == []
    assert client.identities.count(identifier_key="ada-1") == 1
    with pytest.raises(InvalidArgument, match="agent_id and block_id"):
        client.identities.attach(ada.id)


def test_schedules_are_created_changed_and_deleted(client: Mnemesh, agent: Agent) -> None:
    daily = client.schedules.create(
        "Good morning", agent_id=agent.id, cron="0 9 * * *", time_zone="Europe/Rome", overlap="queue"
    )
    once = client.schedules.create("Now", agent_id=agent.id, due_at=datetime.now(UTC))
    assert [each.id for each in client.schedules.list(agent_id=agent.id)] == [daily.id, once.id]
    assert client.schedules.pause(daily.id).HasField("next_run_time") is False
    assert client.schedules.resume(daily.id).next_run_time == daily.next_run_time
    changed = client.schedules.update(daily.id, messages="Good evening", cron="0 18 * * *", missed_runs="skip")
    assert (text_of(changed.messages[0].content), changed.cron) == ("Good evening", "0 18 * * *")
    client.schedules.delete(daily.id)
    with pytest.raises(NotFound):
        client.schedules.get(daily.id)
    with pytest.raises(InvalidArgument, match=r"schedule\.cron"):
        client.schedules.create("Hi", agent_id=agent.id, cron="every day")
    runs: list[runs_pb2.Run] = []
    while not runs:  # the run of the time that is due now
        runs = list(client.runs.list(agent_id=agent.id, origins=["schedule"]))
    assert client.runs.wait(runs[0].id).status == runs_pb2.RUN_STATUS_COMPLETED
    assert client.schedules.get(once.id).last_run_id == runs[0].id


def test_webhooks_are_created_changed_and_deleted(client: Mnemesh, agent: Agent) -> None:
    webhook, secret = client.webhooks.create("http://127.0.0.1:1/", events=["run.failed"], agent_ids=[agent.id])
    assert secret.startswith("whsec_")
    assert secret not in str(client.webhooks.get(webhook.id))
    assert client.webhooks.update(webhook.id, disabled=True, events=[]).disabled
    assert [(each.id, list(each.events)) for each in client.webhooks.list()] == [(webhook.id, [])]
    delivery = client.webhooks.test(webhook.id)
    assert [(each.id, each.event) for each in client.webhooks.deliveries(webhook.id)] == [(delivery.id, "webhook.test")]
    client.webhooks.delete(webhook.id)
    with pytest.raises(NotFound):
        client.webhooks.get(webhook.id)
    with pytest.raises(InvalidArgument, match=r"webhook\.url"):
        client.webhooks.create("ftp://hooks.example")


def test_blocks_are_reverted(client: Mnemesh, agent: Agent) -> None:
    block = agent.memory().blocks[0]
    agent.append("human", "Likes tea.")

    assert client.blocks.undo(block.id).value == "Ada."
    assert client.blocks.redo(block.id).value == "Ada.\nLikes tea."
    assert client.blocks.revert(block.id, 1).value == "Ada."
    assert list(client.blocks.agents(block.id)) == [agent.id]
    assert client.blocks.count(agent_id=agent.id) == 1
    (memory,) = client.blocks.core_memories([agent.id])
    assert [each.value for each in memory.blocks] == ["Ada."]


def test_changes_of_all_services_are_listed_by_time(client: Mnemesh, agent: Agent) -> None:
    agent.append("human", "Likes tea.")
    agent.update(description="Kind.")
    changes = list(client.audit.list(resource_id=agent.id, order="asc"))
    names = [(entry.service, entry.method.rpartition("/")[2]) for entry in changes]
    assert names[-2:] == [("blocks", "EditBlock"), ("orchestrator", "UpdateAgent")]
    assert list(client.audit.list(resource_id=agent.id, limit=1)) == changes[-1:]
    assert (
        list(client.audit.list(service="blocks", resource_id=agent.id, until=changes[0].create_time.ToDatetime(UTC)))
        == []
    )
    with pytest.raises(InvalidArgument):
        list(client.audit.list(service="letters"))


def test_messages_are_appended_changed_and_deleted(client: Mnemesh, agent: Agent) -> None:
    said = message_pb2.Message(role=message_pb2.ROLE_USER, content=[text_part("I am Ada.")])

    (sequence_id,) = client.messages.append(agent.id, [said])

    (stored,) = (each for each in agent.messages() if each.sequence_id == sequence_id)
    stored.content[0].text.text = "I am Bob."
    client.messages.update(stored, "content")
    assert [text_of(each.content) for each in client.messages.get(stored.id)] == ["I am Bob."]
    client.messages.delete(stored.id)
    assert client.messages.get(stored.id) == []


def test_memories_are_bundled_and_changed(client: Mnemesh, agent: Agent) -> None:
    fact = client.facts.create("Ada likes tea.", agent_id=agent.id).fact
    client.episodes.commit(memory_scope(agent.id), "Ada said hello.")

    assert list(client.facts.update(fact.id, tags=["drinks"]).tags) == ["drinks"]
    bundle = client.episodes.bundle([memory_scope(agent.id)])
    assert [each.text for each in bundle.facts] == ["Ada likes tea."]
    assert [each.summary for each in bundle.episodes] == ["Ada said hello."]
    assert isinstance(bundle.episodes[0], episodes_pb2.Episode)


def test_searches_return_the_hits_of_all_pages(
    client: Mnemesh, agent: Agent, running: MeshThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = range(3)
    said = [
        message_pb2.Message(
            id=new_id("message"), role=message_pb2.ROLE_USER, content=[text_part(f"A quokka {number}.")]
        )
        for number in numbers
    ]
    client.messages.append(agent.id, said)
    archive = client.archives.create("quokkas")
    folder = client.folders.create("quokkas")
    agent.files.attach(folder.id)
    for number in numbers:
        client.passages.insert(f"A quokka {number}.", archive_id=archive.id)
        client.episodes.commit(memory_scope(agent.id), f"Saw quokka {number}.")
        client.facts.create(f"Quokka {number} smiles.", agent_id=agent.id)
        client.tools.create(f'def quokka_{number}() -> str:\n    """Greets a quokka."""\n    return "x"\n')
        upload = client.files.upload(folder.id, f"Quokka {number} sleeps.".encode(), name=f"{number}.txt")
        client.files.wait(upload.file.id)
    # The index of words has everything at once; vectors follow in the background and change the order.
    searches: dict[str, Callable[[], Any]] = {
        "messages": lambda: client.messages.search("quokka", agent_id=agent.id, mode="text"),
        "stored": lambda: client.messages.get(*(message.id for message in said)),
        "passages": lambda: client.passages.search("quokka", archive_id=archive.id, mode="text"),
        "episodes": lambda: client.episodes.search("quokka", agent_id=agent.id, mode="text"),
        "facts": lambda: client.facts.search("quokka", agent_id=agent.id, mode="text"),
        "tools": lambda: client.tools.search("quokka"),
        "files": lambda: agent.files.search("quokka"),
    }
    whole = {name: search() for name, search in searches.items()}
    assert {name: len(getattr(found, "hits", found)) for name, found in whole.items()} == dict.fromkeys(searches, 3)
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 1)
    assert {name: search() for name, search in searches.items()} == whole


def test_passages_can_be_texts(client: Mnemesh, agent: Agent) -> None:
    archive = client.archives.create("notes", agent_ids=[agent.id])
    results = client.passages.insert_many(["The sea is green.", "The sky is grey."], archive_id=archive.id)

    assert [result.passage.text for result in results] == ["The sea is green.", "The sky is grey."]
    assert client.archives.update(archive.id, description="Colours.").description == "Colours."
    assert (list(client.archives.agents(archive.id)), client.archives.count(agent_id=agent.id)) == ([agent.id], 1)
    client.passages.insert_many([f"colour {number}" for number in range(100)], archive_id=archive.id)
    states: list[archives_pb2.Archive] = []
    client.archives.update(archive.id, embedder="mnemesh/wordllama-256")
    assert client.archives.wait(archive.id, on_progress=states.append).embedder == "mnemesh/wordllama-256"
    assert not states[-1].HasField("reembedding")
    assert client.passages.delete_many(archive.id, [result.passage.id for result in results]).deleted_passages == 2
    with pytest.raises(InvalidArgument, match="list of texts"):
        client.passages.insert_many("one text", archive_id=archive.id)


def test_models_and_embeddings(client: Mnemesh) -> None:
    (handle, *_) = [each.handle for each in client.models.embedding_models()]

    made = client.embeddings.embed(["green", "grey"], embedder=handle)

    assert [len(each.values) for each in made.embeddings] == [made.dimension] * 2
    default = client.models.default().handle
    assert client.models.update(default, display_name="Ours").display_name == "Ours"
    assert client.models.update(default, display_name=None).display_name != "Ours"


def test_mesh_is_found_by_its_data_directory(
    running: MeshThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match=f"No mesh runs on {tmp_path}"):
        Mnemesh(data_dir=tmp_path)
    status = {"pid": 1, "ready": True, "addresses": dict(running.mesh.client.addresses.items())}
    (tmp_path / "mnemesh.lock").write_text(json.dumps(status))

    with Mnemesh(data_dir=tmp_path) as client:
        assert client.server_info().service == "orchestrator"
    with pytest.raises(InvalidArgument, match="not both"):
        Mnemesh("localhost", data_dir=tmp_path)
    monkeypatch.delenv("MNEMESH_TARGET", raising=False)
    monkeypatch.setenv("MNEMESH_DATA_DIR", str(tmp_path))
    assert Mnemesh().addresses.orchestrator == status["addresses"]["orchestrator"]
