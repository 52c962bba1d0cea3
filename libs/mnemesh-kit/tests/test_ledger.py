"""Idempotency keys: their scope, their fingerprint, and the deletion of old records."""

import pytest
import sqlalchemy as sa
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import InvalidArgument, RequestIdReused
from mnemesh_kit.idempotency import Ledger, ledger_table, request_key
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock

metadata = sa.MetaData()
table = ledger_table(metadata)


def key(request_id: str = "r", block_id: str = "b", method: str = "DeleteBlock"):  # type: ignore[no-untyped-def]
    return request_key(rpc.DeleteBlockRequest(request_id=request_id, block_id=block_id), method)


def test_fingerprint_depends_on_the_content_only() -> None:
    assert key() == key()
    assert key().fingerprint == key("another").fingerprint
    assert key().fingerprint != key(block_id="c").fingerprint
    assert key("") is None
    with as_principal(Principal(new_id("org"), new_id("user"))):
        other = key()
    assert other.organization_id != key().organization_id
    for bad in ("x" * 201, "a\0"):
        with pytest.raises(InvalidArgument):
            key(bad)


def test_fingerprints_stay_the_same_across_releases() -> None:
    """A request that is repeated after an upgrade is compared with the fingerprint that the older release stored."""
    assert key().fingerprint == "e426df02c67acc6f79101f8d54480e3d"
    assert key("x" * 200).fingerprint == key("\N{SNOWMAN}" * 200).fingerprint == key().fingerprint


def test_fingerprint_does_not_depend_on_the_serialisation() -> None:
    """Languages differ in the order of fields, and some change it between two calls."""
    request = rpc.DeleteBlockRequest(request_id="r", block_id="b")
    id_last = rpc.DeleteBlockRequest.FromString(b"".join(reversed(_split(request.SerializeToString()))))
    assert request_key(id_last, "DeleteBlock") == key()


def test_fingerprint_covers_fields_that_this_release_does_not_know() -> None:
    known = rpc.DeleteBlockRequest(request_id="r", block_id="b")
    newer = rpc.DeleteBlockRequest.FromString(known.SerializeToString() + b"\xfa\x06\x01!")
    assert request_key(newer, "DeleteBlock") != key()


def _split(data: bytes) -> list[bytes]:
    """Splits a message into its length-delimited fields, each below 128 bytes."""
    fields = []
    while data:
        size = 2 + data[1]
        fields.append(data[:size])
        data = data[size:]
    return fields


async def test_effect_runs_once_per_organization_method_and_id(database: Database) -> None:
    await database.write(metadata.create_all)
    clock = FrozenClock()
    ledger = Ledger(database, table, clock)
    ran: list[str] = []

    async def once(with_key, name: str):  # type: ignore[no-untyped-def]
        return await database.write(lambda conn: ledger.once(conn, with_key, lambda: ran.append(name) or [name, "2"]))

    assert await once(key(), "first") == (("first", "2"), False)
    assert await once(key(), "repeat") == (("first", "2"), True)
    assert await once(key(method="Other"), "other method") == (("other method", "2"), False)
    assert await once(None, "no id") == (("no id", "2"), False)
    assert await once(None, "no id") == (("no id", "2"), False)
    with pytest.raises(RequestIdReused):
        await once(key(block_id="c"), "reused")
    assert ran == ["first", "other method", "no id", "no id"]

    await database.write(lambda conn: ledger.forget(conn, None))
    await database.write(lambda conn: ledger.forget(conn, key(method="Other")))
    assert await once(key(method="Other", block_id="c"), "corrected") == (("corrected", "2"), False)
    assert await once(key(), "repeat") == (("first", "2"), True)
    ran.remove("corrected")

    clock.advance(23 * 3600)
    assert await database.write(ledger.purge) == 0
    clock.advance(2 * 3600)
    assert await database.write(ledger.purge) == 2
    assert await once(key(block_id="c"), "a day later") == (("a day later", "2"), False)


async def test_records_of_effects_outlive_the_interruption_of_their_run(database: Database) -> None:
    await database.write(metadata.create_all)
    clock = FrozenClock()
    ledger = Ledger(database, table, clock)
    ids = ["step-1/0/0", "agent-1/block/0", "r-1", "step-1"]
    for id_ in ids:
        await database.write(lambda conn, id_=id_: ledger.once(conn, key(id_), list))  # type: ignore[misc]
    clock.advance(25 * 3600)
    assert await database.write(ledger.purge) == 2
    assert await database.read(lambda conn: ledger.find(conn, key("step-1/0/0"))) == ()
    clock.advance(29 * 24 * 3600)
    assert await database.write(ledger.purge) == 2
