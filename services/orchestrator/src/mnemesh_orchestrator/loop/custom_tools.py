"""Running a user-written tool: once, with the agent's blocks beside it, and what it changed in them stored."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.core_memory import AgentAuthor, Block, BlockEdit, CoreMemory, Rethink
from mnemesh_orchestrator.model.custom_tools import CustomTool, ToolResult
from mnemesh_orchestrator.ports.tools import ToolsPort

INTERRUPTED = "The tool was interrupted, its outcome is unknown. It was not run again; check before you repeat it."

T = TypeVar("T")
Calling = Callable[[Callable[[], Awaitable[T]]], Awaitable[T]]
Edit = Callable[[str, AgentAuthor, str, BlockEdit], Awaitable[Block]]


async def once(call: Callable[[], Awaitable[T]]) -> T:
    """Makes a call, whatever comes of it."""
    return await call()


async def run_custom(
    tools: ToolsPort,
    edit: Edit,
    agent: Agent,
    core: CoreMemory,
    tool: CustomTool,
    arguments: Mapping[str, Any],
    author: AgentAuthor,
    effect_prefix: str,
    calling: Calling[tuple[ToolResult, Mapping[str, str]]] = once,
) -> ToolResult:
    """What the tool came to; where nobody answers, that is not known, and the tool is not run a second time.

    `calling` makes the call. One that makes it again is for tools that may be run again.
    Each block that it changed is stored by `edit`, under "{effect_prefix}/{ordinal}": unless somebody else changed the
    block after `core` was read, for the tool had not seen that.
    """
    try:
        result, changed = await calling(
            lambda: tools.execute(
                tool.id,
                json.dumps(arguments, ensure_ascii=False),
                agent_id=agent.id,
                agent_name=agent.name,
                blocks={block.label: block.value for block in core.blocks},
                environment={},
            )
        )
    except (Unavailable, DeadlineExceeded):
        return ToolResult(ok=False, text=INTERRUPTED)
    except MnemeshError as error:
        return ToolResult(ok=False, text=f"Error executing function {tool.name}: {error.message}")
    problems = []
    for ordinal, (label, value) in enumerate(sorted(changed.items())):
        try:
            await edit(f"{effect_prefix}/{ordinal}", author, label, Rethink(value, _seen(core, label)))
        except MnemeshError as error:
            problems.append(f"The block {label} was not changed: {error.message}")
    return ToolResult(False, "\n".join((result.text, *problems)), result.stdout, result.stderr) if problems else result


def _seen(core: CoreMemory, label: str) -> int | None:
    block = core.block(label)
    return block.revision if block is not None else None
