"""The text of images, read by a model behind an OpenAI-compatible API."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from mnemesh_files.clients import PictureReader
from mnemesh_files.config import Config
from mnemesh_files.parsers.document import DocumentKind, ParsedDocument
from mnemesh_files.parsers.parser import with_text_of_picture

_KEY = "sk-secret"
_IMAGE = ParsedDocument(DocumentKind.IMAGE, "image/png", image_width=3, image_height=2)


class _Api:
    """Answers requests with a status and a body, or an error of the connection."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []
        self.status = 200
        self.body: Any = {"choices": [{"message": {"content": " # A sign\r\n\r\nIt says STOP. "}}]}
        self.error: Exception | None = None

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        content = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        return httpx2.Response(self.status, content=content)


@pytest.fixture
def api() -> _Api:
    return _Api()


@pytest_asyncio.fixture
async def vision(api: _Api) -> AsyncIterator[PictureReader]:
    reader = PictureReader("https://vision.invalid/v1/", "seer", _KEY, transport=httpx2.MockTransport(api))
    yield reader
    await reader.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(b"the bytes")
    return path


async def test_the_answer_of_the_model_is_the_text_of_an_image(api: _Api, vision: PictureReader, path: Path) -> None:
    document = await with_text_of_picture(_IMAGE, path, vision)

    assert document.lines == ("# A sign", "", "It says STOP.")
    assert (document.image_width, document.warnings) == (3, ())
    (request,) = api.requests
    assert str(request.url) == "https://vision.invalid/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {_KEY}"
    sent = json.loads(request.content)
    assert sent["model"] == "seer"
    picture = f"data:image/png;base64,{base64.b64encode(b'the bytes').decode()}"
    assert sent["messages"][0]["content"][1] == {"type": "image_url", "image_url": {"url": picture}}


_UNREACHED = "the model cannot be reached: vision.invalid:443: the connection failed"


@pytest.mark.parametrize(
    ("status", "body", "error", "cause"),
    [
        (500, b"x", None, "the model answered with the status 500"),
        (200, b"x", httpx2.ConnectError("sk-secret"), _UNREACHED),
        (200, b"no json", None, "the answer of the model cannot be read"),
        (200, {"choices": []}, None, "the answer of the model cannot be read"),
        (200, {"choices": [{"message": {"content": None}}]}, None, "the model answered without text"),
        (200, b"x" * 1_000_001, None, "the answer of the model is too long"),
    ],
)
async def test_an_image_without_an_answer_has_a_warning(
    api: _Api, vision: PictureReader, path: Path, status: int, body: Any, error: Exception | None, cause: str
) -> None:
    api.status, api.body, api.error = status, body, error

    document = await with_text_of_picture(_IMAGE, path, vision)

    assert document.text == ""
    assert document.warnings == (f"The image has no text: {cause}. Process the file again to try again.",)


async def test_an_image_that_the_model_does_not_read_is_not_sent(api: _Api, vision: PictureReader, path: Path) -> None:
    document = await with_text_of_picture(ParsedDocument(DocumentKind.IMAGE, "image/tiff"), path, vision)
    with path.open("r+b") as file:
        file.truncate(21 * 1024 * 1024)
    large = await with_text_of_picture(_IMAGE, path, vision)

    assert "the model does not read image/tiff" in document.warnings[0]
    assert "the model reads at most 20 MB" in large.warnings[0]
    assert api.requests == []


@pytest.mark.parametrize("given", [{"vision_model": "seer"}, {"vision_base_url": "https://vision.invalid"}])
def test_url_and_model_are_set_together(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="MNEMESH_FILES_VISION_MODEL must be set together"):
        Config(**given)


def test_the_key_is_not_shown() -> None:
    assert _KEY not in repr(Config(vision_api_key=_KEY))
