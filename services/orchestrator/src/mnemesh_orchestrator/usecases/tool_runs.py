"""Runs a tool of an agent outside of a turn."""

from collections.abc import Mapping
from typing import Any

import msgspec
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.secret_variables import SecretVariables
from mnemesh_kit.unicode import has_lone_surrogate
from mnemesh_types.messages import ToolReturn

from mnemesh_orchestrator.builtin.arguments import ParseFailure, parse
from mnemesh_orchestrator.builtin.call import BuiltinCall
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.clients.blocks import BlocksClient
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED, run_custom
from mnemesh_orchestrator.loop.step_messages import call_id
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.core_memory import AgentAuthor, memory_access
from mnemesh_orchestrator.model.custom_tools import ToolResult
from mnemesh_orchestrator.model.models import ToolSchema
from mnemesh_orchestrator.store.agents import AgentStore


class ToolRunner:
    """Runs tools of agents on behalf of their owner. Tool rules and approvals do not apply."""

    def __init__(
        self,
        agents: AgentStore,
        builtin: BuiltinTools,
        tools: ToolsClient,
        secrets: SecretVariables,
        core_memory: BlocksClient,
        context: ContextReader,
        ids: IdSource,
    ) -> None:
        self._agents = agents
        self._builtin = builtin
        self._tools = tools
        self._secrets = secrets
        self._core_memory = core_memory
        self._context = context
        self._ids = ids

    async def run(
        self, caller: Principal, key: RequestKey | None, agent_id: str, name: str, arguments: str
    ) -> ToolReturn:
        """Runs a tool and returns its result. A refusal by the tool is returned as an error result.

        Under the same key, a built-in tool has its effect once and returns the same result again. A custom tool is
        not run again.

        Args:
            caller: the owner of the agent.
            key: identifies the request; None if it cannot be repeated.
            agent_id: the agent.
            name: the name of an attached tool.
            arguments: a JSON object as text.

        Raises:
            NotFound: the agent does not exist or does not have the tool.
            InvalidArgument: the arguments are not a JSON object, or do not match the schema of the tool.
            RequestIdReused: the key was used before with other content.
            Unavailable, DeadlineExceeded: the service of the tool cannot be reached.
        """
        if not name:
            raise InvalidArgument("tool_name is required.", field="tool_name")
        agent = await self._agents.get(caller.organization_id, agent_id)
        attached = agent.tool(name)
        if attached is None or (attached.tool_id is None and name not in self._builtin.names):
            raise NotFound(f"The agent has no tool {name}.", field="tool_name", resource_id=name)
        identity = (key.organization_id, key.method, key.request_id) if key is not None else (self._ids.new("request"),)
        step = derive_id("step", *identity)
        call = call_id(step, 0)
        if attached.tool_id is None:
            values = _values(arguments, self._builtin.schema(name))
            await self._agents.record_request(key)
            built_in = BuiltinCall(
                name,
                values,
                agent_id,
                agent.time_zone,
                call,
                None,
                f"{step}/0",
                memory=memory_access(agent.id, agent.memory_scope, agent.memory_extraction),
                agent_name=agent.name,
                embedder=agent.embedder,
            )
            result = await self._builtin.execute(built_in)
        else:
            result = await self._custom(key, agent, attached.tool_id, arguments, step)
        return result.to_return(call, name)

    async def _custom(
        self, key: RequestKey | None, agent: Agent, tool_id: str, arguments: str, step: str
    ) -> ToolResult:
        definitions = await self._tools.definitions(ids=(tool_id,))
        if not definitions:
            raise NotFound(f"Tool {tool_id} was deleted.", field="tool_name", resource_id=tool_id)
        values = _values(arguments, msgspec.json.decode(definitions[0].json_schema, type=ToolSchema))
        core = await self._context.core_memory(agent.id)
        if await self._agents.record_request(key) and not definitions[0].idempotent:
            return ToolResult(ok=False, text=INTERRUPTED)
        author, prefix = AgentAuthor(agent.id, call_id(step, 0)), f"{step}/0"
        edit = self._core_memory.edit
        return await run_custom(self._tools, self._secrets, edit, agent, core, definitions[0], values, author, prefix)


def _values(arguments: str, schema: ToolSchema) -> Mapping[str, Any]:
    if has_lone_surrogate(arguments):
        raise InvalidArgument("arguments must not contain half of a character (a lone surrogate).", field="arguments")
    parsed = parse(arguments, schema)
    if isinstance(parsed, ParseFailure):
        raise InvalidArgument(parsed.text.removeprefix("Error: "), field="arguments")
    return parsed.values
