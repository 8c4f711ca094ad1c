#!/usr/bin/env bash
# check-cuda without a GPU: how it counts, what it calls a failure, and what it says where there is no GPU. The programs are stand-ins that do as they are told.
# shellcheck disable=SC2016,SC2317  # text for other scripts; functions that are called by check
set -u
. tests/tools/tap.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset H3_GOLDEN_SHARED H3_CHECK_LIMIT H3_COMPUTE_SANITIZER CUDA_HOME PARTS MAKEFLAGS MAKELEVEL MFLAGS
mkdir -p "$work"/{tests,bin,lib,tools,log}

harmless=$(ldd "$(command -v bash)" | awk '$1 == "libc.so.6" { print $3 }') # in the injector's place: stand-ins are told by H3_INJECT
# stand_in FILE TEXT: a program; $all are its arguments in one word
stand_in() { printf '#!/usr/bin/env bash\nall="$*"\n%s\n' "$2" >"$1" && chmod +x "$1"; }
good_programs() {
    stand_in "$work/tests/golden_cuda" '
        [ -z "${H3_POISON_SKIP:-}" ] || { echo "goldens on cuda: FAILED"; exit 1; }
        [ -z "${LD_PRELOAD:-}" ] || echo "poison: outputs of 7 products and 1 attentions were NaNs before" >&2
        case $all in *--probe*) echo "cuda: 1 there" ;; *) echo "goldens on cuda: ok" ;; esac'
    stand_in "$work/tests/nodes_cuda" '
        kernel=wgmma
        [[ ${H3_CANDIDATE_PRODUCTS:-} != mma ]] || kernel=mma
        while [ $# -gt 0 ]; do [ "$1" != --digests ] || echo "a node 1234" >"$2"; shift; done
        printf "q_proj OK linear_$kernel linear_gradient_dx_${kernel}_dw_$kernel\nattention OK attention_$kernel attention_gradient_$kernel\n20 checked, 0 failed\n"'
    for program in device_cuda video_cuda audio_cuda attention_cudnn; do stand_in "$work/tests/$program" 'echo "7 passed, 0 failed"'; done
    stand_in "$work/bin/h3_reference_pass" '
        while [ $# -gt 0 ]; do [ "$1" != --out ] || out=$2; shift; done
        if [ -n "${H3_INJECT:-}" ]; then echo "h3_reference_pass: GPU 0 failed; look at it" >&2; exit 4; fi
        mkdir -p "$out" && echo result >"$out/case.h5"'
    stand_in "$work/tools/compute-sanitizer" 'while [[ $1 == --* ]]; do shift 2; done; "$@"'
    stand_in "$work/tools/nvidia-smi" 'echo 143771'
    ln -sf "$harmless" "$work/tests/libinject.so"
    ln -sf "$harmless" "$work/tests/libpoison.so"
}
# run ARGUMENTS...: rc, out (stdout) and err
run() {
    out=$(PATH=$work/tools:$PATH H3_BUILD=$work H3_BIN=$work/bin H3_LIB=$work/lib tests/cuda/run_all.sh --log "$work/log" "$@" 2>"$work/err")
    rc=$?
    err=$(cat "$work/err")
}
last() { tail -n 1 <<<"$out"; }
lines() { grep -c . <<<"$1"; }

# --- no GPU ----------------------------------------------------------------------------------------------------------------

good_programs
stand_in "$work/tests/golden_cuda" 'echo "golden_cuda: this machine has no usable GPU" >&2; exit 4'
run
is 'without a GPU it exits 4 and says so in one line' "$rc|$out|$err" '4||check-cuda: no GPU here (this machine has no usable GPU); run it on a machine with one'
rm "$work/tests/golden_cuda"
run
is 'without its programs it says what to build' "$rc|$out|$err" "4||check-cuda: $work/tests/golden_cuda is not there; build it with make CUDA=1 check-cuda"
if nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    check 'this machine has a GPU, and that is seen' tests/cuda/run_all.sh --need-gpu
else
    err=$(tests/cuda/run_all.sh --need-gpu 2>&1)
    is 'this machine has no GPU, and that is seen' "$? $(lines "$err")" '4 1'
    err=$(make CUDA=1 check-cuda 2>&1)
    is 'make check-cuda builds nothing here' "$? $(sed -n 1p <<<"$err")" '2 check-cuda: no GPU here (no NVIDIA device); run it on a machine with one'
    like 'its recipe ended with 4' "$err" 'check-cuda\] Error 4$'
    is 'and that is all' "$(lines "$err")" 2
fi

# --- the program that compares goldens ---------------------------------------------------------------------------------------

golden_cuda=${H3_BUILD:-build}/tests/golden_cuda
golden() { out=$("$golden_cuda" "$@" 2>"$work/err"); rc=$?; err=$(cat "$work/err"); }
golden --device cpu --cases nano --modes fp32
is 'nano holds on the CPU' "$rc $(tail -n 1 <<<"$out")" '0 goldens on cpu: ok'
for wrong in '--cases nano,typo' '--cases nano,' '--modes fp64' '--device' '--probe --cases nano'; do
    # shellcheck disable=SC2086  # two words
    golden $wrong
    is "a wrong command line is refused: $wrong" "$rc" 2
done
golden --device cpu --cases edge --modes bf16
is 'a case that has no golden in these modes is no success' "$rc $(tail -n 1 <<<"$out")" '1 goldens on cpu: FAILED'
out=$(H3_GOLDEN=$work/none "$golden_cuda" --device cpu --cases nano,deep,generation,full-s264 2>&1)
is 'and neither are goldens that are not there' "$? $(grep -c 'FAILED  ' <<<"$out")" '1 10'

# --- the library that fills outputs: it is built here too, and stands before the calls that write ---------------------------

config=${H3_BUILD:-build}/config.mk
if grep -q '^CUDA_LIBS := .' "$config" && grep -q '^CUBLAS_LIBS := .' "$config"; then
    calls=cublasLtMatmul
    if grep -q '^CUDNN_LIBS := .' "$config"; then calls="$calls cudnnBackendExecute cudnnBackendSetAttribute"; fi
    is 'libpoison.so takes the calls of cuBLASLt and cuDNN' "$(nm -D --defined-only "${H3_BUILD:-build}/tests/libpoison.so" | awk '$3 ~ /^cu/ { print $3 }' | sort | xargs)" "$calls"
else
    no_gpu 'what libpoison.so takes (the headers of CUDA are not on this machine)'
fi

# --- all is well -----------------------------------------------------------------------------------------------------------

good_programs
count=$(tests/cuda/run_all.sh --list | wc -l)
run
is 'all parts pass' "$rc $(last)" "0 $count passed, 0 failed, 0 skipped"
is 'one row a part as it ends, and a table of them before the last line' "$(grep -c ' passed  ' <<<"$out")" $((2 * count))
is 'the summary is kept' "$(cat "$work/log/summary")" "$(last)"
is 'parts run in the order of the list' "$(grep ' passed  ' <<<"$out" | tail -n "$count" | cut -d' ' -f1 | tr '\n' ' ')" "$(tests/cuda/run_all.sh --list | cut -d' ' -f1 | tr '\n' ' ')"
run --parts deep,nodes
is '--parts picks' "$rc $(last)" '0 2 passed, 0 failed, 0 skipped'
run --parts deep,nodes --except deep
is '--except leaves out' "$rc $(last)" '0 1 passed, 0 failed, 0 skipped'
run --parts deep,dep
is 'an unknown part is an error' "$rc $(lines "$err")" '2 1'
run --parts
is 'and so is a missing list' "$rc" 2
run --except "$(tests/cuda/run_all.sh --list | cut -d' ' -f1 | paste -sd,)"
is 'nothing run is no success' "$rc $(last)" '1 0 passed, 0 failed, 0 skipped'

# --- failures --------------------------------------------------------------------------------------------------------------

good_programs
sed -i 's/^ *case $all in/&  *deep*) echo "deep bf16 FAILED  2 beyond"; echo "goldens on cuda: FAILED"; exit 1 ;;/' "$work/tests/golden_cuda"
run
is 'a failing part is counted, the others still run' "$rc $(last)" "1 $((count - 1)) passed, 1 failed, 0 skipped"
like 'its row says how it ended' "$out" '^deep +FAILED +[0-9.]+ s  exit 1: goldens on cuda: FAILED$'
like 'what failed stands below it' "$out" '^    deep bf16 FAILED  2 beyond$'
like 'and where to read more' "$out" "^    log  $work/log/deep.log\$"
stand_in "$work/tests/golden_cuda" 'case $all in *--probe*) echo "cuda: 1 there" ;; *deep*) kill -SEGV $$ ;; *) echo ok ;; esac'
run --parts deep,full
is 'a crash fails' "$rc $(last)" '1 1 passed, 1 failed, 0 skipped'
stand_in "$work/tests/golden_cuda" 'case $all in *--probe*) echo "cuda: 1 there" ;; *deep*) ;; *) echo ok ;; esac'
run --parts deep,full
is 'a part that says nothing fails' "$rc $(last)" '1 1 passed, 1 failed, 0 skipped'
stand_in "$work/tests/golden_cuda" 'case $all in *--probe*) echo "cuda: 1 there" ;; *deep*) sleep 60 & echo $! >'"$work"'/sleeper; wait ;; *) echo ok ;; esac'
export H3_CHECK_LIMIT=0.003
run --parts deep,full
unset H3_CHECK_LIMIT
is 'a part whose time is over fails' "$rc $(last)" '1 1 passed, 1 failed, 0 skipped'
like 'and says so' "$out" '^deep +FAILED .* still running after 1 s$'
gone() { # gone PID: ended, soon, or waits only to be buried
    local try
    for try in {1..50}; do
        [[ $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) =~ ^(Z|$) ]] && return
        sleep 0.1
    done
    return 1
}
check 'and nothing of it goes on' gone "$(cat "$work/sleeper")"

good_programs
stand_in "$work/tests/nodes_cuda" 'while [ $# -gt 0 ]; do [ "$1" != --digests ] || echo "a node $$" >"$2"; shift; done; echo "20 checked, 0 failed"'
run --parts process
is 'other bytes in a second process fail' "$rc $(last)" '1 0 passed, 1 failed, 0 skipped'
stand_in "$work/tests/nodes_cuda" 'while [ $# -gt 0 ]; do [ "$1" != --digests ] || : >"$2"; shift; done; echo "20 checked, 0 failed"'
run --parts process
is 'and so do no bytes at all' "$rc $(last)" '1 0 passed, 1 failed, 0 skipped'
good_programs
sed -i 's/echo "a node 1234"/echo "a node $kernel"/' "$work/tests/nodes_cuda"
run --parts hopper
is 'other bytes by wgmma than by mma.sync fail' "$rc $(last)" '1 0 passed, 1 failed, 0 skipped'
good_programs
sed -i 's/kernel=wgmma/kernel=mma/' "$work/tests/nodes_cuda"
run --parts hopper
is 'and so does no wgmma where it is not asked to stay away' "$rc $(grep -c 'nothing ran by wgmma' "$work/log/hopper.log")" '1 1'
good_programs
sed -i 's/kernel=mma/kernel=wgmma/' "$work/tests/nodes_cuda"
run --parts hopper
is 'and wgmma where mma.sync is asked for' "$rc $(grep -c 'wgmma ran where mma.sync was asked for' "$work/log/hopper.log")" '1 1'
good_programs
stand_in "$work/tests/video_cuda" '[ -z "${H3_VIDEO_KERNELS:-}" ] || { echo "6 passed, 1 failed"; exit 1; }; echo "7 passed, 0 failed"'
for part in media decode; do
    run --parts $part
    is "$part fails when the library's products alone do" "$rc $(last)" '1 0 passed, 1 failed, 0 skipped'
done
stand_in "$work/tests/nodes_cuda" 'echo "1 checked, 1 failed"; exit 1'
run --parts process,nodes,nodes-full,large
is 'nodes that fail' "$rc $(last)" '1 0 passed, 4 failed, 0 skipped'
good_programs
stand_in "$work/tools/compute-sanitizer" 'echo "========= ERROR SUMMARY: 1 error"; [[ $all != *racecheck* ]] || exit 9; while [[ $1 == --* ]]; do shift 2; done; "$@"'
run --parts memcheck,initcheck,racecheck
is 'what a sanitizer finds is a failure' "$rc $(last)" '1 2 passed, 1 failed, 0 skipped'
good_programs
stand_in "$work/tools/compute-sanitizer" 'echo "$all" >>"'"$work"'/sanitized"; while [[ $1 == --* ]]; do shift 2; done; "$@"'
run --parts memcheck,initcheck,racecheck
is 'racecheck leaves cuDNN out in the passes, and one kernel by itself; no other tool leaves out anything' \
    "$rc $(grep -c -- --kernel-name-exclude "$work/sanitized") $(grep -c 'racecheck .*--kernel-name-exclude kns=cudnn_generated .*golden_cuda' "$work/sanitized") $(grep -c 'racecheck .*--kernel-name-exclude kns=attention_gradient_kernel .*nodes_cuda --dims released' "$work/sanitized")" '0 2 1 1'
sed -i '/LD_PRELOAD/d' "$work/tests/golden_cuda"
run --parts initcheck
is 'initcheck fails when no output was filled' "$rc $(grep -c 'no output of a library was filled' "$work/log/initcheck.log")" '1 1'
good_programs
for code in 0 4; do
    sed -i "s/.*H3_POISON_SKIP.*/[ -z \"\${H3_POISON_SKIP:-}\" ] || { echo 'goldens on cuda: ok'; exit $code; }/" "$work/tests/golden_cuda"
    run --parts initcheck
    is "initcheck fails when a product that is left out does not fail a golden (exit $code)" "$rc $(grep -c 'a product was left out' "$work/log/initcheck.log")" '1 1'
done
good_programs

# --- skipped ---------------------------------------------------------------------------------------------------------------

good_programs
rm "$work/tools/compute-sanitizer"
if ! command -v compute-sanitizer >/dev/null && [ ! -x /usr/local/cuda/bin/compute-sanitizer ]; then
    run --parts goldens,memcheck,racecheck
    is 'without compute-sanitizer its parts are skipped, and counted' "$rc $(last)" '0 1 passed, 0 failed, 2 skipped'
    like 'and say what is missing' "$out" '^memcheck +skipped .* no compute-sanitizer'
fi
stand_in "$work/tools/nvidia-smi" 'echo 24576'
run --parts goldens,release
is 'a small GPU skips what it cannot hold' "$rc $(last)" '0 1 passed, 0 failed, 1 skipped'
like 'and says so' "$out" '^release +skipped .* needs a GPU of 120 GB, this one has 25$'
run --parts release
is 'skipped alone is no success' "$rc $(last)" '1 0 passed, 0 failed, 1 skipped'

# --- error injection ---------------------------------------------------------------------------------------------------------

good_programs
inject() { out=$(tests/cuda/inject.sh "$work/bin" "$harmless" cudaMalloc:1 cudaMemcpyAsync:3 2>/dev/null); rc=$?; }
inject
is 'a program that ends with 4 and one line is right' "$rc $(last)" '0 2 CUDA errors: exit code 4 and one line each time'
stand_in "$work/bin/h3_reference_pass" 'echo "GPU 0 failed" >&2; exit 4'
inject
is 'but one that never passes is not' "$rc" 1
bad_when_injected() { # bad_when_injected NAME TEXT: what the program does with an injected error
    stand_in "$work/bin/h3_reference_pass" 'while [ $# -gt 0 ]; do [ "$1" != --out ] || out=$2; shift; done; mkdir -p "$out"
        if [ "${H3_INJECT:-}" = cudaMemcpyAsync:3 ]; then '"$2"'; fi
        if [ -n "${H3_INJECT:-}" ]; then echo "GPU 0 failed" >&2; exit 4; fi; echo result >"$out/case.h5"'
    inject
    is "$1" "$rc $(grep -c 'FAILED' <<<"$out")" '1 1'
}
bad_when_injected 'an error that goes unnoticed' 'exit 0'
bad_when_injected 'another exit code' 'echo "GPU 0 failed" >&2; exit 1'
bad_when_injected 'a second line' 'printf "GPU 0 failed\nand more\n" >&2; exit 4'
bad_when_injected 'a message without the GPU' 'echo "something failed" >&2; exit 4'
bad_when_injected 'a result in spite of the error' 'echo "GPU 0 failed" >&2; echo result >"$out/case.h5"; exit 4'

tap_end
