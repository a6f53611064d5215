package proxy

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/stet-go/stet/stethttp"
)

// maxLoggedPath bounds the path in the access log, in bytes.
const maxLoggedPath = 256

// logAccess writes the line of a request to the access log, if the sample includes it. The line
// has no header field of the request, no query and no content, where keys and secrets can be.
func (v *requestState) logAccess(r *http.Request, g *generation, began time.Time) {
	n, sample := v.proxy.requests.Add(1), int64(max(g.config.Log.Sample, 1))
	if v.status < http.StatusInternalServerError && v.status != 0 && (n-1)%sample != 0 {
		return
	}
	path, status := r.URL.Path, v.status
	if status == 0 && v.broken == nil {
		status = http.StatusOK // net/http sends it for a handler that writes nothing
	}
	if len(path) > maxLoggedPath {
		path = path[:maxLoggedPath]
	}
	rec := slog.NewRecord(began, slog.LevelInfo, "request", 0)
	rec.AddAttrs(slog.String("client", clientOf(r, g.config.Forwarded).String()), slog.String("method", r.Method), slog.String("path", path),
		slog.Int("status", status), slog.Int64("bytes", v.bytes), slog.Duration("took", time.Since(began)), slog.Int64("of", sample))
	if v.class != "" {
		rec.AddAttrs(slog.String("class", v.class), slog.Bool("replayed", v.w.Header().Get(cmp.Or(g.config.ReplayedHeader, stethttp.DefaultReplayedHeader)) == "true"))
	}
	_ = v.proxy.o.Access.Handle(context.WithoutCancel(r.Context()), rec) // no reason to refuse requests
}
