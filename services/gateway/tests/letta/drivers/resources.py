"""Blocks, models and tags."""

import letta_client
import pytest

from ..lab import MODEL, Lab, drives


@drives("models.list", "models.embeddings.list")
def models(lab: Lab) -> None:
    handles = {model.handle: model for model in lab.client.models.list()}
    assert {"mnemesh/rehearsal", MODEL} <= handles.keys()
    assert handles[MODEL].context_window > 0
    embedder = next(model for model in lab.client.models.embeddings.list() if model.handle == "mnemesh/hashing-256")
    assert embedder.embedding_dim == 256


@drives("tags.list")
def tags(lab: Lab) -> None:
    lab.agent(tags=["tag-b", "tag-a"])
    assert lab.client.tags.list(name="tag-") == ["tag-a", "tag-b"]


@drives("blocks.create", "blocks.retrieve", "blocks.update", "blocks.list", "blocks.delete", "blocks.agents.list")
def blocks(lab: Lab) -> None:
    blocks = lab.client.blocks
    made = [blocks.create(label="shared", value=str(number), tags=["block-test"]) for number in range(3)]
    first = made[0]
    assert first.id.startswith("block-")
    assert (first.label, first.value, first.limit, first.read_only) == ("shared", "0", 100_000, False)
    assert blocks.retrieve(first.id) == first
    assert [block.id for block in blocks.list(tags=["block-test"], limit=2)] == [block.id for block in made]
    changed = blocks.update(first.id, value="changed", tags=[], metadata={"a": 1})
    assert (changed.value, changed.tags, changed.metadata) == ("changed", [], {"a": 1})
    agent = lab.agent(memory_blocks=[], block_ids=[first.id])
    assert [held.id for held in blocks.agents.list(first.id)] == [agent.id]
    assert [block.id for block in blocks.list(value_search="CHANGED")] == [first.id]
    blocks.delete(first.id)
    assert lab.client.agents.retrieve(agent.id).blocks == [], "deleting detaches"
    with pytest.raises(letta_client.NotFoundError):
        blocks.retrieve(first.id)
    with pytest.raises(letta_client.UnprocessableEntityError, match="5"):
        blocks.update(made[1].id, limit=5, value="Too long for that.")
    assert blocks.retrieve(made[1].id).value == "1"
