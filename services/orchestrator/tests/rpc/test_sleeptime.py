"""Sleeptime settings and refused requests over the wire."""

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import new_id

from .conftest import Wire

FIELD = FieldMask(paths=["max_concurrent_runs"])


def limit(runs: int | None, **more: object) -> rpc.UpdateSleeptimeSettingsRequest:
    settings = rpc.SleeptimeSettings(max_concurrent_runs=runs)
    return rpc.UpdateSleeptimeSettingsRequest(settings=settings, update_mask=FIELD, **more)  # type: ignore[arg-type]


async def test_settings_are_changed_once_per_request(wire: Wire) -> None:
    async def current() -> rpc.SleeptimeSettings:
        return (await wire.groups.GetSleeptimeSettings(rpc.GetSleeptimeSettingsRequest())).settings

    assert not (await current()).HasField("max_concurrent_runs")
    first = limit(0, request_id=new_id("request"))
    assert (await wire.groups.UpdateSleeptimeSettings(first)).settings.max_concurrent_runs == 0
    await wire.groups.UpdateSleeptimeSettings(limit(3))
    assert (await wire.groups.UpdateSleeptimeSettings(first)).settings.max_concurrent_runs == 3
    await wire.groups.UpdateSleeptimeSettings(limit(None))
    assert not (await current()).HasField("max_concurrent_runs")


@pytest.mark.parametrize(
    ("runs", "paths", "field"),
    [
        (-1, ["max_concurrent_runs"], "settings.max_concurrent_runs"),
        (1, [], "update_mask"),
        (1, ["other"], "update_mask"),
    ],
)
async def test_invalid_settings_are_refused(wire: Wire, runs: int, paths: list[str], field: str) -> None:
    request = limit(runs)
    request.update_mask.paths[:] = paths
    with pytest.raises(MnemeshError) as refused:
        await wire.groups.UpdateSleeptimeSettings(request)
    assert (refused.value.reason, refused.value.field) == ("INVALID_ARGUMENT", field)


@pytest.mark.parametrize(
    ("target", "reason", "field"),
    [
        (rpc.SleeptimeTarget(), "INVALID_ARGUMENT", "target"),
        (rpc.SleeptimeTarget(group_id="x"), "INVALID_ARGUMENT", "target.group_id"),
        (rpc.SleeptimeTarget(agent_id=""), "INVALID_ARGUMENT", "target.agent_id"),
        (rpc.SleeptimeTarget(agent_id=new_id("agent")), "NOT_FOUND", None),
        (rpc.SleeptimeTarget(group_id=new_id("group")), "NOT_FOUND", None),
    ],
)
async def test_runs_of_no_group_are_refused(
    wire: Wire, target: rpc.SleeptimeTarget, reason: str, field: str | None
) -> None:
    for call in (
        wire.groups.StartSleeptimeRuns(rpc.StartSleeptimeRunsRequest(target=target)),
        wire.groups.PreviewSleeptimeRuns(rpc.PreviewSleeptimeRunsRequest(target=target)),
    ):
        with pytest.raises(MnemeshError) as refused:
            await call
        assert (refused.value.reason, refused.value.field) == (reason, field)
