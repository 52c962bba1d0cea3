"""Requests that no generated client sends: malformed bytes, forged tokens, very long texts."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.archival.v1 import archives_service_pb2, embeddings_service_pb2, passages_service_pb2
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import (
    AttachArchiveRequest,
    CreateArchiveRequest,
    ListArchiveAgentsRequest,
    ListArchivesRequest,
    UpdateArchiveRequest,
)
from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    InsertPassagesRequest,
    ListPassagesRequest,
    PassageFilter,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING, SORT_ORDER_DESCENDING
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fuzzing.fuzzers import ACCEPTED_CODES, FuzzedService
from mnemesh_testkit.plugin import Sample

from .conftest import ArchivalServer

SERVICES = (
    archives_service_pb2.DESCRIPTOR.services_by_name["ArchiveService"],
    passages_service_pb2.DESCRIPTOR.services_by_name["PassageService"],
    embeddings_service_pb2.DESCRIPTOR.services_by_name["EmbeddingService"],
)
METHODS = [method for service in SERVICES for method in service.methods]
SEEDS = 12


class Target(FuzzedService):
    """A archival with archives that have something to lose."""

    def __init__(self, archival: ArchivalServer, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)
        self.archival = archival
        self.agent, self.peer = new_id("agent"), new_id("agent")
        self.archive = self.passage = ""

    @property
    def known(self) -> dict[str, list[str]]:
        return {"agent": [self.agent, self.peer], "archive": [self.archive], "passage": [self.passage]}

    async def create(self) -> None:
        self.archive = await self.archival.archive(self.agent, self.peer)
        self.passage = await self.archival.one(self.archive, "a red fox", tags=["t"])
        await self.archival.insert(self.archive, "and a grey one")

    async def read_stored(self) -> list[bytes]:
        """Returns all visible data: archives, their agents, passages with their vectors, and counters."""
        archives = (await self.archival.archives.ListArchives(ListArchivesRequest(page_size=1000))).archives
        agents = [
            await self.archival.archives.ListArchiveAgents(
                ListArchiveAgentsRequest(page_size=1000, archive_id=archive.id)
            )
            for archive in archives
        ]
        listed = await self.archival.passages.ListPassages(ListPassagesRequest(page_size=1000, include_embedding=True))
        assert len(listed.passages) == sum(archive.passage_count for archive in archives), "a batch is stored partially"
        summaries = [await self.archival.summary(agent) for agent in (self.agent, self.peer)]
        return [row.SerializeToString() for row in (*archives, *agents, *listed.passages, *summaries)]


def good_requests(target: Target) -> list[tuple[str, Any]]:
    which = PassageFilter(
        archive_id=target.archive, agent_id=target.agent, tags=["t"], file_id=new_id("file"),
        folder_id=new_id("source"), start_date="2026-01-01", end_date="2026-12-31T10:00", time_zone="Europe/Berlin",
    )  # fmt: skip
    draft = Passage(
        id=new_id("passage"), text="foxes dig", tags=["t"], metadata="{}", file_id=new_id("file"), file_name="n",
        folder_id=new_id("source"), create_time=Timestamp(seconds=1),
    )  # fmt: skip
    update = UpdatePassageRequest(passage=Passage(id=target.passage, text="new", tags=["u"], metadata="{}"))
    update.update_mask.paths.extend(["text", "tags", "metadata"])
    archive = Archive(name="n", description="d", metadata="{}", embedder="mnemesh/hashing-256")
    changed = Archive(id=target.archive, name="n", description="d", metadata="{}")
    rename = UpdateArchiveRequest(archive=changed, update_mask=FieldMask(paths=["name", "description", "metadata"]))
    return [
        ("InsertPassages", InsertPassagesRequest(archive_id=target.archive, passages=[draft], request_id="r")),
        ("UpdatePassage", update),
        (
            "ListPassages",
            ListPassagesRequest(page_size=3, page_token="x", after_id=target.passage, text_search="f", filter=which),
        ),
        ("SearchPassages", SearchPassagesRequest(query="fox", limit=3, filter=which)),
        ("CreateArchive", CreateArchiveRequest(archive=archive, agent_ids=[target.agent], request_id="r")),
        ("UpdateArchive", rename),
        ("ListArchives", ListArchivesRequest(page_size=3, after_id=target.archive)),
        ("EmbedTexts", EmbedTextsRequest(embedder="mnemesh/hashing-256", texts=["a fox", "a hen"])),
        ("AttachArchive", AttachArchiveRequest(agent_id=new_id("agent"), archive_id=target.archive)),
    ]


@pytest.fixture
async def target(archival: ArchivalServer) -> AsyncIterator[Target]:
    async with grpc.aio.insecure_channel(archival.address) as channel:
        target = Target(archival, channel)
        await target.create()
        yield target


async def test_fuzzed_requests_succeed_or_are_refused(target: Target, *, is_full: bool, is_sweep: bool) -> None:
    for method in METHODS:
        await target.require_hostile_answered(method, SEEDS if is_sweep else SEEDS // 3 if is_full else 1)


async def test_requests_with_one_invalid_field_succeed_or_are_refused(target: Target, sample: Sample) -> None:
    methods = {method.name: method for method in METHODS}
    for name, request in sample(good_requests(target), 3):
        await target.require_spoiled_answered(methods[name], request)


@pytest.mark.full
async def test_bytes_that_are_not_a_request_are_refused(target: Target) -> None:
    for method in METHODS:
        await target.require_bytes_refused(method)


async def outcome_of(call: Any, request: Message) -> grpc.StatusCode:
    try:
        await call(request)
    except MnemeshError as error:
        return error.code
    return grpc.StatusCode.OK


def forged(token: str, **changed: Any) -> list[str]:
    """Returns tokens like a valid one, with another value or id."""
    decoded = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    tokens = []
    for index, value in ((1, changed.get("value")), (2, changed.get("id"))):
        for put in (None, 7, 1e300, True, "", "x", "9999-12-31T23:59:59", "\u0000", [], {}, value, "9" * 5000):
            copy = list(decoded)
            copy[index] = put
            tokens.append(base64.urlsafe_b64encode(json.dumps(copy).encode()).decode().rstrip("="))
    return tokens


async def test_foreign_and_forged_page_tokens_are_refused(archival: ArchivalServer, agent: str) -> None:
    archives = [await archival.archive(agent, new_id("agent"), name=f"n{n}") for n in range(3)]
    await archival.insert(archives[0], "a", "b", "c")
    mine = PassageFilter(archive_id=archives[0])
    lists: list[tuple[Any, Any]] = [
        (archival.passages.ListPassages, ListPassagesRequest(page_size=1, filter=mine)),
        (archival.archives.ListArchives, ListArchivesRequest(page_size=1)),
        (archival.archives.ListArchives, ListArchivesRequest(page_size=1, order_by=2)),  # type: ignore[arg-type]
        (archival.archives.ListArchiveAgents, ListArchiveAgentsRequest(page_size=1, archive_id=archives[0])),
    ]
    tokens = [(await call(request)).next_page_token for call, request in lists]
    assert all(tokens)
    for index, (call, request) in enumerate(lists):
        for other, token in enumerate(tokens):
            foreign = type(request)()
            foreign.CopyFrom(request)
            foreign.page_token = token
            if other == index:
                await call(foreign)
            else:
                assert (await catch_refusal(call(foreign))).reason == "PAGE_TOKEN_INVALID"
        for token in forged(tokens[index]):
            foreign.page_token = token
            outcome = await outcome_of(call, foreign)
            assert outcome in ACCEPTED_CODES, (outcome, token)


async def test_extreme_times_are_accepted(archival: ArchivalServer, agent: str) -> None:
    first, last = Timestamp(seconds=-62135596800), Timestamp(seconds=253402300799, nanos=999999000)
    drafts = [Passage(text=name, create_time=at) for name, at in (("a", first), ("b", last), ("c", last))]
    await archival.insert(agent, *drafts, Passage(text="now"))
    for order in (SORT_ORDER_ASCENDING, SORT_ORDER_DESCENDING):
        seen: list[str] = []
        token = ""
        while True:
            request = ListPassagesRequest(page_size=1, page_token=token, order=order)
            page = await archival.passages.ListPassages(request)
            seen += [passage.text for passage in page.passages]
            token = page.next_page_token
            if not token:
                break
        assert sorted(seen) == ["a", "b", "c", "now"]
        assert (seen[0] == "a") == (order == SORT_ORDER_ASCENDING)
    assert await archival.texts(filter=PassageFilter(start_date="9999-12-31", end_date="9999-12-31T12:00")) == []


async def test_megabytes_of_text_are_refused(archival: ArchivalServer, agent: str) -> None:
    huge = "x" * 2_000_000
    archive = await archival.archive(agent)
    kept = await archival.one(archive, "kept")
    calls: list[tuple[Any, str]] = [
        (
            archival.passages.InsertPassages(InsertPassagesRequest(archive_id=archive, passages=[Passage(text=huge)])),
            ".text",
        ),
        (archival.passages.SearchPassages(SearchPassagesRequest(query=huge)), "query"),
        (archival.passages.ListPassages(ListPassagesRequest(text_search=huge)), "text_search"),
        (archival.passages.ListPassages(ListPassagesRequest(text_contains=huge)), "text_contains"),
        (archival.passages.ListPassages(ListPassagesRequest(page_token=huge)), "page_token"),
        (
            archival.passages.SearchPassages(SearchPassagesRequest(query="x", filter=PassageFilter(tags=[huge]))),
            "filter.tags",
        ),
        (archival.archives.CreateArchive(CreateArchiveRequest(archive=Archive(name=huge))), "archive.name"),
        (
            archival.archives.CreateArchive(CreateArchiveRequest(archive=Archive(name="x", metadata=huge))),
            "archive.metadata",
        ),
        (
            archival.archives.CreateArchive(CreateArchiveRequest(archive=Archive(name="x", embedder=huge))),
            "archive.embedder",
        ),
        (
            archival.passages.UpdatePassage(
                UpdatePassageRequest(passage=Passage(id=kept, text=huge), update_mask=FieldMask(paths=["text"]))
            ),
            "passage.text",
        ),
    ]
    for call, field in calls:
        error = await catch_refusal(call)
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.field or "").endswith(field)
    over = InsertPassagesRequest(archive_id=archive, passages=[Passage(text="x" * 999_999)] * 70)
    assert (await catch_refusal(archival.passages.InsertPassages(over))).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await archival.texts(limit=100) == ["kept"]
    assert (await archival.summary(agent)).passage_count == 1


async def test_invalid_passage_in_a_batch_does_not_affect_the_others(archival: ArchivalServer, agent: str) -> None:
    huge = Passage(text="x" * 10_000_000)
    results = (await archival.insert(agent, "first", huge, Passage(text="nul\0"), "last")).results
    assert [bool(result.failure.reason) for result in results] == [False, True, True, False]
    assert sorted(await archival.texts()) == ["first", "last"]
    assert (await archival.summary(agent)).passage_count == 2
