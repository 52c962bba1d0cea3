"""`mnemesh.agents.v1.WebhookService`, with the conversion of its messages."""

from typing import Any, Final

import grpc
from mnemesh.agents.v1 import webhooks_pb2 as pb
from mnemesh.agents.v1 import webhooks_service_pb2 as rpc
from mnemesh.agents.v1 import webhooks_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, written

from mnemesh_orchestrator.model.webhooks import Webhook, WebhookDelivery, WebhookEvent, WebhookOrder
from mnemesh_orchestrator.usecases.webhooks import WebhookService

Context = grpc.aio.ServicerContext[Any, Any]
enum_of(pb.WebhookEvent, WebhookEvent)
enum_of(rpc.WebhookOrderBy, WebhookOrder, "CREATED_AT")
_WEBHOOK: Final = Conversion(pb.Webhook, Webhook, failing_since_time="failing_since")
_DELIVERY: Final = Conversion(pb.WebhookDelivery, WebhookDelivery)
_WRITABLE: Final = ("url", "events", "agent_ids", "disabled")


class WebhooksServicer(webhooks_service_pb2_grpc.WebhookServiceServicer):
    """Serves the webhooks."""

    def __init__(self, service: WebhookService) -> None:
        self._service = service

    async def CreateWebhook(self, request: rpc.CreateWebhookRequest, context: Context) -> rpc.CreateWebhookResponse:
        key, draft = request_key(request, "CreateWebhook"), written(request.webhook, _WRITABLE)
        require_ids(draft, "webhook", agent_ids="agent")
        given = _WEBHOOK.from_proto(draft, "webhook", organization_id="", subject_id="")
        webhook, secret = await self._service.create(current_principal(), key, given)
        return rpc.CreateWebhookResponse(webhook=_WEBHOOK.to_proto(webhook), secret=secret)

    async def GetWebhook(self, request: rpc.GetWebhookRequest, context: Context) -> rpc.GetWebhookResponse:
        webhook = await self._service.get(current_principal(), _webhook_id(request.webhook_id))
        return rpc.GetWebhookResponse(webhook=_WEBHOOK.to_proto(webhook))

    async def ListWebhooks(self, request: rpc.ListWebhooksRequest, context: Context) -> rpc.ListWebhooksResponse:
        enum_from_proto(WebhookOrder, request.order_by, "order_by")
        query = page_query(request)
        found = await self._service.list(current_principal(), query)
        page = bounded(query, found.map(_WEBHOOK.to_proto))
        return rpc.ListWebhooksResponse(webhooks=page.items, next_page_token=next_page_token(query, page))

    async def UpdateWebhook(self, request: rpc.UpdateWebhookRequest, context: Context) -> rpc.UpdateWebhookResponse:
        key, webhook_id = request_key(request, "UpdateWebhook"), require_id(request.webhook.id, "webhook", "webhook.id")
        require_ids(request.webhook, "webhook", agent_ids="agent")
        changes = _WEBHOOK.changes(request.webhook, request.update_mask, _WRITABLE, "webhook")
        webhook = await self._service.update(current_principal(), key, webhook_id, changes)
        return rpc.UpdateWebhookResponse(webhook=_WEBHOOK.to_proto(webhook))

    async def DeleteWebhook(self, request: rpc.DeleteWebhookRequest, context: Context) -> rpc.DeleteWebhookResponse:
        key = request_key(request, "DeleteWebhook")
        await self._service.delete(current_principal(), key, _webhook_id(request.webhook_id))
        return rpc.DeleteWebhookResponse()

    async def TestWebhook(self, request: rpc.TestWebhookRequest, context: Context) -> rpc.TestWebhookResponse:
        key = request_key(request, "TestWebhook")
        delivery = await self._service.test(current_principal(), key, _webhook_id(request.webhook_id))
        return rpc.TestWebhookResponse(delivery=_DELIVERY.to_proto(delivery))

    async def ListWebhookDeliveries(
        self, request: rpc.ListWebhookDeliveriesRequest, context: Context
    ) -> rpc.ListWebhookDeliveriesResponse:
        query = page_query(request, default_ascending=False)
        webhook_id = _webhook_id(request.webhook_id)
        found = await self._service.list_deliveries(current_principal(), webhook_id, query)
        page = bounded(query, found.map(_DELIVERY.to_proto))
        return rpc.ListWebhookDeliveriesResponse(deliveries=page.items, next_page_token=next_page_token(query, page))


def _webhook_id(value: str) -> str:
    return require_id(value, "webhook", "webhook_id")
