package archtest

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// arrows says which packages of ours the code of a package may import, tests
// apart. A package that is not here is refused; "stet" is the root. Subpackages of
// those marked with /... may import what the parent may, the parent, and each other.
var arrows = []struct{ from, to string }{
	{"store codec internal/fault internal/timer internal/problem internal/seal internal/child internal/test/rig internal/test/rig/topic internal/archtest internal/matrix internal/release internal/test/engine", ""},
	{"observe canonical", "store"},
	{"codec/protobuf", "codec"},
	{"internal/coding", "codec store"},
	{"internal/lapse", "store"},
	{"stet", "store observe codec internal/coding internal/fault internal/lapse internal/timer internal/seal"},
	{"internal/misuse", "stet"},
	{"internal/intx", "stet"},
	{"store/internal/rules store/internal/calls", "store"},
	{"store/memory store/sqlite store/mysql store/postgres store/zookeeper store/dynamodb store/redis/...", "store store/internal/rules store/internal/calls internal/fault internal/timer"},
	{"store/cache store/tier", "store"},
	{"store/storetest", "stet store"},
	{"stethttp/adaptertest", "stet stethttp store store/memory"},
	{"stethttp/...", "stet store observe internal/again internal/coding internal/fault internal/intx internal/timer internal/misuse internal/problem"},
	{"stetmsg/... reconcile", "stet store observe internal/again internal/coding internal/fault internal/lapse internal/timer internal/misuse"},
	{"internal/again", "stet store"},
	{"internal/mcpcall", "stet store canonical"},
	{"stetwork", "stet store observe internal/again internal/coding internal/fault internal/timer internal/misuse reconcile"},
	{"stetwork/broker", "stet store stetwork stetmsg internal/timer internal/misuse"},
	{"stetwork/river", "stet store stetwork internal/misuse"},
	{"stetclient/...", "stet store internal/fault internal/misuse"},
	{"internal/verify", "stet"},
	{"internal/rpc", "stet store internal/again internal/coding internal/misuse"},
	{"observe/stetlog observe/stetmetrics observe/stettrace", "stet store observe"},
	{"internal/admin", "stet store observe"},
	{"internal/test/stettest", "stet store observe"},
	{"stettest", ""},
	{"internal/echotest", "stet stethttp stethttp/adaptertest"},
	{"internal/exchange", "stethttp"},
	{"internal/test/stettest/sqlresult", "stet store stethttp internal/test/stettest"},
	{"internal/crash", "stet internal/child internal/fault"},
	{"internal/demo", "stet stethttp store/sqlite internal/child internal/crash"},
	{"internal/dashboard", "stet store observe stethttp internal/admin internal/problem"},
	{"internal/intake", "stet store stetmsg stetmsg/amqp stetmsg/jetstream stetmsg/kafka stetmsg/sqs stetmsg/cloudevents internal/misuse"},
	{"internal/proxy", "stet store observe stethttp stetmsg stetmsg/... stetwork canonical internal/dashboard reconcile internal/timer internal/admin internal/problem internal/intake internal/mcpcall"},
	{"cmd/stet", "..."}, // anything of this module
	// Modules of their own, for frameworks and protocols.
	{"contrib/stetgin contrib/stetecho contrib/stetecho4", "stet stethttp internal/exchange"},
	{"contrib/stetfiber", "stet store store/memory stethttp internal/misuse internal/problem"},
	{"contrib/stetwatermill contrib/stetlambda contrib/stetmcp contrib/stetgrpc/... contrib/stetconnect", "stet store observe codec codec/protobuf stethttp stethttp/... stetmsg stetmsg/cloudevents stetclient internal/again internal/coding internal/intx internal/mcpcall internal/misuse internal/problem internal/rpc internal/timer"},
}

// modules are the folders of other modules. They may import anything but commands,
// those of examples nothing internal either.
var modules = []string{"internal/test/proof", "bench", "examples", "packaging"}

// standard are the packages that import the standard library only, and one another.
var standard = []string{"stet", "store", "observe", "codec", "internal/coding", "internal/fault", "internal/lapse", "internal/timer", "internal/seal", "store/internal/rules", "store/memory", "observe/stetlog"}

// pkg is the package of a file or of an import path; ok says that it is ours.
func pkg(p string) (name string, ok bool) {
	if p == module {
		return "stet", true
	}
	return strings.CutPrefix(p, module+"/")
}

func (f file) pkg() string {
	if dir := path.Dir(f.path); dir != "." {
		return dir
	}
	return "stet"
}

// other returns the module that a package is of, if it is not the main one.
func other(p string) string {
	i := slices.IndexFunc(modules, func(m string) bool { return p == m || strings.HasPrefix(p, m+"/") })
	if i < 0 {
		return ""
	}
	return modules[i]
}

// allowed returns what a package may import, and whether arrows has it.
func allowed(p string) (to []string, ok bool) {
	for _, a := range arrows {
		for from := range strings.FieldsSeq(a.from) {
			parent, tree := strings.CutSuffix(from, "/...")
			if p == parent || tree && strings.HasPrefix(p, parent+"/") {
				to = strings.Fields(a.to)
				if tree {
					to = append(to, parent, parent+"/...")
				}
				return to, true
			}
		}
	}
	return nil, false
}

func mayImport(to []string, p string) bool {
	return slices.ContainsFunc(to, func(t string) bool {
		tree, ok := strings.CutSuffix(t, "...")
		return t == p || ok && strings.HasPrefix(p, tree)
	})
}

func TestEveryImportIsAllowed(t *testing.T) {
	found := make(map[string]map[string]string) // by package: its imports, and one file with each
	for _, f := range files(t) {
		if f.test() {
			continue
		}
		from := f.pkg()
		if found[from] == nil {
			found[from] = make(map[string]string)
		}
		for _, p := range f.imports() {
			if p, ours := pkg(p); ours {
				found[from][p] = f.path
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(found)) {
		to, known := allowed(from)
		if !known && other(from) == "" {
			t.Errorf("%s is not in arrows (internal/archtest/arrows_test.go): add it with its allowed imports", from)
			continue
		}
		for p, path := range found[from] {
			switch {
			case strings.HasPrefix(p, "cmd/"):
				t.Errorf("%s imports a command, %s", path, p)
			case other(from) == "examples" && !strings.HasPrefix(from, "examples/internal/") && strings.HasPrefix(p, "internal/"):
				t.Errorf("%s imports %s; who copies an example cannot", path, p)
			case other(from) == "" && other(p) != "":
				t.Errorf("%s imports %s, which is in another module", path, p)
			case other(from) == "" && !mayImport(to, p):
				t.Errorf("%s imports %s; of our packages, %s may import: %s", path, p, from, strings.Join(to, " "))
			}
		}
	}
}

func TestSomePackagesNeedTheStandardLibraryOnly(t *testing.T) {
	for _, f := range files(t) {
		if f.test() || !slices.Contains(standard, f.pkg()) {
			continue
		}
		for _, p := range f.imports() {
			first, _, _ := strings.Cut(p, "/")
			if of, ours := pkg(p); strings.Contains(first, ".") && (!ours || !slices.Contains(standard, of)) {
				t.Errorf("%s imports %s; %s needs the standard library only", f.path, p, f.pkg())
			}
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	comments := make(map[string]int)
	for _, f := range files(t) {
		if f.test() {
			continue
		}
		comments[f.pkg()] += 0
		if f.ast.Doc != nil {
			comments[f.pkg()]++
		}
	}
	for _, p := range slices.Sorted(maps.Keys(comments)) {
		if n := comments[p]; n != 1 && p != "stet" {
			t.Errorf("%s has %d package comments; want 1", p, n)
		}
	}
}
