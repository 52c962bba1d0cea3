"""SIGKILL at the failpoints of a turn: of the orchestrator, of the services that it calls, of one process for all."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import pytest_asyncio
from mnemesh.recall.v1.messages_service_pb2 import ListMessagesRequest
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.services import MESH, STORE_NAMES
from mnemesh_testkit.failpoints.kill_orders import LEAVING, Failpoint, KillOrders, distinct
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import assert_whole, turn, window_of
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(600))]

TURN_SECONDS: Final = scaled(60)

INPUT: Final = "Do it all."
OUTPUT: Final = "All is done."
V3, V2 = "letta_v1", "memgpt_v2"
SHARES: Final = {"orchestrator": 3, "blocks": 1, "recall": 1, "archival": 1, "tools": 1, MESH: 4}
"""The number of tests that share the failpoints of a service, so that test processes can divide them."""
SAMPLED: Final = 96
"""Without --full every 96th failpoint of a service is swept, by the first of its tests."""
SWEPT: Final = [
    (agent_type, service, share)
    # The calls to blocks, archival and tools do not depend on the agent type. A mesh is killed as processes, or as one.
    for agent_type, services in ((V3, [name for name in SHARES if name != MESH]), (V2, (MESH,)))
    for service in services
    for share in range(SHARES[service])
]

SOURCES: Final = {
    "launch": '''
def launch(agent_state: "AgentState") -> str:
    """Launches something, once more each time."""
    notes = agent_state.memory.get_block("notes").value
    agent_state.memory.update_block_value("notes", notes + "launched\\n")
    return "launched"
''',
    "measure": '''
def measure() -> str:
    """Measures something, and changes nothing."""
    return "42"
''',
}
CALLS: Final[Sequence[Sequence[tuple[str, dict[str, str]]]]] = (
    (
        ("archival_memory_insert", {"content": "The key is under the mat."}),
        ("memory_insert", {"label": "human", "new_str": "Her name is Ada."}),
    ),
    (
        ("archival_memory_search", {"query": "key"}),
        ("conversation_search", {"query": "all"}),
        ("memory_replace", {"label": "human", "old_str": "A human.", "new_str": "A woman."}),
    ),
    (("launch", {}), ("measure", {})),
)
"""The tool calls of each model response, before the final one."""
NAMES: Final = [name for response in CALLS for name, _ in response]

COMMITTED: Final = "sql.write.after_commit:runs.write"
JOURNALLED: Final = (COMMITTED, "call.after:CommitStep")
RESPONDED: Final = "model.response_started:openai"
AWAY: Final = "cannot be reached at the moment"


def model(body: dict[str, Any]) -> Reply | str:
    """The response that follows from the messages alone, so that a repeated request has the same response."""
    is_v2 = any(tool["function"]["name"] == "send_message" for tool in body["tools"])
    inputs = [json.dumps(message) if message["role"] == "user" else "" for message in body["messages"]]
    start, text = max(
        (index, text) for text in (INPUT, "Farewell") for index, line in enumerate(inputs) if text in line
    )
    returned, done = sum(message["role"] == "tool" for message in body["messages"][start:]), 0
    while done < len(CALLS) and returned >= len(CALLS[done]):
        returned -= len(CALLS[done])
        done += 1
    thinking = {"thinking": "Go on."} if is_v2 else {}
    if text == INPUT and done < len(CALLS):
        heartbeat = {"request_heartbeat": True} if is_v2 else {}
        return Reply(tool_calls=[Call(name, {**arguments, **thinking, **heartbeat}) for name, arguments in CALLS[done]])
    answer = OUTPUT if text == INPUT else "Goodbye."
    return Reply(tool_calls=[Call("send_message", {"message": answer, **thinking})]) if is_v2 else answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """The stored results of a turn, without times and ids."""

    history: list[tuple[str, list[str], list[str]]]
    blocks: dict[str, str]
    passages: list[str]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A turn in which no process is killed."""

    failpoints: dict[str, list[Failpoint]]
    requests: int
    outcome: Outcome


class Sweep:
    """One mesh, whose processes are killed again and again."""

    def __init__(self, mesh: ProcessMesh, provider: FakeOpenAI, orders: KillOrders) -> None:
        self.mesh, self.provider, self.orders = mesh, provider, orders
        self._baselines: dict[str, Baseline] = {}

    async def agent(self, agent_type: str) -> Agent:
        blocks = {"human": "A human.", "notes": ""}
        return await self.mesh.client.agents.create(
            model="openai/fake-model", type=agent_type, blocks=blocks, tools=NAMES
        )

    async def baseline(self, agent_type: str) -> Baseline:
        """Returns the failpoints and the outcome of an undisturbed turn."""
        known = self._baselines.get(agent_type)
        if known is None:
            agent = await self.agent(agent_type)
            before = len(self.provider.requests)
            self.orders.forget(*self.mesh.names)
            result = await turn(agent, INPUT, stream_tokens=True)
            failpoints = {name: self.orders.failpoints(name) for name in self.mesh.names}
            assert (result.status, result.said) == ("COMPLETED", OUTPUT), result.error
            outcome = await self._outcome(agent)
            assert outcome.passages == ["The key is under the mat."]
            assert outcome.blocks == {"human": "A woman.\nHer name is Ada.", "notes": "launched\n"}
            known = Baseline(failpoints, len(self.provider.requests) - before, outcome)
            self._baselines[agent_type] = known
        return known

    async def survives(self, agent_type: str, failpoint: Failpoint) -> None:
        """Runs a turn in which a process kills itself at the failpoint, and checks its outcome."""
        baseline, agent = await self.baseline(agent_type), await self.agent(agent_type)
        before = len(self.provider.requests)
        self.orders.forget(*self.mesh.names)
        self.orders.order(failpoint)
        async with asyncio.timeout(TURN_SECONDS):
            result = await turn(agent, INPUT, stream_tokens=True)
        reached = self.orders.executed(failpoint)
        assert (result.status, result.said) == ("COMPLETED", OUTPUT), result.error
        assert result.sequences == list(range(1, len(result.sequences) + 1)), "an event is missing or repeated"
        repeated = len(self.provider.requests) - before - baseline.requests
        assert repeated in repeated_requests(failpoint, reached), f"{repeated} requests more than in the baseline"
        custom = custom_outcomes(failpoint, reached, baseline)
        outcome = await self._outcome(agent)
        assert outcome in [with_custom(baseline.outcome, *pair, notes) for *pair, notes in custom], outcome
        self._ran_once(outcome)
        await self._next_turn_works(agent, failpoint)

    async def _outcome(self, agent: Agent) -> Outcome:
        window = await window_of(self.mesh.client, agent)
        assert_whole(window)
        stub = self.mesh.client.messages.stub
        stored = await stub.ListMessages(ListMessagesRequest(agent_ids=[agent.id]))
        assert [row.id for row in stored.messages if row.role != message_pb2.ROLE_SYSTEM] == [row.id for row in window]
        history = [
            (
                message_pb2.Role.Name(row.role).removeprefix("ROLE_"),
                [call.name for call in row.tool_calls],
                [described(item) for item in row.tool_returns],
            )
            for row in window
        ]
        blocks = {block.label: block.value for block in (await agent.memory()).blocks}
        return Outcome(history, blocks, [passage.text async for passage in agent.passages()])

    def _ran_once(self, outcome: Outcome) -> None:
        """Checks that a tool which is not declared idempotent ran once."""
        runs = self.orders.reached(MESH if MESH in self.mesh.names else "tools").count("sandbox.before_run:launch")
        assert runs <= 1, f"launch ran {runs} times"
        assert runs == 1 or "launch: SUCCESS" not in outcome.history[-2][2]

    async def _next_turn_works(self, agent: Agent, failpoint: Failpoint) -> None:
        """Checks that the next request begins with the messages of the last one, byte for byte."""
        sent = [json.dumps(message) for message in self.provider.requests[-1].body["messages"]]
        # One request alone contains the note that a service cannot be reached.
        before = [message for message in sent if AWAY not in message]
        assert before == sent or failpoint.service in {"archival", "tools"}
        async with asyncio.timeout(TURN_SECONDS):
            result = await turn(agent, "Farewell.")
        assert result.said == "Goodbye.", result.error
        after = [json.dumps(message) for message in self.provider.requests[-1].body["messages"]]
        assert after[: len(before)] == before


def described(item: message_pb2.ToolReturn) -> str:
    status = message_pb2.ToolReturnStatus.Name(item.status).removeprefix("TOOL_RETURN_STATUS_")
    is_unknown = item.status != message_pb2.TOOL_RETURN_STATUS_SUCCESS and "unknown" in item.content[0].text.text
    return f"{item.name}: {'INTERRUPTED' if is_unknown else status}"


def repeated_requests(failpoint: Failpoint, reached: Sequence[str]) -> set[int]:
    """Returns how many requests to the model may be repeated."""
    if failpoint.service not in ("orchestrator", MESH) or RESPONDED not in reached:
        return {0}
    if failpoint.service == MESH:
        return {0, 1}  # the services record their failpoints in the order of their threads
    since = reached[len(reached) - reached[::-1].index(RESPONDED) :]
    if any(name in JOURNALLED for name in since):
        return {0}
    # A process that is killed while it emits an event may not have stored the next response.
    return {0, 1} if failpoint.name.startswith(LEAVING) else {1}


def custom_outcomes(failpoint: Failpoint, reached: Sequence[str], baseline: Baseline) -> list[tuple[str, str, str]]:
    """Returns the possible results of `launch` and `measure`, and of the block that `launch` writes."""
    good = ("SUCCESS", "SUCCESS", "launched\n")
    if failpoint.service == "tools":
        absent = ("ERROR", "ERROR", "")  # the turn began while the service was away, and continued without its tools
        return [[good, absent], [("INTERRUPTED", "SUCCESS", "")], [good]][reached.count("rpc.received:ExecuteTool")]
    if failpoint.service == MESH:
        return [good, ("INTERRUPTED", "SUCCESS", "launched\n"), ("INTERRUPTED", "SUCCESS", "")]
    if failpoint.service != "orchestrator":
        return [good]
    names = [known.name for known in baseline.failpoints["orchestrator"]]
    started = names[: names.index("call.before:ExecuteTool")].count(COMMITTED)
    unknown = [("INTERRUPTED", "SUCCESS", "launched\n"), ("INTERRUPTED", "SUCCESS", "")]
    if reached.count(COMMITTED) == started:
        # A process that is killed while it emits an event may not have stored the next entry.
        return [*unknown, good] if failpoint.name.startswith(LEAVING) else unknown
    is_close = reached.count(COMMITTED) == started - 1 and failpoint.name.startswith(LEAVING)
    return [good, *unknown] if is_close else [good]


def with_custom(outcome: Outcome, launch: str, measure: str, notes: str) -> Outcome:
    """Returns the baseline's outcome with other results of the custom tools."""
    results = [f"launch: {launch}", f"measure: {measure}"]
    history = [
        (role, calls, results if "launch: SUCCESS" in returns else returns) for role, calls, returns in outcome.history
    ]
    return replace(outcome, history=history, blocks={**outcome.blocks, "notes": notes})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sweep(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    provider: FakeOpenAI,
    fork_server: ForkServer,
) -> AsyncIterator[Sweep]:
    """A mesh whose processes restart whenever they end: of one process for all, or of one for each service."""
    directory = tmp_path_factory.mktemp("sweep")
    orders = KillOrders(directory / "failpoints")
    provider.script = model
    async with (
        ProcessMesh(
            directory,
            openai_base_url=provider.base_url,
            fork_server=fork_server,
            kill_orders=orders,
            one_process=request.param == MESH,
        ) as mesh,
        AsyncExitStack() as stack,
    ):
        for name in mesh.names:
            await stack.enter_async_context(mesh.restarting(name))
        for name, source in SOURCES.items():
            await mesh.client.tools.upsert(source, idempotent=name == "measure")
        yield Sweep(mesh, provider, orders)


@pytest.mark.parametrize("sweep", ["processes"], indirect=True)
async def test_turn_reaches_its_failpoints(sweep: Sweep) -> None:
    """The sweep covers every write of the journal, every effect and every commit, in each service."""
    failpoints = (await sweep.baseline(V3)).failpoints
    names = {service: Counter(failpoint.name for failpoint in failpoints[service]) for service in STORE_NAMES}
    # Responses, results, and the starts of custom tools. Commits hold the results of the two last built-in calls.
    entries = len(CALLS) + len(NAMES) + len(SOURCES) - 2
    for moment in ("before", "before_commit", "after_commit"):
        assert names["orchestrator"][f"sql.write.{moment}:runs.write"] == entries
        assert names["orchestrator"][f"sql.write.{moment}:runs.finish"] == 1
        assert names["blocks"][f"sql.write.{moment}:blocks.write_once"] == 3
        assert names["recall"][f"sql.write.{moment}:messages.commit_step"] == len(CALLS) + 1
    for moment in ("before", "after"):
        for method in ("EditBlock", "InsertPassages", "SearchPassages", "SearchMessages", "ExecuteTool", "CommitStep"):
            assert names["orchestrator"][f"call.{moment}:{method}"] >= 1
    assert names["orchestrator"][RESPONDED] == len(CALLS) + 1
    assert sum(times for name, times in names["archival"].items() if name.startswith("index.after_write:")) == 1
    assert names["tools"]["sandbox.after_run:launch"] == names["tools"]["sandbox.after_run:measure"] == 1
    for service, moment in (
        ("orchestrator", "run.before_event:"),
        ("blocks", "rpc.received:"),
        ("recall", "sql.read."),
    ):
        assert any(name.startswith(moment) for name in names[service]), (service, moment)


@pytest.mark.parametrize(
    ("sweep", "agent_type", "service", "share"),
    [
        pytest.param(
            MESH if service == MESH else "processes",
            agent_type,
            service,
            share,
            marks=[pytest.mark.full] if share else [],
        )
        for agent_type, service, share in SWEPT
    ],
    indirect=["sweep"],
)
async def test_turn_survives_a_kill_at_every_failpoint(
    sweep: Sweep, agent_type: str, service: str, share: int, is_full: bool, is_sweep: bool
) -> None:
    known = (await sweep.baseline(agent_type)).failpoints[service]
    # With --full at every moment that differs from the others, with --sweep at every one.
    every = known if is_sweep else distinct(known, is_whole=service == MESH)
    failures = []
    for failpoint in every[share :: SHARES[service]] if is_full else known[::SAMPLED]:
        try:
            await sweep.survives(agent_type, failpoint)
        except (AssertionError, TimeoutError, MnemeshError) as error:
            failures.append(f"{failpoint}: {error}")
    assert not failures, "\n".join(failures)
