"""The conversion of requests about sleeptime runs."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id

from mnemesh_orchestrator.model.sleeptime import SleeptimePreview, SleeptimeSettings, SleeptimeTarget

_READERS: Final[Mapping[str, Callable[[rpc.SleeptimeSettings], Any]]] = {
    "max_concurrent_runs": lambda settings: (
        settings.max_concurrent_runs if settings.HasField("max_concurrent_runs") else None
    )
}
"""The paths of an update mask, and the values that they read. An absent field clears its value."""


def target_from_proto(request: rpc.StartSleeptimeRunsRequest | rpc.PreviewSleeptimeRunsRequest) -> SleeptimeTarget:
    """Returns the group of sleeptime runs. Raises InvalidArgument if none is named, or an id is malformed."""
    match request.target.WhichOneof("target"):
        case "group_id":
            return SleeptimeTarget(group_id=require_id(request.target.group_id, "group", "target.group_id"))
        case "agent_id":
            return SleeptimeTarget(agent_id=require_id(request.target.agent_id, "agent", "target.agent_id"))
        case _:
            raise InvalidArgument("target must name a group or an agent.", field="target")


def preview_to_proto(preview: SleeptimePreview) -> rpc.PreviewSleeptimeRunsResponse:
    """Returns the response with a preview."""
    return rpc.PreviewSleeptimeRunsResponse(
        transcript=preview.transcript,
        message_count=preview.message_count,
        previews=[rpc.SleeptimePreview(agent_id=item.agent_id, request=item.request) for item in preview.members],
    )


def settings_to_proto(settings: SleeptimeSettings) -> rpc.SleeptimeSettings:
    """Returns the settings as a message."""
    return rpc.SleeptimeSettings(max_concurrent_runs=settings.max_concurrent_runs)


def settings_update_from_proto(request: rpc.UpdateSleeptimeSettingsRequest) -> dict[str, Any]:
    """Returns the new values by the field names of `SleeptimeSettings`.

    Raises:
        InvalidArgument: The mask is empty, or it names a field that does not exist.
    """
    paths = request.update_mask.paths
    if not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    for path in paths:
        if path not in _READERS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    return {path: _READERS[path](request.settings) for path in paths}
