package netdev

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// restore makes a NIC at home what it was, by replaying what differs. It goes on
// after an error, so that as much as possible is as before, and returns all.
// It changes nothing on a NIC that is as it was.
func restore(e *hookapi.Entry, home *namespace) error {
	l, err := atHome(e, home)
	if err != nil || l == nil {
		return err
	}
	c, err := home.conn()
	if err != nil {
		return err
	}
	r := restorer{c: c, home: home, saved: e.Saved, index: l.Index}
	if err := r.name(*l); err != nil {
		return err // what follows goes by name, and the name is another's
	}
	return errors.Join(
		r.settings(*l),
		r.altNames(*l),
		home.do(func() error {
			return errors.Join(
				setDriver(e.Saved.Name, e.Saved.Features, e.Saved.PrivateFlags),
				writeSysctls(e.Saved.Name, e.Saved.Sysctls))
		}),
		r.qdisc(),
		r.upWithAddresses(*l),
		r.routes(),
		r.rules(),
		r.neighbours(),
	)
}

type restorer struct {
	c     *link.Conn
	home  *namespace
	saved *hookapi.Saved
	index int
}

func (r restorer) set(flags, change uint32, attrs ...attribute) error {
	return setLink(r.c, r.index, flags, change, attrs...)
}

// name gives the NIC its name back. Another's claim to it is an error: the
// entry stays, and reconcile tries again when the name is free.
func (r restorer) name(l link.Link) error {
	if l.Name == r.saved.Name {
		return nil
	}
	links, err := r.c.Links()
	if err != nil {
		return err
	}
	if other := nameOwner(links, r.saved.Name); other != nil && other.Index != l.Index {
		return fmt.Errorf("is home as %q, since its name is taken by another interface (%s): rename that, then run `netdev-hook reconcile`", l.Name, other.Identity())
	}
	// udev gives a NIC that comes back alternative names, its own among them.
	if slices.Contains(l.AltNames, r.saved.Name) {
		if err := altNames(r.c, unix.RTM_DELLINKPROP, r.index, []string{r.saved.Name}); err != nil {
			return err
		}
	}
	err = r.set(0, 0, text(unix.IFLA_IFNAME, r.saved.Name))
	if errors.Is(err, unix.EBUSY) { // an older kernel, and somebody set it up already
		err = errors.Join(r.set(0, link.FlagUp), r.set(0, 0, text(unix.IFLA_IFNAME, r.saved.Name)))
	}
	if err != nil {
		return fmt.Errorf("give it its name back: %w", err)
	}
	return nil
}

// settings are MAC, MTU and the like, each in a request of its own, so that one
// that the driver refuses does not hold up the others.
func (r restorer) settings(l link.Link) error {
	now, err := r.c.Get(unix.RTM_GETLINK, link.Raw(linkMessage(r.index, 0, 0)))
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	errs := []error{r.mode(now)}
	for _, kind := range linkAttributes {
		want, ok := r.saved.Attributes[kind]
		if kind == unix.IFLA_ADDRESS && sameHardware(want, parseMAC(l.MAC)) {
			continue
		}
		if !ok || bytes.Equal(want, attributeOf(now, unix.SizeofIfInfomsg, kind)) {
			continue
		}
		if err := r.set(0, 0, attribute{kind: kind, value: want}); err != nil {
			errs = append(errs, fmt.Errorf("restore link attribute %d: %w", kind, err))
		}
	}
	if l.Alias != r.saved.Alias {
		// Without the final NUL: a length of 0 takes the alias away (dev_set_alias).
		if err := r.set(0, 0, attribute{kind: unix.IFLA_IFALIAS, value: []byte(r.saved.Alias)}); err != nil {
			errs = append(errs, fmt.Errorf("restore its alias: %w", err))
		}
	}
	const flags = link.FlagNoARP | link.FlagPromisc | link.FlagAllMulti
	if (l.Flags^r.saved.Flags)&flags != 0 {
		if err := r.set(r.saved.Flags&flags, flags); err != nil {
			errs = append(errs, fmt.Errorf("restore its flags: %w", err))
		}
	}
	return errors.Join(errs...)
}

// altNames gives back the alternative names, in their order. Names that others
// gave the NIC since it is home stay. But a NIC that is down is as the kernel
// returned it: those that it has more are the workload's, and could be what this
// host calls another.
func (r restorer) altNames(l link.Link) error {
	kept := slices.DeleteFunc(slices.Clone(l.AltNames), func(n string) bool {
		return n == r.saved.Name || // see name
			l.Flags&link.FlagUp != 0 && !slices.Contains(r.saved.AltNames, n)
	})
	if slices.Equal(kept, r.saved.AltNames) {
		return nil
	}
	return errors.Join(
		altNames(r.c, unix.RTM_DELLINKPROP, r.index, kept),
		altNames(r.c, unix.RTM_NEWLINKPROP, r.index, r.saved.AltNames))
}

// altNames adds (RTM_NEWLINKPROP) or removes (RTM_DELLINKPROP) alternative names.
func altNames(c *link.Conn, msgType uint16, index int, names []string) error {
	var errs []error
	for _, n := range names {
		list := attribute{kind: unix.IFLA_PROP_LIST, flags: unix.NLA_F_NESTED, value: appendAttribute(nil, text(unix.IFLA_ALT_IFNAME, n))}
		flags := 0
		if msgType == unix.RTM_NEWLINKPROP {
			flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_APPEND
		}
		if err := c.Do(msgType, flags, link.Raw(linkMessage(index, 0, 0, list))); err != nil {
			errs = append(errs, fmt.Errorf("alternative name %q: %w", n, err))
		}
	}
	return errors.Join(errs...)
}

func (r restorer) qdisc() error {
	if len(r.saved.Qdiscs) == 0 {
		return nil
	}
	dump, err := dumpQdiscs(r.c)
	if err != nil {
		return err
	}
	now, _ := qdiscsOf(dump, r.index)
	if len(now) > 0 {
		return nil
	}
	for _, m := range r.saved.Qdiscs {
		if err := r.c.Do(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, link.Raw(qdiscTo(m, r.index))); err != nil {
			return fmt.Errorf("restore its queueing discipline: %w", err)
		}
	}
	return nil
}

// up sets the NIC up if it was. One that was down came home down; if it is up
// now, somebody else wants it so.
func (r restorer) up(l link.Link) error {
	if r.saved.Flags&link.FlagUp == 0 || l.Flags&link.FlagUp != 0 {
		return nil
	}
	if err := r.set(link.FlagUp, link.FlagUp); err != nil {
		return fmt.Errorf("set it up: %w", err)
	}
	return nil
}

// upWithAddresses sets the NIC up and gives back the missing addresses, without
// duplicate address detection: the NIC had them all the time, and is as it was
// only when they are not tentative any more. IFA_F_NODAD would stay with the
// address, so the sysctl is taken to zero for the moment.
func (r restorer) upWithAddresses(l link.Link) error {
	missing, err := r.missingAddresses()
	if err != nil || !slices.ContainsFunc(missing, func(m []byte) bool { return !isV4(m) }) {
		return errors.Join(err, r.up(l), r.addAddresses(missing))
	}
	detection := func(value string) error {
		return r.home.do(func() error { return writeSysctl(r.saved.Name, "ipv6/conf/accept_dad", value) })
	}
	off := detection("0") // where that fails, the addresses are tentative for a second
	err = errors.Join(r.up(l), r.addAddresses(missing))
	if off == nil {
		r.awaitAddresses()
		err = errors.Join(err, detection(r.saved.Sysctls["ipv6/conf/accept_dad"]))
	}
	return err
}

// awaitAddresses waits until the kernel's workqueue has marked the NIC's IPv6
// addresses as unique, a matter of milliseconds. Without carrier they stay
// tentative, and detection begins when that comes.
func (r restorer) awaitAddresses() {
	for deadline := time.Now().Add(addressWait); time.Now().Before(deadline) && r.carrier(); time.Sleep(time.Millisecond) {
		dump, err := r.c.Dump(unix.RTM_GETADDR, unix.AF_INET6)
		if err != nil || !slices.ContainsFunc(addressesOf(dump, r.index), func(m []byte) bool { return flagsOfAddress(m)&unix.IFA_F_TENTATIVE != 0 }) {
			return
		}
	}
}

const addressWait = 2 * time.Second

func (r restorer) carrier() bool {
	now, err := r.c.Get(unix.RTM_GETLINK, link.Raw(linkMessage(r.index, 0, 0)))
	if err != nil {
		return false
	}
	up := attributeOf(now, unix.SizeofIfInfomsg, unix.IFLA_CARRIER)
	return len(up) == 1 && up[0] == 1
}

// missingAddresses are the saved ones that the NIC has not, and that no other
// interface has by now.
func (r restorer) missingAddresses() ([][]byte, error) {
	dump, err := r.c.Dump(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	now := addressesOf(dump, r.index)
	return slices.DeleteFunc(slices.Clone(r.saved.Addresses), func(m []byte) bool {
		return slices.ContainsFunc(now, func(n []byte) bool { return sameAddress(n, m) }) || elsewhere(dump, m, r.index)
	}), nil
}

// addAddresses adds them with what is left of their lifetimes.
func (r restorer) addAddresses(missing [][]byte) error {
	var errs []error
	for _, m := range inOrder(missing) {
		back := addressHome(m, r.index, since(r.saved.ReadAt))
		if back == nil {
			continue // a lease that ran out
		}
		err := r.c.Do(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link.Raw(back))
		if errors.Is(err, unix.EEXIST) {
			// The kernel's own link-local address with other settings.
			err = errors.Join(r.c.Do(unix.RTM_DELADDR, 0, link.Raw(back)), r.c.Do(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, link.Raw(back)))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("add address %s: %w", prefixOf(m), err))
		}
	}
	return errors.Join(errs...)
}

// elsewhere: another interface has the same address, other than a link-local one.
func elsewhere(dump [][]byte, m []byte, index int) bool {
	ip := prefixOf(m).Addr()
	return !ip.IsLinkLocalUnicast() && slices.ContainsFunc(dump, func(other []byte) bool {
		return int(binary.NativeEndian.Uint32(other[addressIfindex:])) != index && prefixOf(other).Addr() == ip
	})
}

// routes gives back those that are missing. The kernel refuses one that somebody
// else has by now (EEXIST): that one stays theirs.
func (r restorer) routes() error {
	missing, err := r.missingRoutes()
	if err != nil {
		return err
	}
	for _, m := range byDependency(missing) {
		err = errors.Join(err, replay(r.c, unix.RTM_NEWROUTE, "route", [][]byte{routeTo(m, r.index)}))
	}
	return err
}

func (r restorer) missingRoutes() ([][]byte, error) {
	var now [][]byte
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		dump, err := r.c.Dump(unix.RTM_GETROUTE, family)
		if err != nil {
			return nil, err
		}
		now = append(now, dump...)
	}
	var missing [][]byte
	for _, m := range r.saved.Routes {
		there := func(n []byte) bool { return slices.Contains(outInterfaces(n), r.index) && sameRoute(n, m) }
		if !slices.ContainsFunc(now, there) {
			missing = append(missing, m)
		}
	}
	return missing, nil
}

// rules are the host's and stay there while the NIC is away, unless a network
// manager took them down with it. Adding one that is there fails with EEXIST.
func (r restorer) rules() error {
	var add [][]byte
	for _, m := range r.saved.Rules {
		add = append(add, ruleTo(m, "", ""))
	}
	return replay(r.c, unix.RTM_NEWRULE, "rule", add)
}

func (r restorer) neighbours() error {
	var add [][]byte
	for _, m := range r.saved.Neighbours {
		add = append(add, neighbourTo(m, r.index))
	}
	return replay(r.c, unix.RTM_NEWNEIGH, "neighbour", add)
}

func parseMAC(s string) []byte {
	mac, _ := net.ParseMAC(s)
	return mac
}
