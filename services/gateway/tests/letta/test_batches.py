"""Batches of messages, and callbacks of runs and batches."""

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from mnemesh_gateway.letta import jobs
from mnemesh_gateway.letta.jobs import POLL_SECONDS, CallbackClient
from mnemesh_testkit.fakes.server import Reply, status
from mnemesh_testkit.timeouts import scaled

from .lab import Lab
from .rest import Rest

BATCHES = "/messages/batches"
NOBODY = "agent-123e4567-e89b-42d3-8456-426614174000"


class Hook:
    """A server that keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: queue.Queue[dict[str, Any]] = queue.Queue()
        self.statuses: list[int] = []
        """The statuses of the next answers; then 200."""
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hook.bodies.put(json.loads(body))
                self.send_response(hook.statuses.pop(0) if hook.statuses else 200)
                self.send_header("location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/done?key=1"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def next(self) -> dict[str, Any]:
        """Returns the next body."""
        return self.bodies.get(timeout=scaled(20))


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    hook.thread.start()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
    hook.thread.join()


def _ended(rest: Rest, path: str) -> dict[str, Any]:
    """Returns a run or a batch after its end."""
    for _ in range(400):
        found: dict[str, Any] = rest.call("GET", path)
        if found["status"] not in ("created", "running"):
            return found
        time.sleep(scaled(0.05))
    raise AssertionError(found)


def _requests(*agent_ids: str) -> list[dict[str, Any]]:
    return [
        {"agent_id": agent_id, "messages": [{"role": "user", "content": f"Message {number}"}]}
        for number, agent_id in enumerate(agent_ids)
    ]


def test_a_batch_runs_and_its_messages_are_listed(lab: Lab, rest: Rest, hook: Hook) -> None:
    ada, bob = lab.agent(), lab.agent()
    body = {"requests": _requests(ada.id, bob.id), "callback_url": hook.url}
    started = rest.call("POST", BATCHES, json=body, headers={"idempotency-key": "batch-1"})
    assert (started["job_type"], started["callback_url"], started["id"][:4]) == ("batch", hook.url, "job-")
    assert rest.call("POST", BATCHES, json=body, headers={"idempotency-key": "batch-1"})["id"] == started["id"]
    done = _ended(rest, f"{BATCHES}/{started['id']}")
    assert (done["status"], done["metadata"]["runs"]["completed"]) == ("completed", 2)
    assert done["completed_at"] is not None
    assert rest.call("GET", f"/jobs/{started['id']}")["job_type"] == "batch"
    called = hook.next()
    assert (called["job_id"], called["status"], called["completed_at"]) == (
        *(started["id"], "completed", done["completed_at"]),
    )
    path = f"{BATCHES}/{started['id']}/messages"
    every = rest.call("GET", path, params={"order": "asc"})["messages"]
    assert [(message["agent_id"], message["role"]) for message in every] == [
        *((ada.id, "user"), (ada.id, "assistant"), (bob.id, "user"), (bob.id, "assistant")),
    ]
    assert rest.call("GET", path)["messages"] == every[::-1]
    assert rest.call("GET", path, params={"agent_id": bob.id, "order": "asc"})["messages"] == every[2:]
    after = {"order": "asc", "after": every[0]["id"], "limit": 2}
    assert rest.call("GET", path, params=after)["messages"] == every[1:3]
    before = {"order": "asc", "after": every[0]["id"], "before": every[3]["id"]}
    assert rest.call("GET", path, params=before)["messages"] == every[1:3]
    rest.call("GET", path, 404, params={"after": "message-123e4567-e89b-42d3-8456-426614174000"})


def test_batches_are_listed_and_cancelled(lab: Lab, rest: Rest) -> None:
    agent = lab.agent()
    gate = threading.Event()

    async def held(_: Any) -> Reply:
        await asyncio.to_thread(gate.wait)
        return Reply(text="Late.")

    lab.fake.script = held
    first, second = (rest.call("POST", BATCHES, json={"requests": _requests(agent.id)}) for _ in range(2))
    try:
        newest = rest.call("GET", BATCHES, params={"limit": 2})
        assert [(batch["id"], batch["status"]) for batch in newest] == [
            (second["id"], "running"),
            (first["id"], "running"),
        ]
        (older,) = rest.call("GET", BATCHES, params={"after": second["id"], "limit": 1})
        assert older["id"] == first["id"]
        assert rest.call("PATCH", f"{BATCHES}/{second['id']}/cancel") is None
        assert rest.call("GET", f"{BATCHES}/{second['id']}")["status"] == "cancelled"
        assert rest.call("GET", f"{BATCHES}/{first['id']}")["status"] == "running"
    finally:
        gate.set()
    assert _ended(rest, f"{BATCHES}/{first['id']}")["status"] == "completed"


def test_a_batch_that_cannot_start_is_refused(lab: Lab, rest: Rest) -> None:
    agent, before = lab.agent(), rest.call("GET", BATCHES)
    approval = {"type": "approval", "approvals": [{"type": "approval", "approve": True, "tool_call_id": "x"}]}
    for status_code, body, words in (
        (422, {}, "requests"),
        (400, {"requests": []}, "requests"),
        (422, {"requests": [{"messages": []}]}, "agent_id"),
        (422, {"requests": [{"agent_id": agent.id, "messages": [approval]}]}, "approval"),
        (400, {"requests": _requests(agent.id), "callback_url": "gopher://x"}, "callback_url"),
        (404, {"requests": _requests(agent.id, NOBODY)}, NOBODY),
    ):
        assert words in rest.call("POST", BATCHES, status_code, json=body)["detail"]
    unknown = f"{BATCHES}/job-123e4567-e89b-42d3-8456-426614174000"
    for method, path in (("GET", unknown), ("GET", f"{unknown}/messages"), ("PATCH", f"{unknown}/cancel")):
        rest.call(method, path, 404)
    assert rest.call("GET", BATCHES) == before
    assert lab.client.runs.list(agent_id=agent.id).items == []


def test_a_run_calls_back_with_its_result(lab: Lab, rest: Rest, hook: Hook) -> None:
    agent = lab.agent()
    hook.statuses = [302]
    run = lab.client.agents.messages.create_async(agent.id, input="Hi.", callback_url=hook.url)
    called = hook.next()
    assert (called["run_id"], called["status"]) == (run.id, "completed")
    result = called["metadata"]["result"]
    assert [message["content"] for message in result["messages"]] == ["Hi.", "Hello."]
    assert result["messages"] == rest.call("GET", f"/runs/{run.id}/messages")
    assert (result["stop_reason"]["stop_reason"], result["usage"]["step_count"]) == ("end_turn", 1)
    for _ in range(200):
        stored = lab.client.runs.retrieve(run.id)
        if stored.callback_status_code is not None:
            break
        time.sleep(scaled(0.05))
    assert (stored.callback_status_code, stored.callback_url, stored.callback_error) == (302, hook.url, None)
    assert stored.callback_sent_at is not None
    lab.fake.script = [status(400, "No.")]
    failing = lab.client.agents.messages.create_async(agent.id, input="Hi.", callback_url=hook.url)
    called = hook.next()
    assert (called["run_id"], called["status"]) == (failing.id, "failed")
    assert "result" not in called["metadata"]
    assert hook.bodies.empty(), "a redirect is followed, or an answered call is repeated"


@pytest.mark.full
@pytest.mark.usefixtures("other")
def test_two_gateways_send_each_callback_once(lab: Lab, rest: Rest, hook: Hook) -> None:
    agents = [lab.agent() for _ in range(12)]
    lab.fake.script = lambda _: Reply(text="Hello.")
    runs = {
        lab.client.agents.messages.create_async(agent.id, input="Hi.", callback_url=hook.url).id for agent in agents
    }
    body = {"requests": _requests(*(agent.id for agent in agents)), "callback_url": hook.url}
    batch = rest.call("POST", BATCHES, json=body)["id"]
    called = [hook.next() for _ in range(len(runs) + 1)]
    assert sorted(each.get("run_id") or each["job_id"] for each in called) == sorted((*runs, batch))
    time.sleep(2.5 * POLL_SECONDS)  # each gateway has asked twice
    assert hook.bodies.empty()


@pytest.mark.parametrize(
    ("hosts", "public_only", "words"),
    [
        (("hooks.example",), False, "MNEMESH_CALLBACK_HOSTS"),
        ((), True, "not public"),
    ],
)
async def test_hosts_that_are_not_allowed_are_not_called(
    hook: Hook, hosts: tuple[str, ...], public_only: bool, words: str
) -> None:
    client = CallbackClient(hosts, public_only=public_only)
    try:
        for host in ("127.0.0.1", "localhost", "①27.0.0.1", "127。0。0。1"):
            url = hook.url.replace("127.0.0.1", host)
            result = await client.post(url, b"{}")
            assert result.status is None
            assert words in (result.error or "")
    finally:
        await client.close()
    assert hook.bodies.empty()


async def test_a_host_in_the_list_may_be_private(hook: Hook) -> None:
    client = CallbackClient(("127.0.0.1",), public_only=False)
    try:
        assert await client.post(hook.url, b'{"a": 1}') == (200, None)
    finally:
        await client.close()
    assert hook.next() == {"a": 1}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n" + b"x" * 100_000, "200"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n", "302"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 1_000_000 + b"\r\n\r\n", "the connection failed"),
        (b"HTTP/1.1 200 O", "it did not answer in time"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the connection failed"),
    ],
    ids=["an endless body", "a redirect", "a huge header", "a slow answer", "another protocol"],
)
async def test_a_receiver_cannot_hold_a_call(monkeypatch: pytest.MonkeyPatch, answer: bytes, expected: str) -> None:
    monkeypatch.setattr(jobs, "_CALL_SECONDS", scaled(0.5))
    closed = asyncio.Event()

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        with suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()
            while await reader.read(1_000):
                pass
        writer.close()
        closed.set()

    client, server = CallbackClient((), public_only=False), await asyncio.start_server(receive, "127.0.0.1")
    host, port = server.sockets[0].getsockname()
    async with server:
        result = await client.post(f"http://{host}:{port}/", b"{}")
        await client.close()
        await closed.wait()
    assert expected in f"{result.status} {result.error}"


async def test_cookies_of_a_receiver_are_not_sent_to_it_with_the_calls_of_others() -> None:
    seen: list[bytes] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"{}"))
        writer.write(b"HTTP/1.1 204 No Content\r\nset-cookie: session=secret; path=/\r\nconnection: close\r\n\r\n")
        writer.close()

    client, server = CallbackClient((), public_only=False), await asyncio.start_server(receive, "127.0.0.1")
    url = f"http://localhost:{server.sockets[0].getsockname()[1]}/"
    async with server:
        assert [await client.post(url, b"{}") for _ in range(2)] == [(204, None)] * 2
        await client.close()
    assert b"cookie" not in seen[1].lower()
