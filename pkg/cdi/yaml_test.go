package cdi

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/specs-go"
)

// TestYAML compares with the library's text, for all specs that have been read.
func TestYAML(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../cmd/cdi-gen/testdata/specs/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.SplitAfter(string(data), "\n---\n") {
			document = strings.TrimSuffix(strings.TrimPrefix(document, "---\n"), "---\n")
			var spec specs.Spec
			if err := yaml.Unmarshal([]byte(document), &spec); err != nil {
				t.Fatal(err)
			}
			got, ok := appendYAML(nil, &spec)
			if diff := cmp.Diff(document, string(got)); !ok || diff != "" {
				t.Errorf("%s (-library's +ours):\n%s", file, diff)
			}
		}
	}
	if _, ok := appendYAML(nil, &specs.Spec{Annotations: map[string]string{"a": "b"}}); ok {
		t.Error("annotations are left out")
	}
	if _, ok := appendYAML(nil, &specs.Spec{ContainerEdits: specs.ContainerEdits{AdditionalGIDs: []uint32{1}}}); ok {
		t.Error("additionalGids are left out")
	}
}

// FuzzYAML has the library read back what was written, whatever is in it.
func FuzzYAML(f *testing.F) {
	for _, s := range []string{"0", "0:1", "yes", "a: b", "-x", "---", "é\x00\u2028", "1e3", "0x1", "~", "{", "#", "'", `"`, " a", "a\n", "=", "<<", "2020-01-01", ".inf", "\xff", "-.5", "_1"} {
		f.Add(s, int64(7), uint32(0))
	}
	f.Fuzz(func(t *testing.T, s string, n int64, id uint32) {
		s = strings.ToValidUTF8(s, "?")
		mode, timeout := os.FileMode(id), int(n)
		edits := specs.ContainerEdits{
			Env:         []string{s, "A=" + s},
			DeviceNodes: []*specs.DeviceNode{{Path: s, HostPath: s, Type: s, Major: n, Minor: -n, FileMode: &mode, Permissions: s, UID: &id, GID: &id}, {Path: s}},
			NetDevices:  []*specs.LinuxNetDevice{{HostInterfaceName: s, Name: s}},
			Hooks:       []*specs.Hook{{HookName: s, Path: s, Args: []string{s}, Env: []string{s}, Timeout: &timeout}, {HookName: "x", Path: s}},
			Mounts:      []*specs.Mount{{HostPath: s, ContainerPath: s, Options: []string{s}, Type: s}, {HostPath: s, ContainerPath: "/"}},
		}
		want := specs.Spec{Version: s, Kind: s, Devices: []specs.Device{{Name: s, ContainerEdits: edits}, {Name: "x"}}, ContainerEdits: edits}
		text, ok := appendYAML(nil, &want)
		if !ok {
			t.Fatal("not written")
		}
		var got specs.Spec
		if err := yaml.Unmarshal(text, &got); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("read back otherwise: %s\n%s", cmp.Diff(want, got), text)
		}
	})
}
