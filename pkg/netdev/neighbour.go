package netdev

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A neighbour is an RTM_NEWNEIGH message: struct ndmsg (linux/neighbour.h) with
// family, padding, interface index, state (two bytes), flags and type.

const (
	neighbourHeader  = unix.SizeofNdMsg
	neighbourIfindex = 4
	neighbourState   = 8
)

// neighboursOf are a link's permanent neighbours; the others the kernel learns again.
func neighboursOf(dump [][]byte, index int) [][]byte {
	var own [][]byte
	for _, m := range dump {
		permanent := binary.NativeEndian.Uint16(m[neighbourState:])&unix.NUD_PERMANENT != 0
		ip := m[0] == unix.AF_INET || m[0] == unix.AF_INET6
		if int(binary.NativeEndian.Uint32(m[neighbourIfindex:])) == index && ip && permanent {
			own = append(own, m)
		}
	}
	return own
}

func neighbourTo(m []byte, index int) []byte {
	out := rewrite(m, neighbourHeader, func(a *attribute) bool {
		return a.kind != unix.NDA_CACHEINFO && a.kind != unix.NDA_PROBES
	})
	binary.NativeEndian.PutUint32(out[neighbourIfindex:], uint32(index))
	return out
}
