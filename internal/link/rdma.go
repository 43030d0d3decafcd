package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoRDMA is returned where the kernel has no RDMA subsystem loaded.
var ErrNoRDMA = errors.New("this kernel has no RDMA subsystem loaded")

// RDMAConn is an RDMA netlink socket. It sees the devices of the network
// namespace that it was opened in.
type RDMAConn struct{ socket *nl.SocketHandle }

// OpenRDMA opens a socket in the calling thread's network namespace.
func OpenRDMA() (*RDMAConn, error) {
	socket, err := nl.Subscribe(unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, ErrNoRDMA
	}
	if err != nil {
		return nil, fmt.Errorf("opening an RDMA netlink socket: %w", err)
	}
	_ = socket.SetSendTimeout(&nl.SocketTimeoutTv) // without one a broken kernel could hang a container's start
	_ = socket.SetReceiveTimeout(&nl.SocketTimeoutTv)
	return &RDMAConn{&nl.SocketHandle{Socket: socket}}, nil
}

// Close closes the socket.
func (c *RDMAConn) Close() { c.socket.Close() }

func (c *RDMAConn) execute(command, flags int, attrs ...*nl.RtAttr) ([][]byte, error) {
	// RDMA_NL_GET_TYPE of rdma/rdma_netlink.h.
	req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|command, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_RDMA: c.socket}
	for _, a := range attrs {
		req.AddData(a)
	}
	return req.Execute(unix.NETLINK_RDMA, 0)
}

// Exclusive says whether an RDMA device is in one network namespace alone, and
// moves with its NIC, or is seen in all of them (shared mode, the default).
func (c *RDMAConn) Exclusive() (bool, error) {
	msgs, err := c.execute(nl.RDMA_NLDEV_CMD_SYS_GET, unix.NLM_F_ACK)
	if err != nil {
		return false, fmt.Errorf("reading the RDMA netns mode: %w", err)
	}
	for _, m := range msgs {
		if v := rdmaAttr(m, nl.RDMA_NLDEV_SYS_ATTR_NETNS_MODE); len(v) == 1 {
			return v[0] == 0, nil
		}
	}
	return false, nil // before Linux 5.3 there was no exclusive mode
}

// Index is the index of an RDMA device, 0 and false when it is not in this
// network namespace.
func (c *RDMAConn) Index(name string) (uint32, bool, error) {
	msgs, err := c.execute(nl.RDMA_NLDEV_CMD_GET, unix.NLM_F_DUMP)
	if err != nil {
		return 0, false, fmt.Errorf("listing RDMA devices: %w", err)
	}
	for _, m := range msgs {
		if unix.ByteSliceToString(rdmaAttr(m, nl.RDMA_NLDEV_ATTR_DEV_NAME)) == name {
			if v := rdmaAttr(m, nl.RDMA_NLDEV_ATTR_DEV_INDEX); len(v) == 4 {
				return binary.NativeEndian.Uint32(v), true, nil
			}
		}
	}
	return 0, false, nil
}

// SetNamespace moves an RDMA device to the network namespace that is open as fd.
// The kernel looks the device up in the socket's namespace, but takes it out of
// the calling thread's (ib_device_set_netns_put): they must be the same.
func (c *RDMAConn) SetNamespace(index uint32, fd uintptr) error {
	_, err := c.execute(nl.RDMA_NLDEV_CMD_SET, unix.NLM_F_ACK,
		nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(index)),
		nl.NewRtAttr(nl.RDMA_NLDEV_NET_NS_FD, nl.Uint32Attr(uint32(fd))))
	return err
}

func rdmaAttr(msg []byte, kind uint16) []byte {
	attrs, err := splitAttrs(msg)
	if err != nil {
		return nil
	}
	for _, a := range attrs {
		if a.Attr.Type&nlaTypeMask == kind {
			return a.Value
		}
	}
	return nil
}

// RDMANodes are the names of an RDMA device's character devices ("uverbs0",
// "umad0", "issm0"), sorted. Their classes show those of all network namespaces.
func RDMANodes(device string) ([]string, error) {
	var nodes []string
	for _, class := range []string{"infiniband_verbs", "infiniband_mad"} {
		dir := "/sys/class/" + class
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			// The whole name counts: mlx5_1 is not mlx5_10.
			ibdev, err := os.ReadFile(dir + "/" + e.Name() + "/ibdev")
			if err == nil && strings.TrimSpace(string(ibdev)) == device {
				nodes = append(nodes, e.Name())
			}
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}
