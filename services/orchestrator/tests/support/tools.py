"""The real tools service of a world, whose tools are functions of this process."""

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh_kit.ids import derive_id
from mnemesh_orchestrator.clients.tools import ToolsClient, tool_from_proto
from mnemesh_orchestrator.model.rules import CustomTool, ToolResult
from mnemesh_sandbox import Access, Isolation
from mnemesh_sandbox.calls import Answer
from mnemesh_sandbox.isolation import WANTED_AS_ROOT
from mnemesh_sandbox.task import Outcome, OutcomeStatus, Task
from mnemesh_testkit.mesh.local_services import LocalChannel

from .synchronous import run_now

Run = Callable[[Mapping[str, Any], Mapping[str, str]], tuple[ToolResult, Mapping[str, str]]]


async def _empty_program(_answer: Answer | None) -> Outcome:
    return Outcome(OutcomeStatus.SUCCESS, "4", "out\n", "", 0.0, 1)


class FakeSandbox:
    """Runs functions of this process instead of the sources of tools."""

    isolation = Isolation(frozenset(WANTED_AS_ROOT))

    def __init__(self) -> None:
        self.functions: dict[str, Run] = {}
        self.executed: list[tuple[str, Mapping[str, Any]]] = []
        self.programs: list[Task] = []
        self.program: Callable[[Answer | None], Coroutine[Any, Any, Outcome]] = _empty_program

    def with_settings(self, _settings: object) -> "FakeSandbox":
        return self

    def warmed(self, _size: int) -> "FakeSandbox":
        return self

    async def close(self) -> None:
        """Holds nothing."""

    async def run(
        self, task: Task, seconds: float, access: Access | None = None, held: AsyncExitStack | None = None
    ) -> Outcome:
        if task.is_program:
            self.programs.append(task)
            return await self.program(None if access is None else access.calls)
        arguments = {name: value for name, value in task.arguments.items() if value is not None}
        self.executed.append((task.function, arguments))
        blocks = task.agent.blocks if task.agent is not None else {}
        result, changed = self.functions[task.function](arguments, blocks)
        status = OutcomeStatus.SUCCESS if result.ok else OutcomeStatus.ERROR
        lines = ["".join(f"{line}\n" for line in part) for part in (result.stdout, result.stderr)]
        return Outcome(status, result.text, lines[0], lines[1], 0.0, len(result.text), changed)


class Tools(ToolsClient):
    """Custom tools, each a function of its arguments and the agent's blocks."""

    def __init__(self, channel: LocalChannel, sandbox: FakeSandbox) -> None:
        super().__init__(channel)
        self._sandbox = sandbox
        self._builtin: list[CustomTool] = []

    @property
    def executed(self) -> list[tuple[str, Mapping[str, Any]]]:
        return self._sandbox.executed

    @property
    def programs(self) -> list[Task]:
        """The programs that ran."""
        return self._sandbox.programs

    def follow_program(self, program: Callable[[Answer], Coroutine[Any, Any, str]]) -> None:
        """Runs this function in place of the next programs; it returns their result."""

        async def run(answer: Answer | None) -> Outcome:
            assert answer is not None
            text = await program(answer)
            return Outcome(OutcomeStatus.SUCCESS, text, "", "", 0.0, len(text))

        self._sandbox.program = run

    def list_builtin(self, name: str) -> CustomTool:
        """Lists a built-in tool, as a tools service of another version may."""
        tool = CustomTool(derive_id("tool", name), name, "{}", builtin=True)
        self._builtin.append(tool)
        return tool

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        builtin = tuple(tool for tool in self._builtin if tool.id in ids or tool.name in names)
        return builtin + await super().definitions(ids, names)

    def add(self, name: str, run: Run | str = "done", **properties: Any) -> CustomTool:
        text = run if isinstance(run, str) else ""
        constant: Run = lambda *_: (ToolResult(ok=True, text=text), {})  # noqa: E731
        self._sandbox.functions[name] = constant if isinstance(run, str) else run
        fields = {_FIELDS[key]: value for key, value in properties.items()}
        schema = {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": []},
        }
        tool = tools_pb2.Tool(
            name=name,
            type=tools_pb2.TOOL_TYPE_CUSTOM,
            source_type=tools_pb2.SOURCE_TYPE_PYTHON,
            source_code=f"def {name}(agent_state, n: int = 0) -> str:\n    return ''\n",
            json_schema=json.dumps(schema),
            **fields,
        )
        return tool_from_proto(run_now(self._tools.UpsertTool(tools_service_pb2.UpsertToolRequest(tool=tool))).tool)

    def delete(self, tool_id: str) -> None:
        run_now(self._tools.DeleteTool(tools_service_pb2.DeleteToolRequest(tool_id=tool_id)))


_FIELDS = {
    "requires_approval": "default_requires_approval",
    "parallel": "enable_parallel_execution",
    "idempotent": "idempotent",
    "return_char_limit": "return_char_limit",
}
