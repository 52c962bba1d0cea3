"""The memory of an agent: its three tiers, pages of messages, errors, deletion."""

from uuid import uuid4

import grpc
from connection import READ, WRITE
from errors import describe
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, agents_service_pb2_grpc
from mnemesh.archival.v1 import passages_service_pb2, passages_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2, blocks_service_pb2_grpc
from mnemesh.recall.v1 import messages_service_pb2, messages_service_pb2_grpc
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2, tools_service_pb2_grpc

NOBODY = "agent-00000000-0000-4000-8000-000000000000"
QUESTION = "Where is the key?"


def search(channel: grpc.Channel, agent: agents_pb2.Agent) -> None:
    """Reads the three tiers of the agent's memory."""
    core = blocks_service_pb2_grpc.BlockServiceStub(channel).GetCoreMemory(
        blocks_service_pb2.GetCoreMemoryRequest(agent_id=agent.id), timeout=READ
    )
    for block in core.core_memory.blocks:
        print(f"core memory {block.label}: {block.value}")
    messages = messages_service_pb2_grpc.MessageServiceStub(channel).SearchMessages(
        messages_service_pb2.SearchMessagesRequest(query=QUESTION, agent_id=agent.id, limit=1), timeout=READ
    )
    for hit in messages.hits:
        print(f"recall memory: {hit.text}")
    passages = passages_service_pb2_grpc.PassageServiceStub(channel).SearchPassages(
        passages_service_pb2.SearchPassagesRequest(
            query=QUESTION, limit=1, filter=passages_service_pb2.PassageFilter(agent_id=agent.id)
        ),
        timeout=READ,
    )
    for hit in passages.hits:
        print(f"archival memory: {hit.passage.text}")


def list_messages(channel: grpc.Channel, agent: agents_pb2.Agent) -> None:
    """Reads all pages of the agent's messages."""
    stub = messages_service_pb2_grpc.MessageServiceStub(channel)
    request = messages_service_pb2.ListMessagesRequest(page_size=4, agent_ids=[agent.id])
    pages = count = 0
    while pages == 0 or request.page_token:
        response = stub.ListMessages(request, timeout=READ)
        pages, count = pages + 1, count + len(response.messages)
        request.page_token = response.next_page_token
    print(f"messages {count} in {pages} pages")


def fail(channel: grpc.Channel) -> None:
    """Reads the details of two errors."""
    missing = agents_service_pb2.GetAgentRequest(agent_id=NOBODY)
    too_many = messages_service_pb2.SearchMessagesRequest(query="key", limit=1000)
    try:
        agents_service_pb2_grpc.AgentServiceStub(channel).GetAgent(missing, timeout=READ)
    except grpc.RpcError as error:
        print(f"error {describe(error)}")
    try:
        messages_service_pb2_grpc.MessageServiceStub(channel).SearchMessages(too_many, timeout=READ)
    except grpc.RpcError as error:
        print(f"error {describe(error)}")


def delete_agent(channel: grpc.Channel, agent: agents_pb2.Agent) -> None:
    """Deletes the agent with its memory."""
    request = agents_service_pb2.DeleteAgentRequest(
        request_id=str(uuid4()), agent_id=agent.id, delete_unshared_blocks=True, delete_unshared_archives=True
    )
    agents_service_pb2_grpc.AgentServiceStub(channel).DeleteAgent(request, timeout=WRITE)
    print(f"deleted {agent.id}")


def delete_tool(channel: grpc.Channel, tool: tools_pb2.Tool) -> None:
    request = tools_service_pb2.DeleteToolRequest(request_id=str(uuid4()), tool_id=tool.id)
    tools_service_pb2_grpc.ToolServiceStub(channel).DeleteTool(request, timeout=WRITE)
    print(f"deleted {tool.id}")
