"""Authors of changes."""

from __future__ import annotations

from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.principal import Principal

from mnemesh_blocks.model.authors import AgentAuthor, Author, OwnerAuthor
from mnemesh_blocks.rpc.convert.fields import optional_field


def author_from_proto(message: blocks_pb2.Author, caller: Principal) -> Author:
    """Returns the author of a change. An owner is always the caller.

    Raises:
        InvalidArgument: The message names no author.
    """
    match message.WhichOneof("author"):
        case "agent":
            agent = message.agent
            return AgentAuthor(agent.agent_id, optional_field(agent, "tool_call_id"), optional_field(agent, "run_id"))
        case "owner":
            return OwnerAuthor(caller.subject_id)
        case _:
            raise InvalidArgument("author must be set to agent or owner.", field="author")


def recorded_author_from_proto(message: blocks_pb2.Author) -> Author:
    """Returns the author of a change that was made elsewhere. Without one, it is an owner without a name."""
    if message.WhichOneof("author") == "agent":
        agent = message.agent
        return AgentAuthor(agent.agent_id, optional_field(agent, "tool_call_id"), optional_field(agent, "run_id"))
    return OwnerAuthor(message.owner.subject_id)


def author_to_proto(author: Author) -> blocks_pb2.Author:
    """Returns the message of an author."""
    match author:
        case AgentAuthor(agent_id, tool_call_id, run_id):
            agent = blocks_pb2.AgentAuthor(agent_id=agent_id, tool_call_id=tool_call_id, run_id=run_id)
            return blocks_pb2.Author(agent=agent)
        case OwnerAuthor(subject_id):
            return blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor(subject_id=subject_id))
