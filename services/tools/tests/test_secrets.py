"""Environment variables of tools: set by their owner, encrypted at rest, and absent from what is returned."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import execution_service_pb2 as execution_pb
from mnemesh.tools.v1 import tools_pb2
from mnemesh.tools.v1 import tools_service_pb2 as pb

KEY = 'sk-1234"é 567/+'
PEM = "-----BEGIN KEY-----\nMIIEow==\n-----END KEY-----"

SHOW = '''
def show() -> str:
    """Shows its environment in several ways."""
    import json, os, subprocess, sys, urllib.parse
    key = os.environ["API_KEY"]
    print(key, json.dumps([key]), repr(key))
    print(urllib.parse.quote(key, safe=""), file=sys.stderr)
    subprocess.run(["/usr/bin/env"], check=True)
    return f"key {key} and {key}, of {os.environ.get('REGION')}"
'''

LENGTHS = '''
def lengths() -> dict:
    """Returns the environment, spelled backwards."""
    import os
    return {name: value[::-1] for name, value in os.environ.items()}
'''


def secrets(**values: str | None) -> list[tools_pb2.ToolSecret]:
    return [tools_pb2.ToolSecret(name=name, value=value) for name, value in values.items()]


async def create(stubs: Any, source: str, **fields: Any) -> tools_pb2.Tool:
    tool: tools_pb2.Tool = (
        await stubs.tools.CreateTool(pb.CreateToolRequest(tool=tools_pb2.Tool(source_code=source, **fields)))
    ).tool
    return tool


async def seen(stubs: Any, tool_id: str, **fields: Any) -> dict[str, str]:
    """Returns the environment of an execution."""
    answer = await stubs.executions.ExecuteTool(execution_pb.ExecuteToolRequest(tool_id=tool_id, **fields))
    found = {name: value[::-1] for name, value in json.loads(answer.result).items()}
    assert found.pop("HOME").startswith("/")
    return found


async def test_values_are_not_returned_logged_or_stored_in_clear(
    embedded: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = await create(embedded, SHOW, secrets=secrets(API_KEY=KEY, REGION="eu", PEM=PEM))
    assert [(secret.name, secret.HasField("value")) for secret in tool.secrets] == [
        ("API_KEY", False),
        ("REGION", False),
        ("PEM", False),
    ]
    assert tool.secrets[0].HasField("update_time")
    answer = await embedded.executions.ExecuteTool(execution_pb.ExecuteToolRequest(tool_id=tool.id))
    assert answer.result == "key [secret API_KEY] and [secret API_KEY], of eu"
    found = (await embedded.tools.GetTool(pb.GetToolRequest(tool_id=tool.id))).tool
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()).decode("latin-1")
    for text in (str(answer), str(found), capsys.readouterr().out, written):
        assert "sk-1234" not in text
        assert "MIIEow" not in text
    assert answer.stdout.count("[secret API_KEY]") == 4
    assert "[secret API_KEY]" in answer.stderr


async def test_variables_of_the_caller_override_those_of_the_tool(embedded: Any) -> None:
    tool = await create(embedded, LENGTHS, secrets=secrets(A="of the tool", B="of the tool", PROJECT_ID="mine"))
    agent = execution_pb.AgentState(agent_id="agent-1", project_id="project-1")
    environment = await seen(embedded, tool.id, environment={"B": "of the agent"}, agent_state=agent)
    assert environment == {
        "A": "of the tool",
        "B": "of the agent",
        "PROJECT_ID": "mine",
        "AGENT_ID": "agent-1",
        "LETTA_AGENT_ID": "agent-1",
    }


async def test_secret_in_a_changed_block_or_an_error_is_removed(embedded: Any) -> None:
    source = '''
def leak(agent_state: "AgentState", fail: bool) -> str:
    """Leaks.

    Args:
        fail: Whether to raise.
    """
    import os
    agent_state.memory.update_block_value("human", os.environ["KEY"])
    if fail:
        raise ValueError("x" * 960 + os.environ["KEY"])
    return "done"
'''
    tool = await create(embedded, source, secrets=secrets(KEY="0123456789" * 5))
    state = execution_pb.AgentState(agent_id="agent-1", blocks={"human": ""})
    for fail in ("false", "true"):
        request = execution_pb.ExecuteToolRequest(tool_id=tool.id, agent_state=state, arguments=f'{{"fail": {fail}}}')
        answer = await embedded.executions.ExecuteTool(request)
        assert "012345" not in str(answer)
        if fail == "false":
            assert dict(answer.changed_blocks) == {"human": "[secret KEY]"}


async def test_result_that_is_cut_within_a_secret_has_no_part_of_it(embedded: Any) -> None:
    source = 'def f() -> str:\n    """Leaks."""\n    import os\n    return "x" * 5 + os.environ["KEY"]\n'
    tool = await create(embedded, source, secrets=secrets(KEY="0123456789"), return_char_limit=9)
    answer = await embedded.executions.ExecuteTool(execution_pb.ExecuteToolRequest(tool_id=tool.id))
    assert answer.result.startswith("xxxxx[sec\n")


async def test_update_replaces_the_set_and_keeps_values_that_are_not_given(stubs: Any) -> None:
    tool = await create(stubs, LENGTHS, secrets=secrets(A="value a", B="value b", C="value c"))

    async def update(*given: tools_pb2.ToolSecret) -> tools_pb2.Tool:
        request = pb.UpdateToolRequest(
            tool=tools_pb2.Tool(id=tool.id, secrets=given), update_mask=FieldMask(paths=["secrets"])
        )
        return (await stubs.tools.UpdateTool(request)).tool

    same = await update(*secrets(A=None, B="value b", C="value c"))
    assert (same.revision, same.update_time) == (tool.revision, tool.update_time)
    changed = await update(*secrets(A=None, B="another"))
    assert changed.revision == tool.revision + 1
    assert [secret.name for secret in changed.secrets] == ["A", "B"]
    assert changed.secrets[0] == tool.secrets[0]
    assert changed.secrets[1].update_time.ToDatetime() > tool.secrets[1].update_time.ToDatetime()
    assert await seen(stubs, tool.id) == {"A": "value a", "B": "another"}
    other = pb.UpsertToolRequest(tool=tools_pb2.Tool(source_code=LENGTHS, tags=["t"]))
    assert [secret.name for secret in (await stubs.tools.UpsertTool(other)).tool.secrets] == ["A", "B"]
    assert [*(await update()).secrets] == []


async def test_repeated_request_is_recognised_by_its_values(stubs: Any) -> None:
    def request(value: str) -> pb.CreateToolRequest:
        tool = tools_pb2.Tool(source_code=LENGTHS, secrets=secrets(A=value))
        return pb.CreateToolRequest(request_id="once", tool=tool)

    first = await stubs.tools.CreateTool(request("value a"))
    assert (await stubs.tools.CreateTool(request("value a"))).tool.id == first.tool.id
    with pytest.raises(Exception, match="used before with other content"):
        await stubs.tools.CreateTool(request("value b"))


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (secrets(PATH="/evil"), "tool.secrets: PATH changes how programs start"),
        (secrets(ld_preload="/evil.so"), "ld_preload changes how programs start"),
        (secrets(PYTHONPATH="/evil"), "PYTHONPATH changes how programs start"),
        (secrets(https_proxy="http://evil"), "https_proxy changes how programs start"),
        (secrets(NODE_OPTIONS="--require x"), "NODE_OPTIONS changes how programs start"),
        ([tools_pb2.ToolSecret(name="A=B", value="x")], "is not the name of an environment variable"),
        ([tools_pb2.ToolSecret(name="", value="x")], "is not the name of an environment variable"),
        ([tools_pb2.ToolSecret(name="é", value="x")], "is not the name of an environment variable"),
        (secrets(A="x\0y"), "tool.secrets.A"),
        (secrets(A="x" * 30_001), "tool.secrets.A must be at most 30,000 characters"),
        (secrets(**{f"A{n}": "x" * 29_000 for n in range(8)}), "at most 200,000 characters together"),
        (secrets(**{f"A{n}": "x" for n in range(101)}), "at most 100 entries"),
        (secrets(A="x") * 2, "must not have the same name twice"),
        (secrets(A=None), "A has no value"),
    ],
)
async def test_invalid_variables_are_refused(stubs: Any, given: list[tools_pb2.ToolSecret], part: str) -> None:
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        await create(stubs, LENGTHS, secrets=given)
    assert part in str(caught.value)
    assert "x" * 100 not in str(caught.value)
    assert (await stubs.tools.ListTools(pb.ListToolsRequest(filter=pb.ToolFilter(names=["lengths"])))).tools == []


async def test_only_custom_tools_have_variables(stubs: Any) -> None:
    tool = tools_pb2.Tool(
        type=tools_pb2.TOOL_TYPE_CLIENT, json_schema='{"name": "f", "parameters": {"type": "object"}}'
    )
    tool.secrets.extend(secrets(A="value a"))
    with pytest.raises(Exception, match="must be empty for a tool of type client"):
        await stubs.tools.CreateTool(pb.CreateToolRequest(tool=tool))


async def test_tools_in_typescript_have_the_variables(embedded: Any) -> None:
    source = """/** Returns the environment. */
export function show(): string {
  const key = process.env.API_KEY ?? "";
  console.error(key);
  return `${key} ${key.split("").reverse().join("")}`;
}
"""
    tool = await create(
        embedded, source, source_type=tools_pb2.SOURCE_TYPE_TYPESCRIPT, secrets=secrets(API_KEY="value of the tool")
    )
    answer = await embedded.executions.ExecuteTool(execution_pb.ExecuteToolRequest(tool_id=tool.id))
    assert answer.result == "[secret API_KEY] loot eht fo eulav"
    assert answer.stderr == "[secret API_KEY]\n"
