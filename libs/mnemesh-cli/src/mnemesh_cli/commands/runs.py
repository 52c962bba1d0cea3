"""`mnemesh runs` and `mnemesh approvals`: runs, and the calls of tools that wait in them."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import typer
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.chat.render import LiveRenderer, PlainRenderer, duration_text
from mnemesh_cli.commands.resources import (
    Resource,
    enum_text,
    id_column,
    resource_app,
    text_column,
    time_column,
    with_client,
)
from mnemesh_cli.display.records import Column, Kind, as_dict, print_done, print_json, print_list
from mnemesh_cli.display.terminal import is_json, output
from mnemesh_cli.options import AgentArgument, LimitOption, OfAgentOption, completer, text_or_stdin
from mnemesh_client.inputs import approve, deny, returned
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import InvalidArgument, NotFound


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
async def cancel(mnemesh: Mnemesh, run_id: RunArgument) -> None:
    """Cancel a run."""
    outcomes = await mnemesh.runs.cancel(run_id)
    names = {
        each: runs_service_pb2.CancelOutcome.Name(value).removeprefix("CANCEL_OUTCOME_").lower()
        for each, value in outcomes.items()
    }
    text = "\n".join(f"{each}: {name.replace('_', ' ')}" for each, name in names.items())
    print_done(text, names)


@app.command("retry")
@with_client
async def retry(mnemesh: Mnemesh, run_id: RunArgument) -> None:
    """Start a new run with the input of a failed one, and print its id. `mnemesh runs logs` follows it."""
    started = await mnemesh.runs.retry(run_id)
    print_done(started.id, started)


@app.command("trace")
@with_client
async def trace(
    mnemesh: Mnemesh,
    run_id: RunArgument,
    step: Annotated[
        int | None, typer.Option(min=1, help="Print what the model received and answered at this step, as JSON.")
    ] = None,
) -> None:
    """Show the steps of a run: model, tokens, time, attempts and errors."""
    steps = [each async for each in mnemesh.runs.steps(run_id)]
    if step is None:
        await print_list(steps, _STEPS, empty="The run has no steps.")
        return
    chosen = next((each for each in steps if each.number == step), None)
    if chosen is None:
        raise typer.BadParameter(f"The run has {len(steps)} steps.", param_hint="--step")
    found = await mnemesh.runs.trace(chosen.id)
    whole = {"step_id": found.step_id, "request": json.loads(found.request), "response": json.loads(found.response)}
    if is_json.get():
        print_json(whole)
    else:
        typer.echo(json.dumps(whole, indent=2, ensure_ascii=False))


@app.command("logs")
@with_client
async def logs(
    mnemesh: Mnemesh,
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
        if is_json.get():
            print_json(event)
        else:
            renderer.show(event)
        if active and not follow and event.sequence >= found.last_sequence:
            break
    return int(failed)


approvals_app = typer.Typer(no_args_is_help=True, help="List and answer tool calls that wait for an approval.")

_APPROVAL_COLUMNS = (
    text_column("AGENT", lambda row: row["agent_name"]),
    Column("CALL", lambda row: row["tool_call"]["id"], kind=Kind.ID),
    text_column("TOOL", lambda row: row["tool_call"]["name"]),
    text_column("ARGUMENTS", lambda row: row["tool_call"].get("arguments", "")),
)


@approvals_app.command("list")
@with_client
async def list_approvals(mnemesh: Mnemesh, agent: OfAgentOption = None, limit: LimitOption = 100) -> None:
    """List the tool calls that wait for an approval."""
    rows = [row async for row in _list_pending(mnemesh, agent)][:limit]
    await print_list(rows, _APPROVAL_COLUMNS, empty="No tool call waits for an approval.")


@approvals_app.command("answer")
@with_client
async def answer(
    mnemesh: Mnemesh,
    agent: AgentArgument,
    approved: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Whether the tools may run.", show_default=False)
    ] = None,
    result: Annotated[
        str | None,
        typer.Option("--return", help="The result of a call that you made yourself; - reads stdin.", metavar="TEXT"),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why they must not run; the model reads it.")] = None,
    call: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL",
            help="Only this call, by its id or the beginning of it; the others are denied. Can be repeated.",
        ),
    ] = None,
) -> int:
    """Answer the tool calls of an agent that wait, and print the rest of the turn."""
    if (approved is None) == (result is None):
        raise typer.BadParameter("use exactly one of --approve, --deny and --return")
    if reason is not None and approved is not False:
        raise typer.BadParameter("--reason belongs to --deny", param_hint="--reason")
    text = None if result is None else text_or_stdin(result)

    def decision(call_id: str, named: set[str]) -> message_pb2.ApprovalDecision:
        if named and call_id not in named:
            return deny(call_id, reason)
        if text is not None:
            return returned(call_id, text)
        return approve(call_id) if approved else deny(call_id, reason)

    found = await mnemesh.agents.find(agent)
    calls = [row["tool_call"]["id"] async for row in _list_pending(mnemesh, found.id)]
    if not calls:
        raise NotFound(f"No tool call of {found.name} waits for an approval.", resource_id=found.id)
    named = {_named(each, calls) for each in call or ()}
    renderer, failed = PlainRenderer(output()), False
    conversation = next(iter([row["conversation_id"] async for row in _list_pending(mnemesh, found.id)]))
    events = found.answer([decision(id_, named) for id_ in calls], conversation_id=conversation or None)
    async for event in events:
        failed = failed or event.HasField("error")
        if is_json.get():
            print_json(event)
        else:
            renderer.show(event)
    return int(failed)


def _named(key: str, calls: Sequence[str]) -> str:
    """Returns the call with an id, or with an id that begins so. Raises NotFound, or InvalidArgument if several do."""
    found = [key] if key in calls else [call for call in calls if call.startswith(key)]
    if not found:
        raise NotFound(f"The call {key} does not wait. `mnemesh approvals list` names those that do.")
    if len(found) > 1:
        raise InvalidArgument(f"Several calls begin with {key}: {', '.join(found)}.", field="call")
    return found[0]


async def _list_pending(mnemesh: Mnemesh, key: str | None) -> AsyncIterator[dict[str, Any]]:
    """Yields the calls that wait, of one agent or of all."""
    one = None if key is None else await mnemesh.agents.find(key)
    for agent in [agent async for agent in mnemesh.agents.list()] if one is None else [one]:
        if not agent.proto.HasField("pending_approval_request_id"):
            continue
        for message in await mnemesh.messages.get(agent.proto.pending_approval_request_id):
            for each in message.tool_calls:
                yield {
                    "agent_id": agent.id,
                    "agent_name": agent.name,
                    "approval_request_id": message.id,
                    "conversation_id": message.conversation_id,
                    "run_id": message.run_id,
                    "tool_call": as_dict(each),
                }
