// Package crashtest is the kernel of the crash tests: it checks that an effect happens once, and that replies
// are true, whichever process dies. Workloads (payments, messages, async) bring the operations; the kernel brings the rest.
//
// A Killer has processes in lanes. Each is given a Visit: the fault point, and the visit of it, at which it
// kills itself, or stops itself for longer than its lease, continues, and dies later; a process that does not reach it
// is killed from outside. A Plan gives out every visit in turn until there were enough kills; the processes
// after that live until the end. In the meantime Faults come from outside: servers that are
// killed, networks that lose and cut, stops, full disks. What processes and clients see goes to histories,
// files to which a line is appended before a call is made and after it was answered, so that they are whole
// after SIGKILL. Effects go to a Ledger, or to a table beside the records: neither has a unique
// constraint, so that a second effect shows. When all is over every record is looked at, and the Judge, who
// has seen nothing else, compares histories, ledger and records, and names every promise that was broken.
package crashtest
