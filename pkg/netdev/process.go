package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"podrail/internal/hookapi"
)

// errProcessGone is wrapped by errors about a process that does not run any more.
var errProcessGone = errors.New("is gone")

// processStart is a process's start time in clock ticks since boot. It fails for
// one that has ended, a zombie included.
func processStart(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("process %d %w", pid, errProcessGone)
	}
	// The second field is the command's name in parentheses, and may hold both
	// spaces and parentheses: count from the last one (proc_pid_stat(5)).
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	const state, starttime = 3 - 3, 22 - 3
	if end < 0 || len(fields) <= starttime {
		return 0, fmt.Errorf("process %d: /proc/%d/stat is cut", pid, pid)
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return 0, fmt.Errorf("process %d %w", pid, errProcessGone)
	}
	return strconv.ParseUint(fields[starttime], 10, 64)
}

// alive says whether the container's process still runs. Of one in another
// process namespace (the hook ran in a pod that shares its journal with the host)
// nothing can be said from here: it counts as alive.
func alive(c hookapi.Container) bool {
	if own, err := inodeOf("/proc/self/ns/pid"); c.PIDNamespace != 0 && (err != nil || own != c.PIDNamespace) {
		return true
	}
	start, err := processStart(c.PID)
	return err == nil && start == c.Start
}

// containerNamespace opens the network namespace of a container's process, and
// returns the process's start time. It makes sure that both are of one process.
func containerNamespace(pid int) (*namespace, uint64, error) {
	before, err := processStart(pid)
	if err != nil {
		return nil, 0, err
	}
	n, err := openNamespace("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return nil, 0, fmt.Errorf("network namespace of process %d: %w", pid, err)
	}
	after, err := processStart(pid)
	if err == nil && after != before {
		err = fmt.Errorf("process %d %w", pid, errProcessGone)
	}
	if err != nil {
		n.close()
		return nil, 0, err
	}
	return n, before, nil
}
