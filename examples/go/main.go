// Command example shows an agent from its creation to its deletion, over gRPC. See README.md.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
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
	if err := run(context.Background()); err != nil {
		log.Fatal("error ", describe(err), ": ", err)
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
	agent, err := createAgent(ctx, connection, tool)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, remove(ctx, connection, agent, tool)) }()
	for _, step := range []func(context.Context, *grpc.ClientConn, *agentsv1.Agent) error{
		converse, search, listMessages, fail,
	} {
		if err := step(ctx, connection, agent); err != nil {
			return err
		}
	}
	return nil
}

// createTool stores a tool that runs in the server's sandbox after a person has approved the call.
func createTool(ctx context.Context, connection *grpc.ClientConn) (*toolsv1.Tool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	source, approval := waterPlants, true
	response, err := toolsv1.NewToolServiceClient(connection).UpsertTool(ctx, &toolsv1.UpsertToolRequest{
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

// createAgent creates an agent twice with one request_id, as after a lost response: it is the same agent.
func createAgent(ctx context.Context, connection *grpc.ClientConn, tool *toolsv1.Tool) (*agentsv1.Agent, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	rules := []*agentsv1.ToolRule{} // They make even a model without intelligence call both tools.
	for _, name := range []string{tool.GetName(), localTime} {
		required := &agentsv1.RequiredBeforeExitRule{ToolName: name}
		rules = append(rules, &agentsv1.ToolRule{Rule: &agentsv1.ToolRule_RequiredBeforeExit{RequiredBeforeExit: required}})
	}
	client := agentsv1.NewAgentServiceClient(connection)
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
	first, err := client.CreateAgent(ctx, request)
	if err != nil {
		return nil, err
	}
	agent := first.GetAgent()
	again, err := client.CreateAgent(ctx, request)
	if err != nil {
		return nil, err
	}
	result := "another agent"
	if again.GetAgent().GetId() == agent.GetId() {
		result = "same agent"
	}
	fmt.Printf("agent %s %s, sent twice: %s\n", agent.GetName(), agent.GetId(), result)
	return agent, nil
}

// converse sends a message, and answers what the agent asks for until the turn ends.
func converse(ctx context.Context, connection *grpc.ClientConn, agent *agentsv1.Agent) error {
	runs := agentsv1.NewRunServiceClient(connection)
	description := "Returns the time of the user's clock."
	request := &agentsv1.SendMessageRequest{
		RequestId: uuid.NewString(),
		AgentId:   agent.GetId(),
		Messages: []*agentsv1.InputMessage{
			{Content: textParts("My name is Ada. Remember that the key is under the mat.")},
		},
		Config: &agentsv1.RunConfig{
			StreamTokens: true,
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

// decide runs the client's own tool, and approves every other.
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
