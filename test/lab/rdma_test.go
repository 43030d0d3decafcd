package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"podrail/internal/nstest"
)

// rdma loads the RDMA subsystem anew in a netns mode, without any device.
func rdma(t testing.TB, mode string) {
	t.Helper()
	number := map[string]string{"exclusive": "0", "shared": "1"}[mode]
	sh(t, `
		for m in fakehca rdma_rxe ib_ipoib rdma_ucm rdma_cm ib_umad ib_uverbs ib_uverbs_support iw_cm ib_cm ib_core; do
			[ ! -e /sys/module/$m ] || modprobe -q -r $m || rmmod $m || { lsmod | grep ^$m; rdma dev; }
		done
		modprobe ib_core netns_mode=$1
		modprobe -a ib_uverbs ib_umad rdma_ucm
		insmod /usr/src/fakehca/fakehca.ko
	`, number)
	if out := sh(t, "rdma system"); !strings.Contains(out, "netns "+mode) {
		t.Fatalf("RDMA is not in %s mode: %s\n%s", mode, out, sh(t, "lsmod | grep '^ib_core'; rdma dev"))
	}
}

// hca makes an RDMA device on an interface: type fakeroce, fakeib or rxe.
func hca(t testing.TB, name, kind, nic string) {
	t.Helper()
	sh(t, "rdma link add $1 type $2 netdev $3", name, kind, nic)
	t.Cleanup(func() { exec.Command("rdma", "link", "delete", name).Run() })
	nstest.Eventually(t, settle, func() error {
		if len(nodesOf(name)) == 0 {
			return fmt.Errorf("%s has no nodes", name)
		}
		return nil
	})
}

// nodesOf are the nodes that a spec would give for an RDMA device.
func nodesOf(device string) []string {
	var nodes []string
	for _, class := range []string{"infiniband_verbs", "infiniband_mad"} {
		files, _ := filepath.Glob("/sys/class/" + class + "/*/ibdev")
		for _, f := range files {
			name := filepath.Base(filepath.Dir(f))
			if ibdev, _ := os.ReadFile(f); strings.TrimSpace(string(ibdev)) == device && !strings.HasPrefix(name, "issm") {
				nodes = append(nodes, name)
			}
		}
	}
	slices.Sort(nodes)
	return nodes
}

// argument is what cdi-gen writes for a NIC with an RDMA device.
func argument(t testing.TB, nic, device string) string {
	t.Helper()
	return fmt.Sprintf("%s,id=%s,rdma=%s,nodes=%s", nic, identity(t, nic), device, strings.Join(nodesOf(device), "+"))
}

// devices are the RDMA devices of a network namespace.
func devices(t testing.TB, n *nstest.Namespace) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(n.Run(t, "rdma", "dev")) {
		if f := strings.Fields(line); len(f) > 1 { // "0: mlx5_0: node_type ca ..."
			names = append(names, strings.TrimSuffix(f[1], ":"))
		}
	}
	slices.Sort(names)
	return names
}

// gids are the RoCE v2 GIDs of a device as a process in the container sees them.
func gids(t testing.TB, c *container, device string) string {
	t.Helper()
	return c.Run(t, "unshare", "--mount", "sh", "-c", `mount -t sysfs sys /sys && cd /sys/class/infiniband/`+device+`/ports/1 &&
		grep -sl "RoCE v2" gid_attrs/types/* | sed s,gid_attrs/types,gids, | xargs -r cat`)
}

func wantGIDs(t testing.TB, c *container, device string, n int) {
	t.Helper()
	got := gids(t, c, device)
	for _, want := range []string{
		fmt.Sprintf("0000:0000:0000:0000:0000:ffff:c0a8:%02x05", n), // 192.168.N.5
		fmt.Sprintf("fd00:%04x:0000:0000:0000:0000:0000:0005", n),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s in the container has no RoCE v2 GID %s when the hook returns:\n%s", device, want, got)
		}
	}
}

// TestRDMAExclusive: the RDMA device follows its netdev, and precedes it home.
func TestRDMAExclusive(t *testing.T) {
	rdma(t, "exclusive")
	sh(t, "ip link set $1 up", nicAt(t, igbPF))
	nic := nicAt(t, makeVFs(t, igbPF, 1)[0])
	dress(t, nic, 1)
	hca(t, "mlx5_0", "fakeroce", nic)
	before, nodes := snapshot(t, nic), nodesOf("mlx5_0")
	events := monitor(t)

	c := newContainer(t)
	c.attach(t, argument(t, nic, "mlx5_0"))
	wantGIDs(t, c, "mlx5_0", 1)
	if inside, outside := devices(t, &c.Namespace), devices(t, host); !slices.Equal(inside, []string{"mlx5_0"}) || len(outside) > 0 {
		t.Errorf("RDMA devices: %q in the container, %q on the host", inside, outside)
	}
	c.poststop(t)
	same(t, before, nic)
	events.wantOrder(t, "remove net", "remove infiniband", "add infiniband", "add net")
	if got := devices(t, host); !slices.Equal(got, []string{"mlx5_0"}) || !slices.Equal(nodesOf("mlx5_0"), nodes) {
		t.Errorf("on the host: %q with nodes %q, want nodes %q", got, nodesOf("mlx5_0"), nodes)
	}

	c.attach(t, argument(t, nic, "mlx5_0"))
	start := time.Now()
	c.kill()
	awaitHome(t)
	t.Logf("NIC and RDMA device restored %d ms after their container was killed", time.Since(start).Milliseconds())
	same(t, before, nic)
	if got := devices(t, host); !slices.Equal(got, []string{"mlx5_0"}) {
		t.Errorf("on the host: %q", got)
	}
}

// uevents is what the kernel said to the host's udev.
type uevents struct{ file string }

func monitor(t testing.TB) uevents {
	t.Helper()
	file := filepath.Join(t.TempDir(), "events")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("stdbuf", "-oL", "udevadm", "monitor", "--kernel", "--subsystem-match=net", "--subsystem-match=infiniband")
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	nstest.Eventually(t, settle, func() error {
		if text, _ := os.ReadFile(file); !strings.Contains(string(text), "monitor will print") {
			return fmt.Errorf("udevadm monitor says %q", text)
		}
		return nil
	})
	return uevents{file}
}

// wantOrder compares the events, each "ACTION SUBSYSTEM".
func (e uevents) wantOrder(t testing.TB, want ...string) {
	t.Helper()
	var got []string
	nstest.Eventually(t, settle, func() error {
		got = nil
		text, _ := os.ReadFile(e.file)
		for line := range strings.Lines(string(text)) {
			// KERNEL[12.345] remove   /devices/pci0000:20/.../net/eth0 (net)
			f := strings.Fields(line)
			if len(f) == 4 && (f[1] == "add" || f[1] == "remove") {
				got = append(got, f[1]+" "+strings.Trim(f[3], "()"))
			}
		}
		if len(got) < len(want) {
			return fmt.Errorf("events %q, want %q", got, want)
		}
		return nil
	})
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// TestRDMARenumbered: a move gives the device other nodes than the container has.
func TestRDMARenumbered(t *testing.T) {
	rdma(t, "exclusive")
	sh(t, "ip link set $1 up", nicAt(t, igbPF))
	vfs := makeVFs(t, igbPF, 2)
	other, nic := nicAt(t, vfs[0]), nicAt(t, vfs[1])
	dress(t, nic, 1)
	hca(t, "mlx5_0", "fakeroce", other)
	hca(t, "mlx5_1", "fakeroce", nic)
	sh(t, "rdma link delete mlx5_0")
	before := snapshot(t, nic)
	c := newContainer(t)
	out, err := c.hook("createRuntime", "--netdev", argument(t, nic, "mlx5_1"))
	t.Log(out)
	if err == nil || strings.Contains(out, "\n") || !strings.Contains(out, "the container has the node umad1 for RDMA device mlx5_1, whose nodes are [umad0 uverbs0] now") {
		t.Errorf("createRuntime: %v", err)
	}
	if !journalEmpty() {
		t.Errorf("the journal: %s", sh(t, "netdev-hook status"))
	}
	same(t, before, nic)
	if got := devices(t, host); !slices.Equal(got, []string{"mlx5_1"}) {
		t.Errorf("RDMA devices of the host: %q", got)
	}
	// With the nodes as they are now it starts.
	c.attach(t, argument(t, nic, "mlx5_1"))
	c.poststop(t)
	same(t, before, nic)
}

// TestRDMAEight: a pod gets eight at once.
func TestRDMAEight(t *testing.T) {
	rdma(t, "exclusive")
	var nics, args []string
	for _, pf := range []string{igbPF, igbPF2} {
		sh(t, "ip link set $1 up", nicAt(t, pf))
		for _, vf := range makeVFs(t, pf, 4) {
			nics = append(nics, nicAt(t, vf))
		}
	}
	for i, nic := range nics {
		dress(t, nic, i+1)
		hca(t, fmt.Sprintf("mlx5_%d", i), "fakeroce", nic)
	}
	for i, nic := range nics {
		args = append(args, argument(t, nic, fmt.Sprintf("mlx5_%d", i)))
	}
	before := snapshot(t, nics...)
	c := newContainer(t)
	start := time.Now()
	c.attach(t, args...)
	t.Logf("8 NICs with RDMA devices attached in %d ms", time.Since(start).Milliseconds())
	if got := devices(t, &c.Namespace); len(got) != 8 {
		t.Errorf("RDMA devices in the container: %q", got)
	}
	for i := range nics {
		wantGIDs(t, c, fmt.Sprintf("mlx5_%d", i), i+1)
	}
	start = time.Now()
	c.kill()
	awaitHome(t)
	t.Logf("8 NICs with RDMA devices restored %d ms after their container was killed", time.Since(start).Milliseconds())
	same(t, before, nics...)
	if got := devices(t, host); len(got) != 8 {
		t.Errorf("RDMA devices of the host: %q", got)
	}
}

// TestRDMACannotMove: the driver is asked before anything moves.
func TestRDMACannotMove(t *testing.T) {
	rdma(t, "exclusive")
	sh(t, "modprobe rdma_rxe")
	nic := nicAt(t, e1000e)
	dress(t, nic, 1)
	hca(t, "rxe0", "rxe", nic)
	before := snapshot(t, nic)
	events := monitor(t)
	c := newContainer(t)
	out, err := c.hook("createRuntime", "--netdev", argument(t, nic, "rxe0"))
	t.Log(out)
	if err == nil || strings.Contains(out, "\n") || !strings.Contains(out, "cannot move it") {
		t.Errorf("createRuntime: %v", err)
	}
	same(t, before, nic)
	events.wantOrder(t)
	if !journalEmpty() {
		t.Errorf("the journal: %s", sh(t, "netdev-hook status"))
	}
}

// TestInfiniBandOnly: an RDMA device without an interface, and with one that the
// specification does not name.
func TestInfiniBandOnly(t *testing.T) {
	rdma(t, "exclusive")
	hca(t, "mlx5_0", "fakeib", nicAt(t, igbPF3))
	c := newContainer(t)
	arg := "mlx5_0,rdma=mlx5_0,nodes=" + strings.Join(nodesOf("mlx5_0"), "+")
	c.attach(t, arg)
	c.attach(t, arg) // the engine injected the hook twice
	if inside, outside := devices(t, &c.Namespace), devices(t, host); !slices.Equal(inside, []string{"mlx5_0"}) || len(outside) > 0 {
		t.Errorf("RDMA devices: %q in the container, %q on the host", inside, outside)
	}
	c.poststop(t)
	if got := devices(t, host); !slices.Equal(got, []string{"mlx5_0"}) || !journalEmpty() {
		t.Errorf("on the host after poststop: %q, %s", got, sh(t, "netdev-hook status"))
	}
	c.attach(t, arg)
	c.kill()
	awaitHome(t) // by the rule for RDMA devices
	if got := devices(t, host); !slices.Equal(got, []string{"mlx5_0"}) {
		t.Errorf("on the host: %q", got)
	}
}

// TestRDMAShared: the RDMA device is everywhere, and stays.
func TestRDMAShared(t *testing.T) {
	rdma(t, "shared")
	sh(t, "ip link set $1 up", nicAt(t, igbPF))
	nic := nicAt(t, makeVFs(t, igbPF, 1)[0])
	dress(t, nic, 1)
	hca(t, "mlx5_0", "fakeroce", nic)
	before := snapshot(t, nic)
	events := monitor(t)
	c := newContainer(t)
	c.attach(t, argument(t, nic, "mlx5_0"))
	wantGIDs(t, c, "mlx5_0", 1)
	if got := devices(t, host); !slices.Equal(got, []string{"mlx5_0"}) {
		t.Errorf("RDMA devices of the host: %q", got)
	}
	c.kill()
	awaitHome(t)
	same(t, before, nic)
	events.wantOrder(t, "remove net", "add net")

	// InfiniBand without an interface: nothing moves.
	hca(t, "mlx5_1", "fakeib", nicAt(t, igbPF3))
	c = newContainer(t)
	c.attach(t, "mlx5_1,rdma=mlx5_1,nodes="+strings.Join(nodesOf("mlx5_1"), "+"))
	if !journalEmpty() {
		t.Errorf("the journal: %s", sh(t, "netdev-hook status"))
	}
}

// ipoib is the IPoIB interface of a PCI function, once it has one.
func ipoib(t testing.TB, pci string) string {
	t.Helper()
	var name string
	nstest.Eventually(t, settle, func() error {
		all, _ := filepath.Glob("/sys/bus/pci/devices/" + pci + "/net/*")
		for _, n := range all {
			if kind, _ := os.ReadFile(n + "/type"); strings.TrimSpace(string(kind)) == "32" {
				name = filepath.Base(n)
				return nil
			}
		}
		return fmt.Errorf("%s has no IPoIB interface", pci)
	})
	sh(t, "udevadm settle")
	return ipoibName(t, pci, name)
}

// ipoibName is its name after udev.
func ipoibName(t testing.TB, pci, was string) string {
	all, _ := filepath.Glob("/sys/bus/pci/devices/" + pci + "/net/*")
	for _, n := range all {
		if kind, _ := os.ReadFile(n + "/type"); strings.TrimSpace(string(kind)) == "32" {
			return filepath.Base(n)
		}
	}
	return was
}

// TestIPoIB: moving the RDMA device makes the kernel remove its interface and make
// a new one, so the RDMA device goes first.
func TestIPoIB(t *testing.T) {
	for _, mode := range []string{"exclusive", "shared"} {
		t.Run(mode, func(t *testing.T) {
			rdma(t, mode)
			sh(t, "modprobe ib_ipoib")
			hca(t, "mlx5_0", "fakeib", nicAt(t, igbPF3))
			nic := ipoib(t, igbPF3)
			sh(t, `
				echo connected >/sys/class/net/$1/mode
				ip link set $1 mtu 9000 alias ib-rail txqueuelen 300
				ip link property add dev $1 altname storage0
				ip link set $1 up
				echo 2 >/proc/sys/net/ipv4/conf/$1/arp_ignore
				ip addr add 10.7.1.1/24 dev $1
				ip addr add fd00:7::5/64 dev $1 nodad
				ip route add 10.97.0.0/16 via 10.7.1.2
				ip rule add from 10.7.1.1 lookup 107 priority 1007
			`, nic)
			t.Cleanup(func() { sh(t, "ip rule del priority 1007") })
			before := withoutQPN(snapshot(t, nic))
			t.Log(sh(t, "ip -d addr show dev $1", nic))
			arg := argument(t, nic, "mlx5_0")
			c := newContainer(t)
			c.attach(t, arg)
			c.attach(t, arg)
			inside := c.Run(t, "ip", "addr", "show", "dev", nic)
			if !strings.Contains(inside, "10.7.1.1/24") || !strings.Contains(inside, ",UP") || !strings.Contains(inside, "mtu 9000") {
				t.Errorf("in the container:\n%s", inside)
			}
			if got, want := len(devices(t, host)), map[string]int{"exclusive": 0, "shared": 1}[mode]; got != want {
				t.Errorf("the host has %d RDMA devices, want %d", got, want)
			}
			c.Run(t, "ip", "link", "set", nic, "down")
			c.Run(t, "ip", "link", "set", nic, "name", "gone")
			c.poststop(t)
			sameIPoIB(t, before, nic)

			c.attach(t, arg)
			// What happens to other interfaces does not matter to a container that lives.
			sh(t, "netdev-hook reconcile")
			if journalEmpty() {
				t.Fatal("reconcile took the NIC from a living container")
			}
			start := time.Now()
			c.kill()
			awaitHome(t)
			t.Logf("IPoIB restored %d ms after its container was killed", time.Since(start).Milliseconds())
			sameIPoIB(t, before, nic)
		})
	}
}

// withoutQPN leaves out of a description what a new IPoIB interface has anew: the
// flags and queue pair number that begin its hardware address, and its index.
func withoutQPN(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		for _, key := range []string{`"address": "`, `"permaddr": "`} {
			if i := strings.Index(line, key); i >= 0 && len(line) > i+len(key)+59 {
				line = line[:i+len(key)] + "QPN" + line[i+len(key)+11:]
			}
		}
		if strings.Contains(line, `"ifindex"`) || strings.Contains(line, `"permaddr"`) {
			continue
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

func sameIPoIB(t testing.TB, before, nic string) {
	t.Helper()
	nstest.Eventually(t, 5*time.Second, func() error {
		after, err := describe(nic)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, sh(t, "ip -d link; netdev-hook status"))
		}
		if diff := diff(before, withoutQPN(after)); diff != "" {
			return fmt.Errorf("not as it was (-before +after):\n%s", diff)
		}
		return nil
	})
}
