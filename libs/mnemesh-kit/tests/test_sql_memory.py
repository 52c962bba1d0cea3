import asyncio

import pytest
import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.memory import MemoryEngine


def insert(connection: sa.Connection) -> None:
    connection.execute(sa.text("INSERT INTO things VALUES (1)"))


def count(connection: sa.Connection) -> int:
    return int(connection.execute(sa.text("SELECT count(*) FROM things")).scalar_one())


async def things() -> Database:
    database = Database.open("sqlite:///:memory:")
    await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE things (id INTEGER)")))
    return database


async def test_two_databases_are_independent() -> None:
    one, other = await things(), await things()
    await one.write(insert)
    assert (await one.read(count), await other.read(count)) == (1, 0)
    await asyncio.gather(one.close(), other.close())


async def test_error_rolls_back_and_a_read_cannot_write() -> None:
    database = await things()

    def fail(connection: sa.Connection) -> None:
        insert(connection)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await database.write(fail)
    with pytest.raises(sa.exc.OperationalError):
        await database.read(insert)
    await database.write(insert)
    assert await database.read(count) == 1
    await database.close()


async def test_dump_restores_the_database() -> None:
    engine, copy = MemoryEngine(), MemoryEngine()
    engine.run(lambda connection: connection.execute(sa.text("CREATE TABLE things (id INTEGER)")))
    engine.run(insert)
    copy.load(engine.dump())
    engine.run(insert)
    assert (engine.run(count), copy.run(count)) == (2, 1)
    await engine.close()
    await copy.close()
