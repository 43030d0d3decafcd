package allocate

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubelet "k8s.io/kubelet/pkg/apis/podresources/v1"

	"podrail/pkg/discover"
)

// server is a kubelet's PodResources server, with gRPC's own code.
type server struct {
	kubelet.UnimplementedPodResourcesListerServer
	pods []*kubelet.PodResources
	// get is whether this kubelet has Get.
	get bool
}

func (s *server) List(context.Context, *kubelet.ListPodResourcesRequest) (*kubelet.ListPodResourcesResponse, error) {
	return &kubelet.ListPodResourcesResponse{PodResources: s.pods}, nil
}

func (s *server) Get(_ context.Context, r *kubelet.GetPodResourcesRequest) (*kubelet.GetPodResourcesResponse, error) {
	if !s.get {
		return nil, status.Error(codes.Unimplemented, "PodResources API Get method disabled")
	}
	for _, p := range s.pods {
		if p.Name == r.PodName && p.Namespace == r.PodNamespace {
			return &kubelet.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	return nil, status.Errorf(codes.Unknown, "pod %s in namespace %s not found", r.PodName, r.PodNamespace)
}

// start serves on a socket and returns its path.
func (s *server) start(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	kubelet.RegisterPodResourcesListerServer(g, s)
	go g.Serve(l)
	t.Cleanup(g.Stop)
	return socket
}

func pod(name string, containers ...*kubelet.ContainerResources) *kubelet.PodResources {
	return &kubelet.PodResources{Name: name, Namespace: "ray", Containers: containers}
}

// container has devices "RESOURCE=ID", and "DRIVER/DEVICE" of claims.
func container(name string, devices ...string) *kubelet.ContainerResources {
	c := &kubelet.ContainerResources{Name: name, CpuIds: []int64{0, 1, 2}}
	for _, d := range devices {
		if resource, id, ok := strings.Cut(d, "="); ok {
			c.Devices = append(c.Devices, &kubelet.ContainerDevices{ResourceName: resource, DeviceIds: []string{id},
				Topology: &kubelet.TopologyInfo{Nodes: []*kubelet.NUMANode{{ID: 1}}}})
			continue
		}
		driver, device, _ := strings.Cut(d, "/")
		c.DynamicResources = append(c.DynamicResources, &kubelet.DynamicResource{ClaimName: "c", ClaimNamespace: "ray",
			ClaimResources: []*kubelet.ClaimResource{{DriverName: driver, PoolName: "node", DeviceName: device}}})
	}
	return c
}

func TestPodResources(t *testing.T) {
	t.Parallel()
	old := container("ray-worker")
	old.DynamicResources = []*kubelet.DynamicResource{{ClaimResources: []*kubelet.ClaimResource{
		{CdiDevices: []*kubelet.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=1234-gpu-0"}}}}}}
	for _, test := range []struct {
		name            string
		containers      []*kubelet.ContainerResources
		ask             string
		gpus, nics, err string
	}{
		{"a UUID", []*kubelet.ContainerResources{container("ray-worker", "nvidia.com/gpu="+uuid1)}, "", "1", "0", ""},
		{"a share", []*kubelet.ContainerResources{container("ray-worker", "nvidia.com/gpu.shared="+uuid1+"::2")}, "", "1", "0", ""},
		{"GKE's id is a node", []*kubelet.ContainerResources{container("ray-worker", "nvidia.com/gpu=nvidia0")}, "", "1", "0", ""},
		{"an index", []*kubelet.ContainerResources{container("ray-worker", "nvidia.com/gpu=0")}, "", "", "", "which GPU is meant"},
		{"a NIC and others", []*kubelet.ContainerResources{container("ray-worker", "example.com/vf=0000:09:00.0", "example.com/fuse=3")}, "", "0", "nic0", ""},
		{"claims", []*kubelet.ContainerResources{container("ray-worker", "gpu.nvidia.com/gpu-0", "dra.net/nic0")}, "", "1", "nic0", ""},
		{"claims of an old kubelet", []*kubelet.ContainerResources{old}, "", "1", "0", ""},
		{"a sidecar without", []*kubelet.ContainerResources{container("logs"), container("ray-worker", "nvidia.com/gpu="+uuid0)}, "", "0", "0", ""},
		{"two with devices", []*kubelet.ContainerResources{container("a", "nvidia.com/gpu="+uuid0), container("b", "nvidia.com/gpu="+uuid1)}, "", "", "", "--container NAME says whose"},
		{"two with devices, one asked for", []*kubelet.ContainerResources{container("a", "nvidia.com/gpu="+uuid0), container("b", "nvidia.com/gpu="+uuid1)}, "b", "1", "0", ""},
		{"no such container", []*kubelet.ContainerResources{container("a", "nvidia.com/gpu="+uuid0)}, "init", "", "", `no container "init"`},
		{"none", []*kubelet.ContainerResources{container("a")}, "", "0", "0", ""},
	} {
		for _, get := range []bool{true, false} {
			socket := (&server{get: get, pods: []*kubelet.PodResources{
				pod("other", container("ray-worker", "nvidia.com/gpu="+uuid0, "nvidia.com/gpu="+uuid1)),
				pod("worker", test.containers...),
			}}).start(t)
			p := live(t, "POD_NAME=worker", "POD_NAMESPACE=ray")
			p.Container = test.ask
			f := PodResources{Socket: socket}.Ask(p)
			if !errorHas(f.Err, test.err) {
				t.Errorf("%s: error %v, expected one with %q", test.name, f.Err, test.err)
				continue
			}
			if f.Err == nil && (f.GPUs.String() != test.gpus || f.NICs.String() != test.nics) {
				t.Errorf("%s: GPUs %s, NICs %s; expected %s and %s", test.name, f.GPUs, f.NICs, test.gpus, test.nics)
			}
		}
	}
}

// live is a pod on this machine, with the devices of another.
func live(t *testing.T, environ ...string) Pod {
	t.Helper()
	p := newPod(t, twoAndTwo(), nil, environ...)
	root, err := openLive()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	p.Root = root
	return p
}

// TestPodResourcesFailClosed: no name, a wrong name, no kubelet behind the socket.
func TestPodResourcesFailClosed(t *testing.T) {
	t.Parallel()
	socket := (&server{pods: []*kubelet.PodResources{pod("worker", container("c", "nvidia.com/gpu="+uuid0))}}).start(t)
	ask := PodResources{Socket: socket}
	for _, environ := range [][]string{nil, {"POD_NAME=worker"}, {"HOSTNAME=worker", "POD_NAMESPACE=ray"}} {
		if f := ask.Ask(live(t, environ...)); f.GPUs.Weight != Silent || f.Err != nil {
			t.Errorf("with %q: %+v", environ, f)
		}
	}
	if f := ask.Ask(live(t, "POD_NAME=worker", "POD_NAMESPACE=default")); !errorHas(f.Err, "lists 0 pods default/worker") {
		t.Errorf("a pod of another namespace: %+v", f)
	}
	silentSocket := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", silentSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := askKubelet(silentSocket, "worker", "ray", 50*time.Millisecond); err == nil {
		t.Error("a server that does not answer was believed")
	}
}

// FuzzPod: no message makes the parser panic.
func FuzzPod(f *testing.F) {
	f.Add([]byte("\x0a\x06worker\x12\x03ray\x1a\x05\x0a\x03abc"))
	f.Fuzz(func(t *testing.T, message []byte) { parsePod(message) })
}

func openLive() (*discover.Root, error) { return discover.OpenRoot("/") }
