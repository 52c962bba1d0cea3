"""The audit of everything that agents remember: facts and episodes, blocks, passages, and what has no owner.

Example:
    async for finding in audit_memory(mnemesh, agent):
        print(finding.detail, finding.action)
        await apply_finding(mnemesh, finding)
"""

import hashlib
import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal

from mnemesh.archival.v1 import archives_service_pb2
from mnemesh.recall.v1 import episodes_pb2, episodes_service_pb2, memory_findings_pb2
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import derive_id
from mnemesh_kit.secret_patterns import find_secrets, mask_secrets

from mnemesh_client.agent import Agent
from mnemesh_client.mnemesh import Mnemesh

Action = Literal["merge", "supersede", "invalidate", "delete", "redact"]
_SHOWN: Final = 500
_OUTER_MARKS: Final = ".,;:!?…'\"“”‘’«»()[]*_"
_KINDS: Final = len("MEMORY_FINDING_KIND_")
_ACTIONS: Final = len("MEMORY_FINDING_ACTION_")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A problem of one memory or of two.

    `kind` is duplicate, near_duplicate, contradiction, stale, secret or orphan. `resource` is fact, episode, block,
    passage, archive or scope; `ids` are those of the memories, and `texts` their texts without secrets. `kept_id` is
    the fact or passage that stays. `scope` is that of facts and episodes.
    """

    id: str
    kind: str
    resource: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    detail: str
    action: Action
    kept_id: str | None = None
    similarity: float | None = None
    scope: episodes_pb2.MemoryScope | None = None

    def as_json(self) -> dict[str, object]:
        """Returns the finding as an object for JSON."""
        scope = None
        if self.scope is not None:
            field = self.scope.WhichOneof("scope")
            scope = {field: getattr(self.scope, field)} if field is not None else None
        values = {"kept_id": self.kept_id, "similarity": self.similarity, "scope": scope}
        return {
            "id": self.id,
            "kind": self.kind,
            "resource": self.resource,
            "ids": list(self.ids),
            "texts": list(self.texts),
            "detail": self.detail,
            "action": self.action,
            **{name: value for name, value in values.items() if value is not None},
        }


async def audit_memory(
    mnemesh: Mnemesh, agent: Agent | None = None, *, stale_days: int | None = None
) -> AsyncIterator[AuditFinding]:
    """Yields the problems of what an agent remembers; of the whole organization, without an agent. Changes nothing.

    Args:
        mnemesh: the client.
        agent: the agent. Its own memories, and those of its named scope.
        stale_days: the days after which a fact that nothing confirmed is stale; None is 365.
    """
    name = None if agent is None else agent.proto.compaction_settings.memory_scope
    agent_id = None if agent is None else agent.id
    findings = mnemesh.facts.audit(agent_id=agent_id, names=[name] if name else [], stale_days=stale_days)
    async for finding in findings:
        yield _of_recall(finding)
    async for block in mnemesh.blocks.list(agent_id=agent_id):
        if (found := _secret("block", block.id, block.value)) is not None:
            yield found
    async for found in _passages(mnemesh, agent_id):
        yield found
    if agent is None:
        async for found in _orphans(mnemesh):
            yield found


async def apply_finding(mnemesh: Mnemesh, finding: AuditFinding) -> None:
    """Does what a finding suggests. A repeat changes nothing more. Raises the errors of the calls."""
    match finding.action:
        case "merge":
            await _merge(mnemesh, finding)
        case "supersede":
            await mnemesh.facts.stub.InvalidateFact(
                episodes_service_pb2.InvalidateFactRequest(
                    request_id=finding.id, operation=await _in_favour(mnemesh, finding)
                )
            )
        case "invalidate":
            await mnemesh.facts.invalidate(finding.ids[0], reason=finding.detail, request_id=finding.id)
        case "delete":
            await _delete(mnemesh, finding)
        case "redact":
            await _redact(mnemesh, finding)


def _of_recall(finding: memory_findings_pb2.MemoryFinding) -> AuditFinding:
    kind = memory_findings_pb2.MemoryFindingKind.Name(finding.kind)[_KINDS:].lower()
    action: Action = memory_findings_pb2.MemoryFindingAction.Name(finding.action)[_ACTIONS:].lower()  # type: ignore[assignment]
    return AuditFinding(
        id=finding.id,
        kind=kind,
        resource=finding.memory_ids[0].partition("-")[0],
        ids=tuple(finding.memory_ids),
        texts=tuple(finding.texts),
        detail=finding.detail,
        action=action,
        kept_id=finding.kept_id if finding.HasField("kept_id") else None,
        similarity=finding.similarity if finding.HasField("similarity") else None,
        scope=finding.scope,
    )


def _secret(resource: str, id_: str, text: str) -> AuditFinding | None:
    found = find_secrets(text)
    if not found:
        return None
    kinds = ", ".join(dict.fromkeys(secret.kind for secret in found))
    shown = mask_secrets(text)[:_SHOWN]
    detail = f"It contains what looks like a secret: {kinds}."
    return AuditFinding(derive_id("finding", "secret", id_), "secret", resource, (id_,), (shown,), detail, "redact")


async def _passages(mnemesh: Mnemesh, agent_id: str | None) -> AsyncIterator[AuditFinding]:
    """Yields passages with secrets, and those that have the words of an older passage of their archive."""
    oldest: dict[bytes, str] = {}
    async for passage in mnemesh.passages.list(agent_id=agent_id, order="asc"):
        if (found := _secret("passage", passage.id, passage.text)) is not None:
            yield found
        words = (word.strip(_OUTER_MARKS) for word in unicodedata.normalize("NFKC", passage.text).casefold().split())
        key = " ".join((passage.archive_id, *filter(None, words)))
        kept_id = oldest.setdefault(hashlib.sha256(key.encode()).digest(), passage.id)
        if kept_id != passage.id:
            shown = mask_secrets(passage.text)[:_SHOWN]
            detail = f"It has the words of the older passage {kept_id}."
            finding_id = derive_id("finding", "duplicate", passage.id)
            yield AuditFinding(finding_id, "duplicate", "passage", (passage.id,), (shown,), detail, "delete", kept_id)


async def _orphans(mnemesh: Mnemesh) -> AsyncIterator[AuditFinding]:
    """Yields scopes whose owner does not exist, and blocks and archives that no agent holds."""
    agent_ids = {agent.id async for agent in mnemesh.agents.list()}
    owners: dict[str, set[str]] = {"agent_id": agent_ids}
    async for summary in mnemesh.episodes.scopes():
        kind = summary.scope.WhichOneof("scope") or ""
        if kind == "identity_id" and kind not in owners:
            owners[kind] = {identity.id async for identity in mnemesh.identities.list()}
        if kind == "group_id" and kind not in owners:
            owners[kind] = {group.id async for group in mnemesh.groups.list()}
        owner = getattr(summary.scope, kind, "")
        if kind in owners and owner not in owners[kind]:
            counts = f"{summary.fact_count} valid facts and {summary.episode_count} episodes"
            detail = f"The scope has {counts}, and its {kind.removesuffix('_id')} does not exist."
            yield _orphan("scope", owner, owner, detail, summary.scope)
    async for block in mnemesh.blocks.list(agents_exactly=0):
        if not block.is_template:
            yield _orphan("block", block.id, block.value, f"No agent holds the block {block.label!r}.")
    async for archive in mnemesh.archives.list():
        request = archives_service_pb2.ListArchiveAgentsRequest(archive_id=archive.id, page_size=1)
        if not (await mnemesh.archives.stub.ListArchiveAgents(request)).agent_ids:
            yield _orphan("archive", archive.id, archive.name, f"No agent holds the archive {archive.name!r}.")


def _orphan(
    resource: str, id_: str, text: str, detail: str, scope: episodes_pb2.MemoryScope | None = None
) -> AuditFinding:
    finding_id = derive_id("finding", "orphan", resource, id_)
    shown = mask_secrets(text)[:_SHOWN]
    return AuditFinding(finding_id, "orphan", resource, (id_,), (shown,), detail, "delete", scope=scope)


async def _merge(mnemesh: Mnemesh, finding: AuditFinding) -> None:
    invalidate = await _in_favour(mnemesh, finding)
    other = await mnemesh.facts.get(invalidate.fact_id)
    confirm = episodes_pb2.ConfirmOperation(fact_id=finding.kept_id or "", source=other.source)
    request = episodes_service_pb2.CommitEpisodeRequest(
        request_id=finding.id,
        operations=[
            episodes_pb2.FactOperation(confirm=confirm),
            episodes_pb2.FactOperation(invalidate=invalidate),
        ],
    )
    await mnemesh.episodes.stub.CommitEpisode(request)


async def _in_favour(mnemesh: Mnemesh, finding: AuditFinding) -> episodes_pb2.InvalidateOperation:
    """Returns the operation that closes the other fact in favour of the one that stays.

    A fact supersedes at most one other. If the one that stays supersedes a third one, the reason names it instead.
    """
    kept_id = finding.kept_id or ""
    (other_id,) = (id_ for id_ in finding.ids if id_ != kept_id)
    kept = await mnemesh.facts.get(kept_id)
    if kept.supersedes_id in ("", other_id):
        return episodes_pb2.InvalidateOperation(fact_id=other_id, reason=finding.detail, superseded_by_id=kept_id)
    return episodes_pb2.InvalidateOperation(fact_id=other_id, reason=f"{finding.detail} {kept_id} stays.")


async def _delete(mnemesh: Mnemesh, finding: AuditFinding) -> None:
    match finding.resource:
        case "fact":
            await mnemesh.facts.delete(finding.ids[0])
        case "block":
            await mnemesh.blocks.delete(finding.ids[0])
        case "archive":
            await mnemesh.archives.delete(finding.ids[0])
        case "passage":
            await mnemesh.passages.delete(finding.ids[0])
        case "scope" if finding.scope is not None:
            await mnemesh.episodes.erase_scope(finding.scope)


async def _redact(mnemesh: Mnemesh, finding: AuditFinding) -> None:
    """Replaces a text by one without its secrets, and erases the fact that had it."""
    id_ = finding.ids[0]
    match finding.resource:
        case "fact":
            await _redact_fact(mnemesh, finding)
        case "episode":
            episode = await mnemesh.episodes.get(id_)
            await mnemesh.episodes.update(id_, summary=mask_secrets(episode.summary))
        case "block":
            block = await mnemesh.blocks.get(id_)
            await mnemesh.blocks.update(id_, value=mask_secrets(block.value), base_revision=block.revision)
        case "passage":
            passage = await mnemesh.passages.get(id_)
            await mnemesh.passages.update(id_, text=mask_secrets(passage.text))


async def _redact_fact(mnemesh: Mnemesh, finding: AuditFinding) -> None:
    try:
        fact = await mnemesh.facts.get(finding.ids[0])
    except NotFound:
        return
    if not fact.HasField("close_time"):
        valid_from = fact.valid_from_time if fact.HasField("valid_from_time") else None
        operation = episodes_pb2.SupersedeOperation(
            fact_id=fact.id,
            fact=episodes_pb2.Fact(text=mask_secrets(fact.text), source=fact.source, valid_from_time=valid_from),
            reason=finding.detail,
        )
        request = episodes_service_pb2.SupersedeFactRequest(request_id=finding.id, operation=operation)
        await mnemesh.facts.stub.SupersedeFact(request)
    await mnemesh.facts.delete(fact.id)
