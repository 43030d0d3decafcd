package cdi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// The loader's cache, as glibc's sysdeps/generic/dl-cache.h has it: a header, an
// entry for each library, strings, and extensions. Before it may come a cache of
// the format before 2.2, which nothing reads any more.
const (
	cacheMagic    = "glibc-ld.so.cache1.1"
	oldCacheMagic = "ld.so-1.7.0"
	// sizes of header and entry; of the old format's.
	cacheHeader, cacheEntrySize       = 48, 24
	oldCacheHeader, oldCacheEntrySize = 16, 12
	// maxCacheEntries bounds the work: a full desktop has 5,000.
	maxCacheEntries = 1 << 17
	maxCacheFile    = 16 << 20
)

// Flags of an entry: the kind of library, and which loader it is for.
const (
	cacheTypeMask = 0x00ff
	cacheLibc6    = 0x0003
	cacheArchMask = 0xff00
	cacheX8664    = 0x0300
	cacheAArch64  = 0x0a00
)

// cacheEntry is a library that the loader knows.
type cacheEntry struct {
	flags     int32
	osVersion uint32
	hwcap     uint64
	// name is what programs ask for, path where it is.
	name, path string
}

// is64 says whether the entry is of a 64-bit library for this kind of machine.
func (e cacheEntry) is64() bool {
	arch := e.flags & cacheArchMask
	return e.flags&cacheTypeMask == cacheLibc6 && (arch == cacheX8664 || arch == cacheAArch64)
}

// ldCache is a whole cache.
type ldCache struct {
	entries []cacheEntry
	// extensions follow the strings; empty before glibc 2.33.
	extensions []cacheExtension
	flags      byte
}

// cacheExtension is a section of the extensions: a generator's name, or the
// subdirectories that entries' hwcap counts, as strings.
type cacheExtension struct {
	tag, flags uint32
	data       []byte
	// names, for the tag that holds offsets of strings.
	names []string
}

const (
	extensionMagic  = 0xeaa42174 // cache_extension_magic, -358342284
	extensionHWCaps = 1
	maxExtensions   = 64
)

var errCache = errors.New("damaged ld.so.cache")

// parseLDCache reads a cache. Whatever is cut or points outside is an error; no
// more than the file's own size is kept.
func parseLDCache(data []byte) (*ldCache, error) {
	if len(data) > maxCacheFile {
		return nil, fmt.Errorf("%w: larger than %d MiB", errCache, maxCacheFile>>20)
	}
	data, err := skipOldCache(data)
	if err != nil {
		return nil, err
	}
	if len(data) < cacheHeader || !bytes.HasPrefix(data, []byte(cacheMagic)) {
		return nil, fmt.Errorf("%w: unknown format", errCache)
	}
	le := binary.LittleEndian
	count := uint64(le.Uint32(data[20:]))
	if count > maxCacheEntries || cacheHeader+count*cacheEntrySize > uint64(len(data)) {
		return nil, fmt.Errorf("%w: says it has %d entries", errCache, count)
	}
	if order := data[28] & 3; order == 3 {
		return nil, fmt.Errorf("%w: big-endian", errCache)
	}
	c := &ldCache{flags: data[28]}
	for i := range count {
		b := data[cacheHeader+i*cacheEntrySize:]
		e := cacheEntry{flags: int32(le.Uint32(b)), osVersion: le.Uint32(b[12:]), hwcap: le.Uint64(b[16:])}
		var ok1, ok2 bool
		e.name, ok1 = cacheString(data, le.Uint32(b[4:]))
		e.path, ok2 = cacheString(data, le.Uint32(b[8:]))
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("%w: entry %d has no name", errCache, i)
		}
		c.entries = append(c.entries, e)
	}
	c.extensions, err = parseExtensions(data, le.Uint32(data[32:]))
	return c, err
}

// skipOldCache is what follows a cache of the old format.
func skipOldCache(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte(oldCacheMagic)) {
		return data, nil
	}
	if len(data) < oldCacheHeader {
		return nil, fmt.Errorf("%w: cut", errCache)
	}
	count := uint64(binary.LittleEndian.Uint32(data[12:]))
	end := oldCacheHeader + count*oldCacheEntrySize
	end = (end + 7) &^ 7 // the new one is aligned
	if end > uint64(len(data)) {
		return nil, fmt.Errorf("%w: cut", errCache)
	}
	return data[end:], nil
}

// maxCacheString is longer than any path.
const maxCacheString = 4096

func cacheString(data []byte, offset uint32) (string, bool) {
	if uint64(offset) >= uint64(len(data)) {
		return "", false
	}
	rest := data[offset:]
	end := bytes.IndexByte(rest[:min(len(rest), maxCacheString)], 0)
	if end < 0 {
		return "", false
	}
	return string(rest[:end]), true
}

func parseExtensions(data []byte, offset uint32) ([]cacheExtension, error) {
	if offset == 0 {
		return nil, nil
	}
	le := binary.LittleEndian
	if uint64(offset)+8 > uint64(len(data)) || le.Uint32(data[offset:]) != extensionMagic {
		return nil, nil // as glibc does: none
	}
	count := uint64(le.Uint32(data[offset+4:]))
	if count > maxExtensions || uint64(offset)+8+16*count > uint64(len(data)) {
		return nil, fmt.Errorf("%w: says it has %d extensions", errCache, count)
	}
	var out []cacheExtension
	for i := range count {
		b := data[uint64(offset)+8+16*i:]
		x := cacheExtension{tag: le.Uint32(b), flags: le.Uint32(b[4:])}
		from, size := uint64(le.Uint32(b[8:])), uint64(le.Uint32(b[12:]))
		if from+size > uint64(len(data)) {
			return nil, fmt.Errorf("%w: extension %d is cut", errCache, i)
		}
		x.data = data[from : from+size]
		if x.tag == extensionHWCaps {
			for b := x.data; len(b) >= 4; b = b[4:] {
				name, ok := cacheString(data, le.Uint32(b))
				if !ok {
					return nil, fmt.Errorf("%w: extension %d has no name", errCache, i)
				}
				x.names = append(x.names, name)
			}
		}
		out = append(out, x)
	}
	return out, nil
}
