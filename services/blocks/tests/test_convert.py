"""What goes out as a message comes back as the same value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_blocks.model.blocks import AgentAuthor, Block, OwnerAuthor, Provenance
from mnemesh_blocks.rpc.convert import blocks as messages
from mnemesh_kit.principal import Principal, as_principal

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
text = st.text(st.characters(codec="utf-8"), max_size=30)
maybe = st.none() | text
moments = st.integers(0, 2**52).map(lambda micros: EPOCH + timedelta(microseconds=micros))
blocks = st.builds(
    lambda revision, **fields: Block(revision=revision, content_revision=revision, **fields),
    id=text,
    label=text,
    value=text,
    limit=st.integers(1, 2**31 - 1),
    description=maybe,
    read_only=st.booleans(),
    revision=st.integers(1, 2**62),
    name=maybe,
    tags=st.lists(text).map(tuple),
    metadata=maybe,
    hidden=st.booleans(),
    is_template=st.booleans(),
    template_name=maybe,
    preserve_on_migration=st.booleans(),
    identity_ids=st.lists(text).map(tuple),
    created_at=moments,
    updated_at=moments,
    provenance=st.builds(Provenance, text, text, maybe, maybe, maybe, maybe, maybe),
)


@given(blocks)
def test_a_block_survives_the_wire(block: Block) -> None:
    sent = messages.block_to(block).SerializeToString()
    assert messages.block_from(blocks_pb2.Block.FromString(sent)) == block


whole = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@given(whole, whole)
def test_an_agent_author_survives_the_wire(tool_call_id: str | None, run_id: str | None) -> None:
    author = AgentAuthor("agent-00000000-0000-4000-8000-000000000001", tool_call_id, run_id)
    assert messages.author_from(messages.author_to(author)) == author


def test_an_owner_is_the_caller_whatever_the_message_says() -> None:
    me = Principal("org-00000000-0000-4000-8000-000000000001", "user-00000000-0000-4000-8000-000000000001")
    with as_principal(me):
        assert messages.author_from(messages.author_to(OwnerAuthor("someone else"))) == OwnerAuthor(me.subject_id)
