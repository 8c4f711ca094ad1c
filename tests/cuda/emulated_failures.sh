#!/usr/bin/env bash
# Stages with --device cuda on the emulated GPU and NCCL: the same bytes on 1, 2 and 4 ranks, with a GPU each or one for all; and whatever fails ends the
# stage with exit code 4 and a line that names rank and GPU, nothing half-written is left, and the stage passes when it is run again. Prints TAP.
#
#   make EMULATE_CUDA=1 all && tests/cuda/emulated_failures.sh     (some minutes; not a part of make check)
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
export H3_BUILD=build/emulated H3_BIN=build/emulated/bin H3_LIB=build/emulated/lib/h3
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work

limit=10
on() { # on RANKS GPUS STAGE RUN [FAILURE]
    H3_EMULATE_GPUS=$2 H3_EMULATE_FAIL=${5:-} H3_EMULATE_LOG=$4.aborts stage "$1" "$3" "$4" --device cuda --watchdog $limit
}
left() { find "$1" -name '.tmp-*' -o -name '*.new*' -o -name 'nccl-*'; }

# --- the same bytes for any number of ranks ---
small_plan "$work" libh3_candidate_cuda.so
sed -i 's/libh3_provider_cpu.so/libh3_provider_cuda.so/' "$work/plan.json"
PLAN=$work/plan.json
for layout in '1 1' '2 2' '4 4' '2 1'; do
    read -r ranks gpus <<<"$layout"
    run=$work/ranks$ranks-gpus$gpus
    check "the reference pass passes on $ranks ranks, $gpus GPUs" on "$ranks" "$gpus" reference_pass "$run"
    [ "$layout" = '1 1' ] || check "with the bytes of one rank" same_run "$work/ranks1-gpus1" "$run"
done
site() { grep -o '"hand_off": "[^"]*"' "$work/$1/stages/reference_pass/site.json"; }
is 'one rank: nothing about a hand-off' "$(site ranks1-gpus1)" ''
is '4 ranks: by NCCL' "$(site ranks4-gpus4)" '"hand_off": "from GPU to GPU by NCCL"'
like 'one GPU: by MPI' "$(site ranks2-gpus1)" 'through the host by MPI: ranks 0 and 1 share a GPU'

# --- failures ---
PLAN=plans/smoke.json
good=$work/good
for early in reference_pass threshold_freeze generate_provider; do check "$early passes" on 2 2 $early "$good"; done
number=0
fails() { # fails RANKS STAGE FAILURE PATTERN
    local run said code name="$2, $3"
    number=$((number + 1))
    run=$work/failed$number
    case $2 in reference_pass) ;; *) cp -R "$good" "$run" && rm -rf "$run/stages/$2" "$run/data/generation" ;; esac
    on "$1" 2 "$2" "$run" "$3"
    code=$?
    said=$(grep -v '^hand-off' "$run.log")
    is "$name: exit 4" "$code" 4
    like "$name: one line with rank and GPU" "$(wc -l <<<"$said") $said" "^1 h3_[a-z_]+: $4"
    is "$name: no verdict and no leftovers" "$([ ! -e "$run/stages/$2/stage.json" ] || echo verdict) $(left "$run")" ' '
    : >"$run.log"
    check "$name: passes when it is run again" on "$1" 2 "$2" "$run"
    case $2 in
        reference_pass)
            for file in reference-manifest.json $(cd "$good" && find data/reference -type f); do
                cmp "$good/$file" "$run/$file" >&2 || break
            done
            is "$name: with the bytes of an undisturbed run" $? 0 ;;
    esac
    rm -rf "$run"
}
lost='CUDA-capable device\(s\) is/are busy or unavailable; look at the GPU with nvidia-smi and run again'
memory='too little memory: .*; use a smaller layout, more ranks, or a GPU that nobody else uses'
fails 2 reference_pass '1 cudaMalloc 60 2' "rank 1: GPU 1 has $memory"
fails 2 reference_pass '1 launch 200 2' "rank 1: (operator [a-z_]+ failed in (forward|backward) \(.*out of memory\): )?GPU 1 has $memory"
fails 2 reference_pass '1 cublasLtMatmul 20 2' "rank 1: operator [a-z_]+ failed in (forward|backward) \(cublasLt .*\): GPU 1 has $memory"
fails 2 reference_pass '0 cublasLtMatmul 20 700' 'rank 0: operator [a-z_]+ failed in forward \(cublasLt .*\): GPU 0: finishing what was started: an illegal'
fails 2 reference_pass '1 launch 200 46' "rank 1: .*GPU 1: .*: $lost"
fails 2 reference_pass '0 cudaMemcpyAsync 100 46' "rank 0: .*GPU 0: .*: $lost"
fails 2 reference_pass '1 cudaStreamSynchronize 200 46' "rank 1: .*GPU 1: .*: $lost"
fails 1 reference_pass '0 cudaMemcpyAsync 400 46' ".*GPU 0: .*: $lost"
fails 2 reference_pass '1 cudaSetDevice 1 46' "rank 1: GPU 1: cudaSetDevice: $lost"
fails 2 reference_pass '1 ncclSend 2 6' 'rank 1: GPU 1: NCCL failed in a send with rank 0: remote process exited'
fails 2 reference_pass '0 ncclRecv 2 async' 'rank 0: GPU 0: NCCL failed in (earlier work with all ranks|a receive with rank 1): remote process exited'
fails 2 generate_provider '1 launch 200 46' "rank 1: .*GPU 1: .*: $lost"
fails 2 generate_provider '0 ncclSend 3 hang' "rank 1: GPU 1: [0-9]+ bytes from the GPU of rank 0 have not come within $limit s"
fails 2 generate_provider '1 cudaMalloc 40 2' "rank 1: .*GPU 1 has $memory"

# The gate's second process is a process like any other.
run=$work/second
cp -R "$good" "$run"
gate() { # gate [FAILURE]
    H3_EMULATE_GPUS=2 H3_EMULATE_FAIL=${1:-} stage 2 candidate_gate "$run" --device cuda --watchdog $limit --allow-dirty --only 'block0.*.swiglu.*'
}
gate '0 cudaMemcpyAsync 100 46 --internal-replay'
is 'the GPU of the second process: exit 4' "$?" 4
like 'which says what it is' "$(cat "$run.log")" "^h3_candidate_gate: .*GPU 0: .*: $lost"
like 'and so does the gate' "$(cat "$run.log")" "^h3_candidate_gate: rank 0: the gate's second process \(device cuda 0\) could not go on; run h3_candidate_gate again"
check 'no verdict' [ ! -e "$run/stages/candidate_gate/stage.json" ]
check 'the gate passes when it is run again' gate
tap_end
