# The front door: what people type. How things are compiled stands in mk/build.mk.

.DEFAULT_GOAL := help
.NOTPARALLEL:

# Every build is one inner make, on all cores unless -j says otherwise.
JOBS = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
INNER = $(MAKE) --no-print-directory $(JOBS) -f mk/build.mk
# (a dry run shows the commands themselves)
LOGGED = $(if $(findstring n,$(firstword -$(MAKEFLAGS))),,mk/logged_build.sh $(BUILD) $(OUT)bin $(OUT)lib/h3) $(INNER)

DEMO_RUN := evidence/demo

# The variant's folders, for tests and runs: as in mk/build.mk.
BUILD := $(if $(SANITIZE),build/sanitize,build)
OUT := $(if $(SANITIZE),build/sanitize/,)
export H3_BUILD := $(BUILD)
export H3_BIN := $(OUT)bin
export H3_LIB := $(if $(FAST_MATH),$(BUILD)/fast-math/lib/h3,$(OUT)lib/h3)
ifneq ($(FAST_MATH),)
export H3_CLEAN_BUILD := 0
endif

.PHONY: help deps config all candidate demo check check-cuda bench install clean
help:
	@sed -n 's/^#: \{0,1\}//p' Makefile

#: make demo      a whole qualification of a small model on this machine, from checkpoint to verdict
#: make check     builds everything and runs every test; TESTS='glob' picks some, for example TESTS='test_gate*'
#:
#: make CUDA=1 check-cuda   what needs a GPU, cheapest first; PARTS='names' picks some (tests/cuda/run_all.sh --list)
#:
#: make deps      installs the distribution's missing packages (as root or through sudo)
#: make all       builds what this machine can build: bin/, lib/h3/
#: make config    lists each dependency, found or missing
#: make bench     time per node, provider beside candidate; hash and write rates
#: make install   copies programs, libraries and operator.h below PREFIX (default /usr/local); DESTDIR= for packaging
#: make clean     removes build/, bin/ and lib/; runs in evidence/ stay
#:
#: Variables
#:   SANITIZE=1   address and undefined-behaviour sanitizers, in build/sanitize
#:   FAST_MATH=1  the candidate with -ffast-math, in build/fast-math: a library that the gate must refuse
#:   MPI_HOME HDF5_HOME CJSON_HOME OPENSSL_HOME OPENBLAS_HOME PNG_HOME CMOCKA_HOME SNDFILE_HOME FFMPEG_HOME
#:   CUDA_HOME NCCL_HOME CUDNN_HOME
#:                where a dependency is; without one pkg-config is asked
#:   V=1          whole compiler command lines; EXTRA_CFLAGS='...' adds to them
#:
#: Then: scripts/submit.sh --help (stages, one by one or as Slurm jobs), README.md (the whole story)

deps:
	@scripts/deps.sh

config:
	@$(INNER) config

all:
	+@$(INNER) all

candidate:
	+@$(INNER) candidate

demo: deps
	+@$(LOGGED) programs kernels
	@rm -rf $(DEMO_RUN)
	@scripts/submit.sh --local --plan plans/demo.json --run $(DEMO_RUN)

check: deps
	@scripts/deps.sh --previews
	+@$(LOGGED) check-build
	+@$(INNER) cuda-check
	@tests/run $(if $(TESTS),--match '$(TESTS)')

# Without a GPU it ends before anything is built.
check-cuda:
	@tests/cuda/run_all.sh --need-gpu
	+@$(LOGGED) CUDA=1 cuda-tests
	@tests/cuda/run_all.sh $(if $(PARTS),--parts '$(PARTS)')

bench: deps
	+@$(LOGGED) bench-build
	@mk/bench.sh

install:
	+@$(INNER) install

clean:
	rm -rf build bin lib

# single files, for people at work on one: make bin/h3_compare, make build/tests/test_json
.PHONY: FORCE
FORCE:
build/% bin/% lib/%: FORCE
	+@$(INNER) $@
