"""The results of tools that a client runs, their output, and what protects built-in tools."""

import time

from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.timeouts import scaled

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
    arguments = {"label": "human", "old_string": "Ada.", "new_string": "Bea."}
    lab.fake.script = [Reply(tool_calls=[("memory_replace", arguments)]), "Done."]
    lab.client.agents.messages.create(agent.id, input="I am Bea.")
    assert lab.client.agents.blocks.retrieve("human", agent_id=agent.id).value.startswith("Bea.")


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
    assert (returned.name, returned.stdout) == ("divide", ["one\ntwo"])
    listed = lab.client.agents.messages.list(agent.id).items
    assert [message.name for message in listed if message.message_type == "tool_return_message"] == ["divide"]
    assert len(returned.stderr or ()) == 1
    assert "division by zero" in (returned.stderr or [""])[0]


def test_built_in_tools_are_not_deleted(lab: Lab) -> None:
    (tool,) = lab.client.tools.list(name="send_message")
    lab.client.tools.delete(tool.id)
    assert [found.id for found in lab.client.tools.list(name="send_message")] == [tool.id]


def test_files_of_an_agent_are_blocks_of_its_memory(lab: Lab) -> None:
    folder = lab.client.folders.create(name="papers")
    agent = lab.agent()
    assert agent.memory.file_blocks == []
    lab.client.agents.folders.attach(folder.id, agent_id=agent.id)
    file = lab.client.folders.files.upload(folder.id, file=("paper.txt", b"Red boats."), name="boats.txt")
    assert (file.file_name, file.original_file_name) == ("boats.txt", "boats.txt")
    deadline = time.monotonic() + scaled(60)
    while lab.client.folders.files.retrieve(file.id or "", folder_id=folder.id).processing_status != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (opened,) = lab.client.agents.retrieve(agent.id).memory.file_blocks or ()  # without a request
    assert (opened.label, opened.file_id, opened.source_id) == ("papers/boats.txt", file.id, folder.id)
    assert (opened.is_open, "1: Red boats." in opened.value) == (True, True)
    lab.client.agents.files.close(file.id or "", agent_id=agent.id)
    (closed,) = lab.client.agents.retrieve(agent.id).memory.file_blocks or ()
    assert (closed.value, closed.is_open) == ("", False)
    lab.client.agents.files.open(file.id or "", agent_id=agent.id)
    (opened,) = lab.client.agents.retrieve(agent.id).memory.file_blocks or ()
    assert opened.is_open
    lab.client.agents.folders.detach(folder.id, agent_id=agent.id)
    assert lab.client.agents.retrieve(agent.id).memory.file_blocks == []
