// Package fault interrupts netdev-hook at every system call that changes something.
package fault

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"podrail/internal/nstest"
	"podrail/test/rig"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

// mode is what happens to the program at one of its system calls.
type mode int

const (
	watch      mode = iota // nothing: list the calls
	killBefore             // SIGKILL before the kernel executes the call
	killAfter              // SIGKILL when it has
	refuse                 // the call fails; of a netlink request, the kernel says so
)

func (m mode) String() string { return [...]string{"watch", "kill before", "kill after", "refuse"}[m] }

// fault says at which call, from 1 in the order of all threads, what happens.
type fault struct {
	mode  mode
	at    int
	errno unix.Errno
}

// outcome is what became of a traced program.
type outcome struct {
	rig.Result
	killed bool
	// calls are the calls that change something, in their order. The fault hit
	// if there are as many as its number.
	calls []string
}

// harmless are system calls that change nothing outside of the process. Every
// other one is a point to fail at: a new one in the hook is tested without
// anybody adding it to a list. (strace's own injection counts the calls of each
// thread and name by itself, and Go's threads differ from run to run.)
var harmless = func() map[uint64]bool {
	all := map[uint64]bool{}
	for _, nr := range []uint64{
		unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_LSTAT, unix.SYS_STAT, unix.SYS_LSEEK,
		unix.SYS_READLINKAT, unix.SYS_READLINK, unix.SYS_GETDENTS64, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_STATX,
		unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_BRK, unix.SYS_MINCORE,
		unix.SYS_FUTEX, unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_ARCH_PRCTL, unix.SYS_PRCTL, unix.SYS_EXECVE, unix.SYS_EXIT,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_TGKILL, unix.SYS_RESTART_SYSCALL,
		unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
		unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETPPID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_UNAME, unix.SYS_GETRANDOM,
		unix.SYS_PRLIMIT64, unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT, unix.SYS_FCNTL, unix.SYS_IOCTL, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_PIPE2, unix.SYS_EVENTFD2,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_WAIT, unix.SYS_POLL, unix.SYS_PPOLL,
		unix.SYS_SOCKET, unix.SYS_BIND, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT, unix.SYS_RECVFROM, unix.SYS_RECVMSG,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, // a mount that is attached nowhere
		unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_GETCWD,
	} {
		all[nr] = true
	}
	return all
}()

var callNames = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_FSYNC: "fsync", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_RENAME: "rename",
	unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FLOCK: "flock", unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount2", unix.SYS_MOVE_MOUNT: "move_mount", unix.SYS_OPEN_TREE: "open_tree",
	unix.SYS_SETNS: "setns", unix.SYS_UNSHARE: "unshare", unix.SYS_EXIT_GROUP: "exit_group",
}

// syscallInfo is struct ptrace_syscall_info (linux/ptrace.h) of an entry or exit.
type syscallInfo struct {
	op     uint8
	_      [3]uint8
	arch   uint32
	ip, sp uint64
	nr     uint64 // at exit: the result
	args   [6]uint64
	_      uint64
}

const (
	infoEntry = 1
	infoExit  = 2
)

// timeout bounds a traced run.
const timeout = 30 * time.Second

// tracer follows all threads of one program.
type tracer struct {
	leader int
	fault  fault
	onCall func(n int)
	outcome
	// hit is the thread that the fault's call is of; 0 before and after it.
	hit int
}

// run runs the hook on a host under ptrace with one fault. onCall, if any, is
// called while the program is stopped before its n-th call.
func run(t testing.TB, h *rig.Host, f fault, onCall func(n int), stdin string, args ...string) outcome {
	t.Helper()
	in, err := os.CreateTemp(t.TempDir(), "stdin")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := in.WriteAt([]byte(stdin), 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(rig.Program(t), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	tr := &tracer{fault: f, onCall: onCall}
	// Do's thread is the tracer of what it starts, and runs nothing else.
	h.Do(t, func() {
		if err = cmd.Start(); err == nil {
			tr.leader = cmd.Process.Pid
			err = tr.follow()
			cmd.Process.Release()
		}
	})
	if err != nil {
		t.Fatalf("trace netdev-hook: %v", err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	tr.Stderr = string(text)
	return tr.outcome
}

// follow waits for the program's stops until it ends. It is called when the
// program has stopped at its execve.
func (tr *tracer) follow() error {
	var status unix.WaitStatus
	if _, err := unix.Wait4(tr.leader, &status, unix.WALL, nil); err != nil {
		return err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(tr.leader, options); err != nil {
		return err
	}
	watchdog := time.AfterFunc(timeout, func() { unix.Kill(tr.leader, unix.SIGKILL) })
	defer watchdog.Stop()
	for thread, signal := tr.leader, 0; ; {
		// ESRCH: it was killed meanwhile, and will be waited for.
		if err := unix.PtraceSyscall(thread, signal); err != nil && err != unix.ESRCH {
			return err
		}
		var err error
		if thread, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil); err == unix.EINTR {
			continue
		} else if err != nil {
			return err
		}
		switch {
		case status.Exited() || status.Signaled():
			if thread == tr.leader {
				tr.Status, tr.killed = status.ExitStatus(), status.Signaled()
				if !watchdog.Stop() {
					return fmt.Errorf("it did not end within %v, having come to %v", timeout, tr.calls)
				}
				return nil
			}
			signal = 0
		case status.StopSignal() == unix.SIGTRAP|0x80:
			signal = 0
			if err := tr.atCall(thread); err != nil && err != unix.ESRCH {
				return err
			}
		case status.StopSignal() == unix.SIGTRAP || status.StopSignal() == unix.SIGSTOP:
			signal = 0 // a new thread, and its own first stop
		default:
			signal = int(status.StopSignal())
		}
	}
}

// atCall deals with a thread that stopped before or after a system call.
func (tr *tracer) atCall(thread int) error {
	var info syscallInfo
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		return errno
	}
	if info.op == infoExit && thread == tr.hit {
		return tr.afterFault(thread)
	}
	if info.op != infoEntry {
		return nil
	}
	name := tr.changing(thread, info)
	if name == "" {
		return nil
	}
	tr.calls = append(tr.calls, name)
	if tr.onCall != nil {
		tr.onCall(len(tr.calls))
	}
	if len(tr.calls) != tr.fault.at {
		return nil
	}
	switch tr.fault.mode {
	case killBefore:
		return unix.Kill(tr.leader, unix.SIGKILL)
	case killAfter:
		tr.hit = thread
	case refuse:
		return tr.refuse(thread, info, name)
	}
	return nil
}

// refuse makes the call fail. A netlink request is made one of a type that the
// kernel does not know, so that the kernel answers it, with an error.
func (tr *tracer) refuse(thread int, info syscallInfo, name string) error {
	if strings.HasPrefix(name, "sendto") {
		_, err := unix.PtracePokeData(thread, uintptr(info.args[1])+4, []byte{0xf0, 0x03})
		return err
	}
	if info.nr == unix.SYS_EXIT_GROUP {
		return nil
	}
	tr.hit = thread
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(thread, &regs); err != nil {
		return err
	}
	regs.Orig_rax = ^uint64(0) // no such system call: the kernel executes nothing
	return unix.PtraceSetRegs(thread, &regs)
}

func (tr *tracer) afterFault(thread int) error {
	tr.hit = 0
	if tr.fault.mode == killAfter {
		return unix.Kill(tr.leader, unix.SIGKILL)
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(thread, &regs); err != nil {
		return err
	}
	regs.Rax = -uint64(tr.fault.errno)
	return unix.PtraceSetRegs(thread, &regs)
}

// changing is a description of a call that changes something, "" of another.
func (tr *tracer) changing(thread int, info syscallInfo) string {
	if harmless[info.nr] {
		return ""
	}
	name := callNames[info.nr]
	switch info.nr {
	case unix.SYS_OPENAT:
		if info.args[2]&(unix.O_CREAT|unix.O_TRUNC) == 0 {
			return ""
		}
		return name + " " + text(thread, info.args[1])
	case unix.SYS_WRITE, unix.SYS_PWRITE64:
		file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, info.args[0]))
		if err != nil || !strings.HasPrefix(file, "/") || info.args[0] <= 2 {
			return "" // the Go runtime wakes itself by an eventfd
		}
		return name + " " + file
	case unix.SYS_SENDTO:
		msgType := binary.NativeEndian.Uint16(memory(thread, info.args[1]+4, 2))
		if msgType >= unix.RTM_BASE && msgType%4 == unix.RTM_GETLINK%4 {
			return ""
		}
		return fmt.Sprintf("%s type %d", name, msgType)
	case unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return name + " " + text(thread, info.args[1])
	case unix.SYS_UMOUNT2:
		return name + " " + text(thread, info.args[0])
	}
	if name == "" {
		return fmt.Sprintf("system call %d", info.nr)
	}
	return name
}

// memory reads a program's memory; zeros where it has none.
func memory(thread int, at uint64, n int) []byte {
	b := make([]byte, n)
	unix.PtracePeekData(thread, uintptr(at), b)
	return b
}

func text(thread int, at uint64) string {
	s, _, _ := bytes.Cut(memory(thread, at, 256), []byte{0})
	return string(s)
}

func TestMain(m *testing.M) { nstest.Main(m) }
