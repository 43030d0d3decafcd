package discover_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"podrail/pkg/discover"
)

func open(t *testing.T, dir string) *discover.Root {
	t.Helper()
	root, err := discover.OpenRoot(dir)
	must(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

// TestRootLinks: links of every sort stay below the root.
func TestRootLinks(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	write(t, outside, "secret", "outside")
	dir := t.TempDir()
	write(t, dir, "usr/lib/real", "inside")
	write(t, dir, strings.TrimPrefix(filepath.Join(outside, "secret"), "/"), "below")
	symlink(t, dir, "/usr/lib", "lib")
	symlink(t, dir, "usr/lib", "lib64")
	symlink(t, dir, "../../../../../../../../../../lib/real", "up")
	symlink(t, dir, filepath.Join(outside, "secret"), "absolute")
	symlink(t, dir, "loop", "loop")
	symlink(t, dir, "/nowhere", "dangling")
	root := open(t, dir)
	for _, tt := range []struct{ name, text, resolved string }{
		{"/lib/real", "inside", "/usr/lib/real"},
		{"/lib64/real", "inside", "/usr/lib/real"},
		{"/up", "inside", "/usr/lib/real"},
		{"/absolute", "below", filepath.Join(outside, "secret")},
		{"/../../../usr/lib/real", "inside", "/usr/lib/real"},
		{"usr/lib/real", "inside", "/usr/lib/real"},
	} {
		text, err := root.ReadFile(tt.name)
		if err != nil || string(text) != tt.text {
			t.Errorf("ReadFile(%q) = %q, %v; want %q", tt.name, text, err, tt.text)
		}
		resolved, err := root.Resolve(tt.name)
		if err != nil || resolved != tt.resolved {
			t.Errorf("Resolve(%q) = %q, %v; want %q", tt.name, resolved, err, tt.resolved)
		}
	}
	for name, want := range map[string]error{"/loop": unix.ELOOP, "/dangling": fs.ErrNotExist, "/lib": discover.ErrNotRegular} {
		_, err := root.ReadFile(name)
		var pathError *fs.PathError
		if !errors.Is(err, want) || !errors.As(err, &pathError) || pathError.Path != dir+name {
			t.Errorf("ReadFile(%q): %v, want %v", name, err, want)
		}
	}
	if resolved, err := root.Resolve("/"); err != nil || resolved != "/" {
		t.Errorf("Resolve(/) = %q, %v", resolved, err)
	}
	if text, err := root.Readlink("/dangling"); err != nil || text != "/nowhere" {
		t.Errorf("Readlink(/dangling) = %q, %v", text, err)
	}
	if info, err := root.Lstat("/lib"); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("Lstat(/lib) = %v, %v", info, err)
	}
	if info, err := root.Stat("/lib"); err != nil || !info.IsDir() {
		t.Errorf("Stat(/lib) = %v, %v", info, err)
	}
	if root.Exists("/dangling") || !root.Exists("/up") || root.Live() || root.Dir() != dir {
		t.Error("Exists, Live or Dir is wrong")
	}
	names, err := root.ReadDir("/")
	if err != nil || !slices.Contains(names, "dangling") || !slices.IsSorted(names) {
		t.Errorf("ReadDir(/) = %v, %v", names, err)
	}
}

// TestRootSpecialFiles: what blocks, is endless or too large is refused at once.
func TestRootSpecialFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo(t, dir, "fifo")
	write(t, dir, "large", "")
	truncate(t, dir, "large", 16<<20)
	write(t, dir, "larger", "")
	truncate(t, dir, "larger", 16<<20+1)
	root := open(t, dir)
	if _, err := root.ReadFile("/fifo"); !errors.Is(err, discover.ErrNotRegular) {
		t.Errorf("reading a FIFO: %v", err)
	}
	if data, err := root.ReadFile("/large"); err != nil || len(data) != 16<<20 {
		t.Errorf("reading 16 MiB: %d bytes, %v", len(data), err)
	}
	if _, err := root.ReadFile("/larger"); !errors.Is(err, unix.EFBIG) {
		t.Errorf("reading more than 16 MiB: %v", err)
	}
	if _, err := root.DeviceNode("/fifo"); !errors.Is(err, discover.ErrNotDevice) {
		t.Errorf("a FIFO as device: %v", err)
	}
	if _, err := open(t, "/").ReadFile("/dev/zero"); !errors.Is(err, discover.ErrNotRegular) {
		t.Errorf("reading /dev/zero: %v", err)
	}
}

func TestOpenRootErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "file", "")
	for name, want := range map[string]error{"file": unix.ENOTDIR, "none": fs.ErrNotExist} {
		if _, err := discover.OpenRoot(filepath.Join(dir, name)); !errors.Is(err, want) {
			t.Errorf("OpenRoot(%s): %v, want %v", name, err, want)
		}
	}
}

// TestDeviceNodes: listed nodes and real ones read the same.
func TestDeviceNodes(t *testing.T) {
	t.Parallel()
	live := open(t, "/")
	if !live.Live() {
		t.Error("/ is not live")
	}
	null, err := live.DeviceNode("/dev/null")
	if err != nil || null.Major != 1 || null.Minor != 3 || null.Path != "/dev/null" {
		t.Fatalf("/dev/null is %+v, %v", null, err)
	}
	dir := t.TempDir()
	write(t, dir, "dev", "# nodes\n"+null.String()+"\ncr-------- 7 8 241 1 /dev/nvidia-caps/nvidia-cap1\n")
	listed := open(t, dir)
	if got, err := listed.DeviceNode("/dev/../dev/null"); err != nil || got != null {
		t.Errorf("listed /dev/null is %+v, %v; want %+v", got, err, null)
	}
	want := discover.DeviceNode{Path: "/dev/nvidia-caps/nvidia-cap1", Major: 241, Minor: 1, Mode: 0o400, UID: 7, GID: 8}
	if got, err := listed.DeviceNodes("/dev/nvidia-caps/*"); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("DeviceNodes(/dev/nvidia-caps/*) = %+v, %v", got, err)
	}
	if _, err := listed.DeviceNode("/dev/zero"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a node not listed: %v", err)
	}
	if !listed.Exists("/dev/null") || listed.Exists("/dev/zero") {
		t.Error("Exists does not know the list")
	}
	nodes, err := live.DeviceNodes("/dev/nul*")
	if err != nil || !slices.Contains(nodes, null) {
		t.Errorf("DeviceNodes(/dev/nul*) = %v, %v", nodes, err)
	}
	if _, err := live.DeviceNodes("/dev/nowhere/*"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("DeviceNodes(/dev/nowhere/*): %v", err)
	}
}

func TestOnRead(t *testing.T) {
	t.Parallel()
	root := open(t, t.TempDir())
	var seen []string
	root.OnRead(func(name string) { seen = append(seen, name) })
	root.ReadFile("a")
	root.Exists("/b/../c")
	if want := []string{"/a", "/c"}; !slices.Equal(seen, want) {
		t.Errorf("seen %q, want %q", seen, want)
	}
}

func FuzzNodeList(f *testing.F) {
	f.Add("crw-rw-rw- 0 0 195 255 /dev/nvidiactl\n")
	f.Add("# comment\n\ncr-------- 0 0 241 1 /dev/nvidia-caps/nvidia-cap1")
	f.Fuzz(func(t *testing.T, list string) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "dev"), []byte(list), 0o600))
		root, err := discover.OpenRoot(dir)
		if err != nil {
			return
		}
		defer root.Close()
		nodes, _ := root.DeviceNodes("/dev/*")
		for _, n := range nodes {
			write(t, dir, "dev", n.String())
			again := open(t, dir)
			if got, err := again.DeviceNode(n.Path); err != nil || got != n {
				t.Errorf("%+v is read again as %+v, %v", n, got, err)
			}
		}
	})
}
