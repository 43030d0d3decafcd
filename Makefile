# `make` builds, `make demo` shows, `make test` proves. `make help` lists the rest.

BIN      := bin
PROGRAMS := cdi-gen netdev-hook cdi-claim
FUZZTIME ?= 10s
DURATION ?= 30m
SEED     ?= 0

# The programs' version is the commit that the Go tool records. It cannot where
# git is missing or refuses the checkout (another owner's); that must not stop a build.
BUILDVCS   := $(shell git log -1 >/dev/null 2>&1 && echo auto || echo false)
# urfave_cli_no_docs leaves urfave/cli's man-page renderer out.
BUILDFLAGS := -trimpath -buildvcs=$(BUILDVCS) -tags urfave_cli_no_docs -ldflags '-s -w'

.PHONY: build
build: ## build the programs, static, into bin/
	CGO_ENABLED=0 go build $(BUILDFLAGS) -o $(BIN)/ $(PROGRAMS:%=./cmd/%)

.PHONY: cgo
cgo: ## build cdi-gen with NVML into bin/cgo/ (needs a C compiler)
	CGO_ENABLED=1 go build $(BUILDFLAGS) -o $(BIN)/cgo/ ./cmd/cdi-gen

.PHONY: demo
demo: build ## show the main job: inventory, a pod's spec, a NIC in a container
	@hack/install-deps
	@hack/demo

.PHONY: test
test: build ## check formatting, vet, run all tests, real engines included
	@hack/install-deps
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt -w these:" $$unformatted; exit 1; }
	go vet ./...
	@command -v cc >/dev/null && $(MAKE) --no-print-directory cgo || echo "no C compiler: the build with NVML is not checked"
	go test -count=1 -parallel 12 ./...

.PHONY: test-faults
test-faults: ## interrupt netdev-hook at every system call, not at some (15 minutes)
	go test -count=1 -timeout 1h ./test/fault -stride 1

.PHONY: soak
soak: ## random attach, kill and return for DURATION (30m), from SEED if given
	go test -count=1 -timeout 0 ./test/soak -duration $(DURATION) -seed $(SEED)

.PHONY: bench
bench: ## run the benchmarks, no tests
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: fuzz
fuzz: ## run each fuzz test for FUZZTIME (10s)
	hack/fuzz $(FUZZTIME)

.PHONY: golden
golden: ## rewrite the golden files; read the difference before committing it
	go test $$(go list -f '{{range .TestImports}}{{if eq . "podrail/internal/golden"}}{{$$.ImportPath}}{{end}}{{end}} {{range .XTestImports}}{{if eq . "podrail/internal/golden"}}{{$$.ImportPath}}{{end}}{{end}}' ./...) -update

# go-nvml's own code uses what NVML's header calls deprecated.
cgo gpu-bundle gpu-smoke-bundle: export CGO_CFLAGS = -g -O2 -Wno-deprecated-declarations

# What hack/gpu-check and its parts need on a machine with GPUs, but no Go, no
# compiler and no network. nvidia-ctk is there to compare with.
.PHONY: gpu-bundle gpu-smoke-bundle
gpu-bundle gpu-smoke-bundle: build ## build what hack/gpu-check and hack/gpu-smoke need on a GPU machine into bin/
	CGO_ENABLED=0 go build $(BUILDFLAGS) -o $(BIN)/gpu/ ./hack/oci-with-cdi
	CGO_ENABLED=1 go build $(BUILDFLAGS) -o $(BIN)/gpu/cdi-gen-nvml ./cmd/cdi-gen
	$(CC) -O2 -s -o $(BIN)/gpu/cuda-probe hack/cuda-probe.c -ldl
	GOBIN=$(abspath $(BIN)/gpu) CGO_ENABLED=1 go install -tags 'netgo osusergo' \
		-ldflags '-s -w -extldflags "-static"' github.com/opencontainers/runc@v1.5.2
	GOBIN=$(abspath $(BIN)/gpu) CGO_ENABLED=1 go install -ldflags '-s -w' \
		github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk@v1.20.1 \
		github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook@v1.20.1

.PHONY: bench-gpu
bench-gpu: gpu-bundle ## compare cdi-gen's and nvidia-ctk's speed on this machine, which has GPUs
	hack/bench-gpu

# What the guest gets. RUN selects tests, as go test -run does.
LAB := $(BIN)/lab
RUN ?= .
.PHONY: lab
lab: build ## test with real drivers, systemd and udev in a virtual machine (LAB_KERNEL=newest, RUN=TestIPoIB)
	mkdir -p $(LAB)
	CGO_ENABLED=0 go test -c -o $(LAB)/lab.test ./test/lab
	cp $(BIN)/cdi-gen $(BIN)/cdi-claim $(BIN)/netdev-hook $(LAB)/
	rm -rf $(LAB)/systemd && cp -r systemd $(LAB)/
	test/lab/vm module test/lab/fakehca
	test/lab/vm --systemd --limit 1800 --share $(LAB) -- './lab.test -test.v -test.run "$(RUN)"'

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)

.PHONY: help
help: ## say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18
