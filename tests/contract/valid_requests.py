"""Valid requests of every method: those of `good_requests.txt`, and the least that a method needs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fuzzing.contract import new_request

Ids = Mapping[str, Sequence[str]]


NO_THINGS = {
    "request_id": "chosen by the caller",
    "execution_id": "chosen by the caller",
    "tool_call_id": "chosen by a provider",
    "sender_id": "an identity or an agent; recall compares it with messages of the organization",
    "sender_ids": "identities or agents; recall compares them with messages of the organization",
    "turn_id": "chosen by the importing client",
    "turn_ids": "chosen by the importing client",
    "approval_request_id": "the call id within a conversation, which is a field of the same request",
    "mcp_server_id": "tried in services/tools/tests/mcp_servers, with servers that answer",
    "organization_id": "of a callback, which only services record",
    "target_id": "of a callback, which only services record",
    "link_id": "chosen by the calling service, within the organization",
    "project_id": "only carried",
    "template_id": "only carried",
    "base_template_id": "only carried",
    "deployment_id": "only carried",
    "entity_id": "only carried",
}
ALTERNATIVES = {
    "mnemesh.agents.v1.SendMessageRequest.group_id": ("agent_id", "conversation_id"),
    "mnemesh.agents.v1.SendMessageAndWaitRequest.group_id": ("agent_id", "conversation_id"),
    "mnemesh.agents.v1.StartRunRequest.group_id": ("agent_id", "conversation_id"),
    "mnemesh.archival.v1.DeletePassagesRequest.file_id": ("passage_ids",),
}
"""Fields that replace other fields of a request."""
# The required fields of requests, in addition to ids. <kind> is the id of the caller's resource.
LEAST = {
    "agents.v1.AgentService.CreateAgent": 'agent { name: "n" type: AGENT_TYPE_LETTA_V1 }',
    "agents.v1.AgentService.UpdateAgent": 'agent { id: "<agent>" name: "n" } update_mask { paths: "name" }',
    "agents.v1.AgentService.SetToolApproval": 'tool_name: "memory_insert"',
    "agents.v1.AgentService.RunTool": (
        'tool_name: "memory_insert" arguments: "{\\"label\\": \\"law\\", \\"new_str\\": \\"x\\"}"'
    ),
    "agents.v1.AgentService.GenerateText": 'prompt: "Hi"',
    "agents.v1.RunService.SendMessage": 'messages { content { text { text: "Hi" } } }',
    "agents.v1.RunService.SendMessageAndWait": 'messages { content { text { text: "Hi" } } }',
    "agents.v1.RunService.StartRun": 'messages { content { text { text: "Hi" } } }',
    "agents.v1.RunService.StartBatch": 'requests { agent_id: "<agent>" messages { content { text { text: "Hi" } } } }',
    "agents.v1.RunService.RecordCallback": 'organization_id: "o" target_id: "<run>" attempt: 1',
    "agents.v1.RunService.AnswerApproval": 'decisions { tool_call_id: "call_1" approve {} }',
    "agents.v1.RunService.CancelRuns": 'runs { run_ids: "<run>" }',
    "agents.v1.ConversationService.CreateConversation": 'conversation { agent_id: "<agent>" }',
    "agents.v1.ConversationService.UpdateConversation": (
        'conversation { id: "<conversation>" summary: "s" } update_mask { paths: "summary" }'
    ),
    "agents.v1.ModelService.UpdateProvider": (
        'provider { id: "<provider>" base_url: "http://127.0.0.1:1" } update_mask { paths: "base_url" }'
    ),
    "agents.v1.IdentityService.CreateIdentity": 'identity { identifier_key: "k" name: "n" type: IDENTITY_TYPE_USER }',
    "agents.v1.IdentityService.UpdateIdentity": (
        'identity { id: "<identity>" name: "x" } update_mask { paths: "name" }'
    ),
    "agents.v1.IdentityService.UpsertIdentityProperties": 'properties { key: "a" text: "b" }',
    "agents.v1.BudgetService.SetBudget": "budget { limits { period: BUDGET_PERIOD_DAY max_requests: 1000000 } }",
    "agents.v1.ScheduleService.CreateSchedule": (
        'schedule { agent_id: "<agent>" cron: "0 9 * * *" messages { content { text { text: "Hi" } } } }'
    ),
    "agents.v1.ScheduleService.UpdateSchedule": (
        'schedule { id: "<schedule>" name: "x" } update_mask { paths: "name" }'
    ),
    "agents.v1.WebhookService.CreateWebhook": 'webhook { url: "http://127.0.0.1:1/" }',
    "agents.v1.WebhookService.UpdateWebhook": (
        'webhook { id: "<webhook>" disabled: true } update_mask { paths: "disabled" }'
    ),
    "agents.v1.GroupService.CreateGroup": 'group { agent_ids: "<agent>" }',
    "agents.v1.GroupService.UpdateGroup": 'group { id: "<group>" hidden: true } update_mask { paths: "hidden" }',
    "agents.v1.GroupService.StartSleeptimeRuns": 'target { group_id: "<group>" }',
    "agents.v1.GroupService.PreviewSleeptimeRuns": 'target { group_id: "<group>" }',
    "agents.v1.GroupService.UpdateSleeptimeSettings": 'settings {} update_mask { paths: "max_concurrent_runs" }',
    "blocks.v1.BlockService.CreateBlock": 'block { label: "made" }',
    "blocks.v1.BlockService.UpdateBlock": 'block { id: "<block>" value: "x" } update_mask { paths: "value" }',
    "blocks.v1.BlockService.EditBlock": 'label: "law" append { text: "x" } author { owner {} }',
    "blocks.v1.BlockService.RevertBlock": "undo {} author { owner {} }",
    "recall.v1.MessageService.CreateContext": (
        'conversation_id: "<new-conv>" '
        'messages { id: "<new-message>" role: ROLE_SYSTEM content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.CommitStep": (
        'lease { run_id: "<new-run>" epoch: 99 } base_version: 1 '
        'messages { id: "<new-message>" role: ROLE_USER content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.ReplaceContext": (
        'lease { run_id: "<new-run>" epoch: 99 } base_version: <version> message_ids: "<message>"'
    ),
    "recall.v1.MessageService.ForkContext": (
        'conversation_id: "<new-conv>" '
        'system_message { id: "<new-message>" agent_id: "<agent>" role: ROLE_SYSTEM content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.AppendMessages": (
        'messages { id: "<new-message>" role: ROLE_USER content { text { text: "x" } } }'
    ),
    "recall.v1.MessageService.UpdateMessage": (
        'message { id: "<message>" content { text { text: "x" } } } update_mask { paths: "content" }'
    ),
    "recall.v1.EpisodeService.CommitEpisode": (
        'scope { agent_id: "<agent>" } episode { summary: "s" } lease { run_id: "<new-run>" epoch: 99 }'
    ),
    "recall.v1.EpisodeService.UpdateEpisode": (
        'episode { id: "<episode>" summary: "x" } update_mask { paths: "summary" }'
    ),
    "recall.v1.EpisodeService.CreateFact": 'fact { text: "x" scope { agent_id: "<agent>" } }',
    "recall.v1.EpisodeService.UpdateFact": 'fact { id: "<fact>" metadata: "{}" } update_mask { paths: "metadata" }',
    "recall.v1.EpisodeService.SupersedeFact": 'operation { fact_id: "<fact>" fact { text: "x" } }',
    "recall.v1.EpisodeService.InvalidateFact": 'operation { fact_id: "<fact>" }',
    "recall.v1.TraceService.ImportTraces": 'header { agent_id: "<agent>" conversation_id: "<conversation>" }',
    "archival.v1.ArchiveService.CreateArchive": 'archive { name: "made" } agent_ids: "<agent>"',
    "archival.v1.ArchiveService.UpdateArchive": 'archive { id: "<archive>" name: "x" } update_mask { paths: "name" }',
    "archival.v1.PassageService.InsertPassages": 'passages { text: "x" }',
    "archival.v1.PassageService.UpdatePassage": 'passage { id: "<passage>" text: "x" } update_mask { paths: "text" }',
    "archival.v1.EmbeddingService.EmbedTexts": 'texts: "x"',
    "tools.v1.ToolService.UpdateTool": 'tool { id: "<tool>" description: "x" } update_mask { paths: "description" }',
    "tools.v1.ExecutionService.ExecuteTool": 'arguments: "{}"',
    "files.v1.FolderService.CreateFolder": 'folder { name: "<new-run>" }',
    "files.v1.FolderService.UpdateFolder": (
        'folder { id: "<folder>" description: "x" } update_mask { paths: "description" }'
    ),
    "files.v1.FileService.UploadFile": 'header { folder_id: "<folder>" original_name: "a.txt" }',
    "files.v1.FileService.StartUpload": 'header { folder_id: "<folder>" original_name: "a.txt" }',
    "files.v1.FileService.ImportFile": (
        'url: "https://files.example/a.txt" header { folder_id: "<folder>" original_name: "a.txt" }'
    ),
    "files.v1.AgentFileService.OpenFiles": 'files { file { file_id: "<file>" } }',
    "files.v1.AgentFileService.CloseFiles": 'files { file_id: "<file>" }',
    "files.v1.AgentFileService.GrepFiles": 'pattern: "x"',
    "files.v1.AgentFileService.SearchFiles": 'query: "x"',
    "files.v1.AgentFileService.SetFileLimits": "limits { max_files_open: 3 per_file_view_window_char_limit: 500 }",
    "files.v1.AgentFileService.ResolveCitations": 'text: "x"',
    "archival.v1.PassageService.DeletePassages": 'passage_ids: "<passage>"',
}


def _good_requests() -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for part in (Path(__file__).parent / "good_requests.txt").read_text().split("\n== ")[1:]:
        method, _, text = part.partition("\n")
        found.setdefault(f"mnemesh.{method}", []).append(text)
    return found


GOOD: Final = _good_requests()
"""Full name of a method → requests in text format: <agent> is an id that exists, <new-message> a new one."""


def good_requests(method: MethodDescriptor, known: Ids) -> list[Any]:
    """Returns the requests of the file for a method."""
    return [text_format.Parse(_with_ids(text, known), new_request(method)) for text in GOOD.get(method.full_name, ())]


def _with_ids(text: str, known: Ids) -> str:
    """The text with `<agent>` and so on replaced by ids that exist, and `<new-message>` by a new one."""
    for kind, ids in known.items():
        text = text.replace(f"<{kind}>", ids[-1])
    return re.sub(r"<new-(\w+)>", lambda found: new_id({"conversation": "conv"}.get(found[1], found[1])), text)


def kind_of(field: FieldDescriptor, method: MethodDescriptor) -> str:
    """Returns the kind of resource that a field names, or ""."""
    if field.name in NO_THINGS:
        return ""
    if field.name in ("after_id", "before_id"):
        rows = [each for each in method.output_type.fields if each.is_repeated and each.message_type is not None]
        return rows[0].message_type.name.lower() if rows and rows[0].message_type is not None else ""
    if field.name == "id":
        return field.containing_type.name.lower() if field.containing_type is not None else ""
    name = field.name.removesuffix("s")
    return name.removesuffix("_id").rpartition("_")[2] if name.endswith("_id") else ""


def least_request(method: MethodDescriptor, ours: Ids) -> Any:
    """Returns a valid request with the ids of the caller's resources and nothing else that is optional."""
    text = LEAST.get(method.full_name.removeprefix("mnemesh."), "")
    for kind, ids in ours.items():
        text = text.replace(f"<{kind}>", ids[0])
    for kind in ("message", "run", "conv"):
        text = text.replace(f"<new-{kind}>", new_id(kind))
    request = text_format.Parse(text, new_request(method))
    for field in method.input_type.fields:
        if field.name in ("after_id", "before_id") or field.type != FieldDescriptor.TYPE_STRING or field.is_repeated:
            continue
        kind = kind_of(field, method)
        if field.full_name in ALTERNATIVES:
            continue
        if kind == "step" and method.name == "CommitStep":
            request.step_id = new_id("step")
        elif kind in ours and not getattr(request, field.name) and not _chosen(request, field):
            setattr(request, field.name, ours[kind][0])
    return request


def _chosen(request: Any, field: FieldDescriptor) -> bool:
    """Returns whether another field of the same oneof is set, or the field is optional."""
    return field.containing_oneof is not None and (
        field.has_presence and request.WhichOneof(field.containing_oneof.name) is not None
    )
