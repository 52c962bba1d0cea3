"""Inserts of passages: targets, results, validation, and the decision which passages of a batch are new."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_types.archival import EmbedderIdentity, PassageSource
from mnemesh_types.twin import EPOCH

from mnemesh_archival.model.passages import Passage, VectorUse, content_hash, decide_use, validate_draft

MAX_BATCH: Final = 1_000
"""The largest number of passages in one insert."""


@dataclass(frozen=True, slots=True)
class InsertTarget:
    """The destination of an insert: exactly one of the two is set. An agent means its first archive."""

    archive_id: str | None = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class InsertFailure:
    """The reason why one passage of a batch was not stored."""

    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InsertOutcome:
    """The result for one passage of a batch: exactly one of `passage`, `failure` and `deleted_id` is set."""

    passage: Passage | None = None
    failure: InsertFailure | None = None
    deleted_id: str | None = None
    """The id of a passage that an earlier call stored and that was deleted since."""
    archive_id: str = ""
    duplicate: bool = False
    """True if the archive already had this text; no second passage was stored."""
    vector_use: VectorUse = VectorUse.NONE


@dataclass(frozen=True, slots=True)
class InsertEntry:
    """The result for one passage of a recorded batch. Both id and reason are empty for an invalid passage."""

    passage_id: str = ""
    duplicate: bool = False
    reason: str = ""
    """ALREADY_EXISTS if the caller's id is taken."""
    vector_use: VectorUse = VectorUse.NONE


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """The decision about a batch."""

    entries: tuple[InsertEntry, ...]
    """One for each passage of the batch, in order."""
    new: tuple[Passage, ...]
    """The passages to store, with their archive."""


def validate_batch(drafts: Sequence[Passage | MnemeshError]) -> list[Passage | MnemeshError]:
    """Returns each valid draft with its tags deduplicated, and the error in place of each invalid one.

    Raises:
        InvalidArgument: the batch is empty or too large.
        MnemeshError: the first error, if no draft is valid.
    """
    if not drafts:
        raise InvalidArgument("passages must not be empty.", field="passages")
    if len(drafts) > MAX_BATCH:
        raise InvalidArgument(f"passages must have at most {MAX_BATCH:,} values in one call.", field="passages")
    results: list[Passage | MnemeshError] = []
    for index, draft in enumerate(drafts):
        try:
            results.append(draft if isinstance(draft, MnemeshError) else validate_draft(draft, f"passages[{index}]"))
        except InvalidArgument as error:
            results.append(error)
    errors = [result for result in results if isinstance(result, MnemeshError)]
    if len(errors) == len(results):
        raise errors[0]
    return results


def new_passage(draft: Passage, target: InsertTarget, passage_id: str, index: int, now: datetime) -> Passage:
    """Returns the passage that a valid draft becomes. Its archive is not decided yet.

    Args:
        draft: the draft.
        target: the target of the insert, which decides the default of the source and of the agent.
        passage_id: the id, unless the draft has one.
        index: the index in the batch. Creation times are that many microseconds apart, so that lists keep the order
            of the batch.
        now: the time of the insert.
    """
    source = draft.source
    if source is PassageSource.UNSPECIFIED:
        source = PassageSource.AGENT if target.agent_id else PassageSource.OWNER
    return replace(
        draft,
        id=draft.id or passage_id,
        archive_id="",
        source=source,
        agent_id=draft.agent_id or target.agent_id,
        embedding=(),
        embedded_by=None,
        created_at=now + timedelta(microseconds=index) if draft.created_at is EPOCH else draft.created_at,
        updated_at=now if draft.updated_at is EPOCH else draft.updated_at,
    )


def plan_inserts(
    passages: Sequence[Passage | None],
    archive_id: str,
    known_ids: Collection[str],
    caller_ids: Collection[str],
    duplicates: Mapping[str, str] | None,
    restored_ids: Collection[str] = (),
    identities: Collection[EmbedderIdentity] = (),
) -> InsertPlan:
    """Decides which passages of a batch are new.

    Args:
        passages: the batch, with None in place of each invalid passage.
        archive_id: the archive of the batch.
        known_ids: the ids among them that exist or existed.
        caller_ids: the ids that the caller supplied. One that is known is an error; one of ours is a replay.
        duplicates: the ids of the archive's passages by the hash of their text; None if it does not deduplicate.
        restored_ids: the ids of passages of the archive that an import may name again.
        identities: those of the vectors that the archive keeps.
    """
    taken = set(known_ids)
    by_hash = dict(duplicates) if duplicates is not None else None
    entries: list[InsertEntry] = []
    new: list[Passage] = []
    for passage in passages:
        if passage is None:
            entries.append(InsertEntry())
            continue
        text_hash = content_hash(passage.text)
        if passage.id in restored_ids:
            entries.append(InsertEntry(passage.id, duplicate=True))
        elif passage.id in taken:
            from_caller = passage.id in caller_ids
            entries.append(InsertEntry(reason="ALREADY_EXISTS") if from_caller else InsertEntry(passage.id))
        elif by_hash is not None and text_hash in by_hash:
            entries.append(InsertEntry(by_hash[text_hash], duplicate=True))
        else:
            use = decide_use(passage.given_vector, identities)
            kept = passage.given_vector if use is VectorUse.KEPT else None
            entries.append(InsertEntry(passage.id, vector_use=use))
            new.append(replace(passage, archive_id=archive_id, given_vector=kept))
            taken.add(passage.id)
            if by_hash is not None:
                by_hash[text_hash] = passage.id
    return InsertPlan(tuple(entries), tuple(new))
