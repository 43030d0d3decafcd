package netdev_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/nstest"
	"podrail/pkg/netdev"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

func TestMain(m *testing.M) { nstest.Main(m) }

// host is a network namespace with NICs that have all that a NIC can have, and a
// hook for it.
type host struct {
	*nstest.Namespace
	hook netdev.Hook
	t    testing.TB
}

func newHost(t testing.TB, nics ...string) host {
	h := host{nstest.New(t), netdev.Hook{Dir: filepath.Join(t.TempDir(), "journal"), LockWait: time.Minute}, t}
	peers := nstest.New(t)
	h.Run(t, "ip", "link", "set", "lo", "up")
	for i, nic := range nics {
		nstest.Veth(t, h.Namespace, nic, peers, fmt.Sprintf("peer%d", i))
		peers.Run(t, "ip", "link", "set", fmt.Sprintf("peer%d", i), "mtu", "8896", "up")
		h.dress(nic, i+1)
	}
	return h
}

// dress gives a NIC something of everything that a move loses.
func (h host) dress(nic string, n int) {
	batch := ""
	for _, line := range []string{
		"ip link set NIC mtu 8896 alias rail-N txqueuelen 777",
		"ip link property add dev NIC altname altN altname other-rather-long-name-N",
		"ip link set NIC up",
		"ip addr add 192.168.N.5/32 dev NIC",
		"ip addr add 10.N.1.1/24 brd 10.N.1.255 dev NIC label NIC:1 metric 77",
		"ip addr add 10.N.2.1 peer 10.N.2.2/32 dev NIC scope link",
		"ip addr add 10.N.3.1/24 dev NIC valid_lft 10000 preferred_lft 5000",
		"ip addr add fd00:N::5/64 dev NIC nodad",
		"ip addr add fd00:N:1::5/128 dev NIC nodad noprefixroute",
		"ip route add 10.9N.0.0/16 via 10.N.1.2 metric 50 mtu 4000 advmss 1000 src 10.N.1.1",
		"ip route add 172.16.0.0/12 via 192.168.99.1 dev NIC onlink table 10N proto static",
		"ip route add 172.31.N.0/24 dev NIC scope link table 10N",
		"ip route add 10.8N.0.0/16 table 2000 nexthop via 10.N.1.2 dev NIC weight 2 nexthop via 10.N.1.3 dev NIC",
		"ip route add fd01:N::/64 via fd00:N::1 dev NIC metric 30 table 10N",
		"ip rule add from 192.168.N.5 lookup 10N priority 100N",
		"ip rule add iif NIC lookup 10N priority 200N",
		"ip -6 rule add from fd00:N::5 lookup 10N priority 100N",
		"ip neigh add 10.N.1.9 lladdr 02:00:00:00:00:09 dev NIC",
		"ip neigh add fd00:N::9 lladdr 02:00:00:00:00:09 dev NIC",
		"sysctl -qw net.ipv4.conf.NIC.arp_ignore=2 net.ipv4.conf.NIC.rp_filter=2 net.ipv6.conf.NIC.accept_ra=0 net.ipv4.neigh.NIC.gc_stale_time=77",
	} {
		line = strings.NewReplacer("NIC", nic, "N", fmt.Sprint(n)).Replace(line)
		if ip, ok := strings.CutPrefix(line, "ip "); ok && ip[0] != '-' {
			batch += ip + "\n"
			continue
		}
		fields := strings.Fields(line)
		h.runBatch(batch)
		batch = ""
		h.Run(h.t, fields[0], fields[1:]...)
	}
	h.settle()
}

// settle waits until the kernel has found all addresses to be unique.
func (h host) settle() {
	h.t.Helper()
	nstest.Eventually(h.t, 10*time.Second, func() error {
		if got := h.Run(h.t, "ip", "addr", "show", "up"); strings.Contains(got, "tentative") {
			return fmt.Errorf("addresses are tentative:\n%s", got)
		}
		return nil
	})
}

func (h host) runBatch(lines string) {
	file := filepath.Join(h.t.TempDir(), "batch")
	h.must(os.WriteFile(file, []byte(lines), 0o600))
	h.Run(h.t, "ip", "-batch", file)
}

func (h host) attach(container string, pid int, nics ...string) (err error) {
	var netdevs []hookapi.Netdev
	for _, n := range nics {
		netdevs = append(netdevs, hookapi.Netdev{Name: n})
	}
	h.Do(h.t, func() { err = h.hook.Attach(container, pid, netdevs) })
	return err
}

func (h host) release(container string) (err error) {
	h.Do(h.t, func() { err = h.hook.Release(container) })
	return err
}

func (h host) reconcile() (err error) {
	h.Do(h.t, func() { _, err = h.hook.Reconcile(0) })
	return err
}

func (h host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// wantRefusal checks that an error is one line with a text.
func wantRefusal(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("got %v, want one line with %q", err, text)
	}
}

// wantHome checks that the NICs are as before, and that nothing is left.
func (h host) wantHome(before string, nics ...string) {
	h.t.Helper()
	if diff := cmp.Diff(before, h.Snapshot(h.t, nics...)); diff != "" {
		h.t.Fatalf("not as before (-before +after):\n%s", diff)
	}
	h.wantNothingLeft()
}

func (h host) wantNothingLeft() {
	h.t.Helper()
	entries, problems, err := h.hook.Status()
	if err != nil || len(entries) > 0 || len(problems) > 0 {
		h.t.Fatalf("the journal has %v, %v, %v; want nothing", entries, problems, err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.hook.Dir, "pins", "*")); len(left) > 0 {
		h.t.Fatalf("pins are left: %v", left)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), h.hook.Dir) {
		h.t.Fatalf("mounts are left:\n%s", mounts)
	}
}

func TestAttachAndRelease(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0", "gpu1rdma0")
	before := h.Snapshot(t, "gpu0rdma0", "gpu1rdma0")
	container := nstest.Process(t)

	h.must(h.attach("c1", container.PID, "gpu0rdma0", "gpu1rdma0"))
	inside := container.Run(t, "ip", "-d", "addr", "show", "dev", "gpu0rdma0")
	for _, want := range []string{
		"mtu 8896", "UP", "alias rail-1", "altname alt1", "inet 192.168.1.5/32 scope global",
		"inet 10.1.1.1/24 metric 77 brd 10.1.1.255 scope global gpu0rdma0:1", "inet 10.1.2.1 peer 10.1.2.2/32 scope link",
		"inet6 fd00:1::5/64 scope global nodad", "inet6 fd00:1:1::5/128 scope global nodad noprefixroute",
	} {
		if !strings.Contains(inside, want) {
			t.Errorf("inside there is no %q:\n%s", want, inside)
		}
	}
	if strings.Contains(inside, "sec") {
		t.Errorf("an address inside is not permanent:\n%s", inside)
	}
	routes := container.Run(t, "ip", "route", "show", "table", "all") + container.Run(t, "ip", "-6", "route", "show", "table", "all") + container.Run(t, "ip", "rule")
	for _, want := range []string{
		"10.91.0.0/16 via 10.1.1.2 dev gpu0rdma0 src 10.1.1.1 metric 50 mtu 4000 advmss 1000",
		"172.16.0.0/12 via 192.168.99.1 dev gpu0rdma0 table 101 proto static onlink",
		"172.31.1.0/24 dev gpu0rdma0 table 101 scope link",
		"fd01:1::/64 via fd00:1::1 dev gpu0rdma0 table 101 metric 30",
		"from 192.168.1.5 lookup 101", "from all iif gpu0rdma0 lookup 101",
		"nexthop via 10.1.1.2 dev gpu0rdma0 weight 2",
	} {
		if !strings.Contains(routes, want) {
			t.Errorf("inside there is no %q:\n%s", want, routes)
		}
	}
	if got := container.Run(t, "sysctl", "-n", "net.ipv4.conf.gpu0rdma0.arp_ignore"); got != "2\n" {
		t.Errorf("arp_ignore is %q inside, want 2", got)
	}
	if got := container.Run(t, "ip", "neigh", "show", "nud", "permanent"); !strings.Contains(got, "10.1.1.9 dev gpu0rdma0 lladdr 02:00:00:00:00:09 PERMANENT") {
		t.Errorf("no neighbour inside: %s", got)
	}
	if _, err := h.TrySnapshot("gpu0rdma0"); err == nil {
		t.Error("the NIC is still on the host")
	}
	h.must(h.release("c1"))
	h.wantHome(before, "gpu0rdma0", "gpu1rdma0")
}

// Both interface indices are taken in the container, as with an engine's bridge.
func TestIndicesTakenInside(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0", "gpu1rdma0")
	before := h.Snapshot(t, "gpu0rdma0", "gpu1rdma0")
	c := nstest.Process(t)
	c.Run(t, "ip", "link", "add", "eth0", "type", "bridge")
	c.Run(t, "ip", "link", "add", "eth1", "type", "bridge")
	h.must(h.attach("c1", c.PID, "gpu0rdma0", "gpu1rdma0"))
	c.Run(t, "ip", "link", "show", "dev", "gpu1rdma0")
	h.must(h.release("c1"))
	h.wantHome(before, "gpu0rdma0", "gpu1rdma0")
}

// The engines' orders of events, each seen in real ones (docs/how-it-works.md).
func TestEnginesOrders(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, h host, c *nstest.Child){
		"poststop while the process lives": func(t *testing.T, h host, c *nstest.Child) { h.must(h.release("c1")) },
		"poststop after the namespace's last process": func(t *testing.T, h host, c *nstest.Child) {
			c.Kill(t)
			h.must(h.release("c1"))
		},
		"poststop twice": func(t *testing.T, h host, c *nstest.Child) {
			h.must(h.release("c1"))
			h.must(h.release("c1"))
		},
		"poststop never, container killed": func(t *testing.T, h host, c *nstest.Child) {
			c.Kill(t)
			h.must(h.reconcile())
		},
		"poststop of another container first": func(t *testing.T, h host, c *nstest.Child) {
			h.must(h.release("c0"))
			h.must(h.release("c1"))
		},
		"hook injected twice": func(t *testing.T, h host, c *nstest.Child) {
			h.must(h.attach("c1", c.PID, "gpu0rdma0"))
			h.must(h.release("c1"))
		},
		"namespace pinned by the engine, process gone": func(t *testing.T, h host, c *nstest.Child) {
			f := c.Open(t)
			c.Kill(t)
			h.must(h.release("c1"))
			f.Close()
		},
		"new owner before the old one's poststop": func(t *testing.T, h host, c *nstest.Child) {
			next := nstest.Process(t)
			c.Kill(t)
			h.must(h.attach("c2", next.PID, "gpu0rdma0"))
			h.must(h.release("c1"))
			next.Run(t, "ip", "link", "show", "dev", "gpu0rdma0")
			h.must(h.release("c2"))
		},
		"same id restarted in a new namespace without poststop": func(t *testing.T, h host, c *nstest.Child) {
			next := nstest.Process(t)
			c.Kill(t)
			h.must(h.attach("c1", next.PID, "gpu0rdma0"))
			next.Run(t, "ip", "link", "show", "dev", "gpu0rdma0")
			h.must(h.release("c1"))
		},
		"second container of the pod, first exits": func(t *testing.T, h host, c *nstest.Child) {
			second := c.Process(t)
			h.must(h.attach("c2", second.PID, "gpu0rdma0"))
			h.must(h.release("c1"))
			second.Run(t, "ip", "link", "show", "dev", "gpu0rdma0")
			h.must(h.release("c2"))
		},
		"restart in the living namespace of a pod": func(t *testing.T, h host, c *nstest.Child) {
			again := c.Process(t)
			h.must(h.release("c1"))
			h.must(h.attach("c1b", again.PID, "gpu0rdma0"))
			h.must(h.release("c1b"))
		},
		"reconcile while the container lives": func(t *testing.T, h host, c *nstest.Child) {
			h.must(h.reconcile())
			c.Run(t, "ip", "link", "show", "dev", "gpu0rdma0")
			h.must(h.release("c1"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "gpu0rdma0")
			before := h.Snapshot(t, "gpu0rdma0")
			c := nstest.Process(t)
			h.must(h.attach("c1", c.PID, "gpu0rdma0"))
			end(t, h, c)
			h.wantHome(before, "gpu0rdma0")
		})
	}
}

// What a workload with CAP_NET_ADMIN can do to its NIC.
func TestWorkloadChangesTheNIC(t *testing.T) {
	t.Parallel()
	for name, commands := range map[string]string{
		"renamed":                  "ip link set gpu0rdma0 down; ip link set gpu0rdma0 name eth7",
		"renamed like an option":   "ip link set gpu0rdma0 down; ip link set gpu0rdma0 name --root=x",
		"renamed like a command":   "ip link set gpu0rdma0 down; ip link set gpu0rdma0 name a$(id)",
		"MTU and MAC":              "ip link set gpu0rdma0 mtu 1400; ip link set gpu0rdma0 address 02:11:22:33:44:55",
		"flags and queue":          "ip link set gpu0rdma0 promisc on allmulticast on arp off txqueuelen 5 alias mine group 7",
		"addresses and routes":     "ip addr flush dev gpu0rdma0; ip addr add 1.2.3.4/8 dev gpu0rdma0; ip route add 9.0.0.0/8 dev gpu0rdma0",
		"down":                     "ip link set gpu0rdma0 down",
		"enslaved to a bridge":     "ip link add br0 type bridge; ip link set gpu0rdma0 master br0",
		"alternative names":        "ip link property del dev gpu0rdma0 altname alt1; ip link property add dev gpu0rdma0 altname lo2",
		"names of the host":        "ip link property add dev gpu0rdma0 altname gpu1rdma0",
		"sysctls and qdisc":        "sysctl -qw net.ipv4.conf.gpu0rdma0.arp_ignore=8; tc qdisc add dev gpu0rdma0 root pfifo limit 7",
		"renamed like one at home": "ip link set gpu0rdma0 down; ip link set gpu0rdma0 name gpu1rdma0",
		"a macvlan on top":         "ip link add mv0 link gpu0rdma0 type macvlan",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "gpu0rdma0", "gpu1rdma0")
			before := h.Snapshot(t, "gpu0rdma0", "gpu1rdma0")
			c := nstest.Process(t)
			h.must(h.attach("c1", c.PID, "gpu0rdma0"))
			for _, line := range strings.Split(commands, "; ") {
				f := strings.Fields(line)
				c.Run(t, f[0], f[1:]...)
			}
			c.Kill(t)
			h.must(h.release("c1"))
			h.wantHome(before, "gpu0rdma0", "gpu1rdma0")
		})
	}
}

func TestMovedOnToANestedNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t, "gpu0rdma0")
	c, nested := nstest.Process(t), nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	c.Run(t, "ip", "link", "set", "gpu0rdma0", "netns", fmt.Sprint(nested.PID), "name", "mine")
	h.must(h.release("c1"))
	h.wantHome(before, "gpu0rdma0")
}

// A link that the workload made in the NIC's place does not come to the host.
func TestReplacedByTheWorkload(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	var links []struct {
		Ifindex int
		Address string
	}
	c.JSON(t, &links, "link", "show", "dev", "gpu0rdma0")
	c.Run(t, "ip", "link", "del", "gpu0rdma0")
	c.Run(t, "ip", "link", "add", "gpu0rdma0", "index", fmt.Sprint(links[0].Ifindex), "address", links[0].Address, "type", "veth", "peer", "name", "evil", "index", "4711")
	h.must(h.release("c1"))
	if _, err := h.TrySnapshot("gpu0rdma0"); err == nil {
		t.Error("the workload's link is on the host")
	}
	h.wantNothingLeft()
}

func TestQueueingDiscipline(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	h.Run(t, "tc", "qdisc", "add", "dev", "gpu0rdma0", "root", "handle", "5:", "pfifo", "limit", "77")
	before := h.Snapshot(t, "gpu0rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	h.must(h.release("c1"))
	h.wantHome(before, "gpu0rdma0")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ setup, nic, want string }{
		"unknown":           {"", "nosuch", `nosuch: is not in this network namespace`},
		"loopback":          {"", "lo", "is a loopback interface"},
		"default route":     {"ip route add default via 10.1.1.2", "gpu0rdma0", "carries this host's default route"},
		"IPv6 default":      {"ip -6 route add default via fd00:1::1 dev gpu0rdma0", "gpu0rdma0", "carries this host's default route"},
		"port of a bridge":  {"ip link add br0 type bridge; ip link set gpu0rdma0 master br0", "gpu0rdma0", `is a port of "br0" (bridge)`},
		"bridge":            {"ip link add br0 type bridge", "br0", "is a bridge"},
		"macvlan on top":    {"ip link add mv0 link gpu0rdma0 type macvlan", "gpu0rdma0", `has "mv0" (macvlan) on top of it`},
		"beneath a default": {"ip link add mv0 link gpu0rdma0 type macvlan; ip link set mv0 up; ip addr add 7.0.0.2/8 dev mv0; ip route add default via 7.0.0.1", "gpu0rdma0", "carries this host's default route (beneath mv0)"},
		"nexthop object":    {"ip nexthop add id 7 via 10.1.1.2 dev gpu0rdma0; ip route add 3.0.0.0/8 nhid 7", "gpu0rdma0", "uses nexthop object 7"},
		"shared multipath":  {"ip route add 3.0.0.0/8 nexthop via 10.1.1.2 dev gpu0rdma0 nexthop via 10.2.1.2 dev gpu1rdma0", "gpu0rdma0", "also goes through another interface"},
		"tc filters":        {"tc qdisc add dev gpu0rdma0 clsact", "gpu0rdma0", "it has tc filters"},
		"classful qdisc":    {"tc qdisc add dev gpu0rdma0 root handle 1: htb", "gpu0rdma0", "queueing discipline with classes (htb)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "gpu0rdma0", "gpu1rdma0")
			for _, line := range strings.Split(test.setup, "; ") {
				if f := strings.Fields(line); len(f) > 0 {
					h.Run(t, f[0], f[1:]...)
				}
			}
			h.settle()
			before := h.Snapshot(t)
			c := nstest.Process(t)
			// The other NIC of the call must not move, either.
			wantRefusal(t, h.attach("c1", c.PID, "gpu1rdma0", test.nic), test.want)
			if diff := cmp.Diff(before, h.Snapshot(t)); diff != "" {
				t.Fatalf("a refusal changed something:\n%s", diff)
			}
			h.wantNothingLeft()
		})
	}
}

func TestFailedAttachUndoes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ setup, want string }{
		"name taken inside":             {"ip link add gpu1rdma0 type bridge", `the container already has an interface called "gpu1rdma0"`},
		"name is an alternative inside": {"ip link add br0 type bridge; ip link property add dev br0 altname gpu1rdma0", `the container already has an interface called "gpu1rdma0"`},
		"alternative name taken inside": {"ip link add br0 type bridge; ip link property add dev br0 altname alt2", "File exists"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, "gpu0rdma0", "gpu1rdma0")
			before := h.Snapshot(t, "gpu0rdma0", "gpu1rdma0")
			c := nstest.Process(t)
			for _, line := range strings.Split(test.setup, "; ") {
				f := strings.Fields(line)
				c.Run(t, f[0], f[1:]...)
			}
			// An earlier hook of the same container succeeded.
			h.must(h.attach("c1", c.PID, "gpu0rdma0"))
			err := h.attach("c1", c.PID, "gpu1rdma0")
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(test.want)) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			h.wantHome(before, "gpu0rdma0", "gpu1rdma0")
		})
	}
}

func TestHeldByAnotherContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t, "gpu0rdma0")
	first, second := nstest.Process(t), nstest.Process(t)
	h.must(h.attach("c1", first.PID, "gpu0rdma0"))
	wantRefusal(t, h.attach("c2", second.PID, "gpu0rdma0"), `gpu0rdma0: is held by container "c1" (process`)
	first.Run(t, "ip", "link", "show", "dev", "gpu0rdma0")

	var err error
	h.Do(t, func() { err = h.hook.Return("gpu0rdma0", false) })
	wantRefusal(t, err, `"gpu0rdma0" is held by container "c1"`)
	h.Do(t, func() { err = h.hook.Return("gpu0rdma0", true) })
	h.must(err)
	h.wantHome(before, "gpu0rdma0")
	h.Do(t, func() { err = h.hook.Return("gpu0rdma0", true) })
	wantRefusal(t, err, "is not away from home")
}

func TestContainerInTheHostsNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	c := h.Process(t)
	before := h.Snapshot(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	if diff := cmp.Diff(before, h.Snapshot(t)); diff != "" {
		t.Errorf("something changed:\n%s", diff)
	}
	if _, err := os.Stat(h.hook.Dir); err == nil {
		t.Error("a journal was made")
	}
	wantRefusal(t, h.attach("c1", c.PID, "nosuch"), "shares the host's network namespace")
}

func TestIdentityNotTheSpecs(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0", "gpu1rdma0")
	c := nstest.Process(t)
	var links []struct{ Ifindex int }
	h.JSON(t, &links, "link", "show", "dev", "gpu1rdma0")
	other := fmt.Sprintf("ifindex/%d", links[0].Ifindex)
	for _, test := range []struct {
		nd   hookapi.Netdev
		want string
	}{
		{hookapi.Netdev{Name: "gpu0rdma0", ID: other}, `the spec calls ` + other + ` "gpu0rdma0", but here that is "gpu1rdma0" now`},
		{hookapi.Netdev{Name: "gpu0rdma0", ID: "pci/0000:91:00.0"}, "but the spec means pci/0000:91:00.0"},
	} {
		var err error
		h.Do(t, func() { err = h.hook.Attach("c1", c.PID, []hookapi.Netdev{test.nd}) })
		wantRefusal(t, err, test.want)
	}
	h.wantNothingLeft()
}

func TestProcessGone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := nstest.Process(t)
	c.Kill(t)
	wantRefusal(t, h.attach("c1", c.PID, "gpu0rdma0"), "is gone")
}

// A pid of another process namespace says nothing here: hands off.
func TestContainerOfAnotherProcessNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t, "gpu0rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	entries, err := filepath.Glob(filepath.Join(h.hook.Dir, "*.json"))
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	data, err := os.ReadFile(entries[0])
	h.must(err)
	changed := regexp.MustCompile(`"pidNamespace": \d+`).ReplaceAll(data, []byte(`"pidNamespace": 1`))
	changed = regexp.MustCompile(`"pid": \d+`).ReplaceAll(changed, []byte(`"pid": 999999`))
	h.must(os.WriteFile(entries[0], changed, 0o600))
	h.must(h.reconcile())
	c.Run(t, "ip", "link", "show", "dev", "gpu0rdma0")
	h.must(h.release("c1"))
	h.wantHome(before, "gpu0rdma0")
}

func TestSpoiltJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t, "gpu0rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	for name, content := range map[string]string{
		"cut.json": `{"version":1,`, "foreign.json": `{"hello":1}`, "later.json": `{"version":99}`,
		"other.json": `{"version":1,"identity":"pci/0000:01:00.0","home":{"inode":1},"owner":{"inode":2}}`,
	} {
		h.must(os.WriteFile(filepath.Join(h.hook.Dir, name), []byte(content), 0o600))
	}
	h.must(os.Symlink("/etc/passwd", filepath.Join(h.hook.Dir, "link.json")))
	h.must(h.release("c1"))
	if diff := cmp.Diff(before, h.Snapshot(t, "gpu0rdma0")); diff != "" {
		t.Fatal(diff)
	}
	aside, _ := filepath.Glob(filepath.Join(h.hook.Dir, "*.aside"))
	if len(aside) != 5 {
		t.Errorf("set aside are %v, want 5 files", aside)
	}
	_, problems, err := h.hook.Status()
	if err != nil || len(problems) != 5 {
		t.Errorf("status reports %v, %v; want 5 problems", problems, err)
	}
}

// The file of a NIC that is away is lost: its pin tells where it is.
func TestStrayPin(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	entries, _ := filepath.Glob(filepath.Join(h.hook.Dir, "*.json"))
	h.must(os.WriteFile(entries[0], []byte("junk"), 0o600))
	h.must(h.release("c1"))
	_, problems, err := h.hook.Status()
	if err != nil || len(problems) != 2 || !strings.Contains(problems[1], "keeps a network namespace that the journal does not know") {
		t.Errorf("status reports %q, %v", problems, err)
	}
	pins, _ := filepath.Glob(filepath.Join(h.hook.Dir, "pins", "*"))
	h.must(unix.Unmount(pins[0], unix.MNT_DETACH))
}

func TestJournalOfOthers(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t)
	h.must(os.Mkdir(h.hook.Dir, 0o700))
	h.must(os.Chmod(h.hook.Dir, 0o777))
	c := nstest.Process(t)
	wantRefusal(t, h.attach("c1", c.PID, "gpu0rdma0"), "has mode 0777 and can be written by others")
	if diff := cmp.Diff(before, h.Snapshot(t)); diff != "" {
		t.Fatal(diff)
	}
}

// Nothing that somebody else set while the NIC was away is taken from them.
func TestBesideOthers(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0", "gpu1rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	h.Run(t, "ip", "addr", "add", "192.168.1.5/32", "dev", "gpu1rdma0")
	h.Run(t, "ip", "route", "add", "172.31.1.0/24", "dev", "gpu1rdma0", "scope", "link", "table", "101")
	h.must(h.release("c1"))
	if got := h.Run(t, "ip", "addr", "show", "dev", "gpu0rdma0"); strings.Contains(got, "192.168.1.5") {
		t.Errorf("took an address that another interface has by now:\n%s", got)
	}
	if got := h.Run(t, "ip", "route", "show", "table", "101"); !strings.Contains(got, "172.31.1.0/24 dev gpu1rdma0") {
		t.Errorf("took a route that another interface has by now:\n%s", got)
	}
	h.wantNothingLeft()
}

func TestNameTakenAtHome(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t, "gpu0rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	h.Run(t, "ip", "link", "add", "gpu0rdma0", "type", "bridge")
	err := h.release("c1")
	if err == nil || !strings.Contains(err.Error(), "since its name is taken by another interface") {
		t.Fatalf("got %v", err)
	}
	h.Run(t, "ip", "link", "del", "gpu0rdma0")
	h.must(h.reconcile())
	h.wantHome(before, "gpu0rdma0")
}
