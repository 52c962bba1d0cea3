"""The environment variables of tools: stored encrypted, decrypted for one execution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from mnemesh_kit.secret_variables import SecretVariables

from mnemesh_tools.model.executions import Invocation
from mnemesh_tools.model.tools import Tool, ToolSecret, ToolSpec

_PLACE: Final = "tool.secrets"


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """The environment variables of one execution."""

    plain: dict[str, str]
    secrets: dict[str, str]
    """Variables that override the others. No text that leaves the service has their values."""


class ToolEnvironments:
    """Stores the variables of tools, and returns those of executions."""

    def __init__(self, variables: SecretVariables) -> None:
        self._variables = variables

    def fingerprint(self, value: str) -> str:
        """Returns a text that identifies a value and reveals nothing of it. Raises SecretsKeyMissing."""
        return self._variables.fingerprint(value)

    def stored(self, tool_id: str, spec: ToolSpec, before: ToolSpec | None = None) -> ToolSpec:
        """Returns a definition as it is stored: with encrypted values in place of those of a request.

        Args:
            tool_id: The tool.
            spec: Its new definition.
            before: Its current definition; None for a new tool.

        Raises:
            InvalidArgument: A variable has no value, and none is stored under its name.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        known = () if before is None else before.secrets
        if spec.secrets == known:
            return spec
        values = {secret.name: secret.value for secret in spec.secrets}
        stored = [secret.stored for secret in known if secret.stored is not None]
        merged = self._variables.merged(tool_id, stored, self._variables.sealed(tool_id, values), _PLACE)
        return replace(spec, secrets=tuple(ToolSecret(variable.name, stored=variable) for variable in merged))

    def of(self, tool: Tool | None, invocation: Invocation) -> ToolEnvironment:
        """Returns the variables of an execution. Those of the caller override those of the tool.

        Args:
            tool: The tool; None for an ad hoc one, which has no variables.
            invocation: The inputs, whose agent has variables of the lowest precedence.

        Raises:
            SecretUnreadable: A value cannot be decrypted with the keys of this server.
        """
        agent, plain = invocation.agent, {}
        if agent is not None and agent.agent_id:
            plain = {"AGENT_ID": agent.agent_id, "LETTA_AGENT_ID": agent.agent_id}
            if invocation.project_id is not None:
                plain["PROJECT_ID"] = invocation.project_id
        own = {}
        if tool is not None and tool.spec.secrets:
            own = self._variables.opened(tool.id, [s.stored for s in tool.spec.secrets if s.stored is not None])
        return ToolEnvironment(plain, {**own, **invocation.environment})
