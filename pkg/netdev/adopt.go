package netdev

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// adopt completes the journal entry of a NIC that the runtime has moved into the
// container already (linux.netDevices). What it kept is saved: names, addresses,
// MTU and MAC. Routes, rules and sysctls were gone before anybody could read them.
func adopt(e *hookapi.Entry, target *namespace) error {
	c, err := target.conn()
	if err != nil {
		return err
	}
	links, raw, err := readLinks(c)
	if err != nil {
		return err
	}
	nd := e.Netdev
	i := slices.IndexFunc(links, func(l link.Link) bool {
		return l.Name == nd.Name && (nd.ID == "" || l.Identity() == nd.ID)
	})
	if i < 0 {
		return fmt.Errorf("is neither here nor in the container: the runtime should have moved it (linux.netDevices), and ignores that before runc 1.4 and crun 1.22; use `cdi-gen generate --nic-mode hook`")
	}
	l := links[i]
	addresses, err := c.Dump(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("read its addresses: %w", err)
	}
	e.Identity, e.InsideIndex = l.Identity(), l.Index
	if e.InsideName, err = insideName(nd, slices.Delete(links, i, i+1), nil); err != nil {
		return err
	}
	e.Saved = &hookapi.Saved{
		Name: nd.Name, AltNames: l.AltNames, Alias: l.Alias, Index: l.Index, Kind: l.Kind, Peer: l.Peer, PermanentMAC: l.PermanentMAC, Flags: l.Flags | link.FlagUp,
		Attributes: attributesOf(raw[l.Index]), Addresses: addressesOf(addresses, l.Index), ReadAt: bootTime(),
	}
	return nil
}
