// Package kubernetes tests the manifests in its directory.
package kubernetes

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	_ "podrail/internal/golden" // go test ./... -update gives every package this flag
)

// rayCluster is ray.io/v1 as far as it is used here: KubeRay's module would bring
// its operator along. Fields and their types are those of its v1 API.
type rayCluster struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		HeadGroupSpec struct {
			RayStartParams map[string]string      `json:"rayStartParams"`
			Template       corev1.PodTemplateSpec `json:"template"`
		} `json:"headGroupSpec"`
		WorkerGroupSpecs []struct {
			GroupName      string                 `json:"groupName"`
			Replicas       *int32                 `json:"replicas"`
			MinReplicas    *int32                 `json:"minReplicas"`
			MaxReplicas    *int32                 `json:"maxReplicas"`
			RayStartParams map[string]string      `json:"rayStartParams"`
			Template       corev1.PodTemplateSpec `json:"template"`
		} `json:"workerGroupSpecs"`
	} `json:"spec"`
}

// TestManifests decodes each document strictly and checks what the generator
// relies on in each pod with devices.
func TestManifests(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v: expected three manifests", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pods := 0
		for _, document := range bytes.Split(data, []byte("\n---\n")) {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal(document, &kind); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			switch kind.APIVersion + " " + kind.Kind {
			case "ray.io/v1 RayCluster":
				var c rayCluster
				decode(t, file, document, &c)
				for _, group := range c.Spec.WorkerGroupSpecs {
					checkPod(t, file, group.Template.Spec)
					pods++
				}
			case "v1 Pod":
				var p corev1.Pod
				decode(t, file, document, &p)
				checkPod(t, file, p.Spec)
				pods++
			case "resource.k8s.io/v1 ResourceClaimTemplate":
				decode(t, file, document, &resourcev1.ResourceClaimTemplate{})
			default:
				t.Errorf("%s: unexpected %s", file, kind)
			}
		}
		if pods != 1 {
			t.Errorf("%s: %d pods with devices, expected one", file, pods)
		}
	}
}

func decode(t *testing.T, file string, document []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(document, into); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}

// checkPod: the generator has the main container's devices and image, is root and
// unprivileged; the main container can write neither specs nor programs.
func checkPod(t *testing.T, file string, spec corev1.PodSpec) {
	t.Helper()
	generate, main := spec.InitContainers[1], spec.Containers[0]
	if !generate.Resources.Limits.Name("nvidia.com/gpu", "").Equal(*main.Resources.Limits.Name("nvidia.com/gpu", "")) ||
		!slices.Equal(generate.Resources.Claims, main.Resources.Claims) {
		t.Errorf("%s: %s and %s ask for different devices", file, generate.Name, main.Name)
	}
	if generate.Image != main.Image {
		t.Errorf("%s: %s is of another image than %s", file, generate.Name, main.Name)
	}
	if c := generate.SecurityContext; c == nil || c.Privileged == nil || *c.Privileged || c.RunAsUser == nil || *c.RunAsUser != 0 {
		t.Errorf("%s: %s must be root and unprivileged", file, generate.Name)
	}
	for _, name := range []string{"cdi", "podrail"} {
		if !slices.ContainsFunc(main.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name && m.ReadOnly }) {
			t.Errorf("%s: %s has volume %s not at all, or writable", file, main.Name, name)
		}
	}
}
