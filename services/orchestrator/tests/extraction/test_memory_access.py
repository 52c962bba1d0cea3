"""The scopes of memories that a turn or a window may read and write."""

import pytest
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.model.core_memory import memory_access
from mnemesh_orchestrator.model.episodes import MemoryExtractionSettings, MemoryScope
from mnemesh_types.agents import ExtractionScope

BY_SENDER = MemoryExtractionSettings(scope=ExtractionScope.SENDER)
ANA, BO, GROUP, CONVERSATION = new_id("identity"), new_id("identity"), new_id("group"), new_id("conv")
OWN, CREW = MemoryScope("agent-1"), MemoryScope("agent-1", "crew")
OF_ANA = MemoryScope("agent-1", identity_id=ANA)
OF_GROUP = MemoryScope("agent-1", group_id=GROUP)
HERE = MemoryScope("agent-1", conversation_id=CONVERSATION)


@pytest.mark.parametrize(
    ("name", "settings", "senders", "stored", "found"),
    [
        (None, None, (), OWN, {OWN}),
        ("crew", None, (ANA,), CREW, {OWN, CREW, OF_ANA}),
        (None, BY_SENDER, (ANA, ANA), OF_ANA, {OWN, OF_ANA}),
        ("crew", BY_SENDER, (ANA,), OF_ANA, {OWN, CREW, OF_ANA}),
        # Several senders, a message without one, and a sender that is not an identity: those of the conversation only.
        (None, BY_SENDER, (ANA, BO), HERE, {OWN}),
        (None, BY_SENDER, (ANA, None), HERE, {OWN}),
        (None, BY_SENDER, (new_id("agent"),), HERE, {OWN}),
        (None, BY_SENDER, ("ana",), HERE, {OWN}),
        (None, BY_SENDER, (), HERE, {OWN}),
    ],
)
def test_scopes(
    name: str | None,
    settings: MemoryExtractionSettings | None,
    senders: tuple[str | None, ...],
    stored: MemoryScope,
    found: set[MemoryScope],
) -> None:
    access = memory_access("agent-1", name, settings, conversation_id=CONVERSATION, senders=senders, group_id=GROUP)
    assert access.stored == stored
    assert set(access.found) == found | {OF_GROUP, HERE}
    assert access.stored in access.found


def test_turn_without_conversation_keeps_to_the_agent() -> None:
    access = memory_access("agent-1", None, BY_SENDER)
    assert (access.stored, access.found) == (OWN, (OWN,))
