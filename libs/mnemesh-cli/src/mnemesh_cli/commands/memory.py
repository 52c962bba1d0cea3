"""`mnemesh memory`, `mnemesh facts` and `mnemesh episodes`: what agents know, learned and remember."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC
from typing import Annotated

import click
import typer
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.recall.v1 import episodes_pb2
from mnemesh_cli.commands.resources import (
    Resource,
    id_column,
    of_hits,
    resource_app,
    text_column,
    time_column,
    with_client,
)
from mnemesh_cli.connection import choose_agent
from mnemesh_cli.display.error_text import plain_message
from mnemesh_cli.display.records import count_text, local_time_text, print_done, print_json, print_list
from mnemesh_cli.display.terminal import is_json, notice, output
from mnemesh_cli.display.views import print_memory
from mnemesh_cli.options import AgentArgument, LimitOption, OptionalAgentArgument, YesOption
from mnemesh_client.agent import Agent
from mnemesh_client.memory_audit import AuditFinding, apply_finding, audit_memory
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument, NotFound
from rich.text import Text


def _agent(agent_id: str | None) -> str:
    if agent_id is None:
        raise InvalidArgument("Name the agent with --agent.", field="--agent")
    return agent_id


def _facts(mnemesh: Mnemesh, agent_id: str | None, limit: int) -> AsyncIterator[episodes_pb2.Fact]:
    return mnemesh.facts.list(agent_id=_agent(agent_id), limit=limit)


def _episodes(mnemesh: Mnemesh, agent_id: str | None, limit: int) -> AsyncIterator[episodes_pb2.Episode]:
    return mnemesh.episodes.list(agent_id=_agent(agent_id), limit=limit)


FACTS = Resource(
    noun="fact",
    columns=(id_column(), time_column(title="LEARNED"), text_column("FACT", lambda fact: fact.text)),
    list_all=_facts,
    find=lambda mnemesh, key: mnemesh.facts.get(key),
    delete=lambda mnemesh, fact: mnemesh.facts.delete(fact.id),
    consequence=" for good (`mnemesh memory forget` keeps its history)",
    of_agent=True,
)
EPISODES = Resource(
    noun="episode",
    columns=(id_column(), time_column(), text_column("SUMMARY", lambda episode: episode.summary)),
    list_all=_episodes,
    find=lambda mnemesh, key: mnemesh.episodes.get(key),
    delete=lambda mnemesh, episode: mnemesh.episodes.delete(episode.id),
    of_agent=True,
)
facts_app = resource_app(FACTS, "List, show, search and delete the facts that agents learned.")
episodes_app = resource_app(EPISODES, "List, show, search and delete the episodes that agents remember.")

QueryArgument = Annotated[str, typer.Argument(metavar="QUERY", help="Words or a question.")]


@facts_app.command("search")
@with_client
async def search_facts(mnemesh: Mnemesh, agent: AgentArgument, query: QueryArgument, limit: LimitOption = 10) -> None:
    """Search the facts of an agent, best first."""
    agent_id = (await mnemesh.agents.find(agent)).id
    hits = await mnemesh.facts.search(query, agent_id=agent_id, limit=limit)
    columns = of_hits("fact", FACTS.columns)
    await print_list(hits, columns, empty="No fact matches.")


@episodes_app.command("search")
@with_client
async def search_episodes(
    mnemesh: Mnemesh, agent: AgentArgument, query: QueryArgument, limit: LimitOption = 10
) -> None:
    """Search the episodes of an agent, best first."""
    agent_id = (await mnemesh.agents.find(agent)).id
    hits = await mnemesh.episodes.search(query, agent_id=agent_id, limit=limit)
    columns = of_hits("episode", EPISODES.columns)
    await print_list(hits, columns, empty="No episode matches.")


FactArgument = Annotated[str, typer.Argument(metavar="FACT", help="Id of the fact.")]
ReasonOption = Annotated[str | None, typer.Option(help="Why. It is stored with the fact.")]

app = typer.Typer(no_args_is_help=True, help="Show, correct and check what agents remember.")


@app.command("audit")
@with_client
async def audit(
    mnemesh: Mnemesh,
    key: OptionalAgentArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Examine the whole organization, and look for what has no owner.")
    ] = False,
    stale_days: Annotated[
        int, typer.Option(min=1, max=36_500, help="Days after which an unconfirmed fact is stale.")
    ] = 365,
    apply: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Do what the finding suggests. May be repeated.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Report duplicates, contradictions, stale facts, secrets and orphans. Changes nothing without --apply."""
    if everything and key is not None:
        raise typer.BadParameter("name an agent or use --all, not both")
    wanted = apply or []
    agent = None if everything else await choose_agent(mnemesh, key)
    findings = [finding async for finding in audit_memory(mnemesh, agent, stale_days=stale_days)]
    if not wanted:
        _print_all(findings)
        return
    by_id = {finding.id: finding for finding in findings}
    failed = [id_ for id_ in dict.fromkeys(wanted) if not await _apply(mnemesh, id_, by_id.get(id_), yes=yes)]
    if failed:
        raise typer.Exit(1)


async def _apply(mnemesh: Mnemesh, finding_id: str, finding: AuditFinding | None, *, yes: bool) -> bool:
    """Applies a finding, and returns whether nothing failed. Others are applied in any case."""
    if finding is None:
        notice(f"there is no finding {finding_id} now: it was applied, or does not exist")
        return True
    if not yes:
        if not is_json.get():
            _print_audit(finding)
        typer.confirm(f"{finding.action} this {finding.resource}?", abort=True, err=True)
    try:
        await apply_finding(mnemesh, finding)
    except (FailedPrecondition, InvalidArgument, NotFound) as error:
        notice(f"{finding.id} was not applied: {plain_message(error)} Run the audit again.")
        return False
    print_done(f"{finding.action}: {finding.id}", {"applied": finding.id, "action": finding.action})
    return True


def _print_all(findings: list[AuditFinding]) -> None:
    if is_json.get():
        for finding in findings:
            print_json(finding.as_json())
        return
    for finding in findings:
        _print_audit(finding)
    counts = Counter(finding.kind for finding in findings)
    summary = ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in sorted(counts.items()))
    output().print(summary or "no findings", style="dim")


def _print_audit(finding: AuditFinding) -> None:
    console = output()
    kind = finding.kind.replace("_", "-")
    console.print(Text(finding.id, style="cyan"), Text(kind, style="bold"), Text(f"{finding.action}: {finding.detail}"))
    for id_, text in zip(finding.ids, finding.texts, strict=True):
        kept = " (stays)" if id_ == finding.kept_id else ""
        console.print(Text(f"  {id_}{kept}: {' '.join(text.split())}"))


@app.command("facts")
@with_client
async def facts(
    mnemesh: Mnemesh,
    key: OptionalAgentArgument = None,
    closed: Annotated[bool, typer.Option("--closed", help="Also show facts that no longer hold.")] = False,
) -> None:
    """List the facts that an agent has learned, in its own scope and its named scope."""
    agent = await choose_agent(mnemesh, key)
    name = agent.proto.compaction_settings.memory_scope
    listed = mnemesh.facts.list(agent_id=agent.id, names=[name] if name else [], include_invalid=closed)
    shown = [_print_fact(fact) async for fact in listed]
    if not shown and not is_json.get():
        output().print("no facts", style="dim")


@app.command("correct")
@with_client
async def correct(
    mnemesh: Mnemesh,
    fact_id: FactArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What holds instead.")],
    reason: ReasonOption = None,
) -> None:
    """Replace a fact from now on. The earlier statement stays in the history."""
    _print_fact(await mnemesh.facts.supersede(fact_id, text, reason=reason))


@app.command("forget")
@with_client
async def forget(mnemesh: Mnemesh, fact_id: FactArgument, reason: ReasonOption = None) -> None:
    """Withdraw a fact. It stays in the history; `mnemesh memory restore` undoes it."""
    _print_fact(await mnemesh.facts.invalidate(fact_id, reason=reason))


@app.command("restore")
@with_client
async def restore(mnemesh: Mnemesh, fact_id: FactArgument, reason: ReasonOption = None) -> None:
    """State a corrected or forgotten fact again, in place of the one that replaced it."""
    _print_fact(await mnemesh.facts.restore(fact_id, reason=reason))


@app.command("history")
@with_client
async def history(mnemesh: Mnemesh, fact_id: FactArgument) -> None:
    """Show the facts that replaced one another, oldest first."""
    async for fact in mnemesh.facts.history(fact_id):
        _print_fact(fact)


@app.command("extract")
@with_client
async def extract(
    mnemesh: Mnemesh,
    key: AgentArgument,
    max_calls: Annotated[int, typer.Option(min=1, max=100, help="Largest number of calls of the model.")] = 10,
) -> None:
    """Extract facts from the messages of an agent that no extraction has processed."""
    agent = await mnemesh.agents.find(key)
    done = await agent.extract_memories(max_calls=max_calls)
    if is_json.get():
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


def _print_fact(fact: episodes_pb2.Fact) -> bool:
    if is_json.get():
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


@app.command("show")
@with_client
async def show(mnemesh: Mnemesh, key: OptionalAgentArgument = None) -> None:
    """Show the blocks of an agent."""
    _print(await (await choose_agent(mnemesh, key)).memory())


def _print(memory: blocks_pb2.CoreMemory) -> None:
    if is_json.get():
        print_json(memory)
    else:
        print_memory(output(), memory)


@app.command("edit")
@with_client
async def edit(
    mnemesh: Mnemesh,
    key: AgentArgument,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Label of the block.")],
    append: Annotated[str | None, typer.Option(help="Append a line of text.")] = None,
    replace: Annotated[
        tuple[str, str] | None, typer.Option(metavar="OLD NEW", help="Replace the only occurrence of a text.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="Replace the whole value.")] = None,
) -> None:
    """Edit a block of an agent. Opens $EDITOR if no option is given.

    The edit is made as the owner of the agent, who may also change read-only blocks.
    """
    if sum(option is not None for option in (append, replace, value)) > 1:
        raise typer.BadParameter("use only one of --append, --replace and --value")
    agent = await mnemesh.agents.find(key)
    if append is not None:
        await mnemesh.blocks.append(agent.id, label, append)
    elif replace is not None:
        await mnemesh.blocks.replace(agent.id, label, *replace)
    elif value is not None:
        await mnemesh.blocks.rethink(agent.id, label, value)
    else:
        await _edit_in_editor(mnemesh, agent, label)
    _print(await agent.memory())


async def _edit_in_editor(mnemesh: Mnemesh, agent: Agent, label: str) -> None:
    """Opens the value in an editor and writes it back. The write is refused if the block changed meanwhile."""
    block = next((block for block in (await agent.memory()).blocks if block.label == label), None)
    if block is None:
        raise NotFound(f"{agent.name} has no block {label!r}.", resource_id=label)
    edited = await asyncio.to_thread(click.edit, block.value)
    if edited is not None and edited.rstrip("\n") != block.value:
        await mnemesh.blocks.rethink(agent.id, label, edited.rstrip("\n"), base_revision=block.revision)
