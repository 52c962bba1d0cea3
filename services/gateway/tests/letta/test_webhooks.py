"""Webhooks: a receiver gets signed events, again until it confirms them, and no other secrets."""

import base64
import hashlib
import hmac
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mnemesh.agents.v1 import webhooks_pb2 as pb
from mnemesh.agents.v1 import webhooks_service_pb2 as rpc
from mnemesh_client.webhooks import is_signed
from mnemesh_kit.ids import new_id
from mnemesh_sandbox.node import find_node
from mnemesh_testkit.fakes.server import status
from mnemesh_testkit.timeouts import scaled

from .lab import Lab

SERVICE = "mnemesh.agents.v1.WebhookService"


class Receiver:
    """A server that keeps the headers and the bodies of calls."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        self.answers = threading.Event()
        self.answers.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.calls.put((headers, self.rfile.read(int(headers["content-length"]))))
                receiver.answers.wait()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def next(self) -> tuple[dict[str, str], bytes]:
        return self.calls.get(timeout=scaled(20))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    yield from _receiving()


@pytest.fixture
def hanging() -> Iterator[Receiver]:
    yield from _receiving()


def _receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.thread.start()
    yield receiver
    receiver.answers.set()
    receiver.server.shutdown()
    receiver.server.server_close()
    receiver.thread.join()


@pytest.fixture
def webhook(lab: Lab, receiver: Receiver) -> Iterator[rpc.CreateWebhookResponse]:
    """A webhook that is told everything."""
    request = rpc.CreateWebhookRequest(request_id=new_id("r"), webhook=pb.Webhook(url=receiver.url))
    created = lab.call(SERVICE, "CreateWebhook", request)
    assert lab.call(SERVICE, "CreateWebhook", request) == created, "a lost answer does not lose the secret"
    yield created
    lab.call(SERVICE, "DeleteWebhook", rpc.DeleteWebhookRequest(webhook_id=created.webhook.id))


def test_a_receiver_gets_signed_events(lab: Lab, receiver: Receiver, webhook: rpc.CreateWebhookResponse) -> None:
    agent = lab.agent()
    run = lab.client.agents.messages.create_async(agent.id, input="My secret word is heron.")
    headers, body = receiver.next()
    event = json.loads(body)
    assert (event["type"], event["data"]["run_id"], event["data"]["agent_id"]) == ("run.completed", run.id, agent.id)
    assert b"heron" not in body
    key = base64.b64decode(webhook.secret.removeprefix("whsec_"))
    text = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert is_signed(webhook.secret, headers, body)
    assert not is_signed(webhook.secret, headers, body + b" ")
    assert not is_signed(webhook.secret, headers | {"webhook-timestamp": str(int(time.time()) - 600)}, body)
    lab.fake.script = [status(400, "No.")]
    lab.client.agents.messages.create_async(agent.id, input="Hi.")
    failed = json.loads(receiver.next()[1])
    assert (failed["type"], failed["data"]["status"]) == ("run.failed", "failed")


def test_a_test_event_shows_its_result(lab: Lab, receiver: Receiver, webhook: rpc.CreateWebhookResponse) -> None:
    request = rpc.TestWebhookRequest(webhook_id=webhook.webhook.id)
    delivery = lab.call(SERVICE, "TestWebhook", request).delivery
    headers, body = receiver.next()
    assert (headers["webhook-id"], json.loads(body)["type"]) == (delivery.id, "webhook.test")
    listing = rpc.ListWebhookDeliveriesRequest(webhook_id=webhook.webhook.id)
    found: Any = None
    for _ in range(200):
        (found,) = lab.call(SERVICE, "ListWebhookDeliveries", listing).deliveries
        if found.HasField("status"):
            break
        time.sleep(scaled(0.05))
    assert (found.status, found.attempts, found.HasField("due_time"), found.payload) == (200, 1, False, body.decode())


def test_the_example_of_a_receiver_takes_signed_events_only(lab: Lab) -> None:
    node, example = find_node("").path, Path(__file__).parents[4] / "examples/webhook_receiver.mjs"
    service = lab.call(SERVICE, "CreateWebhook", rpc.CreateWebhookRequest(webhook=pb.Webhook(url="http://127.0.0.1:9")))
    with subprocess.Popen([node, example, service.secret, "0"], stdout=subprocess.PIPE, text=True) as receiver:
        try:
            assert receiver.stdout is not None
            url = receiver.stdout.readline().strip()
            webhook = pb.Webhook(id=service.webhook.id, url=url)
            lab.call(
                SERVICE, "UpdateWebhook", rpc.UpdateWebhookRequest(webhook=webhook, update_mask={"paths": ["url"]})
            )
            lab.call(SERVICE, "TestWebhook", rpc.TestWebhookRequest(webhook_id=webhook.id))
            body = receiver.stdout.readline().strip().encode()
            assert json.loads(body)["type"] == "webhook.test"
            key = service.secret.removeprefix("whsec_")
            for age, sent, status_code in ((0, body, 204), (0, body + b" ", 401), (600, body, 401)):
                stamp = str(int(time.time()) - age)
                text = f"delivery-1.{stamp}.".encode() + body
                mac = base64.b64encode(hmac.new(base64.b64decode(key), text, hashlib.sha256).digest()).decode()
                headers = {"webhook-id": "delivery-1", "webhook-timestamp": stamp, "webhook-signature": f"v1,{mac}"}
                assert httpx2.post(url, content=sent, headers=headers).status_code == status_code
        finally:
            receiver.kill()
    lab.call(SERVICE, "DeleteWebhook", rpc.DeleteWebhookRequest(webhook_id=webhook.id))


def test_a_receiver_that_hangs_does_not_delay_others(
    lab: Lab, receiver: Receiver, webhook: rpc.CreateWebhookResponse, hanging: Receiver
) -> None:
    hanging.answers.clear()
    slow = lab.call(SERVICE, "CreateWebhook", rpc.CreateWebhookRequest(webhook=pb.Webhook(url=hanging.url))).webhook
    lab.call(SERVICE, "TestWebhook", rpc.TestWebhookRequest(webhook_id=slow.id))
    hanging.next()
    lab.call(SERVICE, "TestWebhook", rpc.TestWebhookRequest(webhook_id=webhook.webhook.id))
    receiver.next()
    listing = rpc.ListWebhookDeliveriesRequest(webhook_id=slow.id)
    (open_call,) = lab.call(SERVICE, "ListWebhookDeliveries", listing).deliveries
    assert (open_call.attempts, open_call.HasField("sent_time")) == (1, False), "its call has not ended"
    lab.call(SERVICE, "DeleteWebhook", rpc.DeleteWebhookRequest(webhook_id=slow.id))
