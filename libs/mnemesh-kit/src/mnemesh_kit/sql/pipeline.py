"""A connection to PostgreSQL that sends statements before the answers to earlier ones have arrived.

It uses the pipeline mode of libpq: https://www.postgresql.org/docs/current/libpq-pipeline-mode.html
"""

import itertools
import select
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import psycopg
import sqlalchemy as sa
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from mnemesh_kit.metrics import Counter

ROUND_TRIPS: Final = Counter("mnemesh_postgres_round_trips", "Waits for answers of PostgreSQL.")
"""The number of times that this process has waited for PostgreSQL, without those for connections."""
STATEMENTS: Final = Counter("mnemesh_postgres_statements", "Statements that PostgreSQL has executed.")
"""The statements of this process, with those that begin and end transactions."""

_ENDED: Final = frozenset({b"FATAL", b"PANIC"})
_QUOTING: Final = ("22", "42601")
"""The states whose first text quotes a value: of data, and of a query that is written in a language of its own."""


class PostgresConnection(psycopg.Connection[Any]):
    """A connection whose transactions the engine begins and ends, not SQLAlchemy."""

    statements: "Pipeline | None" = None
    """The statements on their way, if the connection is one of the engine."""

    def commit(self) -> None:
        """Does nothing."""

    def rollback(self) -> None:
        """Does nothing."""


class PostgresCursor(psycopg.RawCursor[Any]):
    """A cursor, as SQLAlchemy uses it. It waits for the answers to all earlier statements before it sends its own."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """Executes a statement. Its parameters are called $1, $2 and so on."""
        _leave(self.connection)
        with _hidden_values():
            return super().execute(query, params, **options)

    def executemany(self, query: Any, params_seq: Any, *, returning: bool = False) -> None:
        """Executes a statement once for each of the parameters, without waiting in between."""
        _leave(self.connection)
        with _hidden_values():
            super().executemany(query, params_seq, returning=returning)


def _leave(connection: Any) -> None:
    if connection.statements is not None:
        STATEMENTS.inc()
        connection.statements.leave()


@contextmanager
def _hidden_values() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        _without_values(error)
        raise


def _without_values(error: psycopg.Error) -> psycopg.Error:
    """Returns an error without what PostgreSQL quotes of the values: its details, and the text about a wrong value."""
    if (said := error.diag.message_primary) is not None:
        is_quoting = (error.sqlstate or "").startswith(_QUOTING)
        error.args = ("PostgreSQL refuses a value." if is_quoting else said,)
    return error


@dataclass(slots=True, eq=False)
class Sent:
    """A statement that was sent, and its result or error after that has arrived."""

    text: bytes
    values: Sequence[Any] = ()
    result: PGresult | None = None
    error: sa.exc.DBAPIError | None = None
    is_asked: bool = False
    """A flush request has asked the server for the answer."""
    prepares: bool = False
    """The statement is prepared and not executed."""


_SYNC: Final = b""
"""The text of a mark, after which PostgreSQL executes statements again that it skipped after an error."""


class Pipeline:
    """The statements of one connection that are on their way.

    An error of a statement is raised when its answer, or that of a later statement, is waited for. It is SQLAlchemy's.

    Example:
        >>> pipeline.begin([b"BEGIN ISOLATION LEVEL SERIALIZABLE"])
        >>> found = pipeline.send(b"SELECT value FROM counters WHERE name = $1", ["n"])
        >>> pipeline.rows(pipeline.wait(found))
        [(3,)]
        >>> pipeline.send(b"UPDATE counters SET value = $1 WHERE name = $2", [4, "n"])
        >>> pipeline.end()
    """

    def __init__(self, connection: PostgresConnection, dialect: sa.Dialect, *, keeps_statements: bool) -> None:
        """Creates the pipeline of a connection on which nothing was sent.

        Args:
            connection: the connection. It is in the mode that commits each statement.
            dialect: the dialect of errors.
            keeps_statements: whether the server keeps each statement, under a name of this connection. It cannot if
                transactions of the connection get other connections of a pooler.
        """
        self._pg = connection.pgconn
        self._adapters = Transformer(connection)
        self._dialect = dialect
        self._keeps_statements = keeps_statements
        self._names: dict[bytes, bytes] = {}
        self._numbers = itertools.count()
        self._pending: deque[Sent] = deque()
        self._error: sa.exc.DBAPIError | None = None
        self._is_entered = False
        self._in_transaction = False
        self._socket = select.poll()
        self._socket.register(self._pg.socket, select.POLLIN)
        self.is_broken = False
        """The connection failed and must be closed."""

    def begin(self, statements: Sequence[bytes]) -> bool:
        """Sends the statements that begin a transaction together with the next one; none if there is none.

        Returns False, and sends nothing, if the connection was closed while it was idle.
        """
        try:
            self._receive_all()
        except sa.exc.DBAPIError:
            self.is_broken = True
        # The server tells an idle connection nothing but its end.
        self.is_broken = self.is_broken or bool(self._socket.poll(0))
        if self.is_broken:
            return False
        self._in_transaction = bool(statements)
        for statement in statements:
            self.send(statement, ())
        return True

    def send(self, text: bytes, values: Sequence[Any]) -> Sent:
        """Sends a statement with its values, before the answers to earlier statements have arrived."""
        sent = Sent(text, values)
        try:
            if not self._is_entered:
                self._pg.enter_pipeline_mode()
                self._is_entered = True
            dumped = self._adapters.dump_sequence(values, [PyFormat.TEXT] * len(values)) if values else None
            if not self._keeps_statements:
                self._pg.send_query_params(text, dumped, None, None, Format.BINARY)
            else:
                name = self._names.get(text) or self._prepare(text)
                self._pg.send_query_prepared(name, dumped, None, Format.BINARY)
        except psycopg.Error as error:
            raise self._failed(sent, error) from error
        STATEMENTS.inc()
        self._pending.append(sent)
        return sent

    def _prepare(self, text: bytes) -> bytes:
        name = self._names[text] = b"m%d" % next(self._numbers)
        self._pg.send_prepare(name, text)
        self._pending.append(Sent(text, prepares=True))
        return name

    def wait(self, sent: Sent) -> PGresult:
        """Waits for the answer to a statement and returns it, or raises its error, each time that it is asked for."""
        if sent.error is None and sent.result is None and not sent.is_asked:
            ROUND_TRIPS.inc()
            self._flush(with_answers=True)
        while sent.error is None and sent.result is None:
            self._receive()
        if sent.error is not None:
            raise sent.error
        return cast("PGresult", sent.result)

    def rows(self, result: PGresult) -> list[tuple[Any, ...]]:
        """Returns the rows of an answer."""
        self._adapters.set_pgresult(result)
        return self._adapters.load_rows(0, result.ntuples, tuple)

    def end(self, *, waits: bool = True) -> None:
        """Commits the transaction, if one was begun, and waits for all answers.

        Without `waits`, the next `begin` receives them: for a transaction that only read.
        """
        if self._in_transaction:
            self.send(b"COMMIT", ())
        elif not self._pending and not self._is_entered:
            return
        self._mark()
        self._flush()
        if waits:
            ROUND_TRIPS.inc()
            self._receive_all()

    def rollback(self) -> None:
        """Rolls the transaction back, if one was begun, and discards all answers. Does not raise."""
        try:
            if self._is_entered:
                self._mark()
                self._discard_answers()
            if self._pg.transaction_status != TransactionStatus.IDLE:
                self.send(b"ROLLBACK", ())
                self._mark()
                self._discard_answers()
        except sa.exc.DBAPIError:
            self.is_broken = True

    def leave(self) -> None:
        """Waits for all answers and leaves the pipeline mode, so that psycopg can use the connection."""
        ROUND_TRIPS.inc()  # the one of psycopg
        if not self._is_entered:
            return
        if self._pending:
            if not self._pending[-1].is_asked:
                ROUND_TRIPS.inc()
            self._mark()
            self._flush()
            self._receive_all()
        self._pg.exit_pipeline_mode()
        self._is_entered = False

    def _mark(self) -> None:
        mark = Sent(_SYNC)
        try:
            self._pg.pipeline_sync()
        except psycopg.Error as error:
            raise self._failed(mark, error) from error
        self._pending.append(mark)

    def _flush(self, *, with_answers: bool = False) -> None:
        """Sends what is not sent yet. With `with_answers`, the server sends the answers that it has at once."""
        try:
            if with_answers:
                self._pg.send_flush_request()
                for sent in self._pending:
                    sent.is_asked = True
            while self._pg.flush():
                self._socket.modify(self._pg.socket, select.POLLIN | select.POLLOUT)
                self._socket.poll()
                self._pg.consume_input()  # a server that waits until its answers are read does not read
                self._socket.modify(self._pg.socket, select.POLLIN)
        except psycopg.Error as error:
            raise self._failed(Sent(_SYNC), error) from error

    def _receive_all(self) -> None:
        while self._pending:
            self._receive()

    def _discard_answers(self) -> None:
        self._flush()
        while self._pending and not self.is_broken:
            try:
                self._receive()
            except sa.exc.DBAPIError:
                continue

    def _receive(self) -> None:
        """Receives the answer to the first statement that has none. Raises the error that it says."""
        sent = self._pending[0]
        try:
            result = self._next_result()
            if sent.text is not _SYNC:
                self._next_result()  # None, which ends the answer
        except psycopg.Error as error:
            raise self._failed(sent, error) from error
        self._pending.popleft()
        if result is None or result.status in (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED):
            if sent.prepares:
                del self._names[sent.text]
            if result is None:
                self.is_broken = True
                self._error = self._failed(sent, psycopg.OperationalError("the connection to the server is lost"))
            elif result.status == ExecStatus.FATAL_ERROR or self._error is None:
                self.is_broken |= result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) in _ENDED
                self._error = self._failed(sent, _without_values(error_from_result(result, "utf-8")))
            # The server skips the statements after one that fails: they have its error.
            sent.error = self._error
            raise sent.error
        sent.result = result

    def _next_result(self) -> PGresult | None:
        while self._pg.is_busy():
            self._socket.poll()
            self._pg.consume_input()
        return self._pg.get_result()

    def _failed(self, sent: Sent, error: psycopg.Error) -> sa.exc.DBAPIError:
        """Returns SQLAlchemy's error for one of the driver."""
        if self._pg.status == ConnStatus.BAD:
            self.is_broken = True
        # A driver's error becomes a DBAPIError; the type of the result covers other exceptions as well.
        return cast(
            "sa.exc.DBAPIError",
            sa.exc.DBAPIError.instance(
                sent.text.decode(),
                tuple(sent.values),
                error,
                psycopg.Error,
                hide_parameters=True,
                connection_invalidated=self.is_broken,
                dialect=self._dialect,
            ),
        )
