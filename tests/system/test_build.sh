#!/usr/bin/env bash
# The Makefile, deps.sh and .ci/run, on a small project of their own kind: a source of each sort.
# shellcheck disable=SC2016,SC2317  # text for other scripts; functions that are called by check
set -u
. tests/tools/tap.sh
here=$PWD
build=${H3_BUILD:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# --- this project as it was built ---
is 'this build has no warnings' "$(find "$build/obj" -name '*.warn' 2>/dev/null)" ''

# --- the small project ---
project=$work/project
mkdir -p "$project"/{src/base,src/model,workers,kernels/{provider,candidate}/cpu,tests/{unit,candidates,system},bench,plans,docs,.ci}
cp -R Makefile mk scripts jobs include .gitignore "$project"
cp .ci/run "$project/.ci"
cp tests/run "$project/tests"
cp -R tests/tools "$project/tests"
cd "$project" || exit 1
unset H3_BUILD H3_BIN H3_LIB H3_TEST_LOG SANITIZE FAST_MATH TESTS EXTRA_CFLAGS REVISION PREFIX DESTDIR
unset MAKEFLAGS MAKELEVEL MFLAGS

cat >src/base/text.h <<'C'
#ifndef TEXT_H
#define TEXT_H
#define TEXT "first"
const char *text(void);
int element(int index);
#endif
C
cat >src/base/text.c <<'C'
#include "base/text.h"
#include <stdlib.h>
const char *text(void) { return TEXT; }
int element(int index)
{
    int *memory = calloc(4, sizeof *memory);
    if (memory == NULL) return -1;
    int value = memory[index];
    free(memory);
    return value;
}
C
echo 'int unrelated(void); int unrelated(void) { return 1; }' >src/model/unrelated.c
echo 'const char *revision(void); const char *revision(void) { return H3_BUILD_REVISION; }' >workers/shared.c
cat >workers/h3_say.c <<'C'
#include <stdio.h>
#include "base/text.h"
const char *revision(void);
int main(int argc, char **argv)
{
    (void)argv;
    printf("%s %s %d\n", text(), revision(), element((argc - 1) * 4));
    return 0;
}
C
for kind in provider candidate; do
    cat >kernels/$kind/cpu/library.c <<'C'
#include "h3/operator.h"
#ifdef H3_BUILD_IS_DIRTY
#define STATE "dirty"
#else
#define STATE "clean"
#endif
H3_EXPORT const char *identity(void);
const char *identity(void) { return "revision " H3_BUILD_REVISION " " STATE ", flags " H3_BUILD_FLAGS; }
C
    echo 'float scale(const float *x); float scale(const float *x) { return x[0] * x[1] + x[2]; }' >kernels/$kind/cpu/scale.c
done
cat >tests/unit/test_text.c <<'C'
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "base/text.h"
static void text_is_there(void **state) { (void)state; assert_non_null(text()); }
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_is_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
C
sed 's/"revision "/"wrong "/' kernels/candidate/cpu/library.c >tests/candidates/wrong.c
echo '#include <stdio.h>
int main(void) { puts("a rate"); return 0; }' >bench/rate.c
printf '#!/bin/bash\necho "ok 1 - from $H3_BIN"\n' >tests/system/test_small.sh
chmod +x tests/system/test_small.sh
echo '{}' >plans/demo.json
echo 'a guide' >docs/guide.md
git init -q . && git add -A && git -c user.name=t -c user.email=t@t commit -q -m one
revision() { git rev-parse --short=12 HEAD; }

# --- help, dry run ---
out=$(make 2>&1)
for target in demo check deps all bench install clean config; do like "help lists $target" "$out" "^make $target +[a-z]"; done
out=$(make -n all 2>&1)
like 'make -n shows the commands' "$out" 'gcc -std=c11 -O2 -ffp-contract=off .* -c src/base/text.c'
check 'and builds nothing' [ ! -e bin/h3_say ]

# --- a first build, and nothing the second time ---
out=$(make all -j2 2>&1)
is 'make all passes' "$?" 0
for dependency in compiler MPI HDF5 cJSON OpenSSL OpenBLAS cmocka FFmpeg CUDA NCCL Slurm; do
    like "it says where $dependency is" "$out" "^config +$dependency +([0-9.]+|found|missing) +.+"
done
unlike 'there are no warnings' "$out" 'warning'
like 'it ends with what is there' "$(tail -n 1 <<<"$out")" '^build    bin/ 1 programs, lib/h3/ candidate-cpu provider-cpu'
is 'the program runs from anywhere' "$(cd / && "$project/bin/h3_say")" "first $(revision) 0"
like 'a kernel library knows its revision' "$(strings -a lib/h3/libh3_candidate_cpu.so)" "^revision $(revision) clean, flags -std=c11 -O2 -ffp-contract=off "
is 'and shows one symbol alone' "$(nm -D --defined-only lib/h3/libh3_candidate_cpu.so | awk '{print $3}')" identity
compiled() { grep -E '^  (CC|AR|LD)' <<<"$1" | awk '{print $2}' | sort | tr '\n' ' '; }
start=$EPOCHREALTIME
out=$(make all 2>&1)
is 'a second make compiles nothing' "$(compiled "$out")" ''
check 'and takes no time' awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a < 2) }'

# --- what depends on what ---
make all REVISION=r1 >/dev/null 2>&1
sed -i 's/first/second/' src/base/text.h
out=$(make all REVISION=r1 2>&1)
is 'a changed header compiles what includes it, and links' "$(compiled "$out")" 'bin/h3_say build/libh3.a src/base/text.c workers/h3_say.c '
is 'the program has the change' "$(bin/h3_say)" 'second r1 0'
out=$(make all REVISION=r2 2>&1)
is 'a changed revision compiles what names it, and links' "$(compiled "$out")" \
    'bin/h3_say kernels/candidate/cpu/library.c kernels/provider/cpu/library.c lib/h3/libh3_candidate_cpu.so lib/h3/libh3_provider_cpu.so workers/shared.c '
is 'the program has the revision' "$(bin/h3_say)" 'second r2 0'
rm src/model/unrelated.c
make all REVISION=r2 >/dev/null 2>&1
is 'a source that went away leaves the archive' "$(ar t build/libh3.a)" text.o
echo 'build/obj/src/base/text.o: src/base/moved.c' >>build/obj/src/base/text.d
out=$(make all REVISION=r2 2>&1)
is 'a source that has moved stops no build: its object is made again' "$? $(compiled "$out")" '0 bin/h3_say build/libh3.a src/base/text.c '
out=$(make all REVISION=r2 EXTRA_CFLAGS=-DOTHER 2>&1)
like 'changed flags compile everything' "$(compiled "$out")" 'kernels/candidate/cpu/scale.c .*src/base/text.c .*workers/h3_say.c'
echo 'int shadowed(int x); int shadowed(int x) { long y = x; { int x = 2; y += x; } return y; }' >src/base/careless.c
like 'a warning is shown' "$(make all REVISION=r2 2>&1)" 'careless.c.*-Wshadow'
like 'and again, until it is mended' "$(make all REVISION=r2 2>&1)" 'careless.c.*-Wconversion'
rm src/base/careless.c build/obj/src/base/careless.*
echo 'this is no C' >src/base/broken.c
out=$(make check REVISION=r2 2>&1)
is 'a source that does not compile fails the build' "$?" 2
like 'with the compiler words' "$out" 'src/base/broken.c:1'
like 'and the log named' "$out" '^build    failed, whole log: build/build.log'
rm src/base/broken.c
out=$(HDF5_HOME=/nowhere make all 2>&1)
is 'a dependency that is missing fails the build' "$?" 2
like 'it is named with its variable' "$out" '^config   HDF5 +missing +HDF5_HOME=/nowhere has no include/hdf5.h'
like 'and the next step' "$out" '^build    missing: HDF5 \(libhdf5-dev\); run: make deps'
out=$(HDF5_HOME=/nowhere make candidate 2>&1)
is 'the candidate alone needs no library' "$?" 0

# --- revision ---
git checkout -q . && make all >/dev/null 2>&1
is 'the revision is the commit' "$(bin/h3_say)" "first $(revision) 0"
echo '// changed' >>src/base/text.c && make all >/dev/null 2>&1
is 'a changed tree is dirty' "$(bin/h3_say)" "first $(revision)-dirty 0"
like 'and its libraries say so' "$(strings -a lib/h3/libh3_candidate_cpu.so)" "^revision $(revision)-dirty dirty,"
git checkout -q . && make all >/dev/null 2>&1

# --- the same bytes in another folder, of another make ---
mkdir "$work/twin" && git archive HEAD | tar -x -C "$work/twin"
(cd "$work/twin" && make all -j2 >/dev/null 2>&1)
like 'outside git the revision is unknown' "$("$work/twin/bin/h3_say")" '^first unknown 0$'
commit=$(revision)
(cd "$work/twin" && make all REVISION="$commit" >/dev/null 2>&1)
for file in bin/h3_say lib/h3/libh3_candidate_cpu.so lib/h3/libh3_provider_cpu.so; do
    check "$file has the same bytes there" cmp "$file" "$work/twin/$file"
done

# --- variants ---
make all SANITIZE=1 -j2 >/dev/null 2>&1
is 'the sanitized build has a folder of its own' "$? $(build/sanitize/bin/h3_say)" "0 first $(revision) 0"
out=$(build/sanitize/bin/h3_say beyond 2>&1)
like 'and finds a read beyond the end' "$? $out" 'runtime error|heap-buffer-overflow'
check 'which the plain build does not notice' bin/h3_say beyond
plain=$(sha256sum <lib/h3/libh3_candidate_cpu.so)
out=$(make all FAST_MATH=1 2>&1)
like 'the fast-math candidate has its own folder' "$? $(ls build/fast-math/lib/h3)" '^0 libh3_candidate_cpu.so$'
like 'it says how it was built' "$(strings -a build/fast-math/lib/h3/libh3_candidate_cpu.so)" 'flags .* -ffast-math -DH3_FAST_MATH_BUILD'
like 'and how to use it' "$out" 'H3_LIB=build/fast-math/lib/h3'
is 'the shipped one is untouched' "$(sha256sum <lib/h3/libh3_candidate_cpu.so)" "$plain"

# --- install, bench ---
out=$(make install DESTDIR="$work/stage" PREFIX=/opt/h3 2>&1)
is 'make install passes' "$?" 0
is 'and brings programs, libraries, header, plans, jobs, scripts, docs' "$(cd "$work/stage/opt/h3" && find . -type f | sort | tr '\n' ' ')" \
    "./bin/h3_say ./include/h3/operator.h ./lib/h3/libh3_candidate_cpu.so ./lib/h3/libh3_provider_cpu.so ./share/h3/docs/guide.md $(
        cd "$project" && find jobs plans scripts -type f | sed 's/^/.\/share\/h3\//' | sort | tr '\n' ' ')"
is 'an installed program runs' "$("$work/stage/opt/h3/bin/h3_say")" "first $(revision) 0"
like 'an installed script finds the installed plans' "$("$work/stage/opt/h3/share/h3/scripts/submit.sh" --dry-run --plan plans/demo.json --run "$work/run" 2>&1)" \
    'jobs/compare.sbatch$'
like 'make bench runs what is in bench/' "$(make bench 2>&1)" '^a rate$'

# --- check, .ci/run ---
out=$(bash .ci/run </dev/null 2>&1)
is '.ci/run passes' "$?" 0
is 'its last line is the count' "$(tail -n 1 <<<"$out")" '2 passed, 0 failed, 0 skipped'
like 'unit tests ran' "$out" '^test_text +1 passed'
like 'system tests ran' "$out" '^test_small +1 passed'
like 'CUDA sources: none yet, and that is said' "$out" '^cuda     no .cu files yet$'
check 'wrong candidates are built for the tests' [ -e build/tests/libwrong.so ]
is "TESTS='glob' picks" "$(make check TESTS='test_sm*' 2>&1 | tail -n 1)" '1 passed, 0 failed, 0 skipped'
printf '#!/bin/bash\necho "not ok 1 - broken"\n' >tests/system/test_small.sh
out=$(bash .ci/run </dev/null 2>&1)
is '.ci/run fails when a test fails' "$?" 1
is 'and its last line is still the count' "$(tail -n 1 <<<"$out")" '1 passed, 1 failed, 0 skipped'
git checkout -q .

# --- CUDA sources are compiled wherever nvcc is ---
mkdir -p kernels/candidate/cuda
echo '__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }' >kernels/candidate/cuda/twice.cu
out=$(make check TESTS=test_text 2>&1)
code=$?
if grep -q '^NVCC := ' build/config.mk; then
    like 'a .cu file is compiled' "$code $out" 'cuda     1 .cu files compiled'
    echo 'no CUDA' >kernels/candidate/cuda/broken.cu
    refuse 'one that does not compile fails' make check TESTS=test_text
else
    like 'without nvcc a .cu file is counted' "$code $out" 'no nvcc here: 1 .cu files not compiled'
    ok 'and nothing fails for want of it'
fi
rm -r kernels/candidate/cuda

# --- what stands for a GPU finds the toolkit's headers where CUDA_HOME says, and needs them nowhere else ---
toolkit=$work/toolkit
mkdir -p "$toolkit"/{bin,include,lib64} src/graph tests/cuda
printf '#!/bin/sh\necho "release 13.0,"\n' >"$toolkit/bin/nvcc"
chmod +x "$toolkit/bin/nvcc"
touch "$toolkit"/include/{cublas_v2,nccl}.h
echo '#define HERE 0' >"$toolkit/include/only_here.h"
for source in src/graph/device.cu tests/cuda/emulate{,_memory,_stream,_failure,_nccl}.cpp; do echo '#include <only_here.h>' >$source; done
printf '#include <only_here.h>\nint main(void) { return HERE; }\n' >tests/cuda/hand_off_probe.c
check 'the probe of the hand-off is built with them' env -u NCCL_HOME make CUDA_HOME="$toolkit" build/tests/hand_off_probe
check 'and runs' build/tests/hand_off_probe
rm -r src/graph tests/cuda

# --- clean ---
mkdir -p evidence/kept
make clean >/dev/null
is 'clean leaves the sources and the runs' "$(git status --porcelain --ignored)$(ls -d build bin lib 2>/dev/null)$(ls evidence)" kept

# --- deps ---
start=$EPOCHREALTIME
out=$(make deps)
is 'make deps passes' "$?" 0
took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
like 'it is one line' "$out" '^deps     (all present \([0-9]+ packages|no apt here|not installed, and not needed)'
check "with nothing to do it takes no time ($took s)" awk -v t="$took" 'BEGIN { exit !(t < 0.5) }'

# a machine that lacks two packages, played by these commands
mkdir "$work/fake"
cat >"$work/fake/dpkg-query" <<'SH'
#!/bin/bash
for package in "${@:4}"; do
    case $package in zstd|libcjson-dev) [ -e "$FAKE/installed" ] || continue ;; esac
    echo "installed $package"
done
[ -e "$FAKE/installed" ]
SH
cat >"$work/fake/apt-get" <<'SH'
#!/bin/bash
echo "apt-get $*" >>"$FAKE/calls"
[ ! -e "$FAKE/broken" ] || { echo 'E: Unable to locate package zstd'; exit 100; }
[[ " $* " != *" install "* ]] || touch "$FAKE/installed"
SH
printf '#!/bin/bash\necho "${FAKE_ID:-0}"\n' >"$work/fake/id"
printf '#!/bin/bash\nexit 1\n' >"$work/fake/sudo"
chmod +x "$work/fake"/*
export FAKE=$work/fake
fake_deps() { PATH=$work/fake:$PATH scripts/deps.sh "$@" 2>&1; }
like 'deps --dry-run shows the command' "$(fake_deps --dry-run)" \
    "apt-get update && apt-get install -y --no-install-recommends libcjson-dev zstd"
out=$(FAKE_ID=1000 HDF5_HOME=/nowhere fake_deps)
is 'without rights deps fails' "$?" 4
like 'and prints the one command' "$out" "sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends libcjson-dev zstd'"
out=$(FAKE_ID=1000 fake_deps)
like 'unless the build finds everything anyway' "$? $out" '^0 deps     not installed, and not needed for the build: libcjson-dev zstd$'
touch "$FAKE/broken"
out=$(fake_deps)
like 'an installation that fails fails, with the reason' "$? $out" '^4 '
like 'and the log is named' "$out" 'whole log: build/deps.log'
rm "$FAKE/broken" "$FAKE/calls"
out=$(fake_deps)
like 'as root it installs what is missing, and only that' "$? $(cat "$FAKE/calls")" 'install -y --no-install-recommends libcjson-dev zstd$'
like 'and says so' "$out" '^deps     all present'
printf '#!/bin/bash\n[ "$1" = -n ] && shift\nexec "$@"\n' >"$work/fake/sudo"
rm "$FAKE/installed" "$FAKE/calls"
out=$(FAKE_ID=1000 fake_deps)
like 'through sudo too' "$? $(cat "$FAKE/calls")" 'install -y --no-install-recommends libcjson-dev zstd$'


# FFmpeg: installed when that is possible, and no reason to fail when it is not
rm -f "$FAKE/installed" "$FAKE/calls"
sed -i 's/zstd|libcjson-dev/ffmpeg|libswscale-dev/' "$work/fake/dpkg-query"
out=$(fake_deps --previews)
like 'deps --previews installs what is missing of FFmpeg' "$? $(cat "$FAKE/calls")" 'install -y --no-install-recommends ffmpeg libswscale-dev$'
rm -f "$FAKE/installed"
touch "$FAKE/broken"
like 'where that fails there are no previews, and nothing else is lost' "$(fake_deps --previews && echo passed)" '^deps     no previews: could not install them'
is 'it passes' "$(fake_deps --previews >/dev/null && echo passed)" passed
rm "$FAKE/broken"
printf '#!/bin/bash\nexit 1\n' >"$work/fake/sudo"
is 'without rights too' "$(FAKE_ID=1000 FFMPEG_HOME=/nowhere fake_deps --previews >/dev/null && echo passed)" passed

cd "$here" || exit 1
tap_end
