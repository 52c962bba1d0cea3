"""Webhooks: each event is told once however a process ends, and secrets stay sealed."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.secret_variables import Resealing, SecretBox
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.runs import RunFilter
from mnemesh_orchestrator.model.webhooks import Webhook, WebhookCall
from mnemesh_orchestrator.store.tables import webhooks
from mnemesh_orchestrator.store.webhooks import reseal_webhooks
from mnemesh_orchestrator.usecases.webhooks import WebhookSecrets

from ..support.faults import Crash, Faults
from ..support.model import call, say
from ..support.world import ME, Process, World, crashed

URL = "https://hooks.example/events"


def a_draft(world: World, **fields: Any) -> Webhook:
    now = world.clock.now()
    return replace(Webhook("", "", "", URL, now, now), **fields)


def remember(request: LlmRequest) -> LlmAnswer:
    """Edits memory, then answers."""
    if request.messages[-1].is_from_user:
        return call("memory_insert", label="human", new_str="Likes tea.")
    return say("Noted.")


async def told(process: Process) -> list[tuple[str, str]]:
    """Claims what is due. Returns the types of the events, and the runs that they are about."""
    claimed = [each for _, each in await process.orchestrator.callbacks.claim(100)]
    bodies = [json.loads(each.body) for each in claimed if isinstance(each, WebhookCall)]
    return sorted((body["type"], body["data"]["run_id"]) for body in bodies)


async def test_a_crash_at_any_point_of_a_turn_neither_loses_nor_doubles_an_event(world: World) -> None:
    setup, point = world.process(), 0
    await setup.orchestrator.webhooks.create(ME, None, a_draft(world))
    while True:
        agent = await world.agent(setup)
        world.model.script = remember
        world.faults = Faults()
        world.faults.crashes_at = point
        dying = world.process()
        with suppress(Crash):
            await dying.send(agent, "I like tea.")
        await crashed(dying)
        has_crashed, world.faults = world.faults.has_crashed, Faults()
        living = world.process()
        await living.recover()
        ended = await living.runs.list(ME, RunFilter(agent_ids=(agent.id,)), PageQuery(10, ascending=True))
        for each in ended.items:  # none, if the process crashed before it had stored the run
            assert await told(living) == [("memory.changed", each.id), ("run.completed", each.id)], point
        await living.worker.stop()
        if not has_crashed:
            return
        point += 1


async def test_a_secret_is_shown_to_its_creator_only(world: World, process: Process, tmp_path: Path) -> None:
    service, key = process.orchestrator.webhooks, RequestKey(ME.organization_id, "CreateWebhook", new_id("r"), "f")
    webhook, secret = await service.create(ME, key, a_draft(world))
    assert await service.create(ME, key, a_draft(world)) == (webhook, secret), "a lost answer does not lose it"
    assert secret not in repr(await service.get(ME, webhook.id))
    document = await world.database.read(lambda conn: conn.execute(sa.select(webhooks.c.document)).scalar_one())
    assert secret.encode() not in document

    # The operator puts a new key before the one that the secret is sealed with.
    keys = tmp_path / "new.key"
    keys.write_text("n" * 40 + "\n" + (tmp_path / "secrets.key").read_text())
    rotated = WebhookSecrets(SecretBox(str(keys)), world.clock)
    report = await world.database.write(lambda conn: reseal_webhooks(conn, rotated.resealed, Resealing()))
    keys.write_text("n" * 40 + "\n")
    resealed = await service.get(ME, webhook.id)
    assert (report.records, report.unreadable) == (1, 0)
    assert WebhookSecrets(SecretBox(str(keys)), world.clock).open(resealed) == secret


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]", "192.168.1.1"),
        *("2130706433", "127.1", "127.0.0.1.", "0"),
    ],
)
async def test_a_private_address_is_refused_unless_it_is_allowed(world: World, process: Process, host: str) -> None:
    guarded = replace(process.orchestrator.webhooks, public_only=True)
    for call_ in (
        guarded.create(ME, None, a_draft(world, url=f"http://{host}/x")),
        guarded.update(ME, None, (await guarded.create(ME, None, a_draft(world)))[0].id, {"url": f"http://{host}/x"}),
    ):
        with pytest.raises(InvalidArgument, match="not public") as refused:
            await call_
        assert refused.value.field == "webhook.url"
    allowed = replace(process.orchestrator.webhooks, hosts={host.strip("[]")})
    assert (await allowed.create(ME, None, a_draft(world, url=f"http://{host}/x")))[1]
    with pytest.raises(InvalidArgument, match="MNEMESH_CALLBACK_HOSTS"):
        await allowed.create(ME, None, a_draft(world))


@pytest.mark.parametrize("url", ["", "ftp://hooks.example", "https://user:word@hooks.example", "https://", "x" * 2_001])
async def test_a_url_that_cannot_be_called_is_refused(world: World, process: Process, url: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await process.orchestrator.webhooks.create(ME, None, a_draft(world, url=url))
    assert refused.value.field == "webhook.url"
