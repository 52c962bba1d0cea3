"""The use cases around definitions of tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import current_principal

from mnemesh_tools.errors import ToolNameTaken
from mnemesh_tools.model.builtin_tools import Builtins
from mnemesh_tools.model.definitions import settled
from mnemesh_tools.model.tools import MAX_BATCH, Tool, ToolFilter, ToolOrder, ToolSpec, ToolType
from mnemesh_tools.schema import from_source
from mnemesh_tools.store.base import ToolStore

# Where one of these changes and no schema comes with it, the schema is made anew.
_SCHEMA_SOURCES = frozenset({"source_code", "source_type", "args_json_schema"})


class ToolService:
    """Definitions of tools, in the organization of the current principal."""

    def __init__(self, store: ToolStore, clock: Clock, ids: IdSource, builtins: Builtins | None = None) -> None:
        """Each organization has `builtins` as its own from when it is first seen."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._builtins = builtins or Builtins()
        self._furnished: set[str] = set()

    async def create(self, spec: ToolSpec, key: RequestKey | None) -> Tool:
        """Stores a tool under the name that its source or schema gives.

        Raises:
            ToolSourceInvalid: no schema can be made of the source.
            ToolNameTaken: the organization has a tool of that name.
        """
        _refuse_builtin(spec)
        await self._furnish()
        return await self._store.create(self._new(settled(spec)), key)

    async def upsert(self, spec: ToolSpec, written: Collection[str], key: RequestKey | None) -> tuple[Tool, bool]:
        """Creates a tool, or writes the fields `written` of the one with that name; tells whether it was created.

        Raises:
            ToolNameTaken: a built-in tool has the name.
        """
        _refuse_builtin(spec)
        complete = settled(spec)
        await self._furnish()

        def merge(stored: ToolSpec) -> ToolSpec:
            if stored.type is ToolType.BUILTIN:
                raise ToolNameTaken(stored.name)
            return _merged(stored, spec, set(written) - {"name"})

        return await self._store.upsert(self._new(complete), merge, key)

    async def update(self, tool_id: str, spec: ToolSpec, written: Collection[str], key: RequestKey | None) -> Tool:
        """Writes the fields `written`. A changed source gives the tool its name and, unless one is written, its schema.

        Raises:
            ToolNotFound: the organization has no such tool.
            ToolNameTaken: the source's name is another tool's.
        """
        change = replace(self._new(spec), id=tool_id)
        return await self._store.update(change, lambda stored: _merged(stored, spec, written), key)

    async def delete(self, tool_id: str, key: RequestKey | None) -> None:
        """Deletes a tool; a repeat succeeds."""
        await self._store.delete(current_principal().organization_id, tool_id, key)

    async def get(self, tool_id: str) -> Tool:
        """The tool with an id."""
        return await self._store.get(current_principal().organization_id, tool_id)

    async def get_by_name(self, name: str) -> Tool:
        """The tool with a name."""
        await self._furnish()
        return await self._store.get_by_name(current_principal().organization_id, name)

    async def get_many(self, ids: Sequence[str], names: Sequence[str]) -> tuple[Tool, ...]:
        """Those of `ids` and then those of `names`, without the unknown ones."""
        if len(ids) + len(names) > MAX_BATCH:
            raise InvalidArgument(f"At most {MAX_BATCH} tools can be asked for at once.", field="tool_ids")
        if names:
            await self._furnish()
        return await self._store.get_many(current_principal().organization_id, tuple(ids), tuple(names))

    async def list(self, where: ToolFilter, order: ToolOrder, query: PageQuery) -> Page[Tool]:
        """One page of the organization's tools."""
        await self._furnish()
        return await self._store.list(current_principal().organization_id, where, order, query)

    async def count(self, where: ToolFilter) -> int:
        """How many tools a list with this filter has."""
        await self._furnish()
        return await self._store.count(current_principal().organization_id, where)

    async def ensure_builtins(self, specs: Sequence[ToolSpec], key: RequestKey | None) -> tuple[Tool, ...]:
        """Stores the definitions of built-in tools, restoring deleted and rewriting changed ones.

        Each is a write of its own that changes nothing when repeated, so a repeat after a failure completes the rest.
        """
        for spec in specs:
            if spec.type is not ToolType.BUILTIN:
                raise InvalidArgument("Only tools of type BUILTIN are the caller's own.", field="tools.type")
        stored = []
        for spec in [settled(spec) for spec in specs]:
            part = None if key is None else replace(key, request_id=derive_id("tool", key.request_id, spec.name))
            tool, _ = await self._store.upsert(self._new(spec), _always(spec), part)
            stored.append(tool)
        return tuple(stored)

    async def _furnish(self) -> None:
        """Gives the organization the built-in tools of this release, once; what it deletes or changes since stays so.

        A tool of its own that has the name of one keeps it.
        """
        organization_id = current_principal().organization_id
        if organization_id in self._furnished or not self._builtins.specs:
            return
        tools = [replace(self._new(spec), created_by_id="", last_updated_by_id="") for spec in self._builtins.specs]
        await self._store.furnish(organization_id, self._builtins.release, tools)
        self._furnished.add(organization_id)

    def generate_schema(self, source: str) -> str:
        """The schema of Python source as JSON text; nothing is stored and nothing is run."""
        return json.dumps(from_source(source, "source_code").to_dict(), ensure_ascii=False)

    def _new(self, spec: ToolSpec) -> Tool:
        who, now = current_principal(), self._clock.now()
        return Tool(
            id=self._ids.new("tool"),
            organization_id=who.organization_id,
            spec=spec,
            revision=1,
            created_at=now,
            updated_at=now,
            created_by_id=who.subject_id,
            last_updated_by_id=who.subject_id,
        )


def _always(spec: ToolSpec) -> Callable[[ToolSpec], ToolSpec]:
    return lambda _: spec


def _refuse_builtin(spec: ToolSpec) -> None:
    if spec.type is ToolType.BUILTIN:
        raise InvalidArgument("Built-in tools are not created one by one.", field="tool.type")


def _merged(stored: ToolSpec, given: ToolSpec, written: Collection[str]) -> ToolSpec:
    """`stored` with the fields `written` taken from `given`, its name and schema settled anew."""
    fields = {name: getattr(given, name) for name in written}
    remade = bool(_SCHEMA_SOURCES & set(written)) and "json_schema" not in written
    by_source = stored.type is ToolType.CUSTOM
    merged = replace(stored, **fields)
    if by_source and "name" not in written and ("json_schema" in written or remade):
        merged = replace(merged, name="")
    if remade and by_source:
        merged = replace(merged, json_schema="")
    return settled(merged)
