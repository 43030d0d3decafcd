package e2e

import (
	"strings"
	"testing"
)

// TestConmonKilled: no engine runs poststop then, ever.
func TestConmonKilled(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.start(t, "c", nics...)
		h.inside(t, "c", 0, 1)
		pids := strings.Fields(h.Podman(t, "inspect", "--format", "{{.State.ConmonPid}} {{.State.Pid}}", "c"))
		h.Run(t, "kill", "-9", pids[0])
		h.Run(t, "kill", "-9", pids[1])
		h.TryPodman(t, "rm", "--force", "--time=0", "c")
		// Until the container's process is reaped it still holds its NICs.
		h.Run(t, "sh", "-c", "until test ! -e /proc/"+pids[1]+"/ns/net; do :; done")
		h.Run(t, "netdev-hook", "reconcile")
		h.home(t)
	})
}

// TestNetworkConfig: a spec that says what the NICs shall be inside, and that asks
// for locked memory.
func TestNetworkConfig(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.Write(t, "/run/config.yaml", `gpu0rdma0:
  interface: {name: rail0, mtu: 4000, addresses: [10.7.0.5/24]}
  routes: [{destination: 10.70.0.0/16, gateway: 10.7.0.1}]
`)
		h.Run(t, "cdi-gen", "generate", "--nics", strings.Join(nics, ","), "--nic-mode", "hook", "--nic-config", "/run/config.yaml", "--memlock", "1M")
		out := h.Podman(t, append(h.create("run", []string{"all"}, "--rm"), "sh", "-c", "ip addr; ip route; ulimit -l")...)
		for _, want := range []string{": rail0", "mtu 4000", "inet 10.7.0.5/24", "10.70.0.0/16 via 10.7.0.1 dev rail0", ": gpu1rdma0"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing in the container's\n%s", want, out)
			}
		}
		lines := strings.Fields(out)
		if limit := lines[len(lines)-1]; limit != "unlimited" && len(limit) < len("1024") { // KiB
			t.Errorf("the container may lock %s KiB, want at least 1024", limit)
		}
		if strings.Contains(out, "192.168.1.2") {
			t.Errorf("the host's address is in the container's\n%s", out)
		}
		h.home(t)
	})
}
