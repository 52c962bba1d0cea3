"""Runs and their input between the domain and the contract."""

from collections.abc import Sequence
from typing import Final

from google.protobuf.duration_pb2 import Duration
from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import conversations_service_pb2 as conversations_rpc
from mnemesh.agents.v1 import runs_pb2 as pb
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, Unimplemented
from mnemesh_kit.ids import derive_id, is_id, require_id
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.convert import part_to_proto, parts_from_proto, usage_to_proto
from mnemesh_types.messages import ContentPart, ImagePart, Role, TextPart

from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.run_config import OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunError, RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.prompt.prompts import LONGEST_PROMPT
from mnemesh_orchestrator.rpc.convert.approvals import client_tool_to_proto, client_tools_from_proto
from mnemesh_orchestrator.rpc.convert.settings import (
    format_from_proto,
    format_to_proto,
    require_json_object,
    require_known,
)

STOP_REASONS: Final = {reason: agents_pb2.StopReason.Value(f"STOP_REASON_{reason.name}") for reason in StopReason}
RUN_STATUSES: Final = {status: pb.RunStatus.Value(f"RUN_STATUS_{status.name}") for status in RunStatus}
STOP_REASONS_BACK: Final = {number: reason for reason, number in STOP_REASONS.items()}
_ON_BUSY: Final = {
    pb.ON_BUSY_UNSPECIFIED: OnBusy.WAIT,
    pb.ON_BUSY_WAIT: OnBusy.WAIT,
    pb.ON_BUSY_REJECT: OnBusy.REJECT,
}
_RUN_STATUSES_BACK: Final = {number: status for status, number in RUN_STATUSES.items()}
CANCEL_OUTCOMES: Final = {
    outcome: rpc.CancelOutcome.Value(f"CANCEL_OUTCOME_{outcome.name}") for outcome in CancelOutcome
}
_INPUT_ROLES: Final = {
    message_pb2.ROLE_UNSPECIFIED: Role.USER,
    message_pb2.ROLE_USER: Role.USER,
    message_pb2.ROLE_SYSTEM: Role.SYSTEM,
    message_pb2.ROLE_ASSISTANT: Role.ASSISTANT,
}
_ROLES_BACK: Final = {
    Role.USER: message_pb2.ROLE_USER,
    Role.SYSTEM: message_pb2.ROLE_SYSTEM,
    Role.ASSISTANT: message_pb2.ROLE_ASSISTANT,
}
KIND_NAMES: Final = {
    number: name.removeprefix("EVENT_KIND_").removesuffix("_MESSAGE").lower() for name, number in pb.EventKind.items()
}
_MOST_MESSAGES: Final = 100
_MOST_STEPS: Final = 1_000
_LONGEST_TEXT: Final = 1_048_576
_LARGEST_IMAGE: Final = 10_485_760
_LONGEST_ID: Final = 512


def inputs_from_proto(
    messages: Sequence[pb.InputMessage], field: str = "messages", *, any_number: bool = False
) -> tuple[InputMessage, ...]:
    """What somebody sends, checked part by part.

    Raises:
        InvalidArgument: naming the field.
    """
    if not any_number and not messages:
        raise InvalidArgument(f"{field} must hold one message at least.", field=field)
    if len(messages) > _MOST_MESSAGES:
        raise InvalidArgument(f"{field} may hold {_MOST_MESSAGES} messages at most.", field=field)
    return tuple(_input(message, f"{field}[{place}]") for place, message in enumerate(messages))


def _input(message: pb.InputMessage, field: str) -> InputMessage:
    if message.role not in _INPUT_ROLES:
        raise InvalidArgument(f"{field}.role must be USER, SYSTEM or ASSISTANT.", field=f"{field}.role")
    content = parts_from_proto(message.content)
    if not content:
        raise InvalidArgument(f"{field}.content must hold one part at least.", field=f"{field}.content")
    for place, part in enumerate(content):
        _check_part(part, f"{field}.content[{place}]")
    given: dict[str, str] = {}
    for name in ("name", "otid", "sender_id", "group_id"):
        if message.HasField(name):
            value = getattr(message, name)
            if len(value) > _LONGEST_ID or "\0" in value:
                raise InvalidArgument(
                    f"{field}.{name} must be at most {_LONGEST_ID} characters, none NUL.", field=f"{field}.{name}"
                )
            given[name] = value
    return InputMessage(content=content, role=_INPUT_ROLES[message.role], **given)


def _check_part(part: ContentPart, field: str) -> None:
    match part:
        case TextPart(text):
            if not text:
                raise InvalidArgument(f"{field}.text is empty.", field=field)
            if "\0" in text:
                raise InvalidArgument(f"{field}.text holds a NUL character.", field=field)
            if len(text) > _LONGEST_TEXT or len(text.encode()) > _LONGEST_TEXT:
                raise InvalidArgument(f"{field}.text is longer than 1 MB.", field=field)
        case ImagePart(data=bytes() as data) if len(data) > _LARGEST_IMAGE:
            raise InvalidArgument(f"{field}.image is larger than 10 MB.", field=field)
        case ImagePart(data=None, url=None):
            raise InvalidArgument(f"{field}.image has neither data nor url.", field=field)
        case ImagePart():
            return
        case _:
            raise InvalidArgument(f"{field} is neither text nor an image.", field=field)


def input_to_proto(message: InputMessage) -> pb.InputMessage:
    """A run's input."""
    return pb.InputMessage(
        role=_ROLES_BACK[message.role],
        content=[part_to_proto(part) for part in message.content],
        name=message.name,
        otid=message.otid,
        sender_id=message.sender_id,
        group_id=message.group_id,
    )


def on_busy_from(
    request: agents_rpc.ResetMessagesRequest
    | agents_rpc.RecompileAgentRequest
    | agents_rpc.CompactConversationRequest
    | conversations_rpc.ForkConversationRequest,
) -> OnBusy:
    """What a change of a window does where runs are ahead. Raises InvalidArgument."""
    return require_known(_ON_BUSY, request.on_busy, "on_busy")


def config_from_proto(config: pb.RunConfig) -> RunConfig:
    """How a run is to be carried out.

    Raises:
        InvalidArgument, Unimplemented: naming the field.
    """
    if config.HasField("callback_url"):
        raise Unimplemented("This server does not call back yet.", field="config.callback_url")
    max_steps = config.max_steps if config.HasField("max_steps") else RunConfig().max_steps
    if not 1 <= max_steps <= _MOST_STEPS:
        raise InvalidArgument(f"config.max_steps must be between 1 and {_MOST_STEPS}.", field="config.max_steps")
    keepalive = config.keepalive_seconds if config.HasField("keepalive_seconds") else 30
    if keepalive < 1:
        raise InvalidArgument("config.keepalive_seconds must be positive.", field="config.keepalive_seconds")
    if any(kind not in KIND_NAMES for kind in config.include_events):
        raise InvalidArgument("config.include_events holds an unknown kind.", field="config.include_events")
    defaults = RunConfig()
    return RunConfig(
        max_steps=max_steps,
        stream_tokens=config.stream_tokens,
        include_events=tuple(KIND_NAMES[kind] for kind in config.include_events),
        override_model=config.override_model if config.HasField("override_model") else None,
        override_system=_system(config.override_system) if config.HasField("override_system") else None,
        include_compaction_events=config.include_compaction_events,
        assistant_messages=config.assistant_messages if config.HasField("assistant_messages") else True,
        assistant_tool_name=(
            config.assistant_tool_name if config.HasField("assistant_tool_name") else defaults.assistant_tool_name
        ),
        assistant_tool_argument=(
            config.assistant_tool_argument
            if config.HasField("assistant_tool_argument")
            else defaults.assistant_tool_argument
        ),
        on_busy=require_known(_ON_BUSY, config.on_busy, "config.on_busy"),
        metadata=(require_json_object(config.metadata, "config.metadata") if config.HasField("metadata") else None),
        keepalive_seconds=keepalive,
        client_tools=client_tools_from_proto(config.client_tools, "config.client_tools"),
        response_format=format_from_proto(config, "config"),
    )


def _system(text: str) -> str:
    if len(text) > LONGEST_PROMPT or "\0" in text:
        raise InvalidArgument(
            f"config.override_system must be at most {LONGEST_PROMPT} characters, none NUL.",
            field="config.override_system",
        )
    return text


def config_to_proto(config: RunConfig) -> pb.RunConfig:
    """The config that a run is carried out with."""
    numbers = {name: number for number, name in KIND_NAMES.items()}
    return pb.RunConfig(
        max_steps=config.max_steps,
        stream_tokens=config.stream_tokens,
        include_events=[numbers[name] for name in config.include_events],
        override_model=config.override_model,
        override_system=config.override_system,
        include_compaction_events=config.include_compaction_events,
        assistant_messages=config.assistant_messages,
        assistant_tool_name=config.assistant_tool_name,
        assistant_tool_argument=config.assistant_tool_argument,
        on_busy=pb.ON_BUSY_REJECT if config.on_busy is OnBusy.REJECT else pb.ON_BUSY_WAIT,
        metadata=config.metadata,
        keepalive_seconds=config.keepalive_seconds,
        client_tools=[client_tool_to_proto(tool) for tool in config.client_tools],
        response_format=format_to_proto(config.response_format),
    )


def conversation_from(agent_id: str, conversation_id: str | None) -> str:
    """The conversation that is meant; nothing, "default" and the agent's id are its default one."""
    if conversation_id in (None, "", "default", agent_id):
        return derive_id("conv", agent_id)
    return require_id(str(conversation_id), "conv", "conversation_id")


def named_conversation(value: str, field: str = "conversation_id") -> str:
    """The conversation that is meant where no agent is named beside it; an agent's id is its default one.

    Raises:
        InvalidArgument: naming the field.
    """
    return derive_id("conv", value) if is_id(value, "agent") else require_id(value, "conv", field)


def run_to_proto(run: Run) -> pb.Run:
    """A run."""
    return pb.Run(
        id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        status=RUN_STATUSES[run.status],
        stop_reason=STOP_REASONS[run.stop_reason] if run.stop_reason else None,
        background=run.background,
        config=config_to_proto(run.config),
        usage=usage_to_proto(run.usage),
        step_count=run.step_count,
        error=error_to_proto(run.error) if run.error else None,
        last_sequence=run.last_sequence,
        retry_of_run_id=run.takes_up[0] if run.takes_up else None,
        input=[input_to_proto(message) for message in run.input],
        time_to_first_token=milliseconds(run.first_token_ms),
        total_duration=milliseconds(run.total_ms),
        create_time=timestamp_to_proto(run.created_at),
        update_time=timestamp_to_proto(run.updated_at),
        completion_time=timestamp_to_proto(run.completed_at) if run.completed_at else None,
    )


def error_to_proto(error: RunError) -> pb.RunError:
    """Why a run failed."""
    return pb.RunError(reason=error.reason, message=error.message, metadata=error.metadata)


def run_filter_from_proto(given: rpc.RunFilter) -> RunFilter:
    """Which runs a list looks at.

    Raises:
        InvalidArgument, Unimplemented: naming the field.
    """
    if given.HasField("group_id"):
        raise Unimplemented("This server does not answer groups yet.", field="filter.group_id")
    reason = None
    if given.HasField("stop_reason"):
        reason = require_known(STOP_REASONS_BACK, given.stop_reason, "filter.stop_reason").value
    conversation = given.conversation_id if given.HasField("conversation_id") else None
    if conversation is not None:
        conversation = named_conversation(conversation, "filter.conversation_id")
    return RunFilter(
        agent_ids=tuple(require_id(agent_id, "agent", "filter.agent_ids") for agent_id in given.agent_ids),
        statuses=tuple(require_known(_RUN_STATUSES_BACK, number, "filter.statuses") for number in given.statuses),
        background=given.background if given.HasField("background") else None,
        stop_reason=reason,
        conversation_id=conversation,
        active=given.active if given.HasField("active") else None,
    )


def milliseconds(count: int | None) -> Duration | None:
    """A duration, or None."""
    if count is None:
        return None
    result = Duration()
    result.FromMilliseconds(count)
    return result
