package example;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import io.grpc.Context;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import mnemesh.agents.v1.MessageEvent;
import mnemesh.agents.v1.RunEvent;
import mnemesh.agents.v1.RunServiceGrpc.RunServiceBlockingStub;
import mnemesh.agents.v1.StopReason;
import mnemesh.agents.v1.StreamRunRequest;
import mnemesh.agents.v1.StreamRunResponse;
import mnemesh.types.v1.ContentPart;
import mnemesh.types.v1.ToolCall;

/** The stream of a run: prints its events, and continues after a broken connection. */
final class Turn {
  /** The server sends an event after this time if it has no other, in seconds. */
  static final int KEEPALIVE = 10;

  /** Without an event for this time a stream is dead, even if gRPC does not say so, in seconds. */
  private static final long SILENCE = 25;

  /** Without an event for this time a broken stream is not opened again. */
  private static final long PATIENCE_NANOS = TimeUnit.SECONDS.toNanos(60);

  private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().create();

  private final ScheduledExecutorService watchdog = Executors.newSingleThreadScheduledExecutor();
  private final RunServiceBlockingStub runs;
  private long dropAfter;
  private String runId = "";
  private long lastSequence = 0;
  private boolean ended = false;
  private int failures = 0; // attempts since the last event
  private Future<?> watched;
  private long heard = System.nanoTime(); // the time of that event

  StopReason stopReason = StopReason.STOP_REASON_UNSPECIFIED;
  String approvalRequestId = "";
  List<ToolCall> pendingCalls = List.of();

  /** {@code dropAfter} cancels the stream once after the event with this number, to show how a client continues. */
  Turn(RunServiceBlockingStub runs, long dropAfter) {
    this.runs = runs;
    this.dropAfter = dropAfter;
  }

  /** An iterator over the events of one of the three RPCs that stream a run. */
  interface Stream extends Supplier<Iterator<RunEvent>> {}

  /** Prints all events. {@code open} sends the request; it is sent again if the run's id did not arrive. */
  void follow(Stream open) {
    try {
      readToEnd(open);
    } finally {
      watchdog.shutdownNow();
    }
  }

  private void readToEnd(Stream open) {
    heard = System.nanoTime();
    while (true) {
      Context.CancellableContext context = Context.current().withCancellation();
      watch(context);
      try {
        context.run(() -> read(context, runId.isEmpty() ? open.get() : resume()));
      } catch (StatusRuntimeException error) {
        Status.Code code = error.getStatus().getCode();
        boolean isBroken = code == Status.Code.UNAVAILABLE || code == Status.Code.CANCELLED;
        if (!isBroken || System.nanoTime() - heard > PATIENCE_NANOS) {
          throw error;
        }
      } finally {
        watched.cancel(false);
        context.cancel(null);
      }
      if (ended) {
        return;
      }
      if (failures == 0 && runId.isEmpty()) {
        System.out.println("  the stream broke; the request is sent again");
      } else if (failures == 0) {
        System.out.printf("  the stream broke; it continues after event %d%n", lastSequence);
      }
      pause(Math.min(2000, 100L << failures));
      failures = Math.min(failures + 1, 5);
    }
  }

  /** Cancels the stream after a time, unless {@code watched} is cancelled before. */
  private void watch(Context.CancellableContext context) {
    watched = watchdog.schedule(() -> context.cancel(null), SILENCE, TimeUnit.SECONDS);
  }

  private static void pause(long milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw Status.CANCELLED.withDescription("The program was interrupted.").asRuntimeException();
    }
  }

  private void read(Context.CancellableContext context, Iterator<RunEvent> events) {
    while (events.hasNext()) {
      receive(events.next());
      failures = 0;
      heard = System.nanoTime();
      watched.cancel(false);
      watch(context);
      if (lastSequence >= dropAfter) {
        dropAfter = Long.MAX_VALUE;
        context.cancel(null);
      }
    }
  }

  private Iterator<RunEvent> resume() {
    var request =
        StreamRunRequest.newBuilder()
            .setRunId(runId)
            .setStartingAfter(lastSequence)
            .setKeepaliveSeconds(KEEPALIVE)
            .build();
    return events(Connection.within(Connection.TURN, runs).streamRun(request), StreamRunResponse::getEvent);
  }

  /** Adapts the responses of an RPC. */
  static <R> Iterator<RunEvent> events(Iterator<R> responses, Function<R, RunEvent> event) {
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return responses.hasNext();
      }

      @Override
      public RunEvent next() {
        return event.apply(responses.next());
      }
    };
  }

  private void receive(RunEvent event) {
    runId = event.getRunId();
    if (event.hasSequence()) {
      if (event.getSequence() <= lastSequence) {
        return; // It arrived before the stream broke.
      }
      lastSequence = event.getSequence();
    }
    switch (event.getEventCase()) {
      case DELTA -> {
        if (event.getDelta().hasAssistantText()) {
          System.out.printf("  delta %s%n", GSON.toJson(event.getDelta().getAssistantText()));
        }
      }
      case MESSAGE -> print(event.getSequence(), event.getMessage());
      case ERROR -> {
        var error = event.getError().getError();
        System.out.printf("%d error %s: %s%n", event.getSequence(), error.getReason(), error.getMessage());
      }
      case STOP -> {
        stopReason = event.getStop().getReason();
        System.out.printf("%d stop %s%n", event.getSequence(), stopReason.name().replace("STOP_REASON_", ""));
      }
      case USAGE -> {
        System.out.printf("%d usage %d tokens%n", event.getSequence(), event.getUsage().getUsage().getTotalTokens());
        ended = true; // The last event of every run.
      }
      default -> {} // Other events are not shown, and later versions may add some.
    }
  }

  private void print(long sequence, MessageEvent message) {
    switch (message.getMessageCase()) {
      case USER -> System.out.printf("%d user: %s%n", sequence, text(message.getUser().getContentList()));
      case REASONING -> System.out.printf("%d reasoning: %s%n", sequence, message.getReasoning().getText());
      case ASSISTANT ->
          System.out.printf("%d assistant: %s%n", sequence, text(message.getAssistant().getContentList()));
      case TOOL_CALL -> print(sequence, "tool call", message.getToolCall().getToolCallsList());
      case TOOL_RETURN -> {
        for (var result : message.getToolReturn().getToolReturnsList()) {
          String text = text(result.getContentList());
          System.out.printf("%d tool return: %s: %s%n", sequence, result.getName(), text);
        }
      }
      case APPROVAL_REQUEST -> {
        approvalRequestId = message.getMessageId();
        pendingCalls = message.getApprovalRequest().getToolCallsList();
        print(sequence, "waits for", pendingCalls);
      }
      case APPROVAL_RESPONSE -> System.out.printf("%d approval response%n", sequence);
      default -> System.out.printf("%d %s%n", sequence, message.getMessageCase());
    }
  }

  private static void print(long sequence, String kind, List<ToolCall> calls) {
    for (ToolCall call : calls) {
      System.out.printf("%d %s: %s %s%n", sequence, kind, call.getName(), call.getArguments());
    }
  }

  private static String text(List<ContentPart> content) {
    return content.stream().map(part -> part.getText().getText()).collect(Collectors.joining(" "));
  }
}
