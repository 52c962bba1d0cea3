"""An archive changes its embedder while it is in use."""

from __future__ import annotations

import asyncio

from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive
from mnemesh.archival.v1.archives_service_pb2 import GetArchiveRequest, UpdateArchiveRequest
from mnemesh.archival.v1.passages_service_pb2 import PASSAGE_SEARCH_MODE_VECTOR, ListPassagesRequest, PassageFilter

from mnemesh_testkit.suites.archival.calls import Archival, ArchivalCases

OTHER = "mnemesh/wordllama-256"


class Reembedding(ArchivalCases):
    """Searches use the old vectors until the new ones are complete."""

    async def test_reads_and_writes_succeed_while_the_embedder_changes(self, client: Archival, agent: str) -> None:
        archive = await client.archive(agent)
        await client.insert(archive, *(f"oak number {n}" for n in range(100)))
        mine = PassageFilter(archive_id=archive)
        listing = ListPassagesRequest(page_size=1000, filter=mine, include_embedding=True)
        before = {each.id: list(each.embedding) for each in (await client.passages.ListPassages(listing)).passages}
        await client.archives.UpdateArchive(
            UpdateArchiveRequest(archive=Archive(id=archive, embedder=OTHER), update_mask=FieldMask(paths=["embedder"]))
        )
        served = ""
        async with asyncio.timeout(60):
            while served != OTHER:
                served = (await client.archives.GetArchive(GetArchiveRequest(archive_id=archive))).archive.embedder
                assert len(await client.texts("oak", filter=mine, limit=5)) == 5
                assert len(await client.texts("oak", filter=mine, limit=5, mode=PASSAGE_SEARCH_MODE_VECTOR)) == 5
                await client.insert(archive, "written meanwhile")
        after = {each.id: each for each in (await client.passages.ListPassages(listing)).passages}
        assert before.keys() < after.keys()
        assert all(list(after[each].embedding) != vector for each, vector in before.items())
        assert "written meanwhile" in await client.texts("written meanwhile", filter=mine, limit=1)
        assert (await client.summary(agent)).passage_count == len(after)
