package zookeeper

import (
	"fmt"
	"strings"

	"github.com/stet-go/stet/store"
)

// ZooKeeper lists all children of a znode at once, so records are divided into folders by the last
// hexadecimal digits of their IDs, and so are the folders of the schedule for an hour.
const (
	shards      = 256
	shardDigits = 2
	dueDigits   = 1
)

func shardOf(id store.ID, digits int) string { return id.String()[2*len(id)-digits:] }

// path is the znode of a record.
func (s *Store) path(id store.ID) string {
	return s.root + "/ops/" + shardOf(id, shardDigits) + "/" + id.String()
}

// slot is a place in the schedule, which has one znode for each record. Due is when the sweep must read
// the record. The folder In is for a minute or an hour: the sweep lists it from then on.
type slot struct{ Due, In millis }

const (
	minute millis = 60_000
	hour          = 60 * minute
	never  millis = 1<<44 - 1 // when the sweep reads an unknown record
)

// schedule sets the slot for the state and times of the record, which is written now.
func (n *node) schedule(now millis) {
	at, due := n.At, never
	if at == 0 {
		at = now
	}
	switch {
	case n.State == store.Running:
		due = at + n.End.Lease
	case n.State == store.Retryable || n.Gone:
		due = at + n.End.Forget
	case n.State.Settled():
		due = at + n.End.Expire
	}
	n.Slot = slot{due, due - due%minute}
	switch {
	case due == never:
		n.Slot.In = never
	case n.State != store.Running && due-now > hour: // few folders, and not one late lease
		n.Slot.In = due - due%hour + hour
	}
}

// ownerPrefix is how many bytes of the owner are in a name of the schedule. So each claim has other
// names, and a write that compares the version and the name cannot change a later claim of the key.
const ownerPrefix = 8

// place is the znode in the schedule; "" if there is none.
func (s *Store) place(n *node) string {
	if n.Slot.Due == 0 {
		return ""
	}
	digits := dueDigits
	if n.Slot.In <= n.Slot.Due && n.Slot.Due != never { // of a minute, which has live runs and few others
		digits = 0
	}
	return fmt.Sprintf("%s/%011x.%v.%x", s.folder(n.Slot.In, shardOf(n.id, digits)), n.Slot.Due, n.id, n.Owner[:ownerPrefix])
}

func (s *Store) folder(in millis, shard string) string {
	return fmt.Sprintf("%s/due/%011x-%s", s.root, in, shard)
}

// parsePlace returns the time and the ID of a name in the schedule.
func parsePlace(name string) (due millis, id store.ID, err error) {
	time, rest, _ := strings.Cut(name, ".")
	if _, err = fmt.Sscanf(time, "%x", &due); err == nil {
		text, _, _ := strings.Cut(rest, ".")
		id, err = store.ParseID(text)
	}
	return due, id, err
}
