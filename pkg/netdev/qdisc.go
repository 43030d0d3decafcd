package netdev

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"podrail/internal/link"
)

// A queueing discipline is an RTM_NEWQDISC message: struct tcmsg
// (linux/rtnetlink.h) with family and padding, interface index, handle, parent.

const (
	qdiscHeader  = 20 // sizeof(struct tcmsg)
	qdiscIfindex = 4
	qdiscHandle  = 8
	qdiscParent  = 12
	handleRoot   = 0xffffffff // TC_H_ROOT
	parentClsact = 0xfffffff1 // TC_H_INGRESS, which is TC_H_CLSACT
)

// dumpQdiscs asks with a whole struct tcmsg, which is longer than the header of
// other dumps; for less the kernel answers EINVAL.
func dumpQdiscs(c *link.Conn) ([][]byte, error) {
	rest := link.Raw(make([]byte, qdiscHeader-unix.SizeofIfInfomsg))
	msgs, err := c.Dump(unix.RTM_GETQDISC, unix.AF_UNSPEC, rest)
	if err != nil {
		return nil, fmt.Errorf("read queueing disciplines: %w", err)
	}
	return msgs, nil
}

// qdiscsOf is a link's own root queueing discipline, if somebody set one that
// can be replayed. The kernel's defaults have handle 0, and come back by
// themselves. Classes and filters cannot be replayed: an error names them.
func qdiscsOf(dump [][]byte, index int) ([][]byte, error) {
	var own [][]byte
	for _, m := range dump {
		handle := binary.NativeEndian.Uint32(m[qdiscHandle:])
		if int(binary.NativeEndian.Uint32(m[qdiscIfindex:])) != index || handle == 0 {
			continue
		}
		kind := cstring(attributeOf(m, qdiscHeader, unix.TCA_KIND))
		parent := binary.NativeEndian.Uint32(m[qdiscParent:])
		switch {
		case parent == parentClsact:
			return nil, fmt.Errorf("it has tc filters (qdisc %s), which the kernel would drop with the move: remove them first", kind)
		case parent != handleRoot || classful[kind]:
			return nil, fmt.Errorf("it has a queueing discipline with classes (%s), which the kernel would drop with the move: remove it first", kind)
		}
		own = append(own, m)
	}
	return own, nil
}

// classful disciplines have classes of their own, which a replay would lose.
// mq is classful, too, but its classes are the NIC's queues.
var classful = map[string]bool{"htb": true, "hfsc": true, "drr": true, "qfq": true, "prio": true, "ets": true, "cbq": true, "mqprio": true, "taprio": true, "multiq": true}

func qdiscTo(m []byte, index int) []byte {
	out := rewrite(m, qdiscHeader, func(a *attribute) bool {
		return a.kind == unix.TCA_KIND || a.kind == unix.TCA_OPTIONS
	})
	binary.NativeEndian.PutUint32(out[qdiscIfindex:], uint32(index))
	return out
}
