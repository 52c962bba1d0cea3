"""No request makes a server fail by itself: whatever comes is answered, or refused with a reason of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest
from engram_testkit.contract import call, hostile_request, reason_of, service_of
from engram_testkit.mesh import Mesh

EXAMPLES = 300
OWN_FAULT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}


@pytest.fixture(scope="module")
def known(threaded_mesh: Any) -> Mapping[str, Sequence[str]]:
    """Ids of things that exist, so that hostile requests get beyond the first check."""
    return threaded_mesh.run(_population(threaded_mesh.mesh))  # type: ignore[no-any-return]


async def _population(mesh: Mesh) -> dict[str, list[str]]:
    agent = await mesh.client.agents.create(blocks={"human": "A human.", "persona": "Kind."})
    await agent.ask("Remember that the key is under the mat.")
    tool = await mesh.client.tools.create('def ping() -> str:\n    """Answers."""\n    return "pong"\n')
    conversation = agent.proto.default_conversation_id
    runs = [run.id async for run in mesh.client.runs.list()]
    passages = [passage async for passage in agent.passages()]
    return {
        "agent": [agent.id],
        "block": [block.id for block in (await agent.memory()).blocks],
        "conversation": [conversation],
        "message": [message.id for message in (await mesh.client.messages.window(conversation)).messages],
        "run": runs,
        "step": [step.id async for step in mesh.client.runs.steps(runs[0])],
        "archive": [passage.archive_id for passage in passages],
        "passage": [passage.id for passage in passages],
        "tool": [tool.id],
    }


@pytest.mark.timeout(180)
def test_hostile_requests_are_answered_or_refused(
    service: str, grpc_stub: Any, known: Mapping[str, Sequence[str]]
) -> None:
    for method in service_of(service).methods:
        # what other requests are to find is not deleted
        ids = {} if method.name.startswith(("Delete", "Erase")) else known
        for seed in range(EXAMPLES):
            request = hostile_request(method, seed, ids)
            error: Any = call(grpc_stub, method, request)
            if error is None:
                continue
            shown = f"{method.full_name}, seed {seed}: {error.code()} {error.details()}\n{str(request)[:2000]}"
            assert error.code() not in OWN_FAULT, shown
            assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, shown
            assert reason_of(error), shown
