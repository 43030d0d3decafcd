package hookapi_test

import (
	"strings"
	"testing"

	"podrail/internal/golden"
	"podrail/internal/hookapi"
)

func TestParseNetworkConfig(t *testing.T) {
	t.Parallel()
	c, err := hookapi.ParseNetworkConfig([]byte(`{"interface":{"name":"net%d","mtu":9000},"ethtool":{"privateFlags":{"x":true}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.String(), `{"interface":{"name":"net%d","mtu":9000},"ethtool":{"privateFlags":{"x":true}}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The golden file is what users read.
func TestNetworkConfigErrors(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	for _, config := range []string{
		``, `[]`, `{} {}`, `{"profile":"x"}`, `{"interface":{"typo":1}}`,
		`{"interface":{"name":"a/b"}}`, `{"interface":{"name":"much-too-long-a-name"}}`, `{"interface":{"name":"%d%d"}}`, `{"interface":{"name":"--root=x"}}`,
		`{"interface":{"addresses":["10.0.0.1"]}}`, `{"interface":{"mtu":67}}`, `{"interface":{"hardwareAddr":"x"}}`, `{"interface":{"gsoMaxSize":0}}`,
		`{"interface":{"dhcp":true}}`, `{"interface":{"disableEbpfPrograms":true}}`, `{"interface":{"ipvlan":{}}}`,
		`{"interface":{"arpIgnore":4}}`, `{"interface":{"arpAnnounce":3}}`, `{"interface":{"vrf":{}}}`, `{"interface":{"vrf":{"name":"v","table":254}}}`,
		`{"routes":[{"gateway":"1.2.3.4"}]}`, `{"routes":[{"destination":"0.0.0.0/0"}]}`, `{"routes":[{"destination":"0.0.0.0/0","gateway":"::1"}]}`,
		`{"routes":[{"destination":"0.0.0.0/0","scope":200,"gateway":"1.2.3.4"}]}`, `{"routes":[{"destination":"::/0","scope":253,"source":"1.2.3.4"}]}`,
		`{"interface":{"vrf":{"name":"v"}},"rules":[{"table":5}]}`, `{"rules":[{"priority":99999}]}`, `{"rules":[{"source":"1.2.3.4"}]}`,
		`{"rules":[{"source":"1.2.3.4/32","destination":"::/0"}]}`, `{"neighbors":[{"destination":"x"}]}`, `{"neighbors":[{"destination":"1.2.3.4"}]}`,
	} {
		_, err := hookapi.ParseNetworkConfig([]byte(config))
		if err == nil {
			t.Errorf("%s was taken", config)
			continue
		}
		out.WriteString(config + "\n    " + strings.ReplaceAll(err.Error(), "\n", "\n    ") + "\n")
	}
	golden.Check(t, "testdata/networkconfig-errors.txt", []byte(out.String()))
}
