package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// stage says, in the environment, which of Main's two runs this is.
const stage = "PODRAIL_NSTEST"

// Values of stage.
const (
	asRoot          = "root"
	inUserNamespace = "user namespace"
)

// The main goroutine keeps the process's first thread for itself: that one cannot
// end, so it would stay in the namespace that some test took it to, and
// /proc/PID/ns/net shows the namespace of the first thread. It is also the thread
// that forks in rerun, and Pdeathsig is sent when that one ends.
func init() { runtime.LockOSThread() }

// Main runs a package's tests in network, mount and process namespaces of their
// own, by running the test binary again in them: with no link of the machine in
// reach, an empty /run, a /proc and a /sys that fit, as process 1. All of it goes
// when the tests end. Without root it makes a user namespace too; where that is
// not allowed, the tests that need it are skipped. It does not return.
func Main(m *testing.M) {
	if os.Getenv(stage) == "" {
		os.Exit(rerun(m))
	}
	// A fuzzing worker is a child of process 1, in namespaces that are set up.
	if os.Getpid() == 1 {
		if err := setup(); err != nil {
			fmt.Fprintln(os.Stderr, "nstest:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// Require skips a test that needs what Main makes, where Main could not make it.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv(stage) == "" {
		if os.Geteuid() == 0 {
			t.Fatal("the package's TestMain does not call nstest.Main")
		}
		t.Skip("needs root, or user namespaces")
	}
}

// RequireRoot skips a test that needs more than the root of a user namespace.
func RequireRoot(t testing.TB) {
	t.Helper()
	Require(t)
	if os.Getenv(stage) == inUserNamespace {
		t.Skip("needs root")
	}
}

// rerun runs the tests in new namespaces and returns their exit status.
func rerun(m *testing.M) int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  unix.SIGKILL,
	}
	kind := asRoot
	if os.Geteuid() != 0 {
		kind = inUserNamespace
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	cmd.Env = append(os.Environ(), stage+"="+kind)
	if err := cmd.Start(); err != nil {
		if os.Geteuid() == 0 {
			fmt.Fprintf(os.Stderr, "nstest: cannot make namespaces: %v\n", err)
			return 1
		}
		fmt.Fprintf(os.Stderr, "nstest: tests in network namespaces are skipped: they need root, or user namespaces: %v\n", err)
		return m.Run()
	}
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "nstest:", err)
		return 1
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	fmt.Fprintln(os.Stderr, "nstest: the tests ended:", cmd.ProcessState)
	return 1
}

// setup gives the process mounts that fit its namespaces.
func setup() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make all mounts private: %w", err)
	}
	// A sysfs shows the links of the namespace it was mounted in; what is mounted
	// on the old one stays in use.
	cgroup, err := unix.OpenTree(unix.AT_FDCWD, "/sys/fs/cgroup", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("hold /sys/fs/cgroup: %w", err)
	}
	defer unix.Close(cgroup)
	for _, fs := range []struct{ kind, dir string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/run"}} {
		if err := unix.Mount(fs.kind, fs.dir, fs.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", fs.kind, fs.dir, err)
		}
	}
	if err := unix.MoveMount(cgroup, "", unix.AT_FDCWD, "/sys/fs/cgroup", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount /sys/fs/cgroup again: %w", err)
	}
	return nil
}
