"""The servicer of `mnemesh.tools.v1.WebService`: decodes, calls a use case, encodes."""

from __future__ import annotations

from typing import Any

import grpc
from mnemesh.tools.v1 import web_service_pb2 as pb
from mnemesh.tools.v1 import web_service_pb2_grpc
from mnemesh_kit.principal import current_principal

from mnemesh_tools.rpc.convert.web import answer_to_proto, part_to_proto, search_from_proto
from mnemesh_tools.usecases.web import WebService

Context = grpc.aio.ServicerContext[Any, Any]


class WebServicer(web_service_pb2_grpc.WebServiceServicer):
    """Serves `mnemesh.tools.v1.WebService`."""

    def __init__(self, service: WebService) -> None:
        self._service = service

    async def SearchWeb(self, request: pb.SearchWebRequest, context: Context) -> pb.SearchWebResponse:
        """Searches the web."""
        return answer_to_proto(await self._service.search(current_principal(), search_from_proto(request)))

    async def FetchWebpage(self, request: pb.FetchWebpageRequest, context: Context) -> pb.FetchWebpageResponse:
        """Returns a part of a page's text."""
        return part_to_proto(
            await self._service.fetch(current_principal(), request.url, request.start, request.max_chars)
        )
