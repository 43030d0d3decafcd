// Package hookapi is what cdi-gen, netdev-hook and the doctor must agree on: the
// hook's arguments and the journal's schema. It has no dependencies.
//
// The generator writes the arguments into a CDI spec:
//
//	netdev-hook createRuntime --netdev gpu0rdma0,id=pci/0000:91:00.0,rdma=mlx5_0,nodes=uverbs0
//
// and the hook reads them back with ParseNetdev.
package hookapi

import (
	"fmt"
	"strings"
)

// Netdev is one NIC of a createRuntime call: the value of a --netdev argument.
type Netdev struct {
	// Name is the interface's name on the host; the RDMA device's for a NIC
	// without an interface.
	Name string `json:"name"`
	// ID is the NIC's identity as package link spells it; empty asks by name alone.
	ID string `json:"id,omitempty"`
	// RDMA is the RDMA device of the NIC, if it has one.
	RDMA string `json:"rdma,omitempty"`
	// Nodes are the names of the character devices that the spec gives the
	// container for it: "uverbs0", "umad0".
	Nodes []string `json:"nodes,omitempty"`
	// Native says that the runtime moves the interface itself, before the hook
	// (linux.netDevices of the OCI runtime specification 1.3).
	Native bool `json:"native,omitempty"`
	// Config is the --config argument that follows; nil without one.
	Config *NetworkConfig `json:"config,omitempty"`
}

// String is the argument that ParseNetdev reads: all but Config.
func (n Netdev) String() string {
	var b strings.Builder
	b.WriteString(n.Name)
	if n.ID != "" {
		b.WriteString(",id=" + n.ID)
	}
	if n.RDMA != "" {
		b.WriteString(",rdma=" + n.RDMA)
	}
	if len(n.Nodes) > 0 {
		b.WriteString(",nodes=" + strings.Join(n.Nodes, "+"))
	}
	if n.Native {
		b.WriteString(",native=true")
	}
	return b.String()
}

// ParseNetdev reads a --netdev argument. Unknown keys are errors: an older hook
// must not half-do what a newer spec asks.
func ParseNetdev(s string) (Netdev, error) {
	name, rest, _ := strings.Cut(s, ",")
	n := Netdev{Name: name}
	for rest != "" {
		var field string
		field, rest, _ = strings.Cut(rest, ",")
		key, value, ok := strings.Cut(field, "=")
		if !ok || value == "" {
			return n, fmt.Errorf("--netdev %q: %q is not KEY=VALUE", s, field)
		}
		switch key {
		case "id":
			n.ID = value
		case "rdma":
			if !ValidRDMAName(value) {
				return n, fmt.Errorf("--netdev %q: %q is no RDMA device name", s, value)
			}
			n.RDMA = value
		case "nodes":
			n.Nodes = strings.Split(value, "+")
			for _, node := range n.Nodes {
				if !validNode(node) {
					return n, fmt.Errorf("--netdev %q: %q is no InfiniBand node name (uverbs0, umad0, issm0)", s, node)
				}
			}
		case "native":
			if value != "true" {
				return n, fmt.Errorf("--netdev %q: native=%q, expected native=true or nothing", s, value)
			}
			n.Native = true
		default:
			return n, fmt.Errorf("--netdev %q: unknown key %q; known are id, rdma, nodes, native", s, key)
		}
	}
	if !ValidName(name) && (name != n.RDMA || name == "") {
		return n, fmt.Errorf("--netdev %q: %q is no interface name (1 to 15 bytes, no space, slash or colon)", s, name)
	}
	return n, nil
}

// ValidName says whether the kernel would take s as an interface's name
// (dev_valid_name in net/core/dev.c) and the hook's arguments can carry it.
func ValidName(s string) bool {
	if s == "" || len(s) > 15 || s == "." || s == ".." {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == '/' || r == ':' || r == ',' || r == 0xfffd
	})
}

// ValidRDMAName says whether s can name an RDMA device (IB_DEVICE_NAME_MAX is 64
// with the final NUL) and be a path element.
func ValidRDMAName(s string) bool {
	if s == "" || len(s) > 63 || s == "." || s == ".." {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || r == '/' || r == ',' || r == '+'
	})
}

func validNode(s string) bool {
	for _, prefix := range []string{"uverbs", "umad", "issm"} {
		if digits, ok := strings.CutPrefix(s, prefix); ok {
			return digits != "" && len(digits) < 6 && strings.Trim(digits, "0123456789") == ""
		}
	}
	return false
}
