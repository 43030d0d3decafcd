package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"podrail/pkg/discover"
)

// ErrUntrusted is wrapped by errors about a file or directory that somebody
// else could replace: what engines and hooks do with it, they do as us.
var ErrUntrusted = errors.New("not trusted")

// checkTrusted refuses a path if somebody else owns it or one of its parents,
// or can write to one of them. A directory with the sticky bit may be writable:
// there nobody replaces another's files. Links are checked where they are and
// where they lead to.
func checkTrusted(name string) error {
	abs, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return err
	}
	for _, file := range []string{abs, resolved} {
		for {
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			if why := distrust(info, os.Geteuid()); why != "" {
				return fmt.Errorf("%s is %w: %s %s; make it and its parents root's own (chown, chmod go-w), or use another path",
					name, ErrUntrusted, file, why)
			}
			if file == "/" {
				break
			}
			file = filepath.Dir(file)
		}
	}
	return nil
}

// distrust says why a file is not for the given user to rely on, or nothing.
// Group 0 is root's; a group of the user's own number is the user's alone (user
// private groups).
func distrust(info fs.FileInfo, euid int) string {
	stat := info.Sys().(*syscall.Stat_t)
	mode := info.Mode()
	sticky := info.IsDir() && mode&fs.ModeSticky != 0
	switch {
	case stat.Uid != 0 && int(stat.Uid) != euid:
		return fmt.Sprintf("belongs to user %d", stat.Uid)
	case mode&0o002 != 0 && !sticky:
		return fmt.Sprintf("can be written by everyone (mode %04o)", mode.Perm())
	case mode&0o020 != 0 && !sticky && stat.Gid != 0 && int(stat.Gid) != euid:
		return fmt.Sprintf("can be written by group %d (mode %04o)", stat.Gid, mode.Perm())
	}
	return ""
}

// checkHook makes sure that an engine could run the hook. With another root
// than this machine's nothing is known of it.
func checkHook(root *discover.Root, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("hook path %q: must be an absolute path", path)
	}
	if !root.Live() {
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("hook path %s: there is no such file; every container with a NIC would fail to start: install netdev-hook there, or say where it is", path)
	case err != nil:
		return fmt.Errorf("hook path: %w", err)
	case !info.Mode().IsRegular() || !executable(info):
		return fmt.Errorf("hook path %s: is %s, expected a program (a regular file with mode 0755)", path, info.Mode())
	}
	if err := checkTrusted(path); err != nil {
		return fmt.Errorf("hook path: %w", err)
	}
	return nil
}
