package cdi

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"syscall"
)

// TestReplaceFails makes the second of two files impossible: the first is not
// written either, and nothing is left.
func TestReplaceFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := filepath.Join(dir, "a.yaml")
	if err := os.WriteFile(old, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	files := []File{{Path: old, Data: []byte("new")}, {Path: filepath.Join(dir, "gone", "b.yaml"), Data: []byte("new")}}
	if _, err := Replace(dir, files, []string{old}); err == nil {
		t.Fatal("no error")
	}
	if data, _ := os.ReadFile(old); string(data) != "old" {
		t.Errorf("%s is %q", old, data)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left in the directory: %v", entries)
	}
}

// TestReplaceWhole reads while files are replaced: no reader sees a part of one.
func TestReplaceWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	contents := []string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<16)}
	done := make(chan error)
	go func() {
		var err error
		for i := 0; i < 100 && err == nil; i++ {
			_, err = Replace(dir, []File{{Path: path, Data: []byte(contents[i%2])}}, nil)
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
		data, err := os.ReadFile(path)
		if err == nil && string(data) != contents[0] && string(data) != contents[1] {
			t.Fatalf("read %d bytes of a file half written", len(data))
		}
	}
}

// fakeInfo is a file of somebody's.
type fakeInfo struct {
	mode     fs.FileMode
	uid, gid uint32
}

func (f fakeInfo) Name() string       { return "x" }
func (f fakeInfo) Size() int64        { return 0 }
func (f fakeInfo) Mode() fs.FileMode  { return f.mode }
func (f fakeInfo) ModTime() time.Time { return time.Time{} }
func (f fakeInfo) IsDir() bool        { return f.mode.IsDir() }
func (f fakeInfo) Sys() any           { return &syscall.Stat_t{Uid: f.uid, Gid: f.gid} }

func TestDistrust(t *testing.T) {
	t.Parallel()
	dir := fs.ModeDir
	cases := []struct {
		info    fakeInfo
		euid    int
		trusted bool
	}{
		{fakeInfo{dir | 0o755, 0, 0}, 0, true},
		{fakeInfo{dir | 0o755, 0, 0}, 1000, true},
		{fakeInfo{dir | 0o755, 1000, 1000}, 1000, true},
		{fakeInfo{dir | 0o755, 1000, 1000}, 0, false},
		{fakeInfo{dir | 0o755, 1001, 1001}, 1000, false},
		{fakeInfo{dir | 0o777, 0, 0}, 0, false},
		{fakeInfo{dir | fs.ModeSticky | 0o777, 0, 0}, 0, true},
		{fakeInfo{fs.ModeSticky | 0o777, 0, 0}, 0, false}, // of a file it means nothing
		{fakeInfo{dir | 0o775, 0, 0}, 0, true},
		{fakeInfo{dir | 0o775, 0, 50}, 0, false},
		{fakeInfo{dir | 0o775, 1000, 1000}, 1000, true}, // a group of the user's own
		{fakeInfo{dir | 0o775, 1000, 100}, 1000, false},
		{fakeInfo{dir | fs.ModeSticky | 0o777, 1001, 0}, 1000, false},
	}
	for _, c := range cases {
		if why := distrust(c.info, c.euid); (why == "") != c.trusted {
			t.Errorf("%v of %d:%d for user %d: %q", c.info.mode, c.info.uid, c.info.gid, c.euid, why)
		}
	}
}

func TestTrustedLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	for _, err := range []error{
		os.Mkdir(open, 0o755), os.Chmod(open, 0o777),
		os.WriteFile(filepath.Join(dir, "hook"), nil, 0o755),
		os.Symlink("../hook", filepath.Join(open, "hook")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := checkTrusted(filepath.Join(dir, "hook")); err != nil {
		t.Error(err)
	}
	if err := checkTrusted(filepath.Join(open, "hook")); err == nil {
		t.Error("a link that anybody can replace is trusted")
	}
}
