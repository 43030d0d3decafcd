package netdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
)

// planPin says where a namespace's pin will be: in pid 1's mount namespace where
// that can be entered, since a mount in the hook's own would be out of reach of
// a poststop or reconcile that runs elsewhere. The journal has it before the
// mount is made, so that no pin is forgotten.
func planPin(path string) (*hookapi.Pin, error) {
	pin := &hookapi.Pin{Path: path}
	find := func() (err error) {
		pin.MountNamespace, err = inodeOf("/proc/thread-self/ns/mnt")
		return err
	}
	if inMountNamespace("/proc/1/ns/mnt", find) == nil {
		return pin, nil
	}
	return pin, find()
}

// pinPath is where an entry's pin is, if it has one.
func pinPath(dir string, e *hookapi.Entry) string {
	return filepath.Join(dir, "pins", strings.TrimSuffix(entryName(e), entrySuffix))
}

// mountPin makes the pin: a bind mount keeps the namespace alive.
func mountPin(pin *hookapi.Pin, n *namespace) error {
	err := at(pin, func() error {
		if err := os.MkdirAll(filepath.Dir(pin.Path), 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(pin.Path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f.Close()
		return unix.Mount("/proc/self/fd/"+strconv.Itoa(int(n.file.Fd())), pin.Path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return fmt.Errorf("pin %s at %s: %w", n.id, pin.Path, err)
	}
	return nil
}

// unpin removes a pin. From a place where its mount namespace cannot be entered
// it fails: unlinking what another mount namespace shows there would be a
// mistake.
func unpin(pin *hookapi.Pin) error {
	remove := func() error {
		err := unix.Unmount(pin.Path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && err != unix.EINVAL && err != unix.ENOENT { // EINVAL: not mounted
			return err
		}
		if err := os.Remove(pin.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := at(pin, remove); err != nil {
		return fmt.Errorf("free the pin %s: %w", pin.Path, err)
	}
	return nil
}

// openPin opens the namespace that a pin holds.
func openPin(pin *hookapi.Pin) (n *namespace, err error) {
	e := at(pin, func() error {
		n, err = openNamespace(pin.Path)
		return err
	})
	return n, e
}

// at runs f where a pin is mounted.
func at(pin *hookapi.Pin, f func() error) error {
	for _, path := range []string{"/proc/thread-self/ns/mnt", "/proc/1/ns/mnt"} {
		inode, err := inodeOf(path)
		if err != nil || inode != pin.MountNamespace {
			continue
		}
		if path == "/proc/1/ns/mnt" {
			return inMountNamespace(path, f)
		}
		return f()
	}
	return fmt.Errorf("it is in another mount namespace (mnt:[%d]); run this where that is, on the host or in the pod", pin.MountNamespace)
}

// inMountNamespace runs f on a thread that is in a mount namespace, and is
// thrown away afterwards.
func inMountNamespace(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// setns(2) wants a thread whose root and working directory are its own.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- err
			return
		}
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// inodeOf is the number in a namespace link such as "mnt:[4026531841]".
func inodeOf(path string) (uint64, error) {
	target, err := os.Readlink(path)
	if err != nil {
		return 0, err
	}
	_, digits, _ := strings.Cut(strings.TrimSuffix(target, "]"), "[")
	return strconv.ParseUint(digits, 10, 64)
}
