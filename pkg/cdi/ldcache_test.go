package cdi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// someCache has 64-bit libraries at these paths, and libc.
func someCache(paths ...string) *ldCache {
	c := &ldCache{entries: []cacheEntry{{flags: cacheLibc6 | cacheX8664, name: "libc.so.6", path: "/lib/libc.so.6"}}}
	if err := c.add(paths); err != nil {
		panic(err)
	}
	return c
}

func TestParseLDCache(t *testing.T) {
	t.Parallel()
	good := someCache("/opt/nv/libcuda.so.1").marshal()
	old := append([]byte(oldCacheMagic+"\x00\x01\x00\x00\x00"), make([]byte, 12+4)...)
	withOld := append(bytes.Clone(old), good...)
	for name, data := range map[string][]byte{"new": good, "new behind old": withOld} {
		c, err := parseLDCache(data)
		if err != nil || len(c.entries) != 2 || c.entries[0].path != "/opt/nv/libcuda.so.1" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	edit := func(at int, value uint32) []byte {
		data := bytes.Clone(good)
		binary.LittleEndian.PutUint32(data[at:], value)
		return data
	}
	extended := someCache("/opt/nv/libcuda.so.1")
	extended.extensions = []cacheExtension{{tag: 0, data: []byte("ldconfig")}, {tag: extensionHWCaps, names: []string{"x86-64-v3"}}}
	cut := extended.marshal()
	bad := map[string][]byte{
		"empty":                  {},
		"something else":         []byte(strings.Repeat("x", 200)),
		"a million entries":      edit(20, 1<<20),
		"one entry too many":     edit(20, 5),
		"name outside":           edit(cacheHeader+4, 1<<31),
		"name without end":       append(edit(cacheHeader+4, uint32(len(good))), bytes.Repeat([]byte("x"), 5000)...),
		"big-endian":             edit(28, 3),
		"old alone":              old,
		"old that is cut":        old[:14],
		"old with a lying count": append([]byte(oldCacheMagic+"\x00\xff\xff\xff\xff"), good...),
		"extension cut":          cut[:len(cut)-1],
		"larger than 16 MiB":     make([]byte, maxCacheFile+1),
		"header alone":           good[:cacheHeader-1],
		"cut in the entries":     good[:cacheHeader+30],
		"cut in the last string": good[:len(good)-1],
	}
	for name, data := range bad {
		if c, err := parseLDCache(data); err == nil {
			t.Errorf("%s: read as %+v", name, c)
		}
	}
	for n := range cut { // wherever it ends
		parseLDCache(cut[:n])
	}
}

// FuzzParseLDCache has no panic and no more than the file can hold; and what was
// read is the same when written and read again.
func FuzzParseLDCache(f *testing.F) {
	c := someCache("/opt/nv/libcuda.so.1", "/usr/lib64/libnvidia-ml.so.1")
	f.Add(c.marshal())
	c.extensions = []cacheExtension{{tag: 0, data: []byte("ldconfig")}, {tag: extensionHWCaps, names: []string{"x86-64-v3"}}}
	f.Add(c.marshal())
	f.Add([]byte(oldCacheMagic))
	if data, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseLDCache(data)
		if err != nil {
			return
		}
		if len(c.entries)*cacheEntrySize > len(data) {
			t.Fatalf("%d entries from %d bytes", len(c.entries), len(data))
		}
		again, err := parseLDCache(c.marshal())
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if len(c.entries) > 0 && !reflect.DeepEqual(c.entries, again.entries) {
			t.Errorf("read %+v, again %+v", c.entries, again.entries)
		}
	})
}

// TestLDCacheOfThisMachine reads what ldconfig made.
func TestLDCacheOfThisMachine(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("/etc/ld.so.cache")
	if err != nil {
		t.Skip(err)
	}
	c, err := parseLDCache(data)
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.entries[1:] {
		if a, b := c.entries[i].name, c.entries[i+1].name; compareLibraries(a, b) < 0 {
			t.Errorf("%s is before %s: compared otherwise than glibc does", a, b)
		}
	}
}

func TestUpdateLDCacheHostile(t *testing.T) {
	t.Parallel()
	good := someCache("/opt/x/libx.so.1").marshal()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(outside, "ld.so.cache")
	cases := []struct {
		name    string
		prepare func(rootfs string) error
		wantErr bool
	}{
		{"as images have it", func(r string) error { return put(r, "etc/ld.so.cache", good) }, false},
		{"a link inside", func(r string) error {
			return errors.Join(put(r, "var/cache/ld.so.cache", good), os.MkdirAll(r+"/etc", 0o755), os.Symlink("/var/cache/ld.so.cache", r+"/etc/ld.so.cache"))
		}, false},
		{"/etc leads out", func(r string) error { return os.Symlink(outside, r+"/etc") }, true},
		{"/etc leads up", func(r string) error { return os.Symlink("../../../../../../../.."+outside, r+"/etc") }, true},
		{"/etc leads through procfs", func(r string) error {
			return errors.Join(os.MkdirAll(r+"/p", 0o755), unix.Mount("proc", r+"/p", "proc", 0, ""), os.Symlink("/p/1/root"+outside, r+"/etc"))
		}, true},
		{"the cache leads out", func(r string) error {
			return errors.Join(os.MkdirAll(r+"/etc", 0o755), os.Symlink(victim, r+"/etc/ld.so.cache"))
		}, true},
		{"a loop", func(r string) error { return os.Symlink("etc", r+"/etc") }, true},
		{"a FIFO", func(r string) error {
			return errors.Join(os.MkdirAll(r+"/etc", 0o755), unix.Mkfifo(r+"/etc/ld.so.cache", 0o644))
		}, true},
		{"no cache", func(r string) error { return os.MkdirAll(r+"/etc", 0o755) }, true},
		{"garbage", func(r string) error { return put(r, "etc/ld.so.cache", []byte("garbage")) }, true},
		{"no libc", func(r string) error { return put(r, "etc/ld.so.cache", (&ldCache{}).marshal()) }, true},
		{"read-only", func(r string) error {
			return errors.Join(put(r, "etc/ld.so.cache", good), unix.Mount(r, r, "", unix.MS_BIND, ""), unix.Mount("", r, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, true},
		{"/etc of somebody else", func(r string) error {
			return errors.Join(os.MkdirAll(r+"/etc", 0o755), unix.Mount(outside, r+"/etc", "", unix.MS_BIND, ""))
		}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(victim, good, 0o644); err != nil {
				t.Fatal(err)
			}
			rootfs := t.TempDir()
			t.Cleanup(func() {
				for _, m := range []string{"p", "etc", "."} {
					unix.Unmount(filepath.Join(rootfs, m), unix.MNT_DETACH)
				}
			})
			if err := c.prepare(rootfs); err != nil {
				t.Skip(err) // mounts need root
			}
			err := UpdateLDCache(rootfs, []string{"/usr/lib64/libcuda.so.1"})
			if c.wantErr != errors.Is(err, ErrLeftAlone) || !c.wantErr && err != nil {
				t.Errorf("error %v", err)
			}
			if now, err := os.ReadFile(victim); err != nil || !bytes.Equal(now, good) {
				t.Errorf("a file outside was changed")
			}
			if left, _ := filepath.Glob(rootfs + "/etc/.ld*"); left != nil {
				t.Errorf("left %v", left)
			}
			if left, _ := os.ReadDir(outside); len(left) != 1 {
				t.Errorf("outside there is now %v", left)
			}
		})
	}
	if err := UpdateLDCache("/does/not/exist", nil); err == nil {
		t.Error("a root file system that is not there")
	}
	rootfs := t.TempDir()
	if err := put(rootfs, "etc/ld.so.cache", good); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libcuda.so.1", "/usr/../x", "/x\x00"} {
		if err := UpdateLDCache(rootfs, []string{name}); !errors.Is(err, ErrLeftAlone) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func put(root, name string, data []byte) error {
	name = filepath.Join(root, name)
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o644))
}

func TestReadObject(t *testing.T) {
	t.Parallel()
	for class := byte(1); class <= 2; class++ {
		file := elfFile(class, "libcuda.so.1")
		o, err := readObject(bytes.NewReader(file))
		if err != nil || o.soname != "libcuda.so.1" || byte(o.class) != class {
			t.Errorf("class %d: %+v, %v", class, o, err)
		}
		for n := range file { // cut anywhere
			if o, err := readObject(bytes.NewReader(file[:n])); err == nil && o.soname != "" && o.soname != "libcuda.so.1" {
				t.Errorf("class %d cut to %d bytes: %+v", class, n, o)
			}
		}
	}
	bad := elfFile(2, "libx.so")
	for _, c := range []struct {
		at    int
		value uint16
	}{{54, 55}, {56, 65}, {5, 2}, {4, 3}} {
		data := bytes.Clone(bad)
		binary.LittleEndian.PutUint16(data[c.at:], c.value)
		if _, err := readObject(bytes.NewReader(data)); err == nil {
			t.Errorf("byte %d set to %d is no error", c.at, c.value)
		}
	}
	if _, err := readObject(strings.NewReader(strings.Repeat("#!/bin/sh\n", 20))); !errors.Is(err, errNoELF) {
		t.Errorf("a script: %v", err)
	}
}

// TestReadObjectOfLoader reads one that a linker made.
func TestReadObjectOfLoader(t *testing.T) {
	t.Parallel()
	f, err := os.Open(glibcLoader)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	if o, err := readObject(f); err != nil || o.soname != "ld-linux-x86-64.so.2" {
		t.Errorf("%+v, %v", o, err)
	}
}

// FuzzReadObject has no panic, and a name no longer than a file's.
func FuzzReadObject(f *testing.F) {
	f.Add(elfFile(1, "libcuda.so.1"))
	f.Add(elfFile(2, "libcuda.so.1"))
	f.Add(elfFile(2, ""))
	f.Fuzz(func(t *testing.T, data []byte) {
		if o, err := readObject(bytes.NewReader(data)); err == nil && len(o.soname) > maxSONAME {
			t.Errorf("SONAME of %d bytes", len(o.soname))
		}
	})
}

// TestHostileTrees finds what there is to find in bounded work and without
// waiting, and opens nothing outside.
func TestHostileTrees(t *testing.T) {
	t.Parallel()
	cuda, ml := string(elfFile(2, "libcuda.so.1")), string(elfFile(2, "libnvidia-ml.so.1"))
	secret := filepath.Join(t.TempDir(), "libcuda.so.9.1")
	if err := os.WriteFile(secret, []byte(cuda), 0o644); err != nil {
		t.Fatal(err)
	}
	good := map[string]string{"opt/nv/libcuda.so.9.1": cuda, "opt/nv/libcuda.so.1": "->libcuda.so.9.1", "opt/nv/libnvidia-ml.so.9.1": ml}
	cache := string(someCache("/opt/nv/libcuda.so.1").marshal())
	lying := someCache("/opt/nv/libcuda.so.1")
	lying.entries[0].path = "/../../../.." + secret
	cases := []struct {
		name    string
		files   map[string]string
		wantErr string
	}{
		{"ld.so.cache", with(good, "etc/ld.so.cache", cache), ""},
		{"ld.so.cache cut", with(good, "etc/ld.so.cache", cache[:70]), "libcuda.so.9.1 is missing"},
		{"ld.so.cache a FIFO", with(good, "etc/ld.so.cache", "FIFO"), "libcuda.so.9.1 is missing"},
		{"ld.so.cache leads outside", with(good, "etc/ld.so.cache", string(lying.marshal())), "libcuda.so.9.1 is missing"},
		{"a library outside", map[string]string{"usr/lib64/libcuda.so.9.1": "->" + secret, "usr/lib64/libnvidia-ml.so.9.1": ml}, "libcuda.so.9.1 is missing"},
		{"a library up and outside", map[string]string{"usr/lib64/libcuda.so.9.1": "->../../../../../../.." + secret, "usr/lib64/libnvidia-ml.so.9.1": ml}, "libcuda.so.9.1 is missing"},
		{"a loop", map[string]string{"usr/lib64/libcuda.so.9.1": "->libcuda.so.9.1", "usr/lib64/libnvidia-ml.so.9.1": ml}, "libcuda.so.9.1 is missing"},
		{"directories in a loop", map[string]string{"usr/lib64": "->lib", "usr/lib": "->lib64"}, "libcuda.so.9.1 is missing"},
		{"a directory", map[string]string{"usr/lib64/libcuda.so.9.1/x": "", "usr/lib64/libnvidia-ml.so.9.1": ml}, "is no 64-bit library"},
		{"cut", map[string]string{"usr/lib64/libcuda.so.9.1": cuda[:100], "usr/lib64/libnvidia-ml.so.9.1": ml}, "libcuda.so.9.1: cannot read its SONAME"},
		{"programs and files that are FIFOs", map[string]string{"usr/lib64/libcuda.so.9.1": cuda, "usr/lib64/libnvidia-ml.so.9.1": ml,
			"usr/bin/nvidia-smi": "FIFO", "etc/OpenCL/vendors/nvidia.icd": "FIFO", "lib/firmware/nvidia/9.1/gsp_ga10x.bin": "FIFO"}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mounts, err := driverMounts(tree(t, c.files), "9.1", Options{Capabilities: DefaultCapabilities})
			if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Fatalf("error %v, expected %q", err, c.wantErr)
			}
			for _, m := range mounts {
				if strings.Contains(m.HostPath, "outside") || !strings.Contains(m.HostPath, "/lib") {
					t.Errorf("mounts %s", m.HostPath)
				}
			}
		})
	}
}

func with(files map[string]string, name, content string) map[string]string {
	out := map[string]string{name: content}
	for k, v := range files {
		out[k] = v
	}
	return out
}

// TestManyFiles reads no directory: the work is the same however many files it has.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	files := map[string]string{"usr/lib64/libcuda.so.9.1": "", "usr/lib64/libnvidia-ml.so.9.1": ""}
	for i := range 5000 {
		files[fmt.Sprintf("usr/lib64/libcuda.so.9.1.%d", i)] = ""
	}
	root := tree(t, files)
	asked := 0
	root.OnRead(func(string) { asked++ })
	if _, err := driverMounts(root, "9.1", Options{Capabilities: driverCapabilities}); err != nil {
		t.Fatal(err)
	}
	if asked > 1500 {
		t.Errorf("%d names asked for", asked)
	}
}

func TestNICLibraries(t *testing.T) {
	t.Parallel()
	h := host()
	h.NICs[0].Driver, h.NICs[1].Driver = "mlx5_core", "mlx5_core"
	files := map[string]string{
		"usr/lib64/libibverbs/libmlx5-rdmav34.so": "->../libmlx5.so.1.25.50.0", "usr/lib64/libmlx5.so.1.25.50.0": string(elfFile(2, "libmlx5.so.1")),
		"usr/lib64/libibverbs/libmlx5-rdmav9.so.old": "", "usr/lib64/libibverbs/librxe-rdmav34.so": "", "usr/lib64/libibverbs.so.1": "",
		"etc/libibverbs.d/mlx5.driver": "driver mlx5\n", "usr/lib64/libnl-3.so.200": "->libnl-3.so.200.26.0", "usr/lib64/libnl-3.so.200.26.0": "",
	}
	mounts, err := nicLibraries(tree(t, files), h.NICs[:2])
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mounts {
		got = append(got, m.HostPath+" "+m.ContainerPath)
	}
	want := `/usr/lib64/libmlx5.so.1.25.50.0 /usr/lib64/libibverbs/libmlx5-rdmav34.so
/usr/lib64/libmlx5.so.1.25.50.0 /usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so
/usr/lib64/libmlx5.so.1.25.50.0 /usr/lib64/libmlx5.so.1
/usr/lib64/libmlx5.so.1.25.50.0 /usr/lib/libmlx5.so.1
/etc/libibverbs.d/mlx5.driver /etc/libibverbs.d/mlx5.driver
/usr/lib64/libnl-3.so.200.26.0 /usr/lib64/libnl-3.so.200
/usr/lib64/libnl-3.so.200.26.0 /usr/lib/libnl-3.so.200`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nexpected\n%s", strings.Join(got, "\n"), want)
	}
	if _, err := nicLibraries(tree(t, nil), h.NICs[:1]); err == nil || !strings.Contains(err.Error(), "libmlx5-rdmavN.so") {
		t.Errorf("no provider: %v", err)
	}
}

// TestDriverContainer takes the driver container's libraries where the host has
// none, and the host's where it has.
func TestDriverContainer(t *testing.T) {
	t.Parallel()
	const inside = "run/nvidia/driver/usr/lib/x86_64-linux-gnu/"
	files := map[string]string{inside + "libcuda.so.9.1": "", inside + "libnvidia-ml.so.9.1": ""}
	for own, want := range map[string]string{"usr/lib64/x": "/run/nvidia/driver/usr/lib", "usr/lib64/libcuda.so.9.1": "/usr/lib64/libcuda.so.9.1"} {
		more := with(with(files, own, ""), "usr/lib64/libnvidia-ml.so.9.1", "")
		if own == "usr/lib64/x" {
			delete(more, "usr/lib64/libnvidia-ml.so.9.1")
		}
		mounts, err := driverMounts(tree(t, more), "9.1", Options{Capabilities: DefaultCapabilities})
		if err != nil || !strings.HasPrefix(mounts[0].HostPath, want) {
			t.Errorf("with %s: %v, %v; expected %s", own, mounts, err, want)
		}
	}
}

func TestCapabilitiesFromEnv(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"compute,utility": "compute, utility", "all": words(driverCapabilities), "": "compute, utility",
		"video, compute,future": "video, compute", "future": "compute, utility",
	} {
		known, unknown := CapabilitiesFromEnv(value)
		if words(known) != want || strings.Contains(value, "future") != (len(unknown) == 1) {
			t.Errorf("%q is %s, unknown %v; expected %s", value, words(known), unknown, want)
		}
	}
}

// TestExtras: in a pod, what opens there, and sockets; elsewhere what is asked for.
func TestExtras(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"dev":                            "crw-rw-rw- 0 0 1 3 /dev/null\ncrw-rw-rw- 0 0 10 121 /dev/gdrdrv\ncrw-rw-rw- 0 0 1 5 /dev/zero\n",
		"run/nvidia-persistenced/socket": "",
		"etc/cufile.json":                "",
	})
	count := func(capabilities []Capability, pod bool) string {
		e, err := extraEdits(root, capabilities, pod)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(len(e.DeviceNodes), len(e.Mounts))
	}
	for _, c := range []struct {
		capabilities []Capability
		pod          bool
		want         string
	}{
		{DefaultCapabilities, false, "0 0"},
		{DefaultCapabilities, true, "0 1"}, // /dev/gdrdrv is in the tree and does not open here
		{[]Capability{GDRCopy}, false, "1 0"},
		{[]Capability{GDRCopy}, true, "capability gdrcopy: there is no /dev/gdrdrv"},
		{[]Capability{Persistenced, GDRCopy}, false, "1 1"},
		{[]Capability{GDS}, false, "capability gds: there is no /dev/nvidia-fs*"},
	} {
		if got := count(c.capabilities, c.pod); !strings.HasPrefix(got, c.want) {
			t.Errorf("%v, pod %v: %s, expected %s", c.capabilities, c.pod, got, c.want)
		}
	}
	if !opens("/dev/null") || opens("/does/not/exist") {
		t.Error("/dev/null opens, and what is not there does not")
	}
	found := extra{nodes: []string{"/dev/zero*", "/dev/null"}, files: []string{"/etc/cufile.json"}}.find(root, true)
	if len(found.DeviceNodes) != 2 || len(found.Mounts) != 1 {
		t.Errorf("found %+v", found)
	}
}

func TestCompareLibraries(t *testing.T) {
	t.Parallel()
	descending := []string{"lib10", "lib9", "libx.so.10.2", "libx.so.10", "libx.so.9", "libx.so", "libx-1.so", "libx", "lib", ""}
	for i, a := range descending {
		for j, b := range descending {
			got := compareLibraries(a, b)
			if (got > 0) != (i < j) || (got < 0) != (i > j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
}
