package redis

import (
	"context"
	"log/slog"
)

// probe finds out whether the user may do what scripts do, before the first claim does
// one half of it. Without the right to publish everything works, and waiters learn late
// that a run has ended.
func (s *Store) probe(ctx context.Context) error {
	reply, err := s.eval(ctx, probeScript, []string{s.keyOf(0, "probe")}, s.channel)
	if code(err) == "NOPERM" {
		return explain("look what the user may do", err)
	}
	answers, _ := reply.([]any)
	if err != nil || len(answers) != 2 {
		return nil //nolint:nilerr // not what is asked here; the first claim tells
	}
	if why, _ := answers[0].(string); why != "" {
		return explain("look what the user may do", ReplyError("NOPERM "+why))
	}
	if why, _ := answers[1].(string); why != "" {
		s.o.Logger.LogAttrs(ctx, slog.LevelWarn, "stet: the Redis user may not publish: callers that wait for a run learn of its end up to a second late; ACL SETUSER with &"+s.o.Prefix+":*",
			slog.String("channel", s.channel))
	}
	return nil
}

// mayPublish returns why a server lets nothing be published to the channel of the
// default prefix, "" if it does.
func mayPublish(ctx context.Context, c Client) string {
	if _, err := c.Do(ctx, "", "PUBLISH", channelOf(defaultPrefix), probing); code(err) == "NOPERM" {
		return err.Error()
	}
	return ""
}
