package lab

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// PCI addresses of the file topology.
const (
	igbPF     = "0000:23:00.0"
	igbPF2    = "0000:83:00.0"
	igbPF3    = "0000:28:00.0"
	e1000e    = "0000:27:00.0"
	virtioNet = "0000:c1:00.0"
)

// TestKernelReturns: the container dies without a poststop, the kernel returns its
// NIC, and the udev rule has it restored.
func TestKernelReturns(t *testing.T) {
	vf := makeVFs(t, igbPF, 2)[0]
	// A VF has no carrier while its PF is down.
	sh(t, "ip link set $1 up && ip link set $1 vf 0 mac 52:54:00:00:01:0a vlan 12 spoofchk off", nicAt(t, igbPF))
	for i, row := range []struct{ what, pci string }{
		{"igb PF", igbPF2}, {"igbvf VF", vf}, {"e1000e", e1000e}, {"virtio-net", virtioNet},
	} {
		t.Run(row.what, func(t *testing.T) {
			nic := nicAt(t, row.pci)
			dress(t, nic, i+1)
			before, pf := snapshot(t, nic), vfSettings(t, nicAt(t, igbPF))
			c := newContainer(t)
			c.attach(t, nic+",id="+identity(t, nic))
			if out := c.Run(t, "ip", "addr", "show", "dev", nic); !strings.Contains(out, fmt.Sprintf("10.%d.1.1/24", i+1)) || !strings.Contains(out, ",UP") {
				t.Errorf("in the container:\n%s", out)
			}
			killAndTime(t, c, row.what, row.pci)
			same(t, before, nic)
			if after := vfSettings(t, nicAt(t, igbPF)); pf != after {
				t.Errorf("VF settings on the PF: %s before, %s after", pf, after)
			}
		})
	}
}

// killAndTime kills a container and says how long kernel and hook take.
func killAndTime(t *testing.T, c *container, what, pci string) {
	t.Helper()
	c.kill()
	start := time.Now()
	for {
		names, _ := os.ReadDir("/sys/bus/pci/devices/" + pci + "/net")
		if len(names) > 0 || journalEmpty() || time.Since(start) > settle || pci == virtioNet {
			break
		}
		time.Sleep(time.Millisecond)
	}
	kernel := time.Since(start)
	awaitHome(t)
	t.Logf("%s: returned by the kernel after %d ms, restored after %d ms, of which the unit ran %s", what, kernel.Milliseconds(), time.Since(start).Milliseconds(), hookTime())
}

// hookTime is how long the latest instance of the unit took from its start; what
// was before is the kernel's, udev's and systemd's.
func hookTime() string {
	out, _ := exec.Command("sh", "-c", `journalctl --sync; journalctl -b -o short-monotonic -u 'netdev-hook-reconcile@*' |
		tr -d '[]' | awk '/Starting/ { start = $1 } /Finished/ { ran = $1 - start } END { printf "%d ms", ran * 1000 }'`).Output()
	return string(out)
}

// TestWorkloadChanged: the NIC comes back under another name, with other settings.
func TestWorkloadChanged(t *testing.T) {
	nic := nicAt(t, igbPF2)
	dress(t, nic, 1)
	before := snapshot(t, nic)
	c := newContainer(t)
	c.attach(t, nic+",id="+identity(t, nic))
	for _, args := range [][]string{
		{"link", "set", nic, "down"},
		{"link", "set", nic, "name", "--root=x", "mtu", "1300", "address", "02:00:00:00:00:99", "alias", "mine"},
		{"link", "property", "del", "dev", "--root=x", "altname", "rail1"},
		{"link", "property", "add", "dev", "--root=x", "altname", "a$(id)"},
		{"link", "set", "--root=x", "up", "promisc", "on"},
		{"addr", "flush", "dev", "--root=x"},
		{"addr", "add", "203.0.113.5/24", "dev", "--root=x"},
	} {
		c.Run(t, "ip", args...)
	}
	killAndTime(t, c, "renamed NIC", igbPF2)
	same(t, before, nic)
}

// TestNameTaken: the NIC's name is another's when it comes home. It is repaired
// when the name is free again, and says until then what is wrong.
func TestNameTaken(t *testing.T) {
	nic := nicAt(t, e1000e)
	dress(t, nic, 1)
	before := snapshot(t, nic)
	c := newContainer(t)
	c.attach(t, nic+",id="+identity(t, nic))
	sh(t, "ip link add $1 type dummy", nic)
	c.kill()
	deadline := time.Now().Add(settle)
	for {
		if s := status(t); len(s) == 1 && strings.Contains(s[0].LastError, "name is taken") {
			t.Log(s[0].LastError)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("status says nothing of the taken name: %s", sh(t, "netdev-hook status; ip -d link"))
		}
		time.Sleep(20 * time.Millisecond)
	}
	sh(t, "ip link del $1; systemctl start netdev-hook-reconcile.service", nic)
	awaitHome(t)
	same(t, before, nic)
}

// TestPoststop comes late, twice, or never while the timer runs.
func TestPoststop(t *testing.T) {
	nic := nicAt(t, virtioNet)
	dress(t, nic, 1)
	before := snapshot(t, nic)
	c := newContainer(t)
	c.attach(t, nic+",id="+identity(t, nic))
	c.poststop(t) // early: the process is alive
	same(t, before, nic)
	c.attach(t, nic+",id="+identity(t, nic))
	c.kill()
	c.poststop(t) // beside udev's reconcile
	c.poststop(t)
	awaitHome(t)
	same(t, before, nic)

	// A macvlan would die with its namespace: it is pinned, no event tells of its
	// container's death, and the timer's unit brings it home.
	sh(t, "ip link set $1 up", nicAt(t, igbPF3))
	awaitIPv6(t, host, nicAt(t, igbPF3))
	// udev gives it a MAC of its own choice, from which its link-local address follows.
	sh(t, "ip link add mv0 link $1 type macvlan && udevadm settle && ip addr add 10.77.0.1/24 dev mv0 && ip link set mv0 up", nicAt(t, igbPF3))
	t.Cleanup(func() { sh(t, "ip link del mv0") })
	awaitIPv6(t, host, "mv0")
	before = snapshot(t, "mv0")
	c = newContainer(t)
	c.attach(t, "mv0")
	c.kill()
	if journalEmpty() {
		t.Error("a macvlan without a pin")
	}
	sh(t, "systemctl start netdev-hook-reconcile.service")
	awaitHome(t)
	same(t, before, "mv0")
	if out := sh(t, "cat /proc/1/mountinfo"); strings.Contains(out, "netdev-hook/pins") {
		t.Errorf("a pin stays:\n%s", out)
	}
}

// TestVFsRemoved: the VFs go while one is in a container. Nothing waits for it for ever.
func TestVFsRemoved(t *testing.T) {
	vf := nicAt(t, makeVFs(t, igbPF, 1)[0])
	c := newContainer(t)
	c.attach(t, vf+",id="+identity(t, vf))
	sh(t, "echo 0 >/sys/bus/pci/devices/$1/sriov_numvfs", igbPF)
	c.kill()
	out, err := exec.Command("netdev-hook", "reconcile").CombinedOutput()
	t.Logf("reconcile: %v: %s", err, out)
	if !strings.Contains(string(out), "does not exist any more") {
		t.Error("reconcile does not say that the device is gone")
	}
	if !journalEmpty() {
		t.Errorf("its entry stays: %s", sh(t, "netdev-hook status"))
	}
}
