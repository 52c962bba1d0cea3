"""No call reads a whole table, and none reads more rows because other archives have more."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from mnemesh.archival.v1 import archives_service_pb2 as registry
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.types.v1.paging_pb2 import SORT_ORDER_ASCENDING
from mnemesh_archival.config import Config
from mnemesh_kit.ids import derive_id
from mnemesh_testkit.databases.query_plans import PlannedEngine, Watch, grown, seen

from .conftest import ArchivalServer

EACH: Final = 40
FEW, MANY = 3, 40
"""The number of archives when a call is measured first and second."""
TABLES: Final = ("passages", "archives", "archive_agents", "archive_tags", "agents", "request_ledger")
COLOURS: Final = ["red", "green", "blue", "yellow", "black", "white", "brown", "orange", "purple", "grey"]
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)

_ARCHIVE_IDS: Final[dict[str, str]] = {}

Call = Callable[[ArchivalServer], Awaitable[Any]]


def agent(number: int) -> str:
    return derive_id("agent", str(number))


def archive(number: int | str) -> str:
    """Returns the id of an archive; the service derives it from the request that creates it."""
    return _ARCHIVE_IDS[str(number)]


def passage(number: int, index: int) -> str:
    return derive_id("passage", str(number), str(index))


def written(number: int, index: int) -> Passage:
    """Returns the passage at a position in an archive."""
    text = f"{COLOURS[index % 10]} thing {index} of number{number}, seen with {COLOURS[(index * 3) % 10]} eyes"
    created = Passage(id=passage(number, index), text=text, tags=[COLOURS[index % 10], "thing"])
    created.create_time.FromDatetime(BEGAN + timedelta(days=number, minutes=index))
    return created


async def fill(archival: ArchivalServer, numbers: range) -> None:
    for number in numbers:
        _ARCHIVE_IDS[str(number)] = await archival.archive(agent(number), name=f"archive {number}")
        await archival.insert(archive(number), *(written(number, index) for index in range(EACH)))


def listing(**which: Any) -> Call:
    request = rpc.ListPassagesRequest(page_size=5, order=SORT_ORDER_ASCENDING, after_id=passage(1, EACH // 2))
    request.filter.CopyFrom(rpc.PassageFilter(**which))
    return lambda archival: archival.passages.ListPassages(request)


def searching(query: str, mode: int = rpc.PASSAGE_SEARCH_MODE_HYBRID, **which: Any) -> Call:
    request = rpc.SearchPassagesRequest(query=query, limit=5, filter=rpc.PassageFilter(**which))
    request.mode = rpc.PassageSearchMode.ValueType(mode)
    return lambda archival: archival.passages.SearchPassages(request)


def reads() -> dict[str, Call]:
    """Returns every kind of read."""
    return {
        "GetArchive": lambda archival: archival.archives.GetArchive(registry.GetArchiveRequest(archive_id=archive(1))),
        "ListArchives": lambda archival: archival.archives.ListArchives(
            registry.ListArchivesRequest(page_size=3, after_id=archive(1), order=SORT_ORDER_ASCENDING)
        ),
        "ListArchives by name": lambda archival: archival.archives.ListArchives(
            registry.ListArchivesRequest(
                page_size=3, order_by=registry.ARCHIVE_ORDER_BY_NAME, order=SORT_ORDER_ASCENDING
            )
        ),
        "ListArchives of an agent": lambda archival: archival.archives.ListArchives(
            registry.ListArchivesRequest(page_size=3, filter=registry.ArchiveFilter(agent_id=agent(1)))
        ),
        "CountArchives of an agent": lambda archival: archival.archives.CountArchives(
            registry.CountArchivesRequest(filter=registry.ArchiveFilter(agent_id=agent(1)))
        ),
        "ListArchiveAgents": lambda archival: archival.archives.ListArchiveAgents(
            registry.ListArchiveAgentsRequest(page_size=3, archive_id=archive(1))
        ),
        "GetPassage": lambda archival: archival.passages.GetPassage(rpc.GetPassageRequest(passage_id=passage(1, 5))),
        "GetArchivalSummary": lambda archival: archival.summary(agent(1)),
        "ListPassages of an archive": listing(archive_id=archive(1)),
        "ListPassages of an agent": listing(agent_id=agent(1)),
        "Search of an archive, words": searching("red thing 7", rpc.PASSAGE_SEARCH_MODE_TEXT, archive_id=archive(1)),
        "Search of an archive, meaning": searching("red thing", rpc.PASSAGE_SEARCH_MODE_VECTOR, archive_id=archive(1)),
        "Search of an archive, both": searching("red thing 7", archive_id=archive(1)),
        "Search of an archive, tags and time": searching(
            "thing", archive_id=archive(1), tags=["red"], start_date="2026-01-02", end_date="2026-01-02"
        ),
        "Search of an archive, the newest": searching("", archive_id=archive(1)),
        "Search of an agent": searching("red thing 7", agent_id=agent(1)),
        "Search of the organization, a rare word": searching("number1", rpc.PASSAGE_SEARCH_MODE_TEXT),
    }


OF_ALL_ARCHIVES: Final = ("Search of the organization, a rare word",)
"""These calls read the counters of all archives, but no passage."""


class Writes:
    """Mutations, each of another passage, so that they can be repeated."""

    def __init__(self) -> None:
        self.index = 0

    def next(self) -> dict[str, Call]:
        """Returns every kind of mutation."""
        self.index += 1
        index, name = self.index, f"write {self.index}"

        def update(field: str, **fields: Any) -> Call:
            request = rpc.UpdatePassageRequest(passage=Passage(id=passage(1, index), **fields))
            request.update_mask.paths.append(field)
            return lambda archival: archival.passages.UpdatePassage(request)

        def rename(archival: ArchivalServer) -> Awaitable[Any]:
            request = registry.UpdateArchiveRequest(archive=Archive(id=archive(1), name=name))
            request.update_mask.paths.append("name")
            return archival.archives.UpdateArchive(request)  # type: ignore[no-any-return]

        def delete(archival: ArchivalServer) -> Awaitable[Any]:
            return archival.passages.DeletePassage(rpc.DeletePassageRequest(passage_id=passage(1, 20 + index)))  # type: ignore[no-any-return]

        attachment = {"agent_id": agent(800 + index), "archive_id": archive(1)}
        return {
            "InsertPassages": lambda archival: archival.insert(archive(1), "one more", request_id=name),
            "InsertPassages again": lambda archival: archival.insert(archive(1), "one more", request_id=name),
            "InsertPassages of an agent": lambda archival: archival.insert(agent(2), "one more"),
            "InsertPassages of a new agent": lambda archival: archival.insert(agent(900 + index), "the first"),
            "UpdatePassage, its text": update("text", text=f"changed {index}"),
            "UpdatePassage, its tags": update("tags", tags=["other"]),
            "DeletePassage": delete,
            "UpdateArchive": rename,
            "AttachArchive": lambda archival: archival.archives.AttachArchive(
                registry.AttachArchiveRequest(**attachment)
            ),
            "DetachArchive": lambda archival: archival.archives.DetachArchive(
                registry.DetachArchiveRequest(**attachment)
            ),
            "EraseAgent": lambda archival: archival.passages.EraseAgent(
                rpc.EraseAgentRequest(agent_id=agent(900 + index))
            ),
            "DeleteArchive": lambda archival: archival.archives.DeleteArchive(
                registry.DeleteArchiveRequest(archive_id=archive(name))
            ),
        }

    async def prepare(self, archival: ArchivalServer) -> None:
        """Creates the rows that the next calls delete."""
        name = f"write {self.index + 1}"
        _ARCHIVE_IDS[name] = await archival.archive(name="soon gone")
        await archival.insert(archive(name), "soon gone")


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> PlannedEngine:
    if request.param == "sqlite":
        return PlannedEngine("mnemesh_archival", f"sqlite:///{tmp_path / 'archival.db'}", slack=2_000)
    return PlannedEngine("mnemesh_archival", str(request.getfixturevalue("postgres_url")), slack=300)


async def watched_twice(engine: PlannedEngine, tmp_path: Path) -> tuple[dict[str, Watch], dict[str, Watch]]:
    """Every call among few archives and among many."""
    await engine.prepare()
    archival = ArchivalServer(
        Config(port=0, data_dir=str(tmp_path), database_url=engine.url, embedder="mnemesh/hashing-256")
    )
    await archival.start()
    writes, found = Writes(), []
    try:
        for numbers in (range(FEW), range(FEW, MANY)):
            await fill(archival, numbers)
            await writes.prepare(archival)
            await archival.indexed()  # a search reads the changes that the index does not have yet
            await engine.analyze()
            calls = {**reads(), **writes.next()}
            found.append({name: await seen(lambda call=call: call(archival)) for name, call in calls.items()})  # type: ignore[misc]
    finally:
        await archival.channels.close()
        await archival.stop()
    few, many = found
    return few, many


async def test_cost_of_calls_does_not_grow_with_other_archives(engine: PlannedEngine, tmp_path: Path) -> None:
    few, many = await watched_twice(engine, tmp_path)
    problems = grown(few, many, TABLES, engine.slack, more_than=FEW * EACH)
    found = [problem for problem in problems if not problem.startswith(OF_ALL_ARCHIVES)]
    assert not found, "\n".join(found)
    assert not [scan for name in OF_ALL_ARCHIVES for scan in many[name].scanned(["passages"], FEW * EACH)]


@pytest.mark.full
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_missing_indexes_are_found(engine: PlannedEngine, tmp_path: Path) -> None:
    await engine.execute(*(f"DROP INDEX passages_by_{of}" for of in ("position", "time", "content")))
    few, many = await watched_twice(engine, tmp_path)
    assert grown(few, many, TABLES, engine.slack, more_than=FEW * EACH)
