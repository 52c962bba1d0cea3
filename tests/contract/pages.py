"""The pages of answers: how they are followed, and how large they are."""

from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from mnemesh_testkit.mesh.in_process import Mesh

OVERHEAD = 1_000
"""The bytes of a token, and of the number and length of each row."""
ROWS = 4
LARGE = 900_000
"""The bytes of a row of which three fit into a page."""


async def pages_of(mesh: Mesh, method: MethodDescriptor, request: Any) -> AsyncIterator[Any]:
    """Yields the pages of a list until the last one."""
    call = getattr(mesh.stubs[service_name(method)], method.name)
    while True:
        page = await call(request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def service_name(method: MethodDescriptor) -> str:
    """Returns the full name of the service of a method."""
    service = method.containing_service
    assert service is not None
    return service.full_name


def rows_of(page: Any) -> list[tuple[Any, ...]]:
    """Returns the rows of a page. The core memories of agents belong to their rows."""
    parts = [getattr(page, field.name) for field in page.DESCRIPTOR.fields if field.is_repeated]
    return list(zip(*(part for part in parts if part), strict=True))


def size_of(part: Any) -> int:
    """Returns the size of a row in bytes."""
    return len(part.encode()) if isinstance(part, str) else part.ByteSize()
