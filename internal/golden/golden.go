// Package golden compares what a test got with a file that a person has read.
//
//	golden.Check(t, "testdata/one-gpu.yaml", got)
//
// `go test ./... -update` writes the files anew; read the difference before
// committing it. Only test binaries import this package, so only they have the flag.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files with what the tests got")

// Update says whether golden files are to be rewritten, for tests that keep
// theirs in another way (testscript).
func Update() bool { return *update }

// Check fails the test if got differs from the content of the file at path.
func Check(t testing.TB, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what the test got (-file +got):\n%s", path, diff)
	}
}
