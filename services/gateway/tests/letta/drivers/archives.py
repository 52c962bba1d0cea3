"""Archives and the search over all of them."""

from typing import Any

import letta_client
import pytest

from ..lab import Lab, drives


@drives("archives.create", "archives.retrieve", "archives.list", "archives.update", "archives.delete")
def archives(lab: Lab) -> None:
    archives = lab.client.archives
    made = archives.create(name="letters", description="Old ones.", embedding="mnemesh/hashing-256")
    other = archives.create(name="diaries")
    assert made.id.startswith("archive-")
    assert (made.name, made.description) == ("letters", "Old ones.")
    assert made.embedding_config is not None
    assert (made.embedding_config.handle, made.embedding_config.embedding_dim) == ("mnemesh/hashing-256", 256)
    assert archives.retrieve(made.id) == made
    newest = [item.id for item in archives.list() if item.id in (made.id, other.id)]
    assert newest == [other.id, made.id]
    assert [item.id for item in archives.list(name="letters")] == [made.id]
    changed = archives.update(made.id, name="post")
    assert (changed.name, changed.description) == ("post", "Old ones.")
    agent = lab.agent()
    lab.client.agents.archives.attach(made.id, agent_id=agent.id)
    assert [item.id for item in archives.list(agent_id=agent.id)] == [made.id]
    holders: Any = lab.client.get(f"/v1/archives/{made.id}/agents", cast_to=object)
    assert [holder["id"] for holder in holders] == [agent.id]
    archives.delete(made.id)
    assert list(archives.list(agent_id=agent.id)) == [], "deleting detaches"
    for act in (archives.retrieve, archives.delete):
        with pytest.raises(letta_client.NotFoundError):
            act(made.id)
    with pytest.raises(letta_client.NotFoundError):
        archives.create(name="x", embedding="nobody/nothing")


@drives("archives.passages.create", "archives.passages.create_many", "archives.passages.delete", "passages.search")
def passages(lab: Lab) -> None:
    client, agent = lab.client, lab.agent()
    archive, other = client.archives.create(name="facts"), client.archives.create(name="other")
    blue = client.archives.passages.create(
        archive.id,
        text="The zeppelin is blue.",
        tags=["sky"],
        metadata={"a": 1},
        created_at="2020-05-01T12:00:00+00:00",
    )
    assert (blue.archive_id, blue.tags, blue.metadata) == (archive.id, ["sky"], {"a": 1})
    assert blue.created_at is not None
    assert blue.created_at.year == 2020
    many = client.archives.passages.create_many(
        archive.id, passages=[{"text": "The zeppelin lands."}, {"text": "Bread is warm.", "tags": ["food"]}]
    )
    assert [item.text for item in many] == ["The zeppelin lands.", "Bread is warm."]
    found = client.passages.search(query="blue zeppelin", archive_id=archive.id, limit=2)
    assert [item.passage.id for item in found] == [blue.id, many[0].id]
    assert found[0].score > found[1].score
    assert client.passages.search(query="zeppelin", archive_id=other.id) == []
    assert [item.passage.id for item in client.passages.search(tags=["food"], archive_id=archive.id)] == [many[1].id]
    older = client.passages.search(query="zeppelin", archive_id=archive.id, end_date="2021-01-01T00:00:00Z")
    assert [item.passage.id for item in older] == [blue.id]
    assert client.passages.search(query="zeppelin", agent_id=agent.id) == []
    client.agents.archives.attach(archive.id, agent_id=agent.id)
    assert client.passages.search(query="blue zeppelin", agent_id=agent.id)[0].passage.id == blue.id
    with pytest.raises(letta_client.UnprocessableEntityError, match="limit"):
        client.passages.search(query="x", limit=1000)
    with pytest.raises(letta_client.NotFoundError):
        client.archives.passages.delete(str(blue.id), archive_id=other.id)
    client.archives.passages.delete(str(blue.id), archive_id=archive.id)
    with pytest.raises(letta_client.NotFoundError):
        client.archives.passages.delete(str(blue.id), archive_id=archive.id)
    assert len(client.passages.search(archive_id=archive.id)) == 2
