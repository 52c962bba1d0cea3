"""The use cases of executing a tool or a program once."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.ids import require_id
from mnemesh_sandbox import Access, AgentView, Language, Sandbox, SandboxUnavailable, Task
from mnemesh_sandbox.calls import Answer, ToolAnswer, ToolCall
from mnemesh_types.tools import AdHocTool, CodeLanguage, SourceType

from mnemesh_tools.errors import SandboxTooWeak
from mnemesh_tools.model.definitions import Source, network_grant, source_of
from mnemesh_tools.model.executions import (
    AD_HOC_SOURCE,
    MAX_CALLS,
    ExecutableTool,
    Execution,
    Invocation,
    Program,
    coerced_arguments,
    executable_from_ad_hoc,
    executable_from_tool,
    execution_from_outcome,
    program_seconds,
    require_environment,
    require_executable,
    require_valid_ad_hoc,
    require_valid_program,
    time_limit,
)
from mnemesh_tools.model.packages import ServerSupport, require_network_access
from mnemesh_tools.model.tools import DEFAULT_RETURN_CHARS, Tool
from mnemesh_tools.schema import SourceFacts, program_module, tool_module
from mnemesh_tools.store.tools import ToolStore
from mnemesh_tools.usecases import changes
from mnemesh_tools.usecases.networks import ToolNetworks
from mnemesh_tools.usecases.packages import PackageService, ToolPackageLock
from mnemesh_tools.usecases.slots import FairSlots
from mnemesh_tools.usecases.tools import SourceReader, ToolEnvironment, ToolEnvironments

_log = structlog.get_logger("mnemesh.tools.executions")


class ExecutionService:
    """Executes custom tools in the sandbox. An execution runs at most once and is not recorded."""

    def __init__(
        self,
        store: ToolStore,
        sandbox: Sandbox,
        slots: FairSlots,
        sources: SourceReader,
        networks: ToolNetworks,
        packages: PackageService,
        environments: ToolEnvironments,
        support: ServerSupport,
    ) -> None:
        self._environments = environments
        self._networks = networks
        self._packages = packages
        self._support = support
        self._store = store
        self._sources = sources
        self._sandbox = sandbox
        self._slots = slots

    async def execute_tool(self, caller: Principal, tool_id: str, invocation: Invocation) -> Execution:
        """Executes a stored tool. An error or a timeout of the tool is a result, not an exception.

        Raises:
            ToolNotFound: The organization has no such tool.
            ToolArgumentsInvalid: The arguments do not match the tool's schema.
            ToolRequirementsUnmet: The tool needs packages or a language that this server does not provide.
            SandboxTooWeak: This host cannot isolate tools enough, or the operator does not allow the network access.
            ToolSlotsBusy: Too many tools run.
            SecretUnreadable: A variable of the tool cannot be decrypted with the keys of this server.
        """
        require_id(tool_id, "tool", "tool_id")
        tool = await self._store.read(caller.organization_id, lambda tx: changes.get_tool(tx, tool_id))
        source = source_of(tool.spec)
        facts: SourceFacts | None = None
        if source is not None and not _is_plain(tool.spec.name, source):
            facts = await self._sources.read(caller, source, "tool_id")
        return await self._execute(caller, executable_from_tool(tool, facts), invocation, tool)

    async def execute_ad_hoc_tool(self, caller: Principal, tool: AdHocTool, invocation: Invocation) -> Execution:
        """Executes source that is not stored. An error or a timeout of the tool is a result, not an exception.

        Raises:
            ToolSourceInvalid: The source has no such function, or yields no schema.
            ToolArgumentsInvalid: The arguments do not match the tool's schema.
            ToolRequirementsUnmet: The tool needs packages or a language that this server does not provide.
            SandboxTooWeak: This host cannot isolate tools enough, or the operator does not allow the network access.
            ToolSlotsBusy: Too many tools run.
        """
        require_valid_ad_hoc(tool, self._support)
        source = (tool.source_type, tool.source_code)
        facts = await self._sources.read(caller, source, AD_HOC_SOURCE, tool.name)
        return await self._execute(caller, executable_from_ad_hoc(tool, facts), invocation, None)

    async def _execute(
        self, caller: Principal, tool: ExecutableTool, invocation: Invocation, stored: Tool | None
    ) -> Execution:
        require_executable(tool, self._support)
        require_environment(invocation.environment)
        arguments = coerced_arguments(tool, invocation.arguments)
        seconds = time_limit(tool, invocation.timeout_seconds)
        agent = invocation.agent if tool.takes_agent else None
        variables = self._environments.of(stored, invocation)
        lock = None if stored is None else ToolPackageLock(self._store, stored)
        task = _task(tool, arguments, variables, agent)
        proxy = self._networks.proxy(caller.organization_id, tool.function, tool.network, variables.secrets)
        await self._store.note_execution()
        await async_failpoint("sandbox.before_run", tool.function)
        try:
            async with (
                self._packages.hold(caller.organization_id, tool.packages, lock) as packages,
                AsyncExitStack() as slot,
            ):
                await slot.enter_async_context(self._slots.hold(caller.organization_id))
                access = Access(
                    serve=None if proxy is None else proxy.serve, packages=() if packages is None else (str(packages),)
                )
                outcome = await self._sandbox.run(task, seconds, access, slot)
        except SandboxUnavailable as error:
            raise SandboxTooWeak(str(error), missing=",".join(error.missing)) from error
        await async_failpoint("sandbox.after_run", tool.function)
        milliseconds = round(outcome.duration * 1000, 1)
        _log.info("tool_executed", tool=tool.function, status=outcome.status.value, duration_ms=milliseconds)
        return execution_from_outcome(tool.return_chars, outcome, () if proxy is None else proxy.connections)


def _is_plain(name: str, source: Source) -> bool:
    """Returns whether a source is known without parsing to have the function `name`, which takes no agent."""
    source_type, text = source
    return (
        source_type is SourceType.PYTHON
        and "agent_state" not in text
        and re.search(rf"^(async )?def {re.escape(name)}\b", text, re.MULTILINE) is not None
    )


def _task(
    tool: ExecutableTool, arguments: Mapping[str, Any], variables: ToolEnvironment, agent: AgentView | None
) -> Task:
    source, language = tool.source, Language.PYTHON
    if tool.source_type is not SourceType.PYTHON:
        source, language = tool_module(tool.source, tool.function), Language.TYPESCRIPT
    return Task(
        source,
        tool.function,
        arguments,
        variables.plain,
        variables.secrets,
        agent,
        language=language,
        parameters=tool.signature,
        takes_object=tool.takes_object,
        definitions=tool.definitions,
    )


_NAME: Final = "run_code"
_NAME_WITH_TOOLS: Final = "run_code_with_tools"
_LANGUAGES: Final = {
    CodeLanguage.PYTHON: Language.PYTHON,
    CodeLanguage.JAVASCRIPT: Language.JAVASCRIPT,
    CodeLanguage.TYPESCRIPT: Language.TYPESCRIPT,
}


class ProgramService:
    """Executes programs in the sandbox. An execution runs at most once and is not recorded."""

    def __init__(
        self, store: ToolStore, sandbox: Sandbox, slots: FairSlots, networks: ToolNetworks, support: ServerSupport
    ) -> None:
        self._store = store
        self._sandbox = sandbox
        self._slots = slots
        self._networks = networks
        self._support = support

    async def run(self, caller: Principal, program: Program, answer: Answer | None = None) -> Execution:
        """Executes a program. An error or a timeout of the program is a result, not an exception.

        Args:
            caller: Who executes it.
            program: The program.
            answer: Answers its calls of tools; None for a program that calls none.

        Raises:
            InvalidArgument: A field breaks its rule.
            Unimplemented, ToolRequirementsUnmet: The language cannot be executed.
            SandboxTooWeak: This host cannot isolate tools enough, or the operator does not allow the network access.
            ToolSlotsBusy: Too many tools run.
        """
        name = _NAME if answer is None else _NAME_WITH_TOOLS
        require_valid_program(program, self._support)
        seconds = program_seconds(program)
        grant = network_grant(program.network_hosts, "network_hosts", allow_network=False)
        require_network_access(
            self._support.network, "network_hosts", allow_network=False, names_hosts=grant is not None
        )
        proxy = self._networks.proxy(caller.organization_id, name, grant, {})
        code = program.code
        if program.language is not CodeLanguage.PYTHON:
            code = await asyncio.to_thread(program_module, code)
        task = Task(
            code,
            name,
            environment=program.environment,
            language=_LANGUAGES[program.language],
            is_program=True,
            tools=program.tools,
        )
        calls = None if answer is None else _bounded(answer)
        await self._store.note_execution()
        await async_failpoint("sandbox.before_run", name)
        try:
            async with AsyncExitStack() as slot:
                await slot.enter_async_context(self._slots.hold(caller.organization_id))
                access = Access(serve=None if proxy is None else proxy.serve, calls=calls)
                outcome = await self._sandbox.run(task, seconds, access, slot)
        except SandboxUnavailable as error:
            raise SandboxTooWeak(str(error), missing=",".join(error.missing)) from error
        await async_failpoint("sandbox.after_run", name)
        milliseconds = round(outcome.duration * 1000, 1)
        _log.info(
            "code_executed", language=program.language.value, status=outcome.status.value, duration_ms=milliseconds
        )
        return execution_from_outcome(DEFAULT_RETURN_CHARS, outcome, () if proxy is None else proxy.connections)


def _bounded(answer: Answer) -> Answer:
    """Returns `answer` for the first calls of a program, and an error for the others."""
    count = 0

    async def bounded(call: ToolCall) -> ToolAnswer:
        nonlocal count
        count += 1
        if count > MAX_CALLS:
            return ToolAnswer(False, f"A program can make at most {MAX_CALLS} calls of tools.")
        return await answer(call)

    return bounded
