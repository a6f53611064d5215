package store_test

import (
	"context"
	"testing"

	"github.com/stet-go/stet/store"
)

type plain struct{ store.Store }

type swept struct {
	store.Store
	by string
}

func (swept) Sweep(context.Context, int) (store.Swept, error) { return store.Swept{}, nil }

type front struct{ store.Store }

func (f front) Unwrap() store.Store { return f.Store }

func TestBaseIsBehindAllWrappers(t *testing.T) {
	inner := &swept{by: "the inner"}
	for name, s := range map[string]store.Store{"itself": inner, "behind one": front{inner}, "behind two": front{front{inner}}} {
		if got := store.Base(s); got != store.Store(inner) {
			t.Errorf("%s: got %v; want the inner store", name, got)
		}
	}
	if got := store.Base(front{}); got != nil {
		t.Errorf("in front of none: got %v; want nil", got)
	}
}

func TestAbilityIsFoundThroughWrappersAndNoOthers(t *testing.T) {
	inner := swept{by: "the inner"}
	for name, s := range map[string]store.Store{"itself": inner, "behind one": front{inner}, "behind two": front{front{inner}}} {
		if got, ok := store.As[store.Sweeper](s); !ok || got != store.Sweeper(inner) {
			t.Errorf("%s: found %v, %v", name, got, ok)
		}
	}
	outer := swept{front{inner}, "the outer"}
	if got, ok := store.As[store.Sweeper](front{outer}); !ok || got != store.Sweeper(outer) {
		t.Errorf("of two that can the outer should be found; got %v, %v", got, ok)
	}
	for name, s := range map[string]store.Store{"cannot": front{plain{}}, "does not say which store it wraps": plain{inner}, "is none": nil, "is in front of none": front{}} {
		if got, ok := store.As[store.Sweeper](s); ok {
			t.Errorf("a store that %s: found %v", name, got)
		}
	}
}
