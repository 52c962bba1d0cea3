"""Conversions of the executions of tools and of programs."""

from collections.abc import Iterable
from typing import Final

from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.types.v1 import message_pb2
from mnemesh_sandbox import AgentView, BlockProperties, OutcomeStatus
from mnemesh_sandbox.egress.policy import NetworkConnection
from mnemesh_types.twin import Conversion, enum_of, number_of, optional_field

from mnemesh_tools.model.executions import Execution, Invocation, Program

enum_of(pb.ExecutionStatus, OutcomeStatus)
_INVOCATION: Final = Conversion(pb.ExecuteToolRequest, Invocation, timeout="timeout_seconds")
_CONNECTION: Final = Conversion(pb.NetworkConnection, NetworkConnection, duration="seconds", refusal=None)
_PROGRAM: Final = Conversion(pb.RunCodeRequest, Program, timeout="timeout_seconds")


def invocation_from_proto(request: pb.ExecuteToolRequest) -> Invocation:
    """Returns the inputs of an execution."""
    state = request.agent_state
    return _INVOCATION.from_proto(
        request,
        agent=_agent_from_proto(state) if request.HasField("agent_state") else None,
        project_id=optional_field(state, "project_id"),
    )


def _agent_from_proto(state: pb.AgentState) -> AgentView:
    properties = {
        label: BlockProperties(block.description or None, block.limit or None)
        for label, block in state.block_properties.items()
    }
    return AgentView(state.agent_id, state.name, dict(state.blocks), properties)


def execution_to_proto(execution: Execution) -> pb.ExecuteToolResponse:
    """Returns the message of an execution."""
    outcome = execution.outcome
    return pb.ExecuteToolResponse(
        status=number_of(outcome.status),
        result=execution.result,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        duration=_duration(outcome.duration),
        truncated=execution.truncated,
        changed_blocks=dict(outcome.changed_blocks),
        connections=[connection_to_proto(connection) for connection in execution.connections],
        images=[message_pb2.InlineImage(data=image.data, media_type=image.media_type) for image in execution.images],
    )


def connection_to_proto(connection: NetworkConnection) -> pb.NetworkConnection:
    """Returns the message of a connection."""
    return _CONNECTION.to_proto(connection, refusal="" if connection.refusal is None else connection.refusal.value)


def _duration(seconds: float) -> Duration:
    return Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def program_from_proto(request: pb.RunCodeRequest, tools: Iterable[pb.CallableTool] = ()) -> Program:
    """Returns the program of a request.

    Raises:
        InvalidArgument: The language is unknown.
    """
    return _PROGRAM.from_proto(request, tools={tool.name: tuple(tool.parameters) for tool in tools})


def code_run_to_proto(execution: Execution) -> pb.RunCodeResponse:
    """Returns the message of the execution of a program."""
    message = execution_to_proto(execution)
    return pb.RunCodeResponse(
        status=message.status,
        result=message.result,
        stdout=message.stdout,
        stderr=message.stderr,
        duration=message.duration,
        truncated=message.truncated,
        connections=message.connections,
    )
