"""The commands of a chat with one agent: its model."""

from __future__ import annotations

from mnemesh.agents.v1 import models_pb2
from mnemesh_client.agent import Agent
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError
from rich.console import Console
from rich.text import Text


async def price_of(mnemesh: Mnemesh, agent: Agent) -> models_pb2.ModelPrice | None:
    """Returns the price of the agent's model. None if it is unknown."""
    try:
        model = await mnemesh.models.get(agent.model)
    except MnemeshError:
        return None
    return model.price if model.HasField("price") else None


async def show_models(mnemesh: Mnemesh, console: Console, agent: Agent) -> None:
    """Prints the models of the mesh. That of the agent is marked."""
    await agent.refresh()
    handles = {model.handle: model.context_window async for model in mnemesh.models.list() if not model.hidden}
    for handle, tokens in {agent.model: handles.get(agent.model, 0), **handles}.items():
        marked = handle == agent.model
        size = f"  {tokens:,} tokens" if tokens else ""
        console.print(
            Text.assemble(("› " if marked else "  "), (handle, "bold" if marked else ""), (size, "dim")), soft_wrap=True
        )


async def use_model(mnemesh: Mnemesh, console: Console, agent: Agent, handle: str) -> None:
    """Makes the agent use a model.

    Raises:
        NotFound: MODEL_UNKNOWN.
    """
    await mnemesh.models.get(handle)
    await agent.update(model=handle)
    console.print(f"{agent.name} uses {handle} from the next message on", style="dim", markup=False)
