package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/stet-go/stet/internal/proxy"
)

// watchEvery is how often the files that the configuration names are compared with their last
// reading.
const watchEvery = 2 * time.Second

// signalled is the cause of a context that a signal has ended.
type signalled struct{ os.Signal }

// Error implements error.
func (s signalled) Error() string { return "the process received the signal " + s.String() }

// untilSignal returns a context that ends with the first SIGTERM or interrupt.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			cancel(signalled{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// wait returns when the process must end. It reloads the configuration at each SIGHUP, and after a
// change of a file that the configuration names.
func (h *host) wait(ctx context.Context, hup <-chan os.Signal) error {
	look := time.NewTicker(watchEvery)
	defer look.Stop()
	alive, stop := watchdog()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-h.servers.failed:
			return err
		case <-alive:
			h.handler.Counts()
			notify("WATCHDOG=1")
		case <-hup:
			h.reloaded("SIGHUP")
		case <-look.C:
			h.followLogs()
			if h.text.changed([]string{h.flags.file}) {
				h.edited = true
				h.log.Warn("the configuration file has changed and is not in use; send SIGHUP to read it", slog.String("file", h.flags.file))
			}
			switch {
			case !h.files.changed(h.config.Files()):
			case h.edited:
				h.renewed()
			default:
				h.reloaded("a file that the configuration names has changed")
			}
		}
	}
}

// reloaded reloads the configuration, and logs the result.
func (h *host) reloaded(why string) {
	notify("RELOADING=1")
	defer notify("READY=1")
	h.followLogs()
	if err := h.reload(); err != nil {
		h.log.Error("the configuration was not reloaded; the previous one stays in use", slog.String("why", why), slog.Any("error", err))
		return
	}
	h.log.Info("the configuration was reloaded", slog.String("why", why), slog.String("protects", h.config.String()))
}

// renewed reads the certificates again. The edited configuration waits for a SIGHUP, and so do the other files.
func (h *host) renewed() {
	use, err := h.servers.certificates()
	if err != nil {
		h.log.Error("the changed certificates are not used", slog.Any("error", err))
		return
	}
	use()
	h.log.Warn("the certificates were read again; other files that have changed wait for SIGHUP, because the configuration has changed, too")
}

// reload reads the configuration again, and all files that it names.
func (h *host) reload() error {
	h.text.use([]string{h.flags.file})
	h.edited = false
	h.files.use(h.config.Files())
	c, err := h.flags.load()
	if err != nil {
		return err
	}
	use, err := h.servers.certificates()
	if err != nil {
		return err
	}
	if err := h.handler.Reload(c); err != nil {
		return err
	}
	use()
	logUnsolicited(h.log, c.Upstream.URL)
	h.config = c
	h.level.Set(levelOf(c))
	h.files.names(c.Files())
	return nil
}

// levelOf returns the level of the log.
func levelOf(c *proxy.Config) (l slog.Level) {
	_ = l.UnmarshalText([]byte(c.Log.Level)) // Check knows the words; "" is info
	return l
}

// delay waits for the drain delay, after SIGTERM. Requests are still served.
func (h *host) delay(ctx context.Context) {
	d := h.config.DelayTime()
	if s, ok := errors.AsType[signalled](context.Cause(ctx)); !ok || s.Signal != syscall.SIGTERM || d == 0 {
		return
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	h.log.Info("not ready any more; requests are served until the drain delay ends, or until another signal", slog.Duration("drain_delay", d))
	end := time.NewTimer(d)
	defer end.Stop()
	select {
	case <-end.C:
	case <-again:
	case err := <-h.servers.failed:
		h.log.Error("a listener has failed", slog.Any("error", err))
	}
}
