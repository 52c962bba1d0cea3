"""`mnemesh approvals`: list, answer."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import typer
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.chat.render import PlainRenderer
from mnemesh_cli.commands.resources import text_column, with_client
from mnemesh_cli.display.records import Column, Kind, as_dict, print_json, print_list
from mnemesh_cli.display.terminal import output
from mnemesh_cli.options import AgentArgument, LimitOption, OfAgentOption, text_or_stdin
from mnemesh_client.inputs import approve, deny, returned
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import InvalidArgument, NotFound

app = typer.Typer(no_args_is_help=True, help="List and answer tool calls that wait for an approval.")

_COLUMNS = (
    text_column("AGENT", lambda row: row["agent_name"]),
    Column("CALL", lambda row: row["tool_call"]["id"], kind=Kind.ID),
    text_column("TOOL", lambda row: row["tool_call"]["name"]),
    text_column("ARGUMENTS", lambda row: row["tool_call"].get("arguments", "")),
)


@app.command("list")
@with_client
async def list_approvals(
    mnemesh: Mnemesh, context: typer.Context, agent: OfAgentOption = None, limit: LimitOption = 100
) -> None:
    """List the tool calls that wait for an approval."""
    rows = [row async for row in _list_pending(mnemesh, agent)][:limit]
    await print_list(rows, _COLUMNS, as_json=context.obj.as_json, empty="No tool call waits for an approval.")


@app.command("answer")
@with_client
async def answer(
    mnemesh: Mnemesh,
    context: typer.Context,
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
        if context.obj.as_json:
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
