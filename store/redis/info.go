package redis

import "context"

// Info returns what each server says of itself: the fields of its INFO command
// and, where the server tells it, the setting appendfsync; and as "may not publish"
// why the user may not publish to the channel of the default Options.Prefix, if that is
// so. The names are the servers' addresses, or "" of a client that is not a Cluster. It
// is for tools that examine servers, also servers that New refuses.
func Info(ctx context.Context, client Client) (map[string]map[string]string, error) {
	servers, err := servers(ctx, client)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]string, len(servers))
	for name, server := range servers {
		info, err := askInfo(ctx, server)
		if err != nil {
			return nil, explain("inspect the server", err)
		}
		if v, ok := askSetting(ctx, server, "appendfsync"); ok {
			info["appendfsync"] = v
		}
		if why := mayPublish(ctx, server); why != "" {
			info["may not publish"] = why
		}
		all[name] = info
	}
	return all, nil
}

// askSetting returns a setting of a server. It is not ok if the server does
// not return it; hosted servers often refuse CONFIG.
func askSetting(ctx context.Context, c Client, name string) (value string, ok bool) {
	reply, err := c.Do(ctx, "", "CONFIG", "GET", name)
	if err != nil {
		return "", false
	}
	switch reply := reply.(type) { // a map in RESP3, of a type that is the library's choice
	case []any:
		if len(reply) == 2 {
			value, ok = reply[1].(string)
		}
	case map[string]any:
		value, ok = reply[name].(string)
	case map[any]any:
		value, ok = reply[name].(string)
	}
	return value, ok
}
