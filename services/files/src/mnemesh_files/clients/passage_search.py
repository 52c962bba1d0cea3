"""Searches of passages in the archival service over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
from mnemesh.archival.v1 import passages_service_pb2 as rpc
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_files.ports.passage_search import FoundPassage, FoundPassages

SEARCH_SECONDS: Final = 5.0


class PassageSearchClient:
    """PassageSearchPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._passages = PassageServiceStub(channel)

    async def search(
        self, query: str, archive_ids: Sequence[str], file_ids: Sequence[str], limit: int
    ) -> FoundPassages:
        """See PassageSearchPort."""
        request = rpc.SearchPassagesRequest(
            query=query,
            mode=rpc.PASSAGE_SEARCH_MODE_HYBRID,
            limit=limit,
            filter=rpc.PassageFilter(archive_ids=archive_ids, file_ids=file_ids),
        )
        response = await whole_answer(self._passages.SearchPassages, request, seconds=SEARCH_SECONDS)
        found = (
            FoundPassage(hit.passage.id, hit.passage.file_id, hit.passage.text, hit.score) for hit in response.hits
        )
        return FoundPassages(tuple(found), response.degraded)
