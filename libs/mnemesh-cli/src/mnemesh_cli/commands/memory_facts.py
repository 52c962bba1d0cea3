"""`mnemesh memory facts`, `correct`, `forget`, `restore`, `history` and `extract`: what an agent has learned."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import Annotated

import typer
from mnemesh.recall.v1 import episodes_pb2
from mnemesh_cli.connection import Connection, choose_agent
from mnemesh_cli.display.records import count_text, print_json
from mnemesh_cli.display.table import local_time_text
from mnemesh_cli.display.terminal import output
from mnemesh_cli.options import AgentArgument, OptionalAgentArgument
from rich.text import Text

FactArgument = Annotated[str, typer.Argument(metavar="FACT", help="Id of the fact.")]
ReasonOption = Annotated[str | None, typer.Option(help="Why. It is stored with the fact.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to `mnemesh memory`."""
    for name, command in (
        ("facts", facts),
        ("correct", correct),
        ("forget", forget),
        ("restore", restore),
        ("history", history),
        ("extract", extract),
    ):
        app.command(name)(command)


def facts(
    context: typer.Context,
    agent: OptionalAgentArgument = None,
    closed: Annotated[bool, typer.Option("--closed", help="Also show facts that no longer hold.")] = False,
) -> None:
    """List the facts that an agent has learned, in its own scope and its named scope."""
    asyncio.run(_facts(context.obj, agent, closed=closed))


async def _facts(connection: Connection, key: str | None, *, closed: bool) -> None:
    async with connection.open() as mnemesh:
        agent = await choose_agent(mnemesh, key)
        name = agent.proto.compaction_settings.memory_scope
        listed = mnemesh.facts.list(agent_id=agent.id, names=[name] if name else [], include_invalid=closed)
        shown = [_print_fact(fact, as_json=connection.as_json) async for fact in listed]
        if not shown and not connection.as_json:
            output().print("no facts", style="dim")


def correct(
    context: typer.Context,
    fact: FactArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What holds instead.")],
    reason: ReasonOption = None,
) -> None:
    """Replace a fact from now on. The earlier statement stays in the history."""
    asyncio.run(_correct(context.obj, fact, text, reason))


async def _correct(connection: Connection, fact_id: str, text: str, reason: str | None) -> None:
    async with connection.open() as mnemesh:
        _print_fact(await mnemesh.facts.supersede(fact_id, text, reason=reason), as_json=connection.as_json)


def forget(context: typer.Context, fact: FactArgument, reason: ReasonOption = None) -> None:
    """Withdraw a fact. It stays in the history; `mnemesh memory restore` undoes it."""
    asyncio.run(_forget(context.obj, fact, reason))


async def _forget(connection: Connection, fact_id: str, reason: str | None) -> None:
    async with connection.open() as mnemesh:
        _print_fact(await mnemesh.facts.invalidate(fact_id, reason=reason), as_json=connection.as_json)


def restore(context: typer.Context, fact: FactArgument, reason: ReasonOption = None) -> None:
    """State a corrected or forgotten fact again, in place of the one that replaced it."""
    asyncio.run(_restore(context.obj, fact, reason))


async def _restore(connection: Connection, fact_id: str, reason: str | None) -> None:
    async with connection.open() as mnemesh:
        _print_fact(await mnemesh.facts.restore(fact_id, reason=reason), as_json=connection.as_json)


def history(context: typer.Context, fact: FactArgument) -> None:
    """Show the facts that replaced one another, oldest first."""
    asyncio.run(_history(context.obj, fact))


async def _history(connection: Connection, fact_id: str) -> None:
    async with connection.open() as mnemesh:
        async for fact in mnemesh.facts.history(fact_id):
            _print_fact(fact, as_json=connection.as_json)


def extract(
    context: typer.Context,
    agent: AgentArgument,
    max_calls: Annotated[int, typer.Option(min=1, max=100, help="Largest number of calls of the model.")] = 10,
) -> None:
    """Extract facts from the messages of an agent that no extraction has processed."""
    asyncio.run(_extract(context.obj, agent, max_calls))


async def _extract(connection: Connection, key: str, max_calls: int) -> None:
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        done = await agent.extract_memories(max_calls=max_calls)
        if connection.as_json:
            print_json(done)
            return
        output().print(
            f"{count_text(done.message_count, 'message')} in {count_text(done.call_count, 'call')}: "
            f"{count_text(done.added_count, 'fact')} added, "
            f"{done.superseded_count} replaced, {done.confirmed_count} confirmed, {done.retracted_count} withdrawn"
        )
        if done.budget_exhausted:
            output().print("The budget of the day is used up. The rest waits for the next day.", style="yellow")
        elif done.has_more:
            output().print("Messages remain. Run the command again.", style="yellow")


def _print_fact(fact: episodes_pb2.Fact, *, as_json: bool) -> bool:
    if as_json:
        print_json(fact)
        return True
    times = [
        f"{name} {local_time_text(getattr(fact, field).ToDatetime(UTC))}"
        for name, field in (("since", "valid_from_time"), ("until", "invalid_time"), ("learned", "create_time"))
        if fact.HasField(field)  # type: ignore[arg-type]
    ]
    reason = f" ({fact.invalid_reason})" if fact.invalid_reason else ""
    style = "dim" if fact.HasField("close_time") else ""
    console = output()
    console.print(Text(fact.id, style="cyan"), Text(f"{fact.text}{reason}", style=style))
    console.print(Text(f"  {', '.join(times)}; {count_text(len(fact.source.message_ids), 'message')}", style="dim"))
    return True
