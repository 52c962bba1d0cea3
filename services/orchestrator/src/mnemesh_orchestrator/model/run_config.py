"""The configuration of a run."""

from dataclasses import dataclass
from enum import StrEnum

from mnemesh_orchestrator.model.models import ResponseFormat


class OnBusy(StrEnum):
    """The reaction to another run that holds the conversation: wait for it, or reject the request."""

    WAIT = "wait"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs. `parameters` is a JSON schema of type object, as text."""

    name: str
    parameters: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The configuration of a run. It is stored with the run."""

    max_steps: int = 50
    stream_tokens: bool = False
    include_events: tuple[str, ...] = ()
    override_model: str | None = None
    override_system: str | None = None
    include_compaction_events: bool = False
    assistant_messages: bool = True
    assistant_tool_name: str = "send_message"
    assistant_tool_argument: str = "message"
    on_busy: OnBusy = OnBusy.WAIT
    metadata: str | None = None
    keepalive_seconds: int = 30
    client_tools: tuple[ClientTool, ...] = ()
    response_format: ResponseFormat | None = None
    """The response format of this run; None takes the agent's."""
