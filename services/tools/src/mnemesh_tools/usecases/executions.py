"""The use case of executing a tool once."""

from __future__ import annotations

import structlog
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.ids import require_id
from mnemesh_kit.principal import Principal

from mnemesh_tools.errors import SandboxTooWeak
from mnemesh_tools.model.definitions import python_source
from mnemesh_tools.model.executions import (
    AD_HOC_SOURCE,
    AdHocTool,
    ExecutableTool,
    Execution,
    Invocation,
    coerced_arguments,
    executable_from_ad_hoc,
    executable_from_tool,
    execution_from_outcome,
    require_environment,
    require_executable,
    require_valid_ad_hoc,
    time_limit,
)
from mnemesh_tools.sandbox import Sandbox, SandboxUnavailable, Task
from mnemesh_tools.store.base import ToolStore
from mnemesh_tools.usecases import lookups
from mnemesh_tools.usecases.slots import FairSlots
from mnemesh_tools.usecases.sources import SourceReader

_log = structlog.get_logger("mnemesh.tools.executions")


class ExecutionService:
    """Executes custom tools in the sandbox. An execution runs at most once and is not recorded."""

    def __init__(self, store: ToolStore, sandbox: Sandbox, slots: FairSlots, sources: SourceReader) -> None:
        self._store = store
        self._sources = sources
        self._sandbox = sandbox
        self._slots = slots

    async def execute_tool(self, caller: Principal, tool_id: str, invocation: Invocation) -> Execution:
        """Executes a stored tool. An error or a timeout of the tool is a result, not an exception.

        Raises:
            ToolNotFound: The organization has no such tool.
            ToolArgumentsInvalid: The arguments do not match the tool's schema.
            ToolRequirementsUnmet: The tool needs packages, or a language other than Python.
            SandboxTooWeak: This host cannot isolate tools enough, or the tool needs the network.
            ToolSlotsBusy: Too many tools run.
        """
        require_id(tool_id, "tool", "tool_id")
        tool = await self._store.read(caller.organization_id, lambda tx: lookups.get_tool(tx, tool_id))
        source = python_source(tool.spec)
        takes_agent = False
        # Most tools do not contain the word, so they are not parsed.
        if source is not None and "agent_state" in source:
            takes_agent = (await self._sources.read(source, "tool_id")).takes_agent
        return await self._execute(caller, executable_from_tool(tool, takes_agent=takes_agent), invocation)

    async def execute_ad_hoc_tool(self, caller: Principal, tool: AdHocTool, invocation: Invocation) -> Execution:
        """Executes source that is not stored. An error or a timeout of the tool is a result, not an exception.

        Raises:
            ToolSourceInvalid: The source has no such function, or yields no schema.
            ToolArgumentsInvalid: The arguments do not match the tool's schema.
            ToolRequirementsUnmet: The tool needs packages, or a language other than Python.
            SandboxTooWeak: This host cannot isolate tools enough, or the tool needs the network.
            ToolSlotsBusy: Too many tools run.
        """
        require_valid_ad_hoc(tool)
        facts = await self._sources.read(tool.source_code, AD_HOC_SOURCE, tool.name)
        return await self._execute(caller, executable_from_ad_hoc(tool, facts), invocation)

    async def _execute(self, caller: Principal, tool: ExecutableTool, invocation: Invocation) -> Execution:
        require_executable(tool)
        require_environment(invocation.environment)
        arguments = coerced_arguments(tool, invocation.arguments)
        seconds = time_limit(tool, invocation.timeout_seconds)
        agent = invocation.agent if tool.takes_agent else None
        task = Task(tool.source, tool.function, arguments, invocation.environment, agent)
        await async_failpoint("sandbox.before_run", tool.function)
        try:
            async with self._slots.hold(caller.organization_id):
                outcome = await self._sandbox.run(task, seconds)
        except SandboxUnavailable as error:
            raise SandboxTooWeak(str(error), missing=",".join(error.missing)) from error
        await async_failpoint("sandbox.after_run", tool.function)
        milliseconds = round(outcome.duration * 1000, 1)
        _log.info("tool_executed", tool=tool.function, status=outcome.status.value, duration_ms=milliseconds)
        return execution_from_outcome(tool, outcome)
