"""`mnemesh chat`, and the chat of `mnemesh up --chat`."""

import asyncio
import signal
from typing import Annotated

import typer
from mnemesh_cli.chat.agent_chat import AgentConversation
from mnemesh_cli.chat.group_chat import GroupConversation
from mnemesh_cli.connection import Connection, choose_agent
from mnemesh_client.agent import Agent
from mnemesh_client.mnemesh import Mnemesh


def chat(
    context: typer.Context,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Id or name of the agent.", show_default="the first agent")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Id or description of a group, instead of an agent.")
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", "-c", help="Id of a conversation of the agent.", show_default="the default one"),
    ] = None,
) -> None:
    """Chat with an agent or a group.

    If stdin is not a terminal, each line is a message, and only the replies are printed. The replies of a group begin
    with the name of the speaker. With --json, each line is a message too, and each event of the turns is printed.
    """
    if agent is not None and group is not None:
        raise typer.BadParameter("use only one of --agent and --group")
    if group is not None and conversation is not None:
        raise typer.BadParameter("use only one of --conversation and --group")
    try:
        code = asyncio.run(_chat(context.obj, agent, group, conversation))
    except (KeyboardInterrupt, asyncio.CancelledError):
        code = 0
    raise typer.Exit(code)


async def _chat(connection: Connection, agent_key: str | None, group_key: str | None, conversation: str | None) -> int:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101  (a coroutine always runs in one)
    # A loop with any signal handler is woken by every signal. Without one, it would miss a Ctrl-C that arrives just
    # before it blocks.
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    async with connection.open() as mnemesh:
        if group_key is not None:
            group = await mnemesh.groups.find(group_key)
            if not group.is_sleeptime:
                return await GroupConversation(mnemesh, group).converse()
            agent_key = group.manager_agent_id  # It alone answers.
        agent = await choose_agent(mnemesh, agent_key)
        return await converse(mnemesh, agent, conversation)


async def converse(mnemesh: Mnemesh, agent: Agent, conversation_id: str | None = None) -> int:
    """Exchanges messages with an agent until the input ends. Returns the exit code; see `Conversation.converse`."""
    return await AgentConversation(mnemesh, agent, conversation_id).converse()
