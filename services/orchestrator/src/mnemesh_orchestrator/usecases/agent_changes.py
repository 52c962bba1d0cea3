"""Changes of the records of agents: what an update writes, and what follows from it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from mnemesh_kit.clock import Clock
from mnemesh_kit.principal import Principal
from mnemesh_kit.secret_variables import SecretVariables, require_valid_variables

from mnemesh_orchestrator.compaction.summarizers import require_summary_model
from mnemesh_orchestrator.errors import AgentRevisionMismatch
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, OrganizationModels
from mnemesh_orchestrator.model.agent_types import AGENT_TYPES, require_continuation
from mnemesh_orchestrator.model.agents import Agent, require_name, valid_agent_fields
from mnemesh_orchestrator.model.prompts import require_prompt_key
from mnemesh_orchestrator.prompt.prompts import Prompts
from mnemesh_orchestrator.usecases.tool_attachments import keeps_memories, with_episodic_search

_SECRETS: Final = "agent.secrets"


class AgentChanges:
    """Prepares changes of agents as functions of the record, which a store applies within a transaction."""

    def __init__(
        self,
        models: ModelCatalog,
        embedders: EmbedderDirectory,
        prompts: Prompts,
        secrets: SecretVariables,
        clock: Clock,
    ) -> None:
        self._secrets = secrets
        self._models = models
        self._embedders = embedders
        self._prompts = prompts
        self._clock = clock

    async def values(
        self, agent_id: str, changes: Mapping[str, Any], system_prompt_key: str | None = None
    ) -> dict[str, Any]:
        """Returns the valid new values of an update by the field names of `Agent`. None has a secret in clear.

        Args:
            agent_id: The agent.
            changes: The new values. The value of `provenance` is a mapping of those of its fields that change; that of
                `secrets` has all values by name, and None to keep one.
            system_prompt_key: The key of the system prompt that becomes the agent's `system`.

        Raises:
            InvalidArgument: A value breaks its rule.
            NotFound: The system prompt does not exist.
            EmbedderUnknown: No service is configured for the embedder.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        if "name" in changes:
            require_name(changes["name"])
        values = valid_agent_fields(changes)
        if "secrets" in values:
            require_valid_variables(values["secrets"], _SECRETS)
            values["secrets"] = self._secrets.sealed(agent_id, values["secrets"])
        await self._embedders.require(values.get("embedder"))
        if system_prompt_key is not None:
            values["system"] = self._prompts.get(require_prompt_key(system_prompt_key, "system_prompt_key")).text
        return values

    async def of_values(
        self, caller: Principal, agent_id: str, values: Mapping[str, Any], if_revision: int | None = None
    ) -> Callable[[Agent], Agent]:
        """Returns the change that writes the values, which come from `values`.

        Args:
            caller: The author.
            agent_id: The agent.
            values: The values.
            if_revision: The revision that the agent must have; None changes any. Otherwise the change raises
                AgentRevisionMismatch.
        """
        fields = {name: value for name, value in values.items() if name not in ("provenance", "secrets")}
        provenance, secrets = values.get("provenance", {}), values.get("secrets")

        def change(agent: Agent) -> Agent:
            if if_revision is not None and agent.revision != if_revision:
                raise AgentRevisionMismatch(agent_id, agent.revision)
            if secrets is not None:
                fields["secrets"] = self._secrets.merged(agent.id, agent.secrets, secrets, _SECRETS)
            return replace(agent, provenance=replace(agent.provenance, **provenance), **fields)

        return await self.complete(caller, change)

    async def complete(self, caller: Principal, change: Callable[[Agent], Agent]) -> Callable[[Agent], Agent]:
        """Returns a change with what follows from it. It raises ModelUnknown, and InvalidArgument."""
        models = await self._models.of(caller.organization_id)

        def apply(agent: Agent) -> Agent:
            changed = _complete_change(models, agent, change(agent))
            return replace(
                changed,
                provenance=replace(changed.provenance, last_updated_by_id=caller.subject_id),
                updated_at=self._clock.now(),
            )

        return apply


def _complete_change(models: OrganizationModels, before: Agent, changed: Agent) -> Agent:
    spec = AGENT_TYPES[changed.type]
    models.resolve(changed.model)
    if changed.model_settings.fallback_model:
        models.resolve(changed.model_settings.fallback_model)
    if changed.compaction_settings != before.compaction_settings:
        require_summary_model(models, changed.compaction_settings)
    if changed.memory_extraction != before.memory_extraction:
        require_summary_model(models, changed.memory_extraction)
    began_extraction = changed.memory_extraction is not None and before.memory_extraction is None
    if began_extraction or (keeps_memories(changed) and not keeps_memories(before)):
        changed = with_episodic_search(changed)
    require_continuation(changed.type, changed.continuation_message)
    return replace(changed, message_buffer_autoclear=changed.message_buffer_autoclear or spec.forces_autoclear)
