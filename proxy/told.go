package proxy

import (
	"errors"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
)

// checkTold finds out what is wrong with what all routes tell clients, and returns the
// configuration without that, so that it is not said of each route again.
func (c *Config) checkTold() (*Config, error) {
	engine, err := stet.New(nowhere{}, stet.Options{SweepEvery: -1})
	if err != nil {
		return c, err
	}
	defer engine.Close()
	sound := *c
	var errs []error
	for _, one := range []struct {
		field   string
		options stethttp.Options
		leave   func()
	}{
		{"replayed_header", stethttp.Options{ReplayedHeader: c.ReplayedHeader}, func() { sound.ReplayedHeader = "" }},
		{"retry_after", stethttp.Options{RetryAfter: time.Duration(c.RetryAfter)}, func() { sound.RetryAfter = 0 }},
		{"problem_base", stethttp.Options{ProblemBase: c.ProblemBase}, func() { sound.ProblemBase = "" }},
	} {
		one.options.Scope = stethttp.SingleTenant
		_, err := stethttp.New(engine, one.options)
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[*stet.Error](err); ok {
			err = e.Cause
		}
		errs = append(errs, at(one.field, "%s", strings.TrimPrefix(err.Error(), "stethttp: ")))
		one.leave()
	}
	return &sound, errors.Join(errs...)
}
