"""The sandbox: what a tool can and cannot do, with each set of layers that this host supports."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mnemesh_tools.sandbox
import pytest
from mnemesh_tools.sandbox import (
    AgentView,
    Isolation,
    Level,
    Outcome,
    OutcomeStatus,
    Sandbox,
    SandboxSettings,
    SandboxUnavailable,
    Task,
    process,
)
from mnemesh_tools.sandbox.inside import plan as layer
from mnemesh_tools.sandbox.isolation import probe

Run = Callable[..., Coroutine[Any, Any, Outcome]]
MARK = "mnemesh_sandbox_test_mark"


def _source(body: str, parameters: str = "") -> str:
    return f"def tool({parameters}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


def _value(outcome: Outcome) -> Any:
    assert outcome.status is OutcomeStatus.SUCCESS, outcome
    return json.loads(outcome.text)


def _alive(mark: str) -> list[str]:
    """Returns the processes whose command line contains `mark`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in command:
            found.append(f"{entry.parent.name}: {command}")
    return found


def _children_running(script: str) -> list[str]:
    """Returns the children of this process that run `script`."""
    pids = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
    return [line for line in _alive(script) if line.partition(":")[0] in pids]


async def test_value_output_and_time(run: Run) -> None:
    """The result is separate from stdout."""
    outcome = await run(_source("print('seen'); import sys; print('bad', file=sys.stderr); return x * 2", "x"), x=21)
    assert (outcome.status, outcome.text, outcome.stdout, outcome.stderr) == (
        OutcomeStatus.SUCCESS,
        "42",
        "seen\n",
        "bad\n",
    )
    assert 0 < outcome.duration < 10


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'as \"it\" is\\nß'", 'as "it" is\nß'),
        ("None", "None"),
        ("True", "true"),
        ("[1, {'a': None}]", '[1, {"a": null}]'),
        ("{'k': {3}}", '{"k": [3]}'),
        ("(1, 'ß')", '[1, "ß"]'),
        ("{(1, 2): 3}", "{(1, 2): 3}"),
        ("__import__('datetime').date(2026, 1, 2)", "2026-01-02"),
        ("'a\\0b'", "a\N{REPLACEMENT CHARACTER}b"),
        ("'a\\ud800b'", "a?b"),
    ],
)
async def test_returned_values_as_text(run: Run, expression: str, text: str) -> None:
    assert (await run(_source(f"return {expression}"))).text == text


async def test_arguments_are_passed_as_data(run: Run) -> None:
    text = "'''\"; import os\n\\x00 {braces} $HOME \N{SNOWMAN}"
    assert _value(await run(_source("return [a, b]", "a, b"), a=text, b=[text, {"k": None}])) == [
        text,
        [text, {"k": None}],
    ]


async def test_async_tools_typing_names_and_optional_parameters_work(run: Run) -> None:
    source = """async def tool(a: List[int], b: Optional[str], c=3):
    import asyncio
    await asyncio.sleep(0)
    return [a, b, c]
"""
    assert _value(await run(source, a=[1])) == [[1], None, 3]


async def test_exception_is_one_line_with_the_traceback_in_stderr(run: Run) -> None:
    outcome = await run(_source("raise ValueError('no such city')"))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.ERROR,
        "Error executing function tool: ValueError: no such city",
    )
    assert "raise ValueError('no such city')" in outcome.stderr
    assert "runner.py" not in outcome.stderr
    assert len((await run(_source("raise ValueError('x' * 10**6)"))).text) <= 1000
    assert (await run("def tool(:")).text.startswith("Error executing function tool: SyntaxError: ")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(0)", "its process ended before the function returned"),
        (
            "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'{\"ok\": true')\n    except OSError: pass",
            "cannot be read",
        ),
        (
            "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'[]')\n    except OSError: pass\nos._exit(0)",
            "cannot be read",
        ),
        ("import os\nos.closerange(0, 100)", "ended before the function returned"),
        ("class Evil:\n    def __str__(self): raise RuntimeError('no text')\nreturn Evil()", "RuntimeError: no text"),
    ],
)
async def test_forged_broken_or_missing_result_is_an_error(run: Run, body: str, words: str) -> None:
    outcome = await run(_source(body))
    assert outcome.status is OutcomeStatus.ERROR
    assert words in outcome.text


async def test_long_results_and_output_are_cut(run: Run) -> None:
    outcome = await run(_source("print('x' * 3_000_000)\nreturn 'y' * 3_000_000"))
    assert (len(outcome.text), outcome.chars) == (1_000_000, 3_000_000)
    assert outcome.stdout.endswith("[The output was cut: it has 3000001 bytes, and 100000 are kept.]")
    assert len(outcome.stdout) < 100_100


async def test_environment_contains_only_the_variables_of_the_call(sandbox: Sandbox) -> None:
    body = """
    import os
    try:
        started_with = open('/proc/self/environ').read()
    except OSError:
        started_with = ''
    return [dict(os.environ), started_with]
    """
    task = Task(_source(body), "tool", {}, {"TOKEN": "a=b\n'c'"})
    assert _value(await sandbox.run(task, 20)) == [{"TOKEN": "a=b\n'c'"}, ""]


async def test_server_environment_cannot_be_read(run: Run) -> None:
    """Neither through /proc of any process, nor its memory or open files."""
    body = """
    import glob, os
    pids = {str(server), *(p.split('/')[2] for p in glob.glob('/proc/[0-9]*'))} - {str(os.getpid())}
    read = []
    for pid in pids:
        for name in ('environ', 'mem', 'maps', 'fd'):
            path = f'/proc/{pid}/{name}'
            try:
                os.listdir(path) if name == 'fd' else open(path, 'rb').read(1)
                if name != 'environ' or open(path, 'rb').read():
                    read.append(path)
            except OSError:
                pass
    return read
    """
    assert _value(await run(_source(body, "server"), server=os.getpid())) == []


async def test_files_of_others_cannot_be_read_or_written(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    secret = tmp_path / "tools.db"
    secret.write_text("secret")
    body = """
    import os, pathlib
    done = []
    for path in paths:
        for attempt in (open, os.listdir, lambda p: open(p, 'w'), lambda p: open(p + '.new', 'w')):
            try:
                attempt(path)
                done.append(path)
            except OSError:
                pass
    return done
    """
    paths = [str(secret), str(tmp_path), "/etc/shadow", str(Path(__file__)), str(Path(__file__).parent)]
    assert _value(await run(_source(body, "paths"), paths=paths)) == []
    assert secret.read_text() == "secret"


async def test_system_and_interpreter_are_read_only(run: Run) -> None:
    body = """
    import json, os, sys
    done = []
    for path in ('/', '/usr', '/usr/bin', '/dev', '/etc', '/var/tmp', os.path.dirname(json.__file__)):
        try:
            open(os.path.join(path, 'left'), 'w')
            done.append(path)
        except OSError:
            pass
    return done
    """
    assert _value(await run(_source(body))) == []


@pytest.mark.parametrize("parent", ["/tmp", "/dev/shm"])
async def test_interpreter_below_a_private_directory_disables_no_layer(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, parent: str
) -> None:
    """The sandbox has its own /tmp and /dev/shm, and the Python environment below those of the host."""
    supported = (await Sandbox.open(SandboxSettings(minimum=Level.MINIMAL))).isolation
    below = TemporaryDirectory(dir=parent)
    request.addfinalizer(below.cleanup)
    Path(below.name).chmod(0o755)
    library = Path(below.name) / "environment" / "lib"
    library.mkdir(parents=True)
    (library / "marker").write_text("seen")
    known = process.python_directories()
    monkeypatch.setattr(process, "python_directories", lambda: [*known, str(library)])
    sandbox = await Sandbox.open(SandboxSettings(minimum=Level.MINIMAL))
    assert sandbox.isolation.layers == supported.layers
    body = """
    import os, tempfile
    tempfile.TemporaryFile().write(b"x")
    return [open(path).read(), *os.listdir(".")]
    """
    outcome = await sandbox.run(Task(_source(body, "path"), "tool", {"path": str(library / "marker")}), 20.0)
    assert _value(outcome) == ["seen"]


async def test_standard_library_works_inside(run: Run) -> None:
    """Also modules of packages that were loaded before their path became unreachable, and extension modules."""
    body = """
    import asyncio, csv, datetime, email.mime.text, hashlib, json.tool, re, sqlite3, subprocess, tempfile, zoneinfo
    with tempfile.TemporaryDirectory() as directory:
        open(directory + '/a', 'w').write('x')
    con = sqlite3.connect(':memory:')
    out = subprocess.run(['/bin/echo', 'child'], capture_output=True, text=True).stdout
    return [con.execute('select 1 + 1').fetchone()[0], out, hashlib.sha256(b'').hexdigest()[:4]]
    """
    assert _value(await run(_source(body))) == [2, "child\n", "e3b0"]


async def test_tool_has_its_own_uid_and_no_privileges(run: Run, sandbox: Sandbox) -> None:
    body = """
    import os
    status = {}
    try:
        status = dict(line.split(':', 1) for line in open('/proc/self/status'))
    except OSError:
        pass
    shown = [status.get(name, default).strip() for name, default in (('CapEff', '0'), ('NoNewPrivs', '1'))]
    return [os.getuid(), os.getgid(), os.getgroups(), *shown]
    """
    uid, gid, groups, capabilities, no_new_privileges = _value(await run(_source(body)))
    assert uid != 0
    assert int(capabilities, 16) == 0
    assert no_new_privileges == "1"
    if {layer.OWN_UID, layer.USER_NAMESPACE} & sandbox.isolation.layers:
        assert 61_000 <= uid < 62_000
        assert gid == uid
    if os.geteuid() == 0:
        assert groups == []


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"])
async def test_network_is_out_of_reach(run: Run, family: str) -> None:
    """A listener on loopback is unreachable, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = """
        import socket
        try:
            s = socket.socket(getattr(socket, family))
            s.settimeout(2)
            ip = {'AF_INET': ('127.0.0.1', port), 'AF_INET6': ('::1', port)}
            s.connect({**ip, 'AF_UNIX': '\\0x', 'AF_NETLINK': (0, 0)}[family])
        except OSError as error:
            return 'refused'
        return 'connected'
        """
        outcome = await run(_source(body, "family, port"), family=family, port=listener.getsockname()[1])
        assert outcome.text == "refused"


@pytest.mark.parametrize(
    "body",
    [
        "import ctypes; return ctypes.CDLL(None).unshare(0x10000000)",
        "import ctypes; return ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "import ctypes; return ctypes.CDLL(None).ptrace(0, 0, 0, 0)",
        "import ctypes; return ctypes.CDLL(None).syscall(425, 8, 0)",
        "import ctypes; return ctypes.CDLL(None).setuid(0)",
        "import os\ntry: os.kill(server, 0)\nexcept OSError: return -1\nreturn 0",
    ],
)
async def test_dangerous_system_calls_are_denied(run: Run, body: str) -> None:
    assert (
        await run(
            _source(body, "server=0" if "server" not in body else "server"),
            **({"server": os.getpid()} if "server" in body else {}),
        )
    ).text == "-1"


async def test_timeout_kills_the_tool_and_its_daemons(run: Run) -> None:
    """A double-forked daemon in its own session is killed, too."""
    body = """
    import os, subprocess, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            subprocess.Popen(['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'])
            os.execv('/bin/sh', ['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'])
        os._exit(0)
    print('up', flush=True)
    time.sleep(600)
    """
    mark = f"{MARK}_{time.monotonic_ns()}"
    running = asyncio.create_task(run(_source(body, "mark"), seconds=1.5, mark=mark))
    while not _alive(f": {mark}"):
        assert not running.done(), running.result()
        await asyncio.sleep(0)
    outcome = await running
    assert outcome.status is OutcomeStatus.TIMED_OUT
    assert outcome.text == "Error executing function tool: TimeoutError: it ran longer than 1.5 seconds and was stopped"
    assert outcome.stdout == "up\n"
    assert 1.5 <= outcome.duration < 5
    assert _alive(f": {mark}") == []


async def test_daemons_are_killed_when_the_function_returns(run: Run) -> None:
    body = """
    import subprocess
    subprocess.Popen(['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'], start_new_session=True)
    return 1
    """
    mark = f"{MARK}_{time.monotonic_ns()}"
    assert _value(await run(_source(body, "mark"), mark=mark)) == 1
    assert _alive(f": {mark}") == []


async def test_cancellation_kills_the_tool(run: Run) -> None:
    mark = f"{MARK}_{time.monotonic_ns()}"
    body = "import os; os.execv('/bin/sh', ['/bin/sh', '-c', f': {mark}; while :; do sleep 1; done'])"
    running = asyncio.create_task(run(_source(body, "mark"), mark=mark))
    while not _alive(f": {mark}"):
        assert not running.done(), running.result()
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert _alive(f": {mark}") == []


async def test_fork_bomb_reaches_its_limit_and_is_cleaned_up(run: Run) -> None:
    body = """
    import os, time
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
    """
    outcome = await run(_source(body), seconds=2)
    assert outcome.status in (OutcomeStatus.TIMED_OUT, OutcomeStatus.KILLED)
    assert outcome.duration < 10
    assert (await run(_source("return 'fine'"))).text == "fine"
    assert _children_running("inside/start.py") == []


async def test_memory_is_limited(run: Run) -> None:
    outcome = await run(_source("held = []\nwhile True: held.append(bytearray(10_000_000))"))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.KILLED,
        "Error executing function tool: MemoryError: it needed more than 256 MB of memory",
    )


async def test_processor_time_is_limited(run: Run) -> None:
    outcome = await run(_source("while True: pass"))
    assert (outcome.status, outcome.text) == (
        OutcomeStatus.KILLED,
        "Error executing function tool: ResourceError: it used more than 2 seconds of processor time and was stopped",
    )


async def test_size_of_a_file_is_limited(run: Run) -> None:
    outcome = await run(_source("open('big', 'wb').write(b'x' * 20_000_000)"))
    assert outcome.status is OutcomeStatus.ERROR
    assert "OSError" in outcome.text


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory in which this test creates the working directories of tools."""
    with TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


async def test_working_directory_is_removed(directories: Path, run: Run) -> None:
    """Also if the tool has revoked permissions on it."""
    body = """
    import os
    os.makedirs('a/b')
    open('a/b/c', 'w').write('x')
    os.chmod('a/b', 0)
    os.chmod('a', 0)
    """
    outcome = await run(_source(body))
    assert outcome.status is OutcomeStatus.SUCCESS
    assert list(directories.iterdir()) == []
    assert (await run(_source("import os; return sorted(os.listdir('.'))"))).text == "[]"


async def test_concurrent_executions_are_separate(sandbox: Sandbox) -> None:
    """Each has its own directory and processes, and its own uid if the server can change uids."""
    body = """
    import os, time
    open('mine', 'w').write(str(number))
    time.sleep(0.2)
    return [number, open('mine').read(), os.getuid()]
    """
    tasks = [Task(_source(body, "number"), "tool", {"number": number}) for number in range(6)]
    started = time.monotonic()
    results = [_value(outcome) for outcome in await asyncio.gather(*(sandbox.run(task, 20) for task in tasks))]
    assert [(number, text) for number, text, _ in results] == [(number, str(number)) for number in range(6)]
    assert time.monotonic() - started < 4
    if layer.OWN_UID in sandbox.isolation.layers:
        assert len({uid for *_, uid in results[:4]}) == 4


async def test_agent_state_can_be_read_and_changed(sandbox: Sandbox) -> None:
    """Only changed blocks are returned."""
    body = """
    memory = agent_state.memory
    memory.update_block_value(label='human', value=memory.get_block('human').value + ' rides')
    return [agent_state.id, agent_state.name, memory.list_block_labels()]
    """
    agent = AgentView("agent-1", "Ada", {"human": "Bo", "persona": "calm"})
    outcome = await sandbox.run(Task(_source(body, "agent_state"), "tool", agent=agent), 20)
    assert _value(outcome) == ["agent-1", "Ada", ["human", "persona"]]
    assert outcome.changed_blocks == {"human": "Bo rides"}


async def test_tools_are_refused_below_the_minimum_level() -> None:
    """The error names the layers that the host refused."""
    sandbox = Sandbox(SandboxSettings(), Isolation(frozenset({layer.SECCOMP, layer.LANDLOCK}), {"own_uid": "EPERM"}))
    with pytest.raises(
        SandboxUnavailable, match=r"at level minimal, below the configured minimum restricted .*own_uid: EPERM"
    ):
        await sandbox.run(Task(_source("return 1"), "tool"), 5)


async def test_probe_removes_the_layers_that_the_host_refuses() -> None:
    """In ordinary containers there are no namespaces, but uids, Landlock and seccomp."""
    supported = {layer.OWN_UID, layer.LANDLOCK, layer.SECCOMP}

    async def attempt(layers: Any) -> tuple[str, str] | None:
        return next(((name, "EPERM") for name in layer.LAYERS if name in layers and name not in supported), None)

    isolation = await probe(attempt, set(layer.LAYERS) - {layer.USER_NAMESPACE})
    assert isolation.layers == supported
    assert isolation.level is Level.RESTRICTED
    assert layer.PID_NAMESPACE in isolation.missing


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_can_execute_tools() -> None:
    """Uses an interpreter of the system and a copy of the package, which that user can read."""
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), None)
    if python is None:
        pytest.skip("this machine has no interpreter that an ordinary user can run")
    copy = Path(tempfile.mkdtemp(prefix="mnemesh-copy-"))
    copy.chmod(0o755)
    try:
        package = copy / "mnemesh_tools"
        shutil.copytree(Path(mnemesh_tools.sandbox.__file__).parent, package / "sandbox")
        (package / "__init__.py").touch()
        script = textwrap.dedent("""
            import asyncio, json
            from mnemesh_tools.sandbox import Sandbox, SandboxSettings, Level, Task
            async def main():
                box = await Sandbox.open(SandboxSettings(minimum=Level.MINIMAL))
                if box.isolation.level is Level.NONE:
                    return [0, dict(box.isolation.missing)]
                out = await box.run(Task("def tool():\\n    import os\\n    return os.getuid()", "tool"), 20)
                return [int(box.isolation.level), out.text]
            print(json.dumps(asyncio.run(main())))
        """)
        done = subprocess.run(
            [python, "-c", script],
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        level, text = json.loads(done.stdout)
        pool = SandboxSettings()
        # The free uids of the pool depend on other processes of this machine.
        assert level == Level.NONE or text == "65534" or int(text) - pool.first_uid in range(pool.uids)
    finally:
        shutil.rmtree(copy)
