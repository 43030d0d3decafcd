package netdev

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// find is the NIC that an argument means, in a snapshot of its home. It fails
// when there is none, or when name and identity are not those of one NIC any
// more.
func (s *snapshot) find(nd hookapi.Netdev) (link.Link, error) {
	if nd.ID == "" {
		i := slices.IndexFunc(s.links, func(l link.Link) bool { return l.Name == nd.Name })
		if i < 0 {
			return link.Link{}, s.missing(nd)
		}
		return s.links[i], nil
	}
	// Representors and IPoIB interfaces have the device and port of their main NIC.
	i := slices.IndexFunc(s.links, func(l link.Link) bool { return l.Identity() == nd.ID && l.Name == nd.Name })
	if i < 0 {
		i = slices.IndexFunc(s.links, func(l link.Link) bool { return l.Identity() == nd.ID })
	}
	if i < 0 {
		return link.Link{}, s.missing(nd)
	}
	if l := s.links[i]; l.Name != nd.Name {
		return l, fmt.Errorf("the spec calls %s %q, but here that is %q now: run `cdi-gen generate` again", nd.ID, nd.Name, l.Name)
	}
	return s.links[i], nil
}

func (s *snapshot) missing(nd hookapi.Netdev) error {
	if i := slices.IndexFunc(s.links, func(l link.Link) bool { return l.Name == nd.Name }); i >= 0 {
		return fmt.Errorf("is %s now, but the spec means %s: run `cdi-gen generate` again", s.links[i].Identity(), nd.ID)
	}
	if driver := userspaceDriver(nd.ID); driver != "" {
		return fmt.Errorf("%s is bound to %s, a driver for user space, so the kernel has no interface for it: bind it to its network driver first", nd.ID, driver)
	}
	var names []string
	for _, l := range s.links {
		if l.Flags&link.FlagLoopback == 0 {
			names = append(names, fmt.Sprintf("%q", l.Name))
		}
	}
	return fmt.Errorf("is not in this network namespace, and no container has it by this hook; here are: %s", strings.Join(names, ", "))
}

// userspaceDriver is the driver of a PCI function when that is one of those that
// hand it to user space.
func userspaceDriver(identity string) string {
	address := link.PCIAddress(identity)
	if address == "" || strings.ContainsAny(address, "/\x00") {
		return ""
	}
	target, err := os.Readlink("/sys/bus/pci/devices/" + address + "/driver")
	if err != nil {
		return ""
	}
	switch driver := filepath.Base(target); driver {
	case "vfio-pci", "uio_pci_generic", "igb_uio", "pci-stub":
		return driver
	}
	return ""
}

// mayLeave fails, with the reason, for a link that must stay where it is.
func (s *snapshot) mayLeave(l link.Link) error {
	if l.Flags&link.FlagLoopback != 0 {
		return fmt.Errorf("is a loopback interface, which cannot leave its network namespace")
	}
	routes, err := s.parsedRoutes()
	if err != nil {
		return err
	}
	if reason := link.Uplinks(s.links, routes)[l.Index]; reason != "" {
		return fmt.Errorf("carries this host's default route (%s): moving it would cut the host off", reason)
	}
	switch l.Kind {
	case "bridge", "bond", "team", "vrf":
		return fmt.Errorf("is a %s: the kernel does not move those, and its ports would lose it", l.Kind)
	}
	for _, other := range s.links {
		switch {
		case other.Index == l.Master:
			return fmt.Errorf("is a port of %q (%s), and would leave it without notice: take it out first", other.Name, l.PortKind)
		case other.Master == l.Index:
			return fmt.Errorf("is the master of %q: take that out first", other.Name)
		case other.Lower == l.Index && other.Kind != "veth" && other.Index != l.Index:
			return fmt.Errorf("has %q (%s) on top of it: remove that first", other.Name, other.Kind)
		}
	}
	return nil
}

func (s *snapshot) parsedRoutes() ([]link.Route, error) {
	routes := make([]link.Route, 0, len(s.routes))
	for _, m := range s.routes {
		r, err := link.ParseRoute(m)
		if err != nil {
			return nil, err
		}
		routes = append(routes, r)
	}
	return routes, nil
}

// nameOwner is the link that has a name, be it an alternative one; nil when the name
// is free.
func nameOwner(links []link.Link, name string) *link.Link {
	for i, l := range links {
		if l.Name == name || slices.Contains(l.AltNames, name) {
			return &links[i]
		}
	}
	return nil
}
