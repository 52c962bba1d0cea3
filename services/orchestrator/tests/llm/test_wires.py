"""The streams of all servers, through the real adapters and SDKs, in turns with tools and a compaction."""

import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_orchestrator.llm.port import LlmAnswer
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_testkit.fakes.server import Fault, Reply
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.wires import WIRES, Event, Wire, encoded
from mnemesh_types.messages import TextPart

from ..support.world import ME, World, opened, require_valid
from .windows import at, everything, hello, tool
from .wire_servers import CLIENTS, FAKES, ServedModel, StrictServer, insert, served

pytestmark = pytest.mark.asyncio(loop_scope="module")


TURNS = (
    (
        Reply(reasoning="One fact is new.", tool_calls=insert('one {brace} "quote" ü')),
        Reply(reasoning="Two more are.", text="Two more.", tool_calls=insert("two", "three")),
        Reply(reasoning="That was all.", text="Done: <think>no</think>."),
    ),
    (Reply(text="They spoke of facts."),),
    (Reply(reasoning="A last one.", tool_calls=insert("four")), Reply(text="Again.")),
)
"""The replies of a turn of three steps, of a compaction, and of the turn behind it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One world for all servers, each with an agent of its own."""
    async with opened(tmp_path_factory.mktemp("wires")) as world:
        yield world


@pytest.mark.parametrize("wire", sampled(WIRES, 2), ids=lambda wire: wire.name)
async def test_agent_works_with_each_server_through_tools_and_a_compaction(shared_world: World, wire: Wire) -> None:
    world = shared_world
    server = StrictServer(wire, [reply for turn in TURNS for reply in turn])
    async with served(world, wire, server) as fake:
        process = world.process()
        agent = await world.agent(process)
        await process.send(agent, "Remember three facts.", stream_tokens=True)
        assert (await process.outcome(agent)).status is RunStatus.COMPLETED, server.refusals
        where = (agent.id, agent.default_conversation_id)
        await process.compactions.compact(ME, None, *where, None, dry_run=False, on_busy=OnBusy.WAIT)
        await process.send(agent, "Remember another.", stream_tokens=True)
        assert (await process.outcome(agent)).status is RunStatus.COMPLETED, server.refusals
        await process.worker.stop()
    assert await world.archival.texts(agent.id) == ['one {brace} "quote" ü', "two", "three", "four"]
    window = world.window(agent).messages
    require_valid(window)
    assert window[-1].text == "Again."
    assert server.refusals == []
    assert len(fake.requests) == 6


Mutation = Callable[[list[Event], random.Random], list[Event]]


def with_keepalives(events: list[Event], rng: random.Random) -> list[Event]:
    lines = [": wait\n", "data:\n", "event: ping\n", "event: ping\ndata: {}\n", "retry: 10\n", "id: 7\n", ""]
    return [one for event in events for one in (Event(rng.choice(lines)), event)]


def without_usage(events: list[Event], rng: random.Random) -> list[Event]:
    return [e if isinstance(e.data, str) else replace(e, data={**e.data, "usage": None}) for e in events]


def with_unknown_fields(events: list[Event], rng: random.Random) -> list[Event]:
    return [e if isinstance(e.data, str) else replace(e, data={"x_trace": {"n": [1]}, **e.data}) for e in events]


def with_empty_pieces(events: list[Event], rng: random.Random) -> list[Event]:
    """Repeats the pieces of chat completions without their content."""
    made = list[Event]()
    for event in events:
        made.append(event)
        choices = event.data.get("choices") if isinstance(event.data, dict) else None
        if choices and rng.random() < 0.5:
            delta = {key: "" if isinstance(value, str) else None for key, value in choices[0]["delta"].items()}
            empty = {**choices[0], "delta": delta, "finish_reason": None}
            made.append(Event({**event.data, "choices": [empty]}))  # type: ignore[dict-item]
    return made


def with_repeated_ids(events: list[Event], rng: random.Random) -> list[Event]:
    """Repeats id and name of a call in its later pieces."""
    known: dict[Any, dict[str, Any]] = {}
    made = list[Event]()
    for event in events:
        choices = event.data.get("choices") if isinstance(event.data, dict) else None
        pieces = (choices[0]["delta"].get("tool_calls") or []) if choices else []
        repeated = []
        for piece in pieces:
            if piece.get("id") and piece["function"].get("name"):
                known[piece.get("index")] = piece
            first = known.get(piece.get("index"), piece)
            function = {**piece["function"], "name": first["function"].get("name")}
            repeated.append({**piece, "id": first.get("id"), "function": function})
        if repeated:
            delta = {**choices[0]["delta"], "tool_calls": repeated}
            made.append(Event({**event.data, "choices": [{**choices[0], "delta": delta}]}))  # type: ignore[dict-item]
        else:
            made.append(event)
    return made


def with_interleaved_calls(events: list[Event], rng: random.Random) -> list[Event]:
    """Mixes the pieces of parallel calls, which keep the order of their beginnings."""
    calls: dict[Any, list[Event]] = {}
    places = list[int]()
    for place, event in enumerate(events):
        if (index := _index_of_call(event)) is not None:
            calls.setdefault(index, []).append(event)
            places.append(place)
    waiting, begun, made = list(calls.values()), list[list[Event]](), list(events)
    for place in places:
        if waiting and (not any(begun) or rng.random() < 0.5):
            begun.append(waiting.pop(0))
        made[place] = rng.choice([one for one in begun if one]).pop(0)
    return made


def _index_of_call(event: Event) -> Any:
    """Returns the index of the call that an event is a piece of."""
    match event.data:
        case {"choices": [{"delta": {"tool_calls": [{"index": index}]}}]}:
            return index
        case {"output_index": index, "item": {"type": "function_call"}}:
            return index
        case {"type": str(kind), "output_index": index} if kind.startswith("response.function_call_arguments."):
            return index
    return None


def with_usage_elsewhere(events: list[Event], rng: random.Random) -> list[Event]:
    """Moves the usage of chat completions before, into or behind the chunk with the finish reason."""
    usage: Any = None
    made = list[Event]()
    for event in events:
        match event.data:
            case {"choices": [], "usage": usage}:
                continue
            case {"choices": [{"usage": usage, **choice}], **chunk}:
                made.append(Event({**chunk, "choices": [choice]}))
            case {"choices": [_] as choices, "usage": usage, **chunk}:
                made.append(Event({**chunk, "choices": choices}))
            case _:
                made.append(event)
    if usage is None:
        return events
    end = next((place for place, event in enumerate(made) if _has_finish_reason(event)), None)
    if end is None:
        return events
    chunk: Any = made[end].data
    match rng.choice(["before", "into", "behind"]):
        case "into":
            made[end] = Event({**chunk, "usage": usage})
        case where:
            made.insert(end + (where == "behind"), Event({**chunk, "choices": [], "usage": usage}))
    return made


def _has_finish_reason(event: Event) -> bool:
    match event.data:
        case {"choices": [{"finish_reason": str()}]}:
            return True
    return False


def without_optional_parts(events: list[Event], rng: random.Random) -> list[Event]:
    """Drops roles, models, times, kinds of objects, and the ids of the later pieces of calls."""
    dropped = ("role", "model", "created", "object", "service_tier", "sequence_number", "created_at")
    known = set[Any]()

    def without(value: Any) -> Any:
        match value:
            case list():
                return [without(one) for one in value]
            case {"index": index, "function": {**function}} if index is not None:
                is_later = index in known and not function.get("name")
                known.add(index)
                return {key: one for key, one in value.items() if not (is_later and key in ("id", "type"))}
            case dict():
                return {key: without(one) for key, one in value.items() if key not in dropped}
        return value

    return [event if isinstance(event.data, str) else replace(event, data=without(event.data)) for event in events]


MUTATIONS: tuple[Mutation, ...] = (
    with_keepalives,
    with_interleaved_calls,
    with_usage_elsewhere,
    without_optional_parts,
    without_usage,
    with_unknown_fields,
    with_empty_pieces,
    with_repeated_ids,
)


@pytest.mark.parametrize("wire", sampled(WIRES, 2), ids=lambda wire: wire.name)
async def test_answer_is_the_same_with_what_servers_add_repeat_reorder_and_leave_out(wire: Wire) -> None:
    rng, replies = random.Random(wire.name), TURNS[0]
    async with FAKES[wire.api]() as fake:
        client = CLIENTS[wire.api](at(fake.base_url, wire.type, api_key="k"))
        request = hello(ServedModel(wire, fake.base_url, client).info, tools=(tool("archival_memory_insert"),))
        try:
            for number, reply in enumerate(replies):
                events = wire.events(reply, number)
                chosen = [(), *((mutation,) for mutation in MUTATIONS), *(rng.sample(MUTATIONS, 3) for _ in range(3))]
                for mutations in chosen:
                    changed = events
                    for mutation in mutations:
                        changed = mutation(changed, rng)
                    stream = encoded(changed, rng.choice(["\n", "\r\n", "\r"]))
                    fake.script = [Fault(kind="body", body=stream, headers={"content-type": "text/event-stream"})]
                    _, answer = await everything(client, request)
                    assert gist(answer) == expected(reply), [mutation.__name__ for mutation in mutations]
                    if mutations == (with_usage_elsewhere,) and any("usage" in str(event.data) for event in events):
                        assert answer.usage.total_tokens == 18
                if wire.body is not None:
                    whole = json.dumps(wire.body(reply, number)).encode()
                    fake.script = [Fault(kind="body", body=whole, headers={"content-type": "application/json"})]
                    _, answer = await everything(client, request)
                    assert (gist(answer), answer.usage.total_tokens) == (expected(reply), 18)
        finally:
            await client.close()


def expected(reply: Reply) -> tuple[str, list[tuple[str, Any]]]:
    return reply.text or "", [(call.name, dict(call.arguments)) for call in reply.calls]  # type: ignore[arg-type]


def gist(answer: LlmAnswer) -> tuple[str, list[tuple[str, Any]]]:
    """Returns text and calls of an answer."""
    text = "".join(part.text for part in answer.content if isinstance(part, TextPart))
    return text, [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
