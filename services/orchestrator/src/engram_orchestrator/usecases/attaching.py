"""How a stored tool is held by an agent."""

from engram_kit.errors import NotFound

from engram_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from engram_orchestrator.model.agents import AttachedTool
from engram_orchestrator.model.memory import CustomTool


def attachment(tool: CustomTool) -> AttachedTool:
    """The tool as one of an agent's: by its id, and by its name alone where it is built in and only listed there.

    Raises:
        NotFound: it is a built-in tool of somebody else.
    """
    if not tool.builtin:
        return AttachedTool(tool.name, tool.id)
    if tool.name not in BUILTIN_SCHEMAS:
        raise NotFound(f"This server has no built-in tool {tool.name}.", resource_id=tool.id)
    return AttachedTool(tool.name)
