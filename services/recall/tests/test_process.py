"""The process: it starts, answers health, survives kill -9 with all that it acknowledged, and stops in order."""

from __future__ import annotations

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
from engram.recall.v1 import contexts_pb2, episodes_service_pb2, episodes_service_pb2_grpc, traces_service_pb2
from engram.recall.v1 import messages_service_pb2 as rpc
from engram.recall.v1.messages_service_pb2_grpc import MessageServiceStub
from engram.recall.v1.traces_service_pb2_grpc import TraceServiceStub
from engram.types.v1 import message_pb2 as pb
from engram_kit.channels import Channels
from engram_kit.errors import EngramError
from engram_kit.ids import new_id
from engram_retrieval.registry import HASHING
from grpc_health.v1 import health_pb2, health_pb2_grpc


@asynccontextmanager
async def process(data_dir: Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = {"ENGRAM_RECALL_PORT": "0", "ENGRAM_DATA_DIR": str(data_dir), "ENGRAM_EMBEDDER": HASHING, **env}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engram_recall", env={**os.environ, **settings}, stderr=asyncio.subprocess.PIPE
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


async def refusal(data_dir: Path, **env: str) -> str:
    async with process(data_dir, **env) as running:
        _, errors = await running.communicate()
        assert running.returncode == 2
        lines = errors.decode().splitlines()
        assert len(lines) == 1, lines
        return lines[0]


def user(text: str) -> pb.Message:
    return pb.Message(id=new_id("message"), role=pb.ROLE_USER, content=[pb.ContentPart(text=pb.TextPart(text=text))])


async def test_it_serves_and_stops_in_order(tmp_path: Path) -> None:
    async with process(tmp_path) as running:
        address = await address_of(running)
        async with grpc.aio.insecure_channel(address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", *(f"engram.recall.v1.{name}Service" for name in ("Message", "Trace", "Episode"))):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            episodes = episodes_service_pb2_grpc.EpisodeServiceStub(channel)
            for call in (
                TraceServiceStub(channel).ListTurns(traces_service_pb2.ListTurnsRequest(), timeout=5),
                episodes.ListEpisodes(episodes_service_pb2.ListEpisodesRequest(), timeout=5),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as unanswered:
                    await call
                assert unanswered.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "another process" in await refusal(tmp_path)
        running.send_signal(signal.SIGTERM)
        assert await running.wait() == 0


async def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path) -> None:
    assert "ENGRAM_EMBEDDER" in await refusal(tmp_path, ENGRAM_EMBEDDER="nobody/knows")
    assert "database" in await refusal(tmp_path, ENGRAM_RECALL_DATABASE_URL="mysql://x/y")


async def test_kill_9_during_commits_loses_and_doubles_nothing(tmp_path: Path) -> None:
    agents = [(new_id("agent"), new_id("conv")) for _ in range(4)]
    lease = contexts_pb2.WriterLease(run_id=new_id("run"), epoch=1)
    sent: dict[str, list[rpc.CommitStepRequest]] = {conversation: [] for _, conversation in agents}
    acknowledged: dict[str, rpc.CommitStepResponse] = {}
    enough = asyncio.Event()

    async def commit_until_it_dies(stub: Any, agent: str, conversation: str) -> None:
        try:
            while True:
                count = len(sent[conversation])
                step = rpc.CommitStepRequest(
                    agent_id=agent,
                    conversation_id=conversation,
                    lease=lease,
                    step_id=new_id("step"),
                    base_version=count + 1,
                    messages=[user(f"giraffe {count}"), user("b")],
                )
                sent[conversation].append(step)
                acknowledged[step.step_id] = await stub.CommitStep(step)
                if len(acknowledged) >= 60:
                    enough.set()
        except (grpc.aio.AioRpcError, EngramError):
            return

    first = Channels(deadline=3.0)
    async with process(tmp_path) as running:
        stub: Any = MessageServiceStub(first.channel(await address_of(running)))
        for agent, conversation in agents:
            system = pb.Message(id=new_id("message"), role=pb.ROLE_SYSTEM)
            await stub.CreateContext(
                rpc.CreateContextRequest(agent_id=agent, conversation_id=conversation, messages=[system])
            )
        writers = [asyncio.create_task(commit_until_it_dies(stub, *pair)) for pair in agents]
        await enough.wait()
        running.kill()
        await running.wait()
        await asyncio.gather(*writers)
    await first.close()

    second = Channels()
    async with process(tmp_path) as running:
        stub = MessageServiceStub(second.channel(await address_of(running)))
        for agent, conversation in agents:
            for step in sent[conversation]:
                again = await stub.CommitStep(step)
                if step.step_id in acknowledged:
                    assert again.replayed
                    assert again.sequence_ids == acknowledged[step.step_id].sequence_ids
            window = (await stub.GetContext(rpc.GetContextRequest(conversation_id=conversation))).context
            expected = [message.id for step in sent[conversation] for message in step.messages]
            assert [message.id for message in window.messages[1:]] == expected
            assert [message.sequence_id for message in window.messages] == list(range(1, len(expected) + 2))
            query = rpc.SearchMessagesRequest(
                query="giraffe", agent_id=agent, limit=100, mode=rpc.SEARCH_MODE_TEXT, roles=[pb.ROLE_USER]
            )
            hits = {hit.message.id for hit in (await stub.SearchMessages(query)).hits}
            assert {step.messages[0].id for step in sent[conversation]} <= hits
    await second.close()
