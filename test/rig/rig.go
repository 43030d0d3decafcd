// Package rig gives the fault, soak and bench tests what they share: netdev-hook
// as it is shipped, and a host whose NICs have all that a NIC can have.
//
//	h := rig.NewHost(t, "gpu0rdma0", "gpu1rdma0")
//	before := h.Snapshot(t)
//	c := nstest.Process(t)
//	h.Hook(t, rig.State("c1", c.PID), "createRuntime", "--netdev", "gpu0rdma0").Want(t, 0)
//	h.Hook(t, rig.State("c1", 0), "poststop").Want(t, 0)
//	h.WantAsBefore(t, before)
//
// The test's TestMain calls nstest.Main, so /run, where the hook keeps its
// journal, is the test's own.
package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"podrail/internal/hookapi"
	"podrail/internal/nstest"
)

// build builds the program below nstest's private /run, which goes with the tests.
var build = sync.OnceValues(func() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	const dir = "/run/rig" // mounted without noexec: nstest's /run has it
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=0755", "rig", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("mount %s: %w: %s", dir, err, out)
	}
	program := filepath.Join(dir, "netdev-hook")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", "urfave_cli_no_docs", "-ldflags", "-s -w", "-o", program, "./cmd/netdev-hook")
	cmd.Dir = filepath.Join(filepath.Dir(here), "../..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return program, nil
})

// Program is the path of netdev-hook, built as `make` builds it.
func Program(t testing.TB) string {
	t.Helper()
	nstest.Require(t)
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// Host is a network namespace with NICs.
type Host struct {
	*nstest.Namespace
	peers *nstest.Namespace
	nics  int
}

// NewHost makes a host with the named NICs. They are veth ends, dressed, up and
// with carrier.
func NewHost(t testing.TB, nics ...string) *Host {
	t.Helper()
	h := &Host{Namespace: nstest.New(t), peers: nstest.New(t)}
	h.Run(t, "ip", "link", "set", "lo", "up")
	for _, nic := range nics {
		h.Add(t, nic)
	}
	nstest.Eventually(t, 10*time.Second, func() error {
		if strings.Contains(h.Run(t, "ip", "addr"), "tentative") {
			return errors.New("addresses are tentative")
		}
		return nil
	})
	return h
}

// Add adds a NIC. Each gets other addresses, routes and tables.
func (h *Host) Add(t testing.TB, nic string) {
	t.Helper()
	h.nics++
	peer := fmt.Sprintf("peer%d", h.nics)
	nstest.Veth(t, h.Namespace, nic, h.peers, peer)
	h.peers.Run(t, "ip", "link", "set", peer, "mtu", "8896", "up")
	h.Batch(t, Dress(nic, h.nics)...)
	n := fmt.Sprint(h.nics)
	h.Run(t, "ip", "-6", "rule", "add", "from", "fd00:"+n+"::5", "lookup", "10"+n, "priority", "100"+n)
	h.Do(t, func() {
		for name, value := range map[string]string{
			"ipv4/conf/NIC/arp_ignore": "2", "ipv4/conf/NIC/rp_filter": "2",
			"ipv6/conf/NIC/accept_ra": "0", "ipv4/neigh/NIC/gc_stale_time": "77",
		} {
			if err := os.WriteFile("/proc/sys/net/"+strings.ReplaceAll(name, "NIC", nic), []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Dress is what gives a NIC something of everything that a move loses, as lines
// of `ip -batch`, which takes no IPv6 rules.
func Dress(nic string, n int) []string {
	lines := strings.Split(strings.TrimSpace(`
link set NIC mtu 8896 alias rail-N txqueuelen 777
link property add dev NIC altname altN altname other-rather-long-name-N
link set NIC up
addr add 192.168.N.5/32 dev NIC
addr add 10.N.1.1/24 brd 10.N.1.255 dev NIC label NIC:1 metric 77
addr add 10.N.2.1 peer 10.N.2.2/32 dev NIC scope link
addr add 10.N.3.1/24 dev NIC valid_lft 10000 preferred_lft 5000
addr add fd00:N::5/64 dev NIC nodad
addr add fd00:N:1::5/128 dev NIC nodad noprefixroute
route add 10.9N.0.0/16 via 10.N.1.2 metric 50 mtu 4000 advmss 1000 src 10.N.1.1
route add 172.16.0.0/12 via 192.168.99.1 dev NIC onlink table 10N proto static
route add 172.31.N.0/24 dev NIC scope link table 10N
route add 10.8N.0.0/16 table 2000 nexthop via 10.N.1.2 dev NIC weight 2 nexthop via 10.N.1.3 dev NIC
route add fd01:N::/64 via fd00:N::1 dev NIC metric 30 table 10N
rule add from 192.168.N.5 lookup 10N priority 100N
rule add iif NIC lookup 10N priority 200N
neigh add 10.N.1.9 lladdr 02:00:00:00:00:09 dev NIC
neigh add fd00:N::9 lladdr 02:00:00:00:00:09 dev NIC`), "\n")
	for i, line := range lines {
		lines[i] = strings.NewReplacer("NIC", nic, "N", fmt.Sprint(n)).Replace(line)
	}
	return lines
}

// Batch runs lines of ip commands.
func (h *Host) Batch(t testing.TB, lines ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Run(t, "ip", "-batch", file)
}

// State is the OCI state that a runtime writes to a hook.
func State(container string, pid int) string {
	return fmt.Sprintf(`{"ociVersion":"1.0.2","id":%q,"pid":%d,"bundle":"/"}`, container, pid)
}

// Attach are the arguments that move NICs into a container.
func Attach(nics ...string) []string {
	args := []string{"createRuntime"}
	for _, n := range nics {
		args = append(args, "--netdev", n)
	}
	return args
}

// Result is what one call of the hook did.
type Result struct {
	Status         int
	Stdout, Stderr string
}

// Hook runs the hook on the host.
func (h *Host) Hook(t testing.TB, stdin string, args ...string) Result {
	t.Helper()
	cmd := exec.Command(Program(t), args...)
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	var err error
	h.Do(t, func() { err = cmd.Run() })
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return Result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Want ends the test if the hook did not exit with a status.
func (r Result) Want(t testing.TB, status int) {
	t.Helper()
	if r.Status != status {
		t.Fatalf("netdev-hook exited with %d, want %d: %s%s", r.Status, status, r.Stdout, r.Stderr)
	}
}

// Difference is what is not as before: on the host, or left behind in the journal,
// among the pins or the mounts; "" when nothing is.
func (h *Host) Difference(t testing.TB, before string) string {
	t.Helper()
	after, err := h.TrySnapshot()
	if err != nil {
		return err.Error()
	}
	return cmp.Diff(before, after) + strings.Join(Left(t), "\n")
}

// WantAsBefore ends the test if there is a difference.
func (h *Host) WantAsBefore(t testing.TB, before string) {
	t.Helper()
	if diff := h.Difference(t, before); diff != "" {
		t.Fatalf("not as before (-before +after):\n%s", diff)
	}
}

// Left are the journal's entries, files set aside, pins and their mounts.
func Left(t testing.TB) []string {
	t.Helper()
	var left []string
	for _, pattern := range []string{"*.json", "*.aside", "pins/*"} {
		files, err := filepath.Glob(filepath.Join(hookapi.Dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, files...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, hookapi.Dir+"/pins") {
			left = append(left, line)
		}
	}
	return slices.Compact(left)
}
