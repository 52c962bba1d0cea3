"""Calls a gateway with letta-client 0.1, in an environment that has it: `calls.py GATEWAY PROVIDER MCP_SERVER`."""

import sys
import time
from typing import Any

from letta_client import (
    DynamicManager,
    IdentityProperty,
    Letta,
    LettaBatchRequest,
    MessageCreate,
    StreamableHttpServerConfig,
    UpdateStreamableHttpmcpServer,
)
from letta_client.core.api_error import ApiError


def said(messages: Any) -> list[str]:
    """Returns the words of the assistant."""
    return [item.content for item in messages if item.message_type == "assistant_message"]


def refused(status: int, call: Any, *arguments: Any, **more: Any) -> None:
    """Calls a method, which must fail with a status."""
    answered = 200
    try:
        call(*arguments, **more)
    except ApiError as error:
        answered = error.status_code
    assert answered == status


def agent(client: Letta, name: str) -> Any:
    return client.agents.create(
        name=name,
        model="openai/fake-model",
        agent_type="letta_v1_agent",
        include_base_tools=False,
        memory_blocks=[{"label": "human", "value": "Ada."}],
    )


def agents(client: Letta) -> None:
    made = agent(client, "pilot")
    words = [MessageCreate(role="user", content="Ahoy")]
    assert said(client.agents.messages.create(made.id, messages=words).messages) == ["Hello."]
    chunks = list(client.agents.messages.create_stream(made.id, messages=words, stream_tokens=False))
    assert [chunk.message_type for chunk in chunks][-2:] == ["stop_reason", "usage_statistics"]
    assert client.agents.blocks.retrieve(made.id, "human").value == "Ada."
    assert "pilot" in {each.name for each in client.agents.list()}


def groups(client: Letta) -> None:
    first, second, manager = (agent(client, name) for name in ("ada", "grace", "linus"))
    group = client.groups.create(agent_ids=[first.id, second.id], description="A crew.")
    assert (group.manager_type, group.agent_ids) == ("round_robin", [first.id, second.id])
    answer = client.groups.messages.create(group.id, messages=[MessageCreate(role="user", content="Ahoy")])
    assert said(answer.messages) == ["Hello.", "Hello."]
    stream = client.groups.messages.create_stream(group.id, messages=[MessageCreate(role="user", content="Again")])
    assert said(stream) == ["Hello.", "Hello."]
    assert said(client.groups.messages.list(group.id, limit=50))[:2] == ["Hello.", "Hello."]
    changed = client.groups.modify(group.id, manager_config=DynamicManager(manager_agent_id=manager.id, max_turns=2))
    assert (changed.manager_type, changed.manager_agent_id, changed.max_turns) == ("dynamic", manager.id, 2)
    client.groups.messages.reset(group.id)
    assert group.id in {each.id for each in client.groups.list()}
    assert client.groups.count() >= 1
    client.groups.delete(group.id)
    refused(404, client.groups.retrieve, group.id)


def identities(client: Letta) -> None:
    held = agent(client, "held")
    text = IdentityProperty(key="city", value="Bonn", type="string")
    made = client.identities.create(identifier_key="ada", name="Ada", identity_type="user", properties=[text])
    assert client.identities.upsert(identifier_key="ada", name="Ada L.", identity_type="user").id == made.id
    changed = client.identities.modify(made.id, agent_ids=[held.id])
    assert (changed.name, changed.agent_ids) == ("Ada L.", [held.id])
    client.identities.properties.upsert(made.id, request=[IdentityProperty(key="age", value=36, type="number")])
    found = {item.key: item.value for item in client.identities.retrieve(made.id).properties or ()}
    assert found["age"] == 36
    assert [each.id for each in client.identities.agents.list(made.id)] == [held.id]
    assert list(client.identities.blocks.list(made.id)) == []
    assert [each.id for each in client.identities.list(identifier_key="ada")] == [made.id]
    assert client.identities.count() == 1
    client.identities.delete(made.id)
    refused(404, client.identities.retrieve, made.id)


def providers(client: Letta, url: str) -> None:
    client.providers.check(provider_type="openai", api_key="sk-1", base_url=url)
    made = client.providers.create(name="mine", provider_type="openai", api_key="sk-1", base_url=url)
    assert (made.name, made.provider_category, made.api_key) == ("mine", "byok", None)
    assert client.providers.retrieve_provider(str(made.id)).name == "mine"
    assert [each.id for each in client.providers.list(name="mine")] == [made.id]
    client.providers.modify(str(made.id), api_key="sk-2")
    client.providers.delete(str(made.id))
    refused(404, client.providers.retrieve_provider, str(made.id))


def files(client: Letta) -> None:
    folder = client.folders.create(name="charts")
    client.folders.files.upload(folder.id, file=("chart.txt", b"Rocks ahead."))
    whole = client.folders.retrieve_metadata(include_detailed_per_source_metadata=True)
    assert [(each.source_name, each.total_size) for each in whole.sources or ()] == [("charts", 12)]
    (job,) = client.jobs.list()
    assert job.metadata is not None
    assert client.jobs.retrieve(str(job.id)).metadata == job.metadata
    assert len(client.jobs.list_active()) <= 1


def mcp_servers(client: Letta, url: str) -> None:
    config = StreamableHttpServerConfig(server_name="remote", type="streamable_http", server_url=url)
    assert client.tools.test_mcp_server(request=config)["status"] == "success"
    events = [each.event for each in client.tools.connect_mcp_server(request=config)]
    assert events == ["connection_attempt", "success"]
    assert client.tools.list_mcp_servers() == {}
    (added,) = client.tools.add_mcp_server(request=config)
    assert (added.server_name, added.server_url) == ("remote", url)
    assert list(client.tools.list_mcp_servers()) == ["remote"]
    (offered,) = client.tools.list_mcp_tools_by_server("remote")
    assert (offered.name, offered.input_schema["required"]) == ("echo", ["text"])
    tool = client.tools.add_mcp_tool("remote", "echo")
    assert tool.name == "echo"
    held = agent(client, "with a tool")
    client.agents.tools.attach(held.id, str(tool.id))
    assert [each.name for each in client.agents.tools.list(held.id)] == ["echo"]
    headers = UpdateStreamableHttpmcpServer(custom_headers={"x-one": "1"})
    assert client.tools.update_mcp_server("remote", request=headers).server_url == url
    refused(404, client.tools.add_mcp_tool, "remote", "absent")
    assert client.tools.delete_mcp_server("remote") == []
    refused(404, client.tools.list_mcp_tools_by_server, "remote")


def batches(client: Letta) -> None:
    first, second = agent(client, "one"), agent(client, "two")
    words = [MessageCreate(role="user", content="Ahoy")]
    batch = client.batches.create(
        requests=[LettaBatchRequest(agent_id=made.id, messages=words) for made in (first, second)]
    )
    assert batch.id in {each.id for each in client.batches.list()}
    for _ in range(600):
        if (batch := client.batches.retrieve(batch.id)).status != "running":
            break
        time.sleep(0.1)
    assert (batch.status, client.jobs.retrieve(batch.id).job_type) == ("completed", "batch")
    messages = client.batches.messages.list(batch.id, agent_id=second.id).messages
    assert [(message.role, message.agent_id) for message in messages] == [
        ("assistant", second.id),
        ("user", second.id),
    ]
    client.batches.cancel(batch.id)
    assert client.batches.retrieve(batch.id).status == "completed"


def main(url: str, provider_url: str, mcp_url: str) -> None:
    """Calls everything. An assertion fails, or an error is raised, at the first difference."""
    client = Letta(base_url=url, token="any", timeout=600)
    agents(client)
    groups(client)
    batches(client)
    identities(client)
    providers(client, provider_url)
    files(client)
    mcp_servers(client, mcp_url)


if __name__ == "__main__":
    main(*sys.argv[1:])
