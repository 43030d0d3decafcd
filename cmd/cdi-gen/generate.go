package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"podrail/internal/allocate"
	"podrail/internal/hookapi"
	"podrail/pkg/cdi"
	"podrail/pkg/discover"

	"github.com/urfave/cli/v2"
)

// defaultDir is where all engines look for specs made at run time.
const defaultDir = "/var/run/cdi"

func (p *program) generateCommand() *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "write CDI specs for the given GPUs and NICs",
		UsageText: "cdi-gen generate --all | [--gpus LIST] [--nics LIST] | --allocation FILE | --from SOURCE [OPTION ...]\n\n" +
			"Example: in a pod, what that was given\n\n" +
			"   cdi-gen generate --expect-gpus 2\n\n" +
			"Example: the specs of one pod, among others in one directory\n\n" +
			"   cdi-gen generate --gpus 0,1 --nics gpu0rdma0,gpu1rdma0 --name my-pod\n" +
			"   podman run --device nvidia.com/gpu=my-pod-all --device dra.net/nic=my-pod-all IMAGE\n\n" +
			"Example: two GPUs that nobody has, with their nearest NICs\n\n" +
			"   cdi-gen generate --gpus count=2 --align --name job1",
		Description: "One call states all devices of its --name: a kind without devices has its file removed.\n" +
			"What a name has is taken, until `cdi-gen remove --name NAME`; without --name nothing is taken.\n" +
			"What is written is printed: one line for each file, one for each device.",
		Flags: append(append(fromFlags(), podmanFlags()...),
			&cli.BoolFlag{Name: "all", Usage: "all GPUs and hardware NICs of this host that it does not need itself", DisableDefaultText: true},
			&cli.StringFlag{Name: "gpus", Usage: "`LIST` of GPUs: indices, UUIDs, PCI addresses, with commas between; count=N free ones; all; none"},
			&cli.StringFlag{Name: "nics", Usage: "`LIST` of NICs: interfaces, RDMA devices, PCI addresses, with commas between; count=N free ones; all; none"},
			&cli.BoolFlag{Name: "align", Usage: "give each of --gpus its nearest free NIC; with --allocation print the claim that would have", DisableDefaultText: true},
			&cli.BoolFlag{Name: "nccl", Usage: "tell NCCL which NICs to use, and the topology file where PCI is virtualised", DisableDefaultText: true},
			&cli.StringFlag{Name: "allocation", Usage: "JSON `FILE` of GPUs and NICs, as `cdi-gen list -o json` writes it; - is stdin"},
			&cli.StringFlag{Name: "output", Value: defaultDir, Usage: "`DIR` for the specs, or a file that ends in .yaml or .json, or - for stdout"},
			&cli.StringFlag{Name: "format", Value: "yaml", Usage: "`FORMAT` of the specs: yaml, json"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` in file and device names, so that many pods share a directory: a pod's UID, say"},
			rootFlag(),
			&cli.StringFlag{Name: "driver-root", Value: "/", Usage: "`DIR` below which the driver's libraries and programs are"},
			&cli.StringFlag{Name: "gpu-kind", Value: cdi.DefaultGPUKind, Usage: "`VENDOR/CLASS` of the GPUs' spec"},
			&cli.StringFlag{Name: "nic-kind", Value: cdi.DefaultNICKind, Usage: "`VENDOR/CLASS` of the NICs' spec"},
			&cli.StringFlag{Name: "hook-path", Usage: "`PATH` of netdev-hook as the engine will call it", DefaultText: "netdev-hook beside cdi-gen, else /usr/bin/netdev-hook"},
			&cli.StringFlag{Name: "nic-mode", Value: "auto", Usage: "how NICs reach a container, `MODE`: hook moves them, native has the runtime move them (CDI 1.1.0), devices gives device nodes alone, auto is devices in a pod and hook elsewhere"},
			&cli.StringFlag{Name: "nic-config", Usage: "`FILE` with what NICs shall be in the container: DraNet's NetworkConfig in YAML or JSON, for all NICs or one for each by name"},
			&cli.StringFlag{Name: "memlock", Usage: "let containers with NICs lock `SIZE` of memory: bytes, a number with K, M, G or T, or unlimited"},
			&cli.BoolFlag{Name: "mad", Usage: "give the NICs' umad nodes, too (subnet management)", DisableDefaultText: true},
			&cli.BoolFlag{Name: "nic-libs", Usage: "mount this host's RDMA provider libraries, for images that lack the NICs'", DisableDefaultText: true},
			&cli.StringFlag{Name: "capabilities", Usage: "`LIST` of what containers need of the driver: compute, utility, video, graphics, display, ngx, compat32, all; beside it: gdrcopy, gds, imex, nvswitch, persistenced, fabricmanager, mps", DefaultText: "NVIDIA_DRIVER_CAPABILITIES, else compute,utility"},
			&cli.BoolFlag{Name: "ldcache", Usage: "have a hook name the driver's libraries in containers' ld.so.cache", DisableDefaultText: true},
			&cli.GenericFlag{Name: "mount", Value: &listValue{}, Usage: "also mount `HOST:CONTAINER[:OPTS]`; may be repeated"},
			&cli.GenericFlag{Name: "env", Value: &listValue{}, Usage: "also set `NAME=VALUE` in containers; may be repeated"},
			&cli.IntFlag{Name: "expect-gpus", Usage: "fail unless there are `N` GPUs", DefaultText: "not checked"},
			&cli.IntFlag{Name: "expect-nics", Usage: "fail unless there are `N` NICs", DefaultText: "not checked"},
		),
		Action: p.generate,
	}
}

// maxNICConfig bounds the file that --nic-config names.
const maxNICConfig = 1 << 20

func readNICConfig(name string) (cdi.NICConfig, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--nic-config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxNICConfig+1))
	if err == nil && len(data) > maxNICConfig {
		err = fmt.Errorf("is larger than %d bytes", maxNICConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--nic-config %s: %w", name, err)
	}
	config, err := cdi.ParseNICConfig(data)
	if err != nil {
		return nil, fmt.Errorf("--nic-config %s: %w", name, err)
	}
	return config, nil
}

func rootFlag() cli.Flag {
	return &cli.StringFlag{Name: "root", Value: "/", Usage: "`DIR` that stands for this host's /; with another nothing live is asked"}
}

func (p *program) generate(c *cli.Context) error {
	options, err := p.buildOptions(c)
	if err != nil {
		return err
	}
	out, err := parseOutput(c)
	if err != nil {
		return err
	}
	if err := checkSelection(c); err != nil {
		return err
	}
	if err := p.drainStdin(c); err != nil {
		return err
	}
	root, host, err := p.readHost(c)
	if err != nil {
		return err
	}
	defer root.Close()
	held, err := p.openHoldings(c, root, out.path == "-")
	if err != nil {
		return err
	}
	defer held.Close()

	answer, err := p.allocation(c, root, host, held.others)
	if err != nil {
		return err
	}
	if err := expectCounts(c, answer); err != nil {
		return err
	}
	p.leaveOutNodeless(root, &answer, &options)
	if wantsPodman(c) && options.NICMode == cdi.NICDevices {
		options.Memlock = "" // there is no hook to raise the limit: Podman is told
	}
	if err := p.check(held, answer.Devices); err != nil {
		return err
	}
	misaligned := p.warnMisaligned(host, answer.Devices)
	if c.Bool("align") {
		p.adviseClaim(answer.Devices, misaligned)
	}
	if c.Bool("nccl") {
		p.addNCCL(root, answer.Devices, &options)
	}
	built, err := cdi.Build(root, host, answer.Devices, options)
	if err != nil {
		return err
	}
	if out.path == "-" {
		return p.printSpecs(built, out.format)
	}
	// Podman is told of devices by name: they must not be those of somebody else's spec.
	answer.NamedGPUs = answer.NamedGPUs || wantsPodman(c)
	return held.record(answer.Devices, func() error {
		if err := p.writeSpecs(built, answer, options.Name, out); err != nil {
			return err
		}
		return p.writePodman(c, built, answer, out)
	})
}

// buildOptions are all flags that say how the specs look.
func (p *program) buildOptions(c *cli.Context) (o cdi.Options, err error) {
	o = cdi.Options{
		Name:         c.String("name"),
		GPUKind:      c.String("gpu-kind"),
		NICKind:      c.String("nic-kind"),
		DriverRoot:   c.String("driver-root"),
		HookPath:     c.String("hook-path"),
		MAD:          c.Bool("mad"),
		Memlock:      c.String("memlock"),
		NICLibraries: c.Bool("nic-libs"),
	}
	if err := checkName(c); err != nil {
		return o, err
	}
	// The package's errors begin with what is wrong: name "a/b", mount "/a".
	for _, kind := range []string{o.GPUKind, o.NICKind} {
		if err := cdi.ValidateKind(kind); err != nil {
			return o, &usageError{err}
		}
	}
	if o.GPUKind == o.NICKind {
		return o, usagef("--nic-kind %s: is the GPUs' kind too; each needs its own", o.NICKind)
	}
	if !filepath.IsAbs(o.DriverRoot) {
		return o, usagef("--driver-root %q: must be an absolute path", o.DriverRoot)
	}
	if o.NICMode, err = cdi.ParseNICMode(c.String("nic-mode")); err != nil {
		return o, &usageError{err}
	}
	if err := hookapi.CheckMemlock(o.Memlock); err != nil {
		return o, usagef("--memlock: %w", err)
	}
	if o.NICConfig, err = readNICConfig(c.String("nic-config")); err != nil {
		return o, err
	}
	if o.Capabilities, err = p.capabilities(c); err != nil {
		return o, usagef("--capabilities: %w", err)
	}
	for _, s := range listFlag(c, "mount") {
		m, err := cdi.ParseMount(s)
		if err != nil {
			return o, usagef("--%w", err)
		}
		o.Mounts = append(o.Mounts, m)
	}
	for _, s := range listFlag(c, "env") {
		variable, err := cdi.ParseEnv(s)
		if err != nil {
			return o, usagef("--%w", err)
		}
		o.Env = append(o.Env, variable)
	}
	if o.HookPath == "" {
		o.HookPath = defaultHook()
	}
	if !filepath.IsAbs(o.HookPath) {
		return o, usagef("--hook-path %q: must be an absolute path", o.HookPath)
	}
	if c.Bool("ldcache") { // the two programs are installed together
		o.LDCachePath = filepath.Join(filepath.Dir(o.HookPath), "cdi-gen")
	}
	return o, nil
}

// capabilities are those asked for, else those that NVIDIA_DRIVER_CAPABILITIES
// has; a pod's image may have set it, with words that are not known here.
func (p *program) capabilities(c *cli.Context) ([]cdi.Capability, error) {
	if c.IsSet("capabilities") {
		return cdi.ParseCapabilities(c.String("capabilities"))
	}
	value := os.Getenv("NVIDIA_DRIVER_CAPABILITIES")
	if value == "" || filepath.Clean(c.String("root")) != "/" {
		return cdi.DefaultCapabilities, nil
	}
	known, unknown := cdi.CapabilitiesFromEnv(value)
	for _, word := range unknown {
		p.log.Warn("unknown capability", "NVIDIA_DRIVER_CAPABILITIES", word)
	}
	return known, nil
}

// defaultHook is the netdev-hook beside this program: the two are built and
// installed together.
func defaultHook() string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "netdev-hook")
		if _, err := os.Stat(beside); err == nil {
			return beside
		}
	}
	return "/usr/bin/netdev-hook"
}

// readHost reads the host below --root and says what could not be read.
func (p *program) readHost(c *cli.Context) (*discover.Root, *discover.Host, error) {
	root, err := discover.OpenRoot(c.String("root"))
	if err != nil {
		return nil, nil, err
	}
	host, err := discover.Read(root)
	if err != nil {
		root.Close()
		return nil, nil, err
	}
	p.askNVML(c, root, host)
	for _, problem := range host.Problems {
		p.log.Warn("could not be read fully", "device", problem.Device, "problem", problem.Text)
	}
	return root, host, nil
}

// askNVML completes what procfs does not know, if anything. Without NVML the
// inventory is as procfs has it.
func (p *program) askNVML(c *cli.Context, root *discover.Root, host *discover.Host) {
	if !root.Live() || !host.WantsNVML(root) {
		return
	}
	library, err := cdi.FindLibrary(root, host, c.String("driver-root"), "libnvidia-ml.so")
	if err == nil {
		err = host.AskNVML(library)
	}
	if err != nil {
		p.log.Warn("MIG devices are known by GPU and instance ids alone, not by UUID", "problem", err)
	}
}

// checkSelection refuses selections that exclude each other.
func checkSelection(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	if err := checkAlign(c); err != nil {
		return err
	}
	lists := c.IsSet("gpus") || c.IsSet("nics")
	switch {
	case c.Bool("all") && lists:
		return usagef("--all and --gpus or --nics exclude each other: --gpus all --nics none is all GPUs, say")
	case c.IsSet("allocation") && (c.Bool("all") || lists):
		return usagef("--allocation and --all, --gpus or --nics exclude each other")
	case c.IsSet("from") && (c.IsSet("allocation") || c.Bool("all") || lists):
		return usagef("--from asks what this pod was given; --all, --gpus, --nics and --allocation say it: they exclude each other")
	}
	if err := errors.Join(checkFrom(c), checkPodman(c)); err != nil {
		return err
	}
	for _, name := range []string{"gpus", "nics", "allocation", "output"} {
		if c.IsSet(name) && c.String(name) == "" {
			return usagef("--%s is empty", name)
		}
	}
	for _, name := range []string{"expect-gpus", "expect-nics"} {
		if c.Int(name) < 0 {
			return usagef("--%s %d: must be 0 or more", name, c.Int(name))
		}
	}
	return nil
}

// allocation asks the source that the flags name.
func (p *program) allocation(c *cli.Context, root *discover.Root, host *discover.Host, others allocate.Taken) (answer allocate.Answer, err error) {
	switch {
	case c.Bool("all"):
		answer = allocate.All(host)
	case c.IsSet("allocation"):
		answer, err = p.allocationFile(host, c.String("allocation"))
	case choosesFree(c):
		answer, err = p.choose(c, root, host, others)
	case c.IsSet("gpus") || c.IsSet("nics"):
		answer, err = allocate.Lists(host, c.String("gpus"), c.String("nics"))
	default:
		answer, err = p.askSources(c, root, host)
	}
	if err != nil {
		return answer, err
	}
	for _, left := range answer.LeftOut {
		p.log.Info("left out", "device", left)
	}
	if !answer.GPUs {
		p.log.Info("no GPUs: nothing asked for any", "source", answer.How)
	}
	if !answer.NICs {
		p.log.Info("no NICs: nothing asked for any", "source", answer.How)
	}
	none := len(answer.Devices.GPUs)+len(answer.Devices.NICs) == 0
	if none && c.Bool("all") {
		return answer, fmt.Errorf("nothing to write: below %s there is no NVIDIA GPU (/proc/driver/nvidia/gpus) "+
			"and no hardware NIC that this host can do without (/sys/class/net, /sys/class/infiniband)", c.String("root"))
	}
	return answer, nil
}

func (p *program) allocationFile(host *discover.Host, name string) (allocate.Answer, error) {
	if name == "-" {
		return allocate.File(host, p.stdin, "-")
	}
	f, err := os.Open(name)
	if err != nil {
		return allocate.Answer{}, fmt.Errorf("--allocation: %w", err)
	}
	defer f.Close()
	return allocate.File(host, f, name)
}

// expectCounts compares what was given with what the caller expects.
func expectCounts(c *cli.Context, answer allocate.Answer) error {
	var gpus, nics []string
	for _, g := range answer.Devices.GPUs {
		gpus = append(gpus, g.Name)
	}
	for _, n := range answer.Devices.NICs {
		nics = append(nics, n.Name)
	}
	return errors.Join(
		expectCount(c, "expect-gpus", "GPU", gpus, answer.How),
		expectCount(c, "expect-nics", "NIC", nics, answer.How),
	)
}

func expectCount(c *cli.Context, flag, what string, given []string, how string) error {
	if !c.IsSet(flag) || c.Int(flag) == len(given) {
		return nil
	}
	return fmt.Errorf("--%s %d: %s gives %s (%s)", flag, c.Int(flag), how, count(len(given), what), strings.Join(given, ", "))
}

// leaveOutNodeless leaves out NICs without device nodes where nodes are all that
// is written, unless the caller named them: then that is an error of Build's.
func (p *program) leaveOutNodeless(root *discover.Root, answer *allocate.Answer, o *cdi.Options) {
	if o.NICMode == cdi.NICAuto {
		o.NICMode = cdi.DetectNICMode(root)
	}
	if o.NICMode != cdi.NICDevices || answer.NamedNICs {
		return
	}
	answer.Devices.NICs = slices.DeleteFunc(slices.Clone(answer.Devices.NICs), func(nic discover.NIC) bool {
		if len(nic.RDMA) == 0 {
			p.log.Info("left out", "device", "NIC "+nic.Name+": has no RDMA device, and only device nodes are written (--nic-mode devices)")
		}
		return len(nic.RDMA) == 0
	})
}

// printSpecs writes the specs to stdout, one document for each kind.
func (p *program) printSpecs(built *cdi.Built, format cdi.Format) error {
	for _, spec := range built.Specs {
		data, err := spec.Marshal(format)
		if err != nil {
			return err
		}
		if _, err := p.stdout.Write(data); err != nil {
			return err
		}
	}
	printDevices(p.stderr, built.Specs)
	return nil
}

func printDevices(w io.Writer, specs []*cdi.Spec) {
	for _, spec := range specs {
		for _, name := range spec.QualifiedNames() {
			fmt.Fprintln(w, name)
		}
	}
}
