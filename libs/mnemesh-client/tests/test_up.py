"""`mnemesh up --chat` as somebody lives with it: the whole real mesh, started, talked to, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_kit.services import SERVICE_NAMES
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.script import Reply, status

pytestmark = pytest.mark.timeout(120)


class Up:
    """Runs of `mnemesh` on one data directory and one set of ports."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        variables = {f"MNEMESH_{room.upper()}_PORT": str(port) for room, port in ports.items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "MNEMESH"))}
        self.environment = {**inherited, **variables, "MNEMESH_DATA_DIR": str(directory)}
        self._running: list[asyncio.subprocess.Process] = []

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        """Starts the command."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mnemesh_client"),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self.environment, **environment},
        )
        self._running.append(process)
        return process

    async def run(self, *arguments: str, stdin: str = "", **environment: str) -> tuple[int | None, str, str]:
        """Runs it to its end: exit code, stdout, stderr."""
        process = await self.start(*arguments, **environment)
        out, err = await process.communicate(stdin.encode())
        return process.returncode, out.decode(), err.decode()

    async def close(self) -> None:
        """Ends what still runs, in the background too."""
        for process in self._running:
            if process.returncode is None:
                process.kill()
                await process.wait()
        await self.run("down")


@pytest_asyncio.fixture
async def up(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Up]:
    """A machine of the test's own, so to speak."""
    runs = Up(tmp_path / "data", {room: unused_tcp_port_factory() for room in SERVICE_NAMES})
    yield runs
    await runs.close()


async def test_a_restarted_mesh_goes_on_with_the_same_agent_and_its_memory(up: Up) -> None:
    code, out, err = await up.run("up", "--chat", stdin="My name is Ada.\n")
    assert code == 0, err
    assert "Ada" in out
    assert "created the first agent" in err
    assert "mnemesh/rehearsal" in err
    assert "mnemesh/wordllama-256" in err

    code, out, err = await up.run("up", "--chat", stdin="What is my name?\n")

    assert code == 0, err
    assert "Ada" in out
    assert "using agent mnemesh" in err


async def test_a_mesh_is_maintained_while_it_does_not_run(up: Up) -> None:
    assert (await up.run("maintain"))[0] == 2, "there is nothing yet"
    code, _, err = await up.run("up", "--background")
    assert code == 0, err
    code, out, err = await up.run("maintain")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "Another mesh" in err
    assert (await up.run("down"))[0] == 0
    code, out, err = await up.run("maintain")
    assert (code, err) == (0, "")
    for room in SERVICE_NAMES:
        own = [line.removeprefix(room).strip() for line in out.splitlines() if line.startswith(f"{room} ")]
        assert any(line.startswith(f"{room}.db: ") for line in own), out
        assert any(line.startswith("idempotency keys deleted: ") for line in own), out
    (Path(up.environment["MNEMESH_DATA_DIR"]) / "recall.db").write_bytes(b"no database" * 1000)
    code, _, err = await up.run("maintain")
    assert code == 2
    assert "recall: " in err


async def test_a_chat_outlives_the_death_of_the_orchestrator(up: Up) -> None:
    chat = await up.start("up", "--chat")
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write(b"My name is Ada.\n")
    await _until(chat.stdout, "Ada")

    os.kill(_child(chat.pid, "mnemesh_orchestrator"), signal.SIGKILL)
    chat.stdin.write(b"What is my name?\n")
    await _until(chat.stdout, "Your name is Ada")

    chat.stdin.close()
    assert await chat.wait() == 0
    assert chat.stderr is not None
    assert "orchestrator was killed by SIGKILL; restarting it" in (await chat.stderr.read()).decode()


async def test_a_turn_outlives_the_death_of_the_orchestrator_in_the_middle_of_it(up: Up) -> None:
    asked, asked_again = asyncio.Event(), asyncio.Event()

    async def answer(_: object) -> Reply:
        if not asked.is_set():
            asked.set()
            return Reply(text="Never said.", gates=[asyncio.Event()])
        asked_again.set()
        return Reply(text="Here I am.")

    async with FakeOpenAI(answer, models=["small"]) as provider:
        chat = await up.start("up", "--chat", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=provider.base_url)
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(b"Where are you?\n")
        await asked.wait()
        os.kill(_child(chat.pid, "mnemesh_orchestrator"), signal.SIGKILL)
        await asked_again.wait()
        out, _ = await chat.communicate(b"")

    assert out.decode() == "Here I am.\n"
    assert chat.returncode == 0


async def test_another_model_is_taken_when_there_is_a_key_and_a_refused_key_is_one_line(up: Up) -> None:
    await up.run("up", "--chat", stdin="My name is Ada.\n")
    async with FakeOpenAI([Reply(text="Hello, Ada."), status(401, "No such key.")], models=["small"]) as provider:
        code, out, err = await up.run(
            "up", "--chat", stdin="Hello\nAgain\n", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=provider.base_url
        )

    assert out == "Hello, Ada.\n"
    assert "now with openai/small instead of mnemesh/rehearsal" in err
    refusals = [line for line in err.splitlines() if "refused the API key" in line]
    assert len(refusals) == 1
    assert "OPENAI_API_KEY" in refusals[0]
    assert "Traceback" not in err
    assert "sk-test" not in err
    assert code == 1


async def test_a_model_that_nobody_serves_is_refused_at_the_start(up: Up) -> None:
    code, _, err = await up.run("up", MNEMESH_MODEL="gpt")

    assert code == 2
    assert "MNEMESH_MODEL cannot be used" in err.splitlines()[-1]
    assert "Traceback" not in err


async def test_a_mesh_runs_in_the_background_until_it_is_taken_down(up: Up) -> None:
    code, _, err = await up.run("up", "--background")
    assert code == 0, err
    assert "ready after" in err
    code, out, _ = await up.run("doctor")
    assert code == 0
    assert out.count(" is serving version ") == len(SERVICE_NAMES)
    assert (await up.run("up", "--background"))[0] == 2

    assert (await up.run("down"))[0] == 0

    code, out, _ = await up.run("doctor")
    assert code == 0
    assert out.count("does not answer. Start a mesh with `mnemesh up`.") == len(SERVICE_NAMES)
    assert "no mesh is running" in (await up.run("down"))[2]


async def test_sigterm_stops_everything_in_order(up: Up) -> None:
    mesh = await up.start("up")
    assert mesh.stderr is not None
    await _until(mesh.stderr, "stops the mesh")
    services = [_child(mesh.pid, f"mnemesh_{room}") for room in SERVICE_NAMES]

    mesh.terminate()

    assert await mesh.wait() == 0
    assert not [pid for pid in services if Path(f"/proc/{pid}").exists()]


async def _until(stream: asyncio.StreamReader, text: str) -> None:
    """Reads lines up to one with `text`."""
    seen = ""
    while text not in seen:
        line = (await stream.readline()).decode()
        assert line, f"the stream ended without {text!r}: {seen}"
        seen += line


def _child(parent: int, module: str) -> int:
    """The pid of the service that a supervisor runs as `module`."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for pid in children:
        if module in Path(f"/proc/{pid}/cmdline").read_text():
            return int(pid)
    raise AssertionError(f"no {module} among {children}")
