package netdev

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// trusted fails unless a directory that this process relies on, and all
// directories above it, can be written by nobody but root and this user.
// A directory with the sticky bit (/tmp) lets nobody replace what is ours.
func trusted(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := ownedByUs(info); err != nil {
		return fmt.Errorf("%s %w: whoever can write there decides what root does here; `chown root:root %s && chmod go-w %s`", dir, err, dir, dir)
	}
	return trustedAbove(dir)
}

// trustedAbove is trusted for what is in a directory: with the sticky bit nobody
// can replace what is ours, though others can write there.
func trustedAbove(name string) error {
	name, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	for d := filepath.Dir(name); ; d = filepath.Dir(d) {
		info, err := os.Lstat(d)
		if err != nil {
			return err
		}
		if err := ownedByUs(info); err != nil && info.Mode()&fs.ModeSticky == 0 {
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
	return trustedAbove(self)
}

// ownedByUs fails for a file that another user than root or this one owns or may write.
func ownedByUs(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("has no owner")
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() && !(st.Uid == overflowUID && inUserNamespace()) {
		return fmt.Errorf("belongs to uid %d", st.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("has mode %04o and can be written by others", st.Mode&0o7777)
	}
	return nil
}

// overflowUID is what a user namespace shows for users that it does not have
// (/proc/sys/kernel/overflowuid): the host's root among them, whose / it is. No
// process of the namespace can be one of those.
const overflowUID = 65534

// inUserNamespace says whether this is another user namespace than the first,
// which has all users (user_namespaces(7)).
func inUserNamespace() bool {
	users, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(users)), " ") != "0 0 4294967295"
}
