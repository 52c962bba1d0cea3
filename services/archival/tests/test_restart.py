"""A restart keeps all data."""

from mnemesh.archival.v1.passages_service_pb2 import PassageFilter

from .conftest import ArchivalServer


async def test_data_survives_a_restart(archival: ArchivalServer, agent: str) -> None:
    await archival.insert(agent, "the red apple")
    before = await archival.summary(agent)
    await archival.stop()
    await archival.start()
    assert await archival.texts("apple", filter=PassageFilter(agent_id=agent)) == ["the red apple"]
    assert await archival.summary(agent) == before
