"""An agent from its creation to its deletion, over gRPC. See README.md."""

import os
import sys
import time
from contextlib import ExitStack
from uuid import uuid4

import grpc
from connection import TURN, WRITE, connect
from errors import describe
from memory import delete_agent, delete_tool, fail, list_messages, search
from mnemesh.agents.v1 import (
    agents_pb2,
    agents_service_pb2,
    agents_service_pb2_grpc,
    runs_pb2,
    runs_service_pb2,
    runs_service_pb2_grpc,
)
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2, tools_service_pb2_grpc
from mnemesh.types.v1 import message_pb2
from turn import KEEPALIVE, Turn

WATER_PLANTS = '''
from typing import Literal

def water_plants(room: Literal["kitchen", "balcony"]) -> str:
    """Waters the plants of a room.

    Args:
        room: the room.
    """
    return f"The plants of the {room} have water."
'''
LOCAL_TIME = "local_time"


def main() -> None:
    with connect() as channel, ExitStack() as created:
        tool = create_tool(channel)
        created.callback(delete_tool, channel, tool)
        agent, request = create_agent(channel, tool)
        created.callback(delete_agent, channel, agent)
        create_again(channel, request, agent)
        converse(channel, agent)
        search(channel, agent)
        list_messages(channel, agent)
        fail(channel)


def create_tool(channel: grpc.Channel) -> tools_pb2.Tool:
    """Stores a tool that runs in the server's sandbox after a person has approved the call.

    Names of tools are unique within an organization, so each run of the program has its own.
    """
    tool = tools_pb2.Tool(
        type=tools_pb2.TOOL_TYPE_CUSTOM,
        source_type=tools_pb2.SOURCE_TYPE_PYTHON,
        source_code=WATER_PLANTS.replace("water_plants", f"water_plants_{uuid4().hex[:8]}"),
        default_requires_approval=True,
    )
    request = tools_service_pb2.CreateToolRequest(request_id=str(uuid4()), tool=tool)
    tool = tools_service_pb2_grpc.ToolServiceStub(channel).CreateTool(request, timeout=WRITE).tool
    print(f"tool {tool.name} {tool.id}")
    return tool


def create_agent(
    channel: grpc.Channel, tool: tools_pb2.Tool
) -> tuple[agents_pb2.Agent, agents_service_pb2.CreateAgentRequest]:
    """Creates an agent, and returns it with the request."""
    required = [tool.name, LOCAL_TIME]  # The rules make even a model without intelligence call both tools.
    rules = [
        agents_pb2.ToolRule(required_before_exit=agents_pb2.RequiredBeforeExitRule(tool_name=name)) for name in required
    ]
    model = os.environ.get("MNEMESH_EXAMPLE_MODEL", "mnemesh/rehearsal")
    request = agents_service_pb2.CreateAgentRequest(
        request_id=str(uuid4()),
        agent=agents_pb2.Agent(name="example-python", model=model, tool_rules=rules),
        blocks=[blocks_pb2.Block(label="human"), blocks_pb2.Block(label="persona", value="I look after a house.")],
        tool_ids=[tool.id],
    )
    agent = agents_service_pb2_grpc.AgentServiceStub(channel).CreateAgent(request, timeout=WRITE).agent
    print(f"agent {agent.name} {agent.id}")
    return agent, request


def create_again(
    channel: grpc.Channel, request: agents_service_pb2.CreateAgentRequest, agent: agents_pb2.Agent
) -> None:
    """Sends the request again, as after a lost response: the same request_id is the same agent."""
    again = agents_service_pb2_grpc.AgentServiceStub(channel).CreateAgent(request, timeout=WRITE).agent
    print(f"sent again: {'the same agent' if again.id == agent.id else 'another agent'}")


def converse(channel: grpc.Channel, agent: agents_pb2.Agent) -> None:
    """Sends a message, and answers what the agent asks for until the turn ends."""
    runs = runs_service_pb2_grpc.RunServiceStub(channel)
    words = "My name is Ada. Remember that the key is under the mat."
    request = runs_service_pb2.SendMessageRequest(
        request_id=str(uuid4()),
        agent_id=agent.id,
        messages=[runs_pb2.InputMessage(content=[text_part(words)])],
        config=runs_pb2.RunConfig(
            stream_tokens=True,
            max_steps=10,
            keepalive_seconds=KEEPALIVE,
            client_tools=[
                runs_pb2.ClientTool(
                    name=LOCAL_TIME,
                    description="Returns the time of the user's clock.",
                    parameters='{"type": "object", "properties": {}}',
                )
            ],
        ),
    )
    turn = Turn(runs, drop_after=3).follow(lambda: runs.SendMessage(request, timeout=TURN))
    while turn.stop_reason == "REQUIRES_APPROVAL":
        answer = runs_service_pb2.AnswerApprovalRequest(
            request_id=str(uuid4()),
            agent_id=agent.id,
            approval_request_id=turn.approval_request_id,
            decisions=[decide(call) for call in turn.pending_calls],
        )
        turn = Turn(runs).follow(lambda answer=answer: runs.AnswerApproval(answer, timeout=TURN))


def decide(call: message_pb2.ToolCall) -> message_pb2.ApprovalDecision:
    """Runs the client's own tool, and approves every other. A program with a user asks here, and may deny the call."""
    if call.name != LOCAL_TIME:
        print(f"> approve {call.name}")
        return message_pb2.ApprovalDecision(tool_call_id=call.id, approve=message_pb2.Approve())
    now = time.strftime("%H:%M")
    print(f"> return {call.name}: {now}")
    result = message_pb2.ToolReturn(
        tool_call_id=call.id,
        name=call.name,
        status=message_pb2.TOOL_RETURN_STATUS_SUCCESS,
        content=[text_part(now)],
    )
    return message_pb2.ApprovalDecision(tool_call_id=call.id, client_return=result)


def text_part(text: str) -> message_pb2.ContentPart:
    return message_pb2.ContentPart(text=message_pb2.TextPart(text=text))


def report(error: BaseException | None) -> None:
    """Prints an error of a call, after the one during whose handling it occurred."""
    if isinstance(error, grpc.RpcError):
        report(error.__context__)
        print(f"error {describe(error)}: {error.details()}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as failure:
        report(failure)
        sys.exit(1)
    except OSError as failure:  # a certificate or the service config
        sys.exit(f"error {failure}")
    except KeyboardInterrupt:  # The tool and the agent are deleted.
        sys.exit(130)
