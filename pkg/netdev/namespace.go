package netdev

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// ownNamespacePath is the calling thread's: the hook is multi-threaded, and a
// thread of it may be in another network namespace.
const ownNamespacePath = "/proc/thread-self/ns/net"

// namespace is an open network namespace: it stays alive while this is open.
type namespace struct {
	file *os.File
	id   hookapi.Namespace
	// links is a netlink socket in it, opened on first use.
	links *link.Conn
	// defaults are the sysctls that a new link in it gets, read on first use.
	defaults map[string]string
}

// errNotNetwork is returned for a file that is no network namespace.
var errNotNetwork = errors.New("is not a network namespace")

// openNamespace opens the network namespace at path. It fails with
// errNotNetwork for any other kind of file.
func openNamespace(path string) (*namespace, error) {
	// O_NONBLOCK, since a path from a mount table may be a FIFO by now.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n := &namespace{file: f}
	if err := n.identify(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

func (n *namespace) identify() error {
	fd := int(n.file.Fd())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return errNotNetwork
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return errNotNetwork
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	n.id.Inode = st.Ino
	// The cookie needs a socket inside, which a process without rights over the
	// namespace cannot have: then the inode must do.
	_ = n.do(func() error {
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		n.id.Cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return nil
}

// conn is a netlink socket in the namespace, the same on every call.
func (n *namespace) conn() (*link.Conn, error) {
	if n.links != nil {
		return n.links, nil
	}
	c, err := link.OpenAt(n.file)
	if errors.Is(err, unix.EPERM) && n.file.Name() == ownNamespacePath {
		c, err = link.Open() // a rootless engine's hook may look, where it is
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", n.id, err)
	}
	n.links = c
	return c, nil
}

// do runs f on a thread that is in the namespace. The thread is thrown away
// afterwards: one that could not be brought back must never be used again, and
// throwing it away costs less than bringing it back.
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter %s: %w", n.id, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// mayGive fails where this process cannot take a NIC out of the namespace: as
// another user than root, or as the root of a user namespace that is not the
// network namespace's (ioctl_ns(2): NS_GET_USERNS answers EPERM then).
func (n *namespace) mayGive() error {
	fd, err := unix.IoctlRetInt(int(n.file.Fd()), unix.NS_GET_USERNS)
	if err == nil {
		unix.Close(fd)
	}
	if os.Geteuid() == 0 && err != unix.EPERM {
		return nil
	}
	return errors.New("a rootless engine cannot give a NIC to a container: that takes root over the host's network namespace (CAP_NET_ADMIN); use a rootful engine (sudo podman run ...), or give the RDMA device nodes alone (cdi-gen generate --nic-mode devices) and --network host")
}

func (n *namespace) close() {
	if n == nil {
		return
	}
	if n.links != nil {
		n.links.Close()
	}
	n.file.Close()
}
