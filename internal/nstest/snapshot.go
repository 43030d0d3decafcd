package nstest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Snapshot describes links by all that a user could miss after one was away, to
// be compared with a later Snapshot: what iproute2 shows of them and of their
// addresses, routes of all tables, permanent neighbours and queueing discipline,
// the rules of the namespace, and the links' sysctls. Without names it describes
// all links.
func (n *Namespace) Snapshot(t testing.TB, names ...string) string {
	t.Helper()
	s, err := n.TrySnapshot(names...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TrySnapshot is Snapshot for a link that may not be there: that is an error.
func (n *Namespace) TrySnapshot(names ...string) (string, error) {
	if len(names) == 0 {
		all, err := n.list("link", "show")
		if err != nil {
			return "", err
		}
		for _, l := range all {
			names = append(names, l["ifname"].(string))
		}
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		for _, args := range [][]string{
			{"-d", "addr", "show", "dev", name},
			{"-4", "-d", "route", "show", "table", "all", "dev", name},
			{"-6", "-d", "route", "show", "table", "all", "dev", name},
			{"neigh", "show", "nud", "permanent", "dev", name},
		} {
			if err := n.describe(&b, args...); err != nil {
				return "", err
			}
		}
		qdisc, err := n.run("tc", "qdisc", "show", "dev", name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "# tc qdisc show dev %s\n%s", name, qdisc)
		if err := n.sysctls(&b, name); err != nil {
			return "", err
		}
	}
	for _, family := range []string{"-4", "-6"} {
		if err := n.describe(&b, family, "rule", "show"); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// describe writes each object that an ip command lists as a block of lines, in an
// order that does not depend on when the kernel got them.
func (n *Namespace) describe(b *strings.Builder, args ...string) error {
	objects, err := n.list(args...)
	if err != nil {
		return err
	}
	var blocks []string
	for _, o := range objects {
		withoutClocks(o)
		text, err := json.MarshalIndent(o, "", " ")
		if err != nil {
			return err
		}
		blocks = append(blocks, string(text)+"\n")
	}
	slices.Sort(blocks)
	fmt.Fprintf(b, "# ip %s\n%s", strings.Join(args, " "), strings.Join(blocks, ""))
	return nil
}

func (n *Namespace) list(args ...string) ([]map[string]any, error) {
	out, err := n.run("ip", append([]string{"-j"}, args...)...)
	if err != nil || strings.TrimSpace(out) == "" {
		return nil, err
	}
	var objects []map[string]any
	if err := json.Unmarshal([]byte(out), &objects); err != nil {
		return nil, fmt.Errorf("ip %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return objects, nil
}

// forever is how iproute2 prints a lifetime without end.
const forever = 1<<32 - 1

// withoutClocks replaces lifetimes that run.
func withoutClocks(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			withoutClocks(e)
		}
	case map[string]any:
		for key, e := range v {
			if seconds, ok := e.(float64); ok && seconds != forever &&
				(key == "valid_life_time" || key == "preferred_life_time" || key == "expires") {
				v[key] = "finite"
			}
			withoutClocks(e)
		}
	}
}

// sysctls writes the values of a link's own sysctls. /proc/sys/net shows the
// namespace of the thread that reads it.
func (n *Namespace) sysctls(b *strings.Builder, name string) error {
	return n.onThread(func() error {
		for _, dir := range []string{"ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"} {
			files, err := filepath.Glob(filepath.Join("/proc/sys/net", dir, name, "*"))
			if err != nil {
				return err
			}
			for _, file := range files {
				value, err := os.ReadFile(file)
				if err != nil { // stable_secret before it is set: EIO
					value = []byte(err.Error() + "\n")
				}
				fmt.Fprintf(b, "%s = %s", strings.TrimPrefix(file, "/proc/sys/"), value)
			}
		}
		return nil
	})
}

// JSON runs ip in the namespace and decodes what it prints. If it fails, the test
// ends.
func (n *Namespace) JSON(t testing.TB, v any, args ...string) {
	t.Helper()
	out := n.Run(t, "ip", append([]string{"-j"}, args...)...)
	if strings.TrimSpace(out) == "" { // iproute2's way to list nothing
		out = "[]"
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
