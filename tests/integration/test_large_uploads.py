"""Uploads of the largest size over REST: neither the gateway nor the files service holds a file in memory."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from mnemesh_gateway.letta.agent_files import MAX_BYTES
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled

BOUNDARY = "a-boundary-of-this-test"
PIECE = (b"\0\0\0\x20ftypisom" + bytes(range(256)) * 4096)[: 1 << 20]
"""One MB. It begins as a video, which no parser reads: parsing needs memory of its own."""
ALLOWED_BYTES = 64 << 20
"""The memory that a service may need for the largest file beyond what it needed for one of a quarter of its size."""


def _peak_bytes(pid: int) -> int:
    """Returns the largest memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def _head(name: str) -> bytes:
    disposition = f'Content-Disposition: form-data; name="file"; filename="{name}"'
    return f"--{BOUNDARY}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()


TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()


async def _form(name: str, size: int) -> AsyncIterator[bytes]:
    yield _head(name)
    for _ in range(size // len(PIECE)):
        yield PIECE
    yield PIECE[: size % len(PIECE)]
    yield TAIL


async def _upload(http: httpx.AsyncClient, folder_id: str, name: str, size: int) -> httpx.Response:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return await http.post(f"/v1/folders/{folder_id}/upload", content=_form(name, size), headers=headers)


@pytest.mark.full
@pytest.mark.timeout(scaled(600))
async def test_the_largest_form_is_stored_and_no_service_holds_it(tmp_path: Path, fork_server: ForkServer) -> None:
    size = MAX_BYTES - len(_head("largest.bin")) - len(TAIL)
    whole = hashlib.sha256()
    for _ in range(size // len(PIECE)):
        whole.update(PIECE)
    whole.update(PIECE[: size % len(PIECE)])
    async with (
        ProcessMesh(tmp_path, gateway=True, fork_server=fork_server) as mesh,
        httpx.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}", timeout=scaled(300)) as http,
    ):
        folder = (await http.post("/v1/folders/", json={"name": "large"})).json()["id"]
        assert (await _upload(http, folder, "first.bin", MAX_BYTES // 4)).status_code == 200
        before = {service: _peak_bytes(mesh.pid(service)) for service in ("gateway", "files")}
        stored = await _upload(http, folder, "largest.bin", size)
        assert (stored.status_code, stored.json()["file_size"]) == (200, size)
        grown = {service: _peak_bytes(mesh.pid(service)) - peak for service, peak in before.items()}
        assert max(grown.values()) < ALLOWED_BYTES, (before, grown)
        content = hashlib.sha256(await mesh.client.files.read(stored.json()["id"]))
        assert content.digest() == whole.digest()
        refused = await _upload(http, folder, "greater.bin", size + 1)
        assert refused.status_code == 413
        names = {file["file_name"] for file in (await http.get(f"/v1/folders/{folder}/files")).json()}
        assert names == {"first.bin", "largest.bin"}
