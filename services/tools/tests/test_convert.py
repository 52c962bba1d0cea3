"""Round trips between domain values and messages."""

from datetime import UTC, datetime, timedelta

from google.protobuf.field_mask_pb2 import FieldMask
from hypothesis import given
from hypothesis import strategies as st
from mnemesh.tools.v1 import tools_pb2
from mnemesh_kit.time import timestamp_from_proto
from mnemesh_tools.model.tools import Tool, ToolSpec
from mnemesh_tools.rpc.convert.tools import tool_spec_from_proto, tool_to_proto, written_fields_from_proto
from mnemesh_types.tools import Requirement, SourceType, ToolType

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
text = st.text(st.characters(codec="utf-8"), max_size=30)
optional_text = st.none() | text
numbers = st.integers(0, 2**31 - 1)
requirements = st.lists(st.builds(Requirement, text, optional_text), max_size=3).map(tuple)
specs = st.builds(
    ToolSpec,
    name=text,
    type=st.sampled_from(ToolType),
    description=optional_text,
    source_code=optional_text,
    source_type=st.sampled_from(SourceType),
    json_schema=text,
    args_json_schema=optional_text,
    return_char_limit=numbers,
    pip_requirements=requirements,
    npm_requirements=requirements,
    default_requires_approval=st.none() | st.booleans(),
    enable_parallel_execution=st.booleans(),
    idempotent=st.booleans(),
    tags=st.lists(text, max_size=3).map(tuple),
    metadata=optional_text,
    timeout_seconds=numbers,
    allow_network=st.booleans(),
    network_hosts=st.lists(text, max_size=3).map(tuple),
    mcp_server_id=optional_text,
    mcp_tool_name=optional_text,
    project_id=optional_text,
    template_id=optional_text,
    base_template_id=optional_text,
    deployment_id=optional_text,
    entity_id=optional_text,
)
times = st.integers(0, 2**52).map(lambda micros: EPOCH + timedelta(microseconds=micros))
tools = st.builds(Tool, text, text, specs, numbers, times, times, text, text)


@given(tools)
def test_tool_round_trip(tool: Tool) -> None:
    message = tools_pb2.Tool.FromString(tool_to_proto(tool).SerializeToString())
    assert tool_spec_from_proto(message) == tool.spec
    assert (message.id, message.revision) == (tool.id, tool.revision)
    assert timestamp_from_proto(message.create_time, "create_time") == tool.created_at
    assert timestamp_from_proto(message.update_time, "update_time") == tool.updated_at
    assert message.provenance.created_by_id == tool.created_by_id
    assert message.provenance.last_updated_by_id == tool.last_updated_by_id


def test_empty_mask_names_the_fields_that_are_set() -> None:
    message = tools_pb2.Tool(id="tool-1", name="roll", tags=["a"], revision=3)
    message.provenance.project_id = "p"
    provenance = {"project_id", "template_id", "base_template_id", "deployment_id", "entity_id"}
    assert written_fields_from_proto(FieldMask(), message, default_to_set=True) == {"name", "tags", *provenance}
