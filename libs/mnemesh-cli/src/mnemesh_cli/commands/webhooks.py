"""`mnemesh webhooks`: list, create, show, enable, disable, test, deliveries, delete."""

from typing import Annotated, Any, Final

import typer
from mnemesh.agents.v1 import webhooks_pb2
from mnemesh_cli.commands.resources import Resource, id_column, resource_app, text_column, time_column, with_client
from mnemesh_cli.display.records import Column, print_done, print_list
from mnemesh_cli.display.terminal import notice
from mnemesh_cli.options import LimitOption, completer
from mnemesh_client.mnemesh import Mnemesh

_PREFIX: Final = "WEBHOOK_EVENT_"


def _events(row: Any) -> str:
    names = [webhooks_pb2.WebhookEvent.Name(event).removeprefix(_PREFIX).lower() for event in row.events]
    return ", ".join(name.replace("_", ".") for name in names) or "all"


def _state(row: Any) -> str:
    if row.disabled:
        return row.disabled_reason or "disabled"
    return "failing" if row.HasField("failing_since_time") else "enabled"


WEBHOOKS = Resource(
    noun="webhook",
    columns=(
        id_column(),
        text_column("URL", lambda row: row.url),
        text_column("EVENTS", _events),
        text_column("STATE", _state),
        time_column(),
    ),
    list_all=lambda mnemesh, _agent_id, limit: mnemesh.webhooks.list(limit=limit),
    find=lambda mnemesh, key: mnemesh.webhooks.get(key),
    delete=lambda mnemesh, webhook: mnemesh.webhooks.delete(webhook.id),
    consequence=" and its deliveries",
    create="mnemesh webhooks create URL",
)
app = resource_app(WEBHOOKS, "Call URLs when runs end, wait for approvals, or change memory.")
WebhookArgument = Annotated[
    str, typer.Argument(metavar="WEBHOOK", help="Id of the webhook.", autocompletion=completer("webhook"))
]
_DELIVERIES: Final = (
    id_column(),
    text_column("EVENT", lambda row: row.event),
    Column("ATTEMPTS", lambda row: str(row.attempts), right=True),
    Column("STATUS", lambda row: str(row.status) if row.HasField("status") else ""),
    time_column("due_time", "NEXT"),
    text_column("ERROR", lambda row: row.error),
    time_column(),
)


@app.command("create")
@with_client
async def create(
    mnemesh: Mnemesh,
    url: Annotated[str, typer.Argument(metavar="URL", help="An http or https URL.")],
    event: Annotated[
        list[str] | None, typer.Option(help="An event, such as run.failed. Repeat it for several; all by default.")
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent", "-a", help="Only events of this agent. Can be repeated.", autocompletion=completer("agent")
        ),
    ] = None,
) -> None:
    """Create a webhook. Prints its secret, which is shown only now."""
    known = [name.removeprefix(_PREFIX).lower().replace("_", ".") for name in webhooks_pb2.WebhookEvent.keys()[1:]]
    names: list[Any] = list(event or ())
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}.", param_hint="--event")
    agent_ids = [(await mnemesh.agents.find(each)).id for each in agent or ()]
    webhook, secret = await mnemesh.webhooks.create(url, events=names, agent_ids=agent_ids)
    notice(f"Created {webhook.id}. Its secret is shown only now:")
    print_done(secret, {"id": webhook.id, "secret": secret})


@app.command("enable")
@with_client
async def enable(mnemesh: Mnemesh, key: WebhookArgument) -> None:
    """Enable a webhook that is disabled."""
    print_done(f"enabled {key}", await mnemesh.webhooks.update(key, disabled=False))


@app.command("disable")
@with_client
async def disable(mnemesh: Mnemesh, key: WebhookArgument) -> None:
    """Disable a webhook. Its deliveries that are due end."""
    print_done(f"disabled {key}", await mnemesh.webhooks.update(key, disabled=True))


@app.command("test")
@with_client
async def test(mnemesh: Mnemesh, key: WebhookArgument) -> None:
    """Send a test event to a webhook. `deliveries` shows the result."""
    delivery = await mnemesh.webhooks.test(key)
    print_done(delivery.id, delivery)


@app.command("deliveries")
@with_client
async def deliveries(mnemesh: Mnemesh, key: WebhookArgument, limit: LimitOption = 100) -> None:
    """List the deliveries of a webhook with their results, newest first."""
    rows = mnemesh.webhooks.deliveries(key, limit=limit)
    await print_list(rows, _DELIVERIES, empty="The webhook has no deliveries.", limit=limit)
