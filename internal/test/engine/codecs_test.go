package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/codec"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/memory"
)

var errOutOfStock = errors.New("out of stock")

type declinedError struct {
	Code  string
	Limit int
}

func (e *declinedError) Error() string { return "declined: " + e.Code }

// shopErrors know two errors.
var shopErrors = func() codec.Errors {
	errs, err := codec.NewErrors(codec.Sentinel("out-of-stock", errOutOfStock), codec.ErrorType[*declinedError]("declined"))
	if err != nil {
		panic(err)
	}
	return errs
}()

// ways are the functions that store what a function returns: each is called twice.
var ways = map[string]func(t *testing.T, o stet.Options) func(fn func() (any, error)) (stet.Result[int64], error){
	"Do": func(t *testing.T, o stet.Options) func(func() (any, error)) (stet.Result[int64], error) {
		e := newEngine(t, memory.New(memory.Options{}), o)
		return func(fn func() (any, error)) (stet.Result[int64], error) {
			return stet.Do(t.Context(), e, op, func(context.Context) (int64, error) { _, err := fn(); return 1 << 60, err })
		}
	},
	"DoTx": func(t *testing.T, o stet.Options) func(func() (any, error)) (stet.Result[int64], error) {
		s, _ := bank(t)
		te := txOf(newEngine(t, s, o), s)
		return func(fn func() (any, error)) (stet.Result[int64], error) {
			return stet.DoTx(t.Context(), te, op, func(context.Context, *sql.Tx) (int64, error) {
				_, err := fn()
				return 1 << 60, stet.Permanent(err)
			})
		}
	},
}

// executed is what a failure says in each of ways: a transaction is rolled back.
var executed = map[string]stet.Execution{"Do": stet.MayHaveExecuted, "DoTx": stet.NotExecuted}

var codecsTried = map[string]stet.Options{
	"codecs":    {Policy: stet.Policy{Values: codec.Gob(), Errors: shopErrors}},
	"encrypted": {Policy: stet.Policy{Values: codec.Gob(), Errors: shopErrors}, Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: []byte(strings.Repeat("s", 32))}}}},
}

func TestErrorsAreFoundInAReplayAsInTheFirstAnswer(t *testing.T) {
	for name, given := range map[string]error{
		"sentinel":         errOutOfStock,
		"wrapped sentinel": fmt.Errorf("order 7: %w", errOutOfStock),
		"type":             &declinedError{Code: "05", Limit: 3},
		"both":             errors.Join(errOutOfStock, fmt.Errorf("card: %w", &declinedError{Code: "05", Limit: 3})),
		"neither":          errors.New("something else"),
	} {
		for way, start := range ways {
			for with, o := range codecsTried {
				do := start(t, o)
				runs, seen := 0, [2]string{}
				for i := range seen {
					_, err := do(func() (any, error) { runs++; return nil, given })
					typed, ok := errors.AsType[*declinedError](err)
					own, _ := errors.AsType[*stet.Error](err)
					if own == nil || own.Kind != stet.KindFailed || own.Execution != executed[way] || own.Cause.Error() != given.Error() {
						t.Fatalf("%s, %s, %s: %v", name, way, with, err)
					}
					if name == "sentinel" && own.Cause != given { //nolint:errorlint // the very one
						t.Errorf("%s, %s: the cause is not the returned error", way, with)
					}
					seen[i] = fmt.Sprint(errors.Is(err, errOutOfStock), ok, typed, err, reflect.TypeOf(own.Cause))
					if errors.Is(err, errOutOfStock) != errors.Is(given, errOutOfStock) || ok && typed.Limit != 3 {
						t.Errorf("%s, %s, %s: %s", name, way, with, seen[i])
					}
				}
				if seen[0] != seen[1] || runs != 1 {
					t.Errorf("%s, %s, %s: first %s, then %s; %d runs", name, way, with, seen[0], seen[1], runs)
				}
			}
		}
	}
}

func TestValuesComeBackAsTheyWere(t *testing.T) {
	for way, start := range ways {
		for with, o := range codecsTried {
			do := start(t, o)
			for i := range 2 {
				res, err := do(func() (any, error) { return nil, nil })
				if err != nil || res.Value != 1<<60 || res.Replayed != (i == 1) {
					t.Errorf("%s, %s: %+v, %v", way, with, res, err)
				}
			}
		}
	}
}

func TestCodecsOfAClassAreItsOwn(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Errors: shopErrors},
		Classes: map[string]stet.Policy{"orders": {Values: codec.Gob()}}})
	run := begin(t, e, stet.Op{Scope: "s", Key: "k", Class: "orders"})
	if p, _ := e.Policy("orders"); p.Values != codec.Gob() || p.Errors != shopErrors {
		t.Errorf("%T, %T", p.Values, p.Errors)
	}
	if p, _ := e.Policy(""); p.Values != codec.JSON() {
		t.Errorf("%T", p.Values)
	}
	_ = run.Release(t.Context(), stet.Again{})
	res, err := stet.Do(t.Context(), e, stet.Op{Scope: "s", Key: "k", Class: "orders"}, func(context.Context) (string, error) { return "v", nil })
	st, serr := e.Status(t.Context(), "s", e.ID("s", "k"))
	var got string
	if derr := st.Outcome.Decode(&got); err != nil || serr != nil || derr != nil || res.Value != "v" || got != "v" || st.Outcome.Type != "application/x-gob" {
		t.Errorf("%+v, %v; %+v, %v: %q, %v", res, err, st, serr, got, derr)
	}
}

func TestARecordIsReadByItsMediaTypeAndNotByTheCodecOfToday(t *testing.T) {
	s := memory.New(memory.Options{})
	old := newEngine(t, s, stet.Options{})
	if _, err := stet.Do(t.Context(), old, op, func(context.Context) (string, error) { return "in JSON", nil }); err != nil {
		t.Fatal(err)
	}
	today := newEngine(t, s, stet.Options{Policy: stet.Policy{Values: codec.Gob()}})
	never := func(context.Context) (string, error) { t.Error("ran again"); return "", nil }
	if res, err := stet.Do(t.Context(), today, op, never); err != nil || res.Value != "in JSON" {
		t.Errorf("%+v, %v", res, err)
	}

	other := stet.Op{Scope: op.Scope, Key: "in gob"}
	if _, err := stet.Do(t.Context(), today, other, func(context.Context) (string, error) { return "in gob", nil }); err != nil {
		t.Fatal(err)
	}
	res, err := stet.Do(t.Context(), old, other, never)
	if stet.KindOf(err) != stet.KindForeign || stet.ExecutionOf(err) != stet.Executed || res.Value != "" {
		t.Errorf("what this engine's codec does not know: %+v, %v", res, err)
	}
	if _, err := stet.Do(t.Context(), today, other, func(context.Context) (struct{ A int }, error) { t.Error("ran again"); return struct{ A int }{}, nil }); stet.KindOf(err) != stet.KindForeign {
		t.Errorf("a value of another type: %v", err)
	}
}

func TestErrorOfAnotherVersionIsItsText(t *testing.T) {
	s := memory.New(memory.Options{})
	writer := newEngine(t, s, stet.Options{Policy: stet.Policy{Errors: shopErrors}})
	if _, err := stet.Do(t.Context(), writer, op, func(context.Context) (int, error) { return 0, errOutOfStock }); !errors.Is(err, errOutOfStock) {
		t.Fatal(err)
	}
	none, err := codec.NewErrors()
	if err != nil {
		t.Fatal(err)
	}
	for _, errs := range []codec.Errors{nil, none, brokenErrors{}} {
		e := newEngine(t, s, stet.Options{Policy: stet.Policy{Errors: errs}})
		_, err := stet.Do(t.Context(), e, op, func(context.Context) (int, error) { t.Error("ran again"); return 0, nil })
		if own, ok := errors.AsType[*stet.Error](err); !ok || own.Kind != stet.KindFailed || own.Cause.Error() != "out of stock" {
			t.Errorf("%T: %v", errs, err)
		}
	}
}

// broken is a codec that panics.
type broken struct{}

func (broken) Encode(any) (string, []byte, error) { panic("boom") }
func (broken) Decode(string, []byte, any) error   { panic("boom") }

type brokenErrors struct{}

func (brokenErrors) Encode(error) (string, []byte)       { panic("boom") }
func (brokenErrors) Decode(string, string, []byte) error { panic("boom") }

// nameless is a codec that does not say what its bytes are.
type nameless struct{ codec.Values }

func (nameless) Encode(any) (string, []byte, error) { return "", []byte("bytes"), nil }

func TestCodecThatFailsLosesTheResultAndNotTheOutcome(t *testing.T) {
	for name, values := range map[string]codec.Values{"panics": broken{}, "no media type": nameless{codec.JSON()}} {
		for way, start := range ways {
			do := start(t, stet.Options{Policy: stet.Policy{Values: values, Errors: brokenErrors{}}})
			runs := 0
			for range 2 {
				if _, err := do(func() (any, error) { runs++; return nil, nil }); stet.KindOf(err) != stet.KindExpired || stet.ExecutionOf(err) != stet.Executed || runs != 1 {
					t.Errorf("%s, %s: %v, %d runs", name, way, err, runs)
				}
			}
		}
	}
	s := memory.New(memory.Options{})
	sound := newEngine(t, s, stet.Options{})
	if _, err := stet.Do(t.Context(), sound, op, func(context.Context) (int, error) { return 1, nil }); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, s, stet.Options{Policy: stet.Policy{Values: broken{}}})
	if _, err := stet.Do(t.Context(), e, op, func(context.Context) (int, error) { t.Error("ran again"); return 0, nil }); stet.KindOf(err) != stet.KindForeign || stet.ExecutionOf(err) != stet.Executed {
		t.Errorf("a codec that panics as it reads: %v", err)
	}
}

func TestErrorCodecThatPanicsKeepsTheText(t *testing.T) {
	for way, start := range ways {
		do := start(t, stet.Options{Policy: stet.Policy{Errors: brokenErrors{}}})
		runs := 0
		for range 2 {
			_, err := do(func() (any, error) { runs++; return nil, errOutOfStock })
			if own, ok := errors.AsType[*stet.Error](err); !ok || own.Kind != stet.KindFailed || own.Cause.Error() != "out of stock" || runs != 1 {
				t.Errorf("%s: %v, %d runs", way, err, runs)
			}
		}
	}
}

func TestTypedErrorIsDroppedBeforeItsText(t *testing.T) {
	e := newEngine(t, memory.New(memory.Options{}), stet.Options{Policy: stet.Policy{Errors: shopErrors, MaxResult: 60}})
	for range 2 {
		_, err := stet.Do(t.Context(), e, op, func(context.Context) (int, error) { return 0, &declinedError{Code: "05"} })
		own, ok := errors.AsType[*stet.Error](err)
		if _, typed := errors.AsType[*declinedError](err); !ok || own.Kind != stet.KindFailed || own.Cause.Error() != "declined: 05" || typed {
			t.Error(err, typed)
		}
	}
}

func TestStepsComeBackByTheCodec(t *testing.T) {
	type receipt struct{ Amounts []any }
	s := memory.New(memory.Options{})
	o := stet.Options{Policy: stet.Policy{Values: codec.Gob()}}
	e := newEngine(t, s, o)
	it := accept(t, e, op, parcel)
	run, runs := take(t, e, it), 0
	for range 3 {
		v, err := stet.Step(run.Context(), "charge", func(context.Context) (receipt, error) { runs++; return receipt{[]any{int64(1) << 60, 0.5}}, nil })
		if err != nil || runs != 1 || len(v.Amounts) != 2 || v.Amounts[0] != any(int64(1)<<60) {
			t.Fatalf("%+v, %v, %d runs", v, err, runs)
		}
		run = again(t, e, run, it)
	}
	old := stettest.Engine(t, s, stet.Options{})
	if err := run.Release(t.Context(), stet.Again{}); err != nil {
		t.Fatal(err)
	}
	run = take(t, old, it)
	if _, err := stet.Step(run.Context(), "charge", func(context.Context) (receipt, error) { t.Error("ran again"); return receipt{}, nil }); stet.KindOf(err) != stet.KindDamaged {
		t.Errorf("a step of a codec that is not known: %v", err)
	}
}
