package netdev_test

import (
	"strings"
	"testing"

	"podrail/internal/nstest"
)

// TestPrefixRouteOfAManager: NetworkManager's addresses are "noprefixroute", and
// it adds the route itself, as the kernel's (proto kernel).
func TestPrefixRouteOfAManager(t *testing.T) {
	t.Parallel()
	h := newHost(t, "nic0")
	h.runBatch(`addr add 10.50.0.7/24 dev nic0 noprefixroute
route add 10.50.0.0/24 dev nic0 proto kernel scope link src 10.50.0.7 metric 100
route add 10.60.0.0/16 via 10.50.0.1 dev nic0 proto dhcp src 10.50.0.7 metric 100
`)
	before := h.Snapshot(t, "nic0")
	c := nstest.Process(t)
	h.must(h.attach("c1", c.PID, "nic0"))
	routes := c.Run(t, "ip", "route")
	for _, want := range []string{"10.50.0.0/24 dev nic0", "10.60.0.0/16 via 10.50.0.1 dev nic0"} {
		if !strings.Contains(routes, want) {
			t.Errorf("%q is missing in the container:\n%s", want, routes)
		}
	}
	h.must(h.release("c1"))
	h.wantHome(before, "nic0")
}
