"""`mnemesh memory audit`: reports problems of what agents remember, and applies what it suggests."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

import typer
from mnemesh_cli.connection import Connection, choose_agent
from mnemesh_cli.display.error_text import plain_message
from mnemesh_cli.display.records import print_done, print_json
from mnemesh_cli.display.terminal import notice, output
from mnemesh_cli.options import OptionalAgentArgument, YesOption
from mnemesh_client.memory_audit import AuditFinding, apply_finding, audit_memory
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument, NotFound
from rich.text import Text


def audit(
    context: typer.Context,
    agent: OptionalAgentArgument = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Examine the whole organization, and look for what has no owner.")
    ] = False,
    stale_days: Annotated[
        int, typer.Option(min=1, max=36_500, help="Days after which an unconfirmed fact is stale.")
    ] = 365,
    apply: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Do what the finding suggests. May be repeated.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Report duplicates, contradictions, stale facts, secrets and orphans. Changes nothing without --apply."""
    if everything and agent is not None:
        raise typer.BadParameter("name an agent or use --all, not both")
    asyncio.run(
        _audit(
            context.obj,
            agent,
            apply or [],
            everything=everything,
            as_json=context.obj.as_json,
            days=stale_days,
            yes=yes,
        )
    )


async def _audit(
    connection: Connection,
    key: str | None,
    wanted: list[str],
    *,
    everything: bool,
    as_json: bool,
    days: int,
    yes: bool,
) -> None:
    async with connection.open() as mnemesh:
        agent = None if everything else await choose_agent(mnemesh, key)
        findings = [finding async for finding in audit_memory(mnemesh, agent, stale_days=days)]
        if not wanted:
            _print_all(findings, as_json=as_json)
            return
        by_id = {finding.id: finding for finding in findings}
        failed = [
            id_
            for id_ in dict.fromkeys(wanted)
            if not await _apply(mnemesh, id_, by_id.get(id_), yes=yes, as_json=as_json)
        ]
    if failed:
        raise typer.Exit(1)


async def _apply(mnemesh: Mnemesh, finding_id: str, finding: AuditFinding | None, *, yes: bool, as_json: bool) -> bool:
    """Applies a finding, and returns whether nothing failed. Others are applied in any case."""
    if finding is None:
        notice(f"there is no finding {finding_id} now: it was applied, or does not exist")
        return True
    if not yes:
        if not as_json:
            _print(finding)
        typer.confirm(f"{finding.action} this {finding.resource}?", abort=True, err=True)
    try:
        await apply_finding(mnemesh, finding)
    except (FailedPrecondition, InvalidArgument, NotFound) as error:
        notice(f"{finding.id} was not applied: {plain_message(error)} Run the audit again.")
        return False
    print_done(f"{finding.action}: {finding.id}", {"applied": finding.id, "action": finding.action}, as_json=as_json)
    return True


def _print_all(findings: list[AuditFinding], *, as_json: bool) -> None:
    if as_json:
        for finding in findings:
            print_json(finding.as_json())
        return
    for finding in findings:
        _print(finding)
    counts = Counter(finding.kind for finding in findings)
    summary = ", ".join(f"{count} {kind.replace('_', '-')}" for kind, count in sorted(counts.items()))
    output().print(summary or "no findings", style="dim")


def _print(finding: AuditFinding) -> None:
    console = output()
    kind = finding.kind.replace("_", "-")
    console.print(Text(finding.id, style="cyan"), Text(kind, style="bold"), Text(f"{finding.action}: {finding.detail}"))
    for id_, text in zip(finding.ids, finding.texts, strict=True):
        kept = " (stays)" if id_ == finding.kept_id else ""
        console.print(Text(f"  {id_}{kept}: {' '.join(text.split())}"))
