"""`mnemesh schedules`: list, create, show, pause, resume, delete."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from mnemesh_cli.commands.resources import Resource, id_column, resource_app, text_column, time_column, with_client
from mnemesh_cli.display.records import Column, print_done
from mnemesh_cli.options import AgentArgument, completer
from mnemesh_client.mnemesh import Mnemesh

SCHEDULES = Resource(
    noun="schedule",
    columns=(
        id_column(),
        text_column("NAME", lambda row: row.name),
        Column("CRON", lambda row: row.cron or "once"),
        time_column("next_run_time", "NEXT"),
        Column("RUNS", lambda row: str(row.run_count), right=True),
        Column("SKIPPED", lambda row: str(row.skipped_count), right=True),
        Column("STATE", lambda row: "paused" if row.paused else "active" if row.HasField("next_run_time") else "ended"),
    ),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.schedules.list(agent_id=agent_id, limit=limit),
    find=lambda mnemesh, key: mnemesh.schedules.get(key),
    delete=lambda mnemesh, schedule: mnemesh.schedules.delete(schedule.id),
    consequence=" (the runs that it started are kept)",
    of_agent=True,
    create="mnemesh schedules create AGENT MESSAGE --cron '0 9 * * *'",
)
app = resource_app(SCHEDULES, "Start runs of agents at given times.")
ScheduleArgument = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="Id of the schedule.", autocompletion=completer("schedule"))
]


@app.command("create")
@with_client
async def create(
    mnemesh: Mnemesh,
    key: AgentArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What the agent receives.")],
    cron: Annotated[
        str | None, typer.Option(help="Minute, hour, day of month, month and day of week, such as '0 9 * * mon-fri'.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="The time of the only run, such as 2026-01-31T09:00; local without an offset.")
    ] = None,
    time_zone: Annotated[str, typer.Option(help="IANA time zone of --cron.")] = "UTC",
    name: Annotated[str, typer.Option(help="A name, which lists show.")] = "",
    skip_missed: Annotated[
        bool, typer.Option("--skip-missed", help="Do not make up for a run that was due while the mesh was down.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="Let a run wait for the end of the run before, instead of skipping it.")
    ] = False,
    max_runs: Annotated[int | None, typer.Option(min=1, help="End after so many runs.")] = None,
) -> None:
    """Create a schedule. Prints its id."""
    if (cron is None) == (at is None):
        raise typer.BadParameter("Set either --cron or --at.", param_hint="--cron")
    agent = await mnemesh.agents.find(key)
    schedule = await mnemesh.schedules.create(
        message,
        agent_id=agent.id,
        cron=cron,
        due_at=None if at is None else _moment(at),
        time_zone=time_zone,
        name=name,
        missed_runs="skip" if skip_missed else "run_once",
        overlap="queue" if queue else "skip",
        max_runs=max_runs,
    )
    print_done(schedule.id, schedule)


@app.command("pause")
@with_client
async def pause(mnemesh: Mnemesh, key: ScheduleArgument) -> None:
    """Stop the starts of a schedule until it is resumed."""
    print_done(f"paused {key}", await mnemesh.schedules.pause(key))


@app.command("resume")
@with_client
async def resume(mnemesh: Mnemesh, key: ScheduleArgument) -> None:
    """Continue a paused schedule with the next time that is due."""
    print_done(f"resumed {key}", await mnemesh.schedules.resume(key))


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-01-31T09:00.", param_hint="--at") from None
