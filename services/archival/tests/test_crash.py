"""A crash between any two steps loses and duplicates nothing."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    DeletePassageRequest,
    InsertPassagesRequest,
    ListPassagesRequest,
    PassageFilter,
    UpdatePassageRequest,
)
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_kit.channels import Channels
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.failpoints import observed_by
from mnemesh_kit.ids import new_id
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import scaled

from .archival_process import Process
from .conftest import ArchivalServer

ROUNDS = 4


class Crash(Exception):
    """Simulates a crash of the process: nothing after it happens."""


def crash_at(name: str) -> Callable[[str], None]:
    """Returns an observer that stops at a failpoint."""

    def observe(reached: str) -> None:
        if reached == name:
            raise Crash

    return observe


INDEX = "passages:mnemesh/hashing-256"


@pytest.mark.parametrize(
    "step", sampled([f"index.before_write:{INDEX}", f"index.before_delete:{INDEX}", "after_commit"], 2)
)
async def test_crash_between_the_commit_and_the_index_loses_nothing(
    archival: ArchivalServer, agent: str, step: str
) -> None:
    kept, changed, deleted = (
        result.passage.id for result in (await archival.insert(agent, "kept", "change me", "delete me")).results
    )
    update = UpdatePassageRequest(passage=Passage(id=changed, text="changed"), update_mask=FieldMask(paths=["text"]))

    def calls() -> dict[str, Coroutine[Any, Any, Any]]:
        return {
            "passages.insert": archival.insert(agent, "inserted", Passage(text="twice", tags=["t"]), request_id="r1"),
            "passages.update": archival.passages.UpdatePassage(update),
            "passages.delete": archival.passages.DeletePassage(DeletePassageRequest(passage_id=deleted)),
        }

    for name, call in calls().items():
        crash = crash_at(f"sql.write.after_commit:{name}" if step == "after_commit" else step)
        with observed_by(crash), suppress(MnemeshError):
            await call
    await archival.stop()
    await archival.start()
    expected = ["changed", "inserted", "kept", "twice"]
    assert sorted(await archival.texts("changed inserted kept twice", mode=PASSAGE_SEARCH_MODE_TEXT)) == expected
    assert sorted(await archival.texts(limit=50, filter=PassageFilter(agent_id=agent))) == expected
    for mode in (PASSAGE_SEARCH_MODE_TEXT, PASSAGE_SEARCH_MODE_VECTOR):
        assert "delete me" not in await archival.texts("change delete me", mode=mode)
    again = await archival.insert(agent, "inserted", Passage(text="twice", tags=["t"]), request_id="r1")
    assert [result.passage.text for result in again.results] == ["inserted", "twice"]
    summary = await archival.summary(agent)
    assert (summary.passage_count, list(summary.tags)) == (4, ["t"])
    assert kept


@pytest.mark.full
async def test_sigkill_under_load_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    service, channels, agent = Process(tmp_path), Channels(deadline=scaled(5)), new_id("agent")
    await service.start()
    live: set[str] = set()
    deleted: set[str] = set()

    async def until_done(call: object, request: object) -> object:
        while True:
            with suppress(MnemeshError):
                return await call(request)  # type: ignore[operator]
            await asyncio.sleep(0)

    async def write(writer: int, passages: PassageServiceStub, stopped: asyncio.Event) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            name = f"{new_id('run')}/{writer}/{number}"
            request = InsertPassagesRequest(
                agent_id=agent, request_id=name, passages=[Passage(text=f"{name}/{n}", tags=["all"]) for n in range(2)]
            )
            answer = await until_done(passages.InsertPassages, request)
            ids = [result.passage.id for result in answer.results]  # type: ignore[attr-defined]
            live.update(ids)
            if number % 2:
                live.discard(ids[0])
                deleted.add(ids[0])
                deletion = DeletePassageRequest(passage_id=ids[0], request_id=f"{name}/delete")
                await until_done(passages.DeletePassage, deletion)

    for _ in range(ROUNDS):
        stopped = asyncio.Event()
        passages = PassageServiceStub(channels.channel(service.address))
        writers = [asyncio.create_task(write(n, passages, stopped)) for n in range(4)]
        target = len(live) + random.randint(20, 60)
        async with asyncio.timeout(scaled(60)):
            while len(live) < target:
                await asyncio.sleep(0.005)
        assert await service.end(signal.SIGKILL) == -signal.SIGKILL
        await service.start()
        stopped.set()
        await asyncio.wait_for(asyncio.gather(*writers), 60)

    archival = ArchivalServer(config=None, channels=channels)  # type: ignore[arg-type]
    archival.passages = PassageServiceStub(channels.channel(service.address))
    archival.archives = ArchiveServiceStub(channels.channel(service.address))
    seen: list[str] = []
    token = ""
    while True:
        page = await archival.passages.ListPassages(
            ListPassagesRequest(page_size=200, page_token=token, filter=PassageFilter(agent_id=agent))
        )
        seen += [passage.id for passage in page.passages]
        token = page.next_page_token
        if not token:
            break
    assert sorted(seen) == sorted(live)
    assert not deleted & set(seen)
    summary = await archival.summary(agent)
    assert (summary.passage_count, list(summary.tags)) == (len(live), ["all"])
    await channels.close()
    assert await service.end(signal.SIGTERM) == 0


@pytest.mark.full
async def test_second_process_on_the_same_directory_fails_with_one_line(tmp_path: Path) -> None:
    service = Process(tmp_path)
    await service.start()
    second = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mnemesh_archival",
        env={**os.environ, "MNEMESH_DATA_DIR": str(tmp_path), "MNEMESH_ARCHIVAL_PORT": "0"},
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    _, stderr = await second.communicate()
    assert second.returncode == 2
    assert len(stderr.decode().strip().splitlines()) == 1
    assert "in use by another process" in stderr.decode()
    assert await service.end(signal.SIGTERM) == 0
