"""Requests that no generated client would send: bytes that are no message, tokens that somebody made up, huge texts."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import grpc
import pytest
from engram.archival.v1 import archives_service_pb2, passages_service_pb2
from engram.archival.v1.archives_pb2 import Archive, Passage
from engram.archival.v1.archives_service_pb2 import CreateArchiveRequest, ListArchiveAgentsRequest, ListArchivesRequest
from engram.archival.v1.passages_service_pb2 import (
    InsertPassagesRequest,
    ListPassagesRequest,
    PassageFilter,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from engram.types.v1.paging_pb2 import SORT_ORDER_ASCENDING, SORT_ORDER_DESCENDING
from engram_kit.errors import EngramError
from engram_kit.ids import new_id
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Room

SERVICES = (
    archives_service_pb2.DESCRIPTOR.services_by_name["ArchiveService"],
    passages_service_pb2.DESCRIPTOR.services_by_name["PassageService"],
)
METHODS = [method for service in SERVICES for method in service.methods]
REFUSALS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
RAW: Any = {"request_serializer": bytes, "response_deserializer": bytes}


async def status(room: Room, method: MethodDescriptor, raw: bytes) -> grpc.StatusCode:
    """How the server answers these very bytes."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    async with grpc.aio.insecure_channel(room.address) as channel:
        call = channel.unary_unary(path, **RAW)(raw)
        code = await call.code()
    assert isinstance(code, grpc.StatusCode)
    return code


def with_invalid_utf8(message: Descriptor, depth: int = 3) -> list[bytes]:
    """A message for each string in it, on every level, where that string is no UTF-8."""
    made: list[bytes] = []
    for field in message.fields:
        key = bytes([field.number << 3 | 2]) if field.number < 16 else _varint(field.number << 3 | 2)
        if field.type == FieldDescriptor.TYPE_STRING:
            made.append(key + b"\x04a\xff\xfe\x80")
        elif field.type == FieldDescriptor.TYPE_MESSAGE and depth:
            made += [key + _varint(len(inner)) + inner for inner in with_invalid_utf8(field.message_type, depth - 1)]
    return made


@st.composite
def hostile(draw: st.DrawFn, message: Descriptor, archive: str, depth: int = 3) -> Message:
    """A message of that type with any values anywhere; ids are well-formed now and then, and one of them exists."""
    made = message_factory.GetMessageClass(message)()
    for field in message.fields:
        if draw(st.integers(0, 3)) == 0:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth:
                inner = draw(hostile(field.message_type, archive, depth - 1))
                target = getattr(made, field.name)
                target.add().CopyFrom(inner) if field.is_repeated else target.CopyFrom(inner)
            continue
        value = draw(_VALUES[field.cpp_type].map(lambda given: archive if given == ARCHIVE else given))
        if field.is_repeated:
            getattr(made, field.name).append(value)
        else:
            setattr(made, field.name, value)
    return made


ARCHIVE = "the archive that exists"
_TEXTS = st.one_of(
    st.sampled_from(
        [ARCHIVE, "", " ", "\0", "a\0b", "\x1b[31m", "'; DROP TABLE archives; --", "%_\\", "𝕏" * 300, "🌳"]
    ),
    st.sampled_from(["9999-12-31", "0001-01-01T00:00", "2026-02-30", "Asia/Tokyo", "{}", '{"a":1e999}', "[" * 5000]),
    st.sampled_from(["text", "embedder", "name", "engram/hashing-256", "engram/nonsense", "acme/embed", "x" * 100_001]),
    st.sampled_from(["agent", "archive", "passage", "file", "source"]).map(new_id),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
_VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: _TEXTS,
    FieldDescriptor.CPPTYPE_INT32: st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-1, 3)),
    FieldDescriptor.CPPTYPE_INT64: st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-1, 3)),
    FieldDescriptor.CPPTYPE_ENUM: st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-1, 5)),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
}


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_bytes_that_are_no_message_are_the_callers_mistake(room: Room, method: MethodDescriptor) -> None:
    dice = random.Random(method.name)
    garbage = [dice.randbytes(dice.randint(1, 60)) for _ in range(25)]
    for raw in [*with_invalid_utf8(method.input_type), *garbage]:
        assert await status(room, method, raw) in REFUSALS, raw
    for raw in with_invalid_utf8(method.input_type):
        assert await status(room, method, raw) == grpc.StatusCode.INVALID_ARGUMENT, raw


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_every_method_takes_anything(room: Room, method: MethodDescriptor) -> None:
    archive = await room.archive()
    await room.insert(archive, "there before")
    requests: list[Message] = []

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(hostile(method.input_type, archive))
    def collect(request: Message) -> None:
        requests.append(request)

    collect()
    for request in requests:
        outcome = await status(room, method, request.SerializeToString())
        assert outcome in REFUSALS | {grpc.StatusCode.ALREADY_EXISTS}, (outcome, request)
    counted = sum(each.passage_count for each in (await room.archives.ListArchives(ListArchivesRequest())).archives)
    listed = await room.passages.ListPassages(ListPassagesRequest(page_size=1000))
    assert len(listed.passages) == counted, "something is half written"


async def outcome_of(call: Any, request: Message) -> grpc.StatusCode:
    try:
        await call(request)
    except EngramError as error:
        return error.code
    return grpc.StatusCode.OK


async def refused(call: Any) -> EngramError:
    with pytest.raises(EngramError) as error:
        await call
    return error.value


def forged(token: str, **changed: Any) -> list[str]:
    """Tokens like a true one, with another value or id in the place of its own."""
    decoded = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    tokens = []
    for place, value in ((1, changed.get("value")), (2, changed.get("id"))):
        for put in (None, 7, 1e300, True, "", "x", "9999-12-31T23:59:59", "\u0000", [], {}, value, "9" * 5000):
            copy = list(decoded)
            copy[place] = put
            tokens.append(base64.urlsafe_b64encode(json.dumps(copy).encode()).decode().rstrip("="))
    return tokens


async def test_tokens_of_others_and_made_up_ones(room: Room, agent: str) -> None:
    archives = [await room.archive(agent, new_id("agent"), name=f"n{n}") for n in range(3)]
    await room.insert(archives[0], "a", "b", "c")
    mine = PassageFilter(archive_id=archives[0])
    lists: list[tuple[Any, Any]] = [
        (room.passages.ListPassages, ListPassagesRequest(page_size=1, filter=mine)),
        (room.archives.ListArchives, ListArchivesRequest(page_size=1)),
        (room.archives.ListArchives, ListArchivesRequest(page_size=1, order_by=2)),  # type: ignore[arg-type]
        (room.archives.ListArchiveAgents, ListArchiveAgentsRequest(page_size=1, archive_id=archives[0])),
    ]
    tokens = [(await call(request)).next_page_token for call, request in lists]
    assert all(tokens)
    for place, (call, request) in enumerate(lists):
        for other, token in enumerate(tokens):
            foreign = type(request)()
            foreign.CopyFrom(request)
            foreign.page_token = token
            if other == place:
                await call(foreign)
            else:
                assert (await refused(call(foreign))).reason == "PAGE_TOKEN_INVALID"
        for token in forged(tokens[place]):
            foreign.page_token = token
            outcome = await outcome_of(call, foreign)
            assert outcome in REFUSALS, (outcome, token)


async def test_the_ends_of_time(room: Room, agent: str) -> None:
    first, last = Timestamp(seconds=-62135596800), Timestamp(seconds=253402300799, nanos=999999000)
    drafts = [Passage(text=name, create_time=at) for name, at in (("a", first), ("b", last), ("c", last))]
    await room.insert(agent, *drafts, Passage(text="now"))
    for order in (SORT_ORDER_ASCENDING, SORT_ORDER_DESCENDING):
        seen: list[str] = []
        token = ""
        while True:
            request = ListPassagesRequest(page_size=1, page_token=token, order=order)
            page = await room.passages.ListPassages(request)
            seen += [passage.text for passage in page.passages]
            token = page.next_page_token
            if not token:
                break
        assert sorted(seen) == ["a", "b", "c", "now"]
        assert (seen[0] == "a") == (order == SORT_ORDER_ASCENDING)
    assert await room.texts(filter=PassageFilter(start_date="9999-12-31", end_date="9999-12-31T12:00")) == []


async def test_ten_megabytes_of_text(room: Room, agent: str) -> None:
    huge = "x" * 10_000_000
    archive = await room.archive(agent)
    kept = await room.one(archive, "kept")
    calls: list[tuple[Any, str]] = [
        (
            room.passages.InsertPassages(InsertPassagesRequest(archive_id=archive, passages=[Passage(text=huge)])),
            ".text",
        ),
        (room.passages.SearchPassages(SearchPassagesRequest(query=huge)), "query"),
        (room.passages.ListPassages(ListPassagesRequest(text_search=huge)), "text_search"),
        (room.passages.ListPassages(ListPassagesRequest(page_token=huge)), "page_token"),
        (
            room.passages.SearchPassages(SearchPassagesRequest(query="x", filter=PassageFilter(tags=[huge]))),
            "filter.tags",
        ),
        (room.archives.CreateArchive(CreateArchiveRequest(archive=Archive(name=huge))), "archive.name"),
        (
            room.archives.CreateArchive(CreateArchiveRequest(archive=Archive(name="x", metadata=huge))),
            "archive.metadata",
        ),
        (
            room.archives.CreateArchive(CreateArchiveRequest(archive=Archive(name="x", embedder=huge))),
            "archive.embedder",
        ),
        (
            room.passages.UpdatePassage(
                UpdatePassageRequest(passage=Passage(id=kept, text=huge), update_mask=FieldMask(paths=["text"]))
            ),
            "passage.text",
        ),
    ]
    for call, field in calls:
        error = await refused(call)
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.field or "").endswith(field)
    over = InsertPassagesRequest(archive_id=archive, passages=[Passage(text="x" * 999_999)] * 70)
    assert (await refused(room.passages.InsertPassages(over))).code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await room.texts(limit=100) == ["kept"]
    assert (await room.summary(agent)).passage_count == 1


async def test_a_bad_passage_in_a_batch_leaves_the_others_whole(room: Room, agent: str) -> None:
    huge = Passage(text="x" * 10_000_000)
    results = (await room.insert(agent, "first", huge, Passage(text="nul\0"), "last")).results
    assert [bool(result.failure.reason) for result in results] == [False, True, True, False]
    assert sorted(await room.texts()) == ["first", "last"]
    assert (await room.summary(agent)).passage_count == 2
