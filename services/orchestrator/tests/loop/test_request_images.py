"""The images that a request shows: those of files, their bounds, and the notes in place of others."""

from dataclasses import replace

import pytest
from mnemesh_kit.errors import Unavailable
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.loop.request_assembly import RequestImages
from mnemesh_orchestrator.loop.services import OptionalServices, RetryPolicy
from mnemesh_orchestrator.model.files import MAX_IMAGE_BYTES, MAX_SHOWN_IMAGES, ImageFile
from mnemesh_types.messages import ContentPart, ImagePart, Message, Role, TextPart, ToolReturn, ToolStatus

from ..support.files import Files

NOW = FrozenClock().now()


def returning(number: int, *content: ContentPart, status: ToolStatus = ToolStatus.SUCCESS) -> Message:
    returned = ToolReturn(f"call-{number}", "open_files", status, (TextPart("Opened."), *content))
    return Message(id=f"message-{number}", role=Role.TOOL, created_at=NOW, tool_returns=(returned,))


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def files() -> Files:
    return Files(images={"file-a": ImageFile("image/png", b"a picture")})


@pytest.fixture
def images(files: Files, clock: FrozenClock) -> RequestImages:
    return RequestImages(files, OptionalServices(RetryPolicy(clock), 0), clock)


async def shown(images: RequestImages, *messages: Message, reads_images: bool = True) -> list[ContentPart]:
    """The content of all returns without their first texts."""
    prepared = await images.prepare(messages, "org-a", reads_images=reads_images)
    return [part for message in prepared for part in message.tool_returns[0].content[1:]]


FILE = ImagePart(file_id="file-a")
PICTURE = ImagePart(b"a picture", "image/png")


async def test_the_image_of_a_file_is_read_once_and_shown(images: RequestImages, files: Files) -> None:
    assert await shown(images, returning(1, FILE)) == [PICTURE]
    assert await shown(images, returning(1, FILE), returning(2, FILE)) == [PICTURE, PICTURE]
    assert files.calls == ["image"]


async def test_a_deleted_file_is_soon_not_shown_any_more(
    images: RequestImages, files: Files, clock: FrozenClock
) -> None:
    await shown(images, returning(1, FILE))
    files.images.clear()
    clock.advance(120)
    (note,) = await shown(images, returning(1, FILE))
    assert isinstance(note, TextPart)
    assert "deleted" in note.text


async def test_a_model_that_reads_text_only_gets_a_note_and_no_file_is_read(
    images: RequestImages, files: Files
) -> None:
    (note,) = await shown(images, returning(1, FILE), reads_images=False)
    assert isinstance(note, TextPart)
    assert "reads text only" in note.text
    assert files.calls == []


async def test_only_the_latest_images_are_shown(images: RequestImages) -> None:
    content = await shown(images, *(returning(number, PICTURE) for number in range(MAX_SHOWN_IMAGES + 3)))
    kinds = [type(part) for part in content]
    assert kinds == [TextPart] * 3 + [ImagePart] * MAX_SHOWN_IMAGES


async def test_the_size_of_all_images_is_bounded(images: RequestImages) -> None:
    large = ImagePart(bytes(MAX_IMAGE_BYTES), "image/png")
    content = await shown(images, *(returning(number, large) for number in range(5)))
    assert [type(part) for part in content] == [TextPart] * 2 + [ImagePart] * 3


@pytest.mark.parametrize(
    ("part", "status", "words"),
    [
        (PICTURE, ToolStatus.ERROR, "the call failed"),
        (ImagePart(bytes(MAX_IMAGE_BYTES + 1), "image/png"), ToolStatus.SUCCESS, "exceeds"),
        (ImagePart(b"II*", "image/tiff"), ToolStatus.SUCCESS, "image/tiff"),
        (ImagePart(file_id="file-unknown"), ToolStatus.SUCCESS, "deleted"),
    ],
)
async def test_a_note_says_why_an_image_is_not_shown(
    images: RequestImages, part: ImagePart, status: ToolStatus, words: str
) -> None:
    (note,) = await shown(images, returning(1, part, status=status))
    assert isinstance(note, TextPart)
    assert words in note.text


async def test_without_the_files_service_the_request_goes_on(clock: FrozenClock) -> None:
    class Away(Files):
        async def image(self, file_id: str) -> ImageFile | None:
            raise Unavailable("It is away.")

    images = RequestImages(Away(), OptionalServices(RetryPolicy(clock), 0), clock)
    message = returning(1, FILE)
    (note,) = await shown(images, message)
    assert isinstance(note, TextPart)
    assert "cannot be reached" in note.text
    assert await images.prepare([replace(message, tool_returns=())], "org-a", reads_images=True) == (
        replace(message, tool_returns=()),
    )
