package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"podrail/internal/golden"
)

// TestErrors compares all messages about what a user got wrong with a file, and
// makes sure that nothing was written. Messages are an interface: people read
// them at night.
func TestErrors(t *testing.T) {
	t.Parallel()
	a4 := "--root " + hosts + "/a4-highgpu-8g"
	dir := filepath.Join(t.TempDir(), "cdi")
	cases := []struct {
		args, stdin string
		status      int
	}{
		{"frobnicate", "", 2},
		{"generate --frobnicate", "", 2},
		{"generate --all extra", "", 2},
		{"list -o xml", "", 2},
		{"list extra", "", 2},
		{"--log-level loud list", "", 2},
		{"list --log-format xml", "", 2},
		{"validate /etc --root /", "", 2},
		{"validate /does/not/exist", "", 1},
		{"list --root /does/not/exist", "", 1},
		{"remove --name ../x", "", 2},
		{"remove --gpu-kind n/gpu", "", 2},

		{"generate " + a4, "", 1},
		{"generate --all --gpus 0 " + a4, "", 2},
		{"generate --all --allocation - " + a4, "", 2},
		{"generate --gpus= " + a4, "", 2},
		{"generate --gpus 0,,1 " + a4, "", 2},
		{"generate --gpus all,0 " + a4, "", 2},
		{"generate --gpus count=two " + a4, "", 2},
		{"generate --gpus 0,count=2 " + a4, "", 2},
		{"generate --gpus count=9 " + a4, "", 1},
		{"generate --gpus count=8 --nics count=9 " + a4, "", 1},
		{"generate --nics mlx5_0 --align " + a4, "", 2},
		{"generate --gpus 8 " + a4, "", 1},
		{"generate --gpus 1:0 " + a4, "", 1},
		{"generate --gpus 0,0 " + a4, "", 1},
		{"generate --gpus 0,8F:00.0 " + a4, "", 1},
		{"generate --gpus 0 --nics gpu9rdma0 " + a4, "", 1},
		{"generate --nics gpu0rdma0,mlx5_0 " + a4, "", 1},
		{"generate --nics eth0 " + a4, "", 1},
		{"generate --gpus 0 --expect-gpus 2 " + a4, "", 1},
		{"generate --gpus none --nics all --expect-nics 2 " + a4, "", 1},
		{"generate --gpus 0 --expect-gpus -1 " + a4, "", 2},
		{"generate --gpus 0 --expect-gpus two " + a4, "", 2},
		{"generate --all --root " + hosts + "/no-devices", "", 1},

		{"generate --allocation - " + a4, "", 1},
		{"generate --allocation - " + a4, "[]", 1},
		{"generate --allocation - " + a4, `{"gpus":[{"uuid":"GPU-1"}`, 1},
		{"generate --allocation - " + a4, `{"gpus":[]} {}`, 1},
		{"generate --allocation - " + a4, `{"gpu":[]}`, 1},
		{"generate --allocation - " + a4, `{"gpus":[{"id":"0"}]}`, 1},
		{"generate --allocation - " + a4, `{"gpus":[{}]}`, 1},
		{"generate --allocation - " + a4, `{"gpus":["0"]}`, 1},
		{"generate --allocation - " + a4, `{"gpus":[{"name":"0","pciAddress":"0000:90:00.0"}]}`, 1},
		{"generate --allocation - " + a4, `{"gpus":[{"name":"0"},{"pciAddress":"0000:8f:00.0"}]}`, 1},
		{"generate --allocation - " + a4, `{"nics":[{"name":"eth0"}]}`, 1},
		{"generate --allocation /does/not/exist " + a4, "", 1},

		{"generate --all --format xml " + a4, "", 2},
		{"generate --all --output x.yml " + a4, "", 2},
		{"generate --all --output x.yaml --format json " + a4, "", 2},
		{"generate --all --output x.yaml " + a4, "", 2},
		{"generate --all --name a/b " + a4, "", 2},
		{"generate --all --gpu-kind n/gpu " + a4, "", 2},
		{"generate --all --nic-kind nvidia.com/gpu " + a4, "", 2},
		{"generate --all --hook-path netdev-hook " + a4, "", 2},
		{"generate --all --nic-mode magic " + a4, "", 2},
		{"generate --all --capabilities compute,grafics " + a4, "", 2},
		{"generate --all --capabilities compute,gdrcopy " + a4, "", 1},
		{"generate --gpus none --nics gpu0rdma0 --nic-libs " + a4, "", 1},
		{"generate --gpus 0 --root " + hosts + "/a100-mig", "", 1},
		{"generate --gpus 0000:07:00.0 --root " + hosts + "/a100-mig", "", 1},
		{"generate --all --driver-root run/nvidia " + a4, "", 2},
		{"generate --all --driver-root /run/nvidia/driver " + a4, "", 1},
		{"generate --all --driver-root /sys " + a4, "", 1},
		{"generate --all --mount /a " + a4, "", 2},
		{"generate --all --mount /a:b " + a4, "", 2},
		{"generate --all --mount /a:/b:shared " + a4, "", 2},
		{"generate --all --mount /does/not/exist:/b " + a4, "", 1},
		{"generate --all --env FOO " + a4, "", 2},
		{"generate --all --env HF_TOKEN=hf_1 " + a4, "", 2},
		{"generate --all --env NVIDIA_VISIBLE_DEVICES=all " + a4, "", 2},
	}
	var transcript strings.Builder
	for _, c := range cases {
		args := strings.Fields(c.args)
		if args[0] == "generate" && !strings.Contains(c.args, "--output") {
			args = append(args, "--output", dir)
			if args[len(args)-3] == "extra" { // options go before arguments
				args = strings.Fields(c.args)
			}
		}
		got := cdiGen(c.stdin, args...)
		if got.status != c.status {
			t.Errorf("cdi-gen %s: exit status %d, expected %d: %s", c.args, got.status, c.status, got.stderr)
		}
		if got.stdout != "" {
			t.Errorf("cdi-gen %s: wrote to stdout: %s", c.args, got.stdout)
		}
		input := ""
		if c.stdin != "" {
			input = " <<< '" + c.stdin + "'"
		}
		fmt.Fprintf(&transcript, "$ cdi-gen %s%s\n%s[%d]\n\n", c.args, input, got.stderr, got.status)
	}
	golden.Check(t, "testdata/errors.txt", []byte(transcript.String()))
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s was made by a call that failed", dir)
	}
}
