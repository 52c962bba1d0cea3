"""A client that knows the address of the orchestrator only, and one that gets every service of it."""

from pathlib import Path

from mnemesh_client import Mnemesh
from mnemesh_kit.services import SERVICES, Protocol
from mnemesh_testkit.mesh.in_process import Mesh, certificates, client_tls


async def test_every_service_answers_at_the_address_of_the_orchestrator(tmp_path: Path) -> None:
    """With mutual TLS, also between the services."""
    issued = certificates(tmp_path / "certificates")
    async with (
        Mesh(tmp_path, certificates=issued) as mesh,
        Mnemesh(mesh.addresses["orchestrator"], tls=client_tls(issued)) as client,
    ):
        assert len({address for name, address in client.addresses.items() if name != "gateway"}) == 1
        agent = await client.agents.create("ada", blocks={"human": "", "persona": ""})
        await agent.ask("My name is Ada. Remember that the launch is on Friday.")
        assert [hit.passage.text for hit in await agent.search_passages("launch")] == ["the launch is on Friday."]
        assert "My name is Ada" in (await agent.search("launch name", mode="text"))[0].text
        assert any("Ada" in block.value for block in (await agent.memory()).blocks)
        assert [tool.name async for tool in client.tools.list(limit=1)]
        for spec in SERVICES:
            if spec.protocol is Protocol.GRPC:
                assert (await client.server_info(spec.name)).service == spec.name
