package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

const (
	kindIPoIB = "ipoib"
	// ipoibAddress is the length of an IPoIB hardware address; its first four bytes
	// are flags and a queue pair number, which each interface has anew (RFC 4391, 9.1.1).
	ipoibAddress, ipoibQPN = 20, 4
)

// followsRDMA: moving an RDMA device to another network namespace, the kernel
// removes its IPoIB interface and makes a new one there, with nothing of the
// old one's settings (ib_device's clients are removed and added,
// rdma_dev_change_netns in drivers/infiniband/core/device.c).
func followsRDMA(e *hookapi.Entry) bool {
	return e.RDMA != "" && e.Saved != nil && e.Saved.Kind == kindIPoIB
}

// moveIPoIB moves the RDMA device of an IPoIB interface, and gives the new
// interface what another NIC keeps on its way.
func (s *session) moveIPoIB(e *hookapi.Entry, target *namespace) error {
	if err := moveRDMADevice(e.RDMA, s.own, target); err != nil {
		return err
	}
	l, err := s.awaitIPoIB(e, target)
	if err != nil {
		return err
	}
	e.InsideIndex = l.Index
	if err := s.journal.write(e); err != nil {
		return err
	}
	c, err := target.conn()
	if err != nil {
		return err
	}
	r := restorer{c: c, home: target, saved: e.Saved, index: l.Index}
	return errors.Join(r.settings(*l), r.altNames(*l))
}

// awaitIPoIB is the new interface in the container. A kernel that makes it in the
// initial network namespace has it moved on from there.
func (s *session) awaitIPoIB(e *hookapi.Entry, target *namespace) (*link.Link, error) {
	for deadline := time.Now().Add(returnWait); ; time.Sleep(2 * time.Millisecond) {
		l, err := inside(e, target)
		if l != nil || err != nil {
			return l, err
		}
		l, err = atHome(e, s.own)
		if err != nil {
			return nil, err
		}
		if l != nil {
			if err := sendLink(s.own, l.Index, target); err != nil {
				return nil, err
			}
			continue
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("its RDMA device %s moved, but the kernel made no new IPoIB interface within %s", e.RDMA, returnWait)
		}
	}
}

func sendLink(from *namespace, index int, to *namespace) error {
	c, err := from.conn()
	if err != nil {
		return err
	}
	if err := setLink(c, index, 0, 0, number(unix.IFLA_NET_NS_FD, uint32(to.file.Fd()))); err != nil {
		return explainMove(err)
	}
	return nil
}

// ipoibMode is what to send (IFLA_LINKINFO) to give an IPoIB interface the mode,
// connected or datagram, that a saved or current message shows; nil for others.
func ipoibMode(linkInfo []byte) []byte {
	var out []byte
	ours := false
	for _, a := range attributes(linkInfo, 0) {
		switch a.kind {
		case unix.IFLA_INFO_KIND:
			ours = cstring(a.value) == kindIPoIB
			out = appendAttribute(out, a)
		case unix.IFLA_INFO_DATA:
			a.flags = unix.NLA_F_NESTED
			out = appendAttribute(out, a)
		}
	}
	if !ours {
		return nil
	}
	return out
}

// mode restores an IPoIB interface's mode, on which the largest possible MTU
// depends. The kernel takes it in RTM_NEWLINK alone.
func (r restorer) mode(now []byte) error {
	want := ipoibMode(r.saved.Attributes[unix.IFLA_LINKINFO])
	if want == nil || bytes.Equal(want, ipoibMode(attributeOf(now, unix.SizeofIfInfomsg, unix.IFLA_LINKINFO))) {
		return nil
	}
	info := attribute{kind: unix.IFLA_LINKINFO, flags: unix.NLA_F_NESTED, value: want}
	if err := r.c.Do(unix.RTM_NEWLINK, 0, link.Raw(linkMessage(r.index, 0, 0, info))); err != nil {
		return fmt.Errorf("restore its IPoIB mode: %w", err)
	}
	return nil
}

// sameHardware compares hardware addresses, of IPoIB without what is anew.
func sameHardware(a, b []byte) bool {
	if len(a) == ipoibAddress && len(b) == ipoibAddress {
		a, b = a[ipoibQPN:], b[ipoibQPN:]
	}
	return slices.Equal(a, b)
}
