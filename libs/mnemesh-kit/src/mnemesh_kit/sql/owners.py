"""To which agents the things of a service belong, for callers that are limited to some agents."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import sqlalchemy as sa

from mnemesh_kit.ids import is_id
from mnemesh_kit.sql.database import Database


class Owners:
    """Finds the agents to which things belong, by the kinds of their ids.

    Example:
        >>> owners = Owners(database, run=sa.select(runs.c.organization_id, runs.c.id, runs.c.agent_id))
        >>> await owners.find(principal.organization_id, [run_id])
        {'run-…': {'agent-…'}}
    """

    def __init__(self, database: Database, **selects: sa.Select[Any]) -> None:
        """Each select yields the organization, the id and an agent of all things of a kind.

        A thing of no agent has a row with the agent None or "".
        """
        self._database = database
        self._pairs = {kind: select.subquery() for kind, select in selects.items()}

    async def find(self, organization_id: str, ids: Iterable[str]) -> Mapping[str, Set[str]]:
        """Returns the agents of the things that exist. What is not an id of a known kind belongs to none."""
        found: dict[str, set[str]] = {}
        wanted: dict[str, list[str]] = {}
        for id_ in ids:
            kind = id_.partition("-")[0]
            if kind in self._pairs and is_id(id_, kind):
                wanted.setdefault(kind, []).append(id_)
            else:
                found[id_] = set()

        def read(conn: sa.Connection) -> None:
            for kind, named in wanted.items():
                organization, thing, agent = self._pairs[kind].c
                pairs = sa.select(thing, agent).where(organization == organization_id, thing.in_(named))
                for id_, agent_id in conn.execute(pairs):
                    found.setdefault(id_, set()).add(agent_id or "")

        if wanted:
            await self._database.read(read, name="owners.find")
        return found
