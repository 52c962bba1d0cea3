"""What a server that was stopped finds again."""

from __future__ import annotations

from mnemesh.archival.v1.passages_service_pb2 import PassageFilter

from .conftest import Room


async def test_everything_is_there_after_a_restart(room: Room, agent: str) -> None:
    await room.insert(agent, "the red apple")
    before = await room.summary(agent)
    await room.stop()
    await room.start()
    assert await room.texts("apple", filter=PassageFilter(agent_id=agent)) == ["the red apple"]
    assert await room.summary(agent) == before
