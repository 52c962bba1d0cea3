"""The scopes of memories that a turn may read and write, and its evidence."""

from mnemesh_types.messages import Role

from mnemesh_orchestrator.loop.state import TurnContext, TurnState
from mnemesh_orchestrator.loop.step_messages import input_id
from mnemesh_orchestrator.model.memory_access import MemoryAccess, memory_access
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.prompt.packaging import senders_of


def turn_memory(context: TurnContext, state: TurnState) -> MemoryAccess:
    """Returns the scopes of memories of a turn: those of an identity only if it sent the whole input.

    A turn without user messages, such as one that continues after an approval, has the sender of the newest one.
    """
    run, agent = context.run, context.agent
    senders = tuple(message.sender_id for message in run.input if message.role is Role.USER)
    return memory_access(
        agent.id,
        agent.memory_scope,
        agent.memory_extraction,
        conversation_id=run.conversation_id,
        senders=senders or senders_of(state.window.messages)[-1:],
        group_id=run.group_id,
    )


def user_message_ids(run: Run) -> tuple[str, ...]:
    """Returns the ids of the messages of users in the input of a run. They are stored with its first step."""
    user_messages = (ordinal for ordinal, message in enumerate(run.input) if message.role is Role.USER)
    return tuple(input_id(run.first_run_id, ordinal) for ordinal in user_messages)
