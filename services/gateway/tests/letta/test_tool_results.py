"""The results of tools that a client runs, their output, and what protects built-in tools."""

from __future__ import annotations

from mnemesh_testkit.fakes.script import Reply

from .lab import MODEL, Lab

FAILING = '''
def divide(number: int) -> float:
    """Divides a number.

    Args:
        number: The number.
    """
    print("one")
    print("two")
    return number / 0
'''


def test_a_memory_tool_takes_the_arguments_of_lettas_releases(lab: Lab) -> None:
    agent = lab.client.agents.create(model=MODEL, memory_blocks=[{"label": "human", "value": "Ada."}])
    run = lab.client.agents.tools.run
    for name in ("new_str", "new_string"):
        result = run("memory_insert", agent_id=agent.id, args={"label": "human", name: f"By {name}."})
        assert (result.status, bool(result.func_return)) == ("success", True)
    value = lab.client.agents.blocks.retrieve("human", agent_id=agent.id).value
    assert value.split("\n") == ["Ada.", "By new_str.", "By new_string."]


def test_the_error_of_a_built_in_tool_is_on_stderr(lab: Lab) -> None:
    agent = lab.client.agents.create(model=MODEL, memory_blocks=[{"label": "human", "value": "Ada."}])
    result = lab.client.agents.tools.run("memory_insert", agent_id=agent.id, args={"label": "human", "colour": "red"})
    assert (result.status, result.func_return) == ("error", None)
    assert "colour" in (result.stderr or [""])[0]
    assert lab.client.agents.blocks.retrieve("human", agent_id=agent.id).value == "Ada."


def test_what_a_tool_prints_is_one_text(lab: Lab) -> None:
    tool = lab.client.tools.create(source_code=FAILING)
    agent = lab.agent(tool_ids=[tool.id])
    result = lab.client.agents.tools.run("divide", agent_id=agent.id, args={"number": 1})
    assert (result.status, result.stdout) == ("error", ["one\ntwo"])
    assert "division by zero" in str(result.func_return)
    lab.fake.script = [Reply(tool_calls=[("divide", {"number": 1})]), "It failed."]
    messages = lab.client.agents.messages.create(agent.id, input="Divide.").messages
    returned = next(message for message in messages if message.message_type == "tool_return_message")
    assert returned.stdout == ["one\ntwo"]
    assert len(returned.stderr or ()) == 1
    assert "division by zero" in (returned.stderr or [""])[0]


def test_built_in_tools_are_not_deleted(lab: Lab) -> None:
    (tool,) = lab.client.tools.list(name="send_message")
    lab.client.tools.delete(tool.id)
    assert [found.id for found in lab.client.tools.list(name="send_message")] == [tool.id]
