package link

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"podrail/internal/nstest"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

func TestMain(m *testing.M) { nstest.Main(m) }

// connect opens the namespace from within and from outside; both must say the same.
func connect(t *testing.T, ns *nstest.Namespace) (inside, outside *Conn) {
	t.Helper()
	var err error
	ns.Do(t, func() { inside, err = Open() })
	if err != nil {
		t.Fatal(err)
	}
	if outside, err = OpenAt(ns.Open(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inside.Close(); outside.Close() })
	return inside, outside
}

func state(t *testing.T, ns *nstest.Namespace) (map[string]Link, State) {
	t.Helper()
	inside, outside := connect(t, ns)
	got, err := inside.State()
	if err != nil {
		t.Fatal(err)
	}
	again, err := outside.State()
	if err != nil {
		t.Fatal(err)
	}
	prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(got, again, prefixes); diff != "" {
		t.Errorf("(-Open +OpenAt):\n%s", diff)
	}
	links := map[string]Link{}
	for _, l := range got.Links {
		links[l.Name] = l
	}
	return links, got
}

func TestLinks(t *testing.T) {
	t.Parallel()
	ns, other := nstest.New(t), nstest.New(t)
	nstest.Veth(t, ns, "gpu0rdma0", other, "peer0")
	ns.Run(t, "ip", "link", "set", "gpu0rdma0", "address", "06:c4:a0:25:7e:01", "mtu", "8896", "alias", "rail 0", "up")
	ns.Run(t, "ip", "link", "property", "add", "dev", "gpu0rdma0", "altname", "rail0", "altname", "enp145s0np0")
	ns.Run(t, "ip", "link", "add", "mv0", "link", "gpu0rdma0", "type", "macvlan")
	ns.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	ns.Run(t, "ip", "link", "add", "a0", "type", "veth", "peer", "name", "b0")
	ns.Run(t, "ip", "link", "set", "a0", "master", "br0")
	links, _ := state(t, ns)

	got := links["gpu0rdma0"]
	want := Link{
		Index: got.Index, Name: "gpu0rdma0", AltNames: []string{"rail0", "enp145s0np0"}, Alias: "rail 0",
		MAC: "06:c4:a0:25:7e:01", MTU: 8896, Type: 1, Kind: "veth", Peer: got.Peer,
		Flags: got.Flags, OperState: got.OperState, // the kernel changes them a little later
	}
	slices.Sort(got.AltNames)
	slices.Sort(want.AltNames)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.Flags&FlagUp == 0 || links["br0"].Flags&FlagUp != 0 || links["lo"].Flags&FlagLoopback == 0 {
		t.Errorf("flags are %x, %x, %x", got.Flags, links["br0"].Flags, links["lo"].Flags)
	}
	if links["br0"].OperState != "down" || links["lo"].OperState != "down" {
		t.Errorf("states are %s, %s", links["br0"].OperState, links["lo"].OperState)
	}
	if mv := links["mv0"]; mv.Kind != "macvlan" || mv.Lower != got.Index || !mv.Virtual() {
		t.Errorf("macvlan is %+v", mv)
	}
	if got.Peer == 0 {
		t.Error("a veth has no peer")
	}
	if a := links["a0"]; a.Master != links["br0"].Index || a.PortKind != "bridge" || a.Lower != links["b0"].Index {
		t.Errorf("port of a bridge is %+v", a)
	}
	if id := got.Identity(); !strings.HasPrefix(id, "ifindex/") {
		t.Errorf("a veth's identity is %s", id)
	}
}

func TestAddrsAndRoutes(t *testing.T) {
	t.Parallel()
	ns, other := nstest.New(t), nstest.New(t)
	for _, name := range []string{"nic0", "nic1"} {
		nstest.Veth(t, ns, name, other, name)
		other.Run(t, "ip", "link", "set", name, "up")
		ns.Run(t, "ip", "link", "set", name, "addrgenmode", "none", "up")
	}
	for _, args := range []string{
		"addr add 192.168.1.4/32 dev nic0", "addr add 10.0.0.1 peer 10.0.0.2/32 dev nic0",
		"addr add 172.16.0.2/24 dev nic1", "addr add fd00::1/64 dev nic1 nodad",
		"route add default metric 50 nexthop via 172.16.0.1 dev nic1 nexthop dev nic0",
		"route add default via 172.16.0.1 metric 200",
		"route add 10.9.0.0/16 dev nic0 table 1000",
		"route add unreachable 10.8.0.0/16",
		"-6 route add default via fd00::2 metric 30",
		"-6 route add fd01::/64 nexthop via fd00::2 dev nic1 nexthop via fd00::3 dev nic1",
	} {
		ns.Run(t, "ip", strings.Fields(args)...)
	}
	links, got := state(t, ns)
	nic0, nic1 := links["nic0"].Index, links["nic1"].Index

	var addrs []string
	for _, a := range got.Addrs {
		addrs = append(addrs, a.Prefix.String())
	}
	if diff := cmp.Diff(strings.Fields("192.168.1.4/32 10.0.0.1/32 172.16.0.2/24 fd00::1/64"), addrs); diff != "" {
		t.Errorf("addresses: %s", diff)
	}
	for _, want := range []Route{
		{Family: 2, Table: 254, Type: 1, Metric: 50, Out: []int{nic0, nic1}},
		{Family: 2, Table: 254, Type: 1, Metric: 200, Out: []int{nic1}},
		{Family: 2, Table: 1000, Type: 1, Destination: netip.MustParsePrefix("10.9.0.0/16"), Out: []int{nic0}},
		{Family: 2, Table: 254, Type: 7, Destination: netip.MustParsePrefix("10.8.0.0/16")},
		{Family: 10, Table: 254, Type: 1, Metric: 30, Out: []int{nic1}},
		{Family: 10, Table: 254, Type: 1, Metric: 1024, Destination: netip.MustParsePrefix("fd01::/64"), Out: []int{nic1}},
		{Family: 2, Table: 255, Type: 2, Destination: netip.MustParsePrefix("192.168.1.4/32"), Out: []int{nic0}},
	} {
		if !slices.ContainsFunc(got.Routes, func(r Route) bool {
			return cmp.Equal(want, r, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		}) {
			t.Errorf("no route %+v among %+v", want, got.Routes)
		}
	}
	uplinks := Uplinks(got.Links, got.Routes)
	if uplinks[nic0] != "default route" || uplinks[nic1] != "default route" || len(uplinks) != 2 {
		t.Errorf("uplinks are %v", uplinks)
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	ns, other := nstest.New(t), nstest.New(t)
	nstest.Veth(t, ns, "nic0", other, "nic0")
	_, c := connect(t, ns)

	msg, err := c.Get(unix.RTM_GETLINK, nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("nic0")))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ParseLink(msg)
	if err != nil || l.Name != "nic0" {
		t.Fatalf("Get: %+v, %v", l, err)
	}
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(l.Index)
	// An attribute in wire format, of a length that needs padding.
	raw := Raw(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte("rail0")).Serialize()[:4+5])
	if err := c.Do(unix.RTM_NEWLINK, 0, header, raw, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(4000))); err != nil {
		t.Fatal(err)
	}
	if got := ns.Run(t, "ip", "-d", "link", "show", "nic0"); !strings.Contains(got, "mtu 4000") || !strings.Contains(got, "alias rail0") {
		t.Errorf("after the request: %s", got)
	}

	err = c.Do(unix.RTM_NEWLINK, 0, header, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(1)))
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "mtu") {
		t.Errorf("a bad MTU: %v; want EINVAL with the kernel's words", err)
	}
	// An unanswered acknowledgement of one request must not be the next one's.
	if _, err := c.Get(unix.RTM_GETLINK, nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("none"))); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a link that is not there: %v", err)
	}
	if msgs, err := c.Dump(unix.RTM_GETRULE, unix.AF_INET); err != nil || len(msgs) != 3 {
		t.Errorf("dumping rules: %d, %v; want the default three", len(msgs), err)
	}
	if links, err := c.Links(); err != nil || len(links) != 2 {
		t.Errorf("links afterwards: %v, %v", links, err)
	}
}

func TestOpenAtErrors(t *testing.T) {
	t.Parallel()
	f, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if c, err := OpenAt(f); !errors.Is(err, unix.EINVAL) || c != nil {
		t.Errorf("a mount namespace as network namespace: %v, %v", c, err)
	}
}

// TestOwnSysfs: a connection to another namespace reads that one's sysfs, and
// leaves no mount behind.
func TestOwnSysfs(t *testing.T) {
	t.Parallel()
	ns, other := nstest.New(t), nstest.New(t)
	nstest.Veth(t, ns, "onlyhere", other, "onlythere")
	before, _ := os.ReadFile("/proc/self/mountinfo")
	_, c := connect(t, ns)
	if got := c.sysfs.readlink("class/net/onlyhere"); !strings.HasSuffix(got, "/net/onlyhere") {
		t.Errorf("the link is %q in its namespace's sysfs", got)
	}
	if got := c.sysfs.readlink("class/net/onlythere"); got != "" {
		t.Errorf("the other namespace's link is %q", got)
	}
	after, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Count(string(before), " sysfs ") != strings.Count(string(after), " sysfs ") {
		t.Errorf("mounts before:\n%s\nafter:\n%s", before, after)
	}
}

// TestDevice: what sysfs adds to a link of a kernel without IFLA_PARENT_DEV_NAME.
func TestDevice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range []string{
		"mkdir -p bus/pci class/net devices/pci0000:00/0000:00:03.0/net/nic0 devices/pci0000:00/0000:00:03.0/net/nic1",
		"ln -s ../../devices/pci0000:00/0000:00:03.0/net/nic0 ../../devices/pci0000:00/0000:00:03.0/net/nic1 class/net/",
		"ln -s ../../../bus/pci devices/pci0000:00/0000:00:03.0/subsystem",
		"ln -s ../../../0000:00:03.0 devices/pci0000:00/0000:00:03.0/net/nic0/device",
		"ln -s ../../../0000:00:03.0 devices/pci0000:00/0000:00:03.0/net/nic1/device",
		"echo 0 > devices/pci0000:00/0000:00:03.0/net/nic0/dev_port",
		"echo 1 > devices/pci0000:00/0000:00:03.0/net/nic1/dev_port",
	} {
		nstest.Own(t).Run(t, "sh", "-c", "cd "+dir+" && "+args)
	}
	s := sysfs{dir: unix.AT_FDCWD, prefix: dir + "/"}
	for _, tt := range []struct {
		link Link
		want string
	}{
		{Link{Index: 2, Name: "nic0"}, "pci/0000:00:03.0"},
		{Link{Index: 3, Name: "nic1"}, "pci/0000:00:03.0/1"},
		{Link{Index: 3, Name: "nic1", ParentBus: "pci", ParentDev: "0000:00:03.0"}, "pci/0000:00:03.0/1"},
		{Link{Index: 4, Name: "nic1", Kind: "veth"}, "ifindex/4"},
		{Link{Index: 5, Name: "gone"}, "ifindex/5"},
		{Link{Index: 6, Name: "../net/nic1"}, "ifindex/6"},
	} {
		s.addDevice(&tt.link)
		if got := tt.link.Identity(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.link.Name, got, tt.want)
		}
	}
}

// TestTruncated: no message is so short that parsing it panics.
func TestTruncated(t *testing.T) {
	t.Parallel()
	for n := range 40 {
		msg := make([]byte, n)
		ParseLink(msg)
		parseAddr(msg)
		ParseRoute(msg)
		nextHops(msg)
	}
	if _, err := ParseLink(make([]byte, 15)); err == nil {
		t.Error("15 bytes are a link")
	}
}
