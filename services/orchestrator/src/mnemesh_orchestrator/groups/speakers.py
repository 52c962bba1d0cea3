"""Who speaks next in a group run, what it receives, and when the run ends: pure functions of plan and turns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from mnemesh_types.agents import RunError
from mnemesh_types.messages import Role, TextPart

from mnemesh_orchestrator.model.events import EndedTurn
from mnemesh_orchestrator.model.groups import GroupPlan, ManagerType, MemberTurn, Speaker, TurnOutcome
from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import Run, StopReason

TERMINATION_TOKEN: Final = "DONE!"  # noqa: S105 -- no secret
"""Ends a run of a dynamic group, unless its manager config names another token."""
MAX_SELECTIONS: Final = 3
"""The number of answers in a row by which a manager may select no valid speaker, until the run fails."""

_AROUND: Final = " \t\r\n\"'`´“”‘’«»*_.,;:!?()[]{}<>"
_BETWEEN: Final = re.compile(r"[,;\n&/]|\band\b|\bor\b", re.IGNORECASE)

_MAX_CHARACTERS: Final = 1_000_000
"""The longest text of one turn that other agents receive."""

_NOTHING_NEW: Final = "It is your turn again. No other member has spoken since your last turn."


@dataclass(frozen=True, slots=True)
class NextTurn:
    """The next turn of a group run.

    `is_selection` is true if the manager selects the next speaker. `problem` says why its last answer selected none.
    """

    number: int
    speaker: Speaker
    is_selection: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LastTurn:
    """No turn follows. `problem` says why the manager's last answer selected no speaker, if that ended the run."""

    problem: str | None = None


def next_turn(plan: GroupPlan, turns: Sequence[MemberTurn]) -> NextTurn | LastTurn:
    """Returns the turn that follows the first turns of a run.

    Args:
        plan: the plan of the run.
        turns: the turns that have ended, with the numbers from 1 on.
    """
    number = len(turns) + 1
    match plan.manager.type:
        case ManagerType.SUPERVISOR:
            return LastTurn() if turns else NextTurn(number, manager_of(plan))
        case ManagerType.DYNAMIC:
            return _dynamic(plan, turns)
        case ManagerType.ROUND_ROBIN if number <= max_turns(plan):
            return NextTurn(number, plan.members[(number - 1) % len(plan.members)])
        case _:
            return LastTurn()


def max_turns(plan: GroupPlan) -> int:
    """Returns the largest number of turns of members."""
    return plan.manager.max_turns or len(plan.members)


def manager_of(plan: GroupPlan) -> Speaker:
    return Speaker(plan.manager.manager_agent_id or "", plan.manager_name or "")


def termination_token(plan: GroupPlan) -> str:
    """Returns the text that ends the run when a member or the manager says it."""
    return plan.manager.termination_token or TERMINATION_TOKEN


def _dynamic(plan: GroupPlan, turns: Sequence[MemberTurn]) -> NextTurn | LastTurn:
    number, token = len(turns) + 1, termination_token(plan)
    selection = NextTurn(number, manager_of(plan), is_selection=True)
    if not turns:
        return selection
    last, spoken = turns[-1], [turn for turn in turns if not turn.is_selection]
    if any(token in text for text in last.words):
        return LastTurn()
    if not last.is_selection:
        is_last = len(spoken) >= max_turns(plan) or len(plan.members) == 1
        return LastTurn() if is_last else selection
    if not last.completed:
        return LastTurn()
    chosen = selected(plan, last.words, spoken[-1].agent_id if spoken else None)
    if isinstance(chosen, Speaker):
        return NextTurn(number, chosen)
    # A retry does not repeat the answers that ended the run before it, and has as many of its own.
    counted_after = max((turn.number for turn in (*spoken, *plan.completed)), default=0)
    in_a_row = len(turns) - counted_after
    if in_a_row >= MAX_SELECTIONS:
        return LastTurn(chosen)
    return NextTurn(number, selection.speaker, is_selection=True, problem=chosen)


def selected(plan: GroupPlan, words: Sequence[str], last_speaker_id: str | None) -> Speaker | str:
    """Returns the member that an answer of the manager selects, or the problem of the answer, as a sentence.

    An answer selects the member whose exact id or name it is, without quotes and punctuation around it. Names are
    compared with their case, and then without it.
    """
    texts = [text for text in words if text.strip()]
    if not texts:
        return "The answer was empty."
    found = {member.agent_id: member for text in texts for member in _named(plan, text)}
    if not found:
        parts = [part for text in texts for part in _BETWEEN.split(text.strip())]
        several = {member.agent_id for part in parts for member in _named(plan, part)}
        if len(several) < 2:
            return "The answer was not the id or the name of a member."
        return "The answer named several members."
    if len(found) > 1:
        return "The answer named several members."
    (member,) = found.values()
    if member.agent_id == last_speaker_id:
        return f"{member.name} spoke last, and no member speaks twice in a row."
    return member


def _named(plan: GroupPlan, text: str) -> list[Speaker]:
    """Returns the members whose id or name a text is."""
    whole, said = text.strip(), text.strip(_AROUND)
    by_id = [member for member in plan.members if member.agent_id == said]
    as_it_is = by_id or [member for member in plan.members if member.name.strip() == whole]
    if as_it_is or not said:
        return as_it_is
    names = [(member, member.name.strip(_AROUND)) for member in plan.members]
    exact = [member for member, name in names if name == said]
    return exact or [member for member, name in names if name.casefold() == said.casefold()]


def ending(plan: GroupPlan, ended: Sequence[EndedTurn], last: LastTurn) -> tuple[StopReason, RunError | None]:
    """Returns the stop reason of a run after its last turn, and its error if it failed.

    Args:
        plan: the plan of the run.
        ended: the turns of the run and of the attempts before it, in the order of their numbers.
        last: what `next_turn` returned.
    """
    if last.problem is not None:
        text = f"The manager selected no speaker in {MAX_SELECTIONS} answers. {last.problem}"
        return StopReason.INVALID_LLM_RESPONSE, RunError("PROVIDER_BAD_ANSWER", text, {"group_id": plan.group_id})
    manager_id = plan.manager.manager_agent_id
    deciding = [item for item in ended if item.turn.agent_id == manager_id and not item.turn.completed]
    spoken = [item for item in ended if not item.turn.is_selection]
    if not deciding and (not spoken or any(item.turn.completed for item in spoken)):
        return StopReason.END_TURN, None
    open_turns = deciding or spoken
    failed = [item for item in open_turns if item.turn.outcome is TurnOutcome.FAILED]
    if not failed:
        return StopReason.CANCELLED, None
    return failed[-1].stop_reason, failed[-1].error


def turn_input(run: Run, plan: GroupPlan, turns: Sequence[MemberTurn], turn: NextTurn) -> tuple[InputMessage, ...]:
    """Returns the input of a turn.

    Args:
        run: the group run.
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
