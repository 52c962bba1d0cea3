"""Webhooks: their secrets, and the requests that tell them events."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.network import host_problem
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.secret_variables import SecretBox
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.webhooks import (
    ClaimedCallback,
    Webhook,
    WebhookCall,
    WebhookDelivery,
    new_secret,
    require_valid_webhook,
    signed,
)
from mnemesh_orchestrator.store.webhooks import WebhookStore


@dataclass(frozen=True, eq=False)
class WebhookSecrets:
    """Seals the secret of each webhook for that webhook, and signs with it."""

    box: SecretBox
    clock: Clock

    def seal(self, webhook: Webhook, secret: str) -> Webhook:
        """Returns a webhook with its secret. Raises SecretsKeyMissing."""
        return replace(webhook, secret=self.box.seal(secret, webhook.id))

    def open(self, webhook: Webhook) -> str:
        """Returns the secret of a webhook. Raises SecretUnreadable."""
        return self.box.open(webhook.secret, webhook.id)

    def resealed(self, webhook: Webhook) -> Webhook:
        """Returns a webhook with its secret encrypted with the first key. Raises SecretUnreadable."""
        return replace(webhook, secret=self.box.resealed(webhook.secret, webhook.id))

    def sign(self, callback: ClaimedCallback, webhook: Webhook) -> WebhookCall:
        """Returns the signed request of a delivery. Raises SecretUnreadable."""
        return signed(callback.target_id, callback.body, self.open(webhook), self.clock.now())


@dataclass(frozen=True, eq=False)
class WebhookService:
    """The webhooks of an organization, and their deliveries."""

    store: WebhookStore
    secrets: WebhookSecrets
    clock: Clock
    ids: IdSource
    hosts: Collection[str] = ()
    """The hosts that webhooks can have; empty allows all."""
    public_only: bool = False
    """Whether hosts must have public addresses. A gateway checks the addresses of names at each call."""

    async def create(self, caller: Principal, key: RequestKey | None, draft: Webhook) -> tuple[Webhook, str]:
        """Stores a webhook. Returns it, and its secret.

        Raises:
            InvalidArgument: A field breaks a rule.
            FailedPrecondition: The organization has too many webhooks.
            SecretsKeyMissing: This server has no key to store secrets with.
        """
        now = self.clock.now()
        webhook = replace(
            self._require_allowed(require_valid_webhook(draft)),
            id=self.ids.new("webhook"),
            organization_id=caller.organization_id,
            subject_id=caller.subject_id,
            created_at=now,
            updated_at=now,
        )
        stored = await self.store.create(key, self.secrets.seal(webhook, new_secret()))
        return stored, self.secrets.open(stored)

    def _require_allowed(self, webhook: Webhook) -> Webhook:
        """Returns a webhook whose host may be called. Raises InvalidArgument."""
        problem = host_problem(webhook.url, self.hosts, "MNEMESH_CALLBACK_HOSTS", public_only=self.public_only)
        if problem is not None:
            raise InvalidArgument(f"webhook.url: {problem}.", field="webhook.url")
        return webhook

    async def get(self, caller: Principal, webhook_id: str) -> Webhook:
        """Returns a webhook. Raises NotFound."""
        return await self.store.get(caller.organization_id, webhook_id)

    async def list(self, caller: Principal, page: PageQuery) -> Page[Webhook]:
        """Returns a page of webhooks ordered by creation."""
        return await self.store.list(caller.organization_id, page)

    async def update(
        self, caller: Principal, key: RequestKey | None, webhook_id: str, changes: Mapping[str, Any]
    ) -> Webhook:
        """Changes fields of a webhook, and returns it. Raises InvalidArgument, NotFound."""
        now = self.clock.now()

        def change(webhook: Webhook) -> Webhook:
            if changes.get("disabled") is False:
                webhook = replace(webhook, disabled_reason=None, failing_since=None)
            return self._require_allowed(require_valid_webhook(replace(webhook, **changes, updated_at=now)))

        return await self.store.update(key, caller.organization_id, webhook_id, change)

    async def delete(self, caller: Principal, key: RequestKey | None, webhook_id: str) -> None:
        """Deletes a webhook and its deliveries. A missing one is not an error."""
        await self.store.delete(key, caller.organization_id, webhook_id)

    async def test(self, caller: Principal, key: RequestKey | None, webhook_id: str) -> WebhookDelivery:
        """Stores a test event for a webhook, and returns its delivery. Raises NotFound."""
        return await self.store.test(key, caller.organization_id, webhook_id, self.ids.new("test"))

    async def list_deliveries(self, caller: Principal, webhook_id: str, page: PageQuery) -> Page[WebhookDelivery]:
        """Returns a page of the deliveries of a webhook ordered by creation. Raises NotFound."""
        return await self.store.list_deliveries(caller.organization_id, webhook_id, page)
