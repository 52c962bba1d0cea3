"""Calls a gateway with letta-client 0.1, in an environment that has it: `python calls.py GATEWAY_URL PROVIDER_URL`."""

from __future__ import annotations

import sys
from typing import Any

from letta_client import DynamicManager, IdentityProperty, Letta, MessageCreate
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


def main(url: str, provider_url: str) -> None:
    """Calls everything. An assertion fails, or an error is raised, at the first difference."""
    client = Letta(base_url=url, token="any", timeout=600)
    agents(client)
    groups(client)
    identities(client)
    providers(client, provider_url)
    files(client)


if __name__ == "__main__":
    main(*sys.argv[1:])
