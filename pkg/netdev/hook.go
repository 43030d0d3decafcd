// Package netdev moves a NIC into a container's network namespace and brings it
// home exactly as it was, whatever dies in between.
//
// Its model: everything that a move loses is read as the kernel's own netlink
// messages and written to a journal before anything changes. From there one
// routine, the way home, serves as undo of a failed attach, as poststop, and as
// repair after a crash: it looks where the NIC is now, and replays what differs.
//
//	h := netdev.Hook{Dir: "/run/netdev-hook", LockWait: 30 * time.Second}
//	err := h.Attach("c1", pid, []hookapi.Netdev{{Name: "gpu0rdma0"}})
//	...
//	err = h.Release("c1")
//
// A NIC belongs to a network namespace and the containers in it; it goes home
// when the last of them is gone. Every call takes one lock per host.
package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"podrail/internal/hookapi"
	"podrail/internal/link"
)

// Hook moves NICs between the network namespace it is called in and containers.
type Hook struct {
	// Dir is the journal's directory; it is made if it is not there.
	Dir string
	// LockWait bounds the wait for another hook. It must be below the time that
	// the engine gives a hook.
	LockWait time.Duration
}

// session is one call, holding the lock.
type session struct {
	journal *journal
	own     *namespace
	// others are the namespaces besides own that this call has opened.
	others  []*namespace
	entries []*hookapi.Entry
	// reports are what an operator should know, but nobody waits for.
	reports []string
}

// begin locks the journal and reads it. The calling goroutine is bound to its
// thread until end: /proc/sys/net shows the thread's network namespace.
func (h Hook) begin() (*session, error) {
	runtime.LockOSThread()
	s, err := h.open()
	if err != nil {
		runtime.UnlockOSThread()
	}
	return s, err
}

func (h Hook) open() (*session, error) {
	j, err := openJournal(h.Dir, h.LockWait)
	if err != nil {
		return nil, err
	}
	s := &session{journal: j}
	if s.own, err = openNamespace(ownNamespacePath); err == nil {
		s.entries, s.reports, err = j.entries()
	}
	if err != nil {
		s.own.close()
		j.close()
		return nil, err
	}
	return s, nil
}

func (s *session) end() {
	for _, n := range s.others {
		n.close()
	}
	s.own.close()
	s.journal.close()
	runtime.UnlockOSThread()
}

// Attach moves NICs into the network namespace of a container's process. All of
// them arrive, configured, or none does and every NIC that the container held
// there is home again. A second call for the same container changes nothing.
//
// In a container that shares this network namespace the NICs must be here, and
// nothing is changed.
func (h Hook) Attach(container string, pid int, netdevs []hookapi.Netdev) error {
	own, err := openNamespace(ownNamespacePath)
	if err != nil {
		return err
	}
	defer own.close()
	target, start, err := containerNamespace(pid)
	if errors.Is(err, fs.ErrPermission) {
		return errors.Join(own.mayGive(), err)
	}
	if err != nil {
		return err
	}
	defer target.close()
	if target.id.Same(own.id) {
		return alreadyHere(own, netdevs)
	}
	if err := own.mayGive(); err != nil {
		return err
	}
	s, err := h.begin()
	if err != nil {
		return err
	}
	defer s.end()
	processes, err := inodeOf("/proc/self/ns/pid")
	if err != nil {
		return err
	}
	err = s.attach(hookapi.Container{ID: container, PID: pid, Start: start, PIDNamespace: processes}, target, netdevs)
	if err != nil {
		// crun runs no poststop for a container that failed to start, so NICs of
		// an earlier call for it go home here, too.
		return errors.Join(err, s.release(container))
	}
	return nil
}

func alreadyHere(own *namespace, netdevs []hookapi.Netdev) error {
	c, err := own.conn()
	if err != nil {
		return err
	}
	links, err := c.Links()
	if err != nil {
		return err
	}
	here := &snapshot{links: links}
	for _, nd := range netdevs {
		if _, err := here.find(nd); err != nil {
			return fmt.Errorf("%s: the container shares the host's network namespace, and the NIC %w", nd.Name, err)
		}
	}
	return nil
}

// Release takes a container out of the owners of all NICs that it holds, and
// brings those home that nobody holds any more. It is a success for a container
// that holds none.
func (h Hook) Release(container string) error {
	if !h.hasEntries() {
		return nil
	}
	s, err := h.begin()
	if err != nil {
		return err
	}
	defer s.end()
	return s.release(container)
}

// hasEntries says whether there is anything to do, without the lock: most
// containers of a host have no NIC.
func (h Hook) hasEntries() bool {
	names, err := os.ReadDir(h.Dir)
	return err == nil && slices.ContainsFunc(names, func(n os.DirEntry) bool { return filepath.Ext(n.Name()) == entrySuffix })
}

func (s *session) release(container string) error {
	var errs []error
	for _, e := range slices.Backward(slices.Clone(s.entries)) {
		if !slices.ContainsFunc(e.Containers, func(c hookapi.Container) bool { return c.ID == container }) {
			continue
		}
		e.Containers = slices.DeleteFunc(e.Containers, func(c hookapi.Container) bool { return c.ID == container || !alive(c) })
		errs = append(errs, s.settle(e))
	}
	return errors.Join(errs...)
}

// settle brings a NIC home that no container holds, and writes down who still
// holds it otherwise.
func (s *session) settle(e *hookapi.Entry) error {
	if len(e.Containers) > 0 {
		return s.journal.write(e)
	}
	if err := s.bringHome(e); err != nil {
		return fmt.Errorf("%s: %w", e.Netdev.Name, err)
	}
	return nil
}

// Reconcile brings home every NIC whose containers are dead, and restores every
// one that is home but not as it was. With an interface index other than 0 it
// looks at that NIC of this network namespace alone. It returns what an operator
// should know.
func (h Hook) Reconcile(ifindex int) ([]string, error) {
	if !h.hasEntries() {
		return nil, nil
	}
	s, err := h.begin()
	if err != nil {
		return nil, err
	}
	defer s.end()
	identity := ""
	if ifindex != 0 {
		if identity, err = s.identityOf(ifindex); err != nil || identity == "" {
			return s.reports, err
		}
	}
	var errs []error
	for _, e := range slices.Clone(s.entries) {
		if identity == "" || e.Identity == identity {
			errs = append(errs, s.reconcile(e))
		}
	}
	return s.reports, errors.Join(errs...)
}

// identityOf is empty for a link that is gone by now.
func (s *session) identityOf(ifindex int) (string, error) {
	c, err := s.own.conn()
	if err != nil {
		return "", err
	}
	links, err := c.Links()
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(links, func(l link.Link) bool { return l.Index == ifindex }); i >= 0 {
		return links[i].Identity(), nil
	}
	return "", nil
}

func (s *session) reconcile(e *hookapi.Entry) error {
	living := slices.DeleteFunc(slices.Clone(e.Containers), func(c hookapi.Container) bool { return !alive(c) })
	if len(living) > 0 && e.Phase == hookapi.Attached {
		home, err := s.isHome(e)
		if err != nil || !home {
			return err
		}
		// The kernel returned it, or an operator did: its containers have lost it.
		living = nil
	}
	if e.Phase != hookapi.Attached {
		living = nil
	}
	e.Containers = living
	return s.settle(e)
}

// Return brings a NIC home by its name on the host or its identity. A NIC that
// living containers hold is refused unless forced.
func (h Hook) Return(name string, force bool) error {
	s, err := h.begin()
	if err != nil {
		return err
	}
	defer s.end()
	i := slices.IndexFunc(s.entries, func(e *hookapi.Entry) bool { return e.Netdev.Name == name || e.Identity == name })
	if i < 0 {
		return fmt.Errorf("%q is not away from home: `netdev-hook status` lists what is", name)
	}
	e := s.entries[i]
	e.Containers = slices.DeleteFunc(e.Containers, func(c hookapi.Container) bool { return !alive(c) })
	if len(e.Containers) > 0 && !force {
		return fmt.Errorf("%q is held by %s: stop it, or take the NIC away with --force", name, holders(e))
	}
	e.Containers = nil
	return s.settle(e)
}

// holders are an entry's containers for a message. Ids come from outside: quoted.
func holders(e *hookapi.Entry) string {
	var all []string
	for _, c := range e.Containers {
		all = append(all, fmt.Sprintf("container %q (process %d)", c.ID, c.PID))
	}
	return strings.Join(all, ", ")
}

// Status is the journal as it is now, and what is wrong with it. It waits for no
// lock and changes nothing.
func (h Hook) Status() ([]hookapi.Entry, []string, error) {
	names, err := os.ReadDir(h.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var entries []hookapi.Entry
	var reports []string
	for _, n := range names {
		path := filepath.Join(h.Dir, n.Name())
		switch filepath.Ext(n.Name()) {
		case asideSuffix:
			reports = append(reports, fmt.Sprintf("%s was set aside: look at it, then remove it", path))
		case entrySuffix:
			e, err := readEntry(path)
			if errors.Is(err, os.ErrNotExist) {
				continue // its NIC came home meanwhile
			}
			if err != nil {
				reports = append(reports, fmt.Sprintf("%s: %v", path, err))
				continue
			}
			entries = append(entries, *e)
		}
	}
	return entries, append(reports, strayPins(h.Dir)...), nil
}
