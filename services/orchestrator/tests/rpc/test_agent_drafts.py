"""What a request to create an agent means."""

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.rpc.convert.agents import draft_from_proto


def test_agent_without_a_type_answers_in_plain_text() -> None:
    request = agents_service_pb2.CreateAgentRequest(agent=agents_pb2.Agent(name="ada"))
    assert draft_from_proto(request).type is AgentType.LETTA_V1
