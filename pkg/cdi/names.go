package cdi

import (
	"fmt"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

// maxName keeps file names below the 255 bytes that file systems take, and
// leaves room for kinds and for the name of a temporary file.
const maxName = 128

// FileName is the name of the file that holds a kind's spec, without extension:
// "nvidia.com-gpu", or "nvidia.com-gpu_NAME". It is the reference library's own
// rule (GenerateTransientSpecName).
func FileName(kind, name string) string {
	base := strings.Replace(kind, "/", "-", 1)
	if name == "" {
		return base
	}
	return base + "_" + name
}

// DeviceName is a device's name in the specs of the given name.
func DeviceName(name, device string) string {
	if name == "" {
		return device
	}
	return name + "-" + device
}

// ValidateName refuses names that could not be part of a device's name or would
// be more than a file's name. The empty name is allowed.
func ValidateName(name string) error {
	if name == "" {
		return nil
	}
	if len(name) > maxName {
		return fmt.Errorf("name %.20q... has %d bytes: at most %d are allowed", name, len(name), maxName)
	}
	if err := parser.ValidateDeviceName(name); err != nil {
		return fmt.Errorf("name %q: must be letters, digits, '_', '-', '.' or ':', the first and the last a letter or digit", name)
	}
	return nil
}

// ValidateKind refuses what is not VENDOR/CLASS. Both must have two letters or
// more: CDI libraries up to 1.1.0 panic on reading a shorter one (index out of
// range in validateVendorOrClassName), and the engine with them.
func ValidateKind(kind string) error {
	vendor, class, _ := strings.Cut(kind, "/")
	if len(vendor) < 2 || len(class) < 2 {
		return fmt.Errorf("kind %q: must be VENDOR/CLASS, such as %s, each of two letters or more "+
			"(engines with a CDI library up to 1.1.0 crash on a shorter one)", kind, DefaultGPUKind)
	}
	if err := parser.ValidateVendorName(vendor); err != nil {
		return fmt.Errorf("kind %q: %w", kind, err)
	}
	if err := parser.ValidateClassName(class); err != nil {
		return fmt.Errorf("kind %q: %w", kind, err)
	}
	if len(kind) > maxName/2 {
		return fmt.Errorf("kind %q has %d bytes: at most %d are allowed", kind, len(kind), maxName/2)
	}
	return nil
}
