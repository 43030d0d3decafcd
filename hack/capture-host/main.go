// Capture-host copies what the programs read of this host into a directory, as
// a host tree for tests: see testdata/hosts/README.md.
//
//	go run ./hack/capture-host testdata/hosts/NAME
//
// It runs discovery and the search for the driver's files on "/", and copies
// whatever they asked for; nothing else, so no serial numbers. Then it reads
// the copy and says what differs.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 || os.Args[1] == "" || os.Args[1][0] == '-' {
		fmt.Fprintln(os.Stderr, "usage: capture-host DIRECTORY    (new or empty)")
		os.Exit(2)
	}
	host, notes, err := capture("/", os.Args[1])
	for _, note := range notes {
		fmt.Fprintln(os.Stderr, "capture-host:", note)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "capture-host:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %d GPUs, %d NICs, %d PCI functions\n", os.Args[1], len(host.GPUs), len(host.NICs), len(host.PCI))
	fmt.Println("UUIDs, GUIDs, MAC and IP addresses are in it: change what must not be public.")
}
