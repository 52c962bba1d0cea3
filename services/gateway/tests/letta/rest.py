"""Plain HTTP, as older SDKs send it."""

from typing import Any

import httpx
from mnemesh_testkit.timeouts import scaled


class Rest:
    """A client of Letta's paths that expects a status of each answer."""

    def __init__(self, base_url: str) -> None:
        self._client = httpx.Client(base_url=f"{base_url}/v1", timeout=scaled(60))

    def call(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        """Returns the JSON of an answer, which must have a status."""
        answer = self._client.request(method, path, **more)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def text(self, method: str, path: str, **more: Any) -> str:
        """Returns the text of an answer of status 200."""
        answer = self._client.request(method, path, **more)
        assert answer.status_code == 200, answer.text
        return answer.text

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()
