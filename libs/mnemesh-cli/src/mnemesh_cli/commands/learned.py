"""`mnemesh facts` and `mnemesh episodes`: list, show, search, delete. `mnemesh memory` corrects facts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import typer
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
from mnemesh_cli.display.records import print_list
from mnemesh_cli.options import AgentArgument, LimitOption
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import InvalidArgument


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
async def search_facts(
    mnemesh: Mnemesh, context: typer.Context, agent: AgentArgument, query: QueryArgument, limit: LimitOption = 10
) -> None:
    """Search the facts of an agent, best first."""
    agent_id = (await mnemesh.agents.find(agent)).id
    hits = await mnemesh.facts.search(query, agent_id=agent_id, limit=limit)
    columns = of_hits("fact", FACTS.columns)
    await print_list(hits, columns, as_json=context.obj.as_json, empty="No fact matches.")


@episodes_app.command("search")
@with_client
async def search_episodes(
    mnemesh: Mnemesh, context: typer.Context, agent: AgentArgument, query: QueryArgument, limit: LimitOption = 10
) -> None:
    """Search the episodes of an agent, best first."""
    agent_id = (await mnemesh.agents.find(agent)).id
    hits = await mnemesh.episodes.search(query, agent_id=agent_id, limit=limit)
    columns = of_hits("episode", EPISODES.columns)
    await print_list(hits, columns, as_json=context.obj.as_json, empty="No episode matches.")
