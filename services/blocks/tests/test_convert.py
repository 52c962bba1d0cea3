"""Round trips between domain values and messages."""

from hypothesis import given
from hypothesis import strategies as st
from mnemesh_blocks.rpc.blocks import author_from_proto
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, Principal
from mnemesh_types.blocks import AUTHOR, AgentAuthor, OwnerAuthor

storable = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@given(storable, storable)
def test_agent_author_round_trip(tool_call_id: str | None, run_id: str | None) -> None:
    author = AgentAuthor("agent-00000000-0000-4000-8000-000000000001", tool_call_id, run_id)
    assert author_from_proto(AUTHOR.to_proto(author), DEFAULT_PRINCIPAL) == author


def test_owner_author_is_always_the_caller() -> None:
    caller = Principal("org-00000000-0000-4000-8000-000000000001", "user-00000000-0000-4000-8000-000000000001")
    assert author_from_proto(AUTHOR.to_proto(OwnerAuthor("user-other")), caller) == OwnerAuthor(caller.subject_id)
