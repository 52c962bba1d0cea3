"""Conversion of plain Python arguments to messages of the contracts, and of messages to text."""

import inspect
import json
import re
import textwrap
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from google.protobuf import timestamp_pb2
from google.protobuf.message import Message
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.tools.v1 import tools_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto

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
SearchModeName = Literal["hybrid", "text", "vector"]
ToolSource = str | Callable[..., Any]
R = TypeVar("R", bound=Message)


def new_request_id() -> str:
    """Returns a new idempotency key. A call repeated with the same key has no second effect."""
    return str(uuid.uuid4())


def package_requirements(packages: Iterable[str]) -> list[tools_pb2.PackageRequirement]:
    """Returns the messages of requirements such as "requests", "numpy>=2,<3" and "uvicorn[standard]==0.34.0".

    Raises:
        InvalidArgument: a text does not begin with the name of a package.
    """
    found = []
    for text in packages:
        parts = _REQUIREMENT.fullmatch(text.strip())
        if parts is None:
            raise InvalidArgument(f"{text[:100]!r} is not a requirement. Use name or name==version.", field="packages")
        found.append(tools_pb2.PackageRequirement(name=parts[1], version=parts[2].strip() or None))
    return found


_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._, -]*\])?)\s*((?:[<>=!~].*)?)")


def npm_requirements(packages: Iterable[str]) -> list[tools_pb2.PackageRequirement]:
    """Returns the messages of requirements of npm, such as "zod", "zod@^3.24" and "@scope/name@1.2.3".

    Raises:
        InvalidArgument: a text is not a name of a package with an optional version.
    """
    found = []
    for text in packages:
        parts = _NPM_REQUIREMENT.fullmatch(text.strip())
        if parts is None:
            raise InvalidArgument(f"{text[:100]!r} is not a requirement. Use name or name@version.", field="packages")
        found.append(tools_pb2.PackageRequirement(name=parts[1], version=parts[2]))
    return found


_NPM_REQUIREMENT: Final = re.compile(r"((?:@[a-z0-9._~-]+/)?[a-z0-9._~-]+)(?:@(\S.*))?", re.IGNORECASE)


AGENT_TYPES: Final = tuple(each.removeprefix("AGENT_TYPE_").lower() for each in agents_pb2.AgentType.keys()[1:])
"""The names of the types of agents."""


def agent_type(name: str) -> agents_pb2.AgentType.ValueType:
    """Returns the agent type with this name. A suffix "_agent" is ignored: "letta_v1_agent" is "letta_v1".

    Raises:
        InvalidArgument: there is no such type.
    """
    full = f"AGENT_TYPE_{name.removesuffix('_agent').upper()}"
    if full not in agents_pb2.AgentType.keys():  # noqa: SIM118  (an enum wrapper is not a mapping)
        raise InvalidArgument(f"There is no agent type {name!r}. Types are {', '.join(AGENT_TYPES)}.", field="type")
    return agents_pb2.AgentType.Value(full)


def block_messages(blocks: Blocks | None) -> list[blocks_pb2.Block]:
    """Returns Block messages for a mapping of labels to values; Block messages are returned unchanged."""
    if isinstance(blocks, Mapping):
        return [blocks_pb2.Block(label=label, value=value) for label, value in blocks.items()]
    return list(blocks or ())


def input_messages(content: Input) -> list[runs_pb2.InputMessage]:
    """Returns a text as one user message; messages are returned unchanged."""
    if isinstance(content, str):
        return [runs_pb2.InputMessage(role=message_pb2.ROLE_USER, content=[text_part(content)])]
    return [content] if isinstance(content, runs_pb2.InputMessage) else list(content)


def text_part(text: str) -> message_pb2.ContentPart:
    """Returns a content part with plain text."""
    return message_pb2.ContentPart(text=message_pb2.TextPart(text=text))


def text_of(parts: Iterable[message_pb2.ContentPart]) -> str:
    """Returns the joined text of the text parts of a message."""
    return "".join(part.text.text for part in parts if part.HasField("text"))


def source_text(tool: ToolSource) -> str:
    """Returns the source code of a tool: of a function that is defined in a file, or the text itself.

    Raises:
        InvalidArgument: the source of the function is not available, because it is built in or was typed at a prompt.
    """
    if isinstance(tool, str):
        return tool
    try:
        return textwrap.dedent(inspect.getsource(tool))
    except (OSError, TypeError) as error:
        raise InvalidArgument(
            f"The source of {tool!r} is not available. Define it in a file, or pass its source as text.",
            field="tool_sources",
        ) from error


def present_fields(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are not None. Setting a field of a oneof to None would still select it."""
    return {name: value for name, value in fields.items() if value is not None}


def update_request(kind: type[R], resource: str, id_: str, fields: Mapping[str, Any], **more: Any) -> R:
    """Returns the request that sets fields of a resource; None clears one. `metadata` may be a mapping.

    Args:
        kind: the type of the request.
        resource: the name of its field that has the resource.
        id_: the id of the resource.
        fields: the new values by name, which are the paths of the mask.
        more: further fields of the request.
    """
    values = {**present_fields(**fields), "id": id_}
    if "metadata" in values:
        values["metadata"] = json_text(values["metadata"])
    return kind(update_mask={"paths": fields}, **{resource: values}, **more)


def is_id(key: str, kind: str) -> bool:
    """Returns whether a text is an id of a kind, such as "agent". A name may begin with "agent-", too."""
    return key.startswith(f"{kind}-") and _UUID.fullmatch(key, len(kind) + 1) is not None


_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def optional_timestamp(moment: datetime | None) -> timestamp_pb2.Timestamp | None:
    """Returns a datetime as a timestamp, or None for None. A datetime without a time zone is in UTC."""
    if moment is None:
        return None
    return timestamp_to_proto(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def json_text(value: Mapping[str, Any] | str | None) -> str | None:
    """Returns a mapping as JSON text; a text is returned unchanged."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def approve(tool_call_id: str) -> message_pb2.ApprovalDecision:
    """Returns the decision that the tool may run."""
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, approve=message_pb2.Approve())


def deny(tool_call_id: str, reason: str | None = None) -> message_pb2.ApprovalDecision:
    """Returns the decision that the tool must not run. The model receives the reason."""
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, deny=message_pb2.Deny(reason=reason))


def returned(
    tool_call_id: str,
    text: str,
    *,
    failed: bool = False,
    stdout: list[str] | None = None,
    stderr: list[str] | None = None,
) -> message_pb2.ApprovalDecision:
    """Returns the decision for a call that the client ran itself.

    Args:
        tool_call_id: the id of the call.
        text: the result, or the error if it failed.
        failed: whether the call failed.
        stdout: the lines that the tool printed to stdout.
        stderr: the lines that the tool printed to stderr.
    """
    status = message_pb2.TOOL_RETURN_STATUS_ERROR if failed else message_pb2.TOOL_RETURN_STATUS_SUCCESS
    tool_return = message_pb2.ToolReturn(
        tool_call_id=tool_call_id, status=status, content=[text_part(text)], stdout=stdout or (), stderr=stderr or ()
    )
    return message_pb2.ApprovalDecision(tool_call_id=tool_call_id, client_return=tool_return)
