"""Tools in TypeScript, from their source to their result."""

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh_testkit.errors import catch_refusal
from mnemesh_tools.config import Config

from .conftest import Stubs, serve

SHOUT = """
enum Mark { Calm = '.', Loud = '!' }
interface Line { text: string; times?: number }

/**
 * Shouts lines.
 *
 * @param lines - What to shout.
 * @param mark - The end of each line.
 */
export async function shout(lines: Line[], mark: Mark = Mark.Loud, agent_state?: any): Promise<string[]> {
  console.log('shouting');
  agent_state?.memory.update_block_value('notes', 'shouted');
  return lines.map((line) => (line.text + mark).repeat(line.times ?? 1));
}
"""
TYPESCRIPT = tools_pb2.SOURCE_TYPE_TYPESCRIPT


async def _create(stubs: Stubs, source: str = SHOUT, **fields: Any) -> tools_pb2.Tool:
    tool = tools_pb2.Tool(source_code=source, source_type=TYPESCRIPT, **fields)
    return (await stubs.tools.CreateTool(tools_service_pb2.CreateToolRequest(tool=tool))).tool


async def test_stored_tool_runs_in_node(embedded: Stubs) -> None:
    tool = await _create(embedded)
    schema = json.loads(tool.json_schema)
    assert (tool.name, schema["description"], schema["parameters"]["required"]) == ("shout", "Shouts lines.", ["lines"])
    assert schema["parameters"]["properties"]["mark"]["enum"] == [".", "!"]
    arguments = json.dumps({"lines": '[{"text": "hey", "times": 2}]'})
    state = pb.AgentState(agent_id="agent-1", name="Ada", blocks={"notes": ""})
    answer = await embedded.executions.ExecuteTool(
        pb.ExecuteToolRequest(tool_id=tool.id, arguments=arguments, agent_state=state)
    )
    assert (answer.status, answer.result, answer.stdout) == (
        pb.EXECUTION_STATUS_SUCCESS,
        '["hey!hey!"]',
        "shouting\n",
    ), answer
    assert answer.changed_blocks == {"notes": "shouted"}
    wrong = pb.ExecuteToolRequest(tool_id=tool.id, arguments='{"lines": [], "mark": "?"}')
    assert (await catch_refusal(embedded.executions.ExecuteTool(wrong))).metadata["parameter"] == "mark"


async def test_a_tool_returns_an_image(embedded: Stubs) -> None:
    part = "{ type: 'image', media_type: 'image/png', data: 'iVBORw0KGgo=' }"
    tool = await _create(
        embedded, f"/** Draws. */\nexport const draw = () => [{{ type: 'text', text: 'See:' }}, {part}];"
    )
    answer = await embedded.executions.ExecuteTool(pb.ExecuteToolRequest(tool_id=tool.id))
    assert [(image.media_type, image.data) for image in answer.images] == [("image/png", b"\x89PNG\r\n\x1a\n")]
    assert answer.result == "See:"


async def test_changed_source_gives_a_new_schema(embedded: Stubs) -> None:
    tool = await _create(embedded)
    changed = tools_pb2.Tool(id=tool.id, source_code="/** Ends. */\nexport const finish = () => ({ done: true });")
    request = tools_service_pb2.UpdateToolRequest(tool=changed)
    request.update_mask.paths.append("source_code")
    assert (await embedded.tools.UpdateTool(request)).tool.name == "finish"
    answer = await embedded.executions.ExecuteTool(pb.ExecuteToolRequest(tool_id=tool.id))
    assert answer.result == '{"done":true}'


async def test_source_without_schema_is_refused(embedded: Stubs) -> None:
    error = await catch_refusal(_create(embedded, "/** F. */\nexport function f(when: Date) {}"))
    assert (error.reason, error.metadata["parameter"]) == ("TOOL_SOURCE_INVALID", "when")
    source = "/** F. */\nfunction f() {}"
    for fields, field in (
        ({"pip_requirements": [tools_pb2.PackageRequirement(name="requests")]}, "tool.pip_requirements"),
        ({"npm_requirements": [tools_pb2.PackageRequirement(name="Not A Name")]}, "tool.npm_requirements"),
    ):
        error = await catch_refusal(_create(embedded, source, **fields))
        assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


async def test_large_source_is_read_in_a_process(embedded: Stubs) -> None:
    source = f"const text = {'x' * 30_000!r};\n{SHOUT}"
    request = tools_service_pb2.GenerateSchemaRequest(source_code=source, source_type=TYPESCRIPT)
    answer = await embedded.tools.GenerateSchema(request)
    assert json.loads(answer.json_schema)["name"] == "shout"


async def test_server_without_node_refuses_at_once(tmp_path: Path) -> None:
    config = Config(
        port=0, data_dir=str(tmp_path), min_sandbox="minimal", warm_processes=0, node=str(tmp_path / "absent")
    )
    async with serve(config) as stubs:
        error = await catch_refusal(_create(stubs))
        assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TOOL_REQUIREMENTS_UNMET")
        assert "MNEMESH_TOOLS_NODE" in error.message
        ad_hoc = pb.AdHocTool(source_code=SHOUT, source_type=TYPESCRIPT)
        error = await catch_refusal(stubs.executions.ExecuteTool(pb.ExecuteToolRequest(ad_hoc=ad_hoc)))
        assert (error.reason, error.field) == ("TOOL_REQUIREMENTS_UNMET", "ad_hoc.source_type")


FETCH = """
/**
 * Fetches.
 * @param url The address.
 */
export async function load(url: string) {
  const answer = await fetch(url);
  return [answer.status, await answer.text()];
}
"""


async def test_fetch_uses_the_proxy_of_the_tool(embedded: Stubs, web: str) -> None:
    host = web.removeprefix("http://").split("/")[0]
    tool = await _create(embedded, FETCH, network_hosts=[host])
    request = pb.ExecuteToolRequest(tool_id=tool.id, arguments=json.dumps({"url": f"{web}/page"}))
    answer = await embedded.executions.ExecuteTool(request)
    assert answer.result == '[200,"hello"]', answer
    assert [(found.host, found.refusal) for found in answer.connections] == [("127.0.0.1", "")]
    other = pb.ExecuteToolRequest(tool_id=tool.id, arguments='{"url": "http://example.com/"}')
    answer = await embedded.executions.ExecuteTool(other)
    assert answer.status == pb.EXECUTION_STATUS_ERROR
    assert [found.refusal for found in answer.connections] == ["not_granted"]
    without = await _create(embedded, FETCH.replace("load", "plain"))
    answer = await embedded.executions.ExecuteTool(
        pb.ExecuteToolRequest(tool_id=without.id, arguments=json.dumps({"url": web}))
    )
    assert "fetch failed" in answer.result


@pytest.fixture
def web() -> Any:
    """A page on this host."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
