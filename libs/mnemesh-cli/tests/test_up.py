"""`mnemesh up`, `down`, `doctor` and `maintain` with all services as processes.

Starting a mesh takes seconds of processor time, so each test checks several things on one or two meshes.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh_cli.supervisor.config import lock_holder
from mnemesh_kit.services import SERVICE_NAMES, STORE_NAMES, service
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Fault, Reply, status
from mnemesh_testkit.mesh.command_line import run_command
from mnemesh_testkit.timeouts import scaled

pytestmark = pytest.mark.timeout(scaled(300))


class Commands:
    """Runs `mnemesh` commands with one data directory and one set of ports."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        variables = {service(name).port_variable: str(port) for name, port in ports.items()}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI", "MNEMESH"))}
        self.directory = directory
        self.current: Path | None = None
        """The current directory of the commands, unless it is that of the tests."""
        limits = {"MNEMESH_SHUTDOWN_GRACE_SECONDS": str(scaled(20))}
        self.environment = {**inherited, **variables, **limits, "MNEMESH_DATA_DIR": str(directory)}
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        """Starts a command as `mnemesh` does: the modules of the current directory do not count."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "mnemesh_cli"),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self.environment, **environment},
            cwd=self.current,
        )
        self._processes.append(process)
        return process

    async def run(self, *arguments: str, **environment: str) -> tuple[int | None, str, str]:
        """Runs a command. Returns its exit code, stdout and stderr."""
        process = await self.start(*arguments, **environment)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async def run_here(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Runs a command in the process of the test. Returns the same."""
        variables = {**self.environment, **environment}
        return await asyncio.to_thread(run_command, *arguments, environment=variables)

    async def close(self) -> None:
        """Kills running commands, and stops a mesh in the background."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if lock_holder(self.directory) is not None:
            await self.run_here("down")


@pytest_asyncio.fixture
async def commands(tmp_path: Path, reserve_port: Callable[[], int]) -> AsyncIterator[Commands]:
    """Commands with an empty data directory and free ports."""
    commands = Commands(tmp_path / "data", {name: reserve_port() for name in SERVICE_NAMES})
    yield commands
    await commands.close()


async def test_chat_survives_a_crash_of_the_mesh(commands: Commands) -> None:
    chat = await commands.start("up", "--chat")
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write(b"My name is Ada.\n")
    await _read_until(chat.stdout, "Ada")
    os.kill(_only_child(chat.pid), signal.SIGKILL)
    chat.stdin.write(b"What is my name?\n")
    await _read_until(chat.stdout, "Your name is Ada")
    mesh = _only_child(chat.pid)
    chat.terminate()
    _, err = await chat.communicate()
    notices = err.decode()
    assert chat.returncode == 0, notices
    assert not Path(f"/proc/{mesh}").exists()
    for notice in (
        "model mnemesh/rehearsal",
        "embedder mnemesh/wordllama-256",
        "created the first agent, mnemesh",
        "mesh was killed by SIGKILL; restarting it",
    ):
        assert notice in notices


@pytest.mark.full
async def test_chat_goes_on_with_the_model_of_a_provider(commands: Commands) -> None:
    """The first turn of the second mesh is interrupted by a crash."""
    chat = await commands.start("up", "--chat")
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write(b"My name is Ada.\n")
    await _read_until(chat.stdout, "Ada")
    chat.terminate()
    await chat.communicate()
    called, called_again = asyncio.Event(), asyncio.Event()
    requests: list[str] = []

    async def answer(request: object) -> Reply | Fault:
        requests.append(str(request))
        if not called.is_set():
            called.set()
            return Reply(text="Lost.", gates=[asyncio.Event()])
        if not called_again.is_set():
            called_again.set()
            return Reply(text="Here I am.")
        return status(401, "No such key.")

    async with FakeOpenAI(answer, models=["small"]) as provider:
        chat = await commands.start("up", "--chat", OPENAI_API_KEY="sk-test", OPENAI_BASE_URL=provider.base_url)
        assert chat.stdin is not None
        chat.stdin.write(b"Where are you?\n")
        await called.wait()
        os.kill(_only_child(chat.pid), signal.SIGKILL)
        await called_again.wait()
        out, err = await chat.communicate(b"And now?\n")

    assert out.decode() == "Here I am.\n"
    assert "My name is Ada." in requests[0]
    notices = err.decode()
    assert "using agent mnemesh" in notices
    assert "now with openai/small instead of mnemesh/rehearsal" in notices
    refusals = [line for line in notices.splitlines() if "refused the API key" in line]
    assert len(refusals) == 1
    assert "OPENAI_API_KEY" in refusals[0]
    assert "Traceback" not in notices
    assert "sk-test" not in notices
    assert chat.returncode == 1


@pytest.mark.full
async def test_mesh_runs_in_the_background_and_is_maintained_after_down(commands: Commands, tmp_path: Path) -> None:
    """Every top-level module that a command could import from the current directory ends the program."""
    commands.current = tmp_path / "project"
    commands.current.mkdir()
    for name in ("rich", "typer", "structlog", "grpc", "mnemesh_cli", "mnemesh_kit", "asyncio", "sitecustomize"):
        (commands.current / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current directory ran')")
    assert (await commands.run_here("maintain"))[0] == 2, "there is no data directory yet"

    commands.directory.mkdir()
    commands.directory.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections, and never answers
        variables = {"OPENAI_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/v1"}
        code, out, err = await commands.run("up", "--background", "--json", **variables)
    assert code == 0, err
    assert "mnemesh: model" not in err
    started = json.loads(out)
    assert started["addresses"].keys() == set(SERVICE_NAMES)
    assert "ready after" in err
    assert f"other users had access to {commands.directory}" in err
    files = [commands.directory, *commands.directory.rglob("*")]
    assert len(files) > len(SERVICE_NAMES)
    assert [file for file in files if file.stat().st_mode & 0o077] == []
    code, out, _ = await commands.run_here("doctor")
    assert (code, [line.split()[1] for line in out.splitlines() if line.startswith("✗")]) == (1, ["provider"]), out
    assert out.count(" is serving version ") == len(SERVICE_NAMES)
    assert "sandbox       level " in out
    assert "parsers       is opened with the first document; documents are not parsed below level " in out
    assert "; memory: " in out
    assert "; network: " in out
    without_ports = {service(name).port_variable: "" for name in SERVICE_NAMES}
    code, out, err = await commands.run("agents", "list", **without_ports)
    assert code == 0, err
    code, out, err = await commands.run_here("maintain")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "Another mesh" in err

    code, out, _ = await commands.run_here("down", "--json")
    assert (code, json.loads(out)["stopped_pid"]) == (0, started["pid"])
    code, out, _ = await commands.run_here("doctor")
    assert code == 1
    assert out.count("does not answer. Start a mesh with `mnemesh up`.") == len(SERVICE_NAMES)
    assert "no mesh is running" in (await commands.run_here("down"))[2]

    code, out, err = await commands.run("maintain", "--json")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    for name in STORE_NAMES:
        report = [row["line"] for row in rows if row["service"] == name]
        assert any(line.startswith(f"{name}.db: ") for line in report), out
        assert any(line.startswith("idempotency keys deleted: ") for line in report), out
    (commands.directory / f"{STORE_NAMES[0]}.db").write_bytes(b"not a database" * 1000)
    code, _, err = await commands.run_here("maintain")
    assert code == 2
    assert f"{STORE_NAMES[0]}: " in err
    assert "current directory" not in "".join(path.read_text() for path in (commands.directory / "logs").iterdir())


async def _read_until(stream: asyncio.StreamReader, text: str) -> None:
    """Reads lines up to one that contains `text`."""
    lines = ""
    while text not in lines:
        line = (await stream.readline()).decode()
        assert line, f"the stream ended without {text!r}: {lines}"
        lines += line


def _only_child(parent: int) -> int:
    """Returns the pid of the only child of a process."""
    (pid,) = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(pid)
