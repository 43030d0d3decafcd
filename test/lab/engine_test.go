package lab

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPodman: a VF with its RDMA device in a container that Podman starts from a
// spec of cdi-gen.
func TestPodman(t *testing.T) {
	rdma(t, "exclusive")
	sh(t, "ip link set $1 up", nicAt(t, igbPF))
	nic := nicAt(t, makeVFs(t, igbPF, 1)[0])
	dress(t, nic, 1)
	hca(t, "mlx5_0", "fakeroce", nic)
	before := snapshot(t, nic)
	sh(t, `
		mkdir -p /run/rootfs/bin /run/rootfs/dev /run/rootfs/proc /run/rootfs/sys /run/rootfs/etc /etc/cdi
		cp /usr/bin/busybox /run/rootfs/bin/
		for tool in sh ip cat sleep ls dd; do ln -sf busybox /run/rootfs/bin/$tool; done
		cdi-gen generate --nics $1 --output /etc/cdi
	`, nic)
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			podman := func(args ...string) string {
				t.Helper()
				return sh(t, `podman --cgroup-manager=cgroupfs --events-backend=file --runtime="$@"`, append([]string{runtime}, args...)...)
			}
			run := []string{"run", "-d", "--network=none", "--device=dra.net/nic=" + nic, "--rootfs", "/run/rootfs"}
			t.Cleanup(func() { exec.Command("podman", "--cgroup-manager=cgroupfs", "rm", "-fa").Run() })

			id := podman(append(run, "sleep", "1000")...)
			out := podman("exec", id, "sh", "-c", "ip addr; ls /sys/class/infiniband /dev/infiniband; dd if=/dev/infiniband/uverbs0 count=0 && echo opened")
			for _, want := range []string{"10.1.1.1/24", "fd00:1::5/64", "mlx5_0", "uverbs0", "rdma_cm", "opened"} {
				if !strings.Contains(out, want) {
					t.Errorf("%s is missing in the container:\n%s", want, out)
				}
			}
			podman("stop", "-t0", id)
			podman("rm", "-f", id)
			if !journalEmpty() {
				t.Errorf("after poststop: %s", sh(t, "netdev-hook status"))
			}
			same(t, before, nic)

			id = podman(append(run, "sleep", "1000")...)
			pids := strings.Fields(podman("inspect", "-f", "{{.State.ConmonPid}} {{.State.Pid}}", id))
			start := time.Now()
			sh(t, "kill -9 $1 $2", pids...)
			awaitHome(t)
			t.Logf("restored %d ms after conmon and the container were killed", time.Since(start).Milliseconds())
			same(t, before, nic)
			if got := devices(t, host); !slices.Equal(got, []string{"mlx5_0"}) {
				t.Errorf("RDMA devices of the host: %q", got)
			}
		})
	}
}
