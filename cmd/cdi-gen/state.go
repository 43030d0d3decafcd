package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"podrail/internal/allocate"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

// holdings are what others hold on this host, and the right to add to it.
type holdings struct {
	name string
	// others is without what this call's --name holds already.
	others allocate.Taken
	// state is nil where nothing is recorded: without --name, on another root,
	// on stdout, or where there is no state to write to.
	state *allocate.State
}

// openHoldings locks this host's state for a call with --name that writes specs,
// until the holdings are closed. Others only look.
func (p *program) openHoldings(c *cli.Context, root *discover.Root, stdout bool) (*holdings, error) {
	h := &holdings{name: c.String("name")}
	if h.name != "" && root.Live() && !stdout {
		state, err := allocate.LockState(root)
		switch {
		case err == nil:
			h.state = state
		case (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) && !choosesFree(c):
			p.log.Warn("not recorded as taken: the state of this host cannot be written", "error", err)
		default:
			return nil, err
		}
	}
	taken, err := allocate.ReadTaken(root)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("what is taken on this host is not known: %w", err)
	}
	h.others = taken.Without(h.name)
	return h, nil
}

// check refuses devices of others. Without a name nothing is taken, and whoever
// names devices may know what they do.
func (p *program) check(h *holdings, devices discover.Devices) error {
	err := h.others.Check(devices)
	if err != nil && h.name == "" {
		p.log.Warn("devices of others: without --name nothing is taken and nothing refused", "taken", err.(*allocate.TakenError).Devices)
		return nil
	}
	return err
}

// record makes the devices this name's while write writes their specs, and from
// then on if that succeeds.
func (h *holdings) record(devices discover.Devices, write func() error) error {
	if h.state == nil {
		return write()
	}
	undo, err := h.state.Record(h.name, devices)
	if err != nil {
		return fmt.Errorf("recording what is taken: %w", err)
	}
	if err := write(); err != nil {
		return errors.Join(err, undo())
	}
	return nil
}

func (h *holdings) Close() error {
	if h.state == nil {
		return nil
	}
	return h.state.Close()
}

// free makes a name hold nothing on this host.
func (p *program) free(name string) error {
	root, err := discover.OpenRoot("/")
	if err != nil {
		return err
	}
	defer root.Close()
	taken, err := allocate.ReadTaken(root)
	if _, held := taken[name]; err == nil && !held {
		return nil
	}
	state, err := allocate.LockState(root)
	if err != nil {
		return err
	}
	defer state.Close()
	_, err = state.Free(name)
	return err
}

// drainStdin reads an allocation from a pipe to its end, so that no lock is held
// while the program before it works.
func (p *program) drainStdin(c *cli.Context) error {
	if c.String("allocation") != "-" {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(p.stdin, allocate.MaxFile+1))
	p.stdin = bytes.NewReader(data)
	return err
}
