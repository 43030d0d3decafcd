// Package nstest gives tests network namespaces, and processes in them that
// stand for containers. It leaves nothing behind, also when a test is killed.
//
//	func TestMain(m *testing.M) { nstest.Main(m) }
//
//	func TestMove(t *testing.T) {
//		host, container := nstest.New(t), nstest.Process(t)
//		host.Run(t, "ip", "link", "add", "gpu0rdma0", "type", "veth", "peer", "name", "peer0")
//		before := host.Snapshot(t, "gpu0rdma0")
//		host.Do(t, func() { move(t, "gpu0rdma0", container.PID) })
//		...
//		if diff := cmp.Diff(before, host.Snapshot(t, "gpu0rdma0")); diff != "" { ... }
//	}
//
// Links are made and looked at with iproute2, a judge that shares no code with
// what is tested.
package nstest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that can be opened at Path. It holds no
// descriptor of its own, so it lives as long as whatever Path belongs to.
type Namespace struct {
	// Path is a bind mount of the namespace or /proc/PID/ns/net of a process in it.
	Path string
}

// New makes a network namespace with nothing in it but a loopback interface
// that is down. It lives until the test ends.
func New(t testing.TB) *Namespace {
	t.Helper()
	Require(t)
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	return &Namespace{Path: path}
}

// Own is the test process's network namespace. Main made it for this process, so
// it is as private as one of New's, but all tests of the package share it.
func Own(t testing.TB) *Namespace {
	t.Helper()
	Require(t)
	return &Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", os.Getpid())}
}

// Do runs f on a thread in the namespace. The thread ends with f, so that no
// other test can get it. If f ends the test (t.Fatal), so does Do.
func (n *Namespace) Do(t testing.TB, f func()) {
	t.Helper()
	returned := false
	err := n.onThread(func() error {
		f()
		returned = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !returned {
		t.FailNow()
	}
}

// Run runs a program in the namespace and returns what it wrote to stdout. If it
// fails, the test ends.
func (n *Namespace) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := n.run(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (n *Namespace) run(name string, args ...string) (out string, err error) {
	cmd := exec.Command(name, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A child is born in the namespaces of the thread that forks.
	if err := n.onThread(cmd.Run); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return stdout.String(), nil
}

// Open opens the namespace. The file keeps it alive until the test ends or the
// file is closed.
func (n *Namespace) Open(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Open(n.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// Inode is the namespace's inode number in nsfs.
func (n *Namespace) Inode(t testing.TB) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(n.Path, &st); err != nil {
		t.Fatalf("stat %s: %v", n.Path, err)
	}
	return st.Ino
}

// Veth makes a veth pair with one end in each namespace; both are down.
func Veth(t testing.TB, a *Namespace, name string, b *Namespace, peer string) {
	t.Helper()
	// iproute2 takes a namespace by a name below /run/netns or by a process.
	p := b.Process(t)
	a.Run(t, "ip", "link", "add", name, "type", "veth", "peer", "name", peer, "netns", fmt.Sprint(p.PID))
	p.Kill(t)
}

// Child is a process that does nothing in a network namespace, as a container's
// first process before it is started.
type Child struct {
	Namespace
	PID   int
	cmd   *exec.Cmd
	stdin io.Closer
}

// Process starts a process in a network namespace of its own, which lives as
// long as the process unless something else holds it.
func Process(t testing.TB) *Child {
	t.Helper()
	Require(t)
	return start(t, unix.CLONE_NEWNET, onThread)
}

// Process starts a process in the namespace.
func (n *Namespace) Process(t testing.TB) *Child {
	t.Helper()
	return start(t, 0, n.onThread)
}

func start(t testing.TB, flags uintptr, on func(func() error) error) *Child {
	t.Helper()
	// cat ends when its input does: when this process ends, however it ends.
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := on(cmd.Start); err != nil {
		t.Fatalf("start a process in a network namespace: %v", err)
	}
	c := &Child{
		Namespace: Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)},
		PID:       cmd.Process.Pid,
		cmd:       cmd, stdin: stdin,
	}
	t.Cleanup(func() { c.Kill(t) })
	return c
}

// Kill kills the process and waits until it is gone: its pid is free, and its
// network namespace is being destroyed unless something else holds it. Killing it
// again does nothing.
func (c *Child) Kill(t testing.TB) {
	t.Helper()
	if c.cmd.ProcessState != nil {
		return
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Errorf("kill %d: %v", c.PID, err)
	}
	c.cmd.Wait() // "signal: killed" is what was asked for
	c.stdin.Close()
}

// Eventually calls f until it returns nil. If it does not within the given time,
// the test ends with f's last error.
func Eventually(t testing.TB, within time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still after %v: %v", within, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (n *Namespace) onThread(f func() error) error {
	ns, err := os.Open(n.Path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.Path, err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own, which the runtime ends with the
// goroutine because it stays locked to it: whatever f changed of the thread goes.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer close(done) // also when f ends the goroutine
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// InMountNamespace runs f on a thread in a new mount namespace, a private copy of
// this one's: what f mounts or unmounts, nobody else sees.
func InMountNamespace(t testing.TB, f func() error) error {
	t.Helper()
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		return f()
	})
}
