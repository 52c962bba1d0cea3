package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	agentsv1 "mnemesh.local/mnemesh/agents/v1"
	archivalv1 "mnemesh.local/mnemesh/archival/v1"
	blocksv1 "mnemesh.local/mnemesh/blocks/v1"
	recallv1 "mnemesh.local/mnemesh/recall/v1"
	toolsv1 "mnemesh.local/mnemesh/tools/v1"
)

const question = "Where is the key?"

// search reads the three tiers of the agent's memory.
func search(ctx context.Context, connection *grpc.ClientConn, agent *agentsv1.Agent) error {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	id := agent.GetId()
	core, err := blocksv1.NewBlockServiceClient(connection).GetCoreMemory(ctx, &blocksv1.GetCoreMemoryRequest{AgentId: id})
	if err != nil {
		return err
	}
	for _, block := range core.GetCoreMemory().GetBlocks() {
		fmt.Printf("core memory %s: %s\n", block.GetLabel(), block.GetValue())
	}
	messages, err := recallv1.NewMessageServiceClient(connection).SearchMessages(
		ctx, &recallv1.SearchMessagesRequest{Query: question, AgentId: &id, Limit: 1})
	if err != nil {
		return err
	}
	for _, hit := range messages.GetHits() {
		fmt.Printf("recall memory: %s\n", hit.GetText())
	}
	passages, err := archivalv1.NewPassageServiceClient(connection).SearchPassages(
		ctx, &archivalv1.SearchPassagesRequest{Query: question, Limit: 1, Filter: &archivalv1.PassageFilter{AgentId: &id}})
	if err != nil {
		return err
	}
	for _, hit := range passages.GetHits() {
		fmt.Printf("archival memory: %s\n", hit.GetPassage().GetText())
	}
	return nil
}

// listMessages reads all pages of the agent's messages.
func listMessages(ctx context.Context, connection *grpc.ClientConn, agent *agentsv1.Agent) error {
	client := recallv1.NewMessageServiceClient(connection)
	request := &recallv1.ListMessagesRequest{PageSize: 4, AgentIds: []string{agent.GetId()}}
	pages, count := 0, 0
	for pages == 0 || request.GetPageToken() != "" {
		call, cancel := context.WithTimeout(ctx, readTime)
		response, err := client.ListMessages(call, request)
		cancel()
		if err != nil {
			return err
		}
		pages++
		count += len(response.GetMessages())
		request.PageToken = response.GetNextPageToken()
	}
	fmt.Printf("messages %d in %d pages\n", count, pages)
	return nil
}

// fail reads the details of two errors.
func fail(ctx context.Context, connection *grpc.ClientConn, _ *agentsv1.Agent) error {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	_, err := agentsv1.NewAgentServiceClient(connection).GetAgent(
		ctx, &agentsv1.GetAgentRequest{AgentId: "agent-00000000-0000-4000-8000-000000000000"})
	fmt.Println("error", describe(err))
	_, err = recallv1.NewMessageServiceClient(connection).SearchMessages(
		ctx, &recallv1.SearchMessagesRequest{Query: "key", Limit: 1000})
	fmt.Println("error", describe(err))
	return nil
}

// deleteAgent deletes the agent with its memory.
func deleteAgent(ctx context.Context, connection *grpc.ClientConn, agent *agentsv1.Agent) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	_, err := agentsv1.NewAgentServiceClient(connection).DeleteAgent(ctx, &agentsv1.DeleteAgentRequest{
		RequestId:              uuid.NewString(),
		AgentId:                agent.GetId(),
		DeleteUnsharedBlocks:   true,
		DeleteUnsharedArchives: true,
	})
	if err == nil {
		fmt.Printf("deleted %s\n", agent.GetId())
	}
	return err
}

func deleteTool(ctx context.Context, connection *grpc.ClientConn, tool *toolsv1.Tool) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	_, err := toolsv1.NewToolServiceClient(connection).DeleteTool(
		ctx, &toolsv1.DeleteToolRequest{RequestId: uuid.NewString(), ToolId: tool.GetId()})
	if err == nil {
		fmt.Printf("deleted %s\n", tool.GetId())
	}
	return err
}
