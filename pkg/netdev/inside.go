package netdev

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// configureInside gives the NIC in the container what it had on the host, and
// what its configuration says instead.
func configureInside(e *hookapi.Entry, target *namespace) error {
	c, err := target.conn()
	if err != nil {
		return err
	}
	if err := rename(c, e.InsideIndex, e.InsideName); err != nil {
		return err
	}
	for _, a := range configuredAttributes(e.Netdev.Config) {
		if err := setLink(c, e.InsideIndex, 0, 0, a.attribute); err != nil {
			return fmt.Errorf("set its %s: %w", a.what, err)
		}
	}
	vrfTable, err := joinVRF(c, e)
	if err != nil {
		return err
	}
	if err := target.do(func() error { return settingsInside(e, target) }); err != nil {
		return err
	}
	if err := replay(c, unix.RTM_NEWADDR, "address", addressesInside(e)); err != nil {
		return err
	}
	if err := setLink(c, e.InsideIndex, link.FlagUp, link.FlagUp); err != nil {
		return fmt.Errorf("set it up in the container: %w", err)
	}
	return errors.Join(
		replay(c, unix.RTM_NEWROUTE, "route", routesInside(e, vrfTable)),
		replay(c, unix.RTM_NEWRULE, "rule", rulesInside(e)),
		replay(c, unix.RTM_NEWNEIGH, "neighbour", neighboursInside(e)),
	)
}

// settingsInside sets sysctls and the driver's settings. The calling thread is
// in the container's network namespace.
func settingsInside(e *hookapi.Entry, target *namespace) error {
	if target.defaults == nil {
		target.defaults = readSysctls("default")
	}
	want := setByHand(e.Saved.Sysctls, target.defaults)
	if value, ok := e.Saved.Sysctls["ipv6/conf/disable_ipv6"]; ok {
		want["ipv6/conf/disable_ipv6"] = value
	}
	maps.Copy(want, configuredSysctls(e.Netdev.Config))
	if err := writeSysctls(e.InsideName, want); err != nil {
		return err
	}
	if e.Netdev.Config == nil || e.Netdev.Config.Ethtool == nil {
		return nil
	}
	return setDriver(e.InsideName, e.Netdev.Config.Ethtool.Features, e.Netdev.Config.Ethtool.PrivateFlags)
}

func configuredSysctls(c *hookapi.NetworkConfig) map[string]string {
	set := map[string]string{}
	if c == nil {
		return set
	}
	for _, s := range []struct {
		key   string
		value *int32
	}{
		{"ipv4/conf/arp_ignore", c.Interface.ARPIgnore}, {"ipv4/conf/arp_announce", c.Interface.ARPAnnounce},
		{"ipv4/conf/rp_filter", c.Interface.RPFilter}, {"ipv6/conf/accept_ra", c.Interface.AcceptRA},
	} {
		if s.value != nil {
			set[s.key] = strconv.Itoa(int(*s.value))
		}
	}
	if f := c.Interface.Forwarding; f != nil {
		value := "0"
		if *f {
			value = "1"
		}
		set["ipv4/conf/forwarding"], set["ipv6/conf/forwarding"] = value, value
	}
	return set
}

type namedAttribute struct {
	what string
	attribute
}

// configuredAttributes are the link's own settings. The link is down: some
// drivers change the MAC address only then.
func configuredAttributes(c *hookapi.NetworkConfig) []namedAttribute {
	if c == nil {
		return nil
	}
	var set []namedAttribute
	if mac := c.Interface.HardwareAddr; mac != nil {
		set = append(set, namedAttribute{"hardwareAddr", attribute{kind: unix.IFLA_ADDRESS, value: parseMAC(*mac)}})
	}
	for _, n := range []struct {
		what  string
		kind  uint16
		value *int32
	}{
		{"mtu", unix.IFLA_MTU, c.Interface.MTU},
		{"gsoMaxSize", unix.IFLA_GSO_MAX_SIZE, c.Interface.GSOMaxSize}, {"groMaxSize", iflaGROMaxSize, c.Interface.GROMaxSize},
		{"gsoIPv4MaxSize", iflaGSOIPv4MaxSize, c.Interface.GSOIPv4MaxSize}, {"groIPv4MaxSize", iflaGROIPv4MaxSize, c.Interface.GROIPv4MaxSize},
	} {
		if n.value != nil {
			set = append(set, namedAttribute{n.what, number(n.kind, uint32(*n.value))})
		}
	}
	return set
}

// addressesInside are the configured addresses, else the host's.
func addressesInside(e *hookapi.Entry) [][]byte {
	var all [][]byte
	if newAddresses(e) {
		for _, a := range e.Netdev.Config.Interface.Addresses {
			all = append(all, newAddress(a, e.InsideIndex))
		}
		return all
	}
	for _, m := range inOrder(e.Saved.Addresses) {
		if !madeByKernel(m) {
			all = append(all, addressInside(m, e.InsideIndex, e.Saved.Name, e.InsideName))
		}
	}
	return all
}

// routesInside are the configured routes and the host's; where both have one to
// the same destination in the same table, the configured one counts. In a VRF all
// go to its table.
func routesInside(e *hookapi.Entry, vrfTable uint32) [][]byte {
	var all [][]byte
	if e.Netdev.Config != nil {
		for _, r := range e.Netdev.Config.Routes {
			all = append(all, newRoute(r, e.InsideIndex))
		}
	}
	configured := slices.Clone(all)
	for _, m := range e.Saved.Routes {
		same := func(n []byte) bool {
			return n[0] == m[0] && destination(n) == destination(m) && tableOf(n) == tableOf(m)
		}
		// Routes of addresses that the container does not get would lead nowhere.
		if wantedInside(m) && !newAddresses(e) && !slices.ContainsFunc(configured, same) {
			all = append(all, routeTo(m, e.InsideIndex))
		}
	}
	if vrfTable != 0 {
		for i := range all {
			all[i] = inTable(all[i], vrfTable)
		}
	}
	return byDependency(all)
}

// rulesInside are the configured rules and the host's; a VRF needs none.
func rulesInside(e *hookapi.Entry) [][]byte {
	var all [][]byte
	if e.Netdev.Config != nil {
		if e.Netdev.Config.Interface.VRF != nil {
			return nil
		}
		for _, r := range e.Netdev.Config.Rules {
			all = append(all, newRules(r)...)
		}
	}
	for _, m := range e.Saved.Rules {
		if !newAddresses(e) {
			all = append(all, ruleTo(m, e.Saved.Name, e.InsideName))
		}
	}
	return all
}

// newAddresses: the configuration has addresses, which replace the host's, and
// with them the routes and rules that the host has for those.
func newAddresses(e *hookapi.Entry) bool {
	return e.Netdev.Config != nil && len(e.Netdev.Config.Interface.Addresses) > 0
}

func neighboursInside(e *hookapi.Entry) [][]byte {
	var all [][]byte
	if e.Netdev.Config != nil {
		for _, n := range e.Netdev.Config.Neighbors {
			all = append(all, newNeighbour(n, e.InsideIndex))
		}
	}
	for _, m := range e.Saved.Neighbours {
		all = append(all, neighbourTo(m, e.InsideIndex))
	}
	return all
}

// joinVRF makes the NIC a port of its VRF, which it makes if need be, and returns
// the VRF's table; 0 without a VRF.
func joinVRF(c *link.Conn, e *hookapi.Entry) (uint32, error) {
	if e.Netdev.Config == nil || e.Netdev.Config.Interface.VRF == nil {
		return 0, nil
	}
	vrf := e.Netdev.Config.Interface.VRF
	table := uint32(e.InsideIndex + 100) // DraNet's default
	if vrf.Table != nil {
		table = uint32(*vrf.Table)
	}
	err := c.Do(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link.Raw(newVRF(vrf.Name, table)))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return 0, fmt.Errorf("make the VRF %s: %w", vrf.Name, err)
	}
	links, err := c.Links()
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(links, func(l link.Link) bool { return l.Name == vrf.Name && l.Kind == "vrf" })
	if i < 0 {
		return 0, fmt.Errorf("the container's interface %q is no VRF", vrf.Name)
	}
	raw, err := c.Get(unix.RTM_GETLINK, link.Raw(linkMessage(links[i].Index, 0, 0)))
	if err != nil {
		return 0, fmt.Errorf("read the VRF %s: %w", vrf.Name, err)
	}
	if has := vrfTable(raw); has != table {
		if vrf.Table != nil {
			return 0, fmt.Errorf("the container's VRF %s has table %d, not %d", vrf.Name, has, table)
		}
		table = has // made by another NIC of the container
	}
	return table, errors.Join(
		setLink(c, links[i].Index, link.FlagUp, link.FlagUp),
		setLink(c, e.InsideIndex, 0, 0, number(unix.IFLA_MASTER, uint32(links[i].Index))))
}

func setLink(c *link.Conn, index int, flags, change uint32, attrs ...attribute) error {
	return c.Do(unix.RTM_SETLINK, 0, link.Raw(linkMessage(index, flags, change, attrs...)))
}
