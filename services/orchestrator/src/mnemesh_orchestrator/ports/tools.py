"""The tools service, as the orchestrator calls it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from mnemesh_orchestrator.model.core_memory import Block
from mnemesh_orchestrator.model.custom_tools import (
    AnswerCall,
    CustomTool,
    OnProgress,
    Program,
    ProgramResult,
    ToolResult,
)


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
        project_id: str | None,
        blocks: Sequence[Block],
        environment: Mapping[str, str],
    ) -> tuple[ToolResult, Mapping[str, str]]:
        """Runs a tool in the sandbox once. Returns its result and the block values that it changed."""
        ...

    async def run_on_mcp_server(
        self,
        tool: CustomTool,
        arguments: str,
        agent_id: str,
        variables: Mapping[str, str],
        on_progress: OnProgress,
    ) -> ToolResult:
        """Runs a tool of an MCP server once, with variables for the settings of the server.

        `on_progress` receives what the server reports meanwhile. A server that does not answer is a result that says
        so. A cancellation of the caller cancels the call on the server.
        """
        ...

    async def run_program(self, program: Program, answer: AnswerCall | None = None) -> ProgramResult:
        """Runs a program in the sandbox once. `answer` runs the tools that it calls, one after another."""
        ...
