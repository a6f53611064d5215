package stetmcp_test

import (
	"context"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/store/memory"
)

// An agent that calls a tool again, as it has not seen the first answer.
func Example() {
	engine, _ := stet.New(memory.New(memory.Options{}), stet.Options{})
	defer engine.Close()
	protector, err := stetmcp.New(engine, stetmcp.Options{Scope: stetmcp.SingleTenant})
	if err != nil {
		panic(err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "shop"}, nil)
	server.AddReceivingMiddleware(protector.Middleware())
	bought := 0
	type order struct {
		Item string `json:"item"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "buy"}, func(_ context.Context, _ *mcp.CallToolRequest, o order) (*mcp.CallToolResult, any, error) {
		bought++
		return nil, map[string]any{"order": bought, "item": o.Item}, nil
	})

	ctx := context.Background()
	here, there := mcp.NewInMemoryTransports()
	_, _ = server.Connect(ctx, there, nil)
	agent, err := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil).Connect(ctx, here, nil)
	if err != nil {
		panic(err)
	}
	defer agent.Close()
	for _, item := range []string{"ink", "ink", "paper"} {
		res, err := agent.CallTool(ctx, &mcp.CallToolParams{
			Meta: mcp.Meta{stetmcp.DefaultKeyName: "call-1"},
			Name: "buy", Arguments: map[string]any{"item": item},
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(res.Content[0].(*mcp.TextContent).Text)
	}
	// Output:
	// {"item":"ink","order":1}
	// {"item":"ink","order":1}
	// Not executed: this idempotency key was used before for another call, of another tool or with other arguments. To repeat that call, send the same arguments. For a new action, use a new key.
}
