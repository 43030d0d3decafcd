package hookapi

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseMemlock reads a limit of locked memory: bytes, a number with K, M, G or T
// (powers of 1024), or "unlimited", which is RLIM_INFINITY.
func ParseMemlock(s string) (uint64, error) {
	if s == "unlimited" {
		return math.MaxUint64, nil
	}
	digits := strings.TrimRight(s, "KMGT")
	shift, ok := map[string]int{"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[s[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n == 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is no size: expected bytes, a number with K, M, G or T, or unlimited", s)
	}
	return n << shift, nil
}

// CheckMemlock is ParseMemlock for one that may be left out.
func CheckMemlock(s string) error {
	if s == "" {
		return nil
	}
	_, err := ParseMemlock(s)
	return err
}
