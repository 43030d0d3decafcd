package cdi

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"podrail/pkg/discover"
)

// probe loads what it is told by name, as programs do, and says what came.
const probe = `
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		void *lib = dlopen(argv[i], RTLD_NOW);
		if (!lib) { printf("%s: %s\n", argv[i], dlerror()); return 1; }
		const char *(*who)(void) = (const char *(*)(void))dlsym(lib, "who");
		printf("%s is %s\n", argv[i], who());
	}
	return 0;
}`

// compile makes a program, or a library if it is given a SONAME. The test is
// skipped where there is no such compiler.
func compile(t *testing.T, compiler, source, output, soname string) {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skip(err)
	}
	args := []string{"-x", "c", "-", "-o", output}
	if soname != "" {
		args = append(args, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,"+soname)
	} else {
		args = append(args, "-ldl")
	}
	cmd := exec.Command(compiler, args...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", compiler, err, out)
	}
}

// fakeDriver is a root with a driver's two libraries, real ELF files.
func fakeDriver(t *testing.T) *discover.Root {
	root := tree(t, map[string]string{"usr/lib64/empty": ""})
	for name, soname := range map[string]string{"libcuda.so.9.1": "libcuda.so.1", "libnvidia-ml.so.9.1": "libnvidia-ml.so.1"} {
		compile(t, "cc", `const char *who(void) { return "`+name+`"; }`, filepath.Join(root.Dir(), "usr/lib64", name), soname)
	}
	return root
}

// copyFile copies, with the directories that it takes, as an engine makes them
// for a mount.
func copyFile(t *testing.T, from, to string, edit func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Skip(err)
	}
	if edit != nil {
		data = edit(data)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o755)); err != nil {
		t.Fatal(err)
	}
}

const glibcLoader = "/lib64/ld-linux-x86-64.so.2"

// redHat has a loader of Debian's look where Red Hat's and SUSE's do, and
// nowhere else: its list has room for as many slashes as it takes.
func redHat(loader []byte) []byte {
	for _, r := range [][2]string{
		{"\x00/lib/x86_64-linux-gnu/\x00/usr/lib/x86_64-linux-gnu/\x00/lib/\x00/usr/lib/\x00",
			"\x00/lib64////////////////\x00/usr/lib64////////////////\x00/no//\x00/usr/no//\x00"},
	} {
		loader = bytes.ReplaceAll(loader, []byte(r[0]), []byte(r[1]))
	}
	return loader
}

// TestLoaders has loaders of several distributions find the driver where a spec
// mounts it, with no hook, no ld.so.cache and no LD_LIBRARY_PATH.
func TestLoaders(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	cases := []struct {
		name, compiler string
		loader         string
		edit           func([]byte) []byte
		// libc is where it goes, from where the compiler's programs have it.
		libc map[string]string
		mark string
	}{
		{"Debian", "cc", glibcLoader, nil, map[string]string{"/lib/x86_64-linux-gnu/libc.so.6": "/usr/lib/x86_64-linux-gnu/libc.so.6"}, ""},
		{"Red Hat", "cc", glibcLoader, redHat, map[string]string{"/lib/x86_64-linux-gnu/libc.so.6": "/usr/lib64/libc.so.6"}, "/usr/lib64//"},
		{"Alpine's musl", "musl-gcc", "/lib/ld-musl-x86_64.so.1", nil, nil, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rootfs := containerWith(t, fakeDriver(t), Compute, Utility)
			compile(t, c.compiler, probe, filepath.Join(rootfs, "probe"), "")
			copyFile(t, c.loader, filepath.Join(rootfs, c.loader), c.edit)
			for from, to := range c.libc {
				copyFile(t, from, filepath.Join(rootfs, to), nil)
			}
			if loader, _ := os.ReadFile(filepath.Join(rootfs, c.loader)); !bytes.Contains(loader, []byte(c.mark)) {
				t.Skip("this machine's loader is not as expected")
			}
			cmd := exec.Command("/probe", "libcuda.so.1", "libcuda.so", "libcuda.so.9.1", "libnvidia-ml.so.1")
			cmd.SysProcAttr, cmd.Env, cmd.Dir = &syscall.SysProcAttr{Chroot: rootfs}, []string{}, "/"
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			want := "libcuda.so.1 is libcuda.so.9.1\nlibcuda.so is libcuda.so.9.1\nlibcuda.so.9.1 is libcuda.so.9.1\nlibnvidia-ml.so.1 is libnvidia-ml.so.9.1\n"
			if string(out) != want {
				t.Errorf("got\n%sexpected\n%s", out, want)
			}
		})
	}
}

// containerWith is a root file system with a driver's files where they would be
// mounted.
func containerWith(t *testing.T, driver *discover.Root, capabilities ...Capability) string {
	t.Helper()
	mounts, err := driverMounts(driver, "9.1", Options{Capabilities: capabilities})
	if err != nil {
		t.Fatal(err)
	}
	rootfs := t.TempDir()
	for _, m := range mounts {
		copyFile(t, filepath.Join(driver.Dir(), m.HostPath), filepath.Join(rootfs, m.ContainerPath), nil)
	}
	return rootfs
}

// TestLDCacheOfLoader has ldconfig and the loader read a cache that was changed:
// a library in a directory where no loader looks is found by it, and so is what
// the image had.
func TestLDCacheOfLoader(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("chroot needs root")
	}
	driver := fakeDriver(t)
	rootfs := t.TempDir()
	compile(t, "cc", probe, filepath.Join(rootfs, "probe"), "")
	copyFile(t, glibcLoader, filepath.Join(rootfs, glibcLoader), nil)
	copyFile(t, "/lib/x86_64-linux-gnu/libc.so.6", filepath.Join(rootfs, "usr/lib/x86_64-linux-gnu/libc.so.6"), nil)
	own := filepath.Join(rootfs, "opt/own/libown.so.2")
	copyFile(t, glibcLoader, own, nil)
	compile(t, "cc", `const char *who(void) { return "the image's"; }`, own, "libown.so.2")
	compile(t, "cc", `const char *who(void) { return "an old driver"; }`, filepath.Join(rootfs, "opt/own/libcuda.so.1"), "libcuda.so.1")
	// A baseline for the sections that come with subdirectories of glibc-hwcaps.
	copyFile(t, own, filepath.Join(rootfs, "opt/own/glibc-hwcaps/x86-64-v2/libown.so.2"), nil)
	copyFile(t, "/dev/null", filepath.Join(rootfs, "etc/ld.so.conf"), func([]byte) []byte { return []byte("/opt/own\n") })
	if out, err := exec.Command("/sbin/ldconfig", "-r", rootfs).CombinedOutput(); err != nil {
		t.Skipf("ldconfig: %v: %s", err, out)
	}
	copyFile(t, filepath.Join(driver.Dir(), "usr/lib64/libcuda.so.9.1"), filepath.Join(rootfs, "strange/libcuda.so.1"), nil)

	for range 2 { // the second time changes nothing
		if err := UpdateLDCache(rootfs, []string{"/strange/libcuda.so.1", "/usr/lib64/libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.10"}); err != nil {
			t.Fatal(err)
		}
	}
	printed, err := exec.Command("/sbin/ldconfig", "-p", "-C", filepath.Join(rootfs, "etc/ld.so.cache")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	for _, line := range []string{"libcuda.so.1 (libc6,x86-64) => /strange/libcuda.so.1", "libown.so.2 (libc6,x86-64) => /opt/own/libown.so.2",
		"libown.so.2 (libc6,x86-64, hwcap: \"x86-64-v2\") => /opt/own/glibc-hwcaps/x86-64-v2/libown.so.2"} {
		if strings.Count(string(printed), "\t"+line+"\n") != 1 {
			t.Errorf("ldconfig -p has not once %q:\n%s", line, printed)
		}
	}
	if strings.Contains(string(printed), "/opt/own/libcuda.so.1") {
		t.Errorf("the image's driver is still there:\n%s", printed)
	}
	cmd := exec.Command("/probe", "libcuda.so.1", "libown.so.2")
	cmd.SysProcAttr, cmd.Env, cmd.Dir = &syscall.SysProcAttr{Chroot: rootfs}, []string{}, "/"
	out, err := cmd.CombinedOutput()
	if want := "libcuda.so.1 is libcuda.so.9.1\nlibown.so.2 is the image's\n"; err != nil || string(out) != want {
		t.Errorf("%v: got\n%sexpected\n%s", err, out, want)
	}
	left, err := os.ReadDir(filepath.Join(rootfs, "etc"))
	if err != nil || len(left) != 2 {
		t.Errorf("/etc has %v (%v), expected ld.so.cache and ld.so.conf alone", left, err)
	}
}
