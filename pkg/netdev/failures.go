package netdev

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"podrail/internal/hookapi"
)

const (
	failuresFile  = "failures"
	keptFailures  = 20
	failureLength = 2000
)

// RecordFailure keeps the line for `netdev-hook status`, and tells the kernel's
// log: crun throws a hook's stderr away. What cannot be written is not: the
// failure itself has been reported already.
func (h Hook) RecordFailure(container, line string) {
	if len(line) > failureLength {
		line = line[:failureLength] + "..."
	}
	if kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		// Priority 3 is "error"; the kernel escapes what is not printable.
		_, _ = kmsg.WriteString("<3>netdev-hook: " + line)
		kmsg.Close()
	}
	if trusted(h.Dir) != nil {
		return
	}
	last := append(h.Failures(), hookapi.Failure{Time: time.Now().UTC(), Container: container, Message: line})
	var b bytes.Buffer
	for _, f := range last[max(0, len(last)-keptFailures):] {
		_ = json.NewEncoder(&b).Encode(f) // plain data
	}
	temp, err := os.CreateTemp(h.Dir, ".failures-*")
	if err != nil {
		return
	}
	_, err = temp.Write(b.Bytes())
	temp.Close()
	if err == nil {
		err = os.Rename(temp.Name(), filepath.Join(h.Dir, failuresFile))
	}
	if err != nil {
		os.Remove(temp.Name())
	}
}

// Failures are the last failures of hooks on this host, oldest first.
func (h Hook) Failures() []hookapi.Failure {
	data, err := os.ReadFile(filepath.Join(h.Dir, failuresFile))
	if err != nil {
		return nil
	}
	var all []hookapi.Failure
	for line := range bytes.Lines(data) {
		var f hookapi.Failure
		if json.Unmarshal(line, &f) == nil {
			all = append(all, f)
		}
	}
	return all
}
