"""The tools service, as the orchestrator calls it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from mnemesh_orchestrator.model.custom_tools import CustomTool, ToolResult


class ToolsPort(Protocol):
    """Custom tools."""

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        """Returns stored tools by id and name. Unknown tools are left out."""
        ...

    async def upsert_source(self, request_id: str, source_code: str) -> CustomTool:
        """Stores Python source as a tool, under the name of its last function."""
        ...

    async def execute(
        self,
        tool_id: str,
        arguments: str,
        *,
        agent_id: str,
        agent_name: str,
        blocks: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> tuple[ToolResult, Mapping[str, str]]:
        """Runs a tool in the sandbox once. Returns its result and the block values that it changed."""
        ...
