package hookapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
)

// NetworkConfig is what a NIC shall be in the container: DraNet's NetworkConfig,
// with the same names and meanings, so that a claim's opaque configuration can be
// brought along (kubernetes-sigs/dranet pkg/apis/types.go). What is not given is
// as on the host.
type NetworkConfig struct {
	Interface InterfaceConfig  `json:"interface"`
	Routes    []RouteConfig    `json:"routes,omitempty"`
	Rules     []RuleConfig     `json:"rules,omitempty"`
	Neighbors []NeighborConfig `json:"neighbors,omitempty"`
	Ethtool   *EthtoolConfig   `json:"ethtool,omitempty"`
}

// InterfaceConfig is the interface itself.
type InterfaceConfig struct {
	// Name in the container; "%d" stands for the lowest number that is free there.
	Name string `json:"name,omitempty"`
	// Addresses in CIDR notation, instead of the host's.
	Addresses []string `json:"addresses,omitempty"`
	// MTU in bytes.
	MTU *int32 `json:"mtu,omitempty"`
	// HardwareAddr is the MAC address.
	HardwareAddr *string `json:"hardwareAddr,omitempty"`
	// Offload sizes in bytes, for BIG TCP.
	GSOMaxSize     *int32 `json:"gsoMaxSize,omitempty"`
	GROMaxSize     *int32 `json:"groMaxSize,omitempty"`
	GSOIPv4MaxSize *int32 `json:"gsoIPv4MaxSize,omitempty"`
	GROIPv4MaxSize *int32 `json:"groIPv4MaxSize,omitempty"`
	// The sysctls of the same name (Documentation/networking/ip-sysctl.rst).
	// RPFilter and AcceptRA are podrail's own additions.
	Forwarding  *bool  `json:"forwarding,omitempty"`
	ARPIgnore   *int32 `json:"arpIgnore,omitempty"`
	ARPAnnounce *int32 `json:"arpAnnounce,omitempty"`
	RPFilter    *int32 `json:"rpFilter,omitempty"`
	AcceptRA    *int32 `json:"acceptRA,omitempty"`
	// VRF is the routing domain that the interface joins.
	VRF *VRFConfig `json:"vrf,omitempty"`

	// The rest is DraNet's, known here so that the refusal can name it.
	DHCP                *bool           `json:"dhcp,omitempty"`
	DisableEBPFPrograms *bool           `json:"disableEbpfPrograms,omitempty"`
	IPVlan              json.RawMessage `json:"ipvlan,omitempty"`
}

// VRFConfig is a VRF in the container; it is made if it is not there.
type VRFConfig struct {
	Name string `json:"name,omitempty"`
	// Table is its routing table; without one it is the interface's index + 100.
	Table *int `json:"table,omitempty"`
}

// RouteConfig is a route by way of the NIC.
type RouteConfig struct {
	// Destination in CIDR notation; "0.0.0.0/0" is the default route.
	Destination string `json:"destination,omitempty"`
	Gateway     string `json:"gateway,omitempty"`
	Source      string `json:"source,omitempty"`
	// Scope is RT_SCOPE_UNIVERSE (0) or RT_SCOPE_LINK (253).
	Scope uint8 `json:"scope,omitempty"`
	// Table is 254, main, when not given. In a VRF it is the VRF's.
	Table int `json:"table,omitempty"`
}

// RuleConfig is a routing rule.
type RuleConfig struct {
	Priority    int    `json:"priority,omitempty"`
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	Table       int    `json:"table,omitempty"`
}

// NeighborConfig is a permanent neighbour.
type NeighborConfig struct {
	Destination  string `json:"destination,omitempty"`
	HardwareAddr string `json:"hardwareAddr,omitempty"`
}

// EthtoolConfig are settings of the driver, by ethtool's names.
type EthtoolConfig struct {
	Features     map[string]bool `json:"features,omitempty"`
	PrivateFlags map[string]bool `json:"privateFlags,omitempty"`
}

// ParseNetworkConfig reads a NetworkConfig, strictly: a field that nobody knows
// is an error, as is a value that the kernel would refuse later. Errors name the
// field.
func ParseNetworkConfig(data []byte) (*NetworkConfig, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("network configuration: is empty")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var c NetworkConfig
	if err := dec.Decode(&c); err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("network configuration: more than one JSON value")
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("network configuration: %w", err)
	}
	return &c, nil
}

// String is the JSON that ParseNetworkConfig reads, on one line.
func (c *NetworkConfig) String() string {
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // plain data, and what came in as JSON goes out as JSON
	}
	return string(data)
}

func (c *NetworkConfig) validate() error {
	errs := []error{c.Interface.validate()}
	for i, r := range c.Routes {
		errs = append(errs, at(fmt.Sprintf("routes[%d]", i), r.validate()))
	}
	if len(c.Rules) > 0 && c.Interface.VRF != nil {
		errs = append(errs, errors.New("rules: not together with interface.vrf, whose table has all routes"))
	}
	for i, r := range c.Rules {
		errs = append(errs, at(fmt.Sprintf("rules[%d]", i), r.validate()))
	}
	for i, n := range c.Neighbors {
		errs = append(errs, at(fmt.Sprintf("neighbors[%d]", i), n.validate()))
	}
	return errors.Join(errs...)
}

func at(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s.%w", path, err)
}

func (c InterfaceConfig) validate() error {
	const minMTU = 68 // RFC 791
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("interface."+field+": "+format, args...))
	}
	switch {
	case c.DHCP != nil && *c.DHCP:
		bad("dhcp", "not supported: nobody would renew the lease; give addresses")
	case c.DisableEBPFPrograms != nil && *c.DisableEBPFPrograms:
		bad("disableEbpfPrograms", "not supported: a NIC with tc programs is refused; detach them on the host")
	case c.IPVlan != nil:
		bad("ipvlan", "not supported: this moves the NIC itself")
	}
	if c.Name != "" && !validTemplate(c.Name) {
		bad("name", "%q is no interface name: 1 to 15 letters, digits, '-', '_', '.', and at most one %%d", c.Name)
	}
	for i, a := range c.Addresses {
		if _, err := netip.ParsePrefix(a); err != nil {
			bad(fmt.Sprintf("addresses[%d]", i), "%q is not in CIDR notation (192.168.1.5/24)", a)
		}
	}
	if c.MTU != nil && *c.MTU < minMTU {
		bad("mtu", "%d is less than %d", *c.MTU, minMTU)
	}
	if c.HardwareAddr != nil {
		if _, err := net.ParseMAC(*c.HardwareAddr); err != nil {
			bad("hardwareAddr", "%q is no MAC address", *c.HardwareAddr)
		}
	}
	for _, size := range []struct {
		field string
		value *int32
	}{{"gsoMaxSize", c.GSOMaxSize}, {"groMaxSize", c.GROMaxSize}, {"gsoIPv4MaxSize", c.GSOIPv4MaxSize}, {"groIPv4MaxSize", c.GROIPv4MaxSize}} {
		if size.value != nil && *size.value <= 0 {
			bad(size.field, "%d is not positive", *size.value)
		}
	}
	for _, s := range []struct {
		field string
		value *int32
		valid string
	}{{"arpIgnore", c.ARPIgnore, "01238"}, {"arpAnnounce", c.ARPAnnounce, "012"}, {"rpFilter", c.RPFilter, "012"}, {"acceptRA", c.AcceptRA, "012"}} {
		if s.value != nil && (*s.value < 0 || *s.value > 9 || !strings.Contains(s.valid, fmt.Sprint(*s.value))) {
			bad(s.field, "%d is none of %s", *s.value, strings.Join(strings.Split(s.valid, ""), ", "))
		}
	}
	if v := c.VRF; v != nil {
		if !ValidName(v.Name) {
			bad("vrf.name", "%q is no interface name", v.Name)
		}
		if v.Table != nil && (*v.Table <= 0 || *v.Table >= 253 && *v.Table <= 255) {
			bad("vrf.table", "%d is reserved or not positive", *v.Table)
		}
	}
	return errors.Join(errs...)
}

// validTemplate is DraNet's rule for names, with crun's and runc's "%d".
func validTemplate(name string) bool {
	plain := strings.Replace(name, "%d", "0", 1)
	return ValidName(plain) && !strings.ContainsFunc(plain, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	})
}

func (r RouteConfig) validate() error {
	const universe, linkScope = 0, 253
	dst, err := netip.ParsePrefix(r.Destination)
	if err != nil {
		return fmt.Errorf("destination: %q is not in CIDR notation (10.0.0.0/8; a host is /32 or /128)", r.Destination)
	}
	if r.Scope != universe && r.Scope != linkScope {
		return fmt.Errorf("scope: %d is neither 0 (universe) nor 253 (link)", r.Scope)
	}
	if r.Gateway == "" && r.Scope == universe {
		return errors.New("gateway: must be given for a route of scope 0 (universe)")
	}
	if r.Table < 0 {
		return fmt.Errorf("table: %d is negative", r.Table)
	}
	for _, a := range []struct{ field, value string }{{"gateway", r.Gateway}, {"source", r.Source}} {
		ip, err := netip.ParseAddr(a.value)
		if a.value != "" && (err != nil || ip.Is4() != dst.Addr().Is4()) {
			return fmt.Errorf("%s: %q is no address of the destination's family", a.field, a.value)
		}
	}
	return nil
}

func (r RuleConfig) validate() error {
	if r.Priority < 0 || r.Priority > 32767 {
		return fmt.Errorf("priority: %d is not between 0 and 32767", r.Priority)
	}
	if r.Table < 0 {
		return fmt.Errorf("table: %d is negative", r.Table)
	}
	var families []bool
	for _, p := range []struct{ field, value string }{{"source", r.Source}, {"destination", r.Destination}} {
		prefix, err := netip.ParsePrefix(p.value)
		if p.value != "" && err != nil {
			return fmt.Errorf("%s: %q is not in CIDR notation", p.field, p.value)
		}
		if p.value != "" {
			families = append(families, prefix.Addr().Is4())
		}
	}
	if len(families) == 2 && families[0] != families[1] {
		return errors.New("source: is not of the destination's family")
	}
	return nil
}

func (n NeighborConfig) validate() error {
	if _, err := netip.ParseAddr(n.Destination); err != nil {
		return fmt.Errorf("destination: %q is no address", n.Destination)
	}
	if _, err := net.ParseMAC(n.HardwareAddr); err != nil {
		return fmt.Errorf("hardwareAddr: %q is no MAC address", n.HardwareAddr)
	}
	return nil
}
