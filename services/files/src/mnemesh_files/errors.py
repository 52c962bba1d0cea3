"""The errors of the files service."""

from collections.abc import Sequence
from typing import Final

from mnemesh_kit.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MnemeshError,
    NotFound,
    ResourceExhausted,
)

_SHOWN_NAMES: Final = 20
"""The number of names of files that an error contains."""


class FolderNotFound(NotFound):
    """The organization has no such folder."""

    def __init__(self, folder_id: str) -> None:
        super().__init__(f"Folder {folder_id} does not exist.", resource_id=folder_id)


class FolderNameTaken(AlreadyExists):
    """Another folder of the organization has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"A folder named {name} exists. Choose another name.", field="folder.name", name=name)


class FileNotFound(NotFound):
    """The organization has no such file."""

    def __init__(self, file_id: str) -> None:
        super().__init__(f"File {file_id} does not exist.", resource_id=file_id)


class FileNameTaken(AlreadyExists):
    """The folder has a file with the name, and the upload asked for an error then."""

    def __init__(self, name: str, file_id: str) -> None:
        super().__init__(
            f"A file named {name} already exists in the folder. Choose another name or handling of duplicates.",
            field="header.name",
            name=name,
            resource_id=file_id,
        )


class FileNotParsed(FailedPrecondition):
    """The text of the file is not known yet, or its processing failed."""

    reason = "FILE_NOT_READY"

    def __init__(self, name: str, status: str) -> None:
        remedy = (
            "Its error_message states the cause. Process it again with RetryFile, or upload it again."
            if status == "ERROR"
            else "Try again when it is EMBEDDING or COMPLETED."
        )
        super().__init__(
            f"The text of file {name} is not available: its status is {status}. {remedy}",
            file_name=name,
            status=status,
        )


class UploadNotFound(NotFound):
    """The organization has no such unfinished upload."""

    def __init__(self, upload_id: str) -> None:
        super().__init__(
            f"Upload {upload_id} does not exist: it is finished, cancelled or expired.", resource_id=upload_id
        )


class UploadGap(FailedPrecondition):
    """The data begins after the end of what the server has."""

    def __init__(self, upload_id: str, offset: int) -> None:
        super().__init__(
            f"Upload {upload_id} continues at byte {offset}. Send the data from there.",
            resource_id=upload_id,
            offset=str(offset),
        )


class ContentMismatch(InvalidArgument):
    """The content does not have the size or the hash that the caller announced."""


class FileTooLarge(ResourceExhausted):
    """The content is larger than the server accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The file is larger than {limit:,} bytes, the limit of this server (MNEMESH_FILES_MAX_FILE_MB).",
            limit=str(limit),
        )


class FileSpaceFull(FileTooLarge):
    """The files of the organization have as many bytes as it may store."""

    def __init__(self, limit: int, used: int) -> None:
        MnemeshError.__init__(
            self,
            f"The organization's files have {used:,} of {limit:,} bytes (MNEMESH_FILES_ORGANIZATION_MB), and this one "
            "does not fit. Delete files.",
            limit=str(limit),
            used=str(used),
        )


class TooManyUploads(ResourceExhausted):
    """The organization has too many unfinished uploads."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The organization has {limit:,} unfinished uploads, which is the limit. Finish or cancel one.",
            limit=str(limit),
        )


class FolderNotHeld(NotFound):
    """The agent does not hold the folder."""

    def __init__(self, folder_id: str, agent_id: str) -> None:
        super().__init__(f"Folder {folder_id} is not attached to agent {agent_id}.", resource_id=folder_id)


class FileNotHeld(NotFound):
    """The agent does not hold the file, or holds several with the name."""

    reason = "FILE_NOT_ATTACHED"

    def __init__(self, name: str, field: str, names: Sequence[str]) -> None:
        shown = ", ".join(names[:_SHOWN_NAMES])
        more = f", and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
        super().__init__(
            f"{name} not attached - did you get the filename correct? Currently you have the following files attached: "
            f"[{shown}{more}]",
            field=field,
            file_name=name,
            file_names=f"{shown}{more}",
        )


class FilePatternInvalid(InvalidArgument):
    """The search pattern is not a regular expression of RE2, or it is empty or too long."""

    reason = "FILE_PATTERN_INVALID"

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, field=field)


class AgentErased(FailedPrecondition):
    """The agent was erased; nothing can be written for it."""

    reason = "ERASED"

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"Agent {agent_id} was erased.", resource_id=agent_id)


class ContentMissing(Internal):
    """The blob store lost a content. Restore it from a backup, or upload the file again."""

    def __init__(self, blob_id: str) -> None:
        super().__init__("The content of the file is missing in the blob store. Upload it again.", blob_id=blob_id)


class EmbedderUnknown(InvalidArgument):
    """The archival service cannot build the embedder."""

    reason = "EMBEDDER_UNKNOWN"


class ArchiveGone(NotFound):
    """The archive of a folder does not exist: the folder was deleted, or its archive was."""

    reason = "ARCHIVE_NOT_FOUND"


REMOTE = (EmbedderUnknown, ArchiveGone)
"""Errors of the archival service that this service handles by type."""


class LeaseLost(Aborted):
    """Another worker has the file, or it was deleted or replaced. The worker stops."""

    reason = "LEASE_LOST"

    def __init__(self, file_id: str) -> None:
        super().__init__(f"The lease of file {file_id} is lost.", resource_id=file_id)
