// Command example shows an agent from its creation to its deletion, over gRPC. See README.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	agentsv1 "mnemesh.local/mnemesh/agents/v1"
	blocksv1 "mnemesh.local/mnemesh/blocks/v1"
	toolsv1 "mnemesh.local/mnemesh/tools/v1"
	typesv1 "mnemesh.local/mnemesh/types/v1"
)

const waterPlants = `
from typing import Literal

def water_plants(room: Literal["kitchen", "balcony"]) -> str:
    """Waters the plants of a room.

    Args:
        room: the room.
    """
    return f"The plants of the {room} have water."
`

const localTime = "local_time"

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(describeAll(err))
	}
}

func run(ctx context.Context) (err error) {
	connection, err := connect()
	if err != nil {
		return err
	}
	defer connection.Close()
	tool, err := createTool(ctx, connection)
	if err != nil {
		return err
	}
	// After Ctrl-C, too.
	defer func() { err = errors.Join(err, deleteTool(context.WithoutCancel(ctx), connection, tool)) }()
	agent, request, err := createAgent(ctx, connection, tool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, deleteAgent(context.WithoutCancel(ctx), connection, agent)) }()
	if err := createAgain(ctx, connection, request, agent); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *grpc.ClientConn, *agentsv1.Agent) error{
		converse, search, listMessages, fail,
	} {
		if err := step(ctx, connection, agent); err != nil {
			return err
		}
	}
	return nil
}

// createTool stores a tool that runs in the server's sandbox after a person has approved the call. Names of tools are
// unique within an organization, so each run of the program has its own.
func createTool(ctx context.Context, connection *grpc.ClientConn) (*toolsv1.Tool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	source := strings.ReplaceAll(waterPlants, "water_plants", "water_plants_"+uuid.NewString()[:8])
	approval := true
	response, err := toolsv1.NewToolServiceClient(connection).CreateTool(ctx, &toolsv1.CreateToolRequest{
		RequestId: uuid.NewString(),
		Tool: &toolsv1.Tool{
			Type:                    toolsv1.ToolType_TOOL_TYPE_CUSTOM,
			SourceType:              toolsv1.SourceType_SOURCE_TYPE_PYTHON,
			SourceCode:              &source,
			DefaultRequiresApproval: &approval,
		},
	})
	if err != nil {
		return nil, err
	}
	fmt.Printf("tool %s %s\n", response.GetTool().GetName(), response.GetTool().GetId())
	return response.GetTool(), nil
}

// createAgent creates an agent, and returns it with the request.
func createAgent(
	ctx context.Context, connection *grpc.ClientConn, tool *toolsv1.Tool,
) (*agentsv1.Agent, *agentsv1.CreateAgentRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	rules := []*agentsv1.ToolRule{} // They make even a model without intelligence call both tools.
	for _, name := range []string{tool.GetName(), localTime} {
		required := &agentsv1.RequiredBeforeExitRule{ToolName: name}
		rules = append(rules, &agentsv1.ToolRule{Rule: &agentsv1.ToolRule_RequiredBeforeExit{RequiredBeforeExit: required}})
	}
	request := &agentsv1.CreateAgentRequest{
		RequestId: uuid.NewString(),
		Agent: &agentsv1.Agent{
			Name:      "example-go",
			Model:     cmp.Or(os.Getenv("MNEMESH_EXAMPLE_MODEL"), "mnemesh/rehearsal"),
			ToolRules: rules,
		},
		Blocks:  []*blocksv1.Block{{Label: "human"}, {Label: "persona", Value: "I look after a house."}},
		ToolIds: []string{tool.GetId()},
	}
	response, err := agentsv1.NewAgentServiceClient(connection).CreateAgent(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	agent := response.GetAgent()
	fmt.Printf("agent %s %s\n", agent.GetName(), agent.GetId())
	return agent, request, nil
}

// createAgain sends the request again, as after a lost response: the same request_id is the same agent.
func createAgain(
	ctx context.Context, connection *grpc.ClientConn, request *agentsv1.CreateAgentRequest, agent *agentsv1.Agent,
) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	response, err := agentsv1.NewAgentServiceClient(connection).CreateAgent(ctx, request)
	if err != nil {
		return err
	}
	result := "another agent"
	if response.GetAgent().GetId() == agent.GetId() {
		result = "the same agent"
	}
	fmt.Printf("sent again: %s\n", result)
	return nil
}

// converse sends a message, and answers what the agent asks for until the turn ends.
func converse(ctx context.Context, connection *grpc.ClientConn, agent *agentsv1.Agent) error {
	runs := agentsv1.NewRunServiceClient(connection)
	description, steps, keepalive := "Returns the time of the user's clock.", int32(10), int32(keepaliveSeconds)
	request := &agentsv1.SendMessageRequest{
		RequestId: uuid.NewString(),
		AgentId:   agent.GetId(),
		Messages: []*agentsv1.InputMessage{
			{Content: textParts("My name is Ada. Remember that the key is under the mat.")},
		},
		Config: &agentsv1.RunConfig{
			StreamTokens:     true,
			MaxSteps:         &steps,
			KeepaliveSeconds: &keepalive,
			ClientTools: []*agentsv1.ClientTool{
				{Name: localTime, Description: &description, Parameters: `{"type": "object", "properties": {}}`},
			},
		},
	}
	current := &turn{runs: runs, dropAfter: 3}
	err := current.follow(ctx, func(ctx context.Context) (receive, error) { return events(runs.SendMessage(ctx, request)) })
	for err == nil && current.stopReason == agentsv1.StopReason_STOP_REASON_REQUIRES_APPROVAL {
		answer := &agentsv1.AnswerApprovalRequest{
			RequestId:         uuid.NewString(),
			AgentId:           agent.GetId(),
			ApprovalRequestId: &current.approvalRequestID,
		}
		for _, call := range current.pendingCalls {
			answer.Decisions = append(answer.Decisions, decide(call))
		}
		current = &turn{runs: runs}
		err = current.follow(ctx, func(ctx context.Context) (receive, error) { return events(runs.AnswerApproval(ctx, answer)) })
	}
	return err
}

// decide runs the client's own tool, and approves every other. A program with a user asks here, and may deny the call.
func decide(call *typesv1.ToolCall) *typesv1.ApprovalDecision {
	decision := &typesv1.ApprovalDecision{ToolCallId: call.GetId()}
	if call.GetName() != localTime {
		fmt.Printf("> approve %s\n", call.GetName())
		decision.Decision = &typesv1.ApprovalDecision_Approve{Approve: &typesv1.Approve{}}
		return decision
	}
	now := time.Now().Format("15:04")
	fmt.Printf("> return %s: %s\n", call.GetName(), now)
	decision.Decision = &typesv1.ApprovalDecision_ClientReturn{ClientReturn: &typesv1.ToolReturn{
		ToolCallId: call.GetId(),
		Name:       call.GetName(),
		Status:     typesv1.ToolReturnStatus_TOOL_RETURN_STATUS_SUCCESS,
		Content:    textParts(now),
	}}
	return decision
}

func textParts(text string) []*typesv1.ContentPart {
	return []*typesv1.ContentPart{{Part: &typesv1.ContentPart_Text{Text: &typesv1.TextPart{Text: text}}}}
}
