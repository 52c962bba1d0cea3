"""Conversion of searches and their results."""

from __future__ import annotations

from mnemesh.archival.v1 import passages_service_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import optional_timestamp_from_proto, timestamp_to_proto, zone_from_name
from mnemesh_retrieval.time_expressions.resolver import TimeRange

from mnemesh_archival.model.search import PassageHit, PassageSearch, SearchKind
from mnemesh_archival.rpc.convert.passages import passage_filter_from_proto, passage_to_proto

_KINDS = {
    pb.PASSAGE_SEARCH_MODE_UNSPECIFIED: SearchKind.HYBRID,
    pb.PASSAGE_SEARCH_MODE_HYBRID: SearchKind.HYBRID,
    pb.PASSAGE_SEARCH_MODE_TEXT: SearchKind.TEXT,
    pb.PASSAGE_SEARCH_MODE_VECTOR: SearchKind.VECTOR,
}


def passage_search_from_proto(request: pb.SearchPassagesRequest, offset: int) -> PassageSearch:
    """Returns a search. `offset` is the number of hits of earlier pages.

    Raises:
        InvalidArgument: an unknown mode, a time out of range, or an invalid filter.
    """
    return PassageSearch(
        query=request.query,
        further_queries=tuple(request.further_queries),
        kind=search_kind_from_proto(request.mode),
        filter=passage_filter_from_proto(request.filter),
        limit=request.limit,
        offset=offset,
        before=request.passages_before,
        after=request.passages_after,
        zone=zone_from_name(request.filter.time_zone, "filter.time_zone"),
        reference_time=optional_timestamp_from_proto(request, "reference_time", "reference_time"),
        with_embedding=request.include_embedding,
        rerank=request.rerank if request.HasField("rerank") else None,
    )


def search_kind_from_proto(mode: int) -> SearchKind:
    """Returns the kind of a search. Raises InvalidArgument if it is unknown."""
    if mode not in _KINDS:
        raise InvalidArgument("mode is not a known search mode.", field="mode")
    return _KINDS[pb.PassageSearchMode.ValueType(mode)]


def passage_hit_to_proto(hit: PassageHit) -> pb.PassageHit:
    """Returns a hit as a message."""
    return pb.PassageHit(
        passage=passage_to_proto(hit.passage),
        score=hit.score,
        vector_rank=hit.vector_rank,
        text_rank=hit.text_rank,
        text_score=hit.text_score,
        vector_score=hit.vector_score,
        rerank_score=hit.rerank_score,
        before=[passage_to_proto(each) for each in hit.before],
        after=[passage_to_proto(each) for each in hit.after],
    )


def time_range_to_proto(time: TimeRange) -> pb.ResolvedTimeRange:
    """Returns a range of time as a message."""
    return pb.ResolvedTimeRange(
        expression=time.expression,
        start_time=timestamp_to_proto(time.start) if time.start is not None else None,
        end_time=timestamp_to_proto(time.end) if time.end is not None else None,
    )
