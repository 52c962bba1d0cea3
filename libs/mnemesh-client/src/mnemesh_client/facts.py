"""Facts: statements with their times of validity, in the scope of an agent, a name or an identity."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from google.protobuf import field_mask_pb2
from mnemesh.recall.v1 import (
    episodes_pb2,
    episodes_service_pb2,
    episodes_service_pb2_grpc,
    memory_findings_pb2,
    messages_service_pb2,
)

from mnemesh_client.episodes import memory_scope, memory_scopes
from mnemesh_client.inputs import SearchModeName, json_text, optional_timestamp, present_fields
from mnemesh_client.paging import Order, paginate, sort_order, whole_answer
from mnemesh_client.transport import Channel


class FactsClient:
    """Calls of EpisodeService about facts, as `client.facts`.

    Errors: NotFound; FailedPrecondition FACT_CLOSED and ERASED; Unavailable EMBEDDER_UNAVAILABLE.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = episodes_service_pb2_grpc.EpisodeServiceStub(channel)

    async def create(
        self,
        text: str,
        *,
        agent_id: str | None = None,
        name: str | None = None,
        identity_id: str | None = None,
        tags: Sequence[str] = (),
        confidence: float | None = None,
        salience: float | None = None,
        valid_from: datetime | None = None,
        source: episodes_pb2.MemorySource | None = None,
        metadata: Mapping[str, Any] | str | None = None,
    ) -> episodes_service_pb2.CreateFactResponse:
        """Adds a fact to the scope of an agent, a name or an identity. An open fact with the same text is confirmed."""
        fact = episodes_pb2.Fact(
            scope=memory_scope(agent_id, name, identity_id=identity_id),
            text=text,
            tags=tags,
            confidence=confidence,
            salience=salience,
            valid_from_time=optional_timestamp(valid_from),
            source=source,
            metadata=json_text(metadata),
        )
        return await self.stub.CreateFact(episodes_service_pb2.CreateFactRequest(fact=fact))

    async def get(self, fact_id: str) -> episodes_pb2.Fact:
        """Returns a fact, closed or not."""
        return (await self.stub.GetFact(episodes_service_pb2.GetFactRequest(fact_id=fact_id))).fact

    def list(
        self,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        identity_ids: Sequence[str] = (),
        tags: Sequence[str] = (),
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        include_invalid: bool = False,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[episodes_pb2.Fact]:
        """Yields facts, oldest first unless `order` is "desc".

        They were valid at `valid_at` according to the knowledge at `known_at`. Both times default to now.
        """
        criteria = episodes_service_pb2.FactFilter(
            scopes=memory_scopes(agent_id, names, identity_ids),
            tags_any=tags,
            valid_at_time=optional_timestamp(valid_at),
            known_at_time=optional_timestamp(known_at),
            include_invalid=include_invalid,
        )
        request = episodes_service_pb2.ListFactsRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListFacts, request, "facts", limit)

    async def search(
        self,
        query: str,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        identity_ids: Sequence[str] = (),
        tags: Sequence[str] = (),
        valid_at: datetime | None = None,
        known_at: datetime | None = None,
        reference_time: datetime | None = None,
        time_zone: str | None = None,
        mode: SearchModeName = "hybrid",
        limit: int = 0,
    ) -> Sequence[episodes_service_pb2.FactHit]:
        """Searches the facts that `list` yields, by words and meaning, best first. A `limit` of 0 is 20.

        With `reference_time`, times in the query ("last year", "what did you know in May") select the facts that were
        valid or known then.
        """
        criteria = episodes_service_pb2.FactFilter(
            scopes=memory_scopes(agent_id, names, identity_ids),
            tags_any=tags,
            valid_at_time=optional_timestamp(valid_at),
            known_at_time=optional_timestamp(known_at),
        )
        request = episodes_service_pb2.SearchFactsRequest(
            query=query,
            mode=messages_service_pb2.SearchMode.Value(f"SEARCH_MODE_{mode.upper()}"),
            limit=limit,
            filter=criteria,
            reference_time=optional_timestamp(reference_time),
            time_zone=time_zone,
        )
        return list((await whole_answer(self.stub.SearchFacts, request)).hits)

    async def update(self, fact_id: str, **fields: Any) -> episodes_pb2.Fact:
        """Updates the tags, salience, confidence or metadata of a fact. For another text, use `supersede`."""
        if "metadata" in fields:
            fields["metadata"] = json_text(fields["metadata"])
        request = episodes_service_pb2.UpdateFactRequest(
            fact=episodes_pb2.Fact(id=fact_id, **present_fields(**fields)),
            update_mask=field_mask_pb2.FieldMask(paths=list(fields)),
        )
        return (await self.stub.UpdateFact(request)).fact

    async def supersede(
        self,
        fact_id: str,
        text: str,
        *,
        valid_from: datetime | None = None,
        reason: str | None = None,
        request_id: str = "",
        **fields: Any,
    ) -> episodes_pb2.Fact:
        """Replaces a fact with a new one, which is valid from `valid_from` or from now. Returns the new fact."""
        fact = episodes_pb2.Fact(text=text, valid_from_time=optional_timestamp(valid_from), **present_fields(**fields))
        operation = episodes_pb2.SupersedeOperation(fact_id=fact_id, fact=fact, reason=reason)
        request = episodes_service_pb2.SupersedeFactRequest(request_id=request_id, operation=operation)
        return (await self.stub.SupersedeFact(request)).fact

    async def invalidate(
        self,
        fact_id: str,
        *,
        invalid_at: datetime | None = None,
        reason: str | None = None,
        superseded_by: str | None = None,
        request_id: str = "",
    ) -> episodes_pb2.Fact:
        """Closes a fact as of `invalid_at` or of now, in favour of the fact `superseded_by` if that is set."""
        operation = episodes_pb2.InvalidateOperation(
            fact_id=fact_id,
            invalid_time=optional_timestamp(invalid_at),
            reason=reason,
            superseded_by_id=superseded_by,
        )
        request = episodes_service_pb2.InvalidateFactRequest(request_id=request_id, operation=operation)
        return (await self.stub.InvalidateFact(request)).fact

    async def restore(self, fact_id: str, *, reason: str | None = None) -> episodes_pb2.Fact:
        """States a closed fact again, in place of the fact that superseded it. Returns the restored fact."""
        request = episodes_service_pb2.RestoreFactRequest(fact_id=fact_id, reason=reason)
        return (await self.stub.RestoreFact(request)).fact

    def audit(
        self,
        *,
        agent_id: str | None = None,
        names: Sequence[str] = (),
        identity_ids: Sequence[str] = (),
        stale_days: int | None = None,
    ) -> AsyncIterator[memory_findings_pb2.MemoryFinding]:
        """Yields problems of the facts and episodes of the scopes; of the organization if none is given.

        See `mnemesh_client.memory_audit` for blocks and passages as well, and for what to do about a finding.
        """
        request = episodes_service_pb2.AuditMemoryRequest(
            scopes=memory_scopes(agent_id, names, identity_ids), stale_days=stale_days
        )
        return paginate(self.stub.AuditMemory, request, "findings")

    def history(self, fact_id: str) -> AsyncIterator[episodes_pb2.Fact]:
        """Yields the facts that superseded one another, oldest first."""
        request = episodes_service_pb2.ListFactHistoryRequest(fact_id=fact_id)
        return paginate(self.stub.ListFactHistory, request, "facts")

    async def delete(self, fact_id: str) -> None:
        """Erases a fact and its content permanently."""
        await self.stub.DeleteFact(episodes_service_pb2.DeleteFactRequest(fact_id=fact_id))
