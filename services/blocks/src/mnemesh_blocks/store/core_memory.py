"""Holdings, and the revision of each holder's core memory, in SQL."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql import UtcDateTime
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.sql.prepared import Answer, Prepared
from mnemesh_kit.time import Clock
from mnemesh_types.blocks import Block, CoreMemory

from mnemesh_blocks.model.edits import Holder
from mnemesh_blocks.store.tables import BLOCK, blocks, core_memories, holdings


class CoreMemoryTransaction:
    """The methods of `BlockTransaction` that concern holders."""

    def __init__(self, conn: sa.Connection, organization_id: str, clock: Clock) -> None:
        self._conn = conn
        self._organization_id = organization_id
        self._clock = clock
        self._asked: dict[tuple[str, str | None], Answer] = {}
        """The answers to queries that were sent early, by holder and label; without a label, that of the holder."""

    def list_labels(self, agent_id: str) -> Sequence[str]:
        """Returns the labels that the holder holds, in the order of attachment."""
        stmt = sa.select(holdings.c.label).where(self._held_by(agent_id)).order_by(holdings.c.position)
        return self._conn.execute(stmt).scalars().all()

    def attach(self, agent_id: str, block: Block) -> None:
        """Attaches the block to the holder, after its other blocks, and touches the holder.

        The caller has checked that the holder is not erased and holds no block under this label.
        """
        parameters = self._parameters(agent_id)
        _COUNT_ATTACHED.send(self._conn, parameters | {"now": self._clock.now()})
        _ATTACH.send(self._conn, parameters | {"block": block.id, "held_label": block.label})

    def detach(self, agent_id: str, block_id: str) -> bool:
        """Detaches the block from the holder and touches the holder; returns False if it did not hold the block."""
        holding = self._held_by(agent_id) & (holdings.c.block_id == block_id)
        if self._conn.execute(holdings.delete().where(holding)).rowcount == 0:
            return False
        self._touch(self._holder(agent_id))
        return True

    def list_holders(self, block_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents that hold the block, sorted; conversations are left out."""
        scope = (holdings.c.organization_id == self._organization_id) & (holdings.c.block_id == block_id)
        agent = holdings.c.agent_id
        scope &= agent.not_in(
            sa.select(core_memories.c.agent_id).where(
                core_memories.c.organization_id == self._organization_id, core_memories.c.conversation_of.is_not(None)
            )
        )
        agents = paginate(self._conn, sa.select(agent).where(scope), page, key=agent, id=agent, scope=scope)
        return agents.map(lambda row: str(row.agent_id))

    def find_label_conflict(self, block_id: str, label: str) -> str | None:
        """Returns the id of a holder of the block that holds another block under `label`, or None."""
        other = holdings.alias()
        stmt = (
            sa.select(other.c.agent_id)
            .join(
                holdings,
                (holdings.c.agent_id == other.c.agent_id) & (holdings.c.organization_id == other.c.organization_id),
            )
            .where(
                holdings.c.organization_id == self._organization_id,
                holdings.c.block_id == block_id,
                other.c.label == label,
                other.c.block_id != block_id,
            )
            .limit(1)
        )
        return self._conn.execute(stmt).scalar_one_or_none()

    def get_core_memory(self, agent_id: str, if_revision: int | None = None) -> CoreMemory | None:
        """Returns the holder's core memory, or None if its revision is still `if_revision`.

        A holder that never held a block has an empty core memory of revision 0. Runs one statement.
        """
        # If the revision is still the known one, the join finds no blocks and the statement returns one row.
        memory = self._read(agent_id, -1 if if_revision is None else if_revision)
        return None if memory.revision == if_revision else memory

    def read_core_memory(self, agent_id: str) -> CoreMemory:
        """Returns the holder's core memory, as `get_core_memory` does without a revision."""
        return self._read(agent_id, -1)

    def _read(self, agent_id: str, known: int) -> CoreMemory:
        return _core_memory(agent_id, _CORE_MEMORY.all(self._conn, self._parameters(agent_id) | {"known": known}))

    def get_core_memories(self, agent_ids: Sequence[str]) -> Sequence[CoreMemory]:
        """Returns the core memories of several holders in the order of `agent_ids`. Runs one statement."""
        stmt = _WITH_BLOCKS.where(
            core_memories.c.organization_id == self._organization_id, core_memories.c.agent_id.in_(agent_ids)
        )
        by_agent: dict[str, list[Any]] = {}
        for row in self._conn.execute(stmt, {"known": -1}):
            by_agent.setdefault(row.core_agent_id, []).append(row)
        return [_core_memory(agent_id, by_agent.get(agent_id, ())) for agent_id in agent_ids]

    def register_conversation(self, conversation_id: str, agent_id: str) -> bool:
        """Lets a conversation of the agent hold blocks; returns False if its id belongs to another holder."""
        row = _CONVERSATION_OF.first(self._conn, self._parameters(conversation_id))
        if row is not None:
            return bool(row.conversation_of == agent_id)
        self._insert_holder(conversation_id, conversation_of=agent_id)
        return True

    def is_conversation_of(self, conversation_id: str, agent_id: str) -> bool:
        """Returns whether the id is registered as a conversation of the agent."""
        row = _CONVERSATION_OF.first(self._conn, self._parameters(conversation_id))
        return row is not None and bool(row.conversation_of == agent_id)

    def get_core_memory_revision(self, agent_id: str) -> int:
        """Returns the revision of the holder's core memory: 0 if it never held a block."""
        row = _HOLDER_STATE.first(self._conn, self._parameters(agent_id))
        return 0 if row is None else int(row.revision)

    def get_holder(self, agent_id: str) -> Holder:
        """Returns whether the holder has a tombstone, and its link."""
        row = self._holder_asked(agent_id).first()
        return Holder() if row is None else Holder(row.erased_at is not None, row.link_id)

    def ask_holder(self, agent_id: str) -> None:
        """Sends the query of the first `get_holder` or `get_revision_before`, before the transaction has written."""
        self._asked[agent_id, None] = self._send_holder(agent_id)

    def get_revision_before(self, agent_id: str) -> int:
        """Returns the revision of the holder's core memory when `ask_holder` was called, or the present one."""
        row = self._holder_asked(agent_id).first()
        return 0 if row is None else int(row.revision)

    def _holder_asked(self, agent_id: str) -> Answer:
        return self._asked.pop((agent_id, None), None) or self._send_holder(agent_id)

    def _send_holder(self, agent_id: str) -> Answer:
        return _HOLDER_STATE.send(self._conn, self._parameters(agent_id))

    def link(self, agent_id: str, link_id: str | None) -> None:
        """Sets or clears the link of an agent that is not erased."""
        linked = core_memories.update().where(self._holder(agent_id)).values(link_id=link_id)
        if self._conn.execute(linked).rowcount == 0 and link_id is not None:
            self._insert_holder(agent_id, link_id=link_id)

    def list_linked_agents(self, link_id: str) -> Sequence[str]:
        """Returns the ids of the agents of a link, sorted."""
        stmt = sa.select(core_memories.c.agent_id).where(
            core_memories.c.organization_id == self._organization_id, core_memories.c.link_id == link_id
        )
        return self._conn.execute(stmt.order_by(core_memories.c.agent_id)).scalars().all()

    def list_conversations(self, agent_id: str) -> Sequence[str]:
        """Returns the ids of the agent's registered conversations that are not erased."""
        stmt = sa.select(core_memories.c.agent_id).where(
            core_memories.c.organization_id == self._organization_id,
            core_memories.c.conversation_of == agent_id,
            core_memories.c.erased_at.is_(None),
        )
        return self._conn.execute(stmt).scalars().all()

    def detach_all(self, agent_id: str) -> Sequence[str]:
        """Detaches all blocks of the holder, without touching it, and returns their ids."""
        condition = self._held_by(agent_id)
        block_ids = self._conn.execute(sa.select(holdings.c.block_id).where(condition)).scalars().all()
        self._conn.execute(holdings.delete().where(condition))
        return block_ids

    def delete_unheld_blocks(self, block_ids: Sequence[str], created_for: Sequence[str] | None) -> int:
        """Deletes those of the blocks that have no holder, or of these only the ones that were created for the agents.

        Returns the number of deleted blocks.
        """
        if not block_ids:
            return 0
        unheld = blocks.c.id.in_(block_ids) & blocks.c.id.not_in(sa.select(holdings.c.block_id))
        if created_for is not None:
            unheld &= blocks.c.created_for_agent_id.in_(created_for)
        return self._conn.execute(blocks.delete().where(unheld, self._in_organization)).rowcount

    def mark_erased(self, agent_id: str) -> None:
        """Stores a tombstone for the holder, removes it from its link, and touches it."""
        now = self._clock.now()
        tombstone = (
            core_memories.update()
            .where(self._holder(agent_id))
            .values(revision=core_memories.c.revision + 1, updated_at=now, erased_at=now, link_id=None)
        )
        if self._conn.execute(tombstone).rowcount == 0:
            self._insert_holder(agent_id, revision=1, next_position=1, erased_at=now)

    def _insert_holder(self, holder_id: str, **values: object) -> None:
        row = {
            "organization_id": self._organization_id,
            "agent_id": holder_id,
            "revision": 0,
            "next_position": 0,
            "updated_at": self._clock.now(),
            "erased_at": None,
            "link_id": None,
            "conversation_of": None,
        }
        _INSERT_HOLDER.send(self._conn, row | values)

    def _touch_holders(self, block_id: str) -> None:
        parameters = {"organization": self._organization_id, "block": block_id, "now": self._clock.now()}
        _TOUCH_HOLDERS.send(self._conn, parameters)

    def _touch(self, condition: sa.ColumnElement[bool]) -> None:
        touch = core_memories.update().values(revision=core_memories.c.revision + 1, updated_at=self._clock.now())
        self._conn.execute(touch.where(condition))

    @property
    def _in_organization(self) -> sa.ColumnElement[bool]:
        return blocks.c.organization_id == self._organization_id

    def _parameters(self, agent_id: str) -> dict[str, object]:
        return {"organization": self._organization_id, "agent": agent_id}

    def _holder(self, agent_id: str) -> sa.ColumnElement[bool]:
        return (core_memories.c.organization_id == self._organization_id) & (core_memories.c.agent_id == agent_id)

    def _held_by(self, agent_id: str) -> sa.ColumnElement[bool]:
        return (holdings.c.organization_id == self._organization_id) & (holdings.c.agent_id == agent_id)


# These statements are built once, because every edit and every step of an agent executes them.
_INSERT_HOLDER = Prepared(core_memories.insert())
_TOUCH_HOLDERS = Prepared(
    core_memories.update()
    .values(revision=core_memories.c.revision + 1, updated_at=sa.bindparam("now", type_=UtcDateTime))
    .where(
        core_memories.c.organization_id == sa.bindparam("organization"),
        core_memories.c.agent_id.in_(
            sa.select(holdings.c.agent_id).where(
                holdings.c.organization_id == sa.bindparam("organization"),
                holdings.c.block_id == sa.bindparam("block"),
            )
        ),
    )
)
_HOLDER = (core_memories.c.organization_id == sa.bindparam("organization")) & (
    core_memories.c.agent_id == sa.bindparam("agent")
)
_CONVERSATION_OF = Prepared(sa.select(core_memories.c.conversation_of).where(_HOLDER))
_HOLDER_STATE = Prepared(
    sa.select(core_memories.c.revision, core_memories.c.erased_at, core_memories.c.link_id).where(_HOLDER)
)
_COUNT_ATTACHED = Prepared(
    sa.text(
        "INSERT INTO core_memories (organization_id, agent_id, revision, next_position, updated_at)"
        " VALUES (:organization, :agent, 1, 1, :now) ON CONFLICT (organization_id, agent_id) DO UPDATE"
        " SET revision = core_memories.revision + 1, next_position = core_memories.next_position + 1,"
        " updated_at = excluded.updated_at"
    ).bindparams(sa.bindparam("now", type_=UtcDateTime))
)
_ATTACH = Prepared(
    holdings.insert().from_select(
        ["organization_id", "agent_id", "block_id", "label", "position"],
        sa.select(
            core_memories.c.organization_id,
            core_memories.c.agent_id,
            sa.bindparam("block", type_=sa.Text),
            sa.bindparam("held_label", type_=sa.Text),
            core_memories.c.next_position,
        ).where(_HOLDER),
    )
)
_WITH_BLOCKS = (
    sa.select(
        core_memories.c.agent_id.label("core_agent_id"),
        core_memories.c.revision.label("core_revision"),
        core_memories.c.updated_at.label("core_updated_at"),
        blocks,
    )
    .select_from(core_memories)
    .outerjoin(
        holdings,
        (holdings.c.organization_id == core_memories.c.organization_id)
        & (holdings.c.agent_id == core_memories.c.agent_id)
        & (core_memories.c.revision != sa.bindparam("known", type_=sa.BigInteger)),
    )
    .outerjoin(blocks, blocks.c.id == holdings.c.block_id)
    .order_by(core_memories.c.agent_id, holdings.c.position)
)
_CORE_MEMORY = Prepared(_WITH_BLOCKS.where(_HOLDER))


def _core_memory(agent_id: str, rows: Sequence[Any]) -> CoreMemory:
    if not rows:
        return CoreMemory(agent_id)
    held = tuple(BLOCK.from_row(row) for row in rows if row.id is not None)
    return CoreMemory(agent_id, rows[0].core_revision, held, rows[0].core_updated_at)
