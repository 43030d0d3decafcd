package netdev

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctlTrees are where a link has sysctls of its own, each in a directory NAME.
// /proc/sys/net shows the network namespace of the thread that looks.
var sysctlTrees = [...]string{"ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"}

// readSysctls reads a link's sysctls in the calling thread's network namespace,
// by "ipv4/conf/arp_ignore". What cannot be read (stable_secret when unset) is
// left out.
func readSysctls(name string) map[string]string {
	return readSysctlsIf(name, func(string) bool { return true })
}

// readSysctlsIf reads those that are wanted.
func readSysctlsIf(name string, wanted func(key string) bool) map[string]string {
	all := map[string]string{}
	buf := make([]byte, 4096)
	for _, tree := range sysctlTrees {
		dir, err := os.Open("/proc/sys/net/" + tree + "/" + name)
		if err != nil {
			continue // no IPv6, or a link without a neighbour table
		}
		files, _ := dir.Readdirnames(-1)
		for _, f := range files {
			if key := tree + "/" + f; !wanted(key) {
				continue
			} else if value, ok := readSysctl(int(dir.Fd()), f, buf); ok {
				all[key] = value
			}
		}
		dir.Close()
	}
	return all
}

// readSysctl uses plain system calls: there are some 150 of these for a link,
// and they are read on the way into every container.
func readSysctl(dir int, file string, buf []byte) (string, bool) {
	fd, err := unix.Openat(dir, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", false
	}
	return strings.TrimSpace(string(buf[:n])), true
}

// writeSysctls sets those of a link's sysctls that differ from the wanted ones,
// in the calling thread's network namespace. One that the kernel does not have,
// or only lets be read (EACCES, from its mode), is passed over.
func writeSysctls(name string, want map[string]string) error {
	if len(want) == 0 {
		return nil
	}
	now := readSysctlsIf(name, func(key string) bool { _, ok := want[key]; return ok })
	var errs []error
	for key, value := range want {
		if current, ok := now[key]; ok && current == value {
			continue
		}
		err := writeSysctl(name, key, value)
		if err != nil && !errors.Is(err, os.ErrNotExist) && err != unix.EACCES {
			errs = append(errs, fmt.Errorf("sysctl net/%s of %s: write %q: %w", key, name, value, err))
		}
	}
	return errors.Join(errs...)
}

func writeSysctl(name, key, value string) error {
	i := strings.LastIndexByte(key, '/')
	path := "/proc/sys/net/" + key[:i] + "/" + name + key[i:]
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(value))
	return err
}

// setByHand are the saved sysctls that somebody set for this link alone: those
// that differ from the namespace's defaults. The container gets them, too.
func setByHand(saved, defaults map[string]string) map[string]string {
	set := map[string]string{}
	for key, value := range saved {
		// An interface's IPv6 MTU follows its MTU, which is no default.
		if d, ok := defaults[key]; ok && d != value && key != "ipv6/conf/mtu" {
			set[key] = value
		}
	}
	return set
}
