"""The agent that `mnemesh up --chat` makes once and always comes back to."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mnemesh_kit.errors import NotFound, RequestIdReused

from mnemesh_client.agent import Agent
from mnemesh_client.cli.connection import FIRST_AGENT_TAG, first_agent
from mnemesh_client.inputs import new_request_id
from mnemesh_client.mnemesh import Mnemesh

REHEARSAL: Final = "mnemesh/rehearsal"
_PENDING: Final = "first-agent.request"
_NAME: Final = "mnemesh"
_PERSONA: Final = (
    "I am a companion with a memory of my own. I write down what I learn about the person I talk to, "
    "and look things up before I say that I do not know them."
)
_HUMAN: Final = "I have not learned anything about this person yet."


async def ensure_first_agent(mnemesh: Mnemesh, model: str, directory: Path, *, insist: bool) -> tuple[Agent, str]:
    """The first agent, and one line on what became of it: found, made, or given another model.

    A creation that was interrupted is taken up again under the request id that `directory` keeps until it is done.

    Args:
        mnemesh: the mesh.
        model: the mesh's default model.
        directory: the mesh's data directory.
        insist: give it that model whatever it had; otherwise only where it had none, or one that is gone.
    """
    agent = await first_agent(mnemesh)
    if agent is None:
        agent = await _create(mnemesh, model, PendingRequest(directory / _PENDING))
        return agent, f"made a first agent, {agent.name} ({agent.id})"
    before = agent.model
    if before != model and (insist or before == REHEARSAL or not await _is_served(mnemesh, before)):
        await agent.update(model=model)
        return agent, f"going on with {agent.name} ({agent.id}), now on {model} instead of {before}"
    return agent, f"going on with {agent.name} ({agent.id}, {before})"


async def _is_served(mnemesh: Mnemesh, model: str) -> bool:
    try:
        await mnemesh.models.get(model)
    except NotFound:
        return False
    return True


class PendingRequest:
    """The request id of a creation on the way, kept in a file until it is done."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def request_id(self) -> str:
        """The one that is kept, or a new one that is kept from now on."""
        return self._path.read_text() if self._path.exists() else self.renewed()

    def renewed(self) -> str:
        """A new one in any case."""
        request_id = new_request_id()
        self._path.write_text(request_id)
        return request_id

    def done(self) -> None:
        """Forgets it."""
        self._path.unlink()


async def _create(mnemesh: Mnemesh, model: str, pending: PendingRequest) -> Agent:
    try:
        agent = await _create_under(mnemesh, model, pending.request_id())
    except RequestIdReused:
        # the interrupted creation was for another model
        agent = await _create_under(mnemesh, model, pending.renewed())
    pending.done()
    return agent


async def _create_under(mnemesh: Mnemesh, model: str, request_id: str) -> Agent:
    return await mnemesh.agents.create(
        _NAME,
        model=model,
        type="letta_v1",
        blocks={"human": _HUMAN, "persona": _PERSONA},
        tags=[FIRST_AGENT_TAG],
        request_id=request_id,
    )
