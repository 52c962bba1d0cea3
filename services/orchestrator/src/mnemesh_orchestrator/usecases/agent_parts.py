"""The parts of an agent in the other services: its tools, blocks, archives and window."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_types.messages import Message

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.loop.request_assembly import RequestAssembler
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.model.agent_types import (
    AGENT_TYPES,
    MULTI_AGENT_TOOLS,
    base_rules,
    base_rules_by_default,
    base_tool_names,
    shows_line_numbers,
)
from mnemesh_orchestrator.model.agents import Agent, AttachedTool
from mnemesh_orchestrator.model.archival import ArchivalSummary
from mnemesh_orchestrator.model.core_memory import NewBlock
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.custom_tools import CustomTool
from mnemesh_orchestrator.model.erasure import Deletion, Erased
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.partners import PERSONA_LABEL, Partnership
from mnemesh_orchestrator.ports import Services
from mnemesh_orchestrator.prompt.assembly import memory_section
from mnemesh_orchestrator.prompt.personas import PERSONA_DESCRIPTION, partner_persona
from mnemesh_orchestrator.usecases.first_messages import FirstMessageFactory
from mnemesh_orchestrator.usecases.tool_attachments import attached_tool, base_tools, with_folders


class AgentParts:
    """Creates and erases the parts of agents.

    The request ids of the effects are derived from the agent, so that an interrupted work can be repeated.
    """

    def __init__(
        self, services: Services, models: ModelCatalog, context: ContextReader, requests: RequestAssembler
    ) -> None:
        self._services = services
        self._models = models
        self._context = context
        self._requests = requests

    async def create(self, agent: Agent, draft: AgentDraft) -> Agent:
        """Creates the parts that a draft asks for, and returns the agent with its tools and rules.

        Raises:
            NotFound: A tool, a block, an archive or a folder does not exist.
            Unavailable: A service cannot be reached.
        """
        agent = await self._with_tools(agent, draft)
        for index, new in enumerate(draft.blocks):
            await self._create_block(f"{agent.id}/block/{index}", agent, new)
        for block_id in draft.block_ids:
            await self._services.core_memory.attach(f"{agent.id}/attach/{block_id}", agent.id, block_id)
        for archive_id in draft.archive_ids:
            await self._services.archival.attach(f"{agent.id}/attach/{archive_id}", agent.id, archive_id)
        agent = await self._with_folders(agent, draft)
        await self._create_window(agent, draft.initial_messages)
        return agent

    async def _with_folders(self, agent: Agent, draft: AgentDraft) -> Agent:
        files, folder_ids = self._services.files, draft.folder_ids
        if draft.include_default_folder:
            name = f"{agent.name.replace('/', '-')[:200]} files {agent.id[-6:]}"
            own = await files.create_folder(f"{agent.id}/folder", name, agent.embedder)
            folder_ids = (own, *folder_ids)
        for folder_id in folder_ids:
            key, opens_files = f"{agent.id}/attach/{folder_id}", draft.opens_folder_files
            revision = await files.attach(key, agent.id, folder_id, opens_files=opens_files)
            agent = with_folders(agent, revision, holds_folders=True)
        return agent

    async def create_partner(self, agent_id: str, partnership: Partnership) -> None:
        """Creates the parts of a partner: a block of its own, the blocks and archives of its agent, and a window.

        An agent without an archive gets one. If the agent has a block under the label of the partner's own block, the
        partner gets none of its own.

        Raises:
            BLOCK_LABEL_TAKEN, FAILED_PRECONDITION: The agents cannot share their blocks.
            Unavailable: A service cannot be reached.
        """
        partner, group = partnership.partner, partnership.group
        memory, archival = self._services.core_memory, self._services.archival
        if (await self._context.core_memory(agent_id)).block(PERSONA_LABEL) is None:
            own = NewBlock(PERSONA_LABEL, partner_persona(partner.type), PERSONA_DESCRIPTION)
            await self._create_block(f"{partner.id}/block/{PERSONA_LABEL}", partner, own)
        await memory.link(f"{partner.id}/link", group.id, (agent_id, partner.id), agent_id)
        archive_ids = await archival.archives_of(agent_id)
        if not archive_ids:
            await archival.create(f"{partner.id}/archive", agent_id, partner.embedder)
            # An agent that is in use may have stored its first passage meanwhile, in another archive.
            archive_ids = await archival.archives_of(agent_id)
        for archive_id in archive_ids:
            await archival.attach(f"{partner.id}/attach/{archive_id}", partner.id, archive_id)
        await self._create_window(partner, None)

    async def newest_sequence_id(self, agent_id: str) -> int:
        """Returns the sequence id of the newest message of an agent; 0 if it has none. Raises Unavailable."""
        return await self._services.recall.newest_sequence_id(agent_id)

    async def _create_block(self, request_id: str, agent: Agent, new: NewBlock) -> None:
        await self._services.core_memory.create(request_id, agent.id, new)

    async def _create_window(self, agent: Agent, initial: Sequence[InputMessage] | None) -> None:
        first = FirstMessageFactory(agent, agent.default_conversation_id, "0", agent.created_at)
        rest: Sequence[Message] = first.default() if initial is None else first.from_inputs(initial)
        messages = [first.system(await self.system_text(agent)), *rest]
        # An earlier attempt that succeeded may have rendered other memory, because blocks are shared.
        with suppress(RequestIdReused):
            await self._services.recall.create_context(
                f"{agent.id}/context", agent.id, agent.default_conversation_id, messages
            )

    async def system_text(self, agent: Agent) -> str:
        """Returns the system message of a window without other messages."""
        info, _ = await self._models.resolve(agent.organization_id, agent.model)
        core = await self._context.core_memory(agent.id)
        size = agent.model_settings.context_window or info.context_window
        memory = memory_section(
            core,
            RulesSolver(agent.tool_rules).prompt(),
            (await self._context.directories(agent, size))[0] or "",
            numbered=shows_line_numbers(agent.type, info.provider),
            show_blocks=AGENT_TYPES[agent.type].shows_blocks,
        )
        return self._requests.render_system(
            agent, agent.default_conversation_id, agent.system, memory, core, None, ArchivalSummary()
        )

    async def _with_tools(self, agent: Agent, draft: AgentDraft) -> Agent:
        own_names = base_tool_names(agent.type, has_partner=bool(draft.enable_sleeptime))
        base = base_tools(own_names, draft) if draft.include_base_tools else ()
        to_agents = MULTI_AGENT_TOOLS if draft.include_multi_agent_tools else ()
        names = dict.fromkeys((*base, *to_agents, *draft.tool_names))
        stored = [
            await self._services.tools.upsert_source(f"{agent.id}/source/{index}", source)
            for index, source in enumerate(draft.tool_sources)
        ]
        stored += await self._stored_tools(draft.tool_ids, tuple(name for name in names if name not in BUILTIN_SCHEMAS))
        custom = {tool.name: attached_tool(tool) for tool in stored}
        attached = {name: custom.get(name) or AttachedTool(name) for name in (*names, *custom)}
        wants_rules = draft.include_base_tool_rules
        if wants_rules is None:
            wants_rules = base_rules_by_default(agent.type, agent.model)
        own = tuple(rule for rule in AGENT_TYPES[agent.type].rules if rule.tool_name in attached)
        rules = (*draft.tool_rules, *((*own, *base_rules(attached)) if wants_rules else ()))
        return replace(agent, tools=tuple(attached.values()), tool_rules=tuple(dict.fromkeys(rules)))

    async def _stored_tools(self, ids: tuple[str, ...], names: tuple[str, ...]) -> list[CustomTool]:
        if not ids and not names:
            return []
        tools = await self._services.tools.definitions(ids, names)
        known = {tool.id for tool in tools} | {tool.name for tool in tools}
        for wanted in (*ids, *names):
            if wanted not in known:
                raise NotFound(f"There is no tool {wanted}.", field="tools", resource_id=wanted)
        return list(tools)

    async def erase(self, agent_id: str, deletion: Deletion) -> Erased:
        """Erases the parts of an agent in the services. Returns the counts.

        Raises:
            Unavailable: A service cannot be reached.
        """
        services, scope = self._services, deletion.scope
        others = deletion.together_with
        request_id = f"{agent_id}/erase/{int(scope.unshared_blocks)}{int(scope.unshared_archives)}"
        if others:
            request_id += "/together"
        erased = await services.core_memory.erase_agent(
            request_id, agent_id, unshared=scope.unshared_blocks, together_with=others
        )
        erased += await services.recall.erase_agent(f"{agent_id}/erase", agent_id)
        await services.files.erase_agent(f"{agent_id}/erase", agent_id)
        return erased + await services.archival.erase_agent(
            request_id, agent_id, unshared=scope.unshared_archives, together_with=others
        )
