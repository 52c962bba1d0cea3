"""Agents, the default conversation of each, and the partners of ACTIVE agents."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.audit import note_change
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.ids import derive_id
from mnemesh_kit.paging import Cursor, Page, PageQuery
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import matching, paginate
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder, AgentState, LinkKind
from mnemesh_orchestrator.model.creation import (
    CREATED_FOR_AGENT,
    Deletion,
    DeletionStart,
    ErasureScope,
    Partnership,
    PartnerStart,
)
from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group, GroupChange, GroupState
from mnemesh_orchestrator.store.agent_rows import (
    active,
    agent_columns,
    agents_with_link,
    agents_with_link_query,
    being_created,
    decode_agent,
    insert_agent,
    rewrite,
    visible,
    write_tool_links,
)
from mnemesh_orchestrator.store.groups import (
    VISIBLE_STATES,
    begin_change,
    decode_groups,
    insert_group,
    mark_managers,
    progress_columns,
    rewrite_group,
)
from mnemesh_orchestrator.store.run_rows import delete_empty_batches
from mnemesh_orchestrator.store.tables import (
    agent_links,
    agent_tags,
    agents,
    callbacks,
    conversations,
    group_members,
    groups,
    identities,
    request_ledger,
    runs,
)


def agent_conditions(organization_id: str, filter_: AgentFilter) -> list[sa.ColumnElement[bool]]:
    conditions = matching(
        (
            (agents.c.id, filter_.agent_ids),
            (agents.c.name, filter_.name),
            (agents.c.type, filter_.types),
            (agents.c.hidden, filter_.hidden),
            (agents.c.last_stop_reason, filter_.last_stop_reason),
        )
    )
    if filter_.text_search:
        conditions.append(sa.func.lower(agents.c.name).contains(filter_.text_search.lower(), autoescape=True))
    conditions.extend(
        agents.c.id.in_(agents_with_link_query(organization_id, kind, value)) for kind, value in filter_.links
    )
    if filter_.identifier_key is not None:
        keyed = sa.select(identities.c.id).where(
            identities.c.organization_id == organization_id, identities.c.identifier_key == filter_.identifier_key
        )
        conditions.append(
            agents.c.id.in_(
                sa.select(agent_links.c.agent_id).where(
                    agent_links.c.organization_id == organization_id,
                    agent_links.c.kind == LinkKind.IDENTITY,
                    agent_links.c.value.in_(keyed),
                )
            )
        )
    tagged = sa.select(agent_tags.c.agent_id).where(agent_tags.c.organization_id == organization_id)
    if filter_.tags_any:
        conditions.append(agents.c.id.in_(tagged.where(agent_tags.c.tag.in_(filter_.tags_any))))
    conditions.extend(agents.c.id.in_(tagged.where(agent_tags.c.tag == tag)) for tag in filter_.tags_all)
    return conditions


def mark_deleting(
    conn: sa.Connection, organization_id: str, agent_id: str, scope: ErasureScope, now: datetime
) -> DeletionStart:
    """Marks an agent and the partners that were created for it. See AgentStore.begin_deletion."""
    found = _rows(conn, organization_id, [agent_id])
    if not found or found[agent_id].state in (AgentState.CREATING, AgentState.IMPORTING):
        return DeletionStart()
    partner_ids = agents_with_link(conn, organization_id, LinkKind.CREATED_FOR, agent_id)
    rows = found | _rows(conn, organization_id, partner_ids)
    agent_ids = tuple(sorted(rows, key=lambda each: each == agent_id))
    new = [each for each in agent_ids if rows[each].state != AgentState.DELETING]
    group_ids = _end_groups(conn, organization_id, new, decode_agent(found[agent_id]), now)
    marked = {each: _stored(rows[each].creation) for each in agent_ids if each not in new}
    for each in new:
        deletion = Deletion(
            scope.unshared_blocks, scope.unshared_archives, tuple(other for other in agent_ids if other != each)
        )
        values = {"state": AgentState.DELETING, "updated_at": now, "creation": msgspec.json.encode(deletion)}
        conn.execute(agents.update().where(agents.c.id == each).values(**values))
        marked[each] = deletion
    if new:
        note_change(conn, now, new)
    # Holders of leases of the agents get LeaseLost at their next write.
    conn.execute(
        conversations.update()
        .where(conversations.c.agent_id.in_(agent_ids))
        .values(epoch=conversations.c.epoch + 1, lease_owner=None, lease_run_id=None, lease_expires_at=None)
    )
    return DeletionStart(tuple((each, marked[each]) for each in agent_ids), group_ids)


def _rows(conn: sa.Connection, organization_id: str, agent_ids: Sequence[str]) -> dict[str, Any]:
    if not agent_ids:
        return {}
    query = sa.select(agents).where(agents.c.organization_id == organization_id, agents.c.id.in_(agent_ids))
    return {row.id: row for row in conn.execute(query)}


def _stored(creation: bytes | None) -> Deletion:
    return msgspec.json.decode(creation, type=Deletion) if creation else Deletion()


def _end_groups(
    conn: sa.Connection, organization_id: str, agent_ids: Sequence[str], agent: Agent, now: datetime
) -> tuple[str, ...]:
    """Begins the deletion of the sleeptime groups that the agents manage, and of those without any other member.

    A manager that is kept and has no members any more no longer has enable_sleeptime. Returns the ids of the groups.
    """
    ended: list[str] = []
    for group in _sleeptime_groups(conn, organization_id, agent_ids):
        if group.manager.manager_agent_id in agent_ids or not set(group.agent_ids) - set(agent_ids):
            change = GroupChange(
                derive_id("group", agent.id, group.id, "deletion"),
                group.id,
                organization_id,
                now,
                agent.provenance.created_by_id,
            )
            begin_change(conn, change)
            if group.manager.manager_agent_id not in agent_ids:
                mark_managers(conn, group, None)
            ended.append(group.id)
    return tuple(ended)


def _sleeptime_groups(conn: sa.Connection, organization_id: str, agent_ids: Sequence[str]) -> tuple[Group, ...]:
    """Returns the sleeptime groups of which one of the agents is the manager or a member."""
    if not agent_ids:
        return ()
    of_members = sa.select(group_members.c.group_id).where(group_members.c.agent_id.in_(agent_ids))
    query = sa.select(groups).where(
        groups.c.organization_id == organization_id,
        groups.c.manager_type.in_(BACKGROUND_TYPES),
        groups.c.state.in_(VISIBLE_STATES),
        sa.or_(groups.c.manager_agent_id.in_(agent_ids), groups.c.id.in_(of_members)),
    )
    return decode_groups(conn, conn.execute(query).all())


_ACTIVATE: Final = Prepared(
    agents.update()
    .where(agents.c.id == sa.bindparam("p_id"), agents.c.state == AgentState.CREATING)
    .values(
        creation=None,
        **{
            name: sa.bindparam(f"new_{name}", type_=agents.c[name].type)
            for name in ("organization_id", "name", "type", "state", "hidden", "document", "created_at", "updated_at")
        },
    )
)
"""Stores a CREATING agent as another one; its new values are those of `agent_columns`."""


class AgentStore:
    """Agents, with the default conversation of each.

    Example:
        >>> agent_id, repeated = await agents.begin_creation(key, agent, creation)
        >>> await agents.activate(agent)
        True
        >>> (await agents.get(agent.organization_id, agent_id)).state
        <AgentState.ACTIVE: 'active'>
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def begin_creation(self, key: RequestKey | None, agent: Agent, creation: bytes) -> tuple[str, bool]:
        """Stores a CREATING agent with its default conversation and its creation request.

        Returns:
            The id of the agent, and whether the request is a repeat. A repeat stores nothing and returns the first id.
        """

        def effect(conn: sa.Connection) -> list[str]:
            insert_agent(conn, agent, creation)
            return [agent.id]

        ids, replayed = await self._ledger.write_once(key, effect)
        return ids[0], replayed

    async def list_unfinished(self) -> tuple[tuple[Agent, bytes], ...]:
        """Returns every CREATING and DELETING agent of all organizations, oldest first, with its creation request.

        Instead of a creation request, a DELETING agent has the scope of its deletion, or nothing.
        """
        states = (AgentState.CREATING, AgentState.DELETING)
        query = sa.select(agents).where(agents.c.state.in_(states)).order_by(agents.c.created_at)
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple((decode_agent(row), row.creation or b"") for row in rows)

    async def creation(self, organization_id: str, agent_id: str) -> tuple[Agent, bytes] | None:
        """Returns a CREATING agent and its creation request, or None if the agent has another state."""
        query = sa.select(agents).where(
            agents.c.organization_id == organization_id,
            agents.c.id == agent_id,
            agents.c.state.in_((AgentState.CREATING, AgentState.IMPORTING)),
        )
        row = await self._database.read(lambda conn: conn.execute(query).first())
        return None if row is None else (decode_agent(row), row.creation or b"")

    async def activate(self, agent: Agent, partnership: Partnership | None = None) -> bool:
        """Stores a CREATING agent as ACTIVE, together with a new partner and their group.

        Returns False, and stores nothing, if the agent has another state.
        """
        columns = agent_columns(replace(agent, state=AgentState.ACTIVE))
        activated = {"p_id": agent.id, **{f"new_{name}": value for name, value in columns.items()}}

        def write(conn: sa.Connection) -> bool:
            if _ACTIVATE.change(conn, activated) == 0:
                return False
            write_tool_links(conn, agent)
            if partnership is not None:
                insert_agent(conn, replace(partnership.partner, state=AgentState.ACTIVE))
                group = partnership.group
                progress = progress_columns(partnership.start_sequence_id, group.turns_counter)
                insert_group(conn, group, GroupState.ACTIVE, **progress)
            return True

        return await self._database.write(write, name="agents.activate")

    async def abandon(self, agent_id: str, key: RequestKey | None, deletion: Deletion) -> bool:
        """Marks a CREATING agent DELETING with the record of its deletion, and deletes the key of its creation.

        Returns False, and changes nothing, if the agent has another state.
        """

        def write(conn: sa.Connection) -> bool:
            values = {
                "state": AgentState.DELETING,
                "creation": msgspec.json.encode(deletion),
                "updated_at": self._clock.now(),
            }
            if conn.execute(agents.update().where(being_created(agent_id)).values(**values)).rowcount == 0:
                return False
            self._ledger.forget(conn, key)
            return True

        return await self._database.write(write)

    async def remove(self, agent_id: str) -> None:
        """Deletes the rows of an agent: its conversations, runs, tags and links."""

        def write(conn: sa.Connection) -> None:
            own = runs.c.agent_id == agent_id
            batch_ids = conn.execute(sa.select(runs.c.batch_id).where(own, runs.c.batch_id.is_not(None)).distinct())
            of_batches = list(batch_ids.scalars())
            conn.execute(callbacks.delete().where(callbacks.c.target_id.in_(sa.select(runs.c.id).where(own))))
            conn.execute(runs.delete().where(own))
            if of_batches:
                delete_empty_batches(conn, of_batches)
            conn.execute(agents.delete().where(agents.c.id == agent_id))

        await self._database.write(write)

    async def get(self, organization_id: str, agent_id: str) -> Agent:
        """Returns an ACTIVE agent."""
        return await self._database.read(lambda conn: active(conn, organization_id, agent_id))

    async def list(
        self, organization_id: str, filter_: AgentFilter, order_by: AgentOrder, page: PageQuery
    ) -> Page[Agent]:
        """Returns a page of ACTIVE agents. In the order of LAST_RUN_COMPLETED_AT, agents without a run come last."""
        query = sa.select(agents).where(visible(organization_id), *agent_conditions(organization_id, filter_))

        def read(conn: sa.Connection) -> Page[Agent]:
            found = paginate(conn, query, page, key=agents.c[order_by], id=agents.c.id, scope=visible(organization_id))
            return found.map(decode_agent)

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: AgentFilter) -> int:
        """Returns the number of ACTIVE agents."""
        query = sa.select(sa.func.count()).select_from(agents)
        query = query.where(visible(organization_id), *agent_conditions(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def cost(self, organization_id: str, agent_id: str) -> int | None:
        """Returns the cost of an agent's ended runs in billionths of a US dollar; None if no run has a known cost."""
        query = sa.select(sa.func.sum(runs.c.cost_nano_usd))
        query = query.where(runs.c.organization_id == organization_id, runs.c.agent_id == agent_id)
        total = await self._database.read(lambda conn: conn.execute(query).scalar_one())
        return None if total is None else int(total)  # PostgreSQL sums to a decimal

    async def update(
        self, key: RequestKey | None, organization_id: str, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        """Applies a pure function to the record of an ACTIVE agent, stores the result, and returns it.

        A repeat under the same key does not apply the function. If the function raises, nothing is stored.
        """

        def effect(conn: sa.Connection) -> list[str]:
            before = active(conn, organization_id, agent_id)
            if (after := change(before)) != before:
                rewrite(conn, after)
            return [agent_id]

        return await self._ledger.write_and_read(key, effect, lambda conn, _: active(conn, organization_id, agent_id))

    async def record_request(self, key: RequestKey | None) -> bool:
        """Records a request whose effect is in another service. Returns whether it was recorded before."""
        return (await self._ledger.record(key))[1]

    async def outcome(self, key: RequestKey | None) -> str | None:
        """Returns the recorded outcome of a request, or None if the request is not a repeat."""
        found = await self._ledger.find_recorded(key)
        return None if found is None else "".join(found[:1])

    async def record_outcome(self, key: RequestKey | None, outcome: str) -> str:
        """Records the outcome of a request before its effect, and returns the recorded outcome: the first one, if it is
        a repeat.
        """
        return (await self._ledger.record(key, (outcome,)))[0][0]

    async def begin_deletion(
        self, organization_id: str, agent_id: str, scope: ErasureScope = CREATED_FOR_AGENT
    ) -> DeletionStart:
        """Marks an agent and the partners that were created for it DELETING, and revokes the leases of their
        conversations.

        The sleeptime group that the agent manages becomes DELETING. So does one of which it was the last member; then
        its manager no longer has enable_sleeptime.

        Returns:
            The id and the stored record of each of these agents, the agent itself last, and the ids of these groups.
            Nothing if the agent does not exist or is CREATING. For DELETING agents these are the records of the first
            request, so that a repeat continues the deletion.
        """
        now = self._clock.now()
        return await self._database.write(
            lambda conn: mark_deleting(conn, organization_id, agent_id, scope, now), name="agents.begin_deletion"
        )

    async def tags(self, organization_id: str, page: PageQuery, text_search: str | None) -> Page[str]:
        """Returns a page of the distinct tags of ACTIVE agents, in alphabetical order. The search ignores case."""
        scope = agent_tags.c.organization_id == organization_id
        shown = sa.select(agents.c.id).where(visible(organization_id))
        query = sa.select(agent_tags.c.tag).where(scope, agent_tags.c.agent_id.in_(shown)).distinct()
        if text_search:
            query = query.where(sa.func.lower(agent_tags.c.tag).contains(text_search.lower(), autoescape=True))
        bounds = [bound for bound in (page.after_id, page.cursor and page.cursor.id) if bound]
        for bound in bounds:
            query = query.where(agent_tags.c.tag > bound if page.ascending else agent_tags.c.tag < bound)
        if page.before_id:
            query = query.where(
                agent_tags.c.tag < page.before_id if page.ascending else agent_tags.c.tag > page.before_id
            )
        order = agent_tags.c.tag.asc() if page.ascending else agent_tags.c.tag.desc()
        query = query.order_by(order).limit(page.limit + 1)
        found = await self._database.read(lambda conn: conn.execute(query).scalars().all())
        tags = tuple(found[: page.limit])
        return Page(tags, tuple(Cursor(tag, tag) for tag in tags), len(found) > page.limit)


class PartnerStore:
    """Partners that are created for ACTIVE agents.

    AgentStore.activate stores those that are created together with their agent.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._ledger = Ledger(database, request_ledger, clock)

    async def begin(
        self,
        key: RequestKey | None,
        organization_id: str,
        agent_id: str,
        change: Callable[[Agent], Agent],
        create: Callable[[Agent, Group | None], tuple[Agent, bytes]],
    ) -> PartnerStart:
        """Applies an update of an agent whose sleeptime group has members, or stores a CREATING partner.

        A repeat under the same key changes nothing, and returns the state of the first request. A request while the
        partner of another request is CREATING changes and records nothing, and returns that partner. So does one for an
        agent whose partners are in none of its groups, and returns these.

        Args:
            key: Identifies the update.
            change: Returns the agent after the update. It is also called before a partner is stored.
            create: Returns the partner and the record of its creation, from the agent after the update and its
                sleeptime group without members, if it has one.
        """

        def effect(conn: sa.Connection) -> list[str]:
            before = active(conn, organization_id, agent_id)
            after, group = change(before), _group_of(conn, organization_id, agent_id)
            if group is not None and group.agent_ids:
                if after != before:
                    rewrite(conn, after)
                return [""]
            partner, creation = create(after, group)
            insert_agent(conn, partner, creation)
            return [partner.id]

        def write(conn: sa.Connection) -> PartnerStart:
            if key is None or self._ledger.find(conn, key) is None:
                waiting = _waiting(conn, active(conn, organization_id, agent_id))
                if waiting is not None:
                    return waiting
            (partner_id, *_), _ = self._ledger.once(conn, key, lambda: effect(conn))
            agent = active(conn, organization_id, agent_id)
            row = conn.execute(sa.select(agents).where(being_created(partner_id))).first()
            return PartnerStart(agent) if row is None else PartnerStart(agent, decode_agent(row), row.creation)

        return await self._database.write(write, name="partners.begin")

    async def activate(self, partnership: Partnership, agent_id: str, change: Callable[[Agent], Agent]) -> Agent | None:
        """Stores a CREATING partner as ACTIVE, and applies the update of its agent. Returns the agent.

        The group is inserted, or the partner joins it if it exists. Returns None, and stores nothing, if the partner
        has another state.

        Raises:
            InvalidArgument: The agent manages another sleeptime group.
        """
        partner, group = partnership.partner, partnership.group
        columns = agent_columns(replace(partner, state=AgentState.ACTIVE))
        statement = agents.update().where(being_created(partner.id)).values(**columns, creation=None)

        def write(conn: sa.Connection) -> Agent | None:
            if conn.execute(statement).rowcount == 0:
                return None
            before = _group_of(conn, group.organization_id, agent_id)
            if before is not None and before.id == group.id:
                joined = (*before.agent_ids, *group.agent_ids)
                rewrite_group(conn, before, replace(before, agent_ids=joined, updated_at=group.updated_at))
            else:
                insert_group(
                    conn,
                    group,
                    GroupState.ACTIVE,
                    **progress_columns(partnership.start_sequence_id, group.turns_counter),
                )
            rewrite(conn, change(active(conn, group.organization_id, agent_id)))
            return active(conn, group.organization_id, agent_id)

        return await self._database.write(write, name="partners.activate")


def _waiting(conn: sa.Connection, agent: Agent) -> PartnerStart | None:
    """Returns what an update of an agent without a working partner has to wait for or to use, if there is any."""
    group = _group_of(conn, agent.organization_id, agent.id)
    if group is not None and group.agent_ids:
        return None
    created_for = agents_with_link_query(agent.organization_id, LinkKind.CREATED_FOR, agent.id)
    query = sa.select(agents).where(agents.c.id.in_(created_for)).order_by(agents.c.created_at, agents.c.id)
    idle: list[Agent] = []
    for row in conn.execute(query):
        if row.state == AgentState.CREATING:
            return PartnerStart(agent, decode_agent(row), row.creation, is_own=False)
        if row.state == AgentState.ACTIVE:
            idle.append(decode_agent(row))
    return PartnerStart(agent, idle=tuple(idle), group=group) if idle else None


def _group_of(conn: sa.Connection, organization_id: str, agent_id: str) -> Group | None:
    """Returns the sleeptime group that an agent manages, or None."""
    query = sa.select(groups).where(
        groups.c.organization_id == organization_id,
        groups.c.manager_agent_id == agent_id,
        groups.c.manager_type.in_(BACKGROUND_TYPES),
        groups.c.state.in_(VISIBLE_STATES),
    )
    return next(iter(decode_groups(conn, conn.execute(query).all())), None)
