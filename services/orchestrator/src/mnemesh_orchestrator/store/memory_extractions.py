"""The extraction of facts from messages of agents: what is due, what a day has used, and what was extracted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.audit import note_change
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.agents import AgentState
from mnemesh_orchestrator.model.episodes import ExtractedRange, ExtractionClaim, ExtractionJob, ExtractionUsage
from mnemesh_orchestrator.store.agent_rows import agent_missing
from mnemesh_orchestrator.store.callbacks import tell_facts
from mnemesh_orchestrator.store.tables import agents, extraction_usage, memory_extractions

CLAIM_SECONDS: Final = 600.0
"""Longer than three calls of a model."""
_x, _u = memory_extractions.c, extraction_usage.c
_NOW: Final = sa.bindparam("p_now", type_=_x.due_at.type)
_INSTANCE: Final[sa.BindParameter[str]] = sa.bindparam("p_instance")
_FREE: Final = sa.or_(_x.claim_owner.is_(None), _x.claim_owner == _INSTANCE, _x.claim_expires_at <= _NOW)
"""No other process holds a row. An instance takes over its own claims after a crash."""
_DUE: Final = Prepared(
    sa.select(_x.organization_id, _x.agent_id)
    .join(agents, agents.c.id == _x.agent_id)
    .where(
        # The claims of this instance, of an earlier process, are due at once.
        sa.or_(_x.due_at <= _NOW, sa.and_(_x.due_at.is_not(None), _x.claim_owner == _INSTANCE)),
        agents.c.state == AgentState.ACTIVE,
        _FREE,
    )
    .order_by(_x.due_at)
    .limit(sa.bindparam("p_limit", type_=sa.Integer))
)
"""Prepared, as it is executed every few seconds."""
_COUNT_TURN: Final = Prepared(
    memory_extractions.update()
    .where(_x.agent_id == sa.bindparam("p_agent"))
    .values(
        turns=_x.turns + 1,
        due_at=sa.case(
            (_x.turns + 1 >= sa.bindparam("p_turns"), sa.bindparam("new_due_at", type_=_x.due_at.type)),
            else_=_x.due_at,
        ),
    )
)


def count_turn(conn: sa.Connection, organization_id: str, agent_id: str, turns: int, now: datetime) -> None:
    """Counts a completed turn of an agent whose facts are extracted after every `turns`."""
    parameters = {"p_agent": agent_id, "p_turns": turns, "new_due_at": now}
    if _COUNT_TURN.change(conn, parameters) == 0:
        conn.execute(memory_extractions.insert().values(_new_row(organization_id, agent_id)))
        _COUNT_TURN.change(conn, parameters)


def _new_row(organization_id: str, agent_id: str) -> dict[str, Any]:
    return {"agent_id": agent_id, "organization_id": organization_id}


@dataclass(frozen=True, eq=False)
class MemoryExtractionStore:
    """Every message of an agent is processed once: `record` keeps what was extracted until `advance` moves on.

    The end of a run counts the turn; see `RunStore.finish`. A claim that another process took over changes nothing:
    its methods return False.
    """

    database: Database
    clock: Clock

    async def due(self, instance_id: str, limit: int) -> Sequence[ExtractionJob]:
        """Returns agents whose messages are to be processed now and that no other process holds, longest due first."""
        parameters = {"p_now": self.clock.now(), "p_instance": instance_id, "p_limit": limit}
        rows = await self.database.read(lambda conn: _DUE.all(conn, parameters))
        return tuple(ExtractionJob(row.organization_id, row.agent_id) for row in rows)

    async def claim(self, job: ExtractionJob, instance_id: str) -> ExtractionClaim | None:
        """Takes the right to process an agent's messages, also if none is due. None if another process has it.

        It ends with `release`, or some minutes after the last call.
        """

        def write(conn: sa.Connection) -> ExtractionClaim | None:
            now = self.clock.now()
            owned = (agents.c.id == job.agent_id, agents.c.organization_id == job.organization_id)
            if conn.execute(sa.select(agents.c.id).where(*owned)).first() is None:
                raise agent_missing(job.agent_id)
            row = conn.execute(sa.select(memory_extractions).where(_x.agent_id == job.agent_id)).first()
            if row is None:
                conn.execute(memory_extractions.insert().values(_new_row(job.organization_id, job.agent_id)))
                row = conn.execute(sa.select(memory_extractions).where(_x.agent_id == job.agent_id)).one()
            until = now + timedelta(seconds=CLAIM_SECONDS)
            # A claim that is never released is due again when it ends.
            values = {"epoch": row.epoch + 1, "claim_owner": instance_id, "claim_expires_at": until, "due_at": until}
            taken = memory_extractions.update().where(_x.agent_id == job.agent_id, _FREE).values(**values, turns=0)
            if conn.execute(taken, {"p_now": now, "p_instance": instance_id}).rowcount == 0:
                return None
            extracted = None if row.result is None else msgspec.json.decode(row.result, type=ExtractedRange)
            return ExtractionClaim(
                job, row.epoch + 1, row.processed_sequence_id, row.failures, extracted, due_before=row.due_at
            )

        return await self.database.write(write, name="extractions.claim")

    async def record(self, claim: ExtractionClaim, extracted: ExtractedRange) -> bool:
        """Keeps what was extracted, before it is stored in recall."""
        return await self._update(claim, "record", result=msgspec.json.encode(extracted), failures=0)

    async def discard(self, claim: ExtractionClaim) -> bool:
        """Drops what was extracted: its messages were erased, and the rest is extracted again."""
        return await self._update(claim, "discard", result=None)

    async def advance(self, claim: ExtractionClaim, until: int, facts: int = 0) -> bool:
        """Notes that the messages up to a sequence id are processed. Webhooks are told how many facts have changed."""

        def tell(conn: sa.Connection) -> None:
            if facts:
                tell_facts(conn, claim.job, until, facts, self.clock.now())

        return await self._update(claim, "advance", tell, result=None, processed_sequence_id=until, failures=0)

    async def _update(
        self, claim: ExtractionClaim, name: str, tell: Callable[[sa.Connection], None] | None = None, **values: Any
    ) -> bool:
        until = self.clock.now() + timedelta(seconds=CLAIM_SECONDS)
        # A turn may have made the agent due meanwhile.
        due_at = sa.case((_x.due_at == _x.claim_expires_at, sa.literal(until, _x.due_at.type)), else_=_x.due_at)
        statement = _held(claim).values(claim_expires_at=until, due_at=due_at, **values)
        return await self._write(statement, f"extractions.{name}", tell)

    async def release(self, claim: ExtractionClaim, due_at: datetime | None = None, *, failed: bool = False) -> bool:
        """Gives up the right. The agent is due at `due_at`; without one, when enough turns have completed."""
        later: Any = sa.case((_x.due_at == _x.claim_expires_at, sa.null()), else_=_x.due_at)
        failures = _x.failures + 1 if failed else _x.failures
        statement = _held(claim).values(
            claim_owner=None, claim_expires_at=None, due_at=later if due_at is None else due_at, failures=failures
        )
        return await self._write(statement, "extractions.release")

    async def _write(
        self, statement: sa.Update, name: str, tell: Callable[[sa.Connection], None] | None = None
    ) -> bool:
        def write(conn: sa.Connection) -> bool:
            if conn.execute(statement).rowcount == 0:
                return False
            if name == "extractions.record":
                note_change(conn, self.clock.now())
            if tell is not None:
                tell(conn)
            return True

        return await self.database.write(write, name=name)

    async def usage(self, job: ExtractionJob, day: date) -> ExtractionUsage:
        """Returns what an agent and its organization have used on a day."""
        of_agent = sa.case((_u.agent_id == job.agent_id, _u.calls), else_=0)
        query = sa.select(
            sa.func.coalesce(sa.func.sum(of_agent), 0), sa.func.coalesce(sa.func.sum(_u.tokens), 0)
        ).where(_u.organization_id == job.organization_id, _u.day == day.isoformat())
        calls, tokens = await self.database.read(lambda conn: conn.execute(query).one())
        return ExtractionUsage(int(calls), int(tokens))

    async def add_usage(self, job: ExtractionJob, day: date, tokens: int) -> None:
        """Counts a call and its tokens."""
        key = {"organization_id": job.organization_id, "agent_id": job.agent_id, "day": day.isoformat()}
        matches = [_u[name] == value for name, value in key.items()]

        def write(conn: sa.Connection) -> None:
            added = extraction_usage.update().where(*matches).values(calls=_u.calls + 1, tokens=_u.tokens + tokens)
            if conn.execute(added).rowcount == 0:
                conn.execute(extraction_usage.insert().values(**key, calls=1, tokens=tokens))

        await self.database.write(write, name="extractions.add_usage")

    async def purge_usage(self, before: date) -> None:
        """Deletes the figures of earlier days."""
        statement = extraction_usage.delete().where(_u.day < before.isoformat())
        await self.database.write(lambda conn: conn.execute(statement), name="extractions.purge_usage")


def _held(claim: ExtractionClaim) -> sa.Update:
    held = (_x.agent_id == claim.job.agent_id, _x.epoch == claim.epoch, _x.claim_owner.is_not(None))
    return memory_extractions.update().where(*held)
