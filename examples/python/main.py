"""An agent from its creation to its deletion, over gRPC. See README.md."""

import os
import time
from uuid import uuid4

import grpc
from connection import TURN, WRITE, connect
from memory import delete, fail, list_messages, search
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
from turn import Turn

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
    with connect() as channel:
        tool = create_tool(channel)
        agent = create_agent(channel, tool)
        try:
            converse(channel, agent)
            search(channel, agent)
            list_messages(channel, agent)
            fail(channel)
        finally:
            delete(channel, agent, tool)


def create_tool(channel: grpc.Channel) -> tools_pb2.Tool:
    """Stores a tool that runs in the server's sandbox after a person has approved the call."""
    tool = tools_pb2.Tool(
        type=tools_pb2.TOOL_TYPE_CUSTOM,
        source_type=tools_pb2.SOURCE_TYPE_PYTHON,
        source_code=WATER_PLANTS,
        default_requires_approval=True,
    )
    request = tools_service_pb2.UpsertToolRequest(request_id=str(uuid4()), tool=tool)
    tool = tools_service_pb2_grpc.ToolServiceStub(channel).UpsertTool(request, timeout=WRITE).tool
    print(f"tool {tool.name} {tool.id}")
    return tool


def create_agent(channel: grpc.Channel, tool: tools_pb2.Tool) -> agents_pb2.Agent:
    """Creates an agent twice with one request_id, as after a lost response: it is the same agent."""
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
    stub = agents_service_pb2_grpc.AgentServiceStub(channel)
    agent = stub.CreateAgent(request, timeout=WRITE).agent
    again = stub.CreateAgent(request, timeout=WRITE).agent
    print(f"agent {agent.name} {agent.id}, sent twice: {'same agent' if again.id == agent.id else 'another agent'}")
    return agent


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
    """Runs the client's own tool, and approves every other."""
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


if __name__ == "__main__":
    main()
