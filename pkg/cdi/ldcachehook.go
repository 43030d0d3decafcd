package cdi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"podrail/pkg/discover"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"golang.org/x/sys/unix"
)

// LDCacheCommand is the command of cdi-gen that the ldcache hook calls.
const LDCacheCommand = "ldcache-hook"

// ldcacheHook has the container's ld.so.cache name the libraries that are
// mounted. Loaders need none of it; programs that read the cache do (Triton runs
// ldconfig -p).
func ldcacheHook(root *discover.Root, program string, mounts []*specs.Mount) (*specs.Hook, error) {
	if err := checkHook(root, program); err != nil {
		return nil, err
	}
	timeout := hookTimeout
	h := &specs.Hook{HookName: "createContainer", Path: program, Args: []string{"cdi-gen", LDCacheCommand}, Timeout: &timeout}
	for _, m := range mounts {
		if path.Dir(m.ContainerPath) == containerLibraryDirs[0] {
			h.Args = append(h.Args, m.ContainerPath)
		}
	}
	return h, nil
}

// ErrLeftAlone is wrapped by errors of UpdateLDCache about a cache that is as it
// was, because the container has none or a way to change it safely is missing.
var ErrLeftAlone = errors.New("ld.so.cache is left alone")

// maxNewEntries bounds what a hook's arguments add.
const maxNewEntries = 1000

// UpdateLDCache has the ld.so.cache of a root file system name 64-bit libraries,
// given as absolute paths in it. No program runs, and nothing outside the root
// file system is opened, whatever links the image has; nor is an /etc that is
// mounted from somewhere else. Calling it again changes nothing.
func UpdateLDCache(rootfs string, libraries []string) error {
	if len(libraries) > maxNewEntries {
		return fmt.Errorf("%d libraries: at most %d", len(libraries), maxNewEntries)
	}
	dir, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", rootfs, err)
	}
	defer unix.Close(dir)
	etc, err := openInside(dir, "etc", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("%w: /etc: %w", ErrLeftAlone, err)
	}
	defer unix.Close(etc)
	old, err := readInside(dir, "etc/ld.so.cache")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeftAlone, err)
	}
	cache, err := parseLDCache(old)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeftAlone, err)
	}
	if err := cache.add(libraries); err != nil {
		return fmt.Errorf("%w: %w", ErrLeftAlone, err)
	}
	data := cache.marshal()
	if bytes.Equal(data, old) {
		return nil
	}
	return replaceInside(etc, "ld.so.cache", data)
}

// openInside opens a name below a directory as if that were "/". Links that
// procfs makes up are refused: /proc/1/root is the host's root until the runtime
// has changed into the container's.
func openInside(dir int, name string, flags int) (int, error) {
	how := &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	return unix.Openat2(dir, name, how)
}

func readInside(dir int, name string) ([]byte, error) {
	fd, err := openInside(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("/%s: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxCacheFile {
		return nil, fmt.Errorf("/%s: not a regular file of at most %d MiB", name, maxCacheFile>>20)
	}
	data := make([]byte, st.Size)
	for n := 0; n < len(data); {
		m, err := unix.Pread(fd, data[n:], int64(n))
		if err == nil && m == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("/%s: %w", name, err)
		}
		n += m
	}
	return data, nil
}

// replaceInside writes a file of a directory whole or not at all.
func replaceInside(dir int, name string, data []byte) (err error) {
	temp := fmt.Sprintf(".%s.%d", name, unix.Getpid())
	fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%w: %w", ErrLeftAlone, err)
	}
	if err != nil {
		return fmt.Errorf("/etc/%s: %w", temp, err)
	}
	defer func() {
		if err != nil {
			unix.Unlinkat(dir, temp, 0)
		}
	}()
	for rest := data; len(rest) > 0 && err == nil; {
		var n int
		n, err = unix.Write(fd, rest)
		rest = rest[max(n, 0):]
	}
	if err == nil {
		err = unix.Fchmod(fd, 0o644)
	}
	err = errors.Join(err, unix.Close(fd))
	if err == nil {
		err = unix.Renameat(dir, temp, dir, name)
	}
	if err != nil {
		return fmt.Errorf("/etc/%s: %w", name, err)
	}
	return nil
}

// add puts libraries before what the cache has under the same names for this
// kind of machine, which goes: the driver's libraries are the kernel driver's.
func (c *ldCache) add(libraries []string) error {
	i := slices.IndexFunc(c.entries, func(e cacheEntry) bool { return e.name == "libc.so.6" && e.is64() })
	if i < 0 {
		return errors.New("it has no 64-bit libc.so.6 to go by")
	}
	flags := c.entries[i].flags
	for _, lib := range libraries {
		if !path.IsAbs(lib) || path.Clean(lib) != lib || len(lib) >= maxCacheString || strings.ContainsRune(lib, 0) {
			return fmt.Errorf("%q is no absolute path", lib)
		}
		name := path.Base(lib)
		c.entries = slices.DeleteFunc(c.entries, func(e cacheEntry) bool { return e.name == name && e.flags == flags })
		at := slices.IndexFunc(c.entries, func(e cacheEntry) bool { return compareLibraries(e.name, name) <= 0 })
		if at < 0 {
			at = len(c.entries)
		}
		c.entries = slices.Insert(c.entries, at, cacheEntry{flags: flags, name: name, path: lib})
	}
	return nil
}

// compareLibraries is glibc's _dl_cache_libcmp: numbers in names compare as
// numbers. The loader searches for names by it, largest first.
func compareLibraries(a, b string) int {
	digit := func(s string) bool { return s != "" && '0' <= s[0] && s[0] <= '9' }
	number := func(s string) (n int32, rest string) {
		for ; digit(s); s = s[1:] {
			n = n*10 + int32(s[0]-'0')
		}
		return n, s
	}
	for a != "" {
		switch {
		case digit(a) && digit(b):
			var m, n int32
			m, a = number(a)
			n, b = number(b)
			if m != n {
				return int(m) - int(n)
			}
		case digit(a):
			return 1
		case digit(b), b == "":
			if b == "" {
				return 1
			}
			return -1
		case a[0] != b[0]:
			return int(a[0]) - int(b[0])
		default:
			a, b = a[1:], b[1:]
		}
	}
	if b == "" {
		return 0
	}
	return -1
}

// marshal is the cache as a file, without the format before 2.2.
func (c *ldCache) marshal() []byte {
	le := binary.LittleEndian
	out := make([]byte, cacheHeader, cacheHeader+len(c.entries)*(cacheEntrySize+64))
	strs := []byte{}
	base := uint32(cacheHeader + len(c.entries)*cacheEntrySize)
	known := map[string]uint32{}
	offset := func(s string) uint32 {
		at, ok := known[s]
		if !ok {
			at = base + uint32(len(strs))
			known[s] = at
			strs = append(append(strs, s...), 0)
		}
		return at
	}
	for _, e := range c.entries {
		out = le.AppendUint32(out, uint32(e.flags))
		out = le.AppendUint32(out, offset(e.name))
		out = le.AppendUint32(out, offset(e.path))
		out = le.AppendUint32(out, e.osVersion)
		out = le.AppendUint64(out, e.hwcap)
	}
	for i, x := range c.extensions {
		if x.tag == extensionHWCaps {
			c.extensions[i].data = nil
			for _, name := range x.names {
				c.extensions[i].data = le.AppendUint32(c.extensions[i].data, offset(name))
			}
		}
	}
	out = append(out, strs...)
	copy(out, cacheMagic)
	le.PutUint32(out[20:], uint32(len(c.entries)))
	le.PutUint32(out[24:], uint32(len(strs)))
	out[28] = c.flags
	if len(c.extensions) > 0 {
		out = c.appendExtensions(out)
	}
	return out
}

func (c *ldCache) appendExtensions(out []byte) []byte {
	le := binary.LittleEndian
	align := func() {
		for len(out)%4 != 0 {
			out = append(out, 0)
		}
	}
	align()
	le.PutUint32(out[32:], uint32(len(out)))
	out = le.AppendUint32(out, extensionMagic)
	out = le.AppendUint32(out, uint32(len(c.extensions)))
	table := len(out)
	out = append(out, make([]byte, 16*len(c.extensions))...)
	for i, x := range c.extensions {
		align()
		b := out[table+16*i:]
		le.PutUint32(b, x.tag)
		le.PutUint32(b[4:], x.flags)
		le.PutUint32(b[8:], uint32(len(out)))
		le.PutUint32(b[12:], uint32(len(x.data)))
		out = append(out, x.data...)
	}
	return out
}
