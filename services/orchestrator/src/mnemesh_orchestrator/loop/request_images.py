"""The images of tool returns in a request: read from the files service, bounded, or replaced by notes."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_types.messages import ContentPart, ImagePart, Message, TextPart, ToolReturn, ToolStatus

from mnemesh_orchestrator.loop.optional_services import OptionalServices
from mnemesh_orchestrator.model.images import MAX_SHOWN_BYTES, MAX_SHOWN_IMAGES, ImageFile, refused_image
from mnemesh_orchestrator.ports.files import FilesPort

WHAT: Final = "The images of your files"
_BLIND: Final = "[An image is not shown, because the model reads text only.]"
_FAILED: Final = "[An image is not shown, because the call failed.]"
_EARLIER: Final = "[An image was shown here. Only the latest images are shown: call the tool again to see it.]"
_GONE: Final = "[The image is not shown, because its file was deleted or changed.]"
_UNREACHABLE: Final = "[The image is not shown, because the files service cannot be reached.]"
_KEPT_BYTES: Final = 48_000_000
_KEPT_FOR: Final = timedelta(minutes=1)
"""The age at which an image is read again, so that a deleted or changed file is soon gone from requests too."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An image as it was read; None if it cannot be shown."""

    image: ImageFile | None
    read_at: datetime


class RequestImages:
    """Prepares the images of tool returns for requests to models. Keeps the images of files that it read last."""

    def __init__(self, files: FilesPort, optional: OptionalServices, clock: Clock) -> None:
        self._files = files
        self._optional = optional
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._size = 0

    async def prepared(
        self, messages: Sequence[Message], organization_id: str, *, reads_images: bool
    ) -> tuple[Message, ...]:
        """Returns the messages with inline images in their tool returns. Notes replace images that are not shown.

        Args:
            messages: the messages of a request.
            organization_id: the organization of the agent.
            reads_images: whether the model accepts images.
        """
        prepared, room = list(messages), _Room()
        for index in reversed(range(len(prepared))):
            message = prepared[index]
            if any(_has_images(returned) for returned in message.tool_returns):
                shown = [
                    await self._returned(returned, organization_id, room, reads_images=reads_images)
                    for returned in reversed(message.tool_returns)
                ]
                prepared[index] = replace(message, tool_returns=tuple(reversed(shown)))
        return tuple(prepared)

    async def _returned(
        self, returned: ToolReturn, organization_id: str, room: "_Room", *, reads_images: bool
    ) -> ToolReturn:
        content: list[ContentPart] = []
        for part in reversed(returned.content):
            if not isinstance(part, ImagePart):
                content.append(part)
            elif not reads_images:
                content.append(TextPart(_BLIND))
            elif returned.status is ToolStatus.ERROR:
                content.append(TextPart(_FAILED))  # An API refuses images in the return of a call that failed.
            elif room.is_full:
                content.append(TextPart(_EARLIER))
            else:
                content.append(room.taken(await self._inline(part, organization_id)))
        return msgspec.structs.replace(returned, content=tuple(reversed(content)))

    async def _inline(self, part: ImagePart, organization_id: str) -> ImagePart | TextPart:
        if part.file_id is None:
            problem = None if part.data is None else refused_image(part.media_type or "", len(part.data))
            return part if problem is None else TextPart(problem)
        key, now = (organization_id, part.file_id), self._clock.now()
        known = self._kept.get(key)
        if known is None or now - known.read_at > _KEPT_FOR:
            file_id = part.file_id
            found, _ = await self._optional.call(lambda: self._read(file_id, now), WHAT)
            if found is None:
                return TextPart(_UNREACHABLE)
            self._keep(key, found)
            known = found
        image = known.image
        return TextPart(_GONE) if image is None else ImagePart(image.data, image.media_type, detail=part.detail)

    async def _read(self, file_id: str, now: datetime) -> _Kept:
        try:
            return _Kept(await self._files.image(file_id), now)
        except NotFound:
            return _Kept(None, now)

    def _keep(self, key: tuple[str, str], kept: _Kept) -> None:
        self._size += _size(kept) - (_size(self._kept.pop(key)) if key in self._kept else 0)
        self._kept[key] = kept
        while self._size > _KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._size -= _size(dropped)


class _Room:
    """The images that a request still has room for, latest first."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._count >= MAX_SHOWN_IMAGES or self._bytes >= MAX_SHOWN_BYTES

    def taken(self, part: ImagePart | TextPart) -> ImagePart | TextPart:
        """Returns a part whose image takes its room, or a note if it is too large for it."""
        size = len(part.data or b"") if isinstance(part, ImagePart) else 0
        if self._bytes + size > MAX_SHOWN_BYTES:
            self._bytes = MAX_SHOWN_BYTES
            return TextPart(_EARLIER)
        self._count += isinstance(part, ImagePart)
        self._bytes += size
        return part


def _has_images(returned: ToolReturn) -> bool:
    return any(isinstance(part, ImagePart) for part in returned.content)


def _size(kept: _Kept) -> int:
    return 1_000 + (0 if kept.image is None else len(kept.image.data))
