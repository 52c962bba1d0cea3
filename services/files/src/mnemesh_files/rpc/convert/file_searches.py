"""Conversion of searches in files, and of citations."""

from __future__ import annotations

from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh_kit.text import require_no_nul

from mnemesh_files.model.file_search import FileHit, ResolvedCitation
from mnemesh_files.model.grep import DEFAULT_CONTEXT_LINES, GrepQuery, GrepResult, SkipCause, SkippedFile

_CAUSES = {cause: rpc.SkipCause.Value(f"SKIP_CAUSE_{cause.name}") for cause in SkipCause}


def grep_query_from_proto(request: rpc.GrepFilesRequest) -> GrepQuery:
    """Returns a search by pattern. Raises InvalidArgument if a text contains NUL characters."""
    return GrepQuery(
        require_no_nul(request.pattern, "pattern"),
        require_no_nul(request.include, "include") if request.HasField("include") else None,
        request.context_lines if request.HasField("context_lines") else DEFAULT_CONTEXT_LINES,
        request.offset,
        request.limit,
    )


def grep_result_to_proto(result: GrepResult) -> rpc.GrepFilesResponse:
    """Returns the result of a search by pattern as a message."""
    return rpc.GrepFilesResponse(
        matches=[
            rpc.GrepMatch(
                file_id=match.file_id,
                file_name=match.file_name,
                line=match.line,
                text=match.text,
                lines_before=match.before,
                lines_after=match.after,
                page=match.page,
            )
            for match in result.matches
        ],
        total_matches=result.total,
        files=[
            rpc.FileMatchCount(file_id=file.file_id, file_name=file.file_name, count=file.count)
            for file in result.files
        ],
        files_searched=result.files_searched,
        skipped=[skipped_to_proto(file) for file in result.skipped],
        capped=result.capped,
        timed_out=result.timed_out,
        next_offset=result.next_offset,
    )


def file_hit_to_proto(hit: FileHit) -> rpc.FileHit:
    """Returns a hit of a search by similarity and words as a message."""
    return rpc.FileHit(
        file_id=hit.file_id,
        file_name=hit.file_name,
        passage_id=hit.passage_id,
        text=hit.text,
        score=hit.score,
        start_line=hit.start_line,
        end_line=hit.end_line,
        start_page=hit.start_page,
        end_page=hit.end_page,
    )


def citation_to_proto(citation: ResolvedCitation) -> rpc.Citation:
    """Returns a citation as a message."""
    return rpc.Citation(
        start=citation.start,
        end=citation.end,
        file_name=citation.file_name,
        file_id=citation.file_id,
        start_line=citation.start_line,
        end_line=citation.end_line,
        start_page=citation.start_page,
        end_page=citation.end_page,
        quote=citation.quote,
    )


def skipped_to_proto(file: SkippedFile) -> rpc.SkippedFile:
    """Returns a file that a search left out as a message."""
    return rpc.SkippedFile(file_id=file.file_id, file_name=file.file_name, cause=_CAUSES[file.cause])
