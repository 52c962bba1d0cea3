"""The execution of a stored tool with the agent's blocks, and the storage of the changes that it made in them."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from mnemesh_kit.errors import NOT_BEGUN, TEMPORARY, MnemeshError
from mnemesh_kit.secret_variables import SecretVariables

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.core_memory import AgentAuthor, Block, BlockEdit, CoreMemory, Rethink
from mnemesh_orchestrator.model.custom_tools import CustomTool, OnProgress, ToolResult, no_progress
from mnemesh_orchestrator.ports.tools import ToolsPort

INTERRUPTED: Final = (
    "The tool was interrupted, its outcome is unknown. It was not run again; check before you repeat it."
)

T = TypeVar("T")
Attempts = Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]
Executed = tuple[ToolResult, Mapping[str, str]]
"""The result of a tool, and the values of the blocks that it changed."""
EditBlock = Callable[[str, AgentAuthor, str, BlockEdit], Awaitable[Block]]


async def single_attempt(call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call once."""
    return await call()


def refused(tool: CustomTool, error: MnemeshError) -> ToolResult:
    """Returns the result of a tool that the tools service refused to run."""
    return ToolResult(ok=False, text=f"Error executing function {tool.name}: {error.message}")


async def run_custom(
    tools: ToolsPort,
    secrets: SecretVariables,
    edit_block: EditBlock,
    agent: Agent,
    core: CoreMemory,
    tool: CustomTool,
    arguments: Mapping[str, Any],
    author: AgentAuthor,
    effect_prefix: str,
    attempts: Attempts[Executed] = single_attempt,
    on_progress: OnProgress = no_progress,
) -> ToolResult:
    """Runs a stored tool, and returns its result. If it is not known whether the tool ran, the result says so.

    Args:
        tools: the tools service.
        secrets: decrypts the variables of the agent.
        edit_block: stores one changed block.
        agent: the agent that calls the tool.
        core: the agent's blocks, which the tool sees. A block that was changed since `core` was read is not
            overwritten, because the tool did not see that change.
        tool: the tool.
        arguments: its arguments.
        author: the author of the edits.
        effect_prefix: the prefix of the edits' request ids, which end in "/{ordinal}".
        attempts: makes the call, once or more often. Only idempotent tools may run more often.
        on_progress: receives what the tool reports while it runs.

    Raises:
        Unreachable, ServerBusy: the tool was not run.
        Unavailable, DeadlineExceeded, StorageFull: an edit of the tool could not be stored.
    """

    async def execute() -> Executed:
        values = json.dumps(arguments, ensure_ascii=False)
        environment = secrets.opened(agent.id, agent.secrets)
        if tool.mcp_server_id is not None:
            return await tools.run_on_mcp_server(tool, values, agent.id, environment, on_progress), {}
        return await tools.execute(
            tool.id,
            values,
            agent_id=agent.id,
            agent_name=agent.name,
            project_id=agent.provenance.project_id,
            blocks=core.blocks,
            environment=environment,
        )

    try:
        result, changed = await attempts(execute)
    except NOT_BEGUN:
        raise
    except TEMPORARY:
        return ToolResult(ok=False, text=INTERRUPTED)
    except MnemeshError as error:
        return refused(tool, error)
    problems = []
    for ordinal, (label, value) in enumerate(sorted(changed.items())):
        block = core.block(label)
        edit = Rethink(value, block.revision if block is not None else None)
        try:
            await edit_block(f"{effect_prefix}/{ordinal}", author, label, edit)
        except TEMPORARY:
            raise
        except MnemeshError as error:
            problems.append(f"The block {label} was not changed: {error.message}")
    return replace(result, ok=False, text="\n".join((result.text, *problems))) if problems else result
