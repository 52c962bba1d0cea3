"""Reads pictures with a model behind the OpenAI-compatible API: POST {base_url}/chat/completions."""

from __future__ import annotations

import base64
from typing import Any, Final

import httpx2
from mnemesh_kit.connection_failures import failure_of_connection

from mnemesh_files.ports.pictures import PictureUnreadable

_PROMPT: Final = (
    "Write down all text in this picture exactly, in reading order, as Markdown; tables as Markdown tables. Then "
    "describe in a few sentences what the picture shows beyond its text. Answer with that only."
)
_MAX_TOKENS: Final = 4_000
_MAX_ANSWER_BYTES: Final = 1_000_000
_CONNECT_SECONDS: Final = 5.0


class OpenAiVision:
    """See PictureReader. The key is sent in the Authorization header only; it is in no error."""

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str,
        *,
        timeout_seconds: float = 120.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Opens a client without a connection.

        Args:
            base_url: The URL of the API, for example "https://api.openai.com/v1".
            model: The name of a model that can see.
            api_key: The key, or "".
            timeout_seconds: The longest time of one answer.
            transport: Carries the requests; None selects connections.
        """
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx2.Timeout(timeout_seconds, connect=_CONNECT_SECONDS)
        self._client = httpx2.AsyncClient(headers=headers, timeout=timeout, transport=transport)

    async def read(self, picture: bytes, media_type: str) -> str:
        """See PictureReader.read."""
        url = f"data:{media_type};base64,{base64.b64encode(picture).decode()}"
        parts = [{"type": "text", "text": _PROMPT}, {"type": "image_url", "image_url": {"url": url}}]
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": parts}],
            "max_completion_tokens": _MAX_TOKENS,
        }
        try:
            response = await self._client.post(self._url, json=body)
        except httpx2.HTTPError as error:
            raise PictureUnreadable(f"the model cannot be reached: {failure_of_connection(self._url, error)}") from None
        if response.status_code != httpx2.codes.OK:
            raise PictureUnreadable(f"the model answered with the status {response.status_code}")
        return _text(response)

    async def close(self) -> None:
        """See PictureReader.close."""
        await self._client.aclose()


def _text(response: httpx2.Response) -> str:
    try:
        if len(response.content) > _MAX_ANSWER_BYTES:
            raise PictureUnreadable("the answer of the model is too long")
        answer: Any = response.json()
        text = answer["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise PictureUnreadable("the answer of the model cannot be read") from None
    if not isinstance(text, str) or not text.strip():
        raise PictureUnreadable("the model answered without text")
    return text
