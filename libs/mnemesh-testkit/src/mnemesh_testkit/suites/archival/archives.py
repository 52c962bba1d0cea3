"""Archives: their holders, their content for each agent, and what remains after an agent is erased."""

import asyncio

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import (
    ARCHIVE_ORDER_BY_NAME,
    ArchiveFilter,
    AttachArchiveRequest,
    CountArchivesRequest,
    CreateArchiveRequest,
    DeleteArchiveRequest,
    DetachArchiveRequest,
    GetArchiveRequest,
    ListArchiveAgentsRequest,
    ListArchivesRequest,
    UpdateArchiveRequest,
)
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    DeletePassageRequest,
    EraseAgentRequest,
    InsertPassagesRequest,
    ListPassagesRequest,
    PassageFilter,
)
from mnemesh.types.v1.audit_pb2 import Provenance
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_kit.call_context import as_principal, current_principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.archival.calls import Archival, ArchivalCases, reason, stranger


class Archives(ArchivalCases):
    """Archives over the RPCs."""

    async def test_created_archive_is_returned_unchanged(self, client: Archival) -> None:
        draft = Archive(
            name="Notes ✓",
            description="",
            metadata='{"b":1,"a":2}',
            deduplicate=True,
            provenance=Provenance(project_id="p", created_by_id="forged"),
        )
        request = CreateArchiveRequest(archive=draft, request_id="c1")
        made = (await client.archives.CreateArchive(request)).archive
        assert (await client.archives.CreateArchive(request)).archive == made
        got = (await client.archives.GetArchive(GetArchiveRequest(archive_id=made.id))).archive
        assert got == made
        assert (got.name, got.description, got.metadata) == (draft.name, "", draft.metadata)
        assert got.HasField("description")
        assert (got.embedder, got.dimension, got.deduplicate) == ("mnemesh/hashing-256", 256, True)
        assert (got.provenance.created_by_id, got.provenance.project_id) == (current_principal().subject_id, "p")
        assert not got.provenance.HasField("entity_id")
        assert (await client.archives.CountArchives(CountArchivesRequest())).count == 1

    async def test_archives_are_updated_by_mask(self, client: Archival) -> None:
        archive = await client.archive(description="old", metadata="{}")

        async def update(paths: list[str], **fields: object) -> Archive:
            draft = Archive(id=archive, **fields)  # type: ignore[arg-type]
            request = UpdateArchiveRequest(archive=draft, update_mask=FieldMask(paths=paths))
            updated: Archive = (await client.archives.UpdateArchive(request)).archive
            return updated

        changed = await update(["name", "description"], name="new")
        assert (changed.name, changed.HasField("description"), changed.metadata) == ("new", False, "{}")
        changed = await update(["embedder"], embedder="mnemesh/wordllama-256")
        assert (changed.name, changed.embedder) == ("new", "mnemesh/wordllama-256")
        assert await reason(update(["embedder"], embedder="acme/none")) == "EMBEDDER_UNKNOWN"
        assert await reason(update([])) == "INVALID_ARGUMENT"
        assert await reason(update(["passage_count"])) == "INVALID_ARGUMENT"

    async def test_archives_are_listed_filtered_and_counted(self, client: Archival, agent: str) -> None:
        ids = {name: await client.archive(name=name) for name in ("beta", "Alpha 100%", "gamma", "alphabet")}
        await client.archives.AttachArchive(AttachArchiveRequest(agent_id=agent, archive_id=ids["gamma"]))

        async def names(**request: object) -> list[str]:
            page = await client.archives.ListArchives(ListArchivesRequest(**request))  # type: ignore[arg-type]
            return [archive.name for archive in page.archives]

        assert await names() == ["alphabet", "gamma", "Alpha 100%", "beta"]
        assert await names(order_by=ARCHIVE_ORDER_BY_NAME, order=SORT_ORDER_ASCENDING, page_size=2) == [
            "Alpha 100%",
            "alphabet",
        ]
        assert await names(after_id=ids["gamma"]) == ["Alpha 100%", "beta"]
        assert await names(filter=ArchiveFilter(agent_id=agent)) == ["gamma"]
        assert await names(filter=ArchiveFilter(name="beta")) == ["beta"]
        assert await names(filter=ArchiveFilter(name_search="ALPHA")) == ["alphabet", "Alpha 100%"]
        assert await names(filter=ArchiveFilter(name_search="0%")) == ["Alpha 100%"]
        some = ArchiveFilter(archive_ids=[ids["beta"], ids["gamma"]])
        assert (await client.archives.CountArchives(CountArchivesRequest(filter=some))).count == 2
        with as_principal(stranger()):
            assert await names() == []
            assert (
                await reason(client.archives.GetArchive(GetArchiveRequest(archive_id=ids["beta"])))
                == "ARCHIVE_NOT_FOUND"
            )
            attach = AttachArchiveRequest(agent_id=agent, archive_id=ids["beta"])
            assert await reason(client.archives.AttachArchive(attach)) == "ARCHIVE_NOT_FOUND"

    async def test_agents_share_an_archive(self, client: Archival) -> None:
        one, two = sorted([new_id("agent"), new_id("agent")])
        archive = await client.archive(one)
        for _ in range(2):
            await client.archives.AttachArchive(AttachArchiveRequest(agent_id=two, archive_id=archive))
        await client.insert(one, "seen by both")
        assert await client.texts("both", filter=PassageFilter(agent_id=two)) == ["seen by both"]
        holders = await client.archives.ListArchiveAgents(ListArchiveAgentsRequest(archive_id=archive))
        assert list(holders.agent_ids) == [one, two]
        await client.archives.DetachArchive(DetachArchiveRequest(agent_id=two, archive_id=archive))
        assert await client.texts("both", filter=PassageFilter(agent_id=two)) == []
        again = DetachArchiveRequest(agent_id=two, archive_id=archive)
        assert await reason(client.archives.DetachArchive(again)) == "ARCHIVE_NOT_FOUND"
        assert await client.texts("both", filter=PassageFilter(agent_id=one)) == ["seen by both"]

    async def test_summary_counts_and_its_revision_only_increases(self, client: Archival, agent: str) -> None:
        empty = await client.summary(agent)
        assert (empty.revision, empty.passage_count, empty.HasField("update_time")) == (0, 0, False)
        assert (await client.summary(agent, if_revision=0)).not_modified
        revisions = [0]

        async def grown() -> int:
            summary = await client.summary(agent, if_revision=revisions[-1])
            assert not summary.not_modified
            assert summary.revision > revisions[-1]
            revisions.append(summary.revision)
            assert (await client.summary(agent, if_revision=summary.revision)).not_modified
            return summary.passage_count

        (result,) = (await client.insert(agent, Passage(text="a", tags=["z", "m"]))).results
        assert await grown() == 1
        shared = await client.archive()
        await client.insert(shared, Passage(text="b", tags=["a", "m"]), Passage(text="c"))
        await client.archives.AttachArchive(AttachArchiveRequest(agent_id=agent, archive_id=shared))
        assert await grown() == 3
        assert list((await client.summary(agent)).tags) == ["a", "m", "z"]
        await client.insert(shared, "d")
        assert await grown() == 4
        await client.passages.DeletePassage(DeletePassageRequest(passage_id=result.passage.id))
        assert await grown() == 3
        await client.archives.DetachArchive(DetachArchiveRequest(agent_id=agent, archive_id=shared))
        assert await grown() == 0
        assert (await client.summary(agent)).tags == []

    async def test_deletion_of_an_archive_deletes_its_passages(self, client: Archival, agent: str) -> None:
        archive = await client.archive(agent)
        passage = await client.one(archive, "oak", tags=["t"])
        kept = await client.archive()
        await client.insert(kept, "oak too")
        for _ in range(2):
            await client.archives.DeleteArchive(DeleteArchiveRequest(archive_id=archive))
        assert await client.texts("oak") == ["oak too"]
        assert (await client.summary(agent)).passage_count == 0
        assert await reason(client.insert(archive, "late")) == "ARCHIVE_NOT_FOUND"
        with pytest.raises(NotFound):
            await client.passages.DeletePassage(DeletePassageRequest(passage_id=passage))
        await client.insert(agent, "a new start")
        assert await client.texts(filter=PassageFilter(agent_id=agent)) == ["a new start"]

    async def test_default_archive_is_never_a_deleted_or_detached_one(self, client: Archival, agent: str) -> None:
        (first,) = (await client.insert(agent, "one")).results
        await client.archives.DeleteArchive(DeleteArchiveRequest(archive_id=first.passage.archive_id))
        (second,) = (await client.insert(agent, "two")).results
        assert second.passage.archive_id != first.passage.archive_id
        await client.archives.DetachArchive(DetachArchiveRequest(agent_id=agent, archive_id=second.passage.archive_id))
        (third,) = (await client.insert(agent, "three")).results
        assert len({first.passage.archive_id, second.passage.archive_id, third.passage.archive_id}) == 3

    async def test_first_insert_of_an_agent_may_name_the_embedder(self, client: Archival, agent: str) -> None:
        def insert(embedder: str) -> InsertPassagesRequest:
            return InsertPassagesRequest(agent_id=agent, passages=[Passage(text="oak")], default_embedder=embedder)

        assert await reason(client.passages.InsertPassages(insert("acme/none"))) == "EMBEDDER_UNKNOWN"
        for embedder in ("mnemesh/wordllama-256", "mnemesh/hashing-256"):
            await client.passages.InsertPassages(insert(embedder))
        (made,) = (await client.archives.ListArchives(ListArchivesRequest())).archives
        assert (made.embedder, made.passage_count) == ("mnemesh/wordllama-256", 2)
        assert made.created_for_agent_id == agent

    @pytest.mark.parametrize("delete_unshared", [False, True])
    async def test_erasure_of_an_agent_deletes_attached_archives_only_if_requested(
        self, client: Archival, agent: str, delete_unshared: bool
    ) -> None:
        given = await client.archive(agent)
        await client.insert(given, "written before")
        made = (await client.archives.GetArchive(GetArchiveRequest(archive_id=given))).archive
        assert not made.HasField("created_for_agent_id")
        erase = EraseAgentRequest(agent_id=agent, delete_unshared_archives=delete_unshared)
        answer = await client.passages.EraseAgent(erase)
        gone = int(delete_unshared)
        assert (answer.deleted_passages, answer.deleted_archives) == (gone, gone)
        assert await client.texts("written") == ([] if delete_unshared else ["written before"])

    async def test_erasure_of_an_agent_keeps_its_own_archive_for_another_holder(
        self, client: Archival, agent: str
    ) -> None:
        (made,) = (await client.insert(agent, "shared since")).results
        friend = new_id("agent")
        await client.archives.AttachArchive(AttachArchiveRequest(agent_id=friend, archive_id=made.passage.archive_id))
        answer = await client.passages.EraseAgent(EraseAgentRequest(agent_id=agent, delete_unshared_archives=True))
        assert (answer.deleted_passages, answer.deleted_archives) == (0, 0)
        assert await client.texts("shared", filter=PassageFilter(agent_id=friend)) == ["shared since"]

    @pytest.mark.parametrize("is_creator_first", [True, False])
    async def test_agents_that_are_erased_together_take_the_archives_of_both_with_them(
        self, client: Archival, agent: str, is_creator_first: bool
    ) -> None:
        friend = new_id("agent")
        request = CreateArchiveRequest(
            archive=Archive(name="ours"), agent_ids=[agent, friend], created_for_agent_id=agent
        )
        made = (await client.archives.CreateArchive(request)).archive
        assert made.created_for_agent_id == agent
        kept = await client.archive(agent, friend)
        for text in ("one", "two"):
            await client.insert(made.id, text)
        order = (agent, friend) if is_creator_first else (friend, agent)
        counts = [0, 0]
        for erased in order:
            erase = EraseAgentRequest(agent_id=erased, together_with_agent_ids=order)
            answer = await client.passages.EraseAgent(erase)
            counts = [counts[0] + answer.deleted_passages, counts[1] + answer.deleted_archives]
        assert counts == [2, 1]
        assert [left.id for left in (await client.archives.ListArchives(ListArchivesRequest())).archives] == [kept]

    async def test_agent_that_an_archive_is_created_for_must_hold_it(self, client: Archival, agent: str) -> None:
        request = CreateArchiveRequest(archive=Archive(name="mine"), created_for_agent_id=agent)
        with pytest.raises(InvalidArgument) as refused:
            await client.archives.CreateArchive(request)
        assert refused.value.field == "created_for_agent_id"

    @pytest.mark.parametrize("delete_shared", [False, True])
    async def test_erasure_of_an_agent_keeps_shared_archives(
        self, client: Archival, agent: str, delete_shared: bool
    ) -> None:
        friend = new_id("agent")
        own = (await client.insert(agent, "only mine")).results[0].passage.archive_id
        shared = await client.archive(agent, friend)
        await client.insert(
            shared, Passage(text="mine, shared", agent_id=agent, tags=["m"]), Passage(text="the friend's")
        )
        erase = EraseAgentRequest(agent_id=agent, delete_shared_passages=delete_shared, request_id="e1")
        answer = await client.passages.EraseAgent(erase)
        assert (answer.deleted_passages, answer.deleted_archives) == (2 if delete_shared else 1, 1)
        assert await client.passages.EraseAgent(erase) == answer
        left = ["the friend's"] if delete_shared else ["mine, shared", "the friend's"]
        assert sorted(await client.texts("mine friend's only", filter=PassageFilter(agent_id=friend))) == left
        assert await client.texts("only", mode=PASSAGE_SEARCH_MODE_TEXT) == []
        summary = await client.summary(friend)
        assert (summary.passage_count, list(summary.tags)) == (len(left), [] if delete_shared else ["m"])
        assert (await client.summary(agent)).passage_count == 0
        assert await reason(client.archives.GetArchive(GetArchiveRequest(archive_id=own))) == "ARCHIVE_NOT_FOUND"
        for late in (
            client.insert(agent, "too late"),
            client.insert(shared, Passage(text="too late", agent_id=agent)),
            client.archives.AttachArchive(AttachArchiveRequest(agent_id=agent, archive_id=shared)),
            client.archive(agent),
        ):
            assert await reason(late) == "ERASED"
        assert (await client.archives.CountArchives(CountArchivesRequest())).count == 1


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
