package e2e

import (
	"strings"
	"testing"

	"podrail/internal/nstest"
	"podrail/test/machine"
)

// TestOne also sees the NIC from inside, as a user does.
func TestOne(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		out := h.Podman(t, append(h.create("run", nics[:1], "--rm"), "sh", "-c", "ip addr; ip route; ip -6 route")...)
		for _, want := range []string{
			": gpu0rdma0", "mtu 8896", "inet 192.168.1.2/32", "inet6 fd00:1::2/64",
			"192.168.1.1 dev gpu0rdma0", "10.1.0.0/16 via 192.168.1.1 dev gpu0rdma0", "fd01:1::/64 via fd00:1::1 dev gpu0rdma0",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing in the container's\n%s", want, out)
			}
		}
		if strings.Contains(out, nics[1]) {
			t.Errorf("the container has %s, which it was not given", nics[1])
		}
		h.home(t)
	})
}

func TestTwo(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.start(t, "c", nics...)
		h.inside(t, "c", 0, 1)
		h.Podman(t, "rm", "--force", "--time=0", "c")
		h.home(t)
	})
}

func TestAll(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.start(t, "c", "all")
		h.inside(t, "c", 0, 1)
		h.Podman(t, "rm", "--force", "--time=0", "c")
		h.home(t)
	})
}

// TestTwoContainers: each NIC in a container of its own, going home at its own time.
func TestTwoContainers(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.start(t, "one", nics[0])
		h.start(t, "two", nics[1])
		h.inside(t, "one", 0)
		h.inside(t, "two", 1)

		taken := h.TryPodman(t, append(h.create("run", nics[:1], "--rm"), "true")...)
		if taken.Status == 0 {
			t.Errorf("%s was given to two containers", nics[0])
		}
		h.inside(t, "one", 0)

		h.Podman(t, "rm", "--force", "--time=0", "one")
		nstest.Eventually(t, machine.Settle, func() error {
			_, err := h.TrySnapshot(nics[0])
			return err
		})
		h.inside(t, "two", 1)
		h.Podman(t, "rm", "--force", "--time=0", "two")
		h.home(t)
	})
}

func TestStopStartRestart(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.start(t, "c", nics...)
		h.inside(t, "c", 0, 1)
		h.Podman(t, "stop", "--time=0", "c")
		h.home(t)
		h.Podman(t, "start", "c")
		h.inside(t, "c", 0, 1)
		h.Podman(t, "restart", "--time=0", "c")
		h.inside(t, "c", 0, 1)
		h.Podman(t, "stop", "--time=0", "c")
		h.home(t)
		h.Podman(t, "rm", "c")
		h.home(t)
	})
}

// TestKill: by Podman, and of the container's first process behind its back.
func TestKill(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.start(t, "c", nics...)
		h.inside(t, "c", 0, 1)
		h.Podman(t, "kill", "c")
		h.home(t)
		h.Podman(t, "start", "c")
		h.inside(t, "c", 0, 1)
		h.Run(t, "kill", "-9", strings.TrimSpace(h.Podman(t, "inspect", "--format", "{{.State.Pid}}", "c")))
		h.home(t)
	})
}

// TestInit: a container that is created, prepared and removed, but never started.
func TestInit(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.Podman(t, append(h.create("create", nics, "--name=c"), "true")...)
		h.home(t)
		h.Podman(t, "init", "c")
		h.inside(t, "c", 0, 1)
		h.Podman(t, "rm", "--force", "--time=0", "c")
		h.home(t)
	})
}

// TestMissingCommand: the hook was done when the runtime finds nothing to run.
func TestMissingCommand(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.failsAfterOurHook(t, append(h.create("run", nics, "--rm"), "/missing"))
	})
}

// TestOtherHookFails: another vendor's createRuntime hook fails after ours was done.
func TestOtherHookFails(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.Write(t, "/run/cdi/other.yaml", `cdiVersion: 0.3.0
kind: other.example/hook
devices:
- name: fails
  containerEdits:
    hooks:
    - {hookName: createRuntime, path: /bin/false}
`)
		h.failsAfterOurHook(t, append(h.create("run", nics, "--rm", "--device=other.example/hook=fails"), "true"))
	})
}

// failsAfterOurHook runs a command that must fail when the NICs are in the
// container already. runc then runs the poststop hooks. crun has not written the
// container's state yet, so it runs none: what is left must be in nobody's way, and
// reconcile must repair it.
func (h *host) failsAfterOurHook(t *testing.T, args []string) {
	t.Helper()
	fail := func() {
		t.Helper()
		r := h.TryPodman(t, args...)
		if r.Status == 0 {
			t.Fatal("the container was started")
		}
		t.Logf("podman: %s", r.Stderr)
		if h.runtime == "runc" {
			h.home(t)
		}
	}
	fail()
	h.start(t, "c", nics...)
	h.inside(t, "c", 0, 1)
	h.Podman(t, "rm", "--force", "--time=0", "c")
	h.home(t)

	fail()
	h.Run(t, "netdev-hook", "reconcile")
	h.home(t)
}

// TestOurHookFails: the second of two NICs is missing, so the first must stay.
func TestOurHookFails(t *testing.T) {
	engines(t, func(t *testing.T, h *host) {
		h.Run(t, "ip", "link", "set", nics[1], "down")
		h.Run(t, "ip", "link", "set", nics[1], "name", "renamed")
		r := h.TryPodman(t, append(h.create("run", nics, "--rm"), "true")...)
		if r.Status == 0 {
			t.Error("a container was started although a NIC of it is missing")
		}
		t.Logf("podman: %s", r.Stderr)
		if status := h.Run(t, "netdev-hook", "status"); !strings.Contains(status, "failure: ") || !strings.Contains(status, nics[1]) {
			t.Errorf("netdev-hook status does not say what failed:\n%s", status)
		}
		if err := h.leftovers(t); err != nil {
			t.Error(err)
		}
		machine.CheckNIC(t, &h.Namespace, nics[0], 1)
	})
}

// TestHostNetwork: the NIC is where the container is.
func TestHostNetwork(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		t.Run("podman+"+runtime, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, runtime, "host")
			h.start(t, "c", nics...)
			if inside := h.Inside(t, "c"); inside.Inode(t) != h.Inode(t) {
				t.Error("a container of --network=host is in another network namespace")
			}
			h.home(t)
			h.Podman(t, "rm", "--force", "--time=0", "c")
			h.home(t)
		})
	}
}
