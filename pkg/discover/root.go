package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFile bounds what ReadFile reads: nothing that describes a host is larger.
const maxFile = 16 << 20

// ErrNotRegular is wrapped by errors about something that is no regular file
// where one is needed.
var ErrNotRegular = errors.New("not a regular file")

// Root is a directory that stands for "/": the host's own, one mounted
// somewhere else, or a tree of testdata. Names are absolute below it, and no
// symbolic link, relative or absolute, leads out of it (openat2's
// RESOLVE_IN_ROOT). A tree may hold its device nodes as a list in a regular
// file "dev"; see DeviceNode. A Root can be used from many goroutines.
type Root struct {
	dir  *os.File
	name string
	// path is what the kernel calls dir: names resolved start with it.
	path string
	// live says that the root is this process's own.
	live bool
	// plain says that there is no openat2 here, and none needed as we are live.
	plain bool
	// listed are the nodes of a tree's "dev" file; nil where dev is a directory.
	listed map[string]DeviceNode
	// links are the symbolic links of that file.
	links map[string]string
	// seen, if not nil, is told each name that is asked for.
	seen func(name string)
}

// OpenRoot opens a directory as a root. The caller closes it.
func OpenRoot(dir string) (*Root, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening root: %w", err)
	}
	r := &Root{dir: f, name: dir}
	if err := r.init(); err != nil {
		f.Close()
		return nil, fmt.Errorf("opening root %s: %w", dir, err)
	}
	return r, nil
}

func (r *Root) init() error {
	clean, err := filepath.Abs(r.name)
	if err != nil {
		return err
	}
	r.live = clean == "/"
	r.path = clean
	if !r.live {
		if r.path, err = fdPath(int(r.dir.Fd())); err != nil {
			return err
		}
	}
	fd, err := r.open("/", unix.O_PATH)
	switch {
	case err == nil:
		unix.Close(fd)
	case r.live && (errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)):
		// Linux before 5.6, or a container engine's older seccomp filter.
		r.plain = true
	default:
		return err
	}
	r.listed, err = r.readDevList()
	return err
}

// Close closes the root.
func (r *Root) Close() error { return r.dir.Close() }

// Dir is the directory as it was given to OpenRoot.
func (r *Root) Dir() string { return r.name }

// Live says that the root is this process's own "/", so that the running kernel
// may be asked, too.
func (r *Root) Live() bool { return r.live }

// OnRead has f told each name that the root is asked for from now on, before
// it is looked up: what a capture of this host must hold.
func (r *Root) OnRead(f func(name string)) { r.seen = f }

// Open opens a regular file for reading. Anything else is an error that wraps
// ErrNotRegular; it is not waited for, as a FIFO would be.
func (r *Root) Open(name string) (*os.File, error) {
	fd, err := r.openRegular(name)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), r.outside(name)), nil
}

func (r *Root) openRegular(name string) (int, error) {
	fd, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = ErrNotRegular
	}
	if err != nil {
		unix.Close(fd)
		return -1, r.fail("open", name, err)
	}
	return fd, nil
}

// ReadFile reads a regular file of at most 16 MiB. It does not trust the size
// that stat tells: sysfs says 4096, procfs 0.
func (r *Root) ReadFile(name string) ([]byte, error) {
	fd, err := r.openRegular(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data := make([]byte, 0, 4096)
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, r.fail("read", name, err)
		}
		data = data[:len(data)+n]
		switch {
		case n == 0:
			return data, nil
		case len(data) > maxFile:
			return nil, r.fail("read", name, unix.EFBIG)
		case len(data) == cap(data):
			data = slices.Grow(data, len(data))
		}
	}
}

// ReadDir returns the sorted names of a directory's entries.
func (r *Root) ReadDir(name string) ([]string, error) {
	fd, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), r.outside(name))
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// Readlink returns a symbolic link's text.
func (r *Root) Readlink(name string) (string, error) {
	if target, ok := r.links[path.Clean(name)]; ok {
		if r.seen != nil {
			r.seen(name)
		}
		return target, nil
	}
	fd, err := r.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", r.fail("readlink", name, err)
	}
	return string(buf[:n]), nil
}

// Resolve returns the name that has no symbolic links in it, of something that
// exists.
func (r *Root) Resolve(name string) (string, error) {
	fd, err := r.open(name, unix.O_PATH)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	full, err := fdPath(fd)
	if err != nil {
		return "", r.fail("resolve", name, err)
	}
	below, ok := strings.CutPrefix(full, strings.TrimSuffix(r.path, "/"))
	if !ok || below != "" && below[0] != '/' {
		return "", r.fail("resolve", name, fmt.Errorf("%s is outside", full))
	}
	return path.Join("/", below), nil
}

// Stat describes what a name leads to.
func (r *Root) Stat(name string) (fs.FileInfo, error) { return r.stat(name, 0) }

// Lstat is Stat, but describes a symbolic link itself.
func (r *Root) Lstat(name string) (fs.FileInfo, error) { return r.stat(name, unix.O_NOFOLLOW) }

func (r *Root) stat(name string, flags int) (fs.FileInfo, error) {
	fd, err := r.open(name, unix.O_PATH|flags)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), r.outside(name))
	defer f.Close()
	return f.Stat()
}

// Exists says whether a name leads to something, be it a device node of the
// tree's list.
func (r *Root) Exists(name string) bool {
	if _, ok := r.listed[path.Clean(name)]; ok {
		return true
	}
	fd, err := r.open(name, unix.O_PATH)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// open opens a name below the root.
func (r *Root) open(name string, flags int) (fd int, err error) {
	name = path.Join("/", name)
	if r.seen != nil {
		r.seen(name)
	}
	flags |= unix.O_CLOEXEC
	if r.plain {
		fd, err = ignoringEINTR(func() (int, error) { return unix.Open(name, flags, 0) })
	} else {
		fd, err = r.openat2(name, flags)
	}
	if err != nil {
		return -1, r.fail("open", name, err)
	}
	return fd, nil
}

func (r *Root) openat2(name string, flags int) (fd int, err error) {
	how := &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 64 {
		fd, err = ignoringEINTR(func() (int, error) { return unix.Openat2(int(r.dir.Fd()), name, how) })
		if !errors.Is(err, unix.EAGAIN) {
			break
		}
		// A rename somewhere on this machine made the kernel unsure of a "..".
	}
	return fd, err
}

// fail makes an error that names a file as the user knows it: with the root's
// directory before it.
func (r *Root) fail(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: r.outside(name), Err: err}
}

func (r *Root) outside(name string) string { return filepath.Join(r.name, name) }

// fdPath is what the kernel calls an open file.
func fdPath(fd int) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
