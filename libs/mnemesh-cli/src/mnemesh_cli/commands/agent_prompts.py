"""`mnemesh agents recompile` and `preview`: what the model receives."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from mnemesh.agents.v1 import agents_service_pb2
from mnemesh_cli.commands.resources import run
from mnemesh_cli.completion import completer
from mnemesh_cli.display.records import print_done, print_json
from mnemesh_cli.options import AgentArgument, text_or_stdin
from mnemesh_client.inputs import input_messages
from mnemesh_client.mnemesh import Mnemesh

ConversationOption = Annotated[
    str | None,
    typer.Option("--conversation", "-c", help="Id of a conversation.", autocompletion=completer("conversation")),
]


def recompile(
    context: typer.Context,
    agent: AgentArgument,
    conversation: ConversationOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the system message; change nothing.")] = False,
) -> None:
    """Render the system message of an agent again, with its present memory and settings."""

    async def command(mnemesh: Mnemesh) -> None:
        request = agents_service_pb2.RecompileAgentRequest(
            agent_id=(await mnemesh.agents.find(agent)).id, conversation_id=conversation, dry_run=dry_run
        )
        done = await mnemesh.agents.stub.RecompileAgent(request)
        text = done.system_text if dry_run else "changed" if done.changed else "not changed"
        print_done(text, done, as_json=context.obj.as_json)

    run(context, command)


def preview(
    context: typer.Context,
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A message to send; - reads stdin.")] = "",
    conversation: ConversationOption = None,
) -> None:
    """Print the request that the model would receive, as JSON. Sends nothing."""
    content = text_or_stdin(text)

    async def command(mnemesh: Mnemesh) -> None:
        request = agents_service_pb2.PreviewRequestRequest(
            agent_id=(await mnemesh.agents.find(agent)).id,
            conversation_id=conversation,
            messages=input_messages(content) if content else (),
        )
        body = json.loads((await mnemesh.agents.stub.PreviewRequest(request)).request_body)
        if context.obj.as_json:
            print_json(body)
        else:
            typer.echo(json.dumps(body, indent=2, ensure_ascii=False))

    run(context, command)
