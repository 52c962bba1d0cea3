"""`mnemesh conversations`, `mnemesh messages`, and `mnemesh search`, which searches messages and passages."""

import json
from contextlib import nullcontext
from typing import Annotated

import typer
from mnemesh.agents.v1 import conversations_pb2, conversations_service_pb2, runs_pb2, runs_service_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.chat.render import LiveRenderer, PlainRenderer
from mnemesh_cli.commands.resources import (
    Resource,
    agent_column,
    id_column,
    of_hits,
    resource_app,
    text_column,
    time_column,
    with_client,
)
from mnemesh_cli.connection import choose_agent
from mnemesh_cli.display.records import Column, print_done, print_json, print_list, print_record
from mnemesh_cli.display.terminal import is_json, output
from mnemesh_cli.display.views import Scope, SearchRequest, find, hit_as_dict, message_text, print_found, role_name
from mnemesh_cli.options import AgentArgument, LimitOption, ModelOption, OfAgentOption, completer, text_or_stdin
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import NotFound


async def _find_conversation(mnemesh: Mnemesh, key: str) -> conversations_pb2.Conversation:
    request = conversations_service_pb2.GetConversationRequest(conversation_id=key)
    return (await mnemesh.conversations.stub.GetConversation(request)).conversation


async def _delete_conversation(mnemesh: Mnemesh, conversation: conversations_pb2.Conversation) -> None:
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
    find=_find_conversation,
    delete=_delete_conversation,
    consequence=" (its messages stay searchable)",
    of_agent=True,
)
conversations_app = resource_app(CONVERSATIONS, "Create, list, show, fork, compact, cancel and delete conversations.")

ConversationArgument = Annotated[
    str,
    typer.Argument(metavar="CONVERSATION", help="Id of the conversation.", autocompletion=completer("conversation")),
]
SummaryOption = Annotated[str | None, typer.Option(help="Its title.")]


@conversations_app.command("create")
@with_client
async def create(
    mnemesh: Mnemesh, agent: AgentArgument, summary: SummaryOption = None, model: ModelOption = None
) -> None:
    """Create a conversation of an agent and print its id. `mnemesh chat --conversation` continues it."""
    agent_id = (await mnemesh.agents.find(agent)).id
    conversation = conversations_pb2.Conversation(agent_id=agent_id, summary=summary, model=model)
    created = await mnemesh.conversations.create(conversation)
    print_done(created.id, created)


@conversations_app.command("fork")
@with_client
async def fork(
    mnemesh: Mnemesh,
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
    print_done(created.id, created)


@conversations_app.command("compact")
@with_client
async def compact(
    mnemesh: Mnemesh,
    conversation: ConversationArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the summary and the sizes; change nothing.")] = False,
) -> None:
    """Replace the older part of a conversation's context window with a summary."""
    found = await _find_conversation(mnemesh, conversation)
    agent = await mnemesh.agents.get(found.agent_id)
    result = await agent.compact(conversation_id=found.id, dry_run=dry_run)
    print_record(result)


@conversations_app.command("cancel")
@with_client
async def cancel(mnemesh: Mnemesh, conversation: ConversationArgument) -> None:
    """Cancel the active and queued runs of a conversation."""
    outcomes = await mnemesh.runs.cancel(conversation_id=conversation)
    names = {run_id: runs_service_pb2.CancelOutcome.Name(value) for run_id, value in outcomes.items()}
    text = "\n".join(f"cancelled {run_id}" for run_id in names) or "no run is active"
    print_done(text, names)


async def _find(mnemesh: Mnemesh, key: str) -> message_pb2.Message:
    found = await mnemesh.messages.get(key)
    if not found:
        raise NotFound(f"There is no message {key}.", resource_id=key)
    return found[0]


async def _delete(mnemesh: Mnemesh, message: message_pb2.Message) -> None:
    await mnemesh.messages.stub.DeleteMessage(messages_service_pb2.DeleteMessageRequest(message_id=message.id))


MESSAGES = Resource(
    noun="message",
    columns=(id_column(), time_column(title="TIME"), Column("ROLE", role_name), text_column("TEXT", message_text)),
    list_all=lambda mnemesh, agent_id, limit: mnemesh.messages.list(agent_id=agent_id, order="desc", limit=limit),
    find=_find,
    delete=_delete,
    of_agent=True,
)
app = resource_app(MESSAGES, "List, search, show, send and delete messages.")
_HITS = of_hits("message", MESSAGES.columns)


@app.command("search")
@with_client
async def search_messages(
    mnemesh: Mnemesh,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words or a question.")],
    agent: OfAgentOption = None,
    limit: LimitOption = 10,
) -> None:
    """Search messages by words and meaning, best first. `mnemesh search` also searches passages."""
    agent_id = None if agent is None else (await mnemesh.agents.find(agent)).id
    hits = await mnemesh.messages.search(query, agent_id=agent_id, limit=min(limit, 100))
    columns = _HITS
    if agent is None and not is_json.get():
        found = await agent_column(mnemesh, [hit.message for hit in hits])
        columns = (*_HITS[:2], *of_hits("message", [found])[1:], *_HITS[2:])
    await print_list(hits, columns, empty="No message matches.")


@app.command("send")
@with_client
async def send(
    mnemesh: Mnemesh,
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads stdin.")],
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", "-c", help="Id of a conversation.", autocompletion=completer("conversation")),
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Print the id of the run, and do not wait for the answer.")
    ] = False,
) -> int:
    """Send a message to an agent and print the answer; with --json each event. Exits with 1 if the turn fails."""
    content = text_or_stdin(text)
    found = await choose_agent(mnemesh, agent)
    if background:
        started = await mnemesh.runs.start(found.id, content, conversation_id=conversation)
        print_done(started.id, started)
        return 0
    console = output()
    renderer = LiveRenderer(console) if console.is_terminal else PlainRenderer(console)
    failed = False
    with nullcontext() if is_json.get() else renderer.begin_turn():
        events = found.send(content, conversation_id=conversation, stream_tokens=console.is_terminal)
        async for event in events:
            failed = failed or _failed(event)
            if is_json.get():
                print_json(event)
            else:
                renderer.show(event)
    return int(failed)


def _failed(event: runs_pb2.RunEvent) -> bool:
    return event.HasField("error")


@with_client
async def search(
    mnemesh: Mnemesh,
    queries: Annotated[
        list[str],
        typer.Argument(metavar="QUERY...", help="Words or a question; several count as other wordings of it."),
    ],
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Id or name of the agent.", show_default="the first agent")
    ] = None,
    scope: Annotated[Scope, typer.Option("--in", help="Memory to search.")] = Scope.ALL,
    speaker: Annotated[
        list[str] | None, typer.Option(help="Only messages of this name; repeat it for several.", show_default="all")
    ] = None,
    before: Annotated[int, typer.Option(min=0, max=10, help="Messages or passages to show before each result.")] = 0,
    after: Annotated[int, typer.Option(min=0, max=10, help="Messages or passages to show after each result.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results of each kind.")] = 5,
) -> None:
    """Search the messages and archived passages of an agent.

    An expression of time in a query, such as "last week", prefers results of that time, in the agent's time zone.
    """
    if speaker and scope is Scope.PASSAGES:
        raise typer.BadParameter("Passages have no speakers.", param_hint="--speaker")
    asked = SearchRequest(queries, speaker or [], scope, before, after, limit)
    chosen = await choose_agent(mnemesh, agent)
    found = [hits async for hits in find(chosen, asked)]
    if is_json.get():
        for kind, hits in found:
            for hit in hits:
                typer.echo(json.dumps({"kind": kind, **hit_as_dict(hit)}, ensure_ascii=False))
        return
    print_found(chosen, found)
