"""The first agent: `mnemesh up --chat` creates it once and talks to it each time."""

from pathlib import Path
from typing import Final

from mnemesh_cli.connection import FIRST_AGENT_TAG, find_first_agent, with_free_name
from mnemesh_client.agent import Agent
from mnemesh_client.inputs import new_request_id
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import NotFound, RequestIdReused

REHEARSAL_MODEL: Final = "mnemesh/rehearsal"
_PENDING_FILE: Final = "first-agent.request"
_NAME: Final = "mnemesh"
_PERSONA: Final = (
    "I am a companion with a memory of my own. I write down what I learn about the person I talk to, "
    "and look things up before I say that I do not know them."
)
_HUMAN: Final = "I have not learned anything about this person yet."


async def ensure_first_agent(mnemesh: Mnemesh, model: str, directory: Path, *, override: bool) -> tuple[Agent, str]:
    """Returns the first agent, and one line that says whether it was found, created or given another model.

    An interrupted creation is repeated with the request id that is kept in `directory` until the agent exists.

    Args:
        mnemesh: the client.
        model: the default model of the mesh.
        directory: the data directory of the mesh.
        override: give the agent `model` in any case. Otherwise it gets `model` only if its own model is the rehearsal
            model or is no longer served.
    """
    agent = await find_first_agent(mnemesh)
    if agent is None:
        agent = await _create(mnemesh, model, PendingRequest(directory / _PENDING_FILE))
        await with_free_name(mnemesh, agent)
        return agent, f"created the first agent, {agent.name} ({agent.id})"
    previous = agent.model
    if previous != model and (override or previous == REHEARSAL_MODEL or not await _is_served(mnemesh, previous)):
        await agent.update(model=model)
        return agent, f"using agent {agent.name} ({agent.id}), now with {model} instead of {previous}"
    return agent, f"using agent {agent.name} ({agent.id}, {previous})"


async def _is_served(mnemesh: Mnemesh, model: str) -> bool:
    try:
        await mnemesh.models.get(model)
    except NotFound:
        return False
    return True


class PendingRequest:
    """The request id of an unfinished creation, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def request_id(self) -> str:
        """Returns the stored request id. Stores a new one if there is none."""
        return self._path.read_text() if self._path.exists() else self.renew()

    def renew(self) -> str:
        """Stores a new request id and returns it."""
        request_id = new_request_id()
        self._path.write_text(request_id)
        return request_id

    def done(self) -> None:
        """Deletes the stored request id."""
        self._path.unlink()


async def _create(mnemesh: Mnemesh, model: str, pending: PendingRequest) -> Agent:
    try:
        agent = await _create_with(mnemesh, model, pending.request_id())
    except RequestIdReused:
        # The interrupted creation had another model.
        agent = await _create_with(mnemesh, model, pending.renew())
    pending.done()
    return agent


async def _create_with(mnemesh: Mnemesh, model: str, request_id: str) -> Agent:
    return await mnemesh.agents.create(
        _NAME,
        model=model,
        type="letta_v1",
        blocks={"human": _HUMAN, "persona": _PERSONA},
        tags=[FIRST_AGENT_TAG],
        request_id=request_id,
    )
