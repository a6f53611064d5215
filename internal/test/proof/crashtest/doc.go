// Package crashtest is the kernel of the crash tests: it says whether an effect happens once, and is told
// truly, whatever dies. Workloads (payments, messages, async) bring what is done; the kernel brings the rest.
//
// A Killer has processes in lanes. Each is given a Visit: the fault point, and the visit of it, at which it
// kills itself, or stops itself for longer than its lease, continues, and dies later; one that does not come by
// is killed where it is. A Plan gives out every visit in turn until there were enough kills; the processes
// after that live until they are told to end. In the meantime Faults befall them from outside: servers that are
// killed, networks that lose and cut, stops, full disks. What processes and clients see goes to histories,
// files to which a line is appended before a call is made and after it was answered, so that they are whole
// after SIGKILL. What is done goes to a Ledger, or to a table beside the records: neither has a unique
// constraint, so that a second effect shows. When all is over every record is looked at, and the Judge, who
// has seen nothing else, compares histories, ledger and records, and names every promise that was broken.
package crashtest
