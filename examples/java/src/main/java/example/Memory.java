package example;

import static example.Connection.READ;
import static example.Connection.WRITE;
import static example.Connection.within;

import io.grpc.Channel;
import io.grpc.StatusRuntimeException;
import java.util.List;
import java.util.UUID;
import mnemesh.agents.v1.AgentServiceGrpc;
import mnemesh.agents.v1.DeleteAgentRequest;
import mnemesh.agents.v1.GetAgentRequest;
import mnemesh.archival.v1.PassageFilter;
import mnemesh.archival.v1.PassageServiceGrpc;
import mnemesh.archival.v1.SearchPassagesRequest;
import mnemesh.blocks.v1.BlockServiceGrpc;
import mnemesh.blocks.v1.GetCoreMemoryRequest;
import mnemesh.recall.v1.ListMessagesRequest;
import mnemesh.recall.v1.MessageServiceGrpc;
import mnemesh.recall.v1.SearchMessagesRequest;
import mnemesh.tools.v1.DeleteToolRequest;
import mnemesh.tools.v1.ToolServiceGrpc;

/** The memory of an agent: its three tiers, pages of messages, errors, deletion. */
final class Memory {
  private static final String QUESTION = "Where is the key?";
  private static final String NOBODY = "agent-00000000-0000-4000-8000-000000000000";

  /** Reads the three tiers of the agent's memory. */
  static void search(Channel channel, String agentId) {
    within(READ, BlockServiceGrpc.newBlockingStub(channel))
        .getCoreMemory(GetCoreMemoryRequest.newBuilder().setAgentId(agentId).build())
        .getCoreMemory()
        .getBlocksList()
        .forEach(block -> System.out.printf("core memory %s: %s%n", block.getLabel(), block.getValue()));
    within(READ, MessageServiceGrpc.newBlockingStub(channel))
        .searchMessages(
            SearchMessagesRequest.newBuilder().setQuery(QUESTION).setAgentId(agentId).setLimit(1).build())
        .getHitsList()
        .forEach(hit -> System.out.printf("recall memory: %s%n", hit.getText()));
    within(READ, PassageServiceGrpc.newBlockingStub(channel))
        .searchPassages(
            SearchPassagesRequest.newBuilder()
                .setQuery(QUESTION)
                .setLimit(1)
                .setFilter(PassageFilter.newBuilder().setAgentId(agentId))
                .build())
        .getHitsList()
        .forEach(hit -> System.out.printf("archival memory: %s%n", hit.getPassage().getText()));
  }

  /** Reads all pages of the agent's messages. */
  static void listMessages(Channel channel, String agentId) {
    var stub = MessageServiceGrpc.newBlockingStub(channel);
    var request = ListMessagesRequest.newBuilder().setPageSize(4).addAgentIds(agentId);
    int pages = 0;
    int count = 0;
    do {
      var response = within(READ, stub).listMessages(request.build());
      pages += 1;
      count += response.getMessagesCount();
      request.setPageToken(response.getNextPageToken());
    } while (!request.getPageToken().isEmpty());
    System.out.printf("messages %d in %d pages%n", count, pages);
  }

  /** Reads the details of two errors. */
  static void fail(Channel channel) {
    var missing = GetAgentRequest.newBuilder().setAgentId(NOBODY).build();
    var tooMany = SearchMessagesRequest.newBuilder().setQuery("key").setLimit(1000).build();
    List<Runnable> calls =
        List.of(
            () -> within(READ, AgentServiceGrpc.newBlockingStub(channel)).getAgent(missing),
            () -> within(READ, MessageServiceGrpc.newBlockingStub(channel)).searchMessages(tooMany));
    for (Runnable call : calls) {
      try {
        call.run();
      } catch (StatusRuntimeException error) {
        System.out.println("error " + Errors.describe(error));
      }
    }
  }

  /** Deletes the agent with its memory. */
  static void deleteAgent(Channel channel, String agentId) {
    var request =
        DeleteAgentRequest.newBuilder()
            .setRequestId(UUID.randomUUID().toString())
            .setAgentId(agentId)
            .setDeleteUnsharedBlocks(true)
            .setDeleteUnsharedArchives(true)
            .build();
    within(WRITE, AgentServiceGrpc.newBlockingStub(channel)).deleteAgent(request);
    System.out.printf("deleted %s%n", agentId);
  }

  static void deleteTool(Channel channel, String toolId) {
    var request = DeleteToolRequest.newBuilder().setRequestId(UUID.randomUUID().toString()).setToolId(toolId).build();
    within(WRITE, ToolServiceGrpc.newBlockingStub(channel)).deleteTool(request);
    System.out.printf("deleted %s%n", toolId);
  }

  private Memory() {}
}
