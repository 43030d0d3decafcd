package cdi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Bounds on what is read of a library, whatever it says of itself. The driver's
// have ten program headers and 60 dynamic entries.
const (
	maxProgramHeaders = 64
	maxDynamic        = 64 << 10
	maxSONAME         = 255
)

var errNoELF = errors.New("no ELF file")

// object is the little that has to be known of a library.
type object struct {
	class  elf.Class
	soname string
}

// readObject reads a library's class and SONAME by its program headers, as the
// loader does: section headers may be stripped, and are many more bytes to read.
// What is no ELF file is errNoELF; of a 32-bit one the SONAME is read, too.
func readObject(r io.ReaderAt) (object, error) {
	var head [64]byte
	n, err := r.ReadAt(head[:], 0)
	if n < 52 || !bytes.HasPrefix(head[:], []byte(elf.ELFMAG)) {
		if err != nil && !errors.Is(err, io.EOF) {
			return object{}, err
		}
		return object{}, errNoELF
	}
	o := object{class: elf.Class(head[elf.EI_CLASS])}
	if elf.Data(head[elf.EI_DATA]) != elf.ELFDATA2LSB || o.class != elf.ELFCLASS64 && o.class != elf.ELFCLASS32 {
		return o, errors.New("not for this machine: neither 32 nor 64 bits, or big-endian")
	}
	segments, err := readSegments(r, head[:], o.class)
	if err != nil {
		return o, err
	}
	o.soname, err = readSONAME(r, o.class, segments)
	return o, err
}

// segment is a program header.
type segment struct {
	kind                elf.ProgType
	offset, vaddr, size uint64
}

func readSegments(r io.ReaderAt, head []byte, class elf.Class) ([]segment, error) {
	le := binary.LittleEndian
	offset, size, count := le.Uint64(head[32:]), int(le.Uint16(head[54:])), int(le.Uint16(head[56:]))
	want := 56
	if class == elf.ELFCLASS32 {
		offset, size, count, want = uint64(le.Uint32(head[28:])), int(le.Uint16(head[42:])), int(le.Uint16(head[44:])), 32
	}
	if size != want || count > maxProgramHeaders {
		return nil, fmt.Errorf("has %d program headers of %d bytes, expected at most %d of %d", count, size, maxProgramHeaders, want)
	}
	table := make([]byte, size*count)
	if err := readAt(r, table, offset); err != nil {
		return nil, fmt.Errorf("program headers: %w", err)
	}
	var out []segment
	for b := table; len(b) > 0; b = b[size:] {
		s := segment{kind: elf.ProgType(le.Uint32(b))}
		if class == elf.ELFCLASS64 {
			s.offset, s.vaddr, s.size = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[32:])
		} else {
			s.offset, s.vaddr, s.size = uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[8:])), uint64(le.Uint32(b[16:]))
		}
		out = append(out, s)
	}
	return out, nil
}

// readSONAME is empty for a library that has none.
func readSONAME(r io.ReaderAt, class elf.Class, segments []segment) (string, error) {
	var dynamic segment
	for _, s := range segments {
		if s.kind == elf.PT_DYNAMIC {
			dynamic = s
		}
	}
	table := make([]byte, min(dynamic.size, maxDynamic))
	if err := readAt(r, table, dynamic.offset); err != nil {
		return "", fmt.Errorf("dynamic section: %w", err)
	}
	word := 8
	if class == elf.ELFCLASS32 {
		word = 4
	}
	number := func(b []byte) uint64 {
		if word == 4 {
			return uint64(binary.LittleEndian.Uint32(b))
		}
		return binary.LittleEndian.Uint64(b)
	}
	var name, strings uint64
	for b := table; len(b) >= 2*word; b = b[2*word:] {
		switch tag, value := elf.DynTag(number(b)), number(b[word:]); tag {
		case elf.DT_SONAME:
			name = value
		case elf.DT_STRTAB:
			strings = value
		case elf.DT_NULL:
			b = nil
		}
		if b == nil {
			break
		}
	}
	if name == 0 {
		return "", nil
	}
	for _, s := range segments {
		at := strings + name
		if s.kind == elf.PT_LOAD && s.vaddr <= at && at-s.vaddr < s.size {
			return readString(r, s.offset+at-s.vaddr)
		}
	}
	return "", errors.New("SONAME is outside the file")
}

func readString(r io.ReaderAt, offset uint64) (string, error) {
	if int64(offset) < 0 {
		return "", io.ErrUnexpectedEOF
	}
	buf := make([]byte, maxSONAME+1)
	n, err := r.ReadAt(buf, int64(offset))
	text, _, ended := bytes.Cut(buf[:n], []byte{0})
	if !ended {
		if err == nil || errors.Is(err, io.EOF) {
			err = errors.New("SONAME has no end")
		}
		return "", err
	}
	return string(text), nil
}

// readAt fills the buffer or fails.
func readAt(r io.ReaderAt, buf []byte, offset uint64) error {
	if int64(offset) < 0 {
		return io.ErrUnexpectedEOF
	}
	n, err := r.ReadAt(buf, int64(offset))
	if n == len(buf) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
