package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
)

// gidWait bounds the wait for GIDs: the kernel's RDMA core adds them in a work
// queue after an address came (drivers/infiniband/core/roce_gid_mgmt.c).
const gidWait = 5 * time.Second

// maxGIDs bounds how many entries of a GID table are read; mlx5 has 256.
const maxGIDs = 1024

// awaitGIDs waits until each RoCE port of the NIC's RDMA device has the RoCE v2
// GID of each of the NIC's addresses. Without it NCCL falls back to TCP and says
// nothing.
func awaitGIDs(e *hookapi.Entry, target *namespace) error {
	var want []netip.Addr
	if e.Saved != nil {
		for _, m := range addressesInside(e) {
			if ip := prefixOf(m).Addr(); ip.IsValid() && !ip.IsLinkLocalUnicast() {
				want = append(want, ip)
			}
		}
	}
	if len(want) == 0 {
		return nil
	}
	return target.do(func() error {
		sys, err := mountSysfs()
		if err != nil {
			return fmt.Errorf("read the GIDs of %s: %w", e.Netdev.RDMA, err)
		}
		defer sys.Close()
		ports, err := rocePorts(sys, e.Netdev.RDMA)
		if err != nil {
			return fmt.Errorf("read the ports of %s: %w", e.Netdev.RDMA, err)
		}
		deadline := time.Now().Add(gidWait)
		for {
			missing := missingGID(sys, ports, want)
			if !missing.IsValid() {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("its RDMA device %s has no RoCE v2 GID for address %s after %s, and NCCL would fall back to TCP without a word: look at `rdma link` and the gids below /sys/class/infiniband/%s/ports", e.Netdev.RDMA, missing, gidWait, e.Netdev.RDMA)
			}
			time.Sleep(2 * time.Millisecond) // the kernel's work queue is at it
		}
	})
}

// mountSysfs is the sysfs of the calling thread's network namespace, as nobody
// else sees it: which RDMA devices it shows depends on where it was mounted.
func mountSysfs() (*os.Root, error) {
	f, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(f)
	if err := unix.FsconfigCreate(f); err != nil {
		return nil, err
	}
	dir, err := unix.Fsmount(f, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir))
}

// rocePorts are the directories of the device's Ethernet ports.
func rocePorts(sys *os.Root, device string) ([]string, error) {
	dir := path.Join("class/infiniband", device, "ports")
	entries, err := fs.ReadDir(sys.FS(), dir)
	if err != nil {
		return nil, err
	}
	var ports []string
	for _, e := range entries {
		layer, err := sys.ReadFile(path.Join(dir, e.Name(), "link_layer"))
		if err == nil && strings.TrimSpace(string(layer)) == "Ethernet" {
			ports = append(ports, path.Join(dir, e.Name()))
		}
	}
	return ports, nil
}

// missingGID is the first address for which no port has a RoCE v2 GID; the zero
// address when none is missing. (Which port of several is the NIC's, only the
// driver knows.)
func missingGID(sys *os.Root, ports []string, want []netip.Addr) netip.Addr {
	have := map[netip.Addr]bool{}
	for _, port := range ports {
		readGIDs(sys, port, have)
	}
	for _, ip := range want {
		if len(ports) > 0 && !have[ip.Unmap()] {
			return ip
		}
	}
	return netip.Addr{}
}

func readGIDs(sys *os.Root, port string, have map[netip.Addr]bool) {
	for i := range maxGIDs {
		kind, err := sys.ReadFile(fmt.Sprintf("%s/gid_attrs/types/%d", port, i))
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil || strings.TrimSpace(string(kind)) != "RoCE v2" {
			continue // an unused entry reads as EINVAL
		}
		gid, err := sys.ReadFile(fmt.Sprintf("%s/gids/%d", port, i))
		if ip, perr := netip.ParseAddr(strings.TrimSpace(string(gid))); err == nil && perr == nil {
			have[ip.Unmap()] = true
		}
	}
}
