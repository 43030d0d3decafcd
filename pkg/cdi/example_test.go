package cdi_test

import (
	"fmt"
	"log"

	"podrail/pkg/cdi"
	"podrail/pkg/discover"
)

// A spec for one GPU of a host.
func ExampleBuild() {
	root, err := discover.OpenRoot("../../testdata/hosts/h200-x2")
	if err != nil {
		log.Fatal(err)
	}
	defer root.Close()
	host, err := discover.Read(root)
	if err != nil {
		log.Fatal(err)
	}
	given := discover.Devices{GPUs: host.GPUs[1:]}
	built, err := cdi.Build(root, host, given, cdi.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, spec := range built.Specs {
		fmt.Println(spec.FileName, spec.Version, spec.QualifiedNames())
	}
	// Output: nvidia.com-gpu 0.5.0 [nvidia.com/gpu=0 nvidia.com/gpu=GPU-01640959-f15c-808d-c097-aedab3bd1881 nvidia.com/gpu=all]
}
