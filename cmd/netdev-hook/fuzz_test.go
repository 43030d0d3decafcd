package main

import (
	"bytes"
	"path/filepath"
	"testing"
)

// FuzzReadState checks that an id that is taken can be part of a path and a line.
func FuzzReadState(f *testing.F) {
	for _, s := range []string{
		`{"ociVersion":"1.0.2","id":"c1","pid":4711,"status":"created","bundle":"/x","annotations":{"a":"b"}}`,
		``, `{`, `null`, `[]`, `{"id":"../../x"}`, `{"id":".."}`, `{"id":"a\nb"}`, `{"id":"c1","pid":"1"}`, `{"id":"c1","pid":1e99}`, `{"ID":"c1","pid":-1}`, `{"id":"c1"}{"id":"c2"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		state, err := readState(bytes.NewReader(data))
		if err != nil {
			if line := oneLine(err); bytes.ContainsAny([]byte(line), "\n") {
				t.Fatalf("the error has more than a line: %q", line)
			}
			return
		}
		if state.ID != filepath.Base(state.ID) || state.ID == "." || state.ID == ".." {
			t.Fatalf("%s is taken, with id %q", data, state.ID)
		}
	})
}
