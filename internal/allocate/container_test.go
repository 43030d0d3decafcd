package allocate

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"podrail/internal/nstest"
	"podrail/pkg/discover"
	"podrail/test/machine"

	"golang.org/x/sys/unix"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

// inContainer has the test binary, in a container, say what openGPUs makes of it.
const inContainer = "PODRAIL_OPEN_GPUS"

func TestMain(m *testing.M) {
	if os.Getenv(inContainer) != "" {
		reportGPUs()
		return
	}
	nstest.Main(m)
}

// miscMajor has devices that every machine has; they stand for GPUs here.
const miscMajor, unusedMisc = 10, 1<<20 - 1

// standIns are the nodes that are a host's GPUs: two with a driver, one without.
var standIns = []string{"/dev/fuse", "/dev/net/tun", "/dev/broken"}

// opened is what reportGPUs prints.
type opened struct {
	Weight         string
	Devices, Error string
}

// reportGPUs is what a container sees: a host whose GPUs have those stand-ins as
// nodes that are in this container, as discover would find them.
func reportGPUs() {
	root, err := openLive()
	if err != nil {
		panic(err)
	}
	host := &discover.Host{}
	for i, name := range standIns {
		g := discover.GPU{Name: fmt.Sprint(i), Index: i}
		if node, err := root.DeviceNode(name); err == nil {
			g.Nodes = []discover.DeviceNode{node}
		}
		host.GPUs = append(host.GPUs, g)
	}
	said, err := openGPUs(host, unix.Mkdev(miscMajor, unusedMisc))
	out := opened{Weight: said.Weight.String(), Devices: said.String()}
	if err != nil {
		out.Error = err.Error()
	}
	json.NewEncoder(os.Stdout).Encode(out)
}

// TestOpenGPUs opens device nodes in real containers, with a real device cgroup.
func TestOpenGPUs(t *testing.T) {
	t.Parallel()
	for _, node := range standIns[:2] {
		if _, err := os.Stat(node); err != nil {
			t.Skipf("needs %s: %v", node, err)
		}
	}
	m := machine.New(t)
	self, err := filepath.EvalSymlinks("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	m.Run(t, "cp", self, "/run/machine/allocate.test")
	m.Run(t, "mknod", "/run/machine/broken", "c", fmt.Sprint(miscMajor), fmt.Sprint(unusedMisc-1))
	const fuse, tun = "--device=/dev/fuse", "--device=/dev/net/tun"
	// A node that is there and was not given, as with a /dev of the node's.
	const foreign = "--volume=/dev/net/tun:/dev/net/tun"
	for _, test := range []struct {
		name    string
		options []string
		weight  string
		devices string
		err     string
	}{
		{"one of two", []string{fuse}, "proof", "0", ""},
		{"both", []string{fuse, tun}, "proof", "0,1", ""},
		{"none", nil, "proof", "none", ""},
		{"the other is visible", []string{fuse, foreign}, "proof", "0", ""},
		{"the other is visible, no nodes can be made", []string{fuse, foreign, "--cap-drop=MKNOD"}, "proof", "0", ""},
		{"no nodes can be made", []string{fuse, "--cap-drop=MKNOD"}, "nothing", "0", ""},
		{"not root", []string{fuse, "--user=1000"}, "nothing", "0", ""},
		{"privileged", []string{"--privileged"}, "nothing", "0", ""},
		{"privileged, no nodes can be made", []string{"--privileged", "--cap-drop=MKNOD"}, "nothing", "0", ""},
		{"all of the major allowed", []string{fuse, "--device-cgroup-rule=c 10:* rwm"}, "nothing", "0", ""},
		{"given, but broken", []string{fuse, "--device=/run/machine/broken:/dev/broken"}, "nothing", "0", "cannot be opened"},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := []string{"run", "--rm", "--network=none", "--env=" + inContainer + "=1",
				"--volume=/run/machine/allocate.test:/allocate.test:ro", "--volume=/lib:/lib:ro", "--volume=/lib64:/lib64:ro"}
			args = append(append(args, test.options...), "--rootfs", machine.Rootfs, "/allocate.test")
			out := m.Run(t, "podman", args...)
			var got opened
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got.Weight != test.weight || got.Devices != test.devices || !strings.Contains(got.Error, test.err) || (got.Error == "") != (test.err == "") {
				t.Errorf("%+v, expected %s %s, error %q", got, test.weight, test.devices, test.err)
			}
		})
	}
}
