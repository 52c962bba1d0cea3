"""A text of many passages, and what must be left of its files."""

from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc

from .service import Service

_WORDS = "river stone letter window garden morning engine paper silver market winter signal harbour".split()  # noqa: SIM905
PARAGRAPHS = [
    f"Section {number}\n\n"
    + " ".join(
        f"The {_WORDS[(number * 5 + each) % 13]} of {_WORDS[(number + each * 3) % 13]} {number * 31 + each} is "
        f"{(number * 37 + each * 101) % 997}."
        for each in range(12)
    )
    for number in range(12)
]
TEXT = "\n\n".join(PARAGRAPHS).encode()


async def assert_consistent(service: Service, folder: pb.Folder) -> None:
    """Fails unless the archive has each passage of the files once, and nothing else is left."""
    texts = await service.passages(folder.archive_id)
    assert len(texts) == len(set(texts)) == await service.count("file_passages WHERE embedded = 1")
    assert await service.count("file_passages WHERE embedded = 0") == 0
    listed = (await service.client.files.ListFiles(rpc.ListFilesRequest())).files
    assert sum(file.total_chunks for file in listed) == len(texts)
    assert {file.chunks_embedded for file in listed} == {file.total_chunks for file in listed}
    assert await service.count("(SELECT DISTINCT text_id FROM segments)") == len(listed)
    await service.work(advance=7200)
    assert len(service.blobs()) == len(listed)
    assert await service.count("removals") == 0


async def assert_nothing_left(service: Service) -> None:
    """Fails if something of deleted files is left."""
    for table in ("file_passages", "segments", "blobs", "removals"):
        assert await service.count(table) == 0, table
    assert service.blobs() == []
