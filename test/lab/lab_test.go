// Package lab shows with real kernels, drivers, systemd and udev what namespaces
// and virtual NICs cannot: NICs that the kernel returns to the host, RDMA devices
// that move. Its tests run in the guest that the script vm boots; `make lab`
// starts it. Elsewhere they do nothing.
package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/nstest"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

// share is where vm shows the directory that `make lab` filled.
const share = "/share"

// settle bounds the wait for what the guest does by itself. It is emulated: what
// takes a millisecond on a machine takes ten or more there.
const settle = 30 * time.Second

// host is the guest's initial network namespace.
var host = &nstest.Namespace{Path: "/proc/1/ns/net"}

func TestMain(m *testing.M) {
	if os.Getenv("PODRAIL_LAB") == "" {
		fmt.Println("these tests run in a virtual machine: make lab")
		os.Exit(0)
	}
	if err := install(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// install puts the programs and units where a package would, as the guest's
// systemd and udev have been started without them.
func install() error {
	for _, line := range []string{
		"install -m 755 /share/netdev-hook /share/cdi-gen /share/cdi-claim /usr/bin/",
		"install -m 644 -t /usr/lib/systemd/system /share/systemd/*.service /share/systemd/*.timer",
		"install -m 644 -t /usr/lib/udev/rules.d /share/systemd/*.rules",
		// As on machines whose RDMA devices are called mlx5_0.
		"mkdir -p /etc/udev/rules.d && ln -sf /dev/null /etc/udev/rules.d/60-rdma-persistent-naming.rules",
		// Debian loads whatever could use an RDMA device, which then cannot be unloaded.
		"ln -sf /dev/null /etc/systemd/system/rdma-load-modules@.service",
		"systemctl daemon-reload && udevadm control --reload && udevadm settle",
		"modprobe -a veth dummy macvlan 8021q sch_fq_codel",
	} {
		if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", line, err, out)
		}
	}
	return nil
}

// sh runs a shell script on the host and returns its output. If it fails, the test ends.
func sh(t testing.TB, script string, args ...string) string {
	t.Helper()
	out, err := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", script, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// nicAt is the name of the interface of a PCI function, once it has one.
func nicAt(t testing.TB, pci string) string {
	t.Helper()
	var name string
	nstest.Eventually(t, settle, func() error {
		names, _ := filepath.Glob("/sys/bus/pci/devices/" + pci + "/net/*")
		if names == nil {
			names, _ = filepath.Glob("/sys/bus/pci/devices/" + pci + "/virtio*/net/*")
		}
		for _, n := range names {
			if name = filepath.Base(n); !strings.HasPrefix(name, "ib") {
				return nil
			}
		}
		return fmt.Errorf("%s has no interface", pci)
	})
	return name
}

// identity is what cdi-gen writes as a NIC's identity.
func identity(t testing.TB, name string) string {
	t.Helper()
	device, err := filepath.EvalSymlinks("/sys/class/net/" + name + "/device")
	if err != nil {
		t.Fatal(err)
	}
	bus, err := filepath.EvalSymlinks(device + "/subsystem")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(bus) + "/" + filepath.Base(device)
}

// makeVFs gives a PF VFs, and returns their PCI addresses. They go with the test.
func makeVFs(t testing.TB, pf string, n int) []string {
	t.Helper()
	set := func(n int) {
		if err := os.WriteFile("/sys/bus/pci/devices/"+pf+"/sriov_numvfs", fmt.Append(nil, n), 0); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	set(n)
	t.Cleanup(func() { set(0); sh(t, "udevadm settle") })
	var all []string
	for i := range n {
		target, err := os.Readlink(fmt.Sprintf("/sys/bus/pci/devices/%s/virtfn%d", pf, i))
		if err != nil {
			t.Fatal(err)
		}
		nicAt(t, filepath.Base(target))
		all = append(all, filepath.Base(target))
	}
	sh(t, "udevadm settle") // names and alternative names are udev's
	return all
}

// dress gives a NIC something of what a move loses.
func dress(t testing.TB, nic string, n int) {
	t.Helper()
	batch(t, strings.NewReplacer("NIC", nic, "N", fmt.Sprint(n)).Replace(`
		link set NIC mtu 1420 alias rail-N txqueuelen 777
		link property add dev NIC altname railN
		link set NIC up
		addr add 192.168.N.5/32 dev NIC
		addr add 10.N.1.1/24 brd 10.N.1.255 dev NIC label NIC:1 metric 77
		addr add fd00:N::5/64 dev NIC nodad
		route add 10.9N.0.0/16 via 10.N.1.2 metric 50 mtu 1300
		route add 172.31.N.0/24 dev NIC scope link table 10N
		-6 route add fd01:N::/64 via fd00:N::1 dev NIC metric 30
		rule add from 192.168.N.5 lookup 10N priority 100N
		neigh add 10.N.1.9 lladdr 02:00:00:00:09:0N dev NIC nud permanent
	`))
	sh(t, "echo 2 >/proc/sys/net/ipv4/conf/$1/arp_ignore; echo 0 >/proc/sys/net/ipv6/conf/$1/accept_ra", nic)
	t.Cleanup(func() {
		script := "ip rule del priority 100$2; ip link set $1 down; ip addr flush dev $1; ip link set $1 mtu 1500 alias ''; ip link property del dev $1 altname rail$2"
		exec.Command("sh", "-c", script, "sh", nic, fmt.Sprint(n)).Run() // a VF is gone by now
	})
	awaitIPv6(t, host, nic)
}

// batch runs ip's commands in one process: starting one takes long in the guest.
func batch(t testing.TB, commands string) {
	t.Helper()
	var all [2]strings.Builder // ip -batch has one family
	for line := range strings.Lines(commands) {
		v6, ok := strings.CutPrefix(strings.TrimSpace(line), "-6 ")
		i := 0
		if ok {
			i = 1
		}
		fmt.Fprintln(&all[i], v6)
	}
	for i, options := range [][]string{{"-batch", "-"}, {"-6", "-batch", "-"}} {
		cmd := exec.Command("ip", options...)
		cmd.Stdin = strings.NewReader(all[i].String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s\n%s", err, out, all[i].String())
		}
	}
}

// awaitIPv6 waits until a NIC's carrier and addresses are as they will stay.
func awaitIPv6(t testing.TB, n *nstest.Namespace, nic string) {
	t.Helper()
	nstest.Eventually(t, settle, func() error {
		out := n.Run(t, "ip", "-6", "addr", "show", "dev", nic)
		if strings.Contains(out, "tentative") || strings.Contains(out, "NO-CARRIER") || !strings.Contains(out, "fe80") {
			return fmt.Errorf("addresses of %s are not there yet:\n%s", nic, out)
		}
		return nil
	})
}

// describe is all that a user could miss of NICs: what nstest knows of links and
// what the driver keeps.
func describe(nics ...string) (string, error) {
	s, err := host.TrySnapshot(nics...)
	if err != nil {
		return "", err
	}
	for _, nic := range nics {
		for _, what := range []string{"-k", "-g", "-l", "-a", "-c"} {
			out, _ := exec.Command("ethtool", what, nic).CombinedOutput() // not every driver has each
			s += string(out)
		}
	}
	return quantum.ReplaceAllString(s, "quantum of the MTU"), nil
}

// quantum of the default fq_codel is what the MTU was when the NIC was first set
// up; the kernel computes it anew for a NIC that was away.
var quantum = regexp.MustCompile(`quantum \d+`)

func snapshot(t testing.TB, nics ...string) string {
	t.Helper()
	s, err := describe(nics...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// vfSettings is what a PF holds for its VFs: MAC, VLAN, trust, spoof check, rate.
func vfSettings(t testing.TB, pf string) string {
	t.Helper()
	var links []struct {
		VFs json.RawMessage `json:"vfinfo_list"`
	}
	host.JSON(t, &links, "-d", "link", "show", "dev", pf)
	return string(links[0].VFs)
}

// container is a process in a network namespace of its own.
type container struct {
	nstest.Namespace
	id  string
	pid int
	cmd *exec.Cmd
}

var containers int

func newContainer(t testing.TB) *container {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	containers++
	c := &container{
		Namespace: nstest.Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)},
		id:        fmt.Sprintf("lab%d", containers), pid: cmd.Process.Pid, cmd: cmd,
	}
	t.Cleanup(func() {
		c.kill()
		if t.Failed() { // what follows shall not fail for it
			exec.Command("sh", "-c", "netdev-hook reconcile; rm -f /run/netdev-hook/*.json").Run()
		}
	})
	return c
}

// kill is what an OOM killer does to a container: its namespace dies with it.
func (c *container) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// hook calls netdev-hook as a runtime does, and returns what it wrote to stderr.
func (c *container) hook(command string, args ...string) (string, error) {
	state, _ := json.Marshal(map[string]any{"ociVersion": "1.0.2", "id": c.id, "pid": c.pid, "status": "created", "bundle": "/"})
	cmd := exec.Command("/usr/bin/netdev-hook", append([]string{command}, args...)...)
	cmd.Env = []string{} // as runtimes do
	cmd.Stdin = strings.NewReader(string(state))
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// attach moves NICs, each a --netdev argument, into the container.
func (c *container) attach(t testing.TB, netdevs ...string) {
	t.Helper()
	if out, err := c.hook("createRuntime", flags(netdevs)...); err != nil {
		t.Fatalf("createRuntime %q: %v\n%s", netdevs, err, out)
	}
}

func flags(netdevs []string) []string {
	var args []string
	for _, n := range netdevs {
		args = append(args, "--netdev", n)
	}
	return args
}

func (c *container) poststop(t testing.TB) {
	t.Helper()
	if out, err := c.hook("poststop"); err != nil {
		t.Fatalf("poststop: %v\n%s", err, out)
	}
}

// status is the hook's own view.
func status(t testing.TB) []hookapi.Entry {
	t.Helper()
	out, err := exec.Command("/usr/bin/netdev-hook", "status", "-o", "json").Output()
	var r struct{ NICs []hookapi.Entry }
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		t.Fatalf("netdev-hook status: %v\n%s", err, out)
	}
	return r.NICs
}

// journalEmpty says whether no NIC is away; it costs nothing.
func journalEmpty() bool {
	files, _ := filepath.Glob(hookapi.Dir + "/*.json")
	return len(files) == 0
}

// awaitHome waits until nothing is away any more, and fails with what is.
func awaitHome(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(settle)
	for !journalEmpty() {
		if time.Now().After(deadline) {
			out, _ := exec.Command("sh", "-c", "netdev-hook status; ip -br link; systemctl list-units --all 'netdev-hook*'; journalctl -b --no-pager -n 30 -u 'netdev-hook*'").CombinedOutput()
			t.Fatalf("not home after %v:\n%s", settle, out)
		}
		time.Sleep(time.Millisecond)
	}
}

// same compares a NIC with a description from before. Its link-local address and
// the like come a moment after the link is up.
func same(t testing.TB, before string, nics ...string) {
	t.Helper()
	var difference string
	deadline := time.Now().Add(5 * time.Second)
	for {
		after, err := describe(nics...)
		if err != nil {
			t.Fatalf("%v\n%s", err, sh(t, "ip -d link; netdev-hook status"))
		}
		if difference = diff(before, after); difference == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("not as it was (-before +after):\n%s", difference)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func diff(a, b string) string { return cmp.Diff(strings.Split(a, "\n"), strings.Split(b, "\n")) }

func TestGuest(t *testing.T) {
	t.Log(sh(t, "uname -r; systemctl --version | head -1; systemctl is-system-running || :; ip -br link"))
	if runtime.NumCPU() < 2 {
		t.Error("one CPU shows no races")
	}
}
