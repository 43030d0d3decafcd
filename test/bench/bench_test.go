// Package bench measures netdev-hook beside `ip -batch` doing the same moves, in
// turn, so that both see the same machine.
//
//	go test ./test/bench -run '^$' -bench .
package bench

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
	"podrail/test/rig"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

func TestMain(m *testing.M) { nstest.Main(m) }

// rounds of which the medians are reported.
const rounds = 15

// BenchmarkMoves prints a table: what it takes to bring NICs in and home by
// `ip -batch`, and by netdev-hook, which also saves, checks and journals them.
// iproute2 is told what to move and what to configure; it reads nothing.
func BenchmarkMoves(b *testing.B) {
	fmt.Printf("medians of %d rounds\n%-24s %12s %12s %7s\n", rounds, "", "ip -batch", "netdev-hook", "ratio")
	for _, n := range []int{1, 8} {
		var nics []string
		for i := range n {
			nics = append(nics, fmt.Sprintf("gpu%drdma0", i))
		}
		h := newHost(b, nics)
		before := h.Snapshot(b)
		var ipIn, ipHome, hookIn, hookHome []time.Duration
		for range rounds {
			in, home := h.ip(b)
			ipIn, ipHome = append(ipIn, in), append(ipHome, home)
			in, home = h.hook(b)
			hookIn, hookHome = append(hookIn, in), append(hookHome, home)
		}
		h.WantAsBefore(b, before)
		b.ReportMetric(0, "ns/op")
		for _, line := range []struct {
			what     string
			ip, hook []time.Duration
		}{{"into the container", ipIn, hookIn}, {"home", ipHome, hookHome}} {
			ip, hook := median(line.ip), median(line.hook)
			what := fmt.Sprintf("%d NICs %s", n, line.what)
			if n == 1 {
				what = "1 NIC " + line.what
			}
			fmt.Printf("%-24s %9.1f ms %9.1f ms %7.2f\n", what, ms(ip), ms(hook), float64(hook)/float64(ip))
			b.ReportMetric(float64(hook)/float64(ip), strings.ReplaceAll(what, " ", "-")+"-ratio")
		}
	}
}

// BenchmarkWithoutNICs is what every other container of the host pays: a poststop
// that finds an empty journal.
func BenchmarkWithoutNICs(b *testing.B) {
	h := rig.NewHost(b)
	rig.Program(b)
	for b.Loop() {
		h.Hook(b, rig.State("c1", 0), "poststop").Want(b, 0)
	}
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// host has NICs as RoCE machines have: an IPv4 and an IPv6 address, a big MTU, a
// table with routes and a rule of its own.
type host struct {
	*rig.Host
	nics []string
}

func newHost(b *testing.B, nics []string) host {
	h := host{rig.NewHost(b), nics}
	peers := nstest.New(b)
	for i, nic := range nics {
		peer := fmt.Sprintf("peer%d", i)
		nstest.Veth(b, h.Namespace, nic, peers, peer)
		peers.Run(b, "ip", "link", "set", peer, "mtu", "8896", "up")
		h.Batch(b, append([]string{"link set " + nic + " mtu 8896"}, configuration(i, nic)...)...)
	}
	nstest.Eventually(b, 10*time.Second, func() error {
		if strings.Contains(h.Run(b, "ip", "addr"), "tentative") {
			return fmt.Errorf("addresses are tentative")
		}
		return nil
	})
	return h
}

func configuration(n int, nic string) []string {
	return []string{
		fmt.Sprintf("addr add 192.168.%d.5/24 dev %s", n, nic),
		fmt.Sprintf("addr add fd00:%d::5/64 dev %s nodad", n, nic),
		fmt.Sprintf("link set %s up", nic),
		fmt.Sprintf("route add default via 192.168.%d.1 dev %s table %d", n, nic, 100+n),
		fmt.Sprintf("route add 10.%d.0.0/16 via 192.168.%d.1 dev %s", n, n, nic),
	}
}

// ip moves the NICs as a script would: two calls each way, since a batch runs in
// one namespace.
func (h host) ip(b *testing.B) (in, home time.Duration) {
	c, holder := nstest.Process(b), h.Process(b)
	defer c.Kill(b)
	defer holder.Kill(b)
	var out, inside, back, again []string
	for i, nic := range h.nics {
		out = append(out, fmt.Sprintf("link set %s netns %d", nic, c.PID))
		inside = append(inside, configuration(i, nic)...)
		back = append(back, fmt.Sprintf("link set %s netns %d", nic, holder.PID))
		again = append(again, configuration(i, nic)...)
	}
	in = timed(b, h.Namespace, out) + timed(b, &c.Namespace, inside)
	home = timed(b, &c.Namespace, back) + timed(b, h.Namespace, again)
	return in, home
}

// timed runs a batch in a namespace.
func timed(b *testing.B, n *nstest.Namespace, batch []string) (took time.Duration) {
	file := filepath.Join(b.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(strings.Join(batch, "\n")), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("ip", "-batch", file)
	n.Do(b, func() {
		start := time.Now()
		out, err := cmd.CombinedOutput()
		if took = time.Since(start); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	})
	return took
}

func (h host) hook(b *testing.B) (in, home time.Duration) {
	c := nstest.Process(b)
	defer c.Kill(b)
	start := time.Now()
	h.Hook(b, rig.State("c1", c.PID), rig.Attach(h.nics...)...).Want(b, 0)
	in = time.Since(start)
	start = time.Now()
	h.Hook(b, rig.State("c1", 0), "poststop").Want(b, 0)
	return in, time.Since(start)
}
