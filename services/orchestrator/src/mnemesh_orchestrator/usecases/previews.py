"""The request that an agent would send to its model, and the built-in prompts."""

from collections.abc import Sequence

from mnemesh_kit.call_context import Principal
from mnemesh_kit.ids import IdSource
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.loop.request_assembly import RequestAssembler
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.model.agents import Agent, AgentType, MessageBuffer, SystemPrompt, require_prompt_key
from mnemesh_orchestrator.model.groups import ManagerType
from mnemesh_orchestrator.model.inputs import InputMessage, require_valid_inputs
from mnemesh_orchestrator.model.journal import Lease, TurnClaim
from mnemesh_orchestrator.model.run_config import RunConfig, valid_config
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.sleeptime import buffer_of
from mnemesh_orchestrator.prompt.prompts import Prompts
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService


class PreviewService:
    """Renders requests without sending them."""

    def __init__(
        self,
        windows: ContextWindowService,
        turns: TurnBuilder,
        requests: RequestAssembler,
        groups: GroupStore,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._windows = windows
        self._turns = turns
        self._requests = requests
        self._groups = groups
        self._clock = clock
        self._ids = ids

    async def render(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> str:
        """Returns the body of the first request that these messages would cause, as JSON text without keys.

        Nothing is stored.

        Raises:
            InvalidArgument: a message or the config breaks a rule.
            NotFound: the agent does not exist or does not have the conversation.
            ModelUnknown: no provider serves the model.
            Unavailable, DeadlineExceeded: recall or blocks cannot be reached.
        """
        messages, config = require_valid_inputs(messages), valid_config(config)
        turn = await self.turn(caller, agent_id, conversation_id, messages, config)
        assembled = await self._requests.assemble(turn.context, turn.state)
        return turn.state.model.client.render(assembled.request)

    async def turn(
        self,
        caller: Principal,
        agent_id: str,
        conversation_id: str,
        messages: Sequence[InputMessage],
        config: RunConfig,
    ) -> Turn:
        """Returns the turn that these messages would start. Its run is not stored. Raises the errors of `render`."""
        agent, conversation = await self._windows.resolve(caller, agent_id, conversation_id)
        now, run_id = self._clock.now(), self._ids.new("run")
        run = Run(
            id=run_id,
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            created_at=now,
            updated_at=now,
            input=tuple(messages),
            config=config,
        )
        lease = Lease(run_id, conversation_id, "", 0)
        claim = TurnClaim(
            run=run, agent=agent, conversation=conversation, lease=lease, buffer=await self._buffer(agent)
        )
        return await self._turns.preview(claim)

    async def _buffer(self, agent: Agent) -> MessageBuffer | None:
        """Returns the limits on the window of a voice agent with partners. A claim reads them with the agent."""
        if agent.type is not AgentType.VOICE_CONVO:
            return None
        types = (ManagerType.VOICE_SLEEPTIME,)
        managed = await self._groups.of_manager(agent.organization_id, agent.id, types)
        return buffer_of(managed[0].manager) if managed else None


class SystemPromptService:
    """System prompts. Every organization can use all of them."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def get(self, caller: Principal, key: str) -> SystemPrompt:  # noqa: ARG002
        """Returns the prompt under a key. Raises InvalidArgument for a malformed key, and NotFound."""
        return self._prompts.get(require_prompt_key(key, "key"))

    def list(self, caller: Principal) -> tuple[SystemPrompt, ...]:  # noqa: ARG002
        """Returns all prompts ordered by key."""
        return self._prompts.all()
