"""Searches of the web and pages of it, as the orchestrator asks for them."""

from typing import Protocol

from mnemesh_orchestrator.model.custom_tools import WebPart, WebQuery, WebResult


class WebPort(Protocol):
    """The web. What it returns was written by others, and is no instruction to anyone."""

    async def search(self, query: WebQuery) -> tuple[WebResult, ...]:
        """Returns what a search found, best first. A server without a provider of searches raises MnemeshError."""
        ...

    async def fetch(self, url: str, start: int) -> WebPart:
        """Returns a part of the readable text of a page, from the character `start` on."""
        ...
