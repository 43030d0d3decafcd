package netdev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
)

const (
	entrySuffix   = ".json"
	asideSuffix   = ".aside"
	maxEntryBytes = 16 << 20
)

// journal is the hook's directory, locked: whoever holds it is the only one on
// this host that moves NICs. The kernel would serialise the moves anyway (RTNL).
type journal struct {
	dir    string
	lock   *os.File
	bootID string
}

// openJournal makes the directory if need be, checks that nobody else can write
// to it, and waits for the lock, at most as long as told. The lock dies with its
// holder.
func openJournal(dir string, wait time.Duration) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the journal's directory: %w", err)
	}
	if err := trusted(dir); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil { // one that was there may be readable
		return nil, fmt.Errorf("make the journal's directory private: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the journal's lock: %w", err)
	}
	if err := flock(lock, wait); err != nil {
		lock.Close()
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	return &journal{dir: dir, lock: lock, bootID: strings.TrimSpace(string(boot))}, nil
}

// flock waits for the lock in the kernel's queue, so that waiters are served in
// turn. A waiter that gives up leaves a thread behind, and is about to exit.
func flock(f *os.File, wait time.Duration) error {
	got := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if err != unix.EINTR {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		return err
	case <-time.After(wait):
		return fmt.Errorf("%s is held by another netdev-hook for more than %s; `fuser -v %s` names it", f.Name(), wait, f.Name())
	}
}

func (j *journal) close() { j.lock.Close() }

// entries reads all entries. One that cannot be read, is of another schema, or
// does not name itself is set aside under another name, and reported in the
// second result: it must not be in the way of other NICs. One of an earlier boot
// is history and removed.
func (j *journal) entries() ([]*hookapi.Entry, []string, error) {
	names, err := os.ReadDir(j.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read the journal: %w", err)
	}
	var all []*hookapi.Entry
	var reports []string
	for _, n := range names {
		switch {
		case strings.HasSuffix(n.Name(), asideSuffix):
			reports = append(reports, fmt.Sprintf("%s was set aside earlier: look at it, then remove it", filepath.Join(j.dir, n.Name())))
			continue
		case !strings.HasSuffix(n.Name(), entrySuffix) || strings.HasPrefix(n.Name(), "."):
			continue
		}
		e, err := readEntry(filepath.Join(j.dir, n.Name()))
		if err == nil && entryName(e) != n.Name() {
			err = errors.New("its name is not that of the NIC in it")
		}
		if err == nil && e.Pin != nil && e.Pin.Path != pinPath(j.dir, e) { // it will be unmounted and removed
			err = fmt.Errorf("its pin %q is not where this hook makes pins", e.Pin.Path)
		}
		switch {
		case err != nil:
			reports = append(reports, j.setAside(n.Name(), err))
		case e.BootID != j.bootID:
			reports = append(reports, j.forget(n.Name(), e))
		default:
			all = append(all, e)
		}
	}
	reports = append(reports, strayPins(j.dir)...)
	return all, slices.DeleteFunc(reports, func(s string) bool { return s == "" }), nil
}

// strayPins reports pins without an entry: what was in the entry's file was lost.
// An entry is written before its pin is made, and removed after it.
func strayPins(dir string) []string {
	pins, err := os.ReadDir(filepath.Join(dir, "pins"))
	if err != nil {
		return nil
	}
	var reports []string
	for _, p := range pins {
		path := filepath.Join(dir, "pins", p.Name())
		_, noEntry := os.Lstat(filepath.Join(dir, p.Name()+entrySuffix))
		if _, err := os.Lstat(path); err == nil && errors.Is(noEntry, os.ErrNotExist) {
			reports = append(reports, fmt.Sprintf("%s keeps a network namespace that the journal does not know, and with it perhaps a NIC: look with `nsenter --net=%s ip link`, move it out with `ip link set NAME netns 1`, then `umount %s && rm %s`", path, path, path, path))
		}
	}
	return reports
}

func readEntry(path string) (*hookapi.Entry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := ownedByUs(info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxEntryBytes+1))
	if err != nil {
		return nil, err
	}
	return parseEntry(data)
}

func parseEntry(data []byte) (*hookapi.Entry, error) {
	if len(data) > maxEntryBytes {
		return nil, fmt.Errorf("more than %d bytes", maxEntryBytes)
	}
	var e hookapi.Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	if e.Version != hookapi.JournalVersion {
		return nil, fmt.Errorf("schema version %d, this netdev-hook knows %d", e.Version, hookapi.JournalVersion)
	}
	if e.Identity == "" || e.Home.Inode == 0 || e.Owner.Inode == 0 {
		return nil, errors.New("no identity or namespace in it")
	}
	if e.Saved != nil && !hookapi.ValidName(e.InsideName) {
		return nil, fmt.Errorf("the name in the container %q is no interface name", e.InsideName)
	}
	return &e, checkSaved(e.Saved)
}

// checkSaved refuses messages too short for their headers, so that nothing that
// reads them later has to.
func checkSaved(s *hookapi.Saved) error {
	if s == nil {
		return nil
	}
	for _, part := range []struct {
		what   string
		header int
		msgs   [][]byte
	}{
		{"address", addressHeader, s.Addresses}, {"route", routeHeader, s.Routes}, {"rule", ruleHeader, s.Rules},
		{"neighbour", neighbourHeader, s.Neighbours}, {"qdisc", qdiscHeader, s.Qdiscs},
	} {
		for _, m := range part.msgs {
			if len(m) < part.header {
				return fmt.Errorf("a saved %s has %d bytes, fewer than its header", part.what, len(m))
			}
		}
	}
	if !hookapi.ValidName(s.Name) {
		return fmt.Errorf("the saved name %q is no interface name", s.Name)
	}
	for key := range s.Sysctls {
		tree, file := filepath.Split(key)
		if !slices.Contains(sysctlTrees[:], strings.TrimSuffix(tree, "/")) || file == "" || file == ".." {
			return fmt.Errorf("%q is no sysctl of a link", key)
		}
	}
	return nil
}

func (j *journal) setAside(name string, why error) string {
	to := name + asideSuffix
	if err := os.Rename(filepath.Join(j.dir, name), filepath.Join(j.dir, to)); err != nil {
		return fmt.Sprintf("journal file %q is not usable (%v) and cannot be set aside: %v", name, why, err)
	}
	return fmt.Sprintf("journal file %q is not usable (%v): set aside as %q; the NIC it spoke of is not looked after", name, why, to)
}

func (j *journal) forget(name string, e *hookapi.Entry) string {
	if err := os.Remove(filepath.Join(j.dir, name)); err != nil {
		return fmt.Sprintf("journal entry of %s from before the last boot: %v", e.Identity, err)
	}
	return ""
}

// write replaces an entry's file, whole or not at all.
func (j *journal) write(e *hookapi.Entry) error {
	e.Version, e.BootID = hookapi.JournalVersion, j.bootID
	data, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	if err := j.replace(entryName(e), data); err != nil {
		return fmt.Errorf("write the journal entry of %s: %w", e.Netdev.Name, err)
	}
	return nil
}

func (j *journal) replace(name string, data []byte) error {
	path := filepath.Join(j.dir, name)
	// The lock's holder is the only writer: a fixed name needs no cleaning up
	// after one that was killed, and the next one overwrites it.
	temp := filepath.Join(j.dir, ".writing")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	return j.sync()
}

func (j *journal) remove(e *hookapi.Entry) error {
	err := os.Remove(filepath.Join(j.dir, entryName(e)))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the journal entry of %s: %w", e.Netdev.Name, err)
	}
	return j.sync()
}

func (j *journal) sync() error {
	d, err := os.Open(j.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// entryName is the file of a NIC's entry: one NIC, one file. A virtual NIC's
// index counts within its namespace alone, so that is part of the name.
func entryName(e *hookapi.Entry) string {
	identity := strings.Map(func(r rune) rune {
		if r == '/' || r <= ' ' || r >= 0x7f {
			return '_'
		}
		return r
	}, e.Identity)
	return fmt.Sprintf("%s@%d%s", identity, e.Home.Inode, entrySuffix)
}
