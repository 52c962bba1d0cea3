"""Round trips between domain values and messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_blocks.model.blocks import AgentAuthor, Block, OwnerAuthor, Provenance
from mnemesh_blocks.rpc.convert import author_from_proto, author_to_proto, block_from_proto, block_to_proto
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal

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
    created_for_agent_id=maybe,
    created_at=moments,
    updated_at=moments,
    provenance=st.builds(Provenance, text, text, maybe, maybe, maybe, maybe, maybe),
)


@given(blocks)
def test_block_round_trip(block: Block) -> None:
    sent = block_to_proto(block).SerializeToString()
    assert block_from_proto(blocks_pb2.Block.FromString(sent)) == block


storable = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@given(storable, storable)
def test_agent_author_round_trip(tool_call_id: str | None, run_id: str | None) -> None:
    author = AgentAuthor("agent-00000000-0000-4000-8000-000000000001", tool_call_id, run_id)
    assert author_from_proto(author_to_proto(author), DEFAULT_PRINCIPAL) == author


def test_owner_author_is_always_the_caller() -> None:
    caller = Principal("org-00000000-0000-4000-8000-000000000001", "user-00000000-0000-4000-8000-000000000001")
    assert author_from_proto(author_to_proto(OwnerAuthor("user-other")), caller) == OwnerAuthor(caller.subject_id)
