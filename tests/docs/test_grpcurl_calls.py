"""The calls of grpcurl in the page of clients, made as grpcurl makes them: with what the reflection describes."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from mnemesh_kit.services import SERVICES
from mnemesh_testkit.mesh.in_process import Mesh, MeshThread
from mnemesh_testkit.timeouts import scaled

PAGE = Path(__file__).parents[2] / "docs/clients.md"
PLACEHOLDER = "agent-…"


@pytest.mark.timeout(scaled(300))
def test_each_call_runs(tmp_path: Path) -> None:
    lines = PAGE.read_text().replace(" \\\n", " ").splitlines()
    calls = [shlex.split(line) for line in lines if line.startswith("    grpcurl ")]
    answers: dict[str, list[dict[str, Any]]] = {}
    with MeshThread(Mesh(tmp_path, in_memory=True)) as running:
        addresses = {service.port: running.mesh.addresses.get(service.name) for service in SERVICES}
        agent_id = ""
        for _, plaintext, *options, target, what in (in_one_order(each) for each in calls):
            assert plaintext == "-plaintext"
            address = addresses[int(target.removeprefix("localhost:"))]
            assert address
            with grpc.insecure_channel(address) as channel:
                if what == "list":
                    assert "mnemesh.agents.v1.AgentService" in ProtoReflectionDescriptorDatabase(channel).get_services()
                    continue
                if options == ["describe"]:
                    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
                    assert pool.FindMethodByName(what).server_streaming
                    continue
                flag, body = options
                assert flag == "-d"
                given = json.loads(body.replace(PLACEHOLDER, agent_id))
                answers[what] = list(call(channel, what, given))
            agent_id = agent_id or answers["mnemesh.agents.v1.AgentService/CreateAgent"][0]["agent"]["id"]
    events = [answer["event"] for answer in answers["mnemesh.agents.v1.RunService/SendMessage"]]
    assert "assistant" in str(events)
    assert "usage" in events[-1]
    (memory,) = answers["mnemesh.blocks.v1.BlockService/GetCoreMemory"]
    assert "Lin" in str(memory)


def in_one_order(words: list[str]) -> list[str]:
    """`grpcurl … ADDRESS describe NAME` as `grpcurl … describe ADDRESS NAME`."""
    *start, target, verb, name = words
    return [*start, verb, target, name] if verb == "describe" else words


def call(channel: grpc.Channel, name: str, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Makes a call with a body of JSON. Yields the responses."""
    service, _, method = name.partition("/")
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    found: MethodDescriptor = pool.FindServiceByName(service).methods_by_name[method]
    make = channel.unary_stream if found.server_streaming else channel.unary_unary
    sent = make(
        f"/{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(found.output_type).FromString,
    )(ParseDict(given, GetMessageClass(found.input_type)()), timeout=scaled(60))
    for response in sent if found.server_streaming else (sent,):
        yield MessageToDict(response)
