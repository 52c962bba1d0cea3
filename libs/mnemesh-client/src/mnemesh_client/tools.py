"""Tools: their definitions, their execution, and searches of the web and its pages."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from google.protobuf import duration_pb2
from mnemesh.tools.v1 import (
    execution_service_pb2,
    execution_service_pb2_grpc,
    tools_pb2,
    tools_service_pb2,
    tools_service_pb2_grpc,
    web_service_pb2,
    web_service_pb2_grpc,
)
from mnemesh_kit.time import optional_timestamp_to_proto

from mnemesh_client.inputs import ToolSource, npm_requirements, package_requirements, source_text, update_request
from mnemesh_client.paging import Order, paginate, sort_order, whole_answer
from mnemesh_client.transport import Channel

Language = Literal["python", "typescript"]
CodeLanguage = Literal["python", "javascript", "typescript"]
ToolTypeName = Literal["custom", "builtin", "mcp", "client"]
_EXECUTION_SECONDS: Final = 200.0
_SOURCE_TYPES: Final = {
    "python": tools_pb2.SOURCE_TYPE_PYTHON,
    "typescript": tools_pb2.SOURCE_TYPE_TYPESCRIPT,
}
_REQUIREMENTS: Final = {"python": "pip_requirements", "typescript": "npm_requirements"}
_CODE_LANGUAGES: Final = {
    "python": execution_service_pb2.CODE_LANGUAGE_PYTHON,
    "javascript": execution_service_pb2.CODE_LANGUAGE_JAVASCRIPT,
    "typescript": execution_service_pb2.CODE_LANGUAGE_TYPESCRIPT,
}
_SEARCH_SECONDS: Final = 30.0
_FETCH_SECONDS: Final = 90.0


class ToolsClient:
    """Calls of ToolService and ExecutionService, as `client.tools`.

    Errors: InvalidArgument TOOL_SOURCE_INVALID; AlreadyExists for a name in use; NotFound.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = tools_service_pb2_grpc.ToolServiceStub(channel)
        self.executions = execution_service_pb2_grpc.ExecutionServiceStub(channel)

    async def create(
        self,
        source: ToolSource,
        *,
        language: Language = "python",
        packages: Sequence[str] = (),
        hosts: Sequence[str] = (),
        secrets: Mapping[str, str | None] | None = None,
        **fields: Any,
    ) -> tools_pb2.Tool:
        """Creates a tool from source code or from a Python function.

        Args:
            source: The source, or the function.
            language: The language of the source.
            packages: The packages that it needs, of PyPI or of npm as its language is, such as "requests",
                "numpy>=2,<3" or "zod@3.24.1".
            hosts: The hosts that it may connect to, such as "api.example.com" or "*.example.com:8443".
            secrets: Its environment variables, which are stored encrypted and never returned. None as a value keeps the
                one that a replaced tool has; the other variables of that tool are deleted.
            fields: Other fields of Tool.
        """
        request = tools_service_pb2.CreateToolRequest(tool=_tool(source, language, packages, hosts, secrets, fields))
        return (await self.stub.CreateTool(request)).tool

    async def upsert(
        self,
        source: ToolSource,
        *,
        language: Language = "python",
        packages: Sequence[str] = (),
        hosts: Sequence[str] = (),
        secrets: Mapping[str, str | None] | None = None,
        **fields: Any,
    ) -> tools_pb2.Tool:
        """Creates a tool, or replaces the tool with the same name. A replaced tool keeps its id. See `create`."""
        request = tools_service_pb2.UpsertToolRequest(tool=_tool(source, language, packages, hosts, secrets, fields))
        return (await self.stub.UpsertTool(request)).tool

    async def get(self, key: str) -> tools_pb2.Tool:
        """Returns a tool by id or name."""
        named = {"tool_id": key} if key.startswith("tool-") else {"name": key}
        return (await self.stub.GetTool(tools_service_pb2.GetToolRequest(**named))).tool

    async def get_many(self, *keys: str) -> Sequence[tools_pb2.Tool]:
        """Returns tools by id or name. Unknown ones are left out."""
        request = tools_service_pb2.BatchGetToolsRequest(
            tool_ids=[key for key in keys if key.startswith("tool-")],
            names=[key for key in keys if not key.startswith("tool-")],
        )
        return list((await whole_answer(self.stub.BatchGetTools, request, "tools")).tools)

    async def count(self, *, exclude_types: Sequence[ToolTypeName] = ()) -> int:
        """Returns the number of tools, without those of some types."""
        excluded = [tools_pb2.ToolType.Value(f"TOOL_TYPE_{name.upper()}") for name in exclude_types]
        criteria = tools_service_pb2.ToolFilter(exclude_types=excluded)
        return (await self.stub.CountTools(tools_service_pb2.CountToolsRequest(filter=criteria))).count

    async def update(self, tool_id: str, **fields: Any) -> tools_pb2.Tool:
        """Updates fields of a tool (description, source_code, tags, …). None clears a field."""
        request = update_request(tools_service_pb2.UpdateToolRequest, "tool", tool_id, fields)
        return (await self.stub.UpdateTool(request)).tool

    def list(
        self,
        *,
        names: Sequence[str] = (),
        exclude_types: Sequence[ToolTypeName] = (),
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[tools_pb2.Tool]:
        """Yields tools, newest first unless `order` is "asc"."""
        excluded = [tools_pb2.ToolType.Value(f"TOOL_TYPE_{name.upper()}") for name in exclude_types]
        criteria = tools_service_pb2.ToolFilter(names=names, exclude_types=excluded)
        request = tools_service_pb2.ListToolsRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListTools, request, "tools", limit)

    async def search(
        self, query: str, *, limit: int = 10, tags: Sequence[str] = ()
    ) -> Sequence[tools_service_pb2.ToolHit]:
        """Returns the tools that do what the query describes, best first."""
        request = tools_service_pb2.SearchToolsRequest(query=query, limit=limit, tags_any=tags)
        return list((await whole_answer(self.stub.SearchTools, request)).hits)

    async def set_secrets(self, tool_id: str, secrets: Mapping[str, str | None]) -> tools_pb2.Tool:
        """Replaces all environment variables of a tool. None as a value keeps the stored one."""
        return await self.update(tool_id, secrets=_secrets(secrets))

    async def delete(self, tool_id: str) -> None:
        """Deletes a tool."""
        await self.stub.DeleteTool(tools_service_pb2.DeleteToolRequest(tool_id=tool_id))

    async def schema(self, source: ToolSource, *, language: Language = "python") -> dict[str, Any]:
        """Returns the schema of a function: {"name", "description", "parameters"}. Stores nothing."""
        request = tools_service_pb2.GenerateSchemaRequest(
            source_code=source_text(source), source_type=_SOURCE_TYPES[language]
        )
        schema: dict[str, Any] = json.loads((await self.stub.GenerateSchema(request)).json_schema)
        return schema

    async def run(
        self,
        tool: ToolSource,
        arguments: Mapping[str, Any] | None = None,
        *,
        language: Language = "python",
        packages: Sequence[str] = (),
        hosts: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> execution_service_pb2.ExecuteToolResponse:
        """Executes a stored tool (by "tool-…" id) or source code once in the sandbox.

        A tool that fails does not raise: the response has the status ERROR, TIMED_OUT or KILLED. Source code can have
        `language`, `packages` and `hosts` as in `create`; a stored tool has its own. The variables of `environment`
        override those of a stored tool.
        """
        request = execution_service_pb2.ExecuteToolRequest(
            arguments=json.dumps(dict(arguments or {})), environment=environment or {}
        )
        if isinstance(tool, str) and tool.startswith("tool-"):
            request.tool_id = tool
        else:
            request.ad_hoc.source_code = source_text(tool)
            request.ad_hoc.source_type = _SOURCE_TYPES[language]
            getattr(request.ad_hoc, _REQUIREMENTS[language]).extend(_packages(language, packages))
            request.ad_hoc.network_hosts.extend(hosts)
        return await self.executions.ExecuteTool(request, timeout=_EXECUTION_SECONDS)

    async def run_code(
        self,
        code: str,
        *,
        language: CodeLanguage = "python",
        hosts: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        seconds: int | None = None,
    ) -> execution_service_pb2.RunCodeResponse:
        """Runs a program once in the sandbox. Its result is the value of the last expression.

        A program that fails does not raise: the response has the status ERROR, TIMED_OUT or KILLED.

        Args:
            code: The program.
            language: Its language.
            hosts: The hosts that it may connect to, as in `create`.
            environment: Its environment variables.
            seconds: The time after which it is killed, at most 180, which is also the default.
        """
        request = execution_service_pb2.RunCodeRequest(
            code=code,
            language=_CODE_LANGUAGES[language],
            network_hosts=hosts,
            environment=environment or {},
            timeout=None if seconds is None else duration_pb2.Duration(seconds=seconds),
        )
        return await self.executions.RunCode(request, timeout=_EXECUTION_SECONDS)


def _packages(language: Language, packages: Sequence[str]) -> list[tools_pb2.PackageRequirement]:
    return package_requirements(packages) if language == "python" else npm_requirements(packages)


def _secrets(values: Mapping[str, str | None]) -> list[tools_pb2.ToolSecret]:
    return [tools_pb2.ToolSecret(name=name, value=value) for name, value in values.items()]


def _tool(
    source: ToolSource,
    language: Language,
    packages: Sequence[str],
    hosts: Sequence[str],
    secrets: Mapping[str, str | None] | None,
    fields: Mapping[str, Any],
) -> tools_pb2.Tool:
    if packages:
        fields = {**fields, _REQUIREMENTS[language]: _packages(language, packages)}
    if hosts:
        fields = {**fields, "network_hosts": hosts}
    if secrets:
        fields = {**fields, "secrets": _secrets(secrets)}
    return tools_pb2.Tool(
        source_code=source_text(source),
        source_type=_SOURCE_TYPES[language],
        type=tools_pb2.TOOL_TYPE_CUSTOM,
        **fields,
    )


class WebClient:
    """Calls of WebService, as `client.web`. What they return was written by others.

    Errors: FailedPrecondition with the reasons WEB_SEARCH_NOT_CONFIGURED, WEB_SEARCH_REFUSED, WEB_PAGE_REFUSED and
    WEB_PAGE_UNREADABLE; Unavailable WEB_SEARCH_UNAVAILABLE.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = web_service_pb2_grpc.WebServiceStub(channel)

    async def search(
        self,
        query: str,
        *,
        num_results: int = 10,
        category: str | None = None,
        include_text: bool = False,
        include_domains: Sequence[str] = (),
        exclude_domains: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        country: str = "",
    ) -> list[web_service_pb2.WebSearchResult]:
        """Returns what the operator's provider found, best first.

        Args:
            query: What to look for.
            num_results: The number of results, between 1 and 100.
            category: What to prefer: "company", "research paper", "news", "pdf", "github", "tweet", "personal site",
                "linkedin profile" or "financial report".
            include_text: Whether to return the text of the pages, if the provider has it.
            include_domains: Only results of these domains.
            exclude_domains: No results of these domains.
            since: Only pages published from this time on.
            until: Only pages published until this time.
            country: The country of the searcher as two letters.

        Raises:
            ValueError: There is no such category.
        """
        name = "UNSPECIFIED" if category is None else category.upper().replace(" ", "_")
        request = web_service_pb2.SearchWebRequest(
            query=query,
            num_results=num_results,
            category=web_service_pb2.WebSearchCategory.Value(f"WEB_SEARCH_CATEGORY_{name}"),
            include_text=include_text,
            include_domains=include_domains,
            exclude_domains=exclude_domains,
            start_published_time=optional_timestamp_to_proto(since),
            end_published_time=optional_timestamp_to_proto(until),
            user_location=country,
        )
        return list((await self.stub.SearchWeb(request, timeout=_SEARCH_SECONDS)).results)

    async def fetch(
        self, url: str, *, start: int = 0, max_chars: int | None = None
    ) -> web_service_pb2.FetchWebpageResponse:
        """Returns a part of the readable text of a page, as Markdown if it is HTML or PDF.

        Args:
            url: The URL.
            start: The first character of the text to return.
            max_chars: The most characters to return; 20,000 by default.
        """
        request = web_service_pb2.FetchWebpageRequest(url=url, start=start, max_chars=max_chars or 0)
        return await self.stub.FetchWebpage(request, timeout=_FETCH_SECONDS)
