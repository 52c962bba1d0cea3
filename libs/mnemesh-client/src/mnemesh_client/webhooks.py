"""Webhooks: URLs that are called when something happens, and the verification of such calls."""

import base64
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from google.protobuf import field_mask_pb2
from mnemesh.agents.v1 import webhooks_pb2, webhooks_service_pb2, webhooks_service_pb2_grpc

from mnemesh_client.paging import paginate
from mnemesh_client.transport import Channel

WebhookEventName = Literal["run.completed", "run.failed", "run.cancelled", "approval.requested", "memory.changed"]


class WebhooksClient:
    """Calls of WebhookService, as `client.webhooks`."""

    def __init__(self, channel: Channel) -> None:
        self.stub = webhooks_service_pb2_grpc.WebhookServiceStub(channel)

    async def create(
        self, url: str, *, events: Sequence[WebhookEventName] = (), agent_ids: Sequence[str] = ()
    ) -> tuple[webhooks_pb2.Webhook, str]:
        """Creates a webhook. Returns it, and its secret, which no other call returns.

        Args:
            url: the URL that is called with POST.
            events: what it is told about; without any, everything.
            agent_ids: only events of these agents; without any, all.

        Raises:
            InvalidArgument: the URL is not an http or https URL.
            FailedPrecondition: the organization has 20 webhooks, or the server has no key to store secrets with.
        """
        request = webhooks_service_pb2.CreateWebhookRequest(
            webhook=_message(url=url, events=events, agent_ids=agent_ids)
        )
        response = await self.stub.CreateWebhook(request)
        return response.webhook, response.secret

    async def get(self, webhook_id: str) -> webhooks_pb2.Webhook:
        """Returns a webhook."""
        request = webhooks_service_pb2.GetWebhookRequest(webhook_id=webhook_id)
        return (await self.stub.GetWebhook(request)).webhook

    def list(self, *, limit: int | None = None) -> AsyncIterator[webhooks_pb2.Webhook]:
        """Yields the webhooks, oldest first."""
        return paginate(self.stub.ListWebhooks, webhooks_service_pb2.ListWebhooksRequest(), "webhooks", limit)

    async def update(self, webhook_id: str, **fields: Any) -> webhooks_pb2.Webhook:
        """Updates fields of a webhook: url, events, agent_ids, disabled. An empty list is all events or agents."""
        webhook = _message(**fields)
        webhook.id = webhook_id
        request = webhooks_service_pb2.UpdateWebhookRequest(
            webhook=webhook, update_mask=field_mask_pb2.FieldMask(paths=list(fields))
        )
        return (await self.stub.UpdateWebhook(request)).webhook

    async def test(self, webhook_id: str) -> webhooks_pb2.WebhookDelivery:
        """Sends the event "webhook.test". `deliveries` has the result a little later."""
        request = webhooks_service_pb2.TestWebhookRequest(webhook_id=webhook_id)
        return (await self.stub.TestWebhook(request)).delivery

    def deliveries(self, webhook_id: str, *, limit: int | None = None) -> AsyncIterator[webhooks_pb2.WebhookDelivery]:
        """Yields the deliveries of the last week with their results, newest first."""
        request = webhooks_service_pb2.ListWebhookDeliveriesRequest(webhook_id=webhook_id)
        return paginate(self.stub.ListWebhookDeliveries, request, "deliveries", limit)

    async def delete(self, webhook_id: str) -> None:
        """Deletes a webhook with its deliveries."""
        await self.stub.DeleteWebhook(webhooks_service_pb2.DeleteWebhookRequest(webhook_id=webhook_id))


def is_signed(secret: str, headers: Mapping[str, str], body: bytes, *, tolerance_seconds: float = 300.0) -> bool:
    """Returns whether a received call is of the webhook with a secret, unchanged, and not an old one that is repeated.

    Args:
        secret: what `WebhooksClient.create` returned.
        headers: the headers of the request, by their names in lower case.
        body: the body as it was received.
        tolerance_seconds: how old a call may be.
    """
    timestamp = headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > tolerance_seconds:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    text = f"{headers.get('webhook-id', '')}.{timestamp}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(expected, each) for each in headers.get("webhook-signature", "").split())


def _message(**fields: Any) -> webhooks_pb2.Webhook:
    if "events" in fields:
        names = [f"WEBHOOK_EVENT_{name.upper().replace('.', '_')}" for name in fields["events"] or ()]
        fields["events"] = [webhooks_pb2.WebhookEvent.Value(name) for name in names]
    return webhooks_pb2.Webhook(**{name: value for name, value in fields.items() if value is not None})
