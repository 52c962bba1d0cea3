"""Turns what a Python caller would write into messages of the contracts, and texts back out of them."""

from __future__ import annotations

import inspect
import json
import textwrap
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument

AgentTypeName = Literal[
    "memgpt",
    "memgpt_v2",
    "letta_v1",
    "react",
    "workflow",
    "split_thread",
    "sleeptime",
    "voice_convo",
    "voice_sleeptime",
]
Blocks = Mapping[str, str] | Sequence[blocks_pb2.Block]
Input = str | runs_pb2.InputMessage | Sequence[runs_pb2.InputMessage]
ToolSource = str | Callable[..., Any]


def new_request_id() -> str:
    """An id under which a call may be repeated without a second effect."""
    return str(uuid.uuid4())


def agent_type(name: str) -> agents_pb2.AgentType.ValueType:
    """The type of that name; "letta_v1" and "letta_v1_agent" are the same.

    Raises:
        InvalidArgument: there is no such type.
    """
    full = f"AGENT_TYPE_{name.removesuffix('_agent').upper()}"
    if full not in agents_pb2.AgentType.keys():  # noqa: SIM118  (an enum wrapper is no mapping)
        raise InvalidArgument(f"There is no agent type {name!r}.", field="type")
    return agents_pb2.AgentType.Value(full)


def block_messages(blocks: Blocks | None) -> list[blocks_pb2.Block]:
    """Blocks from label → value, or as they are."""
    if isinstance(blocks, Mapping):
        return [blocks_pb2.Block(label=label, value=value) for label, value in blocks.items()]
    return list(blocks or ())


def input_messages(content: Input) -> list[runs_pb2.InputMessage]:
    """A text as one message of the user, or messages as they are."""
    if isinstance(content, str):
        return [runs_pb2.InputMessage(role=message_pb2.ROLE_USER, content=[text_part(content)])]
    return [content] if isinstance(content, runs_pb2.InputMessage) else list(content)


def text_part(text: str) -> message_pb2.ContentPart:
    """A part that is plain text."""
    return message_pb2.ContentPart(text=message_pb2.TextPart(text=text))


def text_of(parts: Iterable[message_pb2.ContentPart]) -> str:
    """The words of a message: its text parts, joined."""
    return "".join(part.text.text for part in parts if part.HasField("text"))


def source_text(tool: ToolSource) -> str:
    """The source of a tool: a text as it is, or the source of a function that stands in a file.

    Raises:
        InvalidArgument: the function's source cannot be found (it was typed into a prompt, or is built in).
    """
    if isinstance(tool, str):
        return tool
    try:
        return textwrap.dedent(inspect.getsource(tool))
    except (OSError, TypeError) as error:
        raise InvalidArgument(f"The source of {tool!r} cannot be found.", field="tool_sources") from error


def given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value: for a oneof, of which at most one may be written."""
    return {name: value for name, value in fields.items() if value is not None}


def json_text(value: Mapping[str, Any] | str | None) -> str | None:
    """JSON that is only carried: a mapping as text, a text as it is."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
