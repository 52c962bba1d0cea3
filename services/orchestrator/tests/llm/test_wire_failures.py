"""The failures of all servers over HTTP, through the real adapters and SDKs, between turns that work."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_orchestrator.llm.port import DEFAULT_LIMITS, MAX_OTHER_FORMS, MAX_UNUSABLE_ANSWERS
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_testkit.fakes.server import Fault, Reply, raw_stream
from mnemesh_testkit.wires import WIRES, Wire

from ..support.world import World, opened, require_valid
from .wire_servers import StrictServer, insert, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "provider_errors.json").read_text())
BY_NAME = {wire.name: wire for wire in WIRES}
SERVERS = {
    **{name: (name,) for name in ("anthropic", "groq", "deepseek", "xai", "mistral", "openrouter", "ollama", "vllm")},
    **{name: (name,) for name in ("llama.cpp", "sglang", "responses")},
    "openai": ("openai", "responses"),
    "azure": ("openai",),
    "bedrock": ("bedrock, anthropic",),
    "google_ai": ("gemini",),
    "lmstudio": ("lm studio",),
    "dashscope": ("qwen",),
    "moonshot": ("kimi",),
}
"""The wires of each vendor. Samples of other vendors are played by a server of no vendor."""
ANY = ("names repeated",)
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
RETRIED = ("ProviderRateLimited", "ProviderUnavailable")
ONCE_MORE = {"ProviderBadAnswer": MAX_UNUSABLE_ANSWERS}
FIRST = (
    Reply(reasoning="A fact.", tool_calls=insert("one")),
    Reply(text="Stored. " * 300),
)
BEFORE = Reply(reasoning="Another.", tool_calls=insert("two"))
SUMMARY, AFTER, LAST = Reply(text="They spoke of facts."), Reply(text="Done."), Reply(text="Still here.")


class FailingServer(StrictServer):
    """Fails the given number of requests before the reply at a place, and plays the others."""

    def __init__(self, wire: Wire, replies: tuple[Reply, ...], place: int, fault: Fault, times: int) -> None:
        super().__init__(wire, replies)
        self.place, self.fault, self.times = place, fault, times
        self.failed = 0

    def __call__(self, body: dict[str, Any]) -> Fault:
        if len(self.sent) == self.place and self.failed < self.times:
            problem = self.wire.problem(body, self.sent)
            self.refusals += [] if problem is None else [problem]
            self.failed += 1
            return self.fault
        return super().__call__(body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One world for all servers, each with an agent of its own."""
    async with opened(tmp_path_factory.mktemp("failures")) as world:
        yield world


def fault_of(sample: dict[str, Any], wire: Wire) -> Fault:
    """Returns a failure as the server sends it: a failed response, or an event of a stream."""
    document, code = sample["body"], sample["status"]
    if code is not None:
        text = document if isinstance(document, str) else json.dumps(document)
        kind = "text/html" if text.startswith("<") else "application/json"
        headers = {"content-type": kind, **sample.get("headers", {})}
        return Fault(kind="body", status=code, body=text.encode(), headers=headers)
    name = "error" if wire.api == "messages" else None
    if wire.api == "responses" and document.get("status") == "failed":
        document = {"type": "response.failed", "response": {"id": "resp_0", "output": [], **document}}
        name = "response.failed"
    return raw_stream(*([f"event: {name}"] if name else []), f"data: {json.dumps(document)}", "")


def cases() -> list[Any]:
    """Returns each sample with each of its wires.

    The first of each kind, API and place runs always, the first of each vendor too with --full, all with --sweep.
    """
    known, found = set[Any](), []
    for number, sample in enumerate(SAMPLES):
        for name in SERVERS.get(sample["vendor"], ANY):
            if name == "responses" and "error" not in sample["body"] and sample["vendor"] != "responses":
                continue
            key = sample["error"], BY_NAME[name].api, sample["status"] is None
            of_vendor = (sample["vendor"], *key)
            marks = [] if key not in known else [pytest.mark.sweep if of_vendor in known else pytest.mark.full]
            known |= {key, of_vendor}
            id_ = f"{number}-{name}-{sample['error']}"
            found.append(pytest.param(sample, BY_NAME[name], id=id_, marks=marks))
    return found


@pytest.mark.parametrize(("sample", "wire"), cases())
async def test_agent_works_behind_each_failure(shared_world: World, sample: dict[str, Any], wire: Wire) -> None:
    world, is_overflow = shared_world, sample["error"] == "ContextOverflow"
    replies = (*FIRST, BEFORE, *((SUMMARY, AFTER) if is_overflow else ()), LAST)
    times = 1 if is_overflow else 100
    server = FailingServer(wire, replies, len(FIRST) + 1, fault_of(sample, wire), times)
    async with served(world, wire, server) as fake:
        process = world.process()
        agent = await world.agent(process)
        await process.send(agent, "Remember a fact.", stream_tokens=True)
        assert (await process.outcome(agent)).status is RunStatus.COMPLETED, server.refusals
        await process.send(agent, "Remember another.", stream_tokens=True)
        run, failed = await process.outcome(agent), server.failed
        server.times = 0
        await process.send(agent, "Are you here?", stream_tokens=True)
        last = await process.outcome(agent)
        await process.worker.stop()
    assert last.status is RunStatus.COMPLETED, (server.refusals, last.error)
    if is_overflow:
        assert (run.status, len(fake.requests)) == (RunStatus.COMPLETED, len(replies) + 1)
    else:
        assert (run.status, run.stop_reason) == (RunStatus.FAILED, StopReason[sample["stop"]])
        assert run.error is not None
        assert run.error.metadata.get("status") == (None if sample["status"] is None else str(sample["status"]))
        limits = DEFAULT_LIMITS
        waits = int(limits.retry_budget_seconds / sample["wait"]) if "wait" in sample else limits.attempts
        most = min(limits.attempts, waits + 1) if sample["error"] in RETRIED else ONCE_MORE.get(sample["error"], 1)
        assert most <= failed <= most + (MAX_OTHER_FORMS if sample["error"] == "ProviderRefused" else 0)
    assert await world.archival.texts(agent.id) == ["one", "two"]
    # A template of alternating roles refuses the turn behind a failed one once, and accepts it in another form.
    assert server.refusals in ([], [ALTERNATE])
    window = world.window(agent).messages
    require_valid(window)
    assert window[-1].text == "Still here."


FILTERED = {"chat": "content_filter", "messages": "refusal", "responses": "content_filter"}


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(
            wire, id=wire.name, marks=[] if wire.name in ("openai", "anthropic", "responses") else pytest.mark.full
        )
        for wire in WIRES
    ],
)
async def test_agent_works_behind_a_refusal_of_each_server(shared_world: World, wire: Wire) -> None:
    world = shared_world
    refusal = Reply(refusal="I will not.") if wire.api != "messages" else Reply()
    refusal = replace(refusal, finish_reason=FILTERED[wire.api])
    async with served(world, wire, StrictServer(wire, (*FIRST, BEFORE, refusal, LAST))) as fake:
        process = world.process()
        agent = await world.agent(process)
        for text in ("Remember a fact.", "Remember another."):
            await process.send(agent, text, stream_tokens=True)
        run = await process.outcome(agent)
        await process.send(agent, "Are you here?", stream_tokens=True)
        last = await process.outcome(agent)
        await process.worker.stop()
    assert (run.status, run.stop_reason) == (RunStatus.FAILED, StopReason.CONTENT_FILTER)
    assert (last.status, len(fake.requests)) == (RunStatus.COMPLETED, 5)
    assert await world.archival.texts(agent.id) == ["one", "two"]
    require_valid(world.window(agent).messages)
