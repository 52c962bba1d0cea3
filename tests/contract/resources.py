"""Resources of every kind, in a mesh."""

from mnemesh.agents.v1 import budgets_pb2, models_pb2
from mnemesh.agents.v1.models_service_pb2 import CreateProviderRequest
from mnemesh.files.v1.files_service_pb2 import StartUploadRequest, UploadFileHeader
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1.episodes_service_pb2 import CommitEpisodeRequest
from mnemesh.recall.v1.messages_service_pb2 import GetContextRequest
from mnemesh_client import Mnemesh
from mnemesh_testkit.mesh.in_process import Mesh

from .conftest import population
from .valid_requests import Ids


async def everything(mesh: Mesh, word: str) -> Ids:
    """Creates a resource of every kind, with the word in it."""
    found = await population(mesh, word)
    scope = episodes_pb2.MemoryScope(agent_id=found["agent"][0])
    fact = episodes_pb2.FactOperation(add=episodes_pb2.Fact(text=f"{word} is true"))
    episode = episodes_pb2.Episode(summary=f"of {word}")
    done = await mesh.stubs["mnemesh.recall.v1.EpisodeService"].CommitEpisode(
        CommitEpisodeRequest(scope=scope, episode=episode, operations=[fact])
    )
    window = GetContextRequest(conversation_id=found["conversation"][0])
    version = (await mesh.stubs.messages.GetContext(window)).context.version
    limit = budgets_pb2.BudgetLimit(period=budgets_pb2.BUDGET_PERIOD_DAY, max_requests=1_000_000)
    budget = await mesh.client.budgets.set([limit])
    identity = await mesh.client.identities.upsert(word, f"Of the {word}", agent_ids=found["agent"])
    place = f"http://127.0.0.1:1/{word}"
    schedule = await mesh.client.schedules.create(f"From {word}", agent_id=found["agent"][0], cron="0 9 1 1 *")
    unreachable = models_pb2.Provider(name=f"of-{word.lower()}", type="vllm", base_url=place)
    created = await mesh.stubs["mnemesh.agents.v1.ModelService"].CreateProvider(
        CreateProviderRequest(provider=unreachable, credentials={"api_key": word}), timeout=60.0
    )
    webhook, _ = await mesh.client.webhooks.create(f"{place}/hook")
    folder = await mesh.client.folders.create(f"on the {word}", description=f"Of the {word}.")
    file = (await mesh.client.files.upload(folder.id, word.encode(), name=f"{word}.txt")).file
    await mesh.client.files.wait(file.id)
    upload = await mesh.stubs["mnemesh.files.v1.FileService"].StartUpload(
        StartUploadRequest(header=UploadFileHeader(folder_id=folder.id, original_name=f"{word}.txt"))
    )
    return {
        **found,
        "folder": [folder.id],
        "file": [file.id],
        "upload": [upload.upload.id],
        "episode": [done.episode.id],
        "fact": [done.facts[0].id],
        "identity": [identity.id],
        "budget": [budget.id],
        "schedule": [schedule.id],
        "provider": [created.provider.id],
        "webhook": [webhook.id],
        "version": [str(version)],
    }


async def agent_state(client: Mnemesh, agent_id: str) -> list[str]:
    """Returns everything that an agent has, as text."""
    agent = await client.agents.get(agent_id)
    found = [str(agent.proto), str(await agent.memory())]
    found += [str(message) async for message in client.messages.list(agent_id=agent.id)]
    found += [str(passage) async for passage in agent.passages()]
    found += [str(run) async for run in client.runs.list(agent_id=agent.id)]
    return found
