// Package matrix holds two tables, which its tests compare with what the code
// does. Both are in testdata, one line a cell:
//
//   - endings.txt: for each way in which a run can end, and each adapter, the record
//     that is left, the first caller's answer, and that of the next retry;
//   - reading.txt: for each outcome that can be stored, what each adapter makes of
//     it that did not write it.
//
// The tables show the actual behaviour: docs/endings.md judges the
// differences between the adapters. Each cell is produced by running the adapters, over
// the memory store. "go test ./internal/matrix -update" writes the tables anew; a
// change of a line is a change of behaviour.
package matrix
