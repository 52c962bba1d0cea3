"""Tools."""

import letta_client
import pytest

from ..lab import Lab, drives

SOURCE = '''
def roll(sides: int) -> str:
    """Rolls a die.

    Args:
        sides: The number of sides.
    """
    return f"rolled 1 of {sides}"
'''


@drives("tools.create", "tools.retrieve", "tools.upsert", "tools.update", "tools.list", "tools.search", "tools.delete")
def tools(lab: Lab) -> None:
    tools = lab.client.tools
    made = tools.create(source_code=SOURCE, tags=["dice"], return_char_limit=500)
    assert (made.name, made.tool_type, made.source_type, made.return_char_limit) == ("roll", "custom", "python", 500)
    assert (made.json_schema or {})["parameters"]["required"] == ["sides"]  # type: ignore[index]
    assert tools.retrieve(made.id) == made
    with pytest.raises(letta_client.ConflictError):
        tools.create(source_code=SOURCE)
    again = tools.upsert(source_code=SOURCE.replace("a die", "dice"))
    assert (again.id, again.description, again.tags) == (made.id, "Rolls dice.", ["dice"])
    changed = tools.update(made.id, tags=[], default_requires_approval=True)
    assert (changed.tags, changed.default_requires_approval, changed.source_code) == ([], True, again.source_code)
    assert [tool.id for tool in tools.list(name="roll")] == [made.id]
    assert "send_message" in {tool.name for tool in tools.list(limit=10)}
    assert tools.search(query="roll")[0].tool.id == made.id
    agent = lab.agent(tool_ids=[made.id])
    assert [tool.name for tool in agent.tools] == ["roll"]
    result = lab.client.agents.tools.run("roll", agent_id=agent.id, args={"sides": 6})
    assert (result.status, result.func_return) == ("success", "rolled 1 of 6")
    tools.delete(made.id)
    with pytest.raises(letta_client.NotFoundError):
        tools.retrieve(made.id)
    with pytest.raises(letta_client.UnprocessableEntityError, match="source_code"):
        tools.create(source_code="")
    with pytest.raises(letta_client.BadRequestError):
        tools.create(source_code="def broken(:")
