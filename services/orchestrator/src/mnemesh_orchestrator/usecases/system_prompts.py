"""The system prompts that agents can be created with."""

from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.model.prompts import SystemPrompt, require_prompt_key
from mnemesh_orchestrator.prompt.prompts import Prompts


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
