"""Tasks in JavaScript and TypeScript."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_sandbox import Access, AgentView, BlockProperties, Language, Level, Outcome, OutcomeStatus, Sandbox, Task
from mnemesh_sandbox.calls import ToolAnswer, ToolCall
from mnemesh_sandbox.inside.node import EXPORT
from mnemesh_sandbox.node import NoNode, find_node
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import scaled

from .conftest import PROFILES, SETTINGS, new_sandbox
from .support import value_of

NODE = replace(SETTINGS, node=find_node("").path)


@pytest_asyncio.fixture(params=["all layers", pytest.param("no namespaces", marks=pytest.mark.full)])
async def boxes(request: pytest.FixtureRequest) -> Sandbox:
    """A sandbox with Node, with all layers and without namespaces."""
    opened = await new_sandbox(NODE, PROFILES[request.param])
    if opened.isolation.level is Level.NONE:
        pytest.skip(f"this host supports no isolation: {dict(opened.isolation.missing)}")
    return opened


@pytest_asyncio.fixture
async def box() -> AsyncIterator[Sandbox]:
    """A sandbox with Node and every layer of this host."""
    opened = await new_sandbox(NODE)
    if opened.isolation.level is Level.NONE:
        pytest.skip(f"this host supports no isolation: {dict(opened.isolation.missing)}")
    yield opened


def _task(body: str, signature: str = "", **fields: Any) -> Task:
    source = f"async function tool({signature}) {{ {body} }}\nexport {{ tool as {EXPORT} }};"
    return Task(source, "tool", language=Language.TYPESCRIPT, **fields)


async def _run(box: Sandbox, body: str, signature: str = "", seconds: float = scaled(60), **fields: Any) -> Outcome:
    return await box.run(_task(body, signature, **fields), seconds)


async def test_function_gets_arguments_environment_and_agent(boxes: Sandbox) -> None:
    agent = AgentView("agent-1", "Ada", {"human": "Bo", "notes": "old"}, {"human": BlockProperties("The user.", 500)})
    outcome = await _run(
        boxes,
        "console.log('printed'); agent_state.memory.update_block_value('notes', 'new');"
        "const own = Object.entries(process.env).filter(([name]) => name !== 'HOME');"
        "return [text.length, count, own, ...['value', 'description', 'limit'].map((name) =>"
        " agent_state.memory.get_block('human')[name])];",
        "text: string, agent_state: any, count: number = 2",
        arguments={"text": "é\U0001f600"},
        parameters=("text", "agent_state", "count"),
        environment={"TOKEN": "a=b\n'c'"},
        agent=agent,
    )
    assert value_of(outcome) == [3, 2, [["TOKEN", "a=b\n'c'"]], "Bo", "The user.", 500]
    assert (outcome.stdout, outcome.stderr, outcome.changed_blocks) == ("printed\n", "", {"notes": "new"})


ESCAPES = """
    const fs = require('node:fs');
    const done = [];
    const attempts = {
      environment: () => fs.readFileSync(`/proc/${server}/environ`),
      memory: () => fs.openSync(`/proc/${server}/mem`),
      secret: () => fs.readFileSync(path),
      write: () => fs.writeFileSync(path + '-left', 'x'),
      system: () => fs.writeFileSync('/usr/left', 'x'),
      signal: () => process.kill(server, 0),
      priority: () => require('node:os').setPriority(server, 19),
      binding: () => { process.binding('fs').open('/etc/shadow', 0, 0); },
      child: () => {
        const ended = require('node:child_process').spawnSync('/bin/cat', [path], { encoding: 'utf8' });
        if (ended.status !== 0) throw new Error(ended.stderr);
      },
      inspector: () => {
        const inspector = require('node:inspector');
        inspector.open(0);
        if (inspector.url() === undefined) throw new Error('closed');
      },
      uid: () => process.setuid(0),
      chroot: () => process.binding('process_wrap').chroot('/'),
    };
    for (const [name, attempt] of Object.entries(attempts)) {
      try { attempt(); done.push(name); } catch {}
    }
    const net = require('node:net');
    const sockets = {
      tcp: () => net.connect(80, '127.0.0.1'),
      unix: () => net.connect(socket),
      listen: () => net.createServer().listen(0),
      udp: () => require('node:dgram').createSocket('udp4').bind(0),
    };
    for (const [name, open] of Object.entries(sockets)) {
      await new Promise((resolve) => {
        try {
          const opened = open();
          opened.on('error', resolve);
          for (const event of ['connect', 'listening']) opened.on(event, () => { done.push(name); resolve(); });
        } catch { resolve(); }
      });
    }
    const { Worker } = require('node:worker_threads');
    const seen = await new Promise((resolve) => {
      const source = `try { require('fs').readFileSync(${JSON.stringify(path)}); out('read') } catch { out('no') }`;
      const worker = new Worker(`const out = (m) => require('worker_threads').parentPort.postMessage(m); ${source}`,
        { eval: true });
      worker.on('message', resolve);
      worker.on('error', () => resolve('no'));
    }).catch((error) => error.message);
    if (seen !== 'Worker threads are not available') done.push('worker');
    return done;
"""


async def test_host_and_service_are_out_of_reach(boxes: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    for directory in (secret, *secret.parents[:3]):
        directory.chmod(0o777)
    outcome = await _run(
        boxes,
        ESCAPES,
        "server: number, path: string, socket: string",
        arguments={"server": os.getpid(), "path": str(secret), "socket": str(tmp_path / "gone")},
        parameters=("server", "path", "socket"),
    )
    assert value_of(outcome) == [], outcome.stderr
    assert secret.read_text() == "key"


@pytest.mark.parametrize(
    ("body", "text"),
    sampled(
        [
            ("return 10n ** 30n", "1" + "0" * 30),
            ("return {n: 1n, m: new Map([['k', new Set([2])]]), f: undefined}", '{"n":"1","m":{"k":[2]}}'),
            ("const a: any = {name: 'loop'}; a.self = a; return a", "<ref *1> { name: 'loop', self: [Circular *1] }"),
            ("return undefined", ""),
            ("return Symbol('s')", "Symbol(s)"),
            ("enum E { A = 'a' } return E.A", "a"),
            ("return '\\ud83d'", "?"),
            ("Object.prototype.toJSON = () => 'evil'; (JSON as any).stringify = () => '{}'; return 'kept'", "kept"),
            ("String.prototype.slice = null; return 5", "5"),
            ("process.stdout.write = null; console.log = null; return 'silent'", "silent"),
        ],
        3,
    ),
)
async def test_any_value_is_a_result(box: Sandbox, body: str, text: str) -> None:
    outcome = await _run(box, body)
    assert (outcome.status, outcome.text) == (OutcomeStatus.SUCCESS, text), outcome


@pytest.mark.parametrize(
    ("body", "error"),
    sampled(
        [
            ("throw new RangeError('too far')", "RangeError: too far"),
            ("throw 'text'", "Error: text"),
            ("throw null", "Error: null"),
            ("throw {get message() { throw 1 }}", "Error: "),
            ("await new Promise(() => {})", "PromiseError: it waits for a promise that nothing resolves"),
            (
                "Promise.reject(new TypeError('lost')); await new Promise((done) => setTimeout(done, 5000))",
                "TypeError: lost",
            ),
            ("setTimeout(() => { throw new Error('later') }); await new Promise(() => {})", "Error: later"),
            ("process.exit(3)", "SystemExit: process.exit(3) was called before it returned"),
            ("process.abort()", "ResourceError: its process was killed by SIGABRT"),
            (
                "require('fs').writeSync(3, '{\"ok\": 1}'); process.reallyExit(0)",
                "ValueError: its result cannot be read",
            ),
            ("const f = () => f() + 1; f()", "RangeError: Maximum call stack size exceeded"),
            ("import('not-there')", "Error: Cannot find package 'not-there'"),
            ("return (", "SyntaxError: "),
        ],
        3,
    ),
)
async def test_failure_is_an_error_with_its_reason(box: Sandbox, body: str, error: str) -> None:
    outcome = await _run(box, body if "import(" not in body else f"await {body}")
    assert outcome.status in (OutcomeStatus.ERROR, OutcomeStatus.KILLED)
    assert outcome.text.startswith(f"Error executing function tool: {error}"), outcome
    assert "node:internal" not in outcome.stderr or "abort" in body


async def test_trace_names_the_line_of_the_source(box: Sandbox) -> None:
    outcome = await _run(box, "\n  const x: number = 1;\n  throw new Error('here');")
    assert "tool:3:9" in outcome.stderr
    assert "/tmp" not in outcome.stderr


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("const held = []; while (true) held.push(Buffer.alloc(10_000_000, 1));", "MemoryError: "),
        ("while (true) {}", "ResourceError: it used more than 2 seconds of processor time"),
    ],
)
@pytest.mark.full
async def test_memory_and_processor_time_are_bounded(boxes: Sandbox, body: str, text: str) -> None:
    outcome = await _run(boxes, body)
    assert outcome.status is OutcomeStatus.KILLED
    assert text in outcome.text


@pytest.mark.parametrize("body", sampled(["new ArrayBuffer(2 ** 40)", "Buffer.alloc(2 ** 40)"], 2))
async def test_refused_allocation_is_an_error_of_memory(box: Sandbox, body: str) -> None:
    outcome = await _run(box, f"return {body}.byteLength")
    assert outcome.status is OutcomeStatus.KILLED
    assert "MemoryError: it needed more than" in outcome.text, outcome


async def test_heap_is_bounded() -> None:
    settings = replace(NODE, memory_mb=64, cpu_seconds=20)
    box = await new_sandbox(settings)
    outcome = await _run(box, "const held = []; while (true) held.push(new Array(10_000).fill({}));")
    assert outcome.status is OutcomeStatus.KILLED
    assert "MemoryError: it" in outcome.text, outcome


async def test_endless_output_is_cut(box: Sandbox) -> None:
    """It is read at a bounded rate, so it ends at the limit of time."""
    outcome = await _run(box, "while (true) process.stdout.write('x'.repeat(65536))", seconds=scaled(4))
    assert outcome.status is OutcomeStatus.TIMED_OUT
    assert len(outcome.stdout) < SETTINGS.stream_bytes + 200
    assert "[The output was cut" in outcome.stdout


async def test_output_before_the_end_is_complete(box: Sandbox) -> None:
    roomy = box.with_settings(replace(NODE, stream_bytes=2_000_000))
    body = "const line = 'x'.repeat(199_999); for (let n = 0; n < 4; n++) { console.log(line); console.error(line) }"
    outcome = await _run(roomy, body)
    assert (len(outcome.stdout), len(outcome.stderr)) == (800_000, 800_000), outcome.status


@pytest.mark.parametrize("language", [Language.PYTHON, Language.JAVASCRIPT])
async def test_program_calls_tools(box: Sandbox, language: Language) -> None:
    calls: list[ToolCall] = []

    async def answer(call: ToolCall) -> ToolAnswer:
        calls.append(call)
        return ToolAnswer(call.name == "look", f"{call.name} {call.arguments}")

    if language is Language.PYTHON:
        source = "try:\n    refuse(1)\nexcept ToolError as error:\n    text = str(error)\n[look('é', b=2), text]"
    else:
        source = (
            "let text; try { await refuse(1) } catch (error) { text = `${error.name} ${error.message}` }\n"
            "export default ([await look({ a: 'é', b: 2 }), text]);"
        )
    task = Task(source, "run", language=language, is_program=True, tools={"look": ("a", "b"), "refuse": ("x",)})
    outcome = await box.run(task, scaled(60), Access(calls=answer))
    refused = "refuse {'x': 1}" if language is Language.PYTHON else "ToolError refuse {'x': 1}"
    assert value_of(outcome) == ["look {'a': 'é', 'b': 2}", refused], outcome
    assert [call.name for call in calls] == ["refuse", "look"]


async def test_calls_of_a_program_end_with_it(box: Sandbox) -> None:
    """Of the call that runs, and those behind it, nothing is left."""
    ended: list[str] = []

    async def answer(call: ToolCall) -> ToolAnswer:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call.name)
        return ToolAnswer(True, "")

    source = "look(1); look(2); setTimeout(() => process.exit(0), 50); await new Promise(() => {})"
    task = Task(source, "run", language=Language.JAVASCRIPT, is_program=True, tools={"look": ("a",)})
    outcome = await box.run(task, scaled(60), Access(calls=answer))
    assert (outcome.status, ended) == (OutcomeStatus.SUCCESS, ["look"])


_PIPE = """
import os
call = next(cell.cell_contents for cell in look.__closure__ if callable(cell.cell_contents))
pipe = call.__closure__[call.__code__.co_freevars.index("calls")].cell_contents
"""


@pytest.mark.parametrize(
    "line", sampled(["x", '{"id": "1"}', "[]", "[" * 2000, '{"id": 1, "name": "a", "arguments": []}'], 3)
)
async def test_line_that_is_no_call_ends_the_calls(box: Sandbox, line: str) -> None:
    async def answer(call: ToolCall) -> ToolAnswer:
        return ToolAnswer(True, "reached")

    source = f"{_PIPE}\nos.write(pipe, {line!r}.encode() + b'\\n')\nlook(1)"
    task = Task(source, "run", is_program=True, tools={"look": ("a",)})
    outcome = await box.run(task, scaled(60), Access(calls=answer))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.ERROR,
        "Error executing function run: ToolError: Tools cannot be called any more",
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 2\nx * 21", "42"),
        ("import asyncio\nawait asyncio.sleep(0)\n'done'", "done"),
        ("import sys\nprint('out')\nsys.exit(0)", ""),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(3)", '{"x": 3}'),
        ("x = 1", ""),
        ("", ""),
    ],
)
async def test_value_of_the_last_expression_is_the_result(box: Sandbox, source: str, text: str) -> None:
    outcome = await box.run(Task(source, "run", is_program=True), scaled(60))
    assert (outcome.status, outcome.text, outcome.stderr) == (OutcomeStatus.SUCCESS, text, "")


async def test_error_of_a_program_has_a_short_trace(box: Sandbox) -> None:
    outcome = await box.run(Task("def f():\n    return 1 / 0\nf()", "run", is_program=True), scaled(60))
    assert outcome.text == "Error executing function run: ZeroDivisionError: division by zero"
    assert 'File "<tool run>", line 2, in f' in outcome.stderr
    assert "mnemesh" not in outcome.stderr


async def test_processes_of_node_wait_for_tasks() -> None:
    box = (await new_sandbox(NODE)).warmed(1)
    try:
        for number in range(2):
            task = _task("return value", "value: number", arguments={"value": number}, parameters=("value",))
            assert value_of(await box.run(task, scaled(60))) == number
        assert list(box._pool._waiting) == [(NODE.node,)]  # type: ignore[union-attr]
    finally:
        await box.close()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be executed"),
        ("#!/bin/sh\necho v20.1.0\n", "has the version v20.1.0, and tools need 22.21"),
        ("#!/bin/sh\necho v24.4.1\n", "has the version"),
        ("#!/bin/sh\necho hello\n", "is not Node.js"),
    ],
)
def test_program_that_is_no_recent_node_is_refused(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "node"
    if content is not None:
        path.write_text(content)
        path.chmod(0o755)
    with pytest.raises(NoNode, match=problem):
        find_node(str(path))
