package netdev

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// attribute is one netlink attribute of a message: its number without the flags
// for nesting and byte order, and the bytes as the kernel wrote them.
type attribute struct {
	kind  uint16
	flags uint16
	value []byte
}

const attributeFlags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

// attributes splits a message's attributes, which begin after a header of the
// given size. A message that is cut short yields those before the cut.
func attributes(msg []byte, header int) []attribute {
	var all []attribute
	if len(msg) < header {
		return nil
	}
	for rest := msg[header:]; len(rest) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		kind := binary.NativeEndian.Uint16(rest[2:])
		if size < unix.SizeofRtAttr || size > len(rest) {
			break
		}
		all = append(all, attribute{kind &^ attributeFlags, kind & attributeFlags, rest[unix.SizeofRtAttr:size]})
		rest = rest[min(align(size), len(rest)):]
	}
	return all
}

// attributeOf is the value of the first attribute of a kind, nil without one.
func attributeOf(msg []byte, header int, kind uint16) []byte {
	for _, a := range attributes(msg, header) {
		if a.kind == kind {
			return a.value
		}
	}
	return nil
}

// uint32Of is attributeOf for a number; 0 without one.
func uint32Of(msg []byte, header int, kind uint16) uint32 {
	if v := attributeOf(msg, header, kind); len(v) >= 4 {
		return binary.NativeEndian.Uint32(v)
	}
	return 0
}

// appendAttribute appends an attribute with its padding.
func appendAttribute(msg []byte, a attribute) []byte {
	size := unix.SizeofRtAttr + len(a.value)
	msg = binary.NativeEndian.AppendUint16(msg, uint16(size))
	msg = binary.NativeEndian.AppendUint16(msg, a.kind|a.flags)
	msg = append(msg, a.value...)
	return append(msg, make([]byte, align(size)-size)...)
}

func number(kind uint16, v uint32) attribute {
	return attribute{kind: kind, value: binary.NativeEndian.AppendUint32(nil, v)}
}

func text(kind uint16, s string) attribute {
	return attribute{kind: kind, value: append([]byte(s), 0)}
}

// rewrite copies a message with its attributes passed through edit, which
// returns false to leave one out. The header is the caller's to change.
func rewrite(msg []byte, header int, edit func(*attribute) bool) []byte {
	out := append([]byte(nil), msg[:header]...)
	for _, a := range attributes(msg, header) {
		if edit(&a) {
			out = appendAttribute(out, a)
		}
	}
	return out
}

func align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// linkMessage is an ifinfomsg (linux/rtnetlink.h) for an interface, with attributes.
func linkMessage(index int, flags, change uint32, attrs ...attribute) []byte {
	msg := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(msg[4:], uint32(index))
	binary.NativeEndian.PutUint32(msg[8:], flags)
	binary.NativeEndian.PutUint32(msg[12:], change)
	for _, a := range attrs {
		msg = appendAttribute(msg, a)
	}
	return msg
}
