package link

import (
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysfs is a mounted sysfs. Which links /sys/class/net shows depends on the
// network namespace that this sysfs was mounted in, not on the reader's.
type sysfs struct {
	dir    int
	prefix string
	file   *os.File
}

// mountSysfs mounts the calling thread's network namespace's sysfs, visible to
// nobody but the holder of its descriptor (Linux 5.2). Without the right to do
// so there is none, and what only sysfs knows stays unknown.
func mountSysfs() sysfs {
	none := sysfs{dir: -1}
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return none
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return none
	}
	dir, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return none
	}
	return sysfs{dir: dir, file: os.NewFile(uintptr(dir), "sysfs")}
}

func (s sysfs) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// addDevice completes a link by what netlink does not say: the device's port,
// and before Linux 5.14 the device.
func (s sysfs) addDevice(l *Link) {
	if l.Name == "" || strings.Contains(l.Name, "/") || l.Virtual() {
		return
	}
	dir := path.Join("class/net", l.Name)
	if l.ParentDev == "" {
		l.ParentBus, l.ParentDev = s.parent(dir)
	}
	if l.ParentDev != "" {
		l.Port = s.number(path.Join(dir, "dev_port"))
	}
}

// parent reads the bus and name of the device beneath a link. A device of a
// class, which has no bus, is none: the kernel's IFLA_PARENT_DEV_BUS_NAME is
// missing for it, too.
func (s sysfs) parent(dir string) (bus, dev string) {
	device := s.readlink(path.Join(dir, "device"))
	subsystem := s.readlink(path.Join(dir, "device/subsystem"))
	if device == "" || path.Base(path.Dir(subsystem)) != "bus" {
		return "", ""
	}
	return path.Base(subsystem), path.Base(device)
}

func (s sysfs) readlink(name string) string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(s.dir, s.prefix+name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// number reads a file that holds a number in C's notation; 0 if there is none.
func (s sysfs) number(name string) int {
	fd, err := unix.Openat(s.dir, s.prefix+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	buf := make([]byte, 32)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseInt(strings.TrimSpace(string(buf[:n])), 0, 32)
	return int(v)
}
