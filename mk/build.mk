# How things are compiled. Called by the Makefile; run it from the project's root.
#
# Sources are found by their place:
#   src/SUBJECT/*.c              the library that everything shares, libh3.a; with CUDA=1 *.cu too
#   workers/h3_X.c               bin/h3_X; any other workers/*.c is linked into every program
#   preview/*.c                  bin/h3_preview, the one program that links FFmpeg; left out where FFmpeg is not found
#   kernels/KIND/DEVICE/*.c *.cu lib/h3/libh3_KIND_DEVICE.so; sees include/ only, but for what ALSO_KIND_DEVICE names
#   tests/unit/test_X.c          build/tests/test_X; any other tests/unit/*.c is linked into every test
#   tests/mpi/X.c                build/tests/X, programs that tests/system/*.sh start under mpirun
#   tests/cuda/*                 build/tests/golden_cuda, nodes_cuda, libinject.so, libpoison.so: what tests/cuda/run_all.sh runs on a GPU;
#                                libpoison.so is built, and looked at, wherever the headers of CUDA are
#   tests/candidates/X.c         build/tests/libX.so, operator libraries that are wrong on purpose
#   tests/cuda/hand_off_probe.c  build/tests/hand_off_probe, on an emulated GPU and NCCL (where their headers are)
#   tests/cuda/matmul_probe.cpp  build/tests/matmul_probe, on an emulated GPU (where CUDA's headers are)
#   bench/X.c                    build/bench/X

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.SECONDARY:

ifeq ($(origin CC),default)
CC := gcc
endif
AR ?= ar
Q := $(if $(V),,@)

# --- variants -------------------------------------------------------------------------------------------------------

# CUDA=1 builds for GPUs too; EMULATE_CUDA=1 does that without one: the kernels run on the host (tests/cuda/emulate.h), in build/emulated.
VARIANT := $(if $(EMULATE_CUDA),/emulated)$(if $(SANITIZE),/sanitize)
BUILD := build$(VARIANT)
OUT := $(if $(VARIANT),$(BUILD)/)
BIN := $(OUT)bin
LIB := $(OUT)lib/h3
CANDIDATE_BUILD := $(BUILD)$(if $(FAST_MATH),/fast-math)
CANDIDATE_LIB := $(if $(FAST_MATH),$(BUILD)/fast-math/lib/h3,$(LIB))

# --- small files that change only when what they say changes --------------------------------------------------------

# $(call keep,FILE,TEXT): what depends on FILE is made again when TEXT is another one
keep = $(if $(call differ,$(strip $(file <$1)),$(strip $2)),$(file >$1,$(strip $2)))
differ = $(subst x$1,,x$2)$(subst x$2,,x$1)

make_folders = $(if $(filter-out $(wildcard $1),$1),$(shell mkdir -p $(filter-out $(wildcard $1),$1)))
$(call make_folders,$(BUILD))

# --- dependencies ---------------------------------------------------------------------------------------------------

HOMES := MPI HDF5 CJSON OPENSSL OPENBLAS CMOCKA SNDFILE PNG FFMPEG CUDA CUBLAS CUDNN NCCL
$(call keep,$(BUILD)/config.key,$(CC) $(foreach h,$(HOMES),$h=$($h_HOME)) $(PKG_CONFIG_PATH) $(PATH))
include $(BUILD)/config.mk
$(BUILD)/config.mk: scripts/detect.sh $(BUILD)/config.key $(wildcard /var/lib/dpkg/status)
	@CC='$(CC)' scripts/detect.sh $@

.PHONY: config need-build need-check
config:
	@cat $(BUILD)/config.txt
need-build:
	@$(if $(MISSING_BUILD),echo 'build    missing: $(MISSING_BUILD); run: make deps' >&2; exit 4,:)
need-check: need-build
	@$(if $(MISSING_CHECK),echo 'build    missing: $(MISSING_CHECK); run: make deps' >&2; exit 4,:)

# --- flags ----------------------------------------------------------------------------------------------------------

# CFLAGS of the environment are not taken: sums would lose the bits that are promised. EXTRA_CFLAGS is taken.
BASE := -std=c11 -O2 -ffp-contract=off
WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion
comma := ,
ifneq ($(EMULATE_CUDA),)
CUDA := 1
endif
ifneq ($(and $(CUDA),$(wildcard $(BUILD)/config.mk),$(if $(NVCC),,missing)),)
$(error CUDA=1 needs the CUDA toolkit: put nvcc on PATH or set CUDA_HOME)
endif
CUDA_HEADERS := $(CUDA_LIBS)
NCCL_HEADERS := $(NCCL_LIBS)
# A GPU on the host: what stands for the CUDA libraries.
EMULATOR := $(BUILD)/libcuda_emulated.so
ifneq ($(EMULATE_CUDA),)
CUDA_LIBS := -L$(BUILD) -Wl,-rpath,$(CURDIR)/$(BUILD) -lcuda_emulated
CUBLAS_LIBS := -Wl,-Bsymbolic
# Of cuDNN only the header is needed.
CUDNN_LIBS := $(if $(CUDNN_LIBS),-Wl$(comma)-Bsymbolic)
NCCL_LIBS := $(if $(NCCL_CFLAGS)$(NCCL_LIBS),$(CUDA_LIBS))
endif
# With CUDA and NCCL hidden states go from GPU to GPU (src/dist/link_nccl.c).
HAND_OFF := $(and $(CUDA),$(NCCL_LIBS))
SANITIZER := $(if $(SANITIZE),-fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
# Paths of this checkout stay out of the objects: the same sources give the same bytes anywhere.
COMMON := $(BASE) -D_GNU_SOURCE -g -ffile-prefix-map=$(CURDIR)=. $(WARNINGS) $(SANITIZER) $(EXTRA_CFLAGS) -Iinclude
SYSTEM := $(MPI_CFLAGS) $(HDF5_CFLAGS) $(CJSON_CFLAGS) $(OPENSSL_CFLAGS) $(PNG_CFLAGS)
CUDNN_FLAGS := $(if $(CUDNN_LIBS),-DH3_CUDNN $(CUDNN_CFLAGS))
LIBRARY_FLAGS := $(COMMON) -fopenmp -Isrc $(SYSTEM) $(if $(CUDA),-DH3_CUDA $(CUDA_CFLAGS) $(CUDNN_FLAGS)) $(if $(HAND_OFF),-DH3_NCCL $(NCCL_CFLAGS))
TEST_FLAGS := $(LIBRARY_FLAGS) -Itests/unit $(CMOCKA_CFLAGS) $(SNDFILE_CFLAGS)
LINK := $(SANITIZER) -Wl,--as-needed $(EXTRA_LDFLAGS)
LIBS := -fopenmp $(HDF5_LIBS) $(CJSON_LIBS) $(OPENSSL_LIBS) $(PNG_LIBS) $(MPI_LIBS) $(if $(CUDA),$(CUBLAS_LIBS) $(CUDNN_LIBS) $(CUDA_LIBS) -lstdc++) $(if $(HAND_OFF),$(NCCL_LIBS)) -ldl -lm -lpthread

KERNEL_BASE := $(BASE) -march=x86-64-v3 -fPIC -fvisibility=hidden
FLAGS_provider := $(KERNEL_BASE) -O3
FLAGS_candidate := $(KERNEL_BASE) -fopenmp $(if $(FAST_MATH),-ffast-math -DH3_FAST_MATH_BUILD)
CFLAGS_provider := $(COMMON) $(FLAGS_provider) $(OPENBLAS_CFLAGS)
CFLAGS_candidate := $(COMMON) $(FLAGS_candidate)
LIBS_provider_cpu := $(OPENBLAS_LIBS)
# The folder of src/, which includes include/ alone, that is compiled once more into a library.
ALSO_provider_cuda := src/cudnn
# Of this one headers alone.
ALSO_candidate_cuda := src/hopper
LIBS_provider_cuda := $(CUBLAS_LIBS) $(CUDNN_LIBS) $(CUDA_LIBS) -lstdc++ -ldl
LIBS_candidate_cuda := $(if $(EMULATE_CUDA),-Wl$(comma)-Bsymbolic) $(CUDA_LIBS) -lstdc++
# nodelete: OpenMP's threads live on after dlclose and must find their code where it was.
SHARED := -shared -Wl,-z,relro -Wl,-z,nodelete $(if $(SANITIZE),,-Wl,-z,defs)

# Code for these, and intermediate code of the lowest for what comes later.
CUDA_ARCHITECTURES ?= 80 90a
CUDA_LATER := $(firstword $(CUDA_ARCHITECTURES))
NVCC_FLAGS := -std=c++17 -O2 -fmad=false -lineinfo -Xcompiler -fPIC,-ffp-contract=off,-fvisibility=hidden \
    $(foreach a,$(CUDA_ARCHITECTURES),-gencode arch=compute_$a$(comma)code=sm_$a) -gencode arch=compute_$(CUDA_LATER),code=compute_$(CUDA_LATER) -Iinclude \
    $(if $(filter 90a,$(CUDA_ARCHITECTURES)),-DH3_HOPPER_BUILT)
ifneq ($(EMULATE_CUDA),)
# The C++ compiler in nvcc's place. Symbols are shared with the emulator, so none is hidden.
NVCC := $(CXX) -x c++
NVCC_FLAGS := -std=c++17 -O2 -g -ffp-contract=off -fPIC -fno-gnu-unique $(SANITIZER) -DH3_EMULATE -Iinclude -Isrc -Itests/cuda $(CUDA_CFLAGS)
EMULATOR_FLAGS := $(CUDNN_FLAGS)
endif

# --- revision -------------------------------------------------------------------------------------------------------

# The commit, never a tag: a clone without tags must give the same bytes.
ifeq ($(origin REVISION),undefined)
REVISION := $(if $(wildcard .git),$(shell GIT_OPTIONAL_LOCKS=0 git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))
endif
REVISION := $(or $(strip $(REVISION)),unknown)
DIRTY := $(if $(filter %-dirty,$(REVISION)),-DH3_BUILD_IS_DIRTY=1)
$(call keep,$(BUILD)/revision.key,$(REVISION))

# Only these are compiled again for a new revision; the rest is linked again at most.
REVISION_SOURCES := $(shell grep -lE 'H3_BUILD_(REVISION|FLAGS|IS_DIRTY)' \
    $(wildcard src/*/*.c workers/*.c kernels/*/*/*.c tests/candidates/*.c) /dev/null)
# $(call revision_of,SOURCE,FLAGS)
revision_of = $(if $(filter $1,$(REVISION_SOURCES)),-DH3_BUILD_REVISION='"$(REVISION)"' -DH3_BUILD_FLAGS='"$(strip $2)"' $(DIRTY))

# --- what there is --------------------------------------------------------------------------------------------------

objects = $(patsubst %.c,$(BUILD)/obj/%.o,$1)
LIBRARY_SOURCES := $(sort $(wildcard src/*/*.c))
EMULATOR_SOURCES := $(sort $(wildcard tests/cuda/emulate*.cpp)) src/qualify/tensor_core.c
PROGRAM_SOURCES := $(sort $(wildcard workers/h3_*.c))
PREVIEW_SOURCES := $(if $(FFMPEG_LIBS),$(sort $(wildcard preview/*.c)))
WORKER_SOURCES := $(filter-out $(PROGRAM_SOURCES),$(sort $(wildcard workers/*.c)))
TEST_SOURCES := $(sort $(wildcard tests/unit/test_*.c))
TEST_SHARED_SOURCES := $(filter-out $(TEST_SOURCES),$(sort $(wildcard tests/unit/*.c)))
PROBE_SOURCES := $(sort $(wildcard tests/mpi/*.c))
WRONG_SOURCES := $(sort $(wildcard tests/candidates/*.c))
BENCH_SOURCES := $(sort $(wildcard bench/*.c))
NODES_CUDA_SOURCES := $(patsubst %,tests/cuda/%.c,nodes_cuda check problem run large turns)
WHOLE_SOURCES := $(patsubst %,tests/cuda/%.c,whole whole_full whole_generation sampled released)
GOLDEN_CUDA_SOURCES := tests/cuda/golden_cuda.c $(WHOLE_SOURCES) tests/unit/golden.c
SDPA_PLANS_SOURCES := $(wildcard tests/cuda/sdpa_plans.c src/cudnn/sdpa_graph.c)
SDPA_PLANS := $(if $(EMULATE_CUDA),,$(if $(SDPA_PLANS_SOURCES),$(BUILD)/tests/sdpa_plans))
ATTENTION_CUDNN_SOURCES := $(patsubst %,tests/cuda/%.c,attention_cudnn check problem run)
# The hand-off between GPUs with its failures, without a GPU: only the sources that know of CUDA or NCCL are compiled again.
HAND_OFF_SOURCES := tests/cuda/hand_off_probe.c $(wildcard src/dist/*.c) $(wildcard src/graph/device*.c)
HAND_OFF_GPU := tests/cuda/emulate.cpp $(addprefix tests/cuda/emulate_,memory.cpp stream.cpp failure.cpp nccl.cpp)
HAND_OFF_KERNELS := $(wildcard src/graph/device*.cu)
HAND_OFF_PROBE := $(if $(and $(CUDA_HEADERS),$(NCCL_HEADERS),$(wildcard tests/cuda/hand_off_probe.c)),$(BUILD)/tests/hand_off_probe)
# Products for Hopper GPUs, likewise.
HOPPER_GPU := $(wildcard tests/cuda/matmul_probe.cpp) tests/cuda/emulate.cpp $(addprefix tests/cuda/emulate_,hopper.cpp memory.cpp stream.cpp failure.cpp nccl.cpp)
HOPPER_KERNELS := $(wildcard src/media/video_matmul.cu src/media/video_layers.cu $(addprefix kernels/candidate/cuda/,gemm.cu gemm_hopper.cu attention.cu attention_hopper.cu attention_backward.cu attention_backward_hopper.cu))
HOPPER_SOURCES := $(wildcard kernels/candidate/cuda/check.c)
HOPPER_PROBE := $(if $(and $(CUDA_HEADERS),$(wildcard tests/cuda/matmul_probe.cpp)),$(BUILD)/tests/matmul_probe)
POISON := $(if $(EMULATE_CUDA),,$(if $(and $(CUDA_HEADERS),$(CUBLAS_LIBS),$(wildcard tests/cuda/poison.c)),$(BUILD)/tests/libpoison.so))
AUDIO_CUDA_SOURCES := tests/cuda/audio_cuda.c tests/unit/golden.c
CUDA_SOURCES := $(sort $(foreach d,kernels src,$(wildcard $d/*.cu $d/*/*.cu $d/*/*/*.cu $d/*/*/*/*.cu)))
KERNEL_FOLDERS := $(sort $(patsubst %/,%,$(dir $(wildcard kernels/*/*/*.c kernels/*/*/*.cu))))
KERNEL_FOLDERS := $(if $(CUDA),$(KERNEL_FOLDERS),$(filter-out %/cuda,$(KERNEL_FOLDERS)))

PREVIEW := $(if $(PREVIEW_SOURCES),$(BIN)/h3_preview)
PROGRAMS := $(patsubst workers/%.c,$(BIN)/%,$(PROGRAM_SOURCES)) $(PREVIEW)
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(TEST_SOURCES))
PROBES := $(patsubst tests/mpi/%.c,$(BUILD)/tests/%,$(PROBE_SOURCES))
WRONG := $(patsubst tests/candidates/%.c,$(BUILD)/tests/lib%.so,$(WRONG_SOURCES))
BENCHES := $(patsubst bench/%.c,$(BUILD)/bench/%,$(BENCH_SOURCES))
CUDA_OBJECTS := $(patsubst %,$(BUILD)/obj/%.o,$(CUDA_SOURCES))
kernel_out = $(if $(filter candidate,$1),$(CANDIDATE_LIB),$(LIB))/libh3_$1_$2.so
kernel_build = $(if $(filter candidate,$1),$(CANDIDATE_BUILD),$(BUILD))
kind_of = $(word 2,$(subst /, ,$1))
device_of = $(word 3,$(subst /, ,$1))
kernel_sources = $1 $(ALSO_$(call kind_of,$1)_$(call device_of,$1))
also_of = $(ALSO_$(call kind_of,$1)_$(call device_of,$1):%=-I%)
KERNELS := $(foreach f,$(KERNEL_FOLDERS),$(call kernel_out,$(call kind_of,$f),$(call device_of,$f)))

SOURCES := $(LIBRARY_SOURCES) $(PROGRAM_SOURCES) $(WORKER_SOURCES) $(PREVIEW_SOURCES) $(TEST_SOURCES) $(TEST_SHARED_SOURCES) \
    $(PROBE_SOURCES) $(WRONG_SOURCES) $(BENCH_SOURCES) $(CUDA_SOURCES) $(wildcard tests/cuda/*.c)
$(call make_folders,$(sort $(patsubst %/,%,$(dir $(SOURCES:%=$(BUILD)/obj/%))) \
    $(foreach f,$(KERNEL_FOLDERS),$(call kernel_build,$(call kind_of,$f))/obj/$f) \
    $(BIN) $(LIB) $(CANDIDATE_LIB) $(BUILD)/tests $(BUILD)/bench))

$(call keep,$(BUILD)/flags.key,$(CC) $(LIBRARY_FLAGS) $(CFLAGS_provider) $(CFLAGS_candidate) $(NVCC_FLAGS) $(CUDNN_FLAGS) $(ALSO_provider_cuda) $(ALSO_candidate_cuda))
$(call keep,$(CANDIDATE_BUILD)/flags.key,$(CC) $(LIBRARY_FLAGS) $(CFLAGS_provider) $(CFLAGS_candidate) $(NVCC_FLAGS) $(CUDNN_FLAGS) $(ALSO_provider_cuda) $(ALSO_candidate_cuda))
# A source that went away must leave the archives and libraries too.
$(call keep,$(BUILD)/sources.key,$(EMULATOR_SOURCES) $(LINK) $(SHARED) $(LIBS) $(CMOCKA_LIBS) $(SNDFILE_LIBS) $(FFMPEG_LIBS) $(PREVIEW_SOURCES) $(foreach f,$(KERNEL_FOLDERS),$(LIBS_$(call kind_of,$f)_$(call device_of,$f))) $(LIBRARY_SOURCES) $(if $(CUDA),$(filter src/%,$(CUDA_SOURCES))) $(WORKER_SOURCES) $(TEST_SHARED_SOURCES) $(foreach f,$(KERNEL_FOLDERS),$(wildcard $f/*.c $f/*.cu)))

# --- goals ----------------------------------------------------------------------------------------------------------

.PHONY: all programs kernels candidate tests check-build bench-build cuda-tests cuda-check install
all: config programs kernels
	@mk/build_line.sh $(BUILD) $(BIN) $(LIB)
	@$(if $(FAST_MATH),echo 'build    $(CANDIDATE_LIB)/ candidate with -ffast-math: use it with H3_LIB=$(CANDIDATE_LIB)',:)
programs: need-build $(BUILD)/libh3.a $(PROGRAMS)
kernels: need-build $(KERNELS)
candidate: $(filter %/libh3_candidate_cpu.so %/libh3_candidate_cuda.so,$(KERNELS))
tests: need-check $(UNIT_TESTS) $(PROBES) $(WRONG) $(patsubst tests/cuda/%.c,$(BUILD)/tests/%,$(wildcard tests/cuda/golden_cuda.c)) $(SDPA_PLANS) $(HAND_OFF_PROBE) $(HOPPER_PROBE) $(POISON)
check-build: programs kernels tests
bench-build: programs kernels $(BENCHES)
cuda-tests: programs kernels $(patsubst %,$(BUILD)/tests/%,golden_cuda nodes_cuda device_cuda audio_cuda video_cuda attention_cudnn libinject.so libpoison.so)

# --- compiling ------------------------------------------------------------------------------------------------------

# $(call run,WORD,COMMAND): a short line, and whatever the compiler says is kept beside the target until it is fixed
define run
@$(if $(V),,echo '  $1  $(if $(filter %.o,$@),$<,$@)')
$(Q)$2 2>$@.warn || { cat $@.warn >&2; rm -f $@.warn; exit 1; }; if [ -s $@.warn ]; then cat $@.warn >&2; else rm -f $@.warn; fi
endef
depend = -MMD -MP -MF $(@:.o=.d)

$(BUILD)/obj/src/%.o: src/%.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(LIBRARY_FLAGS) $(call revision_of,$<,$(BASE)) $(depend) -c $< -o $@)
$(BUILD)/obj/workers/%.o: workers/%.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(LIBRARY_FLAGS) $(call revision_of,$<,$(BASE)) $(depend) -c $< -o $@)
$(BUILD)/obj/preview/%.o: preview/%.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(LIBRARY_FLAGS) -Iworkers $(FFMPEG_CFLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/bench/%.o: bench/%.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(LIBRARY_FLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/tests/mpi/%.o: tests/mpi/%.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(LIBRARY_FLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/tests/unit/%.o: tests/unit/%.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(TEST_FLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/tests/cuda/%.o: tests/cuda/%.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(LIBRARY_FLAGS) -Itests/unit $(depend) -c $< -o $@)
$(BUILD)/obj/%.cu.o: %.cu $(BUILD)/flags.key
	$(call run,NV,$(NVCC) $(NVCC_FLAGS) $(call also_of,$<) -MMD -MF $(@:.o=.d) -c $< -o $@)
$(call objects,$(filter-out kernels/%,$(REVISION_SOURCES))): $(BUILD)/revision.key

$(BUILD)/libh3.a: $(call objects,$(LIBRARY_SOURCES)) $(if $(CUDA),$(filter $(BUILD)/obj/src/%,$(CUDA_OBJECTS))) $(BUILD)/sources.key
	$(call run,AR,rm -f $@ && $(AR) rcs $@ $(filter %.o,$^))

WORKER_OBJECTS := $(call objects,$(WORKER_SOURCES))
$(BIN)/h3_preview: $(call objects,$(PREVIEW_SOURCES)) $(WORKER_OBJECTS) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(FFMPEG_LIBS) $(LIBS) -o $@)
$(BIN)/%: $(BUILD)/obj/workers/%.o $(WORKER_OBJECTS) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

$(BUILD)/tests/test_%: $(BUILD)/obj/tests/unit/test_%.o $(call objects,$(TEST_SHARED_SOURCES)) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o,$^) $(filter %.a,$^) $(CMOCKA_LIBS) $(SNDFILE_LIBS) $(LIBS) -o $@)

$(BUILD)/tests/test_whole: $(call objects,$(WHOLE_SOURCES))

$(BUILD)/tests/golden_cuda: $(call objects,$(GOLDEN_CUDA_SOURCES)) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

$(BUILD)/tests/audio_cuda: $(call objects,$(AUDIO_CUDA_SOURCES)) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

$(BUILD)/tests/device_cuda: $(call objects,tests/cuda/device_cuda.c) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

$(BUILD)/tests/video_cuda: $(call objects,tests/cuda/video_cuda.c tests/cuda/video_ops_check.c tests/cuda/video_matmul_check.c tests/cuda/turns.c tests/cuda/video_both.c tests/cuda/video_profile.c tests/unit/golden.c) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

$(BUILD)/tests/nodes_cuda: $(call objects,$(NODES_CUDA_SOURCES)) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

# LD_PRELOAD for error injection
$(BUILD)/tests/libinject.so: tests/cuda/inject.c $(BUILD)/flags.key
	$(call run,LD,$(CC) $(COMMON) $(CUDA_CFLAGS) -fPIC -shared $(SANITIZER) $< -ldl -o $@)

# LD_PRELOAD beneath compute-sanitizer. It needs the libraries whose calls it takes, and the driver only while it runs.
$(BUILD)/tests/libpoison.so: tests/cuda/poison.c src/cudnn/sdpa_graph.h $(BUILD)/flags.key
	$(call run,LD,$(CC) $(COMMON) $(CUDNN_FLAGS) $(CUDA_CFLAGS) -Isrc -fPIC -shared $(SANITIZER) $< -Wl$(comma)--no-as-needed $(CUBLAS_LIBS) $(CUDNN_LIBS) $(CUDA_LIBS) -ldl -o $@)

$(BUILD)/tests/attention_cudnn: $(call objects,$(ATTENTION_CUDNN_SOURCES)) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

# Needs cuDNN and no GPU, so it is built with the tests, CUDA=1 or not.
$(BUILD)/tests/sdpa_plans: $(SDPA_PLANS_SOURCES) $(BUILD)/flags.key $(BUILD)/sources.key
	$(call run,LD,$(CC) $(COMMON) $(if $(CUDNN_LIBS),$(CUDNN_FLAGS) $(CUDA_CFLAGS)) -Isrc -MMD -MP -MF $(BUILD)/obj/tests/cuda/sdpa_plans.d $(LINK) $(SDPA_PLANS_SOURCES) $(if $(CUDNN_LIBS),$(CUDNN_LIBS) $(CUDA_LIBS)) -ldl -o $@)

$(PROBES): $(BUILD)/tests/%: $(BUILD)/obj/tests/mpi/%.o $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

HAND_OFF_OBJECTS := $(HAND_OFF_SOURCES:%.c=$(BUILD)/obj/hand_off/%.o) $(HAND_OFF_GPU:%.cpp=$(BUILD)/obj/hand_off/%.o) $(HAND_OFF_KERNELS:%=$(BUILD)/obj/hand_off/%.o)
$(call make_folders,$(sort $(dir $(HAND_OFF_OBJECTS))))
$(BUILD)/obj/hand_off/%.o: %.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(LIBRARY_FLAGS) -UH3_CUDA -DH3_CUDA -UH3_NCCL -DH3_NCCL $(CUDA_CFLAGS) $(NCCL_CFLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/hand_off/%.o: %.cpp $(BUILD)/flags.key
	$(call run,CXX,$(CXX) -std=c++17 -O2 -g $(WARNINGS) $(SANITIZER) -Iinclude -Isrc -Itests/cuda $(CUDA_CFLAGS) $(NCCL_CFLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/hand_off/%.cu.o: %.cu $(BUILD)/flags.key
	$(call run,CXX,$(CXX) -x c++ -std=c++17 -O2 -g -ffp-contract=off $(SANITIZER) -DH3_EMULATE -Iinclude -Isrc -Itests/cuda $(CUDA_CFLAGS) -MMD -MF $(@:.o=.d) -c $< -o $@)
$(BUILD)/tests/hand_off_probe: $(HAND_OFF_OBJECTS) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(filter-out $(CUBLAS_LIBS) $(CUDNN_LIBS) $(CUDA_LIBS) $(NCCL_LIBS),$(LIBS)) -lstdc++ -o $@)

HOPPER_OBJECTS := $(HOPPER_SOURCES:%.c=$(BUILD)/obj/hopper/%.o) $(HOPPER_GPU:%.cpp=$(BUILD)/obj/hopper/%.o) $(HOPPER_KERNELS:%=$(BUILD)/obj/hopper/%.o)
$(call make_folders,$(sort $(dir $(HOPPER_OBJECTS))))
HOPPER_FLAGS := -std=c++17 -O2 -g -ffp-contract=off -Wno-psabi $(SANITIZER) -DH3_EMULATE -DH3_GEMM_FULL_GRID=1 -DH3_GEMM_HOPPER_GRID=1 -Iinclude -Isrc -Isrc/hopper -Itests/cuda $(CUDA_CFLAGS)
$(BUILD)/obj/hopper/%.o: %.c $(BUILD)/flags.key
	$(call run,CC,$(CC) $(COMMON) $(CUDA_CFLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/hopper/%.o: %.cpp $(BUILD)/flags.key
	$(call run,CXX,$(CXX) $(HOPPER_FLAGS) $(depend) -c $< -o $@)
$(BUILD)/obj/hopper/%.cu.o: %.cu $(BUILD)/flags.key
	$(call run,CXX,$(CXX) -x c++ $(HOPPER_FLAGS) -MMD -MF $(@:.o=.d) -c $< -o $@)
$(BUILD)/tests/matmul_probe: $(HOPPER_OBJECTS) $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(filter-out $(CUBLAS_LIBS) $(CUDNN_LIBS) $(CUDA_LIBS) $(NCCL_LIBS),$(LIBS)) -lstdc++ -o $@)

$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/libh3.a $(BUILD)/sources.key
	$(call run,LD,$(CC) $(LINK) $(filter %.o %.a,$^) $(LIBS) -o $@)

$(BUILD)/tests/libfastmath.so: CFLAGS_candidate += -ffast-math
$(BUILD)/tests/lib%.so: tests/candidates/%.c $(BUILD)/flags.key $(BUILD)/revision.key
	$(call run,LD,$(CC) $(CFLAGS_candidate) $(call revision_of,$<,$(FLAGS_candidate)) -MMD -MP -MF $(BUILD)/obj/$<.d $(SHARED) $(LINK) $< -ldl -lm -o $@)

ifneq ($(EMULATE_CUDA),)
$(EMULATOR): $(EMULATOR_SOURCES) $(wildcard tests/cuda/emulate*.h) $(BUILD)/flags.key
	$(call run,LD,$(CC) $(COMMON) -Isrc -fPIC -c src/qualify/tensor_core.c -o $@.o && $(CXX) -shared $(NVCC_FLAGS) $(EMULATOR_FLAGS) -DH3_EMULATE_MEMORY $(filter %.cpp,$^) $@.o -o $@)
$(PROGRAMS) $(UNIT_TESTS) $(PROBES) $(BENCHES) $(BUILD)/tests/golden_cuda $(BUILD)/tests/nodes_cuda $(BUILD)/tests/attention_cudnn $(BUILD)/tests/audio_cuda $(BUILD)/tests/device_cuda $(BUILD)/tests/video_cuda $(filter %_cuda.so,$(KERNELS)): $(EMULATOR)
endif

# $(call kernel_c,FOLDER OF SOURCES,FOLDER,KIND,DEVICE,BUILD)
define kernel_c
$5/obj/$2/%.o: $1/%.c $5/flags.key
	$$(call run,CC,$$(CC) $$(CFLAGS_$3) $$(call also_of,$$<) $$(if $$(filter cuda,$4),$$(CUDA_CFLAGS) $$(CUDNN_FLAGS)) $$(if $$(filter cuda,$4),-DH3_BUILD_ARCHITECTURES='"$$(CUDA_ARCHITECTURES:%=sm_%)"') $$(call revision_of,$$<,$$(if $$(filter cuda,$4),$$(NVCC_FLAGS),$$(FLAGS_$3))) $$(depend) -c $$< -o $$@)
endef
# $(call kernel_rules,FOLDER,KIND,DEVICE,BUILD)
define kernel_rules
$4/obj/$1/%.cu.o: $1/%.cu $4/flags.key
	$$(call run,NV,$$(NVCC) $$(NVCC_FLAGS) $$(call also_of,$$<) -MMD -MF $$(@:.o=.d) -c $$< -o $$@)
$(patsubst %.c,$4/obj/%.o,$(filter $1/%,$(REVISION_SOURCES))): $(BUILD)/revision.key
$(call kernel_out,$2,$3): $(patsubst %.c,$4/obj/$1/%.o,$(notdir $(sort $(foreach s,$(call kernel_sources,$1),$(wildcard $s/*.c))))) $(patsubst %,$4/obj/%.o,$(sort $(wildcard $1/*.cu))) $(BUILD)/sources.key
	$$(call run,LD,$$(CC) $$(FLAGS_$2) $$(SHARED) $$(LINK) -Wl$$(comma)-soname$$(comma)$$(@F) $$(filter %.o,$$^) $$(LIBS_$2_$3) -lm -o $$@)
endef
$(foreach f,$(KERNEL_FOLDERS),$(foreach s,$(call kernel_sources,$f),$(eval $(call kernel_c,$s,$f,$(call kind_of,$f),$(call device_of,$f),$(call kernel_build,$(call kind_of,$f))))))
$(foreach f,$(KERNEL_FOLDERS),$(eval $(call kernel_rules,$f,$(call kind_of,$f),$(call device_of,$f),$(call kernel_build,$(call kind_of,$f)))))

# Where there is no GPU the kernels are at least compiled.
ifneq ($(and $(NVCC),$(CUDA_SOURCES)),)
cuda-check: $(CUDA_OBJECTS)
	@echo 'cuda     $(words $(CUDA_SOURCES)) .cu files compiled for $(CUDA_ARCHITECTURES:%=sm_%)'
else
cuda-check:
	@echo 'cuda     $(if $(CUDA_SOURCES),no nvcc here: $(words $(CUDA_SOURCES)) .cu files not compiled,no .cu files yet)'
endif

# --- installing -----------------------------------------------------------------------------------------------------

PREFIX ?= /usr/local
ROOT := $(DESTDIR)$(PREFIX)
SHARE := $(ROOT)/share/h3
install: all
	@install -d $(ROOT)/bin $(ROOT)/lib/h3 $(ROOT)/include/h3 $(SHARE)
	@$(if $(PROGRAMS),install -m 755 $(PROGRAMS) $(ROOT)/bin)
	@$(if $(KERNELS),install -m 755 $(KERNELS) $(ROOT)/lib/h3)
	@install -m 644 include/h3/operator.h $(ROOT)/include/h3
	@cp -R $(wildcard plans manifests thresholds jobs scripts docs README.md generation-contract.json) $(SHARE)
	@echo 'install  $(ROOT)/bin $(words $(PROGRAMS)) programs, lib/h3 $(words $(KERNELS)) libraries, include/h3/operator.h, share/h3'

-include $(shell mk/dependencies.sh $(sort $(BUILD)/obj $(CANDIDATE_BUILD)/obj))
