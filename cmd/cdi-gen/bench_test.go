package main

import (
	"path/filepath"
	"testing"
)

// BenchmarkGenerate is all of a call but the process's start.
func BenchmarkGenerate(b *testing.B) {
	for _, host := range []string{"h200-x2", "a4-highgpu-8g"} {
		b.Run(host, func(b *testing.B) {
			for b.Loop() {
				if got := cdiGen("", "generate", "--all", "--root", filepath.Join(hosts, host), "--output", "-"); got.status != 0 {
					b.Fatal(got.stderr)
				}
			}
		})
	}
}
