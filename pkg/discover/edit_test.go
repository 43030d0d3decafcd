package discover_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// These change a copied tree, or end the test.

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	name = filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(text), 0o644))
}

func edit(t *testing.T, dir, name string, f func(string) string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	must(t, err)
	write(t, dir, name, f(string(data)))
}

func replace(t *testing.T, dir, name, from, to string) {
	t.Helper()
	edit(t, dir, name, func(s string) string {
		if !strings.Contains(s, from) {
			t.Fatalf("%s has no %q", name, from)
		}
		return strings.ReplaceAll(s, from, to)
	})
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	name = filepath.Join(dir, name)
	if _, err := os.Lstat(name); err != nil {
		t.Fatal(err)
	}
	must(t, os.RemoveAll(name))
}

func rename(t *testing.T, dir, from, to string) {
	t.Helper()
	must(t, os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)))
}

func symlink(t *testing.T, dir, text, name string) {
	t.Helper()
	name = filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.Symlink(text, name))
}

func mkdir(t *testing.T, dir, name string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
}

func fifo(t *testing.T, dir, name string) {
	t.Helper()
	must(t, unix.Mkfifo(filepath.Join(dir, name), 0o644))
}

func truncate(t *testing.T, dir, name string, size int64) {
	t.Helper()
	must(t, os.Truncate(filepath.Join(dir, name), size))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
