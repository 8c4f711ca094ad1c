#!/usr/bin/env bash
# What a program does when the GPU fails: tests/cuda/inject.sh PROGRAM-FOLDER INJECTOR.so [FUNCTION:N...]
#
# The nano case runs on the GPU while CUDA calls fail (inject.c). Every time the program must end with exit code 4 and one line that names the GPU, and
# leave no result. Without an error it must pass, so that a broken program does not look like a careful one. One line a try; exit code 1 when one is wrong.
set -u
[ $# -ge 2 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0" >&2; exit 2; }
bin=$1 injector=$2
shift 2
tries=("$@")
[ $# -gt 0 ] || tries=(cudaMalloc:1 cudaMalloc:20 cudaMemcpyAsync:1 cudaMemcpyAsync:40 cudaMemcpyAsync:200 cudaStreamSynchronize:1 cudaStreamSynchronize:60
    cudaGetLastError:10 cudaGetLastError:100)
golden=${H3_GOLDEN:-tests/golden}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# run OUT COMMAND-PREFIX...: the case; exit code in rc, stderr in OUT.err
run() {
    local out=$1
    shift
    "$@" "$bin/h3_reference_pass" --checkpoint "$golden/nano/transformer" --case "$golden/nano/case.safetensors" --precision bf16 --device cuda --out "$out" \
        >"$out.out" 2>"$out.err"
    rc=$?
}

run "$work/whole" env
if [ $rc = 0 ] && [ -s "$work/whole/case.h5" ]; then
    echo 'no error: passes'
else
    echo "no error: exit $rc, $(head -n 1 "$work/whole.err")"
    failed=1
fi
for try in "${tries[@]}"; do
    out=$work/$try
    run "$out" env LD_PRELOAD="$injector" H3_INJECT="$try"
    lines=$(wc -l <"$out.err")
    if [ $rc = 4 ] && [ "$lines" = 1 ] && grep -q 'GPU' "$out.err" && [ ! -e "$out/case.h5" ]; then
        echo "$try: exit 4, $(cat "$out.err")"
    else
        echo "$try: FAILED: exit $rc, $lines lines on stderr, $(ls "$out" 2>/dev/null | wc -l) files left; first line: $(head -n 1 "$out.err")"
        failed=1
    fi
done
[ $failed = 1 ] || echo "${#tries[@]} CUDA errors: exit code 4 and one line each time"
exit $failed
