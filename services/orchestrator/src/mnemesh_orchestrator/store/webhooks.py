"""Webhooks, and lists of their deliveries."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import FailedPrecondition, NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.secret_variables import Resealing
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.pages import paginate
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.webhooks import MOST_WEBHOOKS, TEST, Webhook, WebhookDelivery, payload
from mnemesh_orchestrator.store.callbacks import ENCODE, end_deliveries, insert_delivery, write_webhook
from mnemesh_orchestrator.store.tables import callbacks, request_ledger, webhooks

_WEBHOOK: Final = msgspec.json.Decoder(Webhook)
_c = webhooks.c


class WebhookStore:
    """The webhooks of organizations. `CallbackStore` has their deliveries."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(database, request_ledger, clock)

    async def create(self, key: RequestKey | None, webhook: Webhook) -> Webhook:
        """Stores a webhook and returns it; for a repeat, the first one.

        Raises:
            FailedPrecondition: The organization has too many webhooks.
        """
        organization_id = webhook.organization_id

        def effect(conn: sa.Connection) -> Sequence[str]:
            count = sa.select(sa.func.count()).select_from(webhooks).where(_c.organization_id == organization_id)
            if conn.execute(count).scalar_one() >= MOST_WEBHOOKS:
                raise FailedPrecondition(f"The organization has {MOST_WEBHOOKS} webhooks. Delete one first.")
            row = {"id": webhook.id, "organization_id": organization_id, "created_at": webhook.created_at}
            conn.execute(
                webhooks.insert().values({**row, "enabled": not webhook.disabled, "document": ENCODE(webhook)})
            )
            return [webhook.id]

        return await self._ledger.write_and_read(key, effect, lambda conn, ids: _find(conn, organization_id, ids[0]))

    async def get(self, organization_id: str, webhook_id: str) -> Webhook:
        """Returns a webhook. Raises NotFound."""
        return await self._database.read(lambda conn: _find(conn, organization_id, webhook_id))

    async def list(self, organization_id: str, page: PageQuery) -> Page[Webhook]:
        """Returns a page of webhooks ordered by creation."""
        scope = _c.organization_id == organization_id
        query = sa.select(webhooks).where(scope)

        def read(conn: sa.Connection) -> Page[Webhook]:
            found = paginate(conn, query, page, key=_c.created_at, id=_c.id, scope=scope)
            return found.map(lambda row: _WEBHOOK.decode(row.document))

        return await self._database.read(read)

    async def update(
        self, key: RequestKey | None, organization_id: str, webhook_id: str, change: Callable[[Webhook], Webhook]
    ) -> Webhook:
        """Applies a pure function to a webhook, stores the result, and returns it. Raises NotFound.

        The deliveries of one that is disabled end.
        """

        def effect(conn: sa.Connection) -> Sequence[str]:
            changed = change(_find(conn, organization_id, webhook_id))
            write_webhook(conn, changed)
            if changed.disabled:
                end_deliveries(conn, webhook_id)
            return [webhook_id]

        return await self._ledger.write_and_read(key, effect, lambda conn, _: _find(conn, organization_id, webhook_id))

    async def delete(self, key: RequestKey | None, organization_id: str, webhook_id: str) -> None:
        """Deletes a webhook and its deliveries. A missing one is not an error."""
        deletion = webhooks.delete().where(_c.organization_id == organization_id, _c.id == webhook_id)

        def effect(conn: sa.Connection) -> Sequence[str]:
            conn.execute(deletion)
            return ()

        await self._ledger.write_once(key, effect)

    async def test(
        self, key: RequestKey | None, organization_id: str, webhook_id: str, test_id: str
    ) -> WebhookDelivery:
        """Stores a test event for a webhook, and returns its delivery. Raises NotFound."""

        def effect(conn: sa.Connection) -> Sequence[str]:
            webhook, now = _find(conn, organization_id, webhook_id), self._clock.now()
            return [insert_delivery(conn, webhook, TEST, test_id, now, payload(TEST, now, {"webhook_id": webhook_id}))]

        def read(conn: sa.Connection, ids: tuple[str, ...]) -> WebhookDelivery:
            row = conn.execute(sa.select(callbacks).where(callbacks.c.target_id == ids[0])).first()
            if row is None:
                raise NotFound("The delivery was deleted.", resource_id=ids[0])
            return _delivery(row)

        return await self._ledger.write_and_read(key, effect, read)

    async def list_deliveries(self, organization_id: str, webhook_id: str, page: PageQuery) -> Page[WebhookDelivery]:
        """Returns a page of the deliveries of a webhook ordered by creation. Raises NotFound."""
        scope = callbacks.c.webhook_id == webhook_id
        query = sa.select(callbacks).where(scope)

        def read(conn: sa.Connection) -> Page[WebhookDelivery]:
            _find(conn, organization_id, webhook_id)
            key = callbacks.c.created_at
            return paginate(conn, query, page, key=key, id=callbacks.c.target_id, scope=scope).map(_delivery)

        return await self._database.read(read)


def _find(conn: sa.Connection, organization_id: str, webhook_id: str) -> Webhook:
    query = sa.select(_c.document).where(_c.organization_id == organization_id, _c.id == webhook_id)
    document: Any = conn.execute(query).scalar()
    if document is None:
        raise NotFound(f"There is no webhook {webhook_id}.", resource_id=webhook_id)
    return _WEBHOOK.decode(document)


def _delivery(row: Any) -> WebhookDelivery:
    times = {"due_at": row.due_at, "sent_at": row.sent_at, "status": row.status, "error": row.error}
    return WebhookDelivery(
        row.target_id, row.webhook_id, row.event, row.body.decode(), row.created_at, row.attempts, **times
    )


def reseal_webhooks(conn: sa.Connection, secret: Callable[[Webhook], Webhook], report: Resealing) -> Resealing:
    """Writes the secrets of all webhooks as `secret` returns them, and adds to a report."""
    for document in conn.execute(sa.select(_c.document)).scalars().all():
        webhook = _WEBHOOK.decode(document)
        with report.of_record():
            sealed = secret(webhook)
            if sealed != webhook:
                write_webhook(conn, sealed)
                report.records += 1
    return report
