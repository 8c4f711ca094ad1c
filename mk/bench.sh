#!/usr/bin/env bash
# Runs every benchmark: build/bench/* and bench/*.sh.
set -euo pipefail
shopt -s nullglob
benches=("${H3_BUILD:-build}"/bench/* bench/*.sh)
[ ${#benches[@]} -gt 0 ] || { echo 'bench    no benchmarks in bench/' >&2; exit 1; }
for bench in "${benches[@]}"; do
    "$bench"
done
