"""The role that each RPC requires, and the maximum size of its request: one table for all services.

A test compares the table with the contracts, so that an RPC without an entry fails it. At run time, an RPC without an
entry is one for services.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from mnemesh_kit.call_context import Role, current_principal
from mnemesh_kit.errors import PermissionDenied
from mnemesh_kit.transport import MAX_MESSAGE_BYTES

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""The largest request, except for RPCs that carry images, imports, batches, or the blocks of an agent."""


def service_only(value: bool, field: str) -> bool:
    """Returns a flag that only services of the mesh may set.

    Raises:
        PermissionDenied: a client sets it. Metadata: field, required_role.
    """
    if value and current_principal().role is not Role.SERVICE:
        raise PermissionDenied(f"Only services of the mesh set {field}.", field=field, required_role=Role.SERVICE.value)
    return value


@dataclass(frozen=True, slots=True)
class RpcRule:
    """The conditions that the kit checks before the request of an RPC is parsed."""

    role: Role
    """The role that a caller needs. A service may call what a client may call."""
    max_request_bytes: int
    bounds_stream: bool = True
    """Whether the requests of a stream are bounded together. False: the handler keeps none and has a bound of its own.
    """
    is_polled: bool = False
    """True if services poll this RPC. Its successful calls are logged at the level debug."""


UNLISTED: Final = RpcRule(Role.SERVICE, MAX_REQUEST_BYTES)
"""The rule of an RPC that is not in the table."""


def _rules(
    service: str, *, client: str = "", large: str = "", internal: str = "", unbounded: str = "", polled: str = ""
) -> dict[str, RpcRule]:
    """Returns the rules of one service.

    Args:
        service: the full name of the gRPC service.
        client: the RPCs that clients may call.
        large: those RPCs of any role whose requests may be as large as a message can be.
        internal: the RPCs that services of the mesh may call.
        unbounded: those RPCs of any role with streams of requests that are not bounded together.
        polled: the RPCs that services poll.
    """
    unlimited = set(large.split())
    return {
        f"/{service}/{name}": RpcRule(
            role,
            MAX_MESSAGE_BYTES if name in unlimited else MAX_REQUEST_BYTES,
            bounds_stream=name not in unbounded.split(),
            is_polled=name in polled.split(),
        )
        for role, names in ((Role.CLIENT, client), (Role.SERVICE, internal))
        for name in names.split()
    }


RPC_RULES: Final[Mapping[str, RpcRule]] = {
    **_rules(
        "mnemesh.agents.v1.AgentService",
        client="CreateAgent GetAgent ListAgents CountAgents UpdateAgent DeleteAgent AttachTool DetachTool "
        "SetToolApproval RunTool GetContextWindow PreviewRequest GenerateText RecompileAgent ResetMessages "
        "CompactConversation ExtractMemories "
        "ListTags GetSystemPrompt ListSystemPrompts ExportAgent ImportAgent",
        internal="RecordFolders",
        large="PreviewRequest ImportAgent",
        unbounded="ImportAgent",
    ),
    **_rules(
        "mnemesh.agents.v1.RunService",
        client="SendMessage SendMessageAndWait StartRun AnswerApproval GetRun ListRuns CancelRuns RetryRun DeleteRun "
        "StreamRun ListSteps GetStep GetStepTrace SetStepFeedback StartBatch GetBatch ListBatches CancelBatch",
        internal="ClaimCallbacks RecordCallback",
        polled="ClaimCallbacks",
        large="SendMessage SendMessageAndWait StartRun AnswerApproval StartBatch",
    ),
    **_rules(
        "mnemesh.agents.v1.ModelService",
        client="ListModels GetModel UpdateModel ListEmbeddingModels CreateProvider GetProvider ListProviders "
        "UpdateProvider DeleteProvider RefreshProvider CheckProvider",
    ),
    **_rules(
        "mnemesh.agents.v1.ConversationService",
        client="CreateConversation GetConversation ListConversations UpdateConversation DeleteConversation "
        "ForkConversation",
    ),
    **_rules(
        "mnemesh.agents.v1.GroupService",
        client="CreateGroup GetGroup ListGroups CountGroups UpdateGroup DeleteGroup ListGroupMessages "
        "ResetGroupMessages StartSleeptimeRuns PreviewSleeptimeRuns GetSleeptimeSettings UpdateSleeptimeSettings",
    ),
    **_rules(
        "mnemesh.agents.v1.IdentityService",
        client="CreateIdentity UpsertIdentity GetIdentity ListIdentities CountIdentities UpdateIdentity "
        "UpsertIdentityProperties DeleteIdentity EraseIdentity AttachIdentity DetachIdentity ListIdentityAgents "
        "ListIdentityBlocks",
    ),
    **_rules(
        "mnemesh.blocks.v1.BlockService",
        client="CreateBlock GetBlock ListBlocks CountBlocks UpdateBlock DeleteBlock AttachBlock DetachBlock "
        "ListBlockAgents GetCoreMemory BatchGetCoreMemory EditBlock ListBlockRevisions RevertBlock",
        internal="IsolateBlocks ReleaseBlocks LinkAgents UnlinkAgents ImportBlocks EraseAgent",
        large="ImportBlocks",
    ),
    **_rules(
        "mnemesh.recall.v1.MessageService",
        client="GetContext BatchGetContextIds AppendMessages GetMessages ListMessages UpdateMessage DeleteMessage "
        "SearchMessages",
        internal="CreateContext CommitStep ReplaceContext ForkContext DeleteContext EraseAgent EraseSender",
        large="CreateContext CommitStep ReplaceContext AppendMessages UpdateMessage",
    ),
    **_rules(
        "mnemesh.recall.v1.TraceService",
        client="ListTurns ListToolInteractions ExportTraces ImportTraces",
        large="ImportTraces",
    ),
    **_rules(
        "mnemesh.recall.v1.EpisodeService",
        client="CommitEpisode GetEpisode ListEpisodes SearchEpisodes UpdateEpisode DeleteEpisode CreateFact GetFact "
        "ListFacts SearchFacts UpdateFact SupersedeFact InvalidateFact DeleteFact ListFactHistory GetMemoryBundle "
        "ListMemoryScopes EraseMemoryScope RestoreFact AuditMemory",
    ),
    **_rules(
        "mnemesh.archival.v1.ArchiveService",
        client="CreateArchive GetArchive ListArchives CountArchives UpdateArchive DeleteArchive AttachArchive "
        "DetachArchive ListArchiveAgents",
    ),
    **_rules(
        "mnemesh.archival.v1.PassageService",
        client="InsertPassages GetPassage ListPassages UpdatePassage DeletePassage DeletePassages "
        "SearchPassages GetArchivalSummary",
        internal="EraseAgent",
        large="InsertPassages",
    ),
    **_rules("mnemesh.archival.v1.EmbeddingService", client="EmbedTexts", large="EmbedTexts"),
    **_rules(
        "mnemesh.files.v1.FolderService",
        client="CreateFolder GetFolder ListFolders CountFolders UpdateFolder DeleteFolder ListFolderAgents",
    ),
    **_rules(
        "mnemesh.files.v1.FileService",
        client="UploadFile StartUpload WriteUpload GetUpload FinishUpload CancelUpload ImportFile GetFile ListFiles "
        "CountFiles DeleteFile GetFileContent GetFileText RetryFile",
        unbounded="UploadFile WriteUpload",
    ),
    **_rules(
        "mnemesh.files.v1.AgentFileService",
        client="AttachFolder DetachFolder ListAgentFolders ListAgentFiles OpenFiles CloseFiles GrepFiles SearchFiles "
        "ResolveCitations GetDirectories BatchGetDirectories SetFileLimits",
        internal="EraseAgent",
    ),
    **_rules(
        "mnemesh.tools.v1.ToolService",
        client="CreateTool UpsertTool GetTool BatchGetTools ListTools CountTools UpdateTool DeleteTool GenerateSchema "
        "SearchTools",
        internal="EnsureBaseTools",
    ),
    **_rules(
        "mnemesh.tools.v1.ExecutionService",
        client="ExecuteTool RunCode RunCodeWithTools",
        large="ExecuteTool",
    ),
    **_rules(
        "mnemesh.tools.v1.McpServerService",
        client="CreateMcpServer GetMcpServer ListMcpServers UpdateMcpServer DeleteMcpServer ListMcpServerTools "
        "GetMcpServerTool RefreshMcpServer RunMcpServerTool StreamMcpServerTool TestMcpServer "
        "StartMcpAuthorization CompleteMcpAuthorization ReceiveMcpAuthorization GetMcpAuthorization",
        polled="GetMcpAuthorization",
    ),
    **_rules("mnemesh.tools.v1.WebService", client="SearchWeb FetchWebpage"),
    **_rules("mnemesh.server.v1.ServerService", client="GetServerStatus", polled="GetServerStatus"),
}
"""The path of each RPC, as `/package.Service/Method` → its rule."""


@cache
def largest_request(services: tuple[str, ...]) -> int:
    """Returns the size of the largest request that these gRPC services accept."""
    return max(
        (rule.max_request_bytes for path, rule in RPC_RULES.items() if path.split("/")[1] in services),
        default=MAX_REQUEST_BYTES,
    )
