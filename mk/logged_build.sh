#!/usr/bin/env bash
# Runs a build with its output in a log, then says in one line what came of it: mk/logged_build.sh BUILD BIN LIB MAKE-COMMAND...
set -euo pipefail
build=$1 bin=$2 lib=$3
shift 3
mkdir -p "$build"
log=$build/build.log
SECONDS=0
if ! "$@" >"$log" 2>&1; then
    grep -vE '^  (CC|LD|AR|NV)  ' "$log" | head -n 40 >&2 || true
    echo "build    failed, whole log: $log" >&2
    exit 1
fi
mk/build_line.sh "$build" "$bin" "$lib" $SECONDS
