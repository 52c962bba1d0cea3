"""Makes the input of sleeptime runs: the transcript of a range of the manager's messages."""

from dataclasses import dataclass, replace
from typing import Final

from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, TextPart

from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.compaction.planner import TokenEstimator
from mnemesh_orchestrator.loop.request_assembly import RequestAssembler, require_space
from mnemesh_orchestrator.loop.services import RetryPolicy
from mnemesh_orchestrator.loop.state import JournalWriter, Turn
from mnemesh_orchestrator.loop.step_messages import recorded_input, recorded_input_event
from mnemesh_orchestrator.model.agents import AGENT_TYPES, Agent, AgentType
from mnemesh_orchestrator.model.conversations import MessageQuery
from mnemesh_orchestrator.model.events import TurnClaim
from mnemesh_orchestrator.model.groups import TranscriptRange
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.runs import Lineage, Run, RunOrigin, RunStatus
from mnemesh_orchestrator.prompt.manager_transcript import (
    TranscriptEntry,
    TranscriptForm,
    TranscriptPart,
    is_older,
    render_transcript,
    transcript_entry,
)
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.store.agents import AgentStore

_PAGE: Final = 200
_SHARE: Final = 0.6
"""The share of the space for messages that a transcript may take. The rest is for the partner's own work."""
_LEAST_TOKENS: Final = 500
_MOST_BYTES: Final = 1_000_000
"""Less than the longest text of a stored message."""
_SAMPLE: Final = "x" * 4_000


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of a range, as far as it fits. `rest` are the messages that did not."""

    parts: tuple[TranscriptPart, ...]
    entries: tuple[TranscriptEntry, ...]
    rest: TranscriptRange | None = None

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "\n".join(part.text for part in self.parts)

    @property
    def messages(self) -> tuple[InputMessage, ...]:
        """The input of the run of a member."""
        return tuple(InputMessage((TextPart(part.text),), sender_id=part.sender_id) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sleeptime run with its input. With `has_rest`, another run has the messages that did not fit."""

    run: Run
    has_rest: bool


@dataclass(frozen=True, eq=False)
class TranscriptInputs:
    """Reads the messages of managers, and stores their transcripts as the inputs of sleeptime runs."""

    agents: AgentStore
    recall: RecallClient
    turns: TurnBuilder
    requests: RequestAssembler
    estimator: TokenEstimator
    retry: RetryPolicy

    async def prepare(self, claim: TurnClaim, journal: JournalWriter) -> Prepared | None:
        """Stores the input of a sleeptime run that begins. Returns None if there is nothing to process.

        The input is stored once: later attempts at the run find it. Messages that do not fit the member's model are
        left to a further run, which is stored with the input.

        Raises:
            SystemPromptOverflow: The member's system message and tools leave no space.
            Unavailable, DeadlineExceeded: Recall or blocks was unavailable for the retry policy's whole time.
            LeaseLost: Another process holds the run now.
        """
        run, range_ = claim.run, claim.run.transcript
        if range_ is None:
            return None
        transcript = await self.retry.call(lambda: self._of_claim(claim, range_))
        if transcript is None:
            return None
        ready = replace(run, input=transcript.messages)
        rest = None if transcript.rest is None else _rest(run, transcript.rest)
        events = [recorded_input_event(message) for message in recorded_input(ready)]
        last = _last_processed(transcript, range_)
        stored = await journal.store_transcript(ready, events, rest, last)
        return Prepared(stored, rest is not None)

    async def _of_claim(self, claim: TurnClaim, range_: TranscriptRange) -> Transcript | None:
        return await self.compose(await self.turns.preview(claim), range_)

    async def compose(self, turn: Turn, range_: TranscriptRange) -> Transcript | None:
        """Returns the transcript of a range for a member; None if no message is to be processed.

        Args:
            turn: A turn of the member without an input.
            range_: The messages.

        Raises:
            SystemPromptOverflow: The member's system message and tools leave no space.
        """
        member = turn.context.agent
        try:
            manager = await self.agents.get(member.organization_id, range_.agent_id)
        except NotFound:
            return None  # its messages were erased with it
        entries, rest = await self._read(manager, range_, await self._space(turn))
        form = _form(manager, member, range_)
        if not entries or not any(is_older(entry.message, range_.newer_after) for entry in entries):
            return None
        return Transcript(render_transcript(entries, form, range_.newer_after), tuple(entries), rest)

    async def _space(self, turn: Turn) -> int:
        """Returns the bytes that a transcript may take in the member's requests."""
        context, state = turn.context, turn.state
        assembled = await self.requests.assemble(context, state)
        measured = self.estimator.request(context.agent, assembled.request)
        require_space(state, measured, state.model.prompt_limit)
        left = state.model.prompt_limit - measured.tools - measured.messages[0]
        tokens = max(_LEAST_TOKENS, int(left * _SHARE))
        sample = self.estimator.text(context.agent, state.model.info.handle, _SAMPLE)
        return min(_MOST_BYTES, tokens * len(_SAMPLE) // sample)

    async def _read(
        self, manager: Agent, range_: TranscriptRange, space: int
    ) -> tuple[list[TranscriptEntry], TranscriptRange | None]:
        """Returns the messages of a range that fit, and the range of the others.

        A message that does not fit alone is clipped.
        """
        entries: list[TranscriptEntry] = []
        position = range_.after
        while page := await self._page(range_, position):
            for message in page:
                entry = transcript_entry(message, manager.time_zone)
                if entry is not None:
                    entry = entry.clipped(max(space, _LEAST_TOKENS) if not entries else entry.size)
                    if entries and entry.size > space:
                        return entries, _range_after(range_, position)
                    entries.append(entry)
                    space -= entry.size
                position = message.sequence_id
        return entries, None

    async def _page(self, range_: TranscriptRange, after: int) -> tuple[Message, ...]:
        query = MessageQuery(
            page_size=_PAGE, agent_ids=(range_.agent_id,), after_sequence_id=after, until_sequence_id=range_.until
        )
        return (await self.recall.list_messages(query)).messages if after < range_.until else ()


def _range_after(range_: TranscriptRange, position: int) -> TranscriptRange | None:
    """Returns the rest of a range; None if it stays in a voice agent's window, and so is in a later range."""
    is_seen_later = range_.newer_after is not None and position >= range_.newer_after
    return None if is_seen_later else replace(range_, after=position)


def _form(manager: Agent, member: Agent, range_: TranscriptRange) -> TranscriptForm:
    if member.type is AgentType.VOICE_SLEEPTIME or range_.newer_after is not None:
        return TranscriptForm.MARKED
    return TranscriptForm.WRAPPED if AGENT_TYPES[manager.type].policy == "v3" else TranscriptForm.BARE


def _last_processed(transcript: Transcript, range_: TranscriptRange) -> str | None:
    """Returns the last message that no later transcript holds."""
    done = (entry.message.id for entry in reversed(transcript.entries) if is_older(entry.message, range_.newer_after))
    return next(done, None) if transcript.rest is None else None


def _rest(run: Run, range_: TranscriptRange) -> Run:
    """Returns the run that processes the messages that did not fit."""
    return Run(
        id=derive_id("run", run.id, "rest"),
        organization_id=run.organization_id,
        subject_id=run.subject_id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        created_at=run.created_at,
        updated_at=run.created_at,
        input=(),
        config=run.config,
        status=RunStatus.CREATED,
        background=True,
        group_id=run.group_id,
        lineage=Lineage(run.id, RunOrigin.SLEEPTIME, depth=run.lineage.depth),
        transcript=range_,
    )
