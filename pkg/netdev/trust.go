package netdev

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// trusted fails unless a directory that this process relies on, and all
// directories above it, can be written by nobody but root and this user.
// A directory with the sticky bit (/tmp) lets nobody replace what is ours.
func trusted(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for d := dir; ; d = filepath.Dir(d) {
		info, err := os.Lstat(d)
		if err != nil {
			return err
		}
		if d == dir && !info.IsDir() {
			return fmt.Errorf("%s is not a directory", d)
		}
		if err := ownedByUs(info); err != nil && (d == dir || info.Mode()&fs.ModeSticky == 0) {
			return fmt.Errorf("%s %w: whoever can write there decides what root does here; `chown root:root %s && chmod go-w %s`", d, err, d, d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// TrustedExecutable fails unless the running program, and all directories above
// it, can be written by nobody but root and this user: an engine runs it as root.
func TrustedExecutable() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the running program: %w", err)
	}
	info, err := os.Stat(self)
	if err != nil {
		return err
	}
	if err := ownedByUs(info); err != nil {
		return fmt.Errorf("%s %w: whoever can write it decides what root does here; `chown root:root %s && chmod go-w %s`", self, err, self, self)
	}
	return trusted(filepath.Dir(self))
}

// ownedByUs fails for a file that another user than root or this one owns or may write.
func ownedByUs(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("has no owner")
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("belongs to uid %d", st.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("has mode %04o and can be written by others", info.Mode().Perm())
	}
	return nil
}
