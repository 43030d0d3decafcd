package hookapi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseNetdev checks that an argument that is taken can be written and read
// again, and that its name can be an interface's.
func FuzzParseNetdev(f *testing.F) {
	for _, s := range []string{
		"gpu0rdma0", "gpu0rdma0,id=pci/0000:91:00.0,rdma=mlx5_0,nodes=uverbs0+umad0", "mlx5_0,rdma=mlx5_0", "eth0,native=true",
		"", ",", "a,,", "a,id=", "a,id", "../..", "a b", "a,id=x,id=y", "a,nodes=+", "a,nodes=uverbs", "a,rdma=..", "a,rdma=a/b", "--root=x", "a$(id)", "\xff",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseNetdev(s)
		if err != nil {
			return
		}
		if !ValidName(n.Name) && !ValidRDMAName(n.Name) {
			t.Fatalf("%q gives the name %q", s, n.Name)
		}
		again, err := ParseNetdev(n.String())
		if err != nil {
			t.Fatalf("%q gives %q, which is refused: %v", s, n, err)
		}
		if diff := cmp.Diff(n, again); diff != "" {
			t.Fatalf("%q gives %q, which says something else:\n%s", s, n, diff)
		}
	})
}

// FuzzParseNetworkConfig checks that a configuration that is taken can be written
// and read again.
func FuzzParseNetworkConfig(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"interface":{"name":"net%d","addresses":["10.0.0.1/24","fd00::1/64"],"mtu":9000,"hardwareAddr":"02:00:00:00:00:01","arpIgnore":8}}`,
		`{"routes":[{"destination":"10.0.0.0/8","gateway":"10.0.0.1","table":7,"scope":253}],"rules":[{"priority":5,"source":"10.0.0.1/32","table":7}]}`,
		`{"neighbors":[{"destination":"10.0.0.2","hardwareAddr":"02:00:00:00:00:02"}],"ethtool":{"features":{"tso":false},"privateFlags":{"x":true}}}`,
		`{"interface":{"vrf":{"name":"v","table":7}}}`, `{"interface":{"dhcp":true}}`, `{"interface":{"name":"../x"}}`, `{"a":1}`, `{} {}`, `null`, `[]`, `{"interface":{"mtu":-1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseNetworkConfig(data)
		if err != nil {
			return
		}
		again, err := ParseNetworkConfig([]byte(c.String()))
		if err != nil {
			t.Fatalf("%s gives %s, which is refused: %v", data, c, err)
		}
		if c.String() != again.String() {
			t.Fatalf("%s gives %s, which gives %s", data, c, again)
		}
	})
}
