"""Bad requests are refused with an error that names the field, and never with INTERNAL."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import (
    AttachArchiveRequest,
    CreateArchiveRequest,
    GetArchiveRequest,
    ListArchivesRequest,
    UpdateArchiveRequest,
)
from mnemesh.archival.v1.embeddings_service_pb2 import EmbedTextsRequest
from mnemesh.archival.v1.passages_service_pb2 import (
    TAG_MATCH_ALL,
    DeletePassageRequest,
    GetArchivalSummaryRequest,
    GetPassageRequest,
    InsertPassagesRequest,
    ListPassagesRequest,
    PassageFilter,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from mnemesh_archival.config import Config
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.ids import new_id

from .conftest import ArchivalServer, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
AGENT, ARCHIVE, PASSAGE = new_id("agent"), new_id("archive"), new_id("passage")
EXPECTED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def archival(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ArchivalServer]:
    """One server for all requests, which change nothing. Validation does not depend on the database."""
    directory = str(tmp_path_factory.mktemp("archival"))
    async with serving(Config(port=0, data_dir=directory, embedder="mnemesh/hashing-256", log_level="error")) as server:
        yield server


def insert(*passages: Passage, **target: str) -> InsertPassagesRequest:
    return InsertPassagesRequest(passages=passages, **(target or {"agent_id": AGENT}))


def search(**which: Any) -> SearchPassagesRequest:
    return SearchPassagesRequest(query="x", filter=PassageFilter(**which))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (insert(), "passages"),
        (InsertPassagesRequest(passages=[Passage(text="x")]), "target"),
        (insert(Passage(text="x"), agent_id="agent-1"), "agent_id"),
        (insert(Passage(text="x"), archive_id=AGENT), "archive_id"),
        (insert(*[Passage(text="x")] * 1001), "passages"),
        (insert(Passage(text="")), "passages[0].text"),
        (insert(Passage(text=" \n\t")), "passages[0].text"),
        (insert(Passage(text="a\0b")), "passages[0].text"),
        (insert(Passage(text="é" * 500_001)), "passages[0].text"),
        (insert(Passage(text="x", id="passage-7")), "passages[0].id"),
        (insert(Passage(text="x", tags=[""])), "passages[0].tags"),
        (insert(Passage(text="x", tags=["a\nb"])), "passages[0].tags"),
        (insert(Passage(text="x", tags=["y" * 201])), "passages[0].tags"),
        (insert(Passage(text="x", tags=[str(n) for n in range(101)])), "passages[0].tags"),
        (insert(Passage(text="x", metadata="[1]")), "passages[0].metadata"),
        (insert(Passage(text="x", metadata="{")), "passages[0].metadata"),
        (insert(Passage(text="x", source=99)), "passages[0].source"),  # type: ignore[arg-type]
        (insert(Passage(text="x", file_id="file-x")), "passages[0].file_id"),
        (insert(Passage(text="x", create_time=Timestamp(seconds=2**60))), "passages[0].create_time"),
        (SearchPassagesRequest(query="x" * 10_001), "query"),
        (SearchPassagesRequest(query="a\0"), "query"),
        (SearchPassagesRequest(query="x", limit=-1), "limit"),
        (SearchPassagesRequest(query="x", limit=101), "limit"),
        (SearchPassagesRequest(query="x", mode=9), "mode"),  # type: ignore[arg-type]
        (search(tag_match=7), "filter.tag_match"),
        (search(tags=[f"t{n}" for n in range(101)], tag_match=TAG_MATCH_ALL), "filter.tags"),
        (SearchPassagesRequest(query="x", page_token="garbage"), "page_token"),
        (SearchPassagesRequest(query="x", further_queries=["x"] * 10), "further_queries"),
        (SearchPassagesRequest(query="x", further_queries=["x", "x" * 10_001]), "further_queries[1]"),
        (SearchPassagesRequest(query="x", further_queries=["\0"]), "further_queries[0]"),
        (SearchPassagesRequest(query="x", passages_before=-1), "passages_before"),
        (SearchPassagesRequest(query="x", passages_after=11), "passages_after"),
        (SearchPassagesRequest(query="x", reference_time=Timestamp(nanos=-1)), "reference_time"),
        (SearchPassagesRequest(query="x", filter=PassageFilter(time_zone="Moon/Crater")), "filter.time_zone"),
        (
            InsertPassagesRequest(agent_id=AGENT, passages=[Passage(text="x")], default_embedder="nonsense"),
            "default_embedder",
        ),
        (search(time_zone="Mars/Olympus"), "filter.time_zone"),
        (search(time_zone="../etc/passwd"), "filter.time_zone"),
        (search(time_zone="Europe"), "filter.time_zone"),
        (search(start_date="yesterday"), "filter.start_date"),
        (search(end_date="2026-02-30"), "filter.end_date"),
        (search(start_date="2026-01-02", end_date="2026-01-01"), "filter.end_date"),
        (search(agent_id=""), "filter.agent_id"),
        (search(folder_id="folder-1"), "filter.folder_id"),
        (ListPassagesRequest(page_size=-1), "page_size"),
        (ListPassagesRequest(page_size=1001), "page_size"),
        (ListPassagesRequest(page_token="garbage"), "page_token"),
        (ListPassagesRequest(order_by=5), "order_by"),  # type: ignore[arg-type]
        (GetPassageRequest(), "passage_id"),
        (DeletePassageRequest(passage_id="x"), "passage_id"),
        (UpdatePassageRequest(passage=Passage(id=PASSAGE)), "update_mask"),
        (UpdatePassageRequest(passage=Passage(id=PASSAGE), update_mask=FieldMask(paths=["id"])), "update_mask"),
        (UpdatePassageRequest(passage=Passage(id=PASSAGE), update_mask=FieldMask(paths=["text"])), "passage.text"),
        (GetArchivalSummaryRequest(agent_id="default"), "agent_id"),
        (EmbedTextsRequest(), "texts"),
        (EmbedTextsRequest(texts=["x"] * 2049), "texts"),
        (EmbedTextsRequest(texts=["x" * 1_000_000] * 4), "texts"),
        (EmbedTextsRequest(texts=["x" * 1_000_000] * 5), "texts"),
        (EmbedTextsRequest(texts=["x", "é" * 500_001]), "texts[1]"),
        (EmbedTextsRequest(texts=["a\0b"]), "texts[0]"),
        (EmbedTextsRequest(texts=["x"], embedder="nonsense"), "embedder"),
        (EmbedTextsRequest(texts=["x"], embedder="mnemesh/other"), "embedder"),
        (EmbedTextsRequest(texts=["x"], embedder="a/b\n"), "embedder"),
        (EmbedTextsRequest(texts=["x"], embedder="a/" + "b" * 500), "embedder"),
        (CreateArchiveRequest(), "archive.name"),
        (CreateArchiveRequest(archive=Archive(name="a\x1b[31m")), "archive.name"),
        (CreateArchiveRequest(archive=Archive(name="x", metadata="null")), "archive.metadata"),
        (CreateArchiveRequest(archive=Archive(name="x", description="\0")), "archive.description"),
        (CreateArchiveRequest(archive=Archive(name="x", embedder="nonsense")), "archive.embedder"),
        (CreateArchiveRequest(archive=Archive(name="x"), agent_ids=["agent"]), "agent_ids"),
        (CreateArchiveRequest(archive=Archive(name="x"), request_id="r" * 201), "request_id"),
        (ListArchivesRequest(page_size=-5), "page_size"),
        (ListArchivesRequest(order_by=9), "order_by"),  # type: ignore[arg-type]
        (GetArchiveRequest(archive_id="archive-"), "archive_id"),
        (AttachArchiveRequest(archive_id=ARCHIVE), "agent_id"),
        (UpdateArchiveRequest(archive=Archive(id="x")), "archive.id"),
    ],
)
async def test_error_names_the_bad_field(archival: ArchivalServer, request_: Any, field: str) -> None:
    method = type(request_).__name__.removesuffix("Request")
    stubs = (archival.archives, archival.passages, archival.embeddings)
    stub = next(each for each in stubs if hasattr(each, method))
    with pytest.raises(InvalidArgument) as refused:
        await getattr(stub, method)(request_)
    assert refused.value.field == field
    assert refused.value.message


@pytest.mark.parametrize(
    "filter_",
    [
        PassageFilter(end_date="9999-12-31"),
        PassageFilter(start_date="0001-01-01", time_zone="Asia/Tokyo"),
        PassageFilter(start_date="2026-01-01 10:00", end_date="2026-01-01 11:00:30"),
    ],
)
async def test_extreme_dates_and_dates_with_a_space_are_accepted(
    archival: ArchivalServer, filter_: PassageFilter
) -> None:
    await archival.passages.SearchPassages(SearchPassagesRequest(query="x", filter=filter_))


async def test_unknown_boundary_id_of_a_list_is_not_found(archival: ArchivalServer) -> None:
    with pytest.raises(MnemeshError) as refused:
        await archival.passages.ListPassages(ListPassagesRequest(after_id=PASSAGE))
    assert (refused.value.code, refused.value.metadata["field"]) == (grpc.StatusCode.NOT_FOUND, "after_id")


HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", " ", "\0", "\x1f", "'; DROP TABLE archives; --", "%_\\", "𝕏" * 300, AGENT, ARCHIVE, PASSAGE]),
    st.sampled_from(["2026-13-01", "2026-01-01T25:00", "0000-00-00", "UTC", "{}", '{"a":1}', "passage-\n"]),
).filter(lambda text: text.isprintable() or "\ud800" not in text)
NUMBERS = st.integers(min_value=-(2**31), max_value=2**31 - 1)
PASSAGES = st.builds(
    Passage, text=HOSTILE, tags=st.lists(HOSTILE, max_size=3), metadata=HOSTILE, file_id=HOSTILE, source=NUMBERS
)
FILTERS = st.builds(
    PassageFilter,
    agent_id=st.one_of(st.none(), HOSTILE),
    tags=st.lists(HOSTILE, max_size=3),
    tag_match=st.integers(-1, 4),
    start_date=st.one_of(st.none(), HOSTILE),
    end_date=st.one_of(st.none(), HOSTILE),
    time_zone=st.one_of(st.none(), HOSTILE),
)
REQUESTS = st.one_of(
    st.builds(InsertPassagesRequest, agent_id=HOSTILE, passages=st.lists(PASSAGES, max_size=2), request_id=HOSTILE),
    st.builds(InsertPassagesRequest, archive_id=HOSTILE, passages=st.lists(PASSAGES, max_size=2)),
    st.builds(SearchPassagesRequest, query=HOSTILE, mode=st.integers(-1, 5), limit=NUMBERS, filter=FILTERS),
    st.builds(SearchPassagesRequest, query=HOSTILE, filter=FILTERS),
    st.builds(ListPassagesRequest, page_size=NUMBERS, page_token=HOSTILE, order=NUMBERS, filter=FILTERS),
    st.builds(ListPassagesRequest, text_search=HOSTILE, text_contains=HOSTILE, filter=FILTERS),
    st.builds(CreateArchiveRequest, archive=st.builds(Archive, name=HOSTILE, metadata=HOSTILE, embedder=HOSTILE)),
    st.builds(ListArchivesRequest, page_size=NUMBERS, page_token=HOSTILE, after_id=HOSTILE, order_by=NUMBERS),
)


async def test_invalid_requests_never_cause_an_internal_error(archival: ArchivalServer) -> None:
    hostile: list[Any] = []

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(REQUESTS)
    def collect(request: Any) -> None:
        hostile.append(request)

    collect()
    for request in hostile:
        method = type(request).__name__.removesuffix("Request")
        stub = archival.archives if hasattr(archival.archives, method) else archival.passages
        outcomes: Any = await asyncio.gather(getattr(stub, method)(request), return_exceptions=True)
        refusal = outcomes[0]
        assert not isinstance(refusal, BaseException) or getattr(refusal, "code", "") in EXPECTED, (request, refusal)
