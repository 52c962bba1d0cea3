"""`mnemesh runs`: list, show, cancel, retry, trace, logs, delete."""

import json
from typing import Annotated

import typer
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh_cli.chat.render import LiveRenderer
from mnemesh_cli.chat.status_line import duration_text
from mnemesh_cli.commands.resources import (
    Resource,
    enum_text,
    id_column,
    resource_app,
    text_column,
    time_column,
    with_client,
)
from mnemesh_cli.display.records import Column, print_done, print_json, print_list
from mnemesh_cli.display.terminal import output
from mnemesh_cli.options import completer
from mnemesh_client.mnemesh import Mnemesh


def status_text(run: runs_pb2.Run) -> str:
    return enum_text(runs_pb2.RunStatus, run.status, "RUN_STATUS_")


def seconds_text(row: runs_pb2.Run | runs_pb2.Step) -> str:
    """Returns how long a run or a step took; "" if it has not ended."""
    return duration_text(row.total_duration.ToTimedelta().total_seconds()) if row.HasField("total_duration") else ""


def tokens_text(row: runs_pb2.Run | runs_pb2.Step) -> str:
    """Returns the tokens of the prompts and of the answers."""
    return f"{row.usage.prompt_tokens:,}+{row.usage.completion_tokens:,}"


def cost_text(row: runs_pb2.Run | runs_pb2.Step) -> str:
    """Returns the cost in US dollars; "" if the price of the model is not known."""
    return dollars_text(row.usage.cost_nano_usd / 1e9) if row.usage.HasField("cost_nano_usd") else ""


def dollars_text(dollars: float) -> str:
    """Returns a cost, with cents or with hundredths of cents."""
    return f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.4f}"


async def _delete(mnemesh: Mnemesh, found: runs_pb2.Run) -> None:
    await mnemesh.runs.stub.DeleteRun(runs_service_pb2.DeleteRunRequest(run_id=found.id))


RUNS = Resource(
    noun="run",
    columns=(
        id_column(),
        time_column(title="SENT"),
        Column("STATUS", status_text),
        Column("STEPS", lambda row: str(row.step_count), right=True),
        Column("TIME", seconds_text, right=True),
        Column("COST", cost_text, right=True),
        text_column("ERROR", lambda row: row.error.reason),
    ),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.runs.list(agent_id=agent_id, limit=limit),
    find=lambda mnemesh, key: mnemesh.runs.get(key),
    delete=_delete,
    consequence=" from the record",
    of_agent=True,
)
app = resource_app(RUNS, "List, show, follow, cancel and retry runs, and show what the model received.")

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.", autocompletion=completer("run"))]
_STEPS = (
    Column("STEP", lambda step: str(step.number), right=True),
    Column("STATUS", lambda step: enum_text(runs_pb2.StepStatus, step.status, "STEP_STATUS_")),
    text_column("MODEL", lambda step: f"{step.provider}/{step.model}"),
    Column("TOKENS", tokens_text, right=True),
    Column("COST", cost_text, right=True),
    Column("TIME", seconds_text),
    Column("ATTEMPTS", lambda step: str(step.attempts), right=True),
    text_column("ERROR", lambda step: step.error.reason),
)


@app.command("cancel")
@with_client
async def cancel(mnemesh: Mnemesh, context: typer.Context, run_id: RunArgument) -> None:
    """Cancel a run."""
    outcomes = await mnemesh.runs.cancel(run_id)
    names = {
        each: runs_service_pb2.CancelOutcome.Name(value).removeprefix("CANCEL_OUTCOME_").lower()
        for each, value in outcomes.items()
    }
    text = "\n".join(f"{each}: {name.replace('_', ' ')}" for each, name in names.items())
    print_done(text, names, as_json=context.obj.as_json)


@app.command("retry")
@with_client
async def retry(mnemesh: Mnemesh, context: typer.Context, run_id: RunArgument) -> None:
    """Start a new run with the input of a failed one, and print its id. `mnemesh runs logs` follows it."""
    started = await mnemesh.runs.retry(run_id)
    print_done(started.id, started, as_json=context.obj.as_json)


@app.command("trace")
@with_client
async def trace(
    mnemesh: Mnemesh,
    context: typer.Context,
    run_id: RunArgument,
    step: Annotated[
        int | None, typer.Option(min=1, help="Print what the model received and answered at this step, as JSON.")
    ] = None,
) -> None:
    """Show the steps of a run: model, tokens, time, attempts and errors."""
    steps = [each async for each in mnemesh.runs.steps(run_id)]
    if step is None:
        await print_list(steps, _STEPS, as_json=context.obj.as_json, empty="The run has no steps.")
        return
    chosen = next((each for each in steps if each.number == step), None)
    if chosen is None:
        raise typer.BadParameter(f"The run has {len(steps)} steps.", param_hint="--step")
    found = await mnemesh.runs.trace(chosen.id)
    whole = {"step_id": found.step_id, "request": json.loads(found.request), "response": json.loads(found.response)}
    if context.obj.as_json:
        print_json(whole)
    else:
        typer.echo(json.dumps(whole, indent=2, ensure_ascii=False))


@app.command("logs")
@with_client
async def logs(
    mnemesh: Mnemesh,
    context: typer.Context,
    run_id: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for the events of an active run.")] = False,
) -> int:
    """Print the events of a run. Exits with 1 if the run failed."""
    found, failed = await mnemesh.runs.get(run_id), False
    active = found.status in (runs_pb2.RUN_STATUS_CREATED, runs_pb2.RUN_STATUS_RUNNING)
    if found.last_sequence == 0 and active and not follow:
        return 0
    renderer = LiveRenderer(output())
    async for event in mnemesh.runs.stream(run_id):
        failed = failed or event.HasField("error")
        if context.obj.as_json:
            print_json(event)
        else:
            renderer.show(event)
        if active and not follow and event.sequence >= found.last_sequence:
            break
    return int(failed)
