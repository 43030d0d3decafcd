package lab

import (
	"os/exec"
	"strings"
	"testing"
)

// TestClaim: of two NICs, the claim asks for the one that has RDMA; Podman's
// container gets that one, and a second claim finds none left.
func TestClaim(t *testing.T) {
	rdma(t, "exclusive")
	sh(t, "ip link set $1 up", nicAt(t, igbPF))
	vfs := makeVFs(t, igbPF, 2)
	plain, rail := nicAt(t, vfs[0]), nicAt(t, vfs[1])
	dress(t, rail, 1)
	hca(t, "mlx5_0", "fakeroce", rail)
	before := snapshot(t, plain, rail)
	t.Cleanup(func() { exec.Command("podman", "--cgroup-manager=cgroupfs", "rm", "-fa").Run() })
	out := sh(t, `
		mkdir -p /run/claim/bin /run/claim/dev /run/claim/proc /run/claim/sys /run/claim/etc /etc/cdi
		cp /usr/bin/busybox /run/claim/bin/
		for tool in sh ip ls; do ln -sf busybox /run/claim/bin/$tool; done
		cat > /run/claim.yaml <<-E
		apiVersion: resource.k8s.io/v1
		kind: ResourceClaim
		metadata: {name: one-rdma-nic}
		spec:
		  devices:
		    requests:
		    - name: nic
		      exactly:
		        deviceClassName: dranet
		        selectors:
		        - cel: {expression: 'device.attributes["dra.net"].rdma == true'}
		E
		cdi-claim -f /run/claim.yaml --name job1 | cdi-gen generate --allocation - --name job1 --output /etc/cdi
		podman --cgroup-manager=cgroupfs --events-backend=file run --rm --network=none --device=dra.net/nic=job1-all --rootfs /run/claim sh -c 'ip -o link; ls /dev/infiniband'
		cdi-claim -f /run/claim.yaml --name job2 2>&1 || true
		cdi-gen remove --name job1 --output /etc/cdi
	`)
	for _, want := range []string{": " + rail, "uverbs0", "job1"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if strings.Contains(out, ": "+plain+":") {
		t.Errorf("the container has %s, which has no RDMA:\n%s", plain, out)
	}
	awaitHome(t)
	same(t, before, plain, rail)
}
