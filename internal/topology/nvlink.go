package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"podrail/pkg/discover"
)

// Links counts the NVLinks between two GPUs, which are named by their PCI
// addresses, the one that sorts first being first.
type Links map[[2]string]int

// Count is the number of NVLinks between two GPUs.
func (l Links) Count(a, b string) int { return l[pair(a, b)] }

func pair(a, b string) [2]string {
	if b < a {
		a, b = b, a
	}
	return [2]string{a, b}
}

// ReadLinks asks for the NVLinks of a host: the driver's management library
// (NVML) where the root is this machine's own and the library is there, else the
// tree's file "nvlink". Its lines are a number, and GPUs each two of which are
// connected by so many links:
//
//	18 0000:8f:00.0 0000:90:00.0 0000:96:00.0
//
// No file, and no library, is no links.
func ReadLinks(root *discover.Root, host *discover.Host) (Links, error) {
	if root.Live() {
		return liveLinks(host), nil
	}
	data, err := root.ReadFile("/nvlink")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	links, err := parseLinks(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s/nvlink: %w", strings.TrimSuffix(root.Dir(), "/"), err)
	}
	return links, nil
}

func parseLinks(text string) (Links, error) {
	links := Links{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		count, err := strconv.Atoi(words[0])
		if err != nil || count < 1 || len(words) < 3 {
			return nil, fmt.Errorf("line %d: must be a number of links and two or more PCI addresses", number)
		}
		for i, a := range words[1:] {
			for _, b := range words[i+2:] {
				links[pair(a, b)] = count
			}
		}
	}
	return links, nil
}
