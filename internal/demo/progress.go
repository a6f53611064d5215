package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress says how a storm goes. Its zero writer says nothing.
type progress struct {
	w        io.Writer
	terminal bool
	name     string

	mu   sync.Mutex
	open bool // the terminal's line is to be rewritten
}

// start says status at once and then regularly, until the function returned is
// called.
func (p *progress) start(status func() string) (stop func()) {
	if p.w == nil {
		return func() {}
	}
	every := time.Second
	if p.terminal {
		every = 200 * time.Millisecond
	}
	p.status("starting the payments service")
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				p.status(status())
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		p.say(status())
	}
}

// say writes a line that stays.
func (p *progress) say(text string) { p.print(text, false) }

// status writes a line that on a terminal is rewritten by the next one.
func (p *progress) status(text string) { p.print(text, p.terminal) }

func (p *progress) print(text string, rewritable bool) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	start, end := "", "\n"
	if p.open {
		start = "\r\x1b[K"
	}
	if p.open = rewritable; rewritable {
		end = ""
	}
	_, _ = fmt.Fprintf(p.w, "%s%-13s %s%s", start, p.name+":", text, end)
}
