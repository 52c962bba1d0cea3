"""Calls the callbacks of runs and batches that have ended, in the form of Letta's API."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import structlog
from mnemesh.agents.v1 import batches_pb2, runs_pb2, runs_service_pb2_grpc
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable
from mnemesh_kit.network import failure_of_connection, is_private_address, refusal

from mnemesh_gateway.letta.jobs import job_of_batch
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, PageQuery
from mnemesh_gateway.letta.runs import run_from_proto, show_messages
from mnemesh_gateway.letta.turns import LettaResponse, StopReason, usage_from_proto

if TYPE_CHECKING:
    import aiohttp  # it is loaded with the first callback

POLL_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 10.0
_SETTING: Final = "MNEMESH_GATEWAY_CALLBACK_HOSTS"
_AT_ONCE: Final = 20
_MOST_MESSAGES: Final = 1_000


_log = structlog.get_logger("mnemesh.callbacks")


class CallResult(NamedTuple):
    """The status of an answer, or the cause of the failure without one."""

    status: int | None
    error: str | None


class CallbackClient:
    """Calls URLs without following redirects. What an answer contains is not read.

    Args:
        hosts: the hosts that URLs can have; empty allows all.
        public_only: whether hosts must have public addresses.
    """

    def __init__(self, hosts: Sequence[str], *, public_only: bool) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._public_only = public_only
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes) -> CallResult:
        """Sends JSON to a URL. Never raises."""
        host = urlsplit(url).hostname or ""
        if self._hosts and host not in self._hosts:
            return CallResult(None, f"{host} is none of the hosts in {_SETTING}.")
        if self._public_only and is_private_address(host):
            return CallResult(None, refusal(host, _SETTING) + ".")
        import aiohttp  # noqa: PLC0415

        try:
            async with self._opened().post(url, data=body, allow_redirects=False) as answer:
                return CallResult(answer.status, None)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            return CallResult(None, f"The call failed: {failure_of_connection(url, error)}."[:500])

    def _opened(self) -> "aiohttp.ClientSession":
        import aiohttp  # noqa: PLC0415
        from mnemesh_kit.public_resolver import PublicResolver  # noqa: PLC0415

        if self._session is None:
            resolver = PublicResolver(_SETTING) if self._public_only else None
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=resolver),
                timeout=aiohttp.ClientTimeout(total=_CALL_SECONDS),
                headers={"Content-Type": "application/json", "User-Agent": "mnemesh"},
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Ends the connections."""
        if self._session is not None:
            await self._session.close()


class CallbackSender:
    """Sends what is due. The orchestrator hands each callback to one gateway, and again if that does not answer.

    Args:
        mesh: what the clients of callbacks read.
        runs: RunService for the role of a service.
        caller: calls the URLs.
    """

    def __init__(self, mesh: Mesh, runs: "runs_service_pb2_grpc.RunServiceAsyncStub", caller: CallbackClient) -> None:
        self._mesh = mesh
        self._runs = runs
        self._caller = caller

    async def send_due(self) -> None:
        """Calls the callbacks that are due now."""
        request = rpc.ClaimCallbacksRequest(max_callbacks=_AT_ONCE)
        try:
            due = (await self._runs.ClaimCallbacks(request, timeout=READ_SECONDS)).callbacks
        except (Unavailable, DeadlineExceeded):
            return  # the orchestrator is starting or restarting
        await asyncio.gather(*map(self._send, due))

    async def _send(self, callback: batches_pb2.DueCallback) -> None:
        with as_principal(Principal(callback.organization_id, callback.subject_id)):
            try:
                body = msgspec.json.encode(await self._body(callback))
                result = await self._caller.post(callback.url, body)
            except MnemeshError as error:
                result = CallResult(None, error.message)
        target_id = callback.run.id or callback.batch.id
        _log.info("callback", target_id=target_id, attempt=callback.attempt, status=result.status, error=result.error)
        request = rpc.RecordCallbackRequest(
            organization_id=callback.organization_id,
            target_id=target_id,
            attempt=callback.attempt,
            status=result.status,
            error=result.error,
        )
        try:
            await self._runs.RecordCallback(request, timeout=READ_SECONDS)
        except MnemeshError as error:
            _log.warning("callback_not_recorded", target_id=target_id, error=error.message)

    async def _body(self, callback: batches_pb2.DueCallback) -> dict[str, Any]:
        if callback.HasField("batch"):
            job = job_of_batch(callback.batch)
            body = {"job_id": job.id, "status": job.status, "completed_at": job.completed_at}
            return body | {"metadata": job.metadata}
        run = run_from_proto(callback.run)
        more = dict(run.metadata or {})
        if callback.run.status == runs_pb2.RUN_STATUS_COMPLETED:
            messages = await show_messages(self._mesh, callback.run, PageQuery(limit=_MOST_MESSAGES))
            usage = usage_from_proto(callback.run.usage, callback.run.step_count)
            reason = StopReason(stop_reason=run.stop_reason or "end_turn")
            more["result"] = LettaResponse(messages=messages, stop_reason=reason, usage=usage)
        return {"run_id": run.id, "status": run.status, "completed_at": run.completed_at, "metadata": more}
