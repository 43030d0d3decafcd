package nstest_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"podrail/internal/nstest"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestNamespaces(t *testing.T) {
	a, b, p := nstest.New(t), nstest.New(t), nstest.Process(t)
	own := nstest.Own(t)
	inodes := map[uint64]bool{}
	for _, n := range []*nstest.Namespace{a, b, &p.Namespace, own} {
		inodes[n.Inode(t)] = true
	}
	if len(inodes) != 4 {
		t.Errorf("4 namespaces have inodes %v", inodes)
	}
	if q := a.Process(t); q.Inode(t) != a.Inode(t) {
		t.Errorf("a process of %s is in %s", a.Path, q.Path)
	}
	a.Do(t, func() {
		f, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := os.Readlink("/proc/self/ns/net"); f == p {
			t.Errorf("Do runs in %s, the process's own namespace", f)
		}
	})
}

func TestVeth(t *testing.T) {
	t.Parallel()
	a, b := nstest.New(t), nstest.New(t)
	nstest.Veth(t, a, "one", b, "two")
	a.Run(t, "ip", "link", "show", "one")
	b.Run(t, "ip", "link", "show", "two")
}

func TestKill(t *testing.T) {
	t.Parallel()
	a, p := nstest.New(t), nstest.Process(t)
	nstest.Veth(t, a, "one", &p.Namespace, "two")
	p.Kill(t)
	if _, err := os.Stat(p.Path); err == nil {
		t.Errorf("%s is still there", p.Path)
	}
	// The kernel destroys a veth pair with the namespace of either end.
	nstest.Eventually(t, 5*time.Second, func() error {
		if strings.Contains(a.Run(t, "ip", "link"), "one") {
			return errors.New("the namespace of a killed process lives on")
		}
		return nil
	})
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	n := nstest.New(t)
	n.Run(t, "ip", "link", "add", "nic", "type", "veth", "peer", "name", "peer")
	changes := [][]string{
		{"ip", "link", "set", "nic", "up"},
		{"ip", "link", "set", "nic", "mtu", "8896"},
		{"ip", "link", "set", "nic", "alias", "rail 0"},
		{"ip", "link", "property", "add", "dev", "nic", "altname", "enp145s0"},
		{"ip", "addr", "add", "192.168.1.2/32", "dev", "nic"},
		{"ip", "addr", "add", "fd00::2/64", "dev", "nic", "nodad"},
		{"ip", "route", "add", "192.168.1.0/24", "dev", "nic", "table", "7"},
		{"ip", "-6", "route", "add", "fd01::/64", "dev", "nic"},
		{"ip", "neigh", "add", "192.168.1.3", "lladdr", "02:00:00:00:00:03", "dev", "nic"},
		{"ip", "rule", "add", "from", "192.168.1.2", "table", "7"},
		{"tc", "qdisc", "add", "dev", "nic", "root", "handle", "1:", "pfifo", "limit", "77"},
		{"sh", "-c", "echo 2 > /proc/sys/net/ipv4/conf/nic/arp_ignore"},
	}
	for _, change := range changes {
		before := n.Snapshot(t, "nic")
		if before != n.Snapshot(t, "nic") {
			t.Fatal("two snapshots of the same state differ")
		}
		n.Run(t, change[0], change[1:]...)
		if before == n.Snapshot(t, "nic") {
			t.Errorf("Snapshot does not show what %q did", change)
		}
	}
	if _, err := n.TrySnapshot("missing"); err == nil {
		t.Error("TrySnapshot of a missing link returned no error")
	}
	if !strings.Contains(n.Snapshot(t), "peer") {
		t.Error("Snapshot() does not name all links")
	}
}
