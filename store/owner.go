package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"os"
	"strings"
	"sync"
)

// Owner is the identity of one attempt to claim. It is made before the claim is sent, so that a
// claim whose reply was lost recognises its own record. Its first 7 bytes are random, which
// tells the claims of a key apart. The others name the process: see Process.
type Owner [16]byte

// String returns the owner in hexadecimal.
func (o Owner) String() string { return hex.EncodeToString(o[:]) }

// The parts of an Owner.
const (
	ownerRandom = 7  // bytes
	pidBits     = 22 // the largest process ID of Linux
	checkBits   = 13
	hostChars   = 7 // 37 bits
)

// hostAlphabet are the characters of a host's name in an Owner. The first is none.
const hostAlphabet = "\x00abcdefghijklmnopqrstuvwxyz0123456789-"

// NewOwner returns an owner of this process.
func NewOwner() (o Owner) {
	_, _ = rand.Read(o[:ownerRandom]) // never fails: see crypto/rand.Read
	o.name(thisProcess())
	return o
}

var thisProcess = sync.OnceValue(func() uint64 {
	host, _ := os.Hostname()
	return packProcess(host, os.Getpid())
})

// packProcess returns the last characters of a host's name, without its domain, and a process ID.
func packProcess(host string, pid int) (packed uint64) {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	host = host[max(0, len(host)-hostChars):]
	for i := range hostChars {
		c := 0
		if i < len(host) {
			if c = strings.IndexByte(hostAlphabet, host[i]); c < 1 {
				c = len(hostAlphabet) - 1
			}
		}
		packed = packed*uint64(len(hostAlphabet)) + uint64(c)
	}
	return packed<<pidBits | uint64(pid)&(1<<pidBits-1) //nolint:gosec // a process ID is positive
}

// name sets the part of an owner that names the process.
func (o *Owner) name(process uint64) {
	check := o.check(process)
	binary.BigEndian.PutUint64(o[ownerRandom:], process<<(checkBits-8)|check>>8)
	o[len(o)-1] = byte(check)
}

// check tells an owner of NewOwner from other ones.
func (o *Owner) check(process uint64) uint64 {
	h := fnv.New32a()
	h.Write(o[:ownerRandom])
	h.Write(binary.BigEndian.AppendUint64(nil, process))
	return uint64(h.Sum32()) & (1<<checkBits - 1)
}

// Process returns the process that made the claim: the last 7 characters of its host's name,
// without the domain, and its process ID. A longer name begins with "…". If NewOwner did not
// make the owner, ok is false; of 8,000 such owners, one is not recognised as one.
func (o Owner) Process() (host string, pid int, ok bool) {
	packed := binary.BigEndian.Uint64(o[ownerRandom:])
	process := packed >> (checkBits - 8)
	if o.check(process) != packed&(1<<(checkBits-8)-1)<<8|uint64(o[len(o)-1]) {
		return "", 0, false
	}
	pid = int(process & (1<<pidBits - 1)) //nolint:gosec // 22 bits
	process >>= pidBits
	var name [hostChars]byte
	for i := range hostChars {
		name[hostChars-1-i] = hostAlphabet[process%uint64(len(hostAlphabet))]
		process /= uint64(len(hostAlphabet))
	}
	host = strings.TrimRight(string(name[:]), "\x00")
	if len(host) == hostChars {
		host = "…" + host
	}
	return host, pid, process == 0 && !strings.Contains(host, "\x00")
}
