"""`mnemesh conversations`: list, show, create, fork, compact, cancel, delete."""

from typing import Annotated

import typer
from mnemesh.agents.v1 import conversations_pb2, conversations_service_pb2, runs_service_pb2
from mnemesh_cli.commands.resources import Resource, id_column, resource_app, text_column, time_column, with_client
from mnemesh_cli.display.records import print_done, print_record
from mnemesh_cli.options import AgentArgument, ModelOption, completer
from mnemesh_client.mnemesh import Mnemesh


async def _find(mnemesh: Mnemesh, key: str) -> conversations_pb2.Conversation:
    request = conversations_service_pb2.GetConversationRequest(conversation_id=key)
    return (await mnemesh.conversations.stub.GetConversation(request)).conversation


async def _delete(mnemesh: Mnemesh, conversation: conversations_pb2.Conversation) -> None:
    request = conversations_service_pb2.DeleteConversationRequest(conversation_id=conversation.id)
    await mnemesh.conversations.stub.DeleteConversation(request)


CONVERSATIONS = Resource(
    noun="conversation",
    columns=(
        id_column(),
        time_column("last_message_time", "LAST MESSAGE"),
        text_column("SUMMARY", lambda row: "default" if row.is_default and not row.summary else row.summary),
    ),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.conversations.list(agent_id=agent_id, limit=limit),
    find=_find,
    delete=_delete,
    consequence=" (its messages stay searchable)",
    of_agent=True,
)
app = resource_app(CONVERSATIONS, "Create, list, show, fork, compact, cancel and delete conversations.")

ConversationArgument = Annotated[
    str,
    typer.Argument(metavar="CONVERSATION", help="Id of the conversation.", autocompletion=completer("conversation")),
]
SummaryOption = Annotated[str | None, typer.Option(help="Its title.")]


@app.command("create")
@with_client
async def create(
    mnemesh: Mnemesh,
    context: typer.Context,
    agent: AgentArgument,
    summary: SummaryOption = None,
    model: ModelOption = None,
) -> None:
    """Create a conversation of an agent and print its id. `mnemesh chat --conversation` continues it."""
    agent_id = (await mnemesh.agents.find(agent)).id
    conversation = conversations_pb2.Conversation(agent_id=agent_id, summary=summary, model=model)
    created = await mnemesh.conversations.create(conversation)
    print_done(created.id, created, as_json=context.obj.as_json)


@app.command("fork")
@with_client
async def fork(
    mnemesh: Mnemesh,
    context: typer.Context,
    conversation: ConversationArgument,
    until: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="Id of the last message to share.", show_default="the newest")
    ] = None,
    summary: SummaryOption = None,
) -> None:
    """Create a conversation that begins with the messages of another one, and print its id."""
    request = conversations_service_pb2.ForkConversationRequest(
        conversation_id=conversation, until_message_id=until, summary=summary
    )
    created = (await mnemesh.conversations.stub.ForkConversation(request)).conversation
    print_done(created.id, created, as_json=context.obj.as_json)


@app.command("compact")
@with_client
async def compact(
    mnemesh: Mnemesh,
    context: typer.Context,
    conversation: ConversationArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the summary and the sizes; change nothing.")] = False,
) -> None:
    """Replace the older part of a conversation's context window with a summary."""
    found = await _find(mnemesh, conversation)
    agent = await mnemesh.agents.get(found.agent_id)
    result = await agent.compact(conversation_id=found.id, dry_run=dry_run)
    print_record(result, as_json=context.obj.as_json)


@app.command("cancel")
@with_client
async def cancel(mnemesh: Mnemesh, context: typer.Context, conversation: ConversationArgument) -> None:
    """Cancel the active and queued runs of a conversation."""
    outcomes = await mnemesh.runs.cancel(conversation_id=conversation)
    names = {run_id: runs_service_pb2.CancelOutcome.Name(value) for run_id, value in outcomes.items()}
    text = "\n".join(f"cancelled {run_id}" for run_id in names) or "no run is active"
    print_done(text, names, as_json=context.obj.as_json)
