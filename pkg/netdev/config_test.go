package netdev_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/safchain/ethtool"

	"podrail/internal/hookapi"
	"podrail/internal/nstest"
)

func (h host) attachWith(container string, pid int, nic, config string) (err error) {
	c, err := hookapi.ParseNetworkConfig([]byte(config))
	if err != nil {
		return err
	}
	h.Do(h.t, func() { err = h.hook.Attach(container, pid, []hookapi.Netdev{{Name: nic, Config: c}}) })
	return err
}

func TestNetworkConfig(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t, "gpu0rdma0")
	c := nstest.Process(t)
	c.Run(t, "ip", "link", "add", "net0", "type", "bridge")
	h.must(h.attachWith("c1", c.PID, "gpu0rdma0", `{
		"interface": {"name": "net%d", "addresses": ["10.7.0.5/24", "fd07::5/64"], "mtu": 4000, "hardwareAddr": "02:07:07:07:07:07",
			"gsoMaxSize": 50000, "groMaxSize": 40000, "arpIgnore": 1, "arpAnnounce": 2, "rpFilter": 0, "acceptRA": 0, "forwarding": true},
		"routes": [{"destination": "10.70.0.0/16", "gateway": "10.7.0.1", "source": "10.7.0.5"}, {"destination": "10.71.0.0/16", "scope": 253, "table": 700},
			{"destination": "::/0", "gateway": "fd07::1"}],
		"rules": [{"source": "10.7.0.0/24", "table": 700, "priority": 77}],
		"neighbors": [{"destination": "10.7.0.9", "hardwareAddr": "02:00:00:00:00:07"}]
	}`))
	inside := c.Run(t, "ip", "-d", "addr", "show", "dev", "net1") + c.Run(t, "ip", "route", "show", "table", "all") +
		c.Run(t, "ip", "-6", "route") + c.Run(t, "ip", "rule") + c.Run(t, "ip", "neigh", "show", "nud", "permanent") +
		c.Run(t, "sysctl", "net.ipv4.conf.net1.arp_ignore", "net.ipv4.conf.net1.arp_announce", "net.ipv4.conf.net1.rp_filter",
			"net.ipv6.conf.net1.accept_ra", "net.ipv4.conf.net1.forwarding", "net.ipv6.conf.net1.forwarding")
	for _, want := range []string{
		"mtu 4000", "link/ether 02:07:07:07:07:07", "gso_max_size 50000", "gro_max_size 40000",
		"inet 10.7.0.5/24 brd 10.7.0.255", "inet6 fd07::5/64 scope global nodad",
		"10.70.0.0/16 via 10.7.0.1 dev net1 proto static src 10.7.0.5", "10.71.0.0/16 dev net1 table 700 proto static scope link",
		"default via fd07::1 dev net1 proto static", "77:	from 10.7.0.0/24 lookup 700", "10.7.0.9 dev net1 lladdr 02:00:00:00:00:07 PERMANENT",
		"arp_ignore = 1", "arp_announce = 2", "rp_filter = 0", "accept_ra = 0", "ipv4.conf.net1.forwarding = 1", "ipv6.conf.net1.forwarding = 1",
	} {
		if !strings.Contains(inside, want) {
			t.Errorf("inside there is no %q:\n%s", want, inside)
		}
	}
	for _, unwanted := range []string{"192.168.1.5", "fd00:1::5", "lookup 101"} {
		if strings.Contains(inside, unwanted) {
			t.Errorf("inside there still is %q of the host:\n%s", unwanted, inside)
		}
	}
	h.must(h.release("c1"))
	h.wantHome(before, "gpu0rdma0")
}

func features(t *testing.T, n interface {
	Do(testing.TB, func())
}, nic string) map[string]bool {
	var all map[string]bool
	n.Do(t, func() {
		e, err := ethtool.NewEthtool()
		if err == nil {
			all, err = e.Features(nic)
			e.Close()
		}
		if err != nil {
			t.Error(err)
		}
	})
	return all
}

func TestDriverFeatures(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := fmt.Sprint(features(t, h, "gpu0rdma0"))
	c := nstest.Process(t)
	h.must(h.attachWith("c1", c.PID, "gpu0rdma0", `{"ethtool": {"features": {"tcp-segmentation-offload": false, "rx-gro": true}}}`))
	inside := features(t, c, "gpu0rdma0")
	if inside["tx-tcp-segmentation"] || inside["tx-tcp6-segmentation"] || !inside["rx-gro"] {
		t.Errorf("inside: %v", inside)
	}
	h.must(h.release("c1"))
	if after := fmt.Sprint(features(t, h, "gpu0rdma0")); after != before {
		t.Errorf("was\n%s\nis\n%s", before, after)
	}
	err := h.attachWith("c2", c.PID, "gpu0rdma0", `{"ethtool": {"features": {"no-such-feature": true}}}`)
	if err == nil || !strings.Contains(err.Error(), `unsupported feature "no-such-feature"`) {
		t.Errorf("got %v", err)
	}
	h.wantNothingLeft()
}

func TestNetworkConfigRefusals(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0", "gpu1rdma0")
	before := h.Snapshot(t)
	for name, test := range map[string]struct{ config, want string }{
		"MTU of the link":     {`{"interface":{"mtu":999999}}`, "gpu0rdma0: set its mtu: "},
		"gateway unreachable": {`{"routes":[{"destination":"9.0.0.0/8","gateway":"8.8.8.8"}]}`, "gpu0rdma0: add route to 9.0.0.0/8: "},
		"name taken":          {`{"interface":{"name":"lo"}}`, `the container already has an interface called "lo"`},
	} {
		c := nstest.Process(t)
		err := h.attachWith("c1", c.PID, "gpu0rdma0", test.config)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
		h.wantHome(before)
	}
}

// A pod's own namespace is home, a journal and pins are in the pod's mount
// namespace: this whole test binary is such a pod (nstest). Here the return runs
// in a third mount namespace, which has neither.
func TestReturnFromAnotherMountNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	before := h.Snapshot(t, "gpu0rdma0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "gpu0rdma0"))
	c.Kill(t)
	if err := nstest.InMountNamespace(t, func() error { return h.release("c1") }); err != nil {
		t.Fatal(err)
	}
	h.wantHome(before, "gpu0rdma0")
	if left, _ := filepath.Glob(filepath.Join(h.hook.Dir, "*.json")); len(left) > 0 {
		t.Error(left)
	}
	_ = os.Remove(filepath.Join(h.hook.Dir, "lock"))
}

// A runtime that knows linux.netDevices moves the NIC before the hook runs.
func TestMovedByTheRuntime(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gpu0rdma0")
	var links []struct{ Ifindex int }
	h.JSON(t, &links, "link", "show", "dev", "gpu0rdma0")
	nd := hookapi.Netdev{Name: "gpu0rdma0", ID: fmt.Sprintf("ifindex/%d", links[0].Ifindex), Native: true}
	c := nstest.Process(t)
	attach := func() (err error) {
		h.Do(t, func() { err = h.hook.Attach("c1", c.PID, []hookapi.Netdev{nd}) })
		return err
	}
	h.Run(t, "ip", "link", "set", "gpu0rdma0", "netns", fmt.Sprint(c.PID))
	c.Run(t, "ip", "addr", "add", "192.168.1.5/32", "dev", "gpu0rdma0")
	c.Run(t, "ip", "link", "set", "gpu0rdma0", "up")
	h.must(attach())
	h.must(attach()) // twice
	c.Kill(t)
	h.must(h.release("c1"))
	got := h.Run(t, "ip", "-d", "addr", "show", "dev", "gpu0rdma0")
	for _, want := range []string{"192.168.1.5/32", "mtu 8896", "UP", "altname alt1", "alias rail-1"} {
		if !strings.Contains(got, want) {
			t.Errorf("home without %q:\n%s", want, got)
		}
	}
	h.wantNothingLeft()

	// A runtime that ignored it: the hook moves the NIC.
	c = nstest.Process(t)
	h.must(attach())
	c.Run(t, "ip", "link", "show", "dev", "gpu0rdma0")
	h.must(h.release("c1"))
	h.wantNothingLeft()

	nd.Name, nd.ID = "nosuch", ""
	wantRefusal(t, attach(), "is neither here nor in the container: the runtime should have moved it")
}
