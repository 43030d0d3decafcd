package cdi

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"podrail/pkg/discover"

	"golang.org/x/sys/unix"
)

// elfFile is the least of a shared library that has a SONAME: a header, two
// program headers, a dynamic section, strings.
func elfFile(class byte, soname string) []byte {
	strs := "\x00" + soname + "\x00"
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			binary.Write(&b, binary.LittleEndian, v)
		}
	}
	put([]byte{0x7f, 'E', 'L', 'F', class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	if class == 1 {
		const header, program, dynamic = 52, 32, 3 * 8
		end := uint32(header + 2*program + dynamic + len(strs))
		put(uint16(3), uint16(3), uint32(1), uint32(0), uint32(header), uint32(0), uint32(0),
			uint16(header), uint16(program), uint16(2), uint16(40), uint16(0), uint16(0))
		put(uint32(1), uint32(0), uint32(0x1000), uint32(0), end, end, uint32(4), uint32(0x1000))
		at := uint32(header + 2*program)
		put(uint32(2), at, at+0x1000, uint32(0), uint32(dynamic), uint32(dynamic), uint32(4), uint32(4))
		put(uint32(14), uint32(1), uint32(5), at+dynamic+0x1000, uint32(0), uint32(0))
		b.WriteString(strs)
		b.Write(make([]byte, maxSONAME))
		return b.Bytes()
	}
	const header, program, dynamic = 64, 56, 3 * 16
	end := uint64(header + 2*program + dynamic + len(strs))
	put(uint16(3), uint16(62), uint32(1), uint64(0), uint64(header), uint64(0), uint32(0),
		uint16(header), uint16(program), uint16(2), uint16(64), uint16(0), uint16(0))
	put(uint32(1), uint32(4), uint64(0), uint64(0x1000), uint64(0), end, end, uint64(0x1000))
	at := uint64(header + 2*program)
	put(uint32(2), uint32(4), at, at+0x1000, uint64(0), uint64(dynamic), uint64(dynamic), uint64(8))
	put(uint64(14), uint64(1), uint64(5), at+dynamic+0x1000, uint64(0), uint64(0))
	b.WriteString(strs)
	return b.Bytes()
}

// tree makes files below a new root: content, or a link if it starts with "->".
func tree(t *testing.T, files map[string]string) *discover.Root {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(target, path)
		} else if content == "FIFO" {
			err = unix.Mkfifo(path, 0o644)
		} else {
			err = os.WriteFile(path, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := discover.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestDriverMounts(t *testing.T) {
	t.Parallel()
	cuda, ml := string(elfFile(2, "libcuda.so.1")), string(elfFile(2, "libnvidia-ml.so.1"))
	cases := []struct {
		name       string
		files      map[string]string
		driverRoot string
		// want are HOST CONTAINER of /usr/lib, or part of the error.
		want    []string
		wantErr string
	}{
		{
			name: "SONAME from the file",
			files: map[string]string{
				"usr/lib64/libcuda.so.9.1": cuda, "usr/lib64/libnvidia-ml.so.9.1": ml, "lib64": "->usr/lib64",
			},
			want: []string{
				"/usr/lib64/libcuda.so.9.1 libcuda.so.1", "/usr/lib64/libcuda.so.9.1 libcuda.so.9.1",
				"/usr/lib64/libnvidia-ml.so.9.1 libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.9.1 libnvidia-ml.so.9.1",
			},
		},
		{
			name: "Debian: alternatives, 32 bits beside",
			files: map[string]string{
				"usr/lib/x86_64-linux-gnu/libcuda.so.9.1":                         "->/etc/alternatives/cuda",
				"etc/alternatives/cuda":                                           "->/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.9.1",
				"usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.9.1":          cuda,
				"usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.9.1":                string(elfFile(1, "")),
				"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.9.1":     ml,
				"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-nvvm70.so.4":   string(elfFile(2, "libnvidia-nvvm70.so.4")),
				"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-glcore.so.9.1": string(elfFile(2, "libnvidia-glcore.so.9.1")),
			},
			want: []string{
				"/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.9.1 libcuda.so.1", "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.9.1 libcuda.so.9.1",
				"/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.9.1 libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.9.1 libnvidia-ml.so.9.1",
				"/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-nvvm70.so.4 libnvidia-nvvm70.so.4",
			},
		},
		{
			name:       "driver container: absolute links stay in it",
			driverRoot: "/run/nvidia/driver",
			files: map[string]string{
				"run/nvidia/driver/usr/lib64":                 "->/opt/nv",
				"run/nvidia/driver/opt/nv/libcuda.so.9.1":     cuda,
				"run/nvidia/driver/opt/nv/libnvidia-ml.so":    "->/etc/passwd",
				"run/nvidia/driver/lib64/x":                   "",
				"run/nvidia/driver/lib64/libnvidia-ml.so.9.1": ml,
				"opt/nv/libcuda.so.9.1":                       "the host's",
			},
			want: []string{
				"/run/nvidia/driver/opt/nv/libcuda.so.9.1 libcuda.so.1", "/run/nvidia/driver/opt/nv/libcuda.so.9.1 libcuda.so.9.1",
				"/run/nvidia/driver/lib64/libnvidia-ml.so.9.1 libnvidia-ml.so.1", "/run/nvidia/driver/lib64/libnvidia-ml.so.9.1 libnvidia-ml.so.9.1",
			},
		},
		{
			name: "a SONAME that is another library's",
			files: map[string]string{
				"usr/lib64/libcuda.so.9.1": string(elfFile(2, "libc.so.6")), "usr/lib64/libnvidia-ml.so.9.1": string(elfFile(2, "../libnvidia-ml.so.1")),
			},
			want: []string{"/usr/lib64/libcuda.so.9.1 libcuda.so.9.1", "/usr/lib64/libnvidia-ml.so.9.1 libnvidia-ml.so.9.1"},
		},
		{
			name:    "another version than the kernel's",
			files:   map[string]string{"usr/lib64/libcuda.so.8.2": cuda, "usr/lib64/libcuda.so.1": "->libcuda.so.8.2", "usr/lib64/libnvidia-ml.so.9.1": ml},
			wantErr: "kernel driver is version 9.1 but the library /usr/lib64/libcuda.so.8.2 is version 8.2",
		},
		{
			name:    "no NVML",
			files:   map[string]string{"usr/lib64/libcuda.so.9.1": cuda},
			wantErr: "libnvidia-ml.so.9.1 is missing: looked in /usr/lib/x86_64-linux-gnu, ",
		},
		{
			name:    "a FIFO called libcuda",
			files:   map[string]string{"usr/lib64/libcuda.so.9.1": "FIFO", "usr/lib64/libnvidia-ml.so.9.1": ml},
			wantErr: "/usr/lib64/libcuda.so.9.1 is no 64-bit library",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mounts, err := driverMounts(tree(t, c.files), "9.1", Options{DriverRoot: c.driverRoot, Capabilities: DefaultCapabilities})
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("error %v, expected %q", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			twice := map[string]bool{}
			for _, m := range mounts {
				if name, ok := strings.CutPrefix(m.ContainerPath, "/usr/lib/"); ok {
					if name != "libcuda.so" { // an alias
						got = append(got, m.HostPath+" "+name)
					}
				} else if !strings.HasPrefix(m.ContainerPath, "/usr/lib64/") {
					t.Errorf("mounted at %s", m.ContainerPath)
				}
				if twice[m.ContainerPath] {
					t.Errorf("two mounts at %s", m.ContainerPath)
				}
				twice[m.ContainerPath] = true
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nexpected\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if len(mounts) != 2*(len(got)+1) {
				t.Errorf("%d mounts for %d names: each belongs into /usr/lib and /usr/lib64", len(mounts), len(got))
			}
		})
	}
}

func TestDriverVersionUnknown(t *testing.T) {
	t.Parallel()
	if _, err := driverMounts(tree(t, nil), "", Options{}); err == nil {
		t.Error("no kernel driver is no error")
	}
}

// Seen on an H200 machine: the one in /usr/bin execs the one that the container
// does not have.
func TestWrapperScriptIsNoProgram(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"usr/bin/nvidia-smi":              "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi \"$@\"\n",
		"usr/local/nvidia/bin/nvidia-smi": "\x7fELF",
	})
	for _, name := range []string{"usr/bin/nvidia-smi", "usr/local/nvidia/bin/nvidia-smi"} {
		if err := os.Chmod(filepath.Join(root.Dir(), name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := driver{root: root}
	if got := d.binary("nvidia-smi"); got != "/usr/local/nvidia/bin/nvidia-smi" {
		t.Errorf("got %q", got)
	}
}
