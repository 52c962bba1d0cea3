package example;

import static example.Connection.TURN;
import static example.Connection.WRITE;
import static example.Connection.within;

import io.grpc.Channel;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.LocalTime;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import mnemesh.agents.v1.Agent;
import mnemesh.agents.v1.AgentServiceGrpc;
import mnemesh.agents.v1.AnswerApprovalRequest;
import mnemesh.agents.v1.AnswerApprovalResponse;
import mnemesh.agents.v1.ClientTool;
import mnemesh.agents.v1.CreateAgentRequest;
import mnemesh.agents.v1.InputMessage;
import mnemesh.agents.v1.RequiredBeforeExitRule;
import mnemesh.agents.v1.RunConfig;
import mnemesh.agents.v1.RunServiceGrpc;
import mnemesh.agents.v1.SendMessageRequest;
import mnemesh.agents.v1.SendMessageResponse;
import mnemesh.agents.v1.StopReason;
import mnemesh.agents.v1.ToolRule;
import mnemesh.blocks.v1.Block;
import mnemesh.tools.v1.CreateToolRequest;
import mnemesh.tools.v1.SourceType;
import mnemesh.tools.v1.Tool;
import mnemesh.tools.v1.ToolServiceGrpc;
import mnemesh.tools.v1.ToolType;
import mnemesh.types.v1.ApprovalDecision;
import mnemesh.types.v1.Approve;
import mnemesh.types.v1.ContentPart;
import mnemesh.types.v1.TextPart;
import mnemesh.types.v1.ToolCall;
import mnemesh.types.v1.ToolReturn;
import mnemesh.types.v1.ToolReturnStatus;

/** An agent from its creation to its deletion, over gRPC. See README.md. */
public final class Main {
  private static final String WATER_PLANTS =
      """
      from typing import Literal

      def water_plants(room: Literal["kitchen", "balcony"]) -> str:
          \"""Waters the plants of a room.

          Args:
              room: the room.
          \"""
          return f"The plants of the {room} have water."
      """;
  private static final String LOCAL_TIME = "local_time";

  /** Something on the server that is deleted at the end. */
  private interface Created extends AutoCloseable {
    @Override
    void close();
  }

  public static void main(String[] arguments) {
    // Java writes in the encoding of the terminal, and "?" for what that lacks.
    System.setOut(new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8));
    try {
      ManagedChannel channel = Connection.connect();
      try {
        run(channel);
      } finally {
        channel.shutdownNow();
      }
    } catch (StatusRuntimeException | IOException error) {
      report(error);
      System.exit(1);
    }
  }

  private static void run(Channel channel) {
    Tool tool = createTool(channel);
    try (Created ofTool = () -> Memory.deleteTool(channel, tool.getId())) {
      CreateAgentRequest request = agentWith(tool);
      Agent agent = createAgent(channel, request);
      try (Created ofAgent = () -> Memory.deleteAgent(channel, agent.getId())) {
        createAgain(channel, request, agent);
        converse(channel, agent.getId());
        Memory.search(channel, agent.getId());
        Memory.listMessages(channel, agent.getId());
        Memory.fail(channel);
      }
    }
  }

  /** Prints an error, and those of the deletions after it. */
  private static void report(Throwable error) {
    if (error instanceof StatusRuntimeException failure) {
      System.err.printf("error %s: %s%n", Errors.describe(failure), failure.getStatus().getDescription());
    } else {
      System.err.printf("error %s%n", error);
    }
    Throwable cause = error.getCause();
    while (cause != null && cause.getCause() != null) {
      cause = cause.getCause();
    }
    if (cause != null) { // It says why a connection failed.
      System.err.printf("  %s%n", cause.getMessage());
    }
    for (Throwable suppressed : error.getSuppressed()) {
      report(suppressed);
    }
  }

  /**
   * Stores a tool that runs in the server's sandbox after a person has approved the call. Names of tools are unique
   * within an organization, so each run of the program has its own.
   */
  private static Tool createTool(Channel channel) {
    var tool =
        Tool.newBuilder()
            .setType(ToolType.TOOL_TYPE_CUSTOM)
            .setSourceType(SourceType.SOURCE_TYPE_PYTHON)
            .setSourceCode(WATER_PLANTS.replace("water_plants", "water_plants_" + newId().substring(0, 8)))
            .setDefaultRequiresApproval(true);
    var request = CreateToolRequest.newBuilder().setRequestId(newId()).setTool(tool).build();
    var stored = within(WRITE, ToolServiceGrpc.newBlockingStub(channel)).createTool(request).getTool();
    System.out.printf("tool %s %s%n", stored.getName(), stored.getId());
    return stored;
  }

  private static CreateAgentRequest agentWith(Tool tool) {
    var settings =
        Agent.newBuilder()
            .setName("example-java")
            .setModel(Optional.ofNullable(System.getenv("MNEMESH_EXAMPLE_MODEL")).orElse("mnemesh/rehearsal"));
    for (String name : List.of(tool.getName(), LOCAL_TIME)) {
      // The rules make even a model without intelligence call both tools.
      var rule = RequiredBeforeExitRule.newBuilder().setToolName(name);
      settings.addToolRules(ToolRule.newBuilder().setRequiredBeforeExit(rule));
    }
    return CreateAgentRequest.newBuilder()
        .setRequestId(newId())
        .setAgent(settings)
        .addBlocks(Block.newBuilder().setLabel("human"))
        .addBlocks(Block.newBuilder().setLabel("persona").setValue("I look after a house."))
        .addToolIds(tool.getId())
        .build();
  }

  private static Agent createAgent(Channel channel, CreateAgentRequest request) {
    Agent agent = within(WRITE, AgentServiceGrpc.newBlockingStub(channel)).createAgent(request).getAgent();
    System.out.printf("agent %s %s%n", agent.getName(), agent.getId());
    return agent;
  }

  /** Sends the request again, as after a lost response: the same request id is the same agent. */
  private static void createAgain(Channel channel, CreateAgentRequest request, Agent agent) {
    Agent again = within(WRITE, AgentServiceGrpc.newBlockingStub(channel)).createAgent(request).getAgent();
    boolean isSame = again.getId().equals(agent.getId());
    System.out.printf("sent again: %s%n", isSame ? "the same agent" : "another agent");
  }

  /** Sends a message, and answers what the agent asks for until the turn ends. */
  private static void converse(Channel channel, String agentId) {
    var runs = RunServiceGrpc.newBlockingStub(channel);
    var localTime =
        ClientTool.newBuilder()
            .setName(LOCAL_TIME)
            .setDescription("Returns the time of the user's clock.")
            .setParameters("{\"type\": \"object\", \"properties\": {}}");
    var words = textPart("My name is Ada. Remember that the key is under the mat.");
    var request =
        SendMessageRequest.newBuilder()
            .setRequestId(newId())
            .setAgentId(agentId)
            .addMessages(InputMessage.newBuilder().addContent(words))
            .setConfig(
                RunConfig.newBuilder()
                    .setStreamTokens(true)
                    .setMaxSteps(10)
                    .setKeepaliveSeconds(Turn.KEEPALIVE)
                    .addClientTools(localTime))
            .build();
    var turn = new Turn(runs, 3);
    turn.follow(() -> Turn.events(within(TURN, runs).sendMessage(request), SendMessageResponse::getEvent));
    while (turn.stopReason == StopReason.STOP_REASON_REQUIRES_APPROVAL) {
      var answer =
          AnswerApprovalRequest.newBuilder()
              .setRequestId(newId())
              .setAgentId(agentId)
              .setApprovalRequestId(turn.approvalRequestId)
              .addAllDecisions(turn.pendingCalls.stream().map(Main::decide).toList())
              .build();
      turn = new Turn(runs, Long.MAX_VALUE);
      turn.follow(() -> Turn.events(within(TURN, runs).answerApproval(answer), AnswerApprovalResponse::getEvent));
    }
  }

  /** Runs the client's own tool, and approves every other. A program with a user asks here, and may deny the call. */
  private static ApprovalDecision decide(ToolCall call) {
    var decision = ApprovalDecision.newBuilder().setToolCallId(call.getId());
    if (!call.getName().equals(LOCAL_TIME)) {
      System.out.printf("> approve %s%n", call.getName());
      return decision.setApprove(Approve.getDefaultInstance()).build();
    }
    String now = LocalTime.now().format(DateTimeFormatter.ofPattern("HH:mm"));
    System.out.printf("> return %s: %s%n", call.getName(), now);
    var result =
        ToolReturn.newBuilder()
            .setToolCallId(call.getId())
            .setName(call.getName())
            .setStatus(ToolReturnStatus.TOOL_RETURN_STATUS_SUCCESS)
            .addContent(textPart(now));
    return decision.setClientReturn(result).build();
  }

  private static ContentPart textPart(String text) {
    return ContentPart.newBuilder().setText(TextPart.newBuilder().setText(text)).build();
  }

  private static String newId() {
    return UUID.randomUUID().toString();
  }
}
