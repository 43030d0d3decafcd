// Package machine gives end-to-end tests a machine of their own, with the
// project's programs and with NICs, in which real engines run.
//
//	func TestMain(m *testing.M) { nstest.Main(m) }
//
//	func TestRun(t *testing.T) {
//		m := machine.New(t)
//		m.NIC(t, "gpu0rdma0", 1)
//		m.Run(t, "cdi-gen", "generate", "--nics", "gpu0rdma0")
//		m.Run(t, "podman", "run", "--device", "dra.net/nic=gpu0rdma0", "--rootfs", machine.Rootfs, "ip", "addr")
//	}
//
// It is made of namespaces by the script sandbox, which `make demo` uses as well.
package machine

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"podrail/internal/nstest"
)

// Machine is a set of namespaces in which nothing of the real machine's network,
// /run and processes can be seen. The embedded network namespace is where its NICs
// and its engines are.
type Machine struct {
	nstest.Namespace
	pid int
	env []string
}

// Rootfs is, on a machine, a root file system with busybox, for podman run --rootfs.
const Rootfs = "/run/machine/rootfs"

// New starts a machine. It ends with the test, and everything in it.
func New(t testing.TB) *Machine {
	t.Helper()
	nstest.RequireRoot(t)
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	// cat ends when the test does, and the machine with it.
	cmd := exec.Command(filepath.Join(repository(), "test/machine/sandbox"), "--inside",
		"sh", "-c", `env -0 && printf '\000' && exec cat`)
	cmd.Env = append(os.Environ(), "PROGRAMS="+bin)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() // the first process of its namespace: all others die with it
		cmd.Wait()
		stdin.Close()
	})
	m := &Machine{
		Namespace: nstest.Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)},
		pid:       cmd.Process.Pid,
	}
	for lines := bufio.NewReader(stdout); ; {
		variable, err := lines.ReadString(0)
		if err != nil {
			t.Fatalf("test/machine/sandbox ended: %v", err)
		}
		if variable == "\x00" {
			return m
		}
		m.env = append(m.env, strings.TrimSuffix(variable, "\x00"))
	}
}

// Command returns a command that will run on the machine.
func (m *Machine) Command(name string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(m.pid), "--mount", "--net", "--pid", "--ipc", "--uts", "--", name}
	cmd := exec.Command("nsenter", append(enter, args...)...)
	cmd.Env = m.env
	return cmd
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Status         int
}

// Try runs a command on the machine, whatever comes of it.
func (m *Machine) Try(t testing.TB, name string, args ...string) Result {
	t.Helper()
	cmd := m.Command(name, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Run runs a command on the machine and returns what it wrote to stdout. If it
// fails, the test ends.
func (m *Machine) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	r := m.Try(t, name, args...)
	if r.Status != 0 {
		t.Fatalf("%s %s: exit status %d\n%s%s", name, strings.Join(args, " "), r.Status, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// Write writes a file on the machine, and the directories it needs.
func (m *Machine) Write(t testing.TB, path, content string) {
	t.Helper()
	cmd := m.Command("sh", "-c", `mkdir -p "$(dirname "$1")" && cat >"$1"`, "sh", path)
	cmd.Stdin = strings.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("write %s: %v\n%s", path, err, out)
	}
}

// programs builds the project's programs as `make` does and returns their directory.
var programs = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("make", "--silent", "BIN=bin/test")
	cmd.Dir = repository()
	cmd.Env = append(os.Environ(), "MAKEFLAGS=") // not those of a make that runs the tests
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return filepath.Join(cmd.Dir, "bin/test"), nil
})

// repository is the root of the source tree.
func repository() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../..")
}

// NamespaceOf is the network namespace of a process of the machine, by its number
// there.
func (m *Machine) NamespaceOf(t testing.TB, pid string) *nstest.Namespace {
	t.Helper()
	m.Run(t, "test", "-e", "/proc/"+pid+"/ns/net")
	return &nstest.Namespace{Path: fmt.Sprintf("/proc/%d/root/proc/%s/ns/net", m.pid, pid)}
}
