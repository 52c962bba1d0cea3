"""The statements of CommitStep, which every step of every agent runs."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from mnemesh.recall.v1 import contexts_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id
from mnemesh_kit.sql.prepared import observed
from sqlalchemy.engine import Engine

AGENT, CONVERSATION, RUN = new_id("agent"), new_id("conv"), new_id("run")


def message(role: Any) -> pb.Message:
    said = pb.Message(id=new_id("message"), agent_id=AGENT, conversation_id=CONVERSATION, role=role)
    said.content.add().text.text = "We saw alpacas"
    return said


@pytest.fixture
def transactions() -> Iterator[list[list[str]]]:
    """The statements of each transaction that this process has ended since the start of the test."""
    ended: list[list[str]] = []
    running: dict[Any, list[str]] = {}

    def execute(conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        running.setdefault(conn.connection.dbapi_connection, []).append(statement)

    def end(conn: Any) -> None:
        ended.append(running.pop(conn.connection.dbapi_connection, []))

    # On PostgreSQL, the engine commits, and SQLAlchemy's own transaction is rolled back afterwards.
    events = (("before_cursor_execute", execute), ("commit", end), ("rollback", end))
    for name, listener in events:
        sa.event.listen(Engine, name, listener)
    with observed():
        yield ended
    for name, listener in events:
        sa.event.remove(Engine, name, listener)


async def test_step_is_committed_in_one_transaction_of_few_statements(
    recall: Any, database_url: str, transactions: list[list[str]]
) -> None:
    system = message(pb.ROLE_SYSTEM)
    await recall.CreateContext(
        rpc.CreateContextRequest(agent_id=AGENT, conversation_id=CONVERSATION, messages=[system])
    )
    expected = {"sqlite": 8, "postgresql": 4}[database_url.partition(":")[0].partition("+")[0]]
    # A user's message starts a turn; an answer that does not name its turn belongs to the last one, which was read.
    steps = [(pb.ROLE_USER, 1), (pb.ROLE_ASSISTANT, 0), (pb.ROLE_USER, 1)]
    for version, (role, more) in enumerate(steps, start=1):
        transactions.clear()
        await recall.CommitStep(
            rpc.CommitStepRequest(
                agent_id=AGENT,
                conversation_id=CONVERSATION,
                lease=contexts_pb2.WriterLease(run_id=RUN, epoch=1),
                step_id=new_id("step"),
                base_version=version,
                messages=[message(role)],
            )
        )
        (own,) = [statements for statements in transactions if any("step_commits" in each for each in statements)]
        assert len(own) == expected + more, own
