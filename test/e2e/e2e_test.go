// Package e2e runs real engines with the specs that cdi-gen writes, and looks at
// the NICs in their containers and after.
package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"podrail/internal/nstest"
	"podrail/test/machine"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

func TestMain(m *testing.M) { nstest.Main(m) }

// nics are the names of the NICs of newHost; NIC i is made with number i+1.
var nics = []string{"gpu0rdma0", "gpu1rdma0"}

// host is a machine with NICs and their spec.
type host struct {
	machine.Engine
	runtime, network string
	// before is what the NICs were like.
	before string
}

// newHost makes a host with two NICs that cdi-gen has written a spec for, next to
// one that the default route goes through.
func newHost(t *testing.T, runtime, network string) *host {
	t.Helper()
	m := machine.New(t)
	// Podman's bridge sets this on first use, and with it a sysctl of every link.
	m.Write(t, "/proc/sys/net/ipv4/ip_forward", "1")
	for i, name := range nics {
		m.NIC(t, name, i+1)
	}
	m.NIC(t, "eth0", 9)
	m.Run(t, "ip", "route", "add", "default", "via", "192.168.9.1", "dev", "eth0")
	// Where the tests run in a container, auto would take the machine for a pod.
	m.Run(t, "cdi-gen", "generate", "--nics", strings.Join(nics, ","), "--nic-mode", "hook")
	return &host{
		Engine:  machine.Engine{Machine: m, Global: []string{"--runtime=" + runtime}},
		runtime: runtime, network: network,
		before: m.Snapshot(t, nics...),
	}
}

// create is `podman run` or another command that creates a container which has NICs.
func (h *host) create(command string, devices []string, options ...string) []string {
	args := []string{command, "--network=" + h.network}
	for _, d := range devices {
		args = append(args, "--device=dra.net/nic="+d)
	}
	args = append(args, options...)
	return append(args, "--rootfs", machine.Rootfs)
}

// start starts a container called name that does nothing until it is stopped.
func (h *host) start(t *testing.T, name string, devices ...string) {
	t.Helper()
	h.Podman(t, append(h.create("run", devices, "--detach", "--name", name), "sleep", "1000")...)
}

// inside checks that a container has NIC i as it was, for all i of indices.
func (h *host) inside(t *testing.T, container string, indices ...int) {
	t.Helper()
	ns := h.Inside(t, container)
	for _, i := range indices {
		machine.CheckNIC(t, ns, nics[i], i+1)
		if h.Try(t, "ip", "link", "show", "dev", nics[i]).Status == 0 {
			t.Errorf("%s is in the container and on the host", nics[i])
		}
	}
}

// home checks that the NICs are, or soon will be, on the host as they were before,
// and that nothing else is left of their journey.
func (h *host) home(t *testing.T) {
	t.Helper()
	nstest.Eventually(t, machine.Settle, func() error {
		after, err := h.TrySnapshot(nics...)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(h.before, after); diff != "" {
			return fmt.Errorf("the NICs are not as they were (-before +after):\n%s", diff)
		}
		return h.leftovers(t)
	})
}

// leftovers is an error if the hook keeps a journal entry or a pinned namespace.
func (h *host) leftovers(t *testing.T) error {
	t.Helper()
	status := h.Run(t, "netdev-hook", "status")
	if !strings.HasPrefix(status, "No NIC is away from home.\n") || strings.Contains(status, "problem:") {
		return errors.New(status)
	}
	// Its lock and the messages of failures may stay.
	files := h.Run(t, "sh", "-c", "cd /run/netdev-hook 2>/dev/null || exit 0; find . -type f ! -name lock ! -name 'failures*'")
	if files != "" {
		return fmt.Errorf("left in /run/netdev-hook:\n%s", files)
	}
	if pins := h.Run(t, "sh", "-c", "grep /run/netdev-hook /proc/self/mountinfo || :"); pins != "" {
		return fmt.Errorf("left mounts:\n%s", pins)
	}
	return nil
}

// engines runs a test with each runtime and each kind of network.
func engines(t *testing.T, test func(t *testing.T, h *host)) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		for _, network := range []string{"none", "bridge"} {
			t.Run("podman+"+runtime+"/"+network, func(t *testing.T) {
				t.Parallel()
				test(t, newHost(t, runtime, network))
			})
		}
	}
}
