package cdi

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// PrepareDir makes sure that specs can be written to a directory and that
// nobody else can replace them there; it creates the directory if need be.
//
// A Kubernetes emptyDir is a mount that everyone may write to (mode 0777). If
// it is ours it becomes 0755, and the note says so; the pod's containers mount
// it read-only. Anything else that others can write to is refused.
func PrepareDir(dir string) (note string, err error) {
	if err := makeDir(dir); err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is no directory", dir)
	}
	if distrust(info, os.Geteuid()) != "" && ownVolume(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return "", err
		}
		note = fmt.Sprintf("%s could be written by others (mode %04o): it is 0755 now", dir, info.Mode().Perm())
	}
	return note, checkTrusted(dir)
}

// makeDir makes a directory and its parents, unless somebody else could replace
// them: then nothing is made.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !notExist(err) {
		return err
	}
	above, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for missing := true; missing; {
		above = filepath.Dir(above)
		_, err := os.Stat(above)
		missing = notExist(err)
	}
	if err := checkTrusted(above); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}

// ownVolume says whether a directory is ours and a mount of its own.
func ownVolume(dir string) bool {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC, unix.STATX_UID, &stat)
	return err == nil && int(stat.Uid) == os.Geteuid() && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
