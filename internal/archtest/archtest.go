// Package archtest tests the shape of the project: which package may import which,
// what each exports, that packages and exported names are documented, and how long
// files and functions are. It has no code of its own.
package archtest
