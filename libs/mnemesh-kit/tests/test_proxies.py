"""The proxies of the environment: the mesh ignores them, and so does every call of this machine."""

import pytest
from mnemesh_kit.network import may_use_proxy, proxies_of

from .served_blocks import GET, calling, serving


@pytest.mark.parametrize(
    "variable", ["http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"]
)
@pytest.mark.parametrize("scheme", ["", "dns:///"])
async def test_calls_within_the_mesh_ignore_proxies(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int, variable: str, scheme: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(variable, f"http://127.0.0.1:{unused_tcp_port}")
    async with serving() as service, calling(f"{scheme}{service.address}") as stub:
        assert (await stub.GetBlock(GET)).block.id == GET.block_id


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.openai.com/v1", True),
        ("http://10.0.0.7:8000/v1", True),
        ("http://127.0.0.1:11434/v1", False),
        ("http://[::1]:11434/v1", False),
        ("http://localhost:11434/v1", False),
        ("http://ollama:11434/v1", False),
        ("http://models.localhost/v1", False),
    ],
)
def test_calls_of_this_machine_and_its_network_use_no_proxy(url: str, expected: bool) -> None:
    assert may_use_proxy(url) is expected


def test_proxies_are_named_by_their_variables() -> None:
    assert proxies_of({"HTTPS_PROXY": "http://p", "http_proxy": "http://p", "no_proxy": "*"}) == (
        "http_proxy",
        "HTTPS_PROXY",
    )
