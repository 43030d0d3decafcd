package allocate

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// PodInfo goes by annotations and labels in a downward API volume at
// /etc/podinfo: cdi-gen/gpus or nvidia.com/gpu, and cdi-gen/nics, each a number.
// Whoever makes the pod writes them, so that they are checked against, no more.
type PodInfo struct{}

// Name is "podinfo".
func (PodInfo) Name() string { return "podinfo" }

// podInfoFiles are where the Kubernetes documentation mounts them.
var podInfoFiles = []string{"/etc/podinfo/annotations", "/etc/podinfo/labels"}

// Ask reads the files.
func (PodInfo) Ask(p Pod) (f Finding) {
	f.GPUs = silent("no annotation or label cdi-gen/gpus or nvidia.com/gpu in /etc/podinfo")
	f.NICs = silent("no annotation or label cdi-gen/nics in /etc/podinfo")
	for _, file := range podInfoFiles {
		data, err := p.Root.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			f.Err = err
			return f
		}
		for line := range strings.Lines(string(data)) {
			key, quoted, _ := strings.Cut(strings.TrimSpace(line), "=")
			said := &f.GPUs
			switch {
			case key == "cdi-gen/nics":
				said = &f.NICs
			case !slices.Contains([]string{"cdi-gen/gpus", "nvidia.com/gpu"}, key):
				continue
			}
			if f.Err = said.count(file+" "+key, quoted); f.Err != nil {
				return f
			}
		}
	}
	return f
}

// count takes over a number that the kubelet wrote in quotes.
func (s *Said) count(where, quoted string) error {
	text, err := strconv.Unquote(quoted)
	if err != nil {
		return fmt.Errorf("%s: %s is not in quotes", where, quoted)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return fmt.Errorf("%s: %q is no number of devices", where, text)
	}
	if s.Weight == Counts && s.Count != n {
		return fmt.Errorf("%s is %d, %s", where, n, s.How)
	}
	*s = Said{Weight: Counts, Count: n, How: where + "=" + text}
	return nil
}
