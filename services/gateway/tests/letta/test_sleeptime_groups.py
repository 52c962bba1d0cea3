"""Partners run in Letta's rhythm: after the first turn of their agent, and then after every n-th."""

from typing import Any

from .lab import MODEL, Lab
from .rest import Rest


def rhythm(lab: Lab, rest: Rest, agent_id: str, turns: int) -> tuple[list[int], list[int | None]]:
    """Sends messages to an agent. Returns the numbers of the turns after which its partner runs, and the counters."""
    started, counters = [], []
    (group,) = rest.call("GET", f"/agents/{agent_id}/groups")
    (partner_id,) = group["agent_ids"]
    before = len(runs_of(lab, partner_id))
    for turn in range(1, turns + 1):
        lab.client.agents.messages.create(agent_id, input=f"Turn {turn}.")
        after = len(runs_of(lab, partner_id))
        if after > before:
            started.append(turn)
        before = after
        counters.append(rest.call("GET", f"/groups/{group['id']}")["turns_counter"])
    return started, counters


def runs_of(lab: Lab, agent_id: str) -> list[Any]:
    return list(lab.client.runs.list(agent_id=agent_id, limit=100))


def set_frequency(rest: Rest, group: Any, frequency: int) -> Any:
    config = {"manager_type": "sleeptime", "sleeptime_agent_frequency": frequency}
    return rest.call("PATCH", f"/groups/{group['id']}", json={"manager_config": config})


def test_partner_of_a_new_agent_runs_after_the_first_turn(lab: Lab, rest: Rest) -> None:
    agent = lab.client.agents.create(model=MODEL, enable_sleeptime=True)
    assert agent.multi_agent_group is not None
    assert (agent.multi_agent_group.sleeptime_agent_frequency, agent.multi_agent_group.turns_counter) == (5, -1)
    assert rhythm(lab, rest, agent.id, 7) == ([1, 6], [0, 1, 2, 3, 4, 0, 1])


def test_partner_of_an_agent_that_switches_sleeptime_on_runs_after_the_next_turn(lab: Lab, rest: Rest) -> None:
    agent = lab.agent()
    lab.client.agents.update(agent.id, enable_sleeptime=True)
    (group,) = rest.call("GET", f"/agents/{agent.id}/groups")
    assert set_frequency(rest, group, 2)["turns_counter"] == -1
    assert rhythm(lab, rest, agent.id, 4) == ([1, 3], [0, 1, 0, 1])
    lab.client.agents.update(agent.id, enable_sleeptime=True)
    assert rest.call("GET", f"/groups/{group['id']}")["turns_counter"] == 1, "the group exists"


def test_a_frequency_that_is_set_later_begins_to_count_then(lab: Lab, rest: Rest) -> None:
    manager, partner = lab.agent(), lab.agent(agent_type="sleeptime_agent", memory_blocks=[])
    config = {"manager_type": "sleeptime", "manager_agent_id": manager.id}
    body = {"agent_ids": [partner.id], "description": "", "manager_config": config}
    group = rest.call("POST", "/groups/", json=body)
    assert (group["sleeptime_agent_frequency"], group["turns_counter"]) == (None, None)
    assert rhythm(lab, rest, manager.id, 2) == ([1, 2], [None, None])
    assert set_frequency(rest, group, 3)["turns_counter"] == -1
    assert rhythm(lab, rest, manager.id, 6) == ([1, 4], [0, 1, 2, 0, 1, 2])
    assert set_frequency(rest, group, 4)["turns_counter"] == 2, "the counter goes on"
    assert rhythm(lab, rest, manager.id, 3) == ([2], [3, 0, 1])
    rest.call("PATCH", f"/groups/{group['id']}/reset-messages")
    assert rest.call("GET", f"/groups/{group['id']}")["turns_counter"] == 1


def test_a_group_that_is_created_with_a_frequency_runs_after_the_first_turn(lab: Lab, rest: Rest) -> None:
    manager, partner = lab.agent(), lab.agent(agent_type="sleeptime_agent", memory_blocks=[])
    config = {"manager_type": "sleeptime", "manager_agent_id": manager.id, "sleeptime_agent_frequency": 2}
    body = {"agent_ids": [partner.id], "description": "", "manager_config": config}
    assert rest.call("POST", "/groups/", json=body)["turns_counter"] == -1
    assert rhythm(lab, rest, manager.id, 3) == ([1, 3], [0, 1, 0])
