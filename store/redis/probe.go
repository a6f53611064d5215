package redis

import (
	"context"
	"log/slog"
)

// probe checks whether the user has the rights that the scripts need, before a claim fails
// halfway. Without the right to publish, callers that wait for a run return late.
func (s *Store) probe(ctx context.Context) error {
	reply, err := s.eval(ctx, probeScript, []string{s.keyOf(0, "probe")}, s.channel)
	if code(err) == "NOPERM" {
		return explain("check the user's rights", err)
	}
	answers, _ := reply.([]any)
	if err != nil || len(answers) != 2 {
		return nil // this is no answer about rights; the first claim fails with the error
	}
	if why, _ := answers[0].(string); why != "" {
		return explain("check the user's rights", ReplyError("NOPERM "+why))
	}
	if why, _ := answers[1].(string); why != "" {
		s.o.Logger.LogAttrs(ctx, slog.LevelWarn, "stet: the Redis user may not publish: callers that wait for a run learn of its end up to a second late; ACL SETUSER with &"+s.o.Prefix+":*",
			slog.String("channel", s.channel))
	}
	return nil
}

// mayPublish returns why a server refuses messages to the channel of the default prefix, "" if
// it accepts them.
func mayPublish(ctx context.Context, c Client) string {
	if _, err := c.Do(ctx, "", "PUBLISH", channelOf(defaultPrefix), probing); code(err) == "NOPERM" {
		return err.Error()
	}
	return ""
}
