package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"podrail/pkg/discover"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

// TestThisHost: the copy of this machine reads as the machine itself.
func TestThisHost(t *testing.T) {
	t.Parallel()
	roundTrip(t, "/")
}

// TestTrees: a copy of a copy is as good as the first.
func TestTrees(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a100-mig", "a4-highgpu-8g", "h200-x2", "infiniband-4vf", "no-devices"} {
		from := filepath.Join("../../testdata/hosts", name)
		to := roundTrip(t, from)
		// Names of the driver's files, with what links lead to; nothing else is
		// outside of procfs and sysfs.
		if diff := cmp.Diff(driverFiles(t, from), driverFiles(t, to)); diff != "" {
			t.Errorf("%s: driver files (-tree +copy):\n%s", name, diff)
		}
	}
}

func roundTrip(t *testing.T, from string) (to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "host")
	captured, notes, err := capture(from, to)
	if err != nil || len(notes) > 0 {
		t.Fatalf("%s: %v, notes %q", from, err, notes)
	}
	root, err := discover.OpenRoot(to)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	got, err := discover.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(marshal(t, captured), marshal(t, got)); diff != "" {
		t.Errorf("%s (-host +copy):\n%s", from, diff)
	}
	return to
}

func marshal(t *testing.T, host *discover.Host) string {
	t.Helper()
	data, err := json.MarshalIndent(host, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// driverFiles are the files outside of sys and proc that name the driver's version.
func driverFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		below, _ := filepath.Rel(dir, name)
		if err != nil || entry.IsDir() || strings.HasPrefix(below, "sys/") || strings.HasPrefix(below, "proc/") {
			return err
		}
		if target, _ := os.Readlink(name); target != "" {
			files = append(files, below+" -> "+target)
		} else if strings.Contains(below, ".so") {
			files = append(files, below)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	return slices.DeleteFunc(files, func(s string) bool { return s == "usr/local/nvidia/lib -> lib64" })
}

func TestRefusesUsedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dev"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := capture("/", dir); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("error is %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "dev")); err != nil || string(data) != "mine" {
		t.Errorf("the file there is %q now, %v", data, err)
	}
}

// TestAbsoluteLinks: a link from the host's root stays one, and what it leads to
// is copied to where it leads in the copy.
func TestAbsoluteLinks(t *testing.T) {
	t.Parallel()
	host, dir := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	must(t, os.MkdirAll(filepath.Join(host, "sys/module/nvidia-580"), 0o755))
	must(t, os.WriteFile(filepath.Join(host, "sys/module/nvidia-580/version"), []byte("580.82.07\n"), 0o644))
	must(t, os.Symlink("/sys/module/nvidia-580", filepath.Join(host, "sys/module/nvidia")))
	must(t, os.WriteFile(filepath.Join(host, "dev"), nil, 0o644))
	must(t, os.WriteFile(filepath.Join(host, "net.json"), []byte("{}"), 0o644))
	captured, notes, err := capture(host, dir)
	if err != nil || len(notes) > 0 || captured.DriverVersion != "580.82.07" {
		t.Fatal(captured, notes, err)
	}
	if text, err := os.Readlink(filepath.Join(dir, "sys/module/nvidia")); err != nil || text != "/sys/module/nvidia-580" {
		t.Errorf("the link is %q now, %v", text, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
