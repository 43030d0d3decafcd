// Package nested runs what a Ray worker pod runs: an outer container that stands
// for the pod, in it cdi-gen as an init container does, and then Podman with the
// options that Ray gives it and no --device.
package nested

import (
	"path/filepath"
	"strings"
	"testing"

	"podrail/internal/nstest"
	"podrail/test/machine"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

func TestMain(m *testing.M) { nstest.Main(m) }

// tree is the host that the pod's devices are of. No machine that runs this test
// has them: harmless nodes have their names in the outer container.
const tree = "../../testdata/hosts/a4-highgpu-8g"

// outer is podman run of a container that has this machine's programs, two device
// nodes of a NIC, and what nested Podmans need.
func outer(m *machine.Machine, t *testing.T, options ...string) []string {
	t.Helper()
	m.Run(t, "sh", "-c", `
		mkdir -p /run/machine/outer /run/machine/layer /run/machine/var
		mount -t tmpfs tmpfs /run/machine/layer
		mkdir /run/machine/layer/upper /run/machine/layer/work
		mount -t overlay -o lowerdir=/,upperdir=/run/machine/layer/upper,workdir=/run/machine/layer/work overlay /run/machine/outer
		mkdir -p /run/machine/outer/podrail /run/machine/outer/image
		rm -rf /run/machine/outer/etc/cdi
		cp /run/machine/bin/* /run/machine/outer/podrail/
		cp -r /run/machine/rootfs/. /run/machine/outer/image/`)
	args := []string{"run", "--rm", "--network=none", "--cgroupns=host",
		"--device=/dev/fuse:/dev/infiniband/uverbs0", "--device=/dev/net/tun:/dev/infiniband/rdma_cm",
		// Without a copy of what is there: this machine writes to its /tmp meanwhile.
		"--tmpfs=/run:notmpcopyup", "--tmpfs=/var/lib/containers:notmpcopyup", "--tmpfs=/tmp:notmpcopyup", "--volume=" + "/sys/fs/cgroup:/sys/fs/cgroup"}
	return append(append(args, options...), "--rootfs", "/run/machine/outer")
}

// script is what runs in the outer container. Ray's own line follows in it.
const script = `set -e
export PATH=/podrail:$PATH CONTAINERS_STORAGE_CONF=/tmp/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "/var/lib/containers/storage"\nrunroot = "/run/containers/storage"\n' >$CONTAINERS_STORAGE_CONF
if [ ! -e /dev/infiniband/uverbs0 ]; then # --privileged leaves out what --device says
	mkdir -p /dev/infiniband
	mknod -m 666 /dev/infiniband/uverbs0 c 10 229
	mknod -m 666 /dev/infiniband/rdma_cm c 10 200
fi
mkdir -p /etc/containers/containers.conf.d /var/run/cdi /tmp/ray
printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=10000:10000"]\n[engine]\nevents_logger = "file"\n' >/etc/containers/containers.conf.d/10-test.conf
if cdi-gen generate --output /run/none >&2; then exit 9; fi
test ! -e /run/none
cdi-gen generate --root /tree --nics gpu0rdma0 --nic-mode devices --env NCCL_NET=gIB --output /var/run/cdi $HOW >&2
exec podman run -v /tmp/ray:/tmp/ray --cgroup-manager=cgroupfs --network=host --pid=host --ipc=host \
	--env RAY_JOB_ID=1 --entrypoint sh --rootfs /image -c '
	ls -l /dev/infiniband; echo NCCL_NET=$NCCL_NET; (: </dev/infiniband/uverbs0) && echo opens
	busybox mknod /tmp/other c 10 237; (: </tmp/other) || echo others do not'
`

// TestRay: Ray's own line, with what cdi-gen told Podman beforehand.
func TestRay(t *testing.T) {
	t.Parallel()
	for _, pod := range []struct {
		name    string
		options []string
		// asked is what the sources make of a pod that was given nothing.
		asked string
	}{
		{"privileged", []string{"--privileged"}, "the device cgroup refuses nothing (195:253): this container is privileged"},
		{"unprivileged", []string{"--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined", "--security-opt=unmask=ALL"},
			"this pod has no GPU and no NIC"},
	} {
		for _, way := range []struct{ name, how string }{
			{"podman-conf", "--podman-conf /etc/containers/containers.conf.d/50-cdi-gen.conf"},
			{"wrapper", "--wrapper /podrail"},
		} {
			t.Run(pod.name+"/"+way.name, func(t *testing.T) {
				t.Parallel()
				m := machine.New(t)
				options := append([]string{"--env=HOW=" + way.how, "--volume=" + absolute(t, tree) + ":/tree:ro"}, pod.options...)
				r := m.Try(t, "podman", append(outer(m, t, options...), "sh", "-c", script)...)
				for _, want := range []string{"uverbs0\n", "rdma_cm\n", "NCCL_NET=gIB\n", "opens\n", "others do not\n"} {
					if r.Status != 0 || !strings.Contains(r.Stdout, want) {
						t.Fatalf("exit status %d, expected %q in\n%s%s", r.Status, want, r.Stdout, r.Stderr)
					}
				}
				if !strings.Contains(r.Stderr, pod.asked) {
					t.Errorf("expected %q in\n%s", pod.asked, r.Stderr)
				}
			})
		}
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}
