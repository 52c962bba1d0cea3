"""Turns: starts a run, follows its events, and returns them as an answer or as a stream."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, TypeVar

from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh_client import run_stream
from starlette.responses import Response

from mnemesh_gateway.letta.approvals import ACCEPTANCE, PATIENCE, Events, Recipient, answering
from mnemesh_gateway.letta.convert.events import Conversion, run_failed, stop_reason, usage_of, with_whole_returns
from mnemesh_gateway.letta.convert.messages import Shown, with_whole_requests
from mnemesh_gateway.letta.convert.sending import config_to_proto, sent_of, shown_of
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call
from mnemesh_gateway.letta.pages import READ_SECONDS
from mnemesh_gateway.letta.schemas.messages import LettaResponse, SendMessages, StopReason, Usage
from mnemesh_gateway.letta.schemas.runs import StreamRun
from mnemesh_gateway.letta.turn_streams import StreamOptions, streamed

AttachingT = TypeVar("AttachingT", bound=StreamRun)


async def events_of(mesh: Mesh, recipient: Recipient, body: SendMessages, key: str, *, stream: bool) -> Events:
    """Sends what a body has and returns the events of its run. A background run outlives its stream by contract.

    Args:
        mesh: the services.
        recipient: who receives it.
        body: of the client.
        key: the request id.
        stream: whether the events are needed while the run is executed. At its end, they cost less.
    """
    sent = sent_of(body)
    config = _config(recipient, body)
    if sent.is_answer:
        return await answering(mesh, recipient, sent, config, key)
    if body.background:
        run = await start_run(mesh, recipient, body, key)
        return run_stream.attach(mesh.runs, run.id, 0, PATIENCE)
    request = runs_service_pb2.SendMessageRequest(
        request_id=key,
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        group_id=recipient.group_id,
        messages=sent.messages,
        config=config,
    )
    send = run_stream.send if stream else run_stream.send_and_wait
    return send(mesh.runs, request, PATIENCE, ACCEPTANCE)


def _config(recipient: Recipient, body: SendMessages) -> runs_pb2.RunConfig:
    """Returns the configuration of a run. Only a background stream of a conversation is recovered by its otids."""
    config = config_to_proto(body)
    config.otids_repeat = not (body.background and recipient.conversation_id)
    return config


async def start_run(mesh: Mesh, recipient: Recipient, body: SendMessages, key: str) -> runs_pb2.Run:
    """Starts what a body has as a run in the background, and returns the run."""
    sent = sent_of(body)
    config = _config(recipient, body)
    if sent.is_answer:
        async with aclosing(await answering(mesh, recipient, sent, config, key)) as events:
            run_id = (await anext(events)).run_id
        return await read_run(mesh, run_id)
    start = runs_service_pb2.StartRunRequest(
        request_id=key,
        agent_id=recipient.agent_id,
        conversation_id=recipient.conversation_id,
        group_id=recipient.group_id,
        messages=sent.messages,
        config=config,
    )
    return (await mesh.runs.StartRun(start, timeout=READ_SECONDS)).run


async def answered(events: Events, shown: Shown) -> LettaResponse:
    """Returns a whole turn. Raises the error of a run that failed."""
    conversion = Conversion(tokens=False)
    messages: list[dict[str, Any]] = []
    reason, usage = "end_turn", Usage()
    async with aclosing(events):
        async for event in events:
            match event.WhichOneof("event"):
                case "error":
                    raise run_failed(event.error.error)
                case "stop":
                    reason = stop_reason(event)
                case "usage":
                    usage = usage_of(event)
                case _:
                    message = conversion.message(event)
                    if message is not None:
                        messages.append(message)
    whole = with_whole_requests(with_whole_returns(messages))
    return LettaResponse(
        messages=[message for message in whole if shown.has(message["message_type"])],
        stop_reason=StopReason(stop_reason=reason),
        usage=usage,
    )


async def replied(call: Call[Any, SendMessages], recipient: Recipient, *, stream: bool) -> LettaResponse | Response:
    """Returns the answer to what a request sends, whole or as a stream."""
    body = call.body
    shown = shown_of(body)
    events = await events_of(call.mesh, recipient, body, call.request_id, stream=stream)
    if not stream:
        return await answered(events, shown)
    options = StreamOptions(
        tokens=body.stream_tokens,
        pings=body.include_pings,
        announces=call.profile.announces_runs,
        numbered=body.background,
    )
    return await streamed(events, shown, options)


async def read_run(mesh: Mesh, run_id: str) -> runs_pb2.Run:
    """Returns a run. Raises NotFound."""
    request = runs_service_pb2.GetRunRequest(run_id=run_id)
    return (await mesh.runs.GetRun(request, timeout=READ_SECONDS)).run


async def attached(call: Call[Any, AttachingT], run_id: str) -> Response:
    """Returns the stream of a run after the events that the client has."""
    body = call.body
    if body.starting_after < 0:
        raise invalid_field("Input should be greater than or equal to 0", "body", "starting_after")
    run = await read_run(call.mesh, run_id)
    options = StreamOptions(
        tokens=run.config.stream_tokens,
        pings=body.include_pings is not False,
        announces=call.profile.announces_runs,
        numbered=True,
    )
    events = run_stream.attach(call.mesh.runs, run.id, 0, PATIENCE)
    return await streamed(events, Shown(), options, starting_after=body.starting_after)
