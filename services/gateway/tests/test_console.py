"""The console: its files, their headers, and which pages may call the gateway."""

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest_asyncio
from mnemesh_gateway.http.console import FILES, MANIFEST
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

MAX_SCRIPT_BYTES = 250_000
CSP = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
}
LIST = "/mnemesh.agents.v1.AgentService/ListAgents"


@pytest_asyncio.fixture
async def raw(base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client of the gateway."""
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60)) as client:
        yield client


async def test_the_page_and_its_files(raw: httpx.AsyncClient) -> None:
    """Everything that the page names is served; hashed names are cached, the page is asked for again."""
    page = await raw.get("/console/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["cache-control"] == "no-cache"
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", page.text), "nothing is inline"
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert any(name.endswith(".js") for name in named)
    for name in named:
        assert name.startswith("./"), "the paths are relative"
        file = await raw.get(f"/console/{name}")
        assert file.status_code == 200
        assert file.headers["content-encoding"] == "gzip"
        assert file.content == (FILES / name).read_bytes()
        if name.startswith("./assets/"):
            assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
    for answer in (page, await raw.get(f"/console/{named[-1]}")):
        assert set(answer.headers["content-security-policy"].split("; ")) == CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


async def test_methods_conditions_and_paths(raw: httpx.AsyncClient) -> None:
    page = await raw.get("/console/", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in page.headers
    head = await raw.head("/console/", headers={"Accept-Encoding": "identity"})
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(page.content)))
    same = await raw.get("/console/", headers={"If-None-Match": page.headers["etag"]})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", page.headers["etag"])
    for path in ("/", "/console"):
        lead = await raw.get(path)
        assert (lead.status_code, lead.headers["location"]) == (307, "console/")
    refused = await raw.post("/console/")
    assert (refused.status_code, refused.json()["error"]["code"]) == (405, "method_not_allowed")
    for path in ("/console/none.js", "/console/../config.py", "/console/%2e%2e/config.py", f"/console/{MANIFEST}"):
        missing = await raw.get(path)
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")


async def test_only_pages_of_the_gateway_may_call_it(raw: httpx.AsyncClient) -> None:
    """The origin must be that of the request's own host, which must be allowed."""
    host = f"{raw.base_url.host}:{raw.base_url.port}"
    for origin, other_host, status in (
        (f"http://{host}", host, 200),
        (f"https://{host}", host, 200),
        ("http://127.0.0.1", host, 403),
        (f"http://localhost:{raw.base_url.port}", host, 403),
        (f"http://{host}.evil.example", host, 403),
        (f"http://evil.example@{host}", host, 403),
        ("null", host, 403),
        ("http://evil.example", "evil.example", 403),
    ):
        answer = await raw.post(LIST, json={}, headers={"Origin": origin, "Host": other_host})
        assert answer.status_code == status, origin
        assert "access-control-allow-origin" not in answer.headers
    assert (await raw.get("/console/", headers={"Host": "evil.example"})).status_code == 403


async def test_the_page_needs_no_token_and_its_calls_do(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    services = ("gateway", "orchestrator", "blocks", "recall", "archival", "tools", "files")
    settings = {name: {"auth_key_file": str(keys)} for name in services}
    async with (
        Mesh(tmp_path / "data", gateway=True, in_memory=True, settings=settings) as mesh,
        httpx.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}", timeout=scaled(60)) as client,
    ):
        assert (await client.get("/console/")).status_code == 200
        assert (await client.get("/")).status_code == 307
        refused = await client.post(LIST, json={})
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


def test_scripts_are_small() -> None:
    sizes = [len(gzip.compress(path.read_bytes())) for path in FILES.rglob("*.js")]
    assert sizes
    assert sum(sizes) <= MAX_SCRIPT_BYTES
