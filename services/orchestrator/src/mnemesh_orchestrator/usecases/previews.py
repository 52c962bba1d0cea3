"""What an agent would ask its model, and what one of its tools comes to, outside of any turn."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.principal import Principal
from mnemesh_types.messages import ToolReturn, ToolStatus

from mnemesh_orchestrator.builtin.arguments import ParseFailure, parse
from mnemesh_orchestrator.builtin.executor import BuiltinCall, BuiltinTools
from mnemesh_orchestrator.loop.context_builder import ContextBuilder
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED, run_custom
from mnemesh_orchestrator.loop.state import Progress, Turn
from mnemesh_orchestrator.loop.step_messages import call_id
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.core_memory import AgentAuthor
from mnemesh_orchestrator.model.custom_tools import ToolResult
from mnemesh_orchestrator.model.models import ToolSchema
from mnemesh_orchestrator.model.runs import InputMessage, Lease, Run, RunConfig
from mnemesh_orchestrator.ports.blocks import CoreMemoryPort
from mnemesh_orchestrator.ports.tools import ToolsPort
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.store.base import AgentStore, Claim
from mnemesh_orchestrator.usecases.windows import WindowService


class PreviewService:
    """Requests that are rendered and not sent."""

    def __init__(
        self, windows: WindowService, turns: TurnBuilder, context: ContextBuilder, clock: Clock, ids: IdSource
    ) -> None:
        self._windows = windows
        self._turns = turns
        self._context = context
        self._clock = clock
        self._ids = ids

    async def render(
        self,
        principal: Principal,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> str:
        """The body of the first request that these messages would cause, as JSON text without keys. Changes nothing.

        Raises:
            NotFound: no such agent, or conversation of it.
            ModelUnknown: nobody serves the model.
            Unavailable, DeadlineExceeded: recall or blocks are away.
        """
        turn = await self.turn(principal, agent_id, conversation_id, messages, config)
        return turn.model.client.render((await self._context.assemble(turn)).request)

    async def turn(
        self,
        principal: Principal,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> Turn:
        """The turn that these messages would begin, of a run that is not stored. Raises as `render`."""
        agent, conversation = await self._windows.place(principal, agent_id, conversation_id)
        now, run_id = self._clock.now(), self._ids.new("run")
        run = Run(
            id=run_id,
            organization_id=principal.organization_id,
            subject_id=principal.subject_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            created_at=now,
            updated_at=now,
            input=tuple(messages),
            config=config,
        )
        lease = Lease(run_id, conversation_id, "", 0)
        progress = Progress(run, lease, self._clock.monotonic(), number=1)
        return await self._turns.preview(Claim(run, agent, conversation, lease), progress)


class ToolRunner:
    """Tools of agents, run by their owner; so neither rules nor approvals stand in the way."""

    def __init__(
        self,
        agents: AgentStore,
        builtin: BuiltinTools,
        tools: ToolsPort,
        core_memory: CoreMemoryPort,
        context: ContextBuilder,
        ids: IdSource,
    ) -> None:
        self._agents = agents
        self._builtin = builtin
        self._tools = tools
        self._core_memory = core_memory
        self._context = context
        self._ids = ids

    async def run(
        self, principal: Principal, key: RequestKey | None, agent_id: str, name: str, arguments: str
    ) -> ToolReturn:
        """What the tool came to; `arguments` is a JSON object as text.

        Arguments that do not fit the tool, and what the tool refuses, are an error return.

        Under the same key a built-in tool has its effect once and answers again; a custom one is not run again.

        Raises:
            NotFound: no such agent, or the agent has no such tool.
            InvalidArgument: the arguments are no JSON object.
            RequestIdReused: with other content.
            Unavailable, DeadlineExceeded: the room of the tool is away.
        """
        agent = await self._agents.get(principal.organization_id, agent_id)
        attached = agent.tool(name)
        if attached is None or (attached.tool_id is None and name not in self._builtin.names):
            raise NotFound(f"The agent has no tool {name}.", field="tool_name", resource_id=name)
        given = (key.organization_id, key.method, key.request_id) if key is not None else (self._ids.new("request"),)
        step = derive_id("step", *given)
        call = call_id(step, 0)
        if attached.tool_id is None:
            values = _values(arguments, self._builtin.schema(name))
            await self._agents.once(key)
            built_in = BuiltinCall(
                name, values, agent_id, agent.time_zone, call, None, f"{step}/0", memory_scope=agent.memory_scope
            )
            result = await self._builtin.execute(built_in)
        else:
            result = await self._custom(key, agent, attached.tool_id, arguments, step)
        status = ToolStatus.SUCCESS if result.ok else ToolStatus.ERROR
        return ToolReturn.from_text(call, name, status, result.text.replace("\0", "�"), result.stdout, result.stderr)

    async def _custom(
        self, key: RequestKey | None, agent: Agent, tool_id: str, arguments: str, step: str
    ) -> ToolResult:
        found = await self._tools.definitions(ids=(tool_id,))
        if not found:
            raise NotFound(f"There is no tool {tool_id} any more.", field="tool_name", resource_id=tool_id)
        values = _values(arguments, msgspec.json.decode(found[0].json_schema, type=ToolSchema))
        core = await self._context.core_memory(agent.id)
        if await self._agents.once(key) and not found[0].idempotent:
            return ToolResult(ok=False, text=INTERRUPTED)
        author, prefix = AgentAuthor(agent.id, call_id(step, 0)), f"{step}/0"
        edit = self._core_memory.edit
        return await run_custom(self._tools, edit, agent, core, found[0], values, author, prefix)


def _values(arguments: str, schema: ToolSchema) -> Mapping[str, Any]:
    parsed = parse(arguments, schema)
    if isinstance(parsed, ParseFailure):
        raise InvalidArgument(parsed.text.removeprefix("Error: "), field="arguments")
    return parsed.values
