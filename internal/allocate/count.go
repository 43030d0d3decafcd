package allocate

import (
	"fmt"
	"strconv"
	"strings"
)

// Count reads a LIST that is "count=N"; ok is false for any other. The error is
// a *SyntaxError.
func Count(list string) (n int, ok bool, err error) {
	number, ok := strings.CutPrefix(list, "count=")
	if !ok {
		return 0, false, nil
	}
	n, err = strconv.Atoi(number)
	if err != nil || n < 1 {
		return 0, true, &SyntaxError{fmt.Sprintf("%q: must be count=N with N 1 or more, and stand alone", list)}
	}
	return n, true, nil
}
