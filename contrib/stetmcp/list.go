package stetmcp

import (
	"context"
	"fmt"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet/internal/mcpcall"
)

// maxPages bounds the pages of tools/list in which a tool is looked for.
const maxPages = 1000

// find returns the tool of that name, as the server lists it; nil if it does not.
func find(ctx context.Context, next mcp.MethodHandler, req *mcp.CallToolRequest) *mcp.Tool {
	params := &mcp.ListToolsParams{}
	for range maxPages {
		res, err := next(ctx, "tools/list", &mcp.ListToolsRequest{Session: req.Session, Params: params, Extra: req.Extra})
		list, ok := res.(*mcp.ListToolsResult)
		if err != nil || !ok || list == nil {
			return nil
		}
		for _, tool := range list.Tools {
			if tool.Name == req.Params.Name {
				return tool
			}
		}
		if list.NextCursor == "" {
			return nil
		}
		params = &mcp.ListToolsParams{Cursor: list.NextCursor}
	}
	return nil
}

// policy is what a tool's _meta says of its calls.
type policy struct {
	KeyName string  `json:"keyName"`          // of the member of _meta with the key
	Key     string  `json:"key"`              // "required", "optional" or, with a window, "derived"
	Window  float64 `json:"window,omitempty"` // in seconds
}

// list says in tools/list how tools are protected. The tools themselves are shared, and
// are not changed.
func (p *Protector) list(ctx context.Context, next mcp.MethodHandler, method string, req *mcp.ListToolsRequest) (mcp.Result, error) {
	res, err := next(ctx, method, req)
	list, ok := res.(*mcp.ListToolsResult)
	if err != nil || !ok || list == nil {
		return res, err
	}
	said := *list
	said.Tools = make([]*mcp.Tool, 0, len(list.Tools)) // not null in JSON
	for _, tool := range list.Tools {
		said.Tools = append(said.Tools, p.describe(tool))
	}
	return &said, nil
}

func (p *Protector) describe(tool *mcp.Tool) *mcp.Tool {
	r := p.rule(tool)
	if r.Unprotected {
		return tool
	}
	t := *tool
	says := policy{KeyName: p.o.KeyName, Key: "required"}
	switch {
	case r.Optional:
		says.Key = "optional"
	case r.Window > 0:
		says.Key, says.Window = "derived", r.Window.Seconds()
		var a mcp.ToolAnnotations
		if t.Annotations != nil {
			a = *t.Annotations
		}
		a.IdempotentHint = true
		t.Annotations = &a
		if t.Description != "" {
			t.Description += "\n\n"
		}
		t.Description += fmt.Sprintf("Calls with exactly the same arguments (and the same key, if they have one) within %v are one action: the later ones have no further effect, and return the first one's result.", r.Window)
	}
	t.Meta = maps.Clone(t.Meta)
	if t.Meta == nil {
		t.Meta = mcp.Meta{}
	}
	t.Meta[mcpcall.PolicyName] = says
	return &t
}
