package redis_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/redis"
)

func TestNameOfGreatestLengthWaits(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{Prefix: fresh()})
		label := store.Label{Class: strings.Repeat("c", store.MaxLabel), Name: strings.Repeat("n", store.MaxLabel), Ref: strings.Repeat("r", store.MaxLabel)}
		req := request("k")
		req.Label = label
		mustAccept(t, s, req, 0)
		recs, err := s.Due(t.Context(), 1, time.Hour, label.Name)
		if err != nil || len(recs) != 1 || recs[0].Label != label {
			t.Errorf("got %v, %v; want len(recs) == 1, recs[0].Label == label, no error", recs, err)
		}
	})
}

func TestManyNamesTakeTurnsInALittleRoom(t *testing.T) {
	each(t, func(t *testing.T, c conn) {
		s := open(t, c, redis.Options{Prefix: fresh()})
		var names []string
		for i := range 40 {
			names = append(names, fmt.Sprintf("name %02d", i))
			for j := range 50 {
				req := request(fmt.Sprintf("%d/%d", i, j))
				req.Label.Name = names[i]
				mustAccept(t, s, req, 0)
			}
		}
		seen := make(map[string]int)
		for range 60 {
			recs, err := s.Due(context.Background(), 4, time.Hour, names...)
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range recs {
				seen[rec.Label.Name]++
			}
		}
		if len(seen) < 35 {
			t.Errorf("of 40 names that all have a backlog %d were heard in 60 answers: %v", len(seen), seen)
		}
	})
}
