"""`mnemesh audit`: who changed what, as a table, as JSON lines or as CSV."""

import csv
import re
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer
from mnemesh.server.v1.audit_service_pb2 import AuditEntry
from mnemesh_cli.commands.resources import text_column, time_column, with_client
from mnemesh_cli.display.records import Column, print_json, print_list
from mnemesh_cli.display.terminal import is_json
from mnemesh_client.mnemesh import Mnemesh

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_ROWS: Final = 50
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_FORMULAS: Final = ("=", "+", "-", "@")
_FIELDS: Final = (
    "create_time",
    "service",
    "subject_id",
    "role",
    "method",
    "resource_ids",
    "correlation_id",
    "request_id",
    "id",
)
_COLUMNS: Final = (
    time_column(title="TIME"),
    Column("SUBJECT", lambda entry: entry.subject_id),
    Column("CHANGE", lambda entry: entry.method.rpartition(".")[2]),
    text_column("RESOURCES", lambda entry: " ".join(entry.resource_ids)),
)


def moment(text: str) -> datetime:
    """Returns the time that an option names: an age such as 7d, or a date or time, local unless it has a zone."""
    if age := re.fullmatch(r"(\d{1,6})([mhd])", text):
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        message = f"{text!r} is not a time. Use an age such as 30m, 12h or 7d, or a date such as 2026-01-31."
        raise typer.BadParameter(message) from error


def _time_option(help_: str) -> Any:
    return Annotated[datetime | None, typer.Option(parser=moment, metavar="TIME", help=help_)]


@with_client
async def audit(
    mnemesh: Mnemesh,
    since: _time_option("Changes from this time on: 7d, 12h, 30m, or a date or time.") = None,  # type: ignore[valid-type]
    until: _time_option("Changes before this time.") = None,  # type: ignore[valid-type]
    subject: Annotated[str, typer.Option(help="Changes by this caller, user-<uuid>.")] = "",
    resource: Annotated[str, typer.Option(help="Changes of the resource with this id, such as an agent.")] = "",
    method: Annotated[str, typer.Option(help="Changes by this RPC, such as UpdateBlock.")] = "",
    service: Annotated[
        str | None, typer.Option(help="Changes in this service, such as blocks.", show_default="all services")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all of them as CSV, with a line of titles.")] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help="At most so many.", show_default="50 in a table, else all"),
    ] = None,
) -> None:
    """Show who changed what, newest first. Requires the role admin.

    Each line is a call of a client that changed configuration or memory. Turns are runs: see `mnemesh runs`.
    """
    is_table = not (as_csv or is_json.get())
    rows = _ROWS if limit is None and is_table else limit
    entries = mnemesh.audit.list(
        service=service,
        since=since,
        until=until,
        subject_id=subject,
        resource_id=resource,
        method=method,
        limit=rows,
    )
    if is_table:
        await print_list(entries, _COLUMNS, empty="no changes", limit=rows)
    elif as_csv:
        await _print_csv(entries)
    else:
        async for entry in entries:
            print_json(entry)


async def _print_csv(entries: AsyncIterator[AuditEntry]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_FIELDS)
    async for entry in entries:
        time = entry.create_time.ToDatetime(UTC).isoformat(timespec="microseconds")
        rest = (getattr(entry, name) for name in _FIELDS[1:])
        writer.writerow([time, *(_cell(each if isinstance(each, str) else " ".join(each)) for each in rest)])


def _cell(text: str) -> str:
    """Returns a text without formulas of spreadsheets and commands of terminals: clients choose request ids."""
    shown = _CONTROLS.sub("\ufffd", text)
    return f"'{shown}" if shown.startswith(_FORMULAS) else shown
