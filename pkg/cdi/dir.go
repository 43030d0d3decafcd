package cdi

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PrepareDir makes sure that specs can be written to a directory and that
// nobody else can replace them there; it creates the directory if need be.
//
// A Kubernetes emptyDir is a mount that everyone may write to (mode 0777). If
// it is ours it becomes 0755, and the note says so; the pod's containers mount
// it read-only. Anything else that others can write to is refused.
func PrepareDir(dir string) (note string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is no directory", dir)
	}
	var stat unix.Statx_t
	flags := unix.AT_STATX_DONT_SYNC
	if err := unix.Statx(unix.AT_FDCWD, dir, flags, unix.STATX_UID|unix.STATX_MODE, &stat); err == nil {
		volume := stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
		if volume && int(stat.Uid) == os.Geteuid() && distrust(info, os.Geteuid()) != "" {
			if err := os.Chmod(dir, 0o755); err != nil {
				return "", err
			}
			note = fmt.Sprintf("%s could be written by others (mode %04o): it is 0755 now", dir, info.Mode().Perm())
		}
	}
	return note, checkTrusted(dir)
}
