"""The process starts, reports its health, survives kill -9 with every acknowledged write, and stops cleanly."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mnemesh.recall.v1 import contexts_pb2, episodes_service_pb2, episodes_service_pb2_grpc, traces_service_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from mnemesh.recall.v1.traces_service_pb2_grpc import TraceServiceStub
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.channels import Channels
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id
from mnemesh_recall.main import main
from mnemesh_retrieval.registry import HASHING
from mnemesh_testkit.mesh.command_line import run_service
from mnemesh_testkit.timeouts import scaled


@asynccontextmanager
async def process(data_dir: Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = {"MNEMESH_RECALL_PORT": "0", "MNEMESH_DATA_DIR": str(data_dir), "MNEMESH_EMBEDDER": HASHING, **env}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mnemesh_recall", env={**os.environ, **settings}, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def address_of(running: asyncio.subprocess.Process) -> str:
    assert running.stderr is not None
    async for line in running.stderr:
        event = json.loads(line)
        if event["event"] == "listening":
            return str(event["address"])
    raise AssertionError("the process ended before it listened")


def refusal(capfd: pytest.CaptureFixture[str], data_dir: Path, **env: str) -> str:
    """Returns the only line of a program that cannot start. It runs in this process: its start takes a second."""
    settings = {"MNEMESH_RECALL_PORT": "0", "MNEMESH_DATA_DIR": str(data_dir), "MNEMESH_EMBEDDER": HASHING, **env}
    assert run_service(main, environment={**os.environ, **settings}) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def user(text: str) -> pb.Message:
    return pb.Message(id=new_id("message"), role=pb.ROLE_USER, content=[pb.ContentPart(text=pb.TextPart(text=text))])


@pytest.mark.full
async def test_process_serves_and_stops_cleanly(tmp_path: Path) -> None:
    async with process(tmp_path) as running:
        address = await address_of(running)
        async with grpc.aio.insecure_channel(address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", *(f"mnemesh.recall.v1.{name}Service" for name in ("Message", "Trace", "Episode"))):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=scaled(5))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            episodes = episodes_service_pb2_grpc.EpisodeServiceStub(channel)
            assert not (
                await episodes.ListEpisodes(episodes_service_pb2.ListEpisodesRequest(), timeout=scaled(5))
            ).episodes
            turns = TraceServiceStub(channel).ListTurns
            assert not (
                await turns(traces_service_pb2.ListTurnsRequest(agent_id=new_id("agent")), timeout=scaled(5))
            ).turns
        async with process(tmp_path) as second:
            _, errors = await second.communicate()
        assert second.returncode == 2
        assert (b"another process" in errors, len(errors.splitlines())) == (True, 1), errors
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0


def test_startup_error_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "MNEMESH_EMBEDDER" in refusal(capfd, tmp_path, MNEMESH_EMBEDDER="unknown/model")
    assert "database" in refusal(capfd, tmp_path, MNEMESH_RECALL_DATABASE_URL="mysql://x/y")


class Writer:
    """The writer of one conversation, which repeats writes that were not acknowledged."""

    def __init__(self, agent: str) -> None:
        self.agent, self.conversation = agent, new_id("conv")
        self.steps: list[rpc.CommitStepRequest] = []
        self.answers: dict[str, rpc.CommitStepResponse] = {}

    async def create(self, stub: Any) -> None:
        system = pb.Message(id=new_id("message"), role=pb.ROLE_SYSTEM)
        await stub.CreateContext(
            rpc.CreateContextRequest(agent_id=self.agent, conversation_id=self.conversation, messages=[system])
        )

    async def write_until_it_dies(self, stub: Any, written: asyncio.Event, enough: int) -> None:
        done = 0
        try:
            for step in self.steps:
                again = await stub.CommitStep(step)
                if step.step_id in self.answers:
                    assert again.replayed
                    assert again.sequence_ids == self.answers[step.step_id].sequence_ids
                self.answers[step.step_id] = again
            while True:
                step = self._next()
                self.steps.append(step)
                self.answers[step.step_id] = await stub.CommitStep(step)
                done += 1
                if done == enough:
                    written.set()
        except (grpc.aio.AioRpcError, MnemeshError):
            return

    def _next(self) -> rpc.CommitStepRequest:
        number = len(self.steps)
        return rpc.CommitStepRequest(
            agent_id=self.agent,
            conversation_id=self.conversation,
            lease=LEASE,
            step_id=new_id("step"),
            base_version=number + 1,
            messages=[user(f"giraffe {number}"), user("b")],
        )


LEASE = contexts_pb2.WriterLease(run_id=new_id("run"), epoch=1)


@pytest.mark.full
async def test_kill_9_with_16_writers_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    agents = [new_id("agent") for _ in range(4)]
    writers = [Writer(agent) for agent in agents for _ in range(4)]
    for turn in range(3):
        channels = Channels(deadline=scaled(20))
        async with process(tmp_path) as running:
            stub: Any = MessageServiceStub(channels.channel(await address_of(running)))
            if turn == 0:
                await asyncio.gather(*(writer.create(stub) for writer in writers))
            written = asyncio.Event()
            tasks = [asyncio.create_task(writer.write_until_it_dies(stub, written, 6)) for writer in writers]
            await written.wait()
            running.kill()
            await running.wait()
            await asyncio.gather(*tasks)
        await channels.close()

    channels = Channels(deadline=scaled(60))
    async with process(tmp_path) as running:
        stub = MessageServiceStub(channels.channel(await address_of(running)))
        for writer in writers:
            for step in writer.steps:
                again = await stub.CommitStep(step)
                if step.step_id in writer.answers:
                    assert again.replayed
                    assert again.sequence_ids == writer.answers[step.step_id].sequence_ids
            window = (await stub.GetContext(rpc.GetContextRequest(conversation_id=writer.conversation))).context
            expected = [message.id for step in writer.steps for message in step.messages]
            assert [message.id for message in window.messages[1:]] == expected
            numbers = [message.sequence_id for message in window.messages]
            assert numbers == sorted(set(numbers))
            assert window.version == len(writer.steps) + 1
        for agent in agents:
            await _nothing_is_missing(stub, agent, [writer for writer in writers if writer.agent == agent])
    await channels.close()


async def _nothing_is_missing(stub: Any, agent: str, writers: list[Writer]) -> None:
    """Checks that sequence ids have no gap and that both indexes find every message."""
    rows: list[pb.Message] = []
    token = ""
    while not rows or token:
        page = await stub.ListMessages(rpc.ListMessagesRequest(agent_ids=[agent], page_size=1000, page_token=token))
        rows += page.messages
        token = page.next_page_token
    assert [row.sequence_id for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) == sum(1 + 2 * len(writer.steps) for writer in writers)
    for writer in writers:
        last = writer.steps[-1].messages[0]
        query = rpc.SearchMessagesRequest(
            query=last.content[0].text.text, agent_id=agent, limit=100, mode=rpc.SEARCH_MODE_TEXT
        )
        assert last.id in {hit.message.id for hit in (await stub.SearchMessages(query)).hits}
        query.mode = rpc.SEARCH_MODE_VECTOR
        async with asyncio.timeout(scaled(60)):
            while last.id not in {hit.message.id for hit in (await stub.SearchMessages(query)).hits}:
                pass
