// Package buildinfo says what the go command put into a program: no version is
// kept by hand.
package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the module's version, the commit, whether the checkout was changed,
// and the version of Go.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown build) " + runtime.Version()
	}
	commit, modified := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " (modified)"
		}
	}
	return fmt.Sprintf("%s commit %s%s %s", info.Main.Version, commit, modified, info.GoVersion)
}
