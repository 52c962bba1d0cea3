"""The input of an agent at its turn in a group run: the input, and what the others said since its last turn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mnemesh_types.messages import Role, TextPart

from mnemesh_orchestrator.groups.speakers import NextTurn, termination_token
from mnemesh_orchestrator.model.groups import GroupPlan, MemberTurn
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.run_config import OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import Run

_MAX_CHARACTERS: Final = 1_000_000
"""The longest text of one turn that other agents receive."""

_NOTHING_NEW: Final = "It is your turn again. No other member has spoken since your last turn."


def turn_input(run: Run, plan: GroupPlan, turns: Sequence[MemberTurn], turn: NextTurn) -> tuple[InputMessage, ...]:
    """Returns the input of a turn.

    Args:
        run: the group run.
        plan: its plan.
        turns: the turns that have ended, in the order in which they ended.
        turn: the turn that begins.
    """
    received = [
        index
        for index, earlier in enumerate(turns)
        if earlier.agent_id == turn.speaker.agent_id
        and earlier.is_selection == turn.is_selection
        and earlier.has_received
    ]
    first = () if received else tuple(replace(message, group_id=plan.group_id) for message in run.input)
    said = [
        earlier
        for earlier in turns[received[-1] + 1 if received else 0 :]
        if earlier.completed
        and earlier.words
        and not earlier.is_selection
        and (turn.is_selection or earlier.agent_id != turn.speaker.agent_id)
    ]
    if turn.is_selection:
        return (*first, InputMessage((TextPart(_question(plan, said, turn)),), group_id=plan.group_id))
    messages = (*first, *(_words_message(plan, earlier) for earlier in said))
    # A model is not asked to continue its own words without a message after them.
    return messages or (InputMessage((TextPart(_NOTHING_NEW),), Role.SYSTEM, group_id=plan.group_id),)


def turn_config(config: RunConfig, turn: NextTurn) -> RunConfig:
    """Returns the settings of a turn in a run with these settings.

    The settings of the queue and of the run's own record stay with the group run. A selection speaks to no one but the
    run, so it has no client tools or skills, and keeps the manager's own prompt and format.
    """
    own = replace(config, on_busy=OnBusy.WAIT, metadata=None)
    if not turn.is_selection:
        return own
    return replace(own, client_tools=(), client_skills=(), override_system=None, response_format=None)


def _words_message(plan: GroupPlan, turn: MemberTurn) -> InputMessage:
    name = _name(plan, turn.agent_id)
    return InputMessage(
        (TextPart(_line(plan, turn)),), Role.SYSTEM, name=name, sender_id=turn.agent_id, group_id=plan.group_id
    )


def _line(plan: GroupPlan, turn: MemberTurn) -> str:
    text = "\n".join(turn.words)
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}… [{len(text) - _MAX_CHARACTERS} more characters were cut off]"
    return f"{_name(plan, turn.agent_id)}: {text}"


def _name(plan: GroupPlan, agent_id: str) -> str:
    return next((member.name for member in plan.members if member.agent_id == agent_id), plan.manager_name or agent_id)


def _question(plan: GroupPlan, said: Sequence[MemberTurn], turn: NextTurn) -> str:
    """Returns the text that asks the manager to select the next speaker."""
    token = termination_token(plan)
    lines = [turn.problem + " Select again.", ""] if turn.problem is not None else []
    lines += ["You manage a conversation of several agents. Select the one that speaks next.", "", "Members:"]
    lines += [_member_line(member.agent_id, member.name, member.description) for member in plan.members]
    if said:
        lines += ["", "Said since your last selection:", *(_line(plan, earlier) for earlier in said)]
    lines += [
        "",
        "Answer with the exact id or the exact name of one member, and nothing else.",
        "The member that spoke last cannot be selected.",
        f"If the conversation is complete, answer {token}",
    ]
    return "\n".join(lines)


def _member_line(agent_id: str, name: str, description: str) -> str:
    return f"- id: {agent_id}, name: {name}" + (f", description: {description}" if description else "")
