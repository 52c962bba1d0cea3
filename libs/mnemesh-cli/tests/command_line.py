"""The `mnemesh` command in the process of a test, against a mesh in another thread."""

import os

import pytest
from mnemesh.agents.v1 import runs_pb2
from mnemesh_client import Agent, Group, Mnemesh
from mnemesh_testkit.mesh.command_line import run_command
from mnemesh_testkit.mesh.in_process import MeshThread


class CommandLine:
    """The `mnemesh` command, in this process."""

    def __init__(self, running: MeshThread, monkeypatch: pytest.MonkeyPatch) -> None:
        self._running = running
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("COLUMNS", "200")
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)

    def environment(self) -> dict[str, str]:
        """Returns the variables with which the command finds the mesh: one address, as users have it."""
        return {
            "MNEMESH_TARGET": self._running.mesh.addresses["orchestrator"],
            "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"],
        }

    def require_approval(self, agent: Agent, tool: str) -> None:
        """Makes the calls of a tool of an agent require an approval."""
        self._running.run(agent.set_tool_approval(tool))

    @property
    def client(self) -> Mnemesh:
        """A client of the mesh. Its coroutines run in the thread of the mesh."""
        return self._running.mesh.client

    def agent(self, name: str, **options: object) -> Agent:
        """Creates an agent."""
        return self._running.run(self.client.agents.create(name, **options))  # type: ignore[arg-type]

    def group(self, group_id: str) -> Group:
        """Returns a group."""
        return self._running.run(self.client.groups.get(group_id))

    def wait(self, run_id: str) -> runs_pb2.Run:
        """Waits for the end of a run."""
        return self._running.run(self.client.runs.wait(run_id))

    def lines_of_terminal(self, *arguments: str) -> list[str]:
        """Runs a command that succeeds. Returns what a terminal of 80 columns shows of stdout."""
        with self._monkeypatch.context() as patch:
            patch.setenv("COLUMNS", "80")
            patch.setenv("TERM", "dumb")
            code, out, err = self.run(*arguments, is_terminal=True)
        assert code == 0, err
        return out.splitlines()

    def run(self, *arguments: str, stdin: str = "", is_terminal: bool = False) -> tuple[int, str, str]:
        """Runs a command. Returns its exit code, stdout and stderr."""
        return run_command(*arguments, stdin=stdin, is_terminal=is_terminal)
