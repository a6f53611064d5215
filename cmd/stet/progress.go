package main

import (
	"fmt"
	"io"
	"time"
)

const progressEvery = 2 * time.Second

// progress prints a line every 2 seconds until stop is called, so that a person sees that a long
// command works. text is called in another goroutine.
func progress(w io.Writer, text func() string) (stop func()) {
	began, end, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintf(w, "%v: %s …\n", time.Since(began).Round(time.Second), text())
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
