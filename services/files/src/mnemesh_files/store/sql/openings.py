"""Opens windows into the files of an agent, and closes files beyond its limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mnemesh_files.errors import FileNotParsed
from mnemesh_files.model.agent_files import FileRequest, OpenedFile, Opening, require_distinct, require_requests
from mnemesh_files.model.windows import require_in_file
from mnemesh_files.store.sql.agent_rows import AgentRow


def open_windows(agent: AgentRow, requests: Sequence[FileRequest], now: datetime, *, close_others: bool) -> Opening:
    """Opens windows, all or none, within a transaction. See AgentFileStore.open_files."""
    limit = agent.limits.max_files_open
    windows = require_requests(requests, limit)
    held = agent.find([request.file for request in requests], "files")
    require_distinct([file.file_id for file in held])
    opened = []
    for index, (file, window) in enumerate(zip(held, windows, strict=True)):
        if not file.is_ready:
            raise FileNotParsed(file.name, file.status.name)
        require_in_file(window, file.total_lines, file.name, f"files[{index}]")
        opened.append(OpenedFile(file.file_id, window, file.window if file.is_open else None))
    ids = [file.file_id for file in held]
    others = sorted((file for file in agent.open_files() if file.file_id not in ids), key=lambda file: file.used)
    closed_others: tuple[str, ...] = ()
    if close_others:
        agent.close(others, now)
        closed_others = tuple(file.name for file in others)
    evicted = agent.evict(limit - len(held), now, besides=ids)
    agent.use(held, now)
    for file, each in zip(held, opened, strict=True):
        start, end = each.window.start_line, each.window.end_line
        agent.write_window(file, now, is_open=True, has_window=True, start_line=start, end_line=end)
    agent.change(now)
    return Opening(tuple(opened), closed_others, evicted, agent.revision()[0])
