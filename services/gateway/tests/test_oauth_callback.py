"""The browser of an OAuth authorization has no token: the state proves to whom its answer belongs."""

from pathlib import Path

import httpx
from mnemesh.tools.v1 import mcp_servers_pb2
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_client import Mnemesh
from mnemesh_gateway.http.console import FILES
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.mcp_server import protected
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

KEY = "a key of at least thirty-two characters"
CALLBACK = "/v1/tools/mcp/oauth/callback"
PERSON = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_a_browser_completes_the_authorization_of_an_organization(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    services = ("gateway", "orchestrator", "blocks", "recall", "archival", "tools", "files")
    settings: dict[str, dict[str, object]] = {name: {"auth_key_file": str(keys)} for name in services}
    settings["tools"]["private_networks"] = "127.0.0.0/8"
    token = mint_token(KEY.encode(), Principal(new_id("org"), new_id("user")), 600)
    async with (
        protected() as remote,
        Mesh(tmp_path, gateway=True, settings=settings) as mesh,
        Mnemesh(mesh.client.addresses, token=token) as owner,
        httpx.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}", timeout=scaled(60)) as browser,
    ):
        server = await owner.mcp_servers.create("protected", remote.url, oauth=mcp_servers_pb2.McpOAuth())
        started = await owner.mcp_servers.start_authorization(server.id, f"http://127.0.0.1:9{CALLBACK}")
        answer = await remote.approve(started.authorization_url)
        wrong = await browser.get(CALLBACK, params={**answer, "state": "another"})
        assert (wrong.status_code, wrong.json()["status"]) == (200, "error")
        right = await browser.get(CALLBACK, params=answer)
        assert (right.status_code, right.json()["status"]) == (200, "success")
        _is_page(await browser.get(CALLBACK, params=answer, headers=PERSON), "Access not authorized")
        seen = await owner.mcp_servers.authorization(server.id, started.state)
        assert seen.status == rpc.MCP_AUTHORIZATION_STATUS_COMPLETED
        later = await owner.mcp_servers.start_authorization(server.id, f"http://127.0.0.1:9{CALLBACK}")
        refused = await owner.mcp_servers.receive_authorization(later.state, error="access_denied")
        assert "access_denied" in refused.status_message
        hostile = await owner.mcp_servers.start_authorization(server.id, f"http://127.0.0.1:9{CALLBACK}")
        denied = {"state": hostile.state, "error": "no", "error_description": "<script>alert(1)</script>\u202e"}
        page = _is_page(await browser.get(CALLBACK, params=denied, headers=PERSON), "Access not authorized")
        assert "&lt;script&gt;" in page
        assert "<script" not in page
        assert "\u202e" not in page
        await mesh.stop("tools")
        away = await browser.get(CALLBACK, params=denied, headers=PERSON)
        assert "Reload this page" in _is_page(away, "The mesh did not answer", status=503)


def _is_page(answer: httpx.Response, title: str, status: int = 200) -> str:
    """Checks that a person sees a page with this title, whose style is a file of the console."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert f"<h1>{title}</h1>" in answer.text
    assert '"../../../../console/message.css"' in answer.text
    assert (FILES / "message.css").is_file()
    return answer.text
