"""Live events of background runs. They are stored in batches, and read in order with the durable events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared

from mnemesh_orchestrator.model.events import Lease, LiveBody, RunEvent
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.leases import lease_parameters, under_lease
from mnemesh_orchestrator.store.run_rows import decode_event
from mnemesh_orchestrator.store.tables import events, run_deltas
from mnemesh_orchestrator.store.turn_statements import LeaseClock

_LIMIT: Final = 500
_d: Final = run_deltas.c
_INSERT: Final = Prepared(run_deltas.insert())
_DELETE: Final = Prepared(
    run_deltas.delete().where(
        _d.run_id == sa.bindparam("p_run"), _d.epoch == sa.bindparam("p_epoch"), _d.last == sa.bindparam("p_last")
    )
)


class _Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    at: datetime
    step_id: str | None
    body: LiveBody


_ENCODE: Final = msgspec.json.Encoder().encode
_PIECES: Final = msgspec.json.Decoder(list[_Piece])


@dataclass(frozen=True, eq=False)
class DeltaStore:
    """The live events of background runs.

    Example:
        >>> await deltas.append(lease, [(0, event)])
        >>> await deltas.replay(lease.run_id, 0, 0, (0, 0)) == (event,)
        True
    """

    database: Database
    lease_clock: LeaseClock

    async def append(self, lease: Lease, pieces: Sequence[tuple[int, RunEvent]]) -> None:
        """Stores live events that have positions, each with the sequence number of the newest durable event before it.

        Raises:
            LeaseLost: Another process holds the lease.
        """
        rows = [_row(lease, after, [event for _, event in group]) for after, group in groupby(pieces, lambda p: p[0])]
        keys = [{"p_run": lease.run_id, "p_epoch": lease.epoch, "p_last": row["last"]} for row in rows]

        def write(conn: sa.Connection) -> None:
            held = sql.EXTEND_LEASE.send(conn, lease_parameters(lease) | self.lease_clock.expiry)
            with under_lease(lease, held):
                _DELETE.send_each(conn, keys)  # the rows of an earlier attempt
                _INSERT.send_each(conn, rows)

        await self.database.write(write)

    async def replay(self, run_id: str, after: int, since: int, position: tuple[int, int]) -> tuple[RunEvent, ...]:
        """Returns the next stored events, durable and live, in the order in which they happened; none at the end.

        Args:
            after: The sequence number after which the durable events start.
            since: Live events before this durable event are left out.
            position: The position after which the live events start.
        """
        durable = (
            sa.select(events)
            .where(events.c.run_id == run_id, events.c.sequence > sa.literal(after, sa.BigInteger))
            .order_by(events.c.sequence)
            .limit(_LIMIT)
        )
        behind = sa.or_(_d.epoch > position[0], sa.and_(_d.epoch == position[0], _d.last > position[1]))
        live = (
            sa.select(run_deltas)
            .where(_d.run_id == run_id, _d.after_sequence >= sa.literal(since, sa.BigInteger), behind)
            .order_by(_d.epoch, _d.last)
            .limit(_LIMIT)
        )

        def read(conn: sa.Connection) -> tuple[Sequence[Any], Sequence[Any]]:
            return conn.execute(durable).all(), conn.execute(live).all()

        return tuple(_merged(*_comparable(*await self.database.read(read))))


def _row(lease: Lease, after: int, batch: Sequence[RunEvent]) -> dict[str, Any]:
    last = batch[-1].position
    if last is None:
        raise ValueError("a stored live event has a position")
    return {
        "run_id": lease.run_id,
        "epoch": lease.epoch,
        "last": last[1],
        "after_sequence": after,
        "pieces": _ENCODE([_Piece(event.created_at, event.step_id, event.body) for event in batch]),  # type: ignore[arg-type]
    }


def _comparable(durable: Sequence[Any], live: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Leaves out the rows whose order is unknown because the other query reached its limit."""
    if len(durable) == _LIMIT:
        live_known = [row for row in live if row.after_sequence < durable[-1].sequence]
    else:
        live_known = list(live)
    if len(live) == _LIMIT:
        durable = [row for row in durable if row.sequence <= live[-1].after_sequence]
    return durable, live_known


def _merged(durable: Sequence[Any], live: Sequence[Any]) -> Iterator[RunEvent]:
    waiting = iter(durable)
    ahead = next(waiting, None)
    for row in live:
        while ahead is not None and ahead.sequence <= row.after_sequence:
            yield decode_event(ahead)
            ahead = next(waiting, None)
        pieces = _PIECES.decode(row.pieces)
        for number, piece in enumerate(pieces, row.last - len(pieces) + 1):
            yield RunEvent(row.run_id, piece.at, piece.body, None, piece.step_id, (row.epoch, number))
    while ahead is not None:
        yield decode_event(ahead)
        ahead = next(waiting, None)
