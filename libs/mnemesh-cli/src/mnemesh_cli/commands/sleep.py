"""`mnemesh sleep`: starts the partners of an agent now, and shows what they wrote to its memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import typer
from mnemesh.agents.v1 import groups_service_pb2, runs_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh_cli.commands.resources import with_client
from mnemesh_cli.display.error_text import error_text
from mnemesh_cli.display.records import as_dict, print_done, print_json
from mnemesh_cli.display.terminal import is_json, notice, output, print_error
from mnemesh_cli.display.views import AgentNames
from mnemesh_cli.options import AgentArgument
from mnemesh_client.errors import FailedPrecondition, RunFailed
from mnemesh_client.mnemesh import Mnemesh
from rich.text import Text

_PATIENCE_SECONDS = 5.0
_NOTHING_NEW = "There are no new messages: the partners have seen everything."


@with_client
async def sleep(
    mnemesh: Mnemesh,
    key: AgentArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the transcript and the requests. Start and change nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the runs and show their edits.")] = True,
) -> int:
    """Consolidate the memory of an agent now: its partners process all messages that they have not seen.

    Prints the edits of each block, with the partner that made them.
    """
    agent = await mnemesh.agents.find(key)
    if await agent.sleeptime_group() is None:
        advice = f"Create one with `mnemesh agents update {agent.id} --sleeptime`."
        raise FailedPrecondition(f"{agent.name} has no sleeptime partner. {advice}", resource_id=agent.id)
    if dry_run:
        await _print_preview(mnemesh, await agent.preview_sleep())
        return 0
    runs = await agent.sleep()
    if not runs:
        notice(_NOTHING_NEW)
    elif not wait:
        for run in runs:
            print_done(run.id, run)
    else:
        return await _show_runs(mnemesh, runs)
    return 0


async def _show_runs(mnemesh: Mnemesh, runs: Sequence[runs_pb2.Run]) -> int:
    """Waits for runs and prints what each one wrote. Returns 1 if any failed, else 0."""
    names, failed = AgentNames(mnemesh), False
    for run in await _wait_for_ends(mnemesh, runs):
        edits = [edit async for edit in _edits(mnemesh, run)]
        if is_json.get():
            print_json(run, edits=[as_dict(edit) for edit in edits])
        else:
            _print_run(await names.name(run.agent_id), run, edits)
        if run.status != runs_pb2.RUN_STATUS_COMPLETED:
            failed = True
            print_error(error_text(RunFailed(run.id, run.error)))
    return int(failed)


def _print_run(name: str, run: runs_pb2.Run, edits: Sequence[blocks_pb2.BlockRevision]) -> None:
    console, label = output(), None
    steps = "1 step" if run.step_count == 1 else f"{run.step_count} steps"
    console.print(Text(f"{name}: ", style="bold cyan"), Text(f"{_status(run)} after {steps}"), sep="")
    for revision in edits:
        if revision.label != label:
            label = revision.label
            console.print(Text(f"✎ memory [{label}]", style="bold magenta"))
        for line in revision.diff.splitlines():
            if line[:1] in ("+", "-") and line[:3] not in ("+++", "---"):
                console.print(Text(f"  {line[0]} {line[1:]}", style="green" if line[0] == "+" else "red"))
    if not edits:
        console.print(Text("  no edits of memory", style="dim"))


async def _wait_for_ends(mnemesh: Mnemesh, runs: Sequence[runs_pb2.Run]) -> list[runs_pb2.Run]:
    """Waits for the end of runs, and returns them with those that processed what they had no space for."""

    async def follow() -> list[runs_pb2.Run]:
        return [ended for run in runs async for ended in mnemesh.sleeptime.follow(run.id)]

    waiting = asyncio.ensure_future(follow())
    if not (await asyncio.wait((waiting,), timeout=_PATIENCE_SECONDS))[0]:
        notice(
            "waiting for the partners. Ctrl-C ends only the wait; MNEMESH_SLEEPTIME_RUNS limits how many run at once."
        )
    return await waiting


async def _edits(mnemesh: Mnemesh, run: runs_pb2.Run) -> AsyncIterator[blocks_pb2.BlockRevision]:
    """Yields the revisions that a run made of the agent's blocks, block by block, oldest first."""
    for block in (await mnemesh.blocks.core_memory(run.agent_id)).blocks:
        made = []
        async for revision in mnemesh.blocks.revisions(block.id):
            if revision.create_time.ToDatetime() < run.create_time.ToDatetime():
                break
            if revision.author.agent.run_id == run.id:
                made.append(revision)
        for revision in reversed(made):
            yield revision


async def _print_preview(mnemesh: Mnemesh, preview: groups_service_pb2.PreviewSleeptimeRunsResponse) -> None:
    if is_json.get():
        print_json(preview)
        return
    if not preview.message_count:
        notice(_NOTHING_NEW)
        return
    names, console = AgentNames(mnemesh), output()
    count = "1 message" if preview.message_count == 1 else f"{preview.message_count} messages"
    console.print(Text(f"transcript of {count}:", style="bold"))
    console.print(Text(preview.transcript))
    for each in preview.previews:
        console.print(Text(f"request for {await names.name(each.agent_id)}:", style="bold"))
        console.print(Text(json.dumps(json.loads(each.request), indent=2, ensure_ascii=False)))


def _status(run: runs_pb2.Run) -> str:
    return runs_pb2.RunStatus.Name(run.status).removeprefix("RUN_STATUS_").lower()
