package claim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"podrail/internal/golden"
	"podrail/internal/resourceslice"
	"podrail/pkg/discover"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"sigs.k8s.io/yaml"
)

func a4(t testing.TB) *discover.Host {
	t.Helper()
	root, err := discover.OpenRoot("../../testdata/hosts/a4-highgpu-8g")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	host, err := discover.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// but says that these devices, by name, are taken.
func but(names ...string) func(Device) string {
	return func(d Device) string {
		if slices.Contains(names, d.Name) {
			return "job1"
		}
		return ""
	}
}

func file(t testing.TB, name string) File {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return File{name, data}
}

// given is a result as "claim/request=device ..." with one name for each claim.
func given(r *Result) string {
	var out []string
	for _, g := range r.Requests {
		out = append(out, g.Device.Name)
	}
	return strings.Join(out, " ")
}

const (
	allNICs  = "gpu0rdma0 gpu1rdma0 gpu2rdma0 gpu3rdma0 gpu4rdma0 gpu5rdma0 gpu6rdma0 gpu7rdma0"
	fourNICs = "gpu0rdma0 gpu1rdma0 gpu2rdma0 gpu3rdma0"
)

// TestPublished are claims that people published, unmodified.
func TestPublished(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	cases := []struct {
		files string
		taken []string
		want  string
	}{
		{"all-nic.yaml", nil, allNICs},
		{"2-gpu.yaml", nil, "gpu-0 gpu-1"},
		{"class-dranet.yaml gib.yaml", nil, allNICs},
		{"gib.yaml", nil, allNICs},
		{"gib-allocated.yaml", nil, allNICs},
		{"flexible4nics.yaml", nil, fourNICs},
		{"flexible4nics.yaml", strings.Fields(fourNICs), "gpu4rdma0 gpu5rdma0 gpu6rdma0 gpu7rdma0"},
		{"flexible4nics.yaml", []string{"gpu0rdma0"}, "gpu1rdma0 gpu2rdma0 gpu3rdma0 gpu4rdma0"},
		{"2-gpu.yaml flexible4nics.yaml", []string{"gpu0rdma0"}, "gpu-0 gpu-1 gpu1rdma0 gpu2rdma0 gpu3rdma0 gpu4rdma0"},
	}
	for _, c := range cases {
		var files []File
		for _, name := range strings.Fields(c.files) {
			files = append(files, file(t, "published/"+name))
		}
		result, err := Allocate(t.Context(), inv, but(c.taken...), files)
		if err != nil {
			t.Errorf("%s: %v", c.files, err)
			continue
		}
		if got := given(result); got != c.want {
			t.Errorf("%s: %s, expected %s", c.files, got, c.want)
		}
	}
}

// TestMended is the published claim that lacks a parenthesis: the message points
// at where it belongs, and with it the claim works.
func TestMended(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	f := file(t, "published/2-nic.yaml")
	_, err := Allocate(t.Context(), inv, but(), []File{f})
	want := &Error{File: f.Name, Document: 1, Line: 18, Column: 79, Text: `claim "2-nic": request "nic": selector 1: Syntax error: missing ')' at '<EOF>'`}
	if got := new(Error); !errors.As(err, &got) || *got != *want {
		t.Errorf("%v, expected %v", err, want)
	}
	f.Data = []byte(strings.TrimRight(string(f.Data), "\n") + ")\n")
	result, err := Allocate(t.Context(), inv, but(), []File{f, file(t, "published/2-gpu.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := given(result), "gpu0rdma0 gpu1rdma0 gpu-0 gpu-1"; got != want {
		t.Errorf("%s, expected %s", got, want)
	}
}

// pairs is a claim for n GPUs, each with a NIC that has one value of an attribute.
func pairs(n int, attributes ...string) File {
	var requests, constraints strings.Builder
	for i := range n {
		fmt.Fprintf(&requests, "    - {name: gpu%d, exactly: {deviceClassName: gpu.nvidia.com}}\n", i)
		fmt.Fprintf(&requests, "    - {name: nic%d, exactly: {deviceClassName: dranet, selectors: [{cel: {expression: 'device.attributes[\"dra.net\"].rdma'}}]}}\n", i)
		for _, a := range attributes {
			fmt.Fprintf(&constraints, "    - {requests: [gpu%d, nic%d], matchAttribute: %s}\n", i, i, a)
		}
	}
	return File{"pairs.yaml", []byte("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: pairs}\nspec:\n  devices:\n    requests:\n" +
		requests.String() + "    constraints:\n" + constraints.String())}
}

const root = "resource.kubernetes.io/pcieRoot"

// TestAllocate are claims by what they ask for: requests in YAML, in v1.
func TestAllocate(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	const gpu, nic = "deviceClassName: gpu.nvidia.com", "deviceClassName: dranet"
	select_ := func(expression string) string { return `selectors: [{cel: {expression: '` + expression + `'}}]` }
	cases := []struct {
		name, spec string
		taken      []string
		want       string
	}{
		{"count defaults to 1", `requests: [{name: a, exactly: {` + gpu + `}}]`, nil, "gpu-0"},
		{"taken devices are not given", `requests: [{name: a, exactly: {` + gpu + `, count: 2}}]`, []string{"gpu-0", "gpu-2"}, "gpu-1 gpu-3"},
		{"all", `requests: [{name: a, exactly: {` + nic + `, allocationMode: All}}]`, nil, allNICs},
		{"one root", `requests: [{name: a, exactly: {` + gpu + `}}, {name: b, exactly: {` + nic + `}}], constraints: [{matchAttribute: ` + root + `}]`, nil, "gpu-0 gpu0rdma0"},
		{"the NIC decides", `requests: [{name: a, exactly: {` + gpu + `}}, {name: b, exactly: {` + nic + `, ` + select_(`device.attributes["dra.net"].ifName == "gpu5rdma0"`) + `}}], constraints: [{matchAttribute: ` + root + `}]`, nil, "gpu-4 gpu5rdma0"},
		{"four and four on a node", `requests: [{name: a, exactly: {` + gpu + `, count: 4}}, {name: b, exactly: {` + nic + `, count: 4}}], constraints: [{matchAttribute: resource.kubernetes.io/numaNode}]`, []string{"gpu-1"}, "gpu-4 gpu-5 gpu-6 gpu-7 gpu4rdma0 gpu5rdma0 gpu6rdma0 gpu7rdma0"},
		{"the first that is available", `requests: [{name: a, firstAvailable: [{name: many, ` + gpu + `, count: 16}, {name: few, ` + gpu + `, count: 2}]}]`, nil, "gpu-0 gpu-1"},
		{"different nodes", `requests: [{name: a, exactly: {` + gpu + `, count: 2}}], constraints: [{requests: [a], distinctAttribute: resource.kubernetes.io/numaNode}]`, nil, "gpu-0 gpu-4"},
		{"a version", `requests: [{name: a, exactly: {` + gpu + `, ` + select_(`device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("550.0.0"))`) + `}}]`, nil, "gpu-0"},
		{"a regular expression", `requests: [{name: a, exactly: {` + nic + `, ` + select_(`device.attributes["dra.net"].ifName.find("[0-9]+") == "6"`) + `}}]`, nil, "gpu6rdma0"},
		{"a product", `requests: [{name: a, exactly: {` + gpu + `, ` + select_(`device.attributes["gpu.nvidia.com"].productName.contains("B200") && device.attributes["gpu.nvidia.com"].index > 5`) + `}}]`, nil, "gpu-6"},
	}
	for _, c := range cases {
		f := File{"claim.yaml", []byte("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {" + c.spec + "}}\n")}
		result, err := Allocate(t.Context(), inv, but(c.taken...), []File{f})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := given(result); got != c.want {
			t.Errorf("%s: %s, expected %s", c.name, got, c.want)
		}
	}
}

// TestVersions is one claim in all versions.
func TestVersions(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	const body = "kind: ResourceClaimTemplate\nmetadata: {name: c}\nspec: {spec: {devices: {requests: [%s]}}}\n"
	for version, request := range map[string]string{
		"v1":      "{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}",
		"v1beta2": "{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}",
		"v1beta1": "{name: a, deviceClassName: gpu.nvidia.com, count: 2}",
	} {
		f := File{version, fmt.Appendf(nil, "apiVersion: resource.k8s.io/%s\n"+body, version, request)}
		result, err := Allocate(t.Context(), inv, but(), []File{f})
		if err != nil || given(result) != "gpu-0 gpu-1" {
			t.Errorf("%s: %v, %v", version, result, err)
		}
	}
}

// TestMany are pairs, and how long the answer takes: the search alone takes
// seconds where there is none.
func TestMany(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	for _, c := range []struct {
		file  File
		taken []string
		met   bool
	}{
		{pairs(8, root), nil, true},
		{pairs(8, root, "resource.kubernetes.io/numaNode"), nil, true},
		{pairs(8, root), []string{"gpu0rdma0"}, false},
		{pairs(7, root), []string{"gpu0rdma0"}, true},
		{pairs(7, root), []string{"gpu0rdma0", "gpu-2"}, false},
		{pairs(7, root, "resource.kubernetes.io/numaNode"), []string{"gpu0rdma0", "gpu-2"}, false},
		{pairs(6, root), []string{"gpu0rdma0", "gpu-2"}, true},
	} {
		start := time.Now()
		result, err := Allocate(t.Context(), inv, but(c.taken...), []File{c.file})
		if (err == nil) != c.met || !c.met && !errors.As(err, new(*Unmet)) {
			t.Errorf("%s, taken %v: %v, %v", c.file.Data, c.taken, result, err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("taken %v: took %v", c.taken, took)
		}
	}
}

// TestDeadline is a search that would not end in time.
func TestDeadline(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	// Alternatives are not counted before the search.
	f := pairs(7, root)
	f.Data = []byte(strings.ReplaceAll(string(f.Data), "exactly: {deviceClassName: gpu.nvidia.com}", "firstAvailable: [{name: a, deviceClassName: gpu.nvidia.com}]"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := Allocate(ctx, inv, but("gpu0rdma0", "gpu-2"), []File{f})
	if !errors.As(err, new(*Unmet)) || !strings.Contains(err.Error(), "no allocation was found in") || time.Since(start) > 3*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// unmet are claims that cannot be met, and what is taken.
var unmet = []struct {
	name, requests string
	taken          []string
}{
	{"too few", `requests: [{name: nic, exactly: {deviceClassName: dranet, count: 9}}]`, nil},
	{"taken", `requests: [{name: nic, exactly: {deviceClassName: dranet, count: 8}}]`, []string{"gpu3rdma0"}},
	{"all, taken", `requests: [{name: nic, exactly: {deviceClassName: dranet, allocationMode: All}}]`, []string{"gpu3rdma0"}},
	{"selectors", `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 4, selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].index > 3'}}, {cel: {expression: 'device.attributes["gpu.nvidia.com"].index < 6'}}]}}]`, nil},
	{"no such", `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100"'}}]}}]`, nil},
	{"no MIG", `requests: [{name: gpu, exactly: {deviceClassName: mig.nvidia.com}}]`, nil},
	{"one root", `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}, {name: nic, exactly: {deviceClassName: dranet, count: 3}}], constraints: [{requests: [gpu, nic], matchAttribute: resource.kubernetes.io/pcieRoot}]`, nil},
	{"no attribute", `requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}], constraints: [{requests: [gpu], matchAttribute: example.com/rack}]`, nil},
	{"together", `requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 5}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com, count: 4}}]`, nil},
	{"alternatives", `requests: [{name: a, firstAvailable: [{name: x, deviceClassName: gpu.nvidia.com, count: 9}, {name: z, deviceClassName: dranet, count: 9}]}]`, nil},
	{"missing attribute", `requests: [{name: a, exactly: {deviceClassName: dranet, selectors: [{cel: {expression: 'device.attributes["dra.net"].rack == "a"'}}]}}]`, nil},
}

// TestUnmet compares what people read of claims that cannot be met.
func TestUnmet(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	var out strings.Builder
	for _, c := range unmet {
		f := File{"claim.yaml", []byte("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec:\n  devices: {" + c.requests + "}\n")}
		result, err := Allocate(t.Context(), inv, but(c.taken...), []File{f})
		if err == nil {
			t.Errorf("%s: %s", c.name, given(result))
		}
		fmt.Fprintf(&out, "# %s\n%v\n\n", c.name, err)
	}
	_, err := Allocate(t.Context(), inv, but("gpu0rdma0"), []File{pairs(8, root)})
	where, _, _ := strings.Cut(err.Error(), "\n")
	fmt.Fprintf(&out, "# eight pairs, one NIC taken\n%s\n", where)
	golden.Check(t, "testdata/unmet.txt", []byte(out.String()))
}

// TestBad compares what people read of inputs that are wrong.
func TestBad(t *testing.T) {
	t.Parallel()
	inv := Host(a4(t), "node")
	v1 := func(spec string) string {
		return "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata:\n  name: c\nspec:\n  devices:\n" + spec
	}
	const request = "    requests:\n    - name: gpu\n      exactly:\n        deviceClassName: gpu.nvidia.com\n"
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 9))
	}
	cases := []struct{ name, text string }{
		{"empty", ""},
		{"comments", "# nothing\n---\n# here\n"},
		{"binary", "\x00\x01"},
		{"too large", strings.Repeat("a", 10_000_000)},
		{"aliases of aliases", bomb},
		{"deep", strings.Repeat("[", 100_000)},
		{"broken YAML in the second document", v1(request) + "---\nkind: [\n"},
		{"a key twice", "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nkind: DeviceClass\n"},
		{"a list", "- a\n"},
		{"another kind", "apiVersion: v1\nkind: Pod\n"},
		{"no kind", "apiVersion: resource.k8s.io/v1\n"},
		{"old version", "apiVersion: resource.k8s.io/v1alpha3\nkind: ResourceClaim\n"},
		{"no claims", "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: x}\nspec: {}\n"},
		{"unknown field", v1(request + "        cuont: 2\n")},
		{"wrong type", v1(request + "        count: two\n")},
		{"a boolean that is a name", v1("    requests:\n    - name: n\n")},
		{"v1 header, v1beta1 body", v1("    requests:\n    - name: gpu\n      deviceClassName: gpu.nvidia.com\n")},
		{"v1beta1 header, v1 body", strings.Replace(v1(request), "/v1", "/v1beta1", 1)},
		{"nothing requested", v1("    requests: []\n")},
		{"neither exactly nor firstAvailable", v1("    requests:\n    - name: gpu\n")},
		{"no class", v1("    requests:\n    - name: gpu\n      exactly: {count: 1}\n")},
		{"unknown class", v1("    requests:\n    - name: gpu\n      exactly: {deviceClassName: gpu}\n")},
		{"negative count", v1(request + "        count: -1\n")},
		{"33 devices", v1(request + "        count: 33\n")},
		{"unknown mode", v1(request + "        allocationMode: Some\n")},
		{"all and a count", v1(request + "        allocationMode: All\n        count: 2\n")},
		{"adminAccess", v1(request + "        adminAccess: true\n")},
		{"two of a name", v1(request + strings.TrimPrefix(request, "    requests:\n"))},
		{"a bad name", v1(strings.Replace(request, "name: gpu", "name: GPU_0", 1))},
		{"selector without cel", v1(request + "        selectors:\n        - {}\n")},
		{"CEL syntax", v1(request + "        selectors:\n        - cel:\n            expression: |\n              device.driver == \"x\" &&\n              device.driver = \"y\"\n")},
		{"CEL in quotes", v1(request + "        selectors:\n        - cel: {expression: \"device.driver == 'x' + 1\"}\n")},
		{"CEL type", v1(request + "        selectors:\n        - cel:\n            expression: device.atributes[\"dra.net\"].rdma == true\n")},
		{"CEL that is no condition", v1(request + "        selectors:\n        - cel:\n            expression: device.driver\n")},
		{"CEL too long", v1(request + "        selectors:\n        - cel:\n            expression: device.driver == \"" + strings.Repeat("x", 10_240) + "\"\n")},
		{"constraint on no request", v1(request + "    constraints:\n    - requests: [nic]\n      matchAttribute: a.b/c\n")},
		{"constraint without an attribute", v1(request + "    constraints:\n    - requests: [gpu]\n")},
		{"attribute without a domain", v1(request + "    constraints:\n    - matchAttribute: pcieRoot\n")},
		{"a claim twice", v1(request) + "---\n" + v1(request)},
		{"allocated elsewhere", v1(request) + "status:\n  allocation:\n    devices:\n      results:\n      - {request: gpu, driver: gpu.nvidia.com, pool: x, device: gpu-8}\n"},
	}
	var out strings.Builder
	for _, c := range cases {
		start := time.Now()
		result, err := Allocate(t.Context(), inv, but(), []File{{"claim.yaml", []byte(c.text)}})
		if err == nil {
			t.Errorf("%s: %s", c.name, given(result))
			continue
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: took %v", c.name, took)
		}
		fmt.Fprintf(&out, "# %s\n%v\n\n", c.name, err)
	}
	golden.Check(t, "testdata/bad.txt", []byte(out.String()))
}

// TestSlices has the API's own types read strictly what cdi-gen writes, and
// claims be evaluated on that instead of the host.
func TestSlices(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a4-highgpu-8g", "a100-mig", "infiniband-4vf"} {
		data, err := os.ReadFile(filepath.Join("../resourceslice/testdata", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		inv, err := Slices(File{name, data})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range inv.slices {
			if errs := resourcev1.Validate_ResourceSliceSpec(t.Context(), operation.Operation{Type: operation.Create, Options: map[string]bool{"DRAPartitionableDevicesType": false}}, nil, &s.Spec, nil); len(errs) > 0 {
				t.Errorf("%s: %v", s.Name, errs)
			}
		}
		if name != "a4-highgpu-8g" {
			continue
		}
		result, err := Allocate(t.Context(), inv, but("gpu0rdma0"), []File{pairs(2, root)})
		if err != nil || given(result) != "gpu-0 gpu1rdma0 gpu-2 gpu2rdma0" {
			t.Errorf("%v, %v", result, err)
		}
		if d := result.Requests[0].Device; d.UUID != "GPU-00261f28-8bd7-afb7-c2d9-897ff3f13706" || d.PCIAddress != "0000:8f:00.0" {
			t.Errorf("%+v", d)
		}
		if d := result.Requests[1].Device; d.Interface != "gpu1rdma0" || d.PCIAddress != "0000:92:00.0" {
			t.Errorf("%+v", d)
		}
	}
	claim := string(pairs(1, root).Data)
	for _, text := range []string{claim, "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: a}\nspec: {driver: x, allNodes: true, pool: {name: p, resourceSliceCount: 1, generation: 1}}\n"} {
		if _, err := Slices(File{"x", []byte(text)}); err == nil {
			t.Errorf("an inventory: %s", text)
		}
	}
}

// TestQuantity are attributes that this host does not have, and NVIDIA's driver
// publishes.
func TestQuantity(t *testing.T) {
	t.Parallel()
	slices := resourceslice.Make(a4(t), "node")[:1]
	data, err := yaml.Marshal(slices[0])
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(data), "    name: gpu-3\n", "    capacity: {memory: {value: 180Gi}}\n    name: gpu-3\n", 1)
	text = strings.Replace(strings.ReplaceAll(text, "    name: gpu-", "    capacity: {memory: {value: 40Gi}}\n    name: gpu-"), "    capacity: {memory: {value: 180Gi}}\n    capacity: {memory: {value: 40Gi}}\n", "    capacity: {memory: {value: 180Gi}}\n", 1)
	inv, err := Slices(File{"x", []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	f := File{"claim.yaml", []byte(`{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com,
  selectors: [{cel: {expression: 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) > 0'}}]}}]}}}`)}
	if result, err := Allocate(t.Context(), inv, but(), []File{f}); err != nil || given(result) != "gpu-3" {
		t.Errorf("%v, %v", result, err)
	}
}

// TestImports keeps Kubernetes' libraries, which triple a program's size, in the
// one that needs them.
func TestImports(t *testing.T) {
	t.Parallel()
	list := func(packages ...string) []string {
		out, err := exec.Command("go", append([]string{"list", "-deps"}, packages...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(out))
	}
	heavy := func(name string) bool {
		return slices.ContainsFunc([]string{"k8s.io/dynamic-resource-allocation/", "k8s.io/apiserver/", "k8s.io/apimachinery/",
			"k8s.io/api/", "github.com/google/cel-go/"}, func(module string) bool { return strings.HasPrefix(name, module) })
	}
	if with := list("podrail/cmd/cdi-claim"); !slices.ContainsFunc(with, heavy) {
		t.Error("cdi-claim does not import k8s.io: this test proves nothing")
	}
	for _, p := range list("podrail/cmd/cdi-gen", "podrail/cmd/netdev-hook") {
		if heavy(p) {
			t.Errorf("cdi-gen or netdev-hook imports %s", p)
		}
	}
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "podrail/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if words[0] != "podrail/internal/claim" && slices.ContainsFunc(words[1:], func(p string) bool {
			return strings.HasPrefix(p, "k8s.io/dynamic-resource-allocation") || strings.HasPrefix(p, "k8s.io/api/resource")
		}) {
			t.Errorf("%s imports what internal/claim alone may", words[0])
		}
	}
}

func BenchmarkAllocate(b *testing.B) {
	inv := Host(a4(b), "node")
	for _, c := range []struct {
		name  string
		file  File
		taken []string
	}{
		{"2-gpu", file(b, "published/2-gpu.yaml"), nil},
		{"8-pairs", pairs(8, root), nil},
		{"8-pairs-one-NIC-taken", pairs(8, root), []string{"gpu0rdma0"}},
		{"7-pairs-no-room", pairs(7, root), []string{"gpu0rdma0", "gpu-2"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				Allocate(b.Context(), inv, but(c.taken...), []File{c.file})
			}
		})
	}
}

// FuzzAllocate makes sure that no input whatever makes the allocator panic, or
// gives a device twice, or one that is taken.
func FuzzAllocate(f *testing.F) {
	inv := Host(a4(f), "node")
	files, err := filepath.Glob("testdata/published/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Add(string(pairs(2, root).Data))
	f.Fuzz(func(t *testing.T, text string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		result, err := Allocate(ctx, inv, but("gpu0rdma0"), []File{{"x", []byte(text)}})
		if err != nil {
			if strings.Contains(err.Error(), "the allocator failed") {
				t.Error(err)
			}
			return
		}
		seen := map[string]bool{"gpu0rdma0": true}
		for _, name := range strings.Fields(given(result)) {
			if seen[name] {
				t.Errorf("%s is given twice, or is taken", name)
			}
			seen[name] = true
		}
	})
}
