package hookapi

import (
	"fmt"
	"time"
)

// JournalVersion is the schema's version; a file of another one is set aside.
const JournalVersion = 1

// Dir is where the hook keeps its journal, lock and pins. It is on a tmpfs: an
// entry says nothing after a reboot, when no NIC is away.
const Dir = "/run/netdev-hook"

// Phase is how far a NIC's journal entry has come.
type Phase string

const (
	// Moving: written before anything changes; the NIC may be anywhere between
	// home and the container, in any state.
	Moving Phase = "moving"
	// Attached: the NIC is in the container's network namespace, configured.
	Attached Phase = "attached"
	// Returning: no container needs it any more; it is on its way home.
	Returning Phase = "returning"
)

// Entry is what the hook knows of one NIC that is, or may be, away from home.
// The hook writes it before it changes anything.
type Entry struct {
	Version int `json:"version"`
	// BootID is /proc/sys/kernel/random/boot_id: an entry of another boot is history.
	BootID string `json:"bootID"`
	Phase  Phase  `json:"phase"`
	// Netdev is the NIC as the hook's arguments named it.
	Netdev Netdev `json:"netdev"`
	// Identity is the NIC's own at home, see package link.
	Identity string `json:"identity"`
	// Home is the network namespace that the NIC came from, Owner the one it went to.
	Home  Namespace `json:"home"`
	Owner Namespace `json:"owner"`
	// InsideIndex is the NIC's interface index in the owner's namespace, fixed
	// before the move. InsideName is its name there.
	InsideIndex int    `json:"insideIndex"`
	InsideName  string `json:"insideName"`
	// Containers hold the NIC; it goes home when the last of them is gone.
	Containers []Container `json:"containers"`
	// Pin keeps the owner's namespace alive, for a NIC that the kernel would
	// destroy with it or send elsewhere.
	Pin *Pin `json:"pin,omitempty"`
	// Saved is the NIC as it was at home; of one that the runtime had moved
	// already (Netdev.Native), as much as the runtime kept. It is nil for an RDMA
	// device without an interface.
	Saved *Saved `json:"saved,omitempty"`
	// RDMA is the RDMA device that moved with the NIC (exclusive mode).
	RDMA string `json:"rdma,omitempty"`
	// Since is when the entry was made.
	Since time.Time `json:"since"`
	// LastError is why the last attempt to bring the NIC home failed.
	LastError string `json:"lastError,omitempty"`
}

// Namespace names a network namespace for as long as the machine runs.
type Namespace struct {
	// Inode is the namespace's in nsfs; the kernel reuses the numbers.
	Inode uint64 `json:"inode"`
	// Cookie is SO_NETNS_COOKIE, never reused within a boot (Linux 5.14); 0 before.
	Cookie uint64 `json:"cookie,omitempty"`
}

// Same says whether both are one namespace.
func (n Namespace) Same(other Namespace) bool {
	if n.Cookie != 0 && other.Cookie != 0 {
		return n.Cookie == other.Cookie
	}
	return n.Inode == other.Inode
}

func (n Namespace) String() string { return fmt.Sprintf("net:[%d]", n.Inode) }

// Container is a container by its OCI id, and the process that keeps it alive.
type Container struct {
	ID  string `json:"id"`
	PID int    `json:"pid"`
	// Start is the process's start time in clock ticks since boot (field 22 of
	// /proc/PID/stat): with it a pid is never mistaken for a later one.
	Start uint64 `json:"start"`
	// PIDNamespace is the inode of the process namespace that the pid counts in.
	PIDNamespace uint64 `json:"pidNamespace,omitempty"`
}

// Pin is a bind mount of a network namespace.
type Pin struct {
	Path string `json:"path"`
	// MountNamespace is the inode of the mount namespace that holds it.
	MountNamespace uint64 `json:"mountNamespace"`
}

// Saved is all that a move loses, as read before it.
type Saved struct {
	Name     string   `json:"name"`
	AltNames []string `json:"altNames,omitempty"`
	Alias    string   `json:"alias,omitempty"`
	Index    int      `json:"ifindex"`
	// Kind ("veth") and Peer (the index of its other end) tell a virtual NIC from
	// one that a workload made in its place.
	Kind string `json:"kind,omitempty"`
	Peer int    `json:"peer,omitempty"`
	// PermanentMAC is the address in the hardware.
	PermanentMAC string `json:"permanentMAC,omitempty"`
	// Flags are IFF_* of linux/if.h.
	Flags uint32 `json:"flags"`
	// Attributes are IFLA_* attributes that can be set, by number: MTU, address,
	// queue length, offload sizes.
	Attributes map[uint16][]byte `json:"attributes"`
	// The rest are the kernel's own messages (without nlmsghdr), to be replayed:
	// Go types would lose attributes that this program does not know.
	Addresses  [][]byte `json:"addresses,omitempty"`
	Routes     [][]byte `json:"routes,omitempty"`
	Rules      [][]byte `json:"rules,omitempty"`
	Neighbours [][]byte `json:"neighbours,omitempty"`
	Qdiscs     [][]byte `json:"qdiscs,omitempty"`
	// Sysctls are those below /proc/sys/net/{ipv4,ipv6}/{conf,neigh}/NAME, by
	// "ipv4/conf/arp_ignore".
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Features and PrivateFlags are the driver's settings, by ethtool's names.
	Features     map[string]bool `json:"features,omitempty"`
	PrivateFlags map[string]bool `json:"privateFlags,omitempty"`
	// ReadAt is CLOCK_BOOTTIME in nanoseconds when this was read: what is left of
	// an address's lifetime counts from there.
	ReadAt int64 `json:"readAt"`
}

// Failure is what a hook that failed had to say.
type Failure struct {
	Time      time.Time `json:"time"`
	Container string    `json:"container,omitempty"`
	Message   string    `json:"message"`
}
