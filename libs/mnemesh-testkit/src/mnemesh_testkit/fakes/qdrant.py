"""A fake Qdrant server: the client's local mode served over the gRPC services of a server.

It verifies that the adapter's requests and responses survive the wire protocol, not that a real server accepts them.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc as transport
from qdrant_client import AsyncQdrantClient, grpc, models
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc
from qdrant_client.grpc import collections_service_pb2_grpc, points_service_pb2_grpc, qdrant_pb2_grpc


class _Root(qdrant_pb2_grpc.QdrantServicer):
    def __init__(self, version: str) -> None:
        self._version = version

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        return grpc.HealthCheckReply(title="fake", version=self._version)


class _Collections(collections_service_pb2_grpc.CollectionsServicer):
    def __init__(self, local: AsyncQdrantClient) -> None:
        self._local = local

    async def CollectionExists(self, request: Any, context: Any) -> Any:
        exists = await self._local.collection_exists(request.collection_name)
        return grpc.CollectionExistsResponse(result=grpc.CollectionExists(exists=exists))

    async def Create(self, request: Any, context: Any) -> Any:
        await self._local.create_collection(
            request.collection_name,
            GrpcToRest.convert_vectors_config(request.vectors_config),
            GrpcToRest.convert_sparse_vector_config(request.sparse_vectors_config),
        )
        return grpc.CollectionOperationResponse(result=True)

    async def Delete(self, request: Any, context: Any) -> Any:
        await self._local.delete_collection(request.collection_name)
        return grpc.CollectionOperationResponse(result=True)

    async def List(self, request: Any, context: Any) -> Any:
        found = (await self._local.get_collections()).collections
        return grpc.ListCollectionsResponse(collections=[grpc.CollectionDescription(name=each.name) for each in found])

    async def Get(self, request: Any, context: Any) -> Any:
        info = await self._local.get_collection(request.collection_name)
        return grpc.GetCollectionInfoResponse(result=RestToGrpc.convert_collection_info(info), time=0.0)


class _Points(points_service_pb2_grpc.PointsServicer):
    def __init__(self, local: AsyncQdrantClient, version: tuple[int, ...]) -> None:
        self._local = local
        self._version = version
        self.indexes: dict[str, Any] = {}

    async def _filter(self, message: Any, context: Any) -> models.Filter:
        """Returns a filter. A server of a version that does not know one of its conditions refuses it."""
        if self._version < (1, 20) and "substring" in str(message):
            await context.abort(transport.StatusCode.INVALID_ARGUMENT, "Malformed Match condition")
        return GrpcToRest.convert_filter(message)

    async def CreateFieldIndex(self, request: Any, context: Any) -> Any:
        self.indexes[request.field_name] = GrpcToRest.convert_payload_schema_params(request.field_index_params)
        return _done()

    async def Upsert(self, request: Any, context: Any) -> Any:
        points = [GrpcToRest.convert_point_struct(point) for point in request.points]
        # An older server ignores the field.
        mode = GrpcToRest.convert_update_mode(request.update_mode) if self._version >= (1, 17) else None
        unchanged = GrpcToRest.convert_filter(request.update_filter) if request.HasField("update_filter") else None
        await self._local.upsert(request.collection_name, points, update_mode=mode, update_filter=unchanged)
        return _done()

    async def SetPayload(self, request: Any, context: Any) -> Any:
        selector = GrpcToRest.convert_points_selector(request.points_selector)
        await self._local.set_payload(request.collection_name, GrpcToRest.convert_payload(request.payload), selector)
        return _done()

    async def Delete(self, request: Any, context: Any) -> Any:
        await self._local.delete(request.collection_name, GrpcToRest.convert_points_selector(request.points))
        return _done()

    async def Get(self, request: Any, context: Any) -> Any:
        found = await self._local.retrieve(
            request.collection_name,
            [GrpcToRest.convert_point_id(id_) for id_ in request.ids],
            with_payload=GrpcToRest.convert_with_payload_selector(request.with_payload),
            with_vectors=GrpcToRest.convert_with_vectors_selector(request.with_vectors),
        )
        return grpc.GetResponse(result=[_record(record) for record in found], time=0.0)

    async def Scroll(self, request: Any, context: Any) -> Any:
        following: Any
        found, following = await self._local.scroll(
            request.collection_name,
            await self._filter(request.filter, context),
            limit=request.limit,
            order_by=GrpcToRest.convert_order_by(request.order_by) if request.HasField("order_by") else None,
            offset=GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None,
            with_payload=GrpcToRest.convert_with_payload_selector(request.with_payload),
        )
        return grpc.ScrollResponse(
            next_page_offset=RestToGrpc.convert_extended_point_id(following) if following is not None else None,
            result=[_record(record) for record in found],
            time=0.0,
        )

    async def Query(self, request: Any, context: Any) -> Any:
        found = await self._local.query_points(
            request.collection_name,
            query=GrpcToRest.convert_query(request.query),
            using=request.using,
            query_filter=await self._filter(request.filter, context),
            limit=request.limit,
            with_payload=GrpcToRest.convert_with_payload_selector(request.with_payload),
            with_vectors=GrpcToRest.convert_with_vectors_selector(request.with_vectors),
        )
        return grpc.QueryResponse(result=[RestToGrpc.convert_scored_point(point) for point in found.points], time=0.0)

    async def Count(self, request: Any, context: Any) -> Any:
        found = await self._local.count(request.collection_name, await self._filter(request.filter, context))
        return grpc.CountResponse(result=grpc.CountResult(count=found.count), time=0.0)

    async def Facet(self, request: Any, context: Any) -> Any:
        found = await self._local.facet(
            request.collection_name, request.key, await self._filter(request.filter, context), limit=request.limit
        )
        return grpc.FacetResponse(hits=[RestToGrpc.convert_facet_value_hit(hit) for hit in found.hits], time=0.0)


def _record(record: models.Record) -> Any:
    return RestToGrpc.convert_record(record.model_copy(update={"payload": record.payload or {}}))


def _done() -> Any:
    result = models.UpdateResult(operation_id=1, status=models.UpdateStatus.COMPLETED)
    return grpc.PointsOperationResponse(result=RestToGrpc.convert_update_result(result), time=time.monotonic())


class FakeQdrant:
    """The port of a fake server, and the payload indexes that were created."""

    def __init__(self, port: int, points: _Points) -> None:
        self.port = port
        self.indexes = points.indexes


def _services(root: _Root, collections: _Collections, points: _Points) -> list[tuple[Any, Any]]:
    generated: Any = (qdrant_pb2_grpc, collections_service_pb2_grpc, points_service_pb2_grpc)
    return [
        (generated[0].add_QdrantServicer_to_server, root),
        (generated[1].add_CollectionsServicer_to_server, collections),
        (generated[2].add_PointsServicer_to_server, points),
    ]


@asynccontextmanager
async def fake_qdrant(version: str = "1.20.0") -> AsyncIterator[FakeQdrant]:
    """Yields a fake server on a free port."""
    local = AsyncQdrantClient(":memory:")
    points = _Points(local, tuple(int(number) for number in version.split(".")))
    server = transport.aio.server()
    for add, servicer in _services(_Root(version), _Collections(local), points):
        add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield FakeQdrant(port, points)
    finally:
        await server.stop(None)
        await local.close()
