"""Lookups of names, of several organizations."""

import asyncio
import socket
import threading
from typing import Any

import pytest
from mnemesh_sandbox.egress.policy import Resolver


async def test_lookups_of_one_organization_leave_threads_to_others() -> None:
    """Also if its callers have gone: a thread that waits for a server of names cannot be stopped."""
    answered = threading.Event()
    asked: list[str] = []

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        if host.startswith("slow"):
            answered.wait(20)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]

    resolver = Resolver(threads=3, per_organization=2, getaddrinfo=look_up)
    hostile, other = resolver.for_organization("a"), resolver.for_organization("b")
    tasks = [asyncio.create_task(hostile(f"slow{number}.example", 80)) for number in range(10)]
    for task in tasks[:5]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.01)
    assert await asyncio.wait_for(other("api.example", 80), 10) == ["192.0.2.1"]
    assert len(asked) == 3
    answered.set()
    assert await asyncio.wait_for(tasks[9], 10) == ["192.0.2.1"]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await hostile("api.example", 80) == ["192.0.2.1"], "the places of the callers who left are free again"
    await resolver.close()


async def test_unknown_name_is_an_error_of_the_system() -> None:
    resolver = Resolver()
    with pytest.raises(socket.gaierror):
        await resolver.for_organization("a")("name.invalid.", 80)
    assert "127.0.0.1" in await resolver.for_organization("a")("127.0.0.1", 80)
    await resolver.close()
