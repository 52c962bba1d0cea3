"""The use case of executing a program once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

import structlog
from mnemesh_kit.failpoints import async_failpoint
from mnemesh_kit.principal import Principal
from mnemesh_sandbox import Access, Language, Sandbox, SandboxUnavailable, Task
from mnemesh_sandbox.calls import Answer, ToolAnswer, ToolCall

from mnemesh_tools.errors import SandboxTooWeak
from mnemesh_tools.model.definitions import network_grant
from mnemesh_tools.model.executions import Execution, execution_from_outcome
from mnemesh_tools.model.programs import MAX_CALLS, CodeLanguage, Program, program_seconds, require_valid_program
from mnemesh_tools.model.support import ServerSupport, require_network_access
from mnemesh_tools.model.tools import DEFAULT_RETURN_CHARS
from mnemesh_tools.schema import program_module
from mnemesh_tools.usecases.networks import ToolNetworks
from mnemesh_tools.usecases.slots import FairSlots

_NAME: Final = "run_code"
_NAME_WITH_TOOLS: Final = "run_code_with_tools"
_LANGUAGES: Final = {
    CodeLanguage.PYTHON: Language.PYTHON,
    CodeLanguage.JAVASCRIPT: Language.JAVASCRIPT,
    CodeLanguage.TYPESCRIPT: Language.TYPESCRIPT,
}
_log = structlog.get_logger("mnemesh.tools.executions")


class ProgramService:
    """Executes programs in the sandbox. An execution runs at most once and is not recorded."""

    def __init__(self, sandbox: Sandbox, slots: FairSlots, networks: ToolNetworks, support: ServerSupport) -> None:
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
