package link

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumpAttempts bounds how often a dump is asked for that changes of the
// namespace's links or routes keep interrupting.
const dumpAttempts = 16

// Conn is a route netlink socket of one network namespace. It stays there,
// whatever namespace its user's threads are in later.
//
// Errors wrap the kernel's errno, so that errors.Is(err, unix.EBUSY) works, and
// carry the kernel's own message where it gives one (extended acknowledgements).
type Conn struct {
	socket *nl.SocketHandle
	sysfs  sysfs
}

// Raw is a part of a request that is in wire format already, such as an
// attribute that an earlier dump returned.
type Raw []byte

// Len is the length on the wire.
func (r Raw) Len() int { return (len(r) + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// Serialize returns the bytes, padded to the next part's alignment.
func (r Raw) Serialize() []byte {
	b := make([]byte, r.Len())
	copy(b, r)
	return b
}

// Open connects to the network namespace of the calling thread.
func Open() (*Conn, error) {
	socket, err := newSocket()
	if err != nil {
		return nil, err
	}
	return &Conn{socket: socket, sysfs: sysfs{dir: unix.AT_FDCWD, prefix: "/sys/"}}, nil
}

// OpenAt connects to the network namespace that ns is open on. The caller keeps ns.
func OpenAt(ns *os.File) (*Conn, error) {
	var c *Conn
	err := inNamespace(ns, func() error {
		socket, err := newSocket()
		if err != nil {
			return err
		}
		c = &Conn{socket: socket, sysfs: mountSysfs()}
		return nil
	})
	return c, err
}

// inNamespace runs f on a thread in a network namespace. A thread that does not
// find back to its own namespace ends with its goroutine.
func inNamespace(ns *os.File, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		old, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer old.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("entering network namespace %s: %w", ns.Name(), err)
		} else {
			err = f()
		}
		if unix.Setns(int(old.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func newSocket() (*nl.SocketHandle, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	err = errors.Join(socket.SetSendTimeout(&nl.SocketTimeoutTv), socket.SetReceiveTimeout(&nl.SocketTimeoutTv))
	if err != nil {
		socket.Close()
		return nil, fmt.Errorf("setting the timeouts of a netlink socket: %w", err)
	}
	// Before Linux 4.12 there are no such messages, and errors are numbers.
	_ = socket.SetExtAck(true)
	return &nl.SocketHandle{Socket: socket}, nil
}

// Close closes the socket.
func (c *Conn) Close() error {
	c.socket.Close()
	return c.sysfs.close()
}

// Do executes one request and waits for its acknowledgement. Flags such as
// unix.NLM_F_CREATE are added to NLM_F_REQUEST and NLM_F_ACK. Data is the
// message's header (nl.NewIfInfomsg ...) and its attributes (*nl.RtAttr, Raw).
func (c *Conn) Do(msgType uint16, flags int, data ...nl.NetlinkRequestData) error {
	_, err := c.request(msgType, flags|unix.NLM_F_ACK, data).Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Get executes a request that is answered by one message, such as RTM_GETLINK
// with an interface index, and returns that message without its netlink header.
func (c *Conn) Get(msgType uint16, data ...nl.NetlinkRequestData) ([]byte, error) {
	msgs, err := c.request(msgType, 0, data).Execute(unix.NETLINK_ROUTE, answer(msgType))
	if err != nil {
		return nil, err
	}
	if len(msgs) != 1 {
		return nil, fmt.Errorf("netlink: %d answers to a request of type %d, want 1", len(msgs), msgType)
	}
	return msgs[0], nil
}

// Dump asks for everything of a message type (unix.RTM_GETLINK ...) and family
// (unix.AF_UNSPEC for all), and returns the messages without their netlink
// headers. A dump that changes interrupted is asked for again, a bounded number
// of times; then the error is nl.ErrDumpInterrupted.
func (c *Conn) Dump(msgType uint16, family int, attrs ...nl.NetlinkRequestData) ([][]byte, error) {
	// Every dump takes struct ifinfomsg for its header: the kernel looks at the
	// family alone, which comes first in all of them, unless asked to be strict.
	data := append([]nl.NetlinkRequestData{nl.NewIfInfomsg(family)}, attrs...)
	// A dump that fails ends with NLMSG_DONE, the errno and the kernel's message,
	// without the request that comes between them in NLMSG_ERROR: package nl
	// (v1.3.1) looks for one all the same and panics. So: no messages here.
	_ = c.socket.Socket.SetExtAck(false)
	defer c.socket.Socket.SetExtAck(true)
	var err error
	for range dumpAttempts {
		var msgs [][]byte
		msgs, err = c.request(msgType, unix.NLM_F_DUMP, data).Execute(unix.NETLINK_ROUTE, answer(msgType))
		if err == nil {
			return msgs, nil
		}
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	return nil, err
}

func (c *Conn) request(msgType uint16, flags int, data []nl.NetlinkRequestData) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(int(msgType), flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.socket}
	req.Data = data
	return req
}

// answer is the type of the messages that answer RTM_GETX: RTM_NEWX, two less.
func answer(get uint16) uint16 { return get - (unix.RTM_GETLINK - unix.RTM_NEWLINK) }
