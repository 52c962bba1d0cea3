package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	agentsv1 "mnemesh.local/mnemesh/agents/v1"
	typesv1 "mnemesh.local/mnemesh/types/v1"
)

// receive returns the next event of a stream.
type receive func() (*agentsv1.RunEvent, error)

// turn follows a run until it stops.
type turn struct {
	runs agentsv1.RunServiceClient
	// dropAfter is the number of the event after which the stream is cancelled once, to show how a client continues.
	dropAfter int64
	// failures is the number of attempts since the last event, and heard the time of that event.
	failures          int
	heard             time.Time
	runID             string
	lastSequence      int64
	ended             bool
	stopReason        agentsv1.StopReason
	approvalRequestID string
	pendingCalls      []*typesv1.ToolCall
}

const (
	keepaliveSeconds = 10               // The server sends an event after this time if it has no other.
	silence          = 25 * time.Second // Without an event for this time a stream is dead, even if gRPC does not say so.
	patience         = 60 * time.Second // Without an event for this time a broken stream is not opened again.
)

// follow prints all events. open sends the request; it is sent again if the run's id did not arrive.
func (t *turn) follow(ctx context.Context, open func(context.Context) (receive, error)) error {
	t.heard = time.Now()
	for {
		err := t.readStream(ctx, open)
		if t.ended || ctx.Err() != nil {
			return ctx.Err()
		}
		code := status.Code(err)
		isBroken := err == nil || code == codes.Unavailable || code == codes.Canceled
		if !isBroken || err != nil && time.Since(t.heard) > patience {
			return err
		}
		if t.failures == 0 && t.runID == "" {
			fmt.Println("  the stream broke; the request is sent again")
		} else if t.failures == 0 {
			fmt.Printf("  the stream broke; it continues after event %d\n", t.lastSequence)
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(2*time.Second, 100*time.Millisecond<<t.failures)):
		}
		t.failures = min(t.failures+1, 5)
	}
}

// readStream reads the events of one stream. It returns nil if the stream ended.
func (t *turn) readStream(ctx context.Context, open func(context.Context) (receive, error)) error {
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	if t.runID != "" {
		open = t.resume
	}
	watchdog := time.AfterFunc(silence, cancel)
	defer watchdog.Stop()
	next, err := open(ctx)
	for err == nil {
		var event *agentsv1.RunEvent
		if event, err = next(); err != nil {
			break
		}
		t.failures, t.heard = 0, time.Now()
		watchdog.Reset(silence)
		t.receive(event)
		if t.dropAfter > 0 && t.lastSequence >= t.dropAfter {
			t.dropAfter = 0
			cancel()
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (t *turn) resume(ctx context.Context) (receive, error) {
	keepalive := int32(keepaliveSeconds)
	request := &agentsv1.StreamRunRequest{
		RunId: t.runID, StartingAfter: t.lastSequence, KeepaliveSeconds: &keepalive,
	}
	return events(t.runs.StreamRun(ctx, request))
}

// events adapts the responses of the three RPCs that stream a run.
func events[R interface{ GetEvent() *agentsv1.RunEvent }](
	stream interface{ Recv() (R, error) }, err error,
) (receive, error) {
	return func() (*agentsv1.RunEvent, error) {
		response, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		return response.GetEvent(), nil
	}, err
}

func (t *turn) receive(event *agentsv1.RunEvent) {
	t.runID = event.GetRunId()
	if event.Sequence != nil {
		if event.GetSequence() <= t.lastSequence {
			return // It arrived before the stream broke.
		}
		t.lastSequence = event.GetSequence()
	}
	switch kind := event.GetEvent().(type) {
	case *agentsv1.RunEvent_Delta:
		if text := kind.Delta.GetAssistantText(); text != "" {
			fmt.Printf("  delta %q\n", text)
		}
	case *agentsv1.RunEvent_Message:
		t.printMessage(event.GetSequence(), kind.Message)
	case *agentsv1.RunEvent_Error:
		failure := kind.Error.GetError()
		fmt.Printf("%d error %s: %s\n", event.GetSequence(), failure.GetReason(), failure.GetMessage())
	case *agentsv1.RunEvent_Stop:
		t.stopReason = kind.Stop.GetReason()
		fmt.Printf("%d stop %s\n", event.GetSequence(), strings.TrimPrefix(t.stopReason.String(), "STOP_REASON_"))
	case *agentsv1.RunEvent_Usage:
		fmt.Printf("%d usage %d tokens\n", event.GetSequence(), kind.Usage.GetUsage().GetTotalTokens())
		t.ended = true // The last event of every run.
	}
}

func (t *turn) printMessage(sequence int64, message *agentsv1.MessageEvent) {
	switch kind := message.GetMessage().(type) {
	case *agentsv1.MessageEvent_User:
		fmt.Printf("%d user: %s\n", sequence, text(kind.User.GetContent()))
	case *agentsv1.MessageEvent_Reasoning:
		fmt.Printf("%d reasoning: %s\n", sequence, kind.Reasoning.GetText())
	case *agentsv1.MessageEvent_Assistant:
		fmt.Printf("%d assistant: %s\n", sequence, text(kind.Assistant.GetContent()))
	case *agentsv1.MessageEvent_ToolCall:
		for _, call := range kind.ToolCall.GetToolCalls() {
			fmt.Printf("%d tool call: %s %s\n", sequence, call.GetName(), call.GetArguments())
		}
	case *agentsv1.MessageEvent_ToolReturn:
		for _, result := range kind.ToolReturn.GetToolReturns() {
			fmt.Printf("%d tool return: %s: %s\n", sequence, result.GetName(), text(result.GetContent()))
		}
	case *agentsv1.MessageEvent_ApprovalRequest:
		t.approvalRequestID = message.GetMessageId()
		t.pendingCalls = kind.ApprovalRequest.GetToolCalls()
		for _, call := range t.pendingCalls {
			fmt.Printf("%d waits for: %s %s\n", sequence, call.GetName(), call.GetArguments())
		}
	case *agentsv1.MessageEvent_ApprovalResponse:
		fmt.Printf("%d approval response\n", sequence)
	default: // Later versions may add kinds.
		fmt.Printf("%d %T\n", sequence, kind)
	}
}

// text returns the text of the parts of a message.
func text(content []*typesv1.ContentPart) string {
	parts := []string{}
	for _, part := range content {
		parts = append(parts, part.GetText().GetText())
	}
	return strings.Join(parts, " ")
}
