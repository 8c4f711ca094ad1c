#!/usr/bin/env bash
# Stages out of order, twice, at once, stale, on another machine, killed, stopped, without space: each time the exit code and the
# next step in words, and never a half-written result that anything accepts.
# shellcheck disable=SC2317,SC2086,SC2128,SC2178  # functions that are called by check; names without blanks
# timeout: 600
set -u
. tests/tools/tap.sh
. tests/tools/smoke.sh
work=$(mktemp -d)
cleanup() {
    ! mountpoint -q "$work/small" 2>/dev/null || umount "$work/small"
    rm -rf "$work"
}
trap cleanup EXIT
smoke_libraries "$work/lib"
plan=$work/plan.json
smoke_plan "$plan"

refused() { # refused NAME EXIT PATTERN: the stage before gave this exit code, one line, and this advice
    is "$1: exit $2, one line" "$rc $(wc -l <<<"$err")" "$2 1"
    like "$1: says what to do" "$err" "$3"
}
expect() { # expect NAME EXIT PATTERN STAGE RUN [OPTION...]
    local name=$1 wanted=$2 pattern=$3 stage=$4 run=$5
    shift 5
    stage "$stage" "$plan" "$run" "$@"
    refused "$name" "$wanted" "$pattern"
}
passes() { check "$1" chain "$plan" "$2" "$3"; } # passes NAME RUN STAGE
# Everything that must be the same on every machine at any time: what the stages wrote.
digests() { (cd "$1" && find . -type f ! -name site.json ! -name .lock ! -path './attempts/*' -print0 | sort -z | xargs -0 sha256sum); }
same() { [ -n "$2" ] && is "$1" "$2" "$3"; }

# --- out of order ---
for name in threshold_freeze generate_provider candidate_gate generate_candidate compare diagnose; do
    expect "$name in an empty place" 3 'run h3_reference_pass first$' $name "$work/none"
done
refuse 'and makes no folder' [ -e "$work/none" ]
run=$work/run
passes 'stage 1 passes' "$run" reference_pass
expect 'the gate after stage 1' 3 'threshold_freeze has not finished .*; run h3_threshold_freeze$' candidate_gate "$run"
expect 'diagnosis after stage 1' 3 'threshold_freeze has not finished .*; run h3_threshold_freeze$' diagnose "$run"
expect 'the candidate after stage 1' 3 'candidate_gate has not finished .*; run h3_candidate_gate$' generate_candidate "$run"
expect 'the comparison after stage 1' 3 'generate_provider has not finished .*; run h3_generate --side provider$' compare "$run"
passes 'stage 2 passes' "$run" threshold_freeze
expect 'the candidate after stage 2' 3 'candidate_gate has not finished .*; run h3_candidate_gate$' generate_candidate "$run"
passes 'the gate passes' "$run" candidate_gate
passes 'the provider generates' "$run" generate_provider
expect 'the comparison with one side' 3 'generate_candidate has not finished .*; run h3_generate --side candidate$' compare "$run"
passes 'the candidate generates' "$run" generate_candidate
passes 'the comparison passes' "$run" compare
passes 'the diagnosis passes' "$run" diagnose

# --- twice ---
first=$(digests "$run")
for name in $smoke_chain diagnose; do passes "$name passes again" "$run" $name; done
same 'the same bytes' "$(digests "$run")" "$first"
for name in $smoke_chain diagnose; do
    for file in $(sed -n '/"outputs": \[/,/^  \]/s/^ *"path": "\(.*\)",*$/\1/p' "$run/stages/$name/stage.json") stage.json site.json; do
        [ "$file" != thresholds.json ] || continue # written once a run: it stays
        [ -e "$run/attempts/$name/1/$file" ] || echo "$name/$file"
    done
done >"$work/missing"
is 'the first attempts are kept, complete' "$(cat "$work/missing")" ''
refuse 'and have no second' [ -e "$run/attempts/compare/2" ]
rm -rf "$run/attempts"
other() { copy "$run" "$work/$1" && other=$work/$1; }

# --- another plan ---
cp "$plan" "$work/one.json"
smoke_plan "$plan" 's/"about": ".*"/"about": "another"/'
for name in $smoke_chain; do expect "$name with another plan" 3 'plan.json is another plan than .*/run/plan.json' $name "$run"; done
cp "$work/one.json" "$plan"

# --- stale ---
other stale
export H3_RELAY=provider H3_RELAY_CHANGE=1
passes 'the reference is rerun and gives other bytes' "$other" reference_pass
unset H3_RELAY H3_RELAY_CHANGE
expect 'the gate on a stale stage 2' 3 'threshold_freeze is stale: .*rerun h3_threshold_freeze$' candidate_gate "$other"
expect 'the candidate on a stale gate' 3 'is stale: .*rerun h3_threshold_freeze$' generate_candidate "$other"
expect 'the comparison on stale sides' 3 'generate_provider is stale: .*rerun h3_generate --side provider$' compare "$other"
thresholds=$(sha256sum <"$other/thresholds.json")
expect 'thresholds are written once a run' 3 'thresholds.json: the recomputed thresholds differ; .*start a new run$' threshold_freeze "$other"
same 'they stay as they were' "$(sha256sum <"$other/thresholds.json")" "$thresholds"
check 'with the record of the stage' [ -e "$other/stages/threshold_freeze/stage.json" ]
rm "$other/thresholds.json"
expect 'taking them away does not help' 3 'thresholds.json: the recomputed thresholds differ; .*start a new run$' threshold_freeze "$other"
refuse 'and writes nothing' [ -e "$other/thresholds.json" ]
passes 'the reference is rerun as it was first' "$other" reference_pass
passes 'the same thresholds are written again' "$other" threshold_freeze
passes 'and nothing is stale any more' "$other" compare
same 'all bytes are the first ones' "$(digests "$other")" "$first"

# --- what the candidate's generation accepts ---
other gates
mv "$work/lib/librelay.so" "$work/lib/away.so"
stage candidate_gate "$plan" "$other"
is 'a gate without its library is INVALID, exit 1' $rc 1
mv "$work/lib/away.so" "$work/lib/librelay.so"
expect 'an INVALID gate' 3 'candidate_gate did not pass \(INVALID\); correct the cause and rerun h3_candidate_gate$' generate_candidate "$other"
check 'a narrowed gate ends well' stage candidate_gate "$plan" "$other" --only 'block0.*.swiglu.*'
expect 'a PARTIAL gate' 3 'candidate_gate is only PARTIAL, .*run h3_candidate_gate without --only' generate_candidate "$other"
expect 'the comparison behind a PARTIAL gate' 3 'generate_candidate is stale: .*PARTIAL' compare "$other"
passes 'a whole gate is VALID' "$other" candidate_gate
passes 'and then the candidate may generate' "$other" generate_candidate
for library in librelay librelay_provider; do
    cp "$work/lib/$library.so" "$work/kept.so"
    printf 'x' >>"$work/lib/$library.so"
    expect "another build of $library.so than the gate saw" 3 "$library.so \(SHA-256 .*run h3_candidate_gate again\$" generate_candidate "$other"
    mv "$work/kept.so" "$work/lib/$library.so"
done
passes 'the qualified builds are accepted again' "$other" generate_candidate

# --- another fingerprint ---
other machine
before=$(listing "$other")
core=''
for name in Nehalem Prescott Sandybridge Haswell; do
    OPENBLAS_CORETYPE=$name stage threshold_freeze "$plan" "$other"
    [ $rc != 3 ] || { core=$name; break; }
    before=$(listing "$other")
done
check 'OpenBLAS has other kernels to choose from' [ -n "$core" ]
for name in threshold_freeze generate_provider candidate_gate generate_candidate diagnose; do
    OPENBLAS_CORETYPE=$core expect "$name on another fingerprint" 3 'reference-manifest.json is not comparable: made with provider_libraries .*start a new run' $name "$other"
done
same 'touches nothing' "$(listing "$other")" "$before"
cp "$other/reference-manifest.json" "$other/thresholds.json" "$work"
smoke_plan "$work/pins.json" 's/^ "preview"/ "pins": {"manifest": "reference-manifest.json"},\n&/'
plan=$work/pins.json
OPENBLAS_CORETYPE=$core expect 'a pinned manifest of another fingerprint' 3 'reference-manifest.json is not comparable: made with provider_libraries' reference_pass "$work/pinned"
plan=$work/plan.json

# --- at once, killed ---
program() { held_program=("$H3_BIN/h3_$1" --plan "$plan" --run "$2"); }
other busy
program reference_pass "$other"
hold provider 9 "${held_program[@]}"
start=$EPOCHREALTIME
expect 'a second process of the same stage' 4 'reference_pass is running in .*/busy already; wait for it or stop it' reference_pass "$other"
check 'ends at once' awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a < 20) }'
check 'there is something half done' [ -e "$other/data/reference/s48/fp32/block-001.h5" ]
kill -KILL "$held"
release
is 'the first is killed' $rc 137
expect 'nothing of it is accepted' 3 'reference_pass has not finished .*; run h3_reference_pass' threshold_freeze "$other"
passes 'it can be run again' "$other" reference_pass
same 'and gives the same bytes' "$(digests "$other")" "$first"
rm -rf "$other/attempts"
program candidate_gate "$other"
hold relay.so 5 "${held_program[@]}"
kill -KILL "$held"
release
is 'a gate is killed' $rc 137
expect 'it is no VALID gate' 3 'candidate_gate has not finished .*; run h3_candidate_gate' generate_candidate "$other"
passes 'it can be run again' "$other" candidate_gate
program generate "$other"
hold provider 20 "${held_program[@]}" --side provider
kill -KILL "$held"
release
is 'a generation is killed' $rc 137
expect 'it is no side to compare' 3 'generate_provider has not finished .*; run h3_generate --side provider' compare "$other"
passes 'it can be run again' "$other" generate_provider
same 'all bytes are the first ones' "$(digests "$other")" "$first"
is 'no temporary file is left' "$(find "$other" -name '.tmp-*')" ''

# --- stopped ---
stopped() { # stopped NAME SIGNAL COMMAND...: a generation by the provider in $other, resumed with one rank
    local name=$1 signal=$2
    rm -rf "$other/attempts"
    hold provider "$([ "$3" = mpirun ] && echo 4 || echo 12)" "${@:3}" # several ranks hear of it a step later
    if [ "$3" = mpirun ]; then
        kill "-$signal" "$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$held/status")"
        sleep 1 # it passes the signal on in its own time
    else
        kill "-$signal" "$held"
    fi
    release
    is "$name: exit 75" $rc 75
    like "$name: says how to go on" "$err" 'h3_generate: (rank 0: )?stopped by a signal after step [12] of 3; run again with --resume'
    expect "$name: is no side to compare" 3 'generate_provider has not finished' compare "$other"
    check "$name: the state is there" [ -e "$other/data/generate/provider/resume/state.json" ]
    check "$name: it is resumed" stage generate_provider "$plan" "$other" --resume
    same "$name: to the same bytes" "$(digests "$other")" "$first"
}
stopped 'SIGTERM' TERM "$H3_BIN/h3_generate" --side provider --plan "$plan" --run "$other"
stopped 'SIGUSR1, blocked by who started it' USR1 env --block-signal=USR1 "$H3_BIN/h3_generate" --side provider --plan "$plan" --run "$other"
stopped 'SIGUSR1 to two ranks' USR1 mpirun -q -n 2 "$H3_BIN/h3_generate" --side provider --plan "$plan" --run "$other"
for signal in TERM USR1; do
    program reference_pass "$other"
    hold provider 6 "${held_program[@]}"
    kill -$signal "$held"
    wait $held_timeout
    rc=$?
    err=$(cat "$held_files/err")
    refused "a reference pass at SIG$signal" 75 '^h3_reference_pass: stopped by a signal; run it again$'
    expect 'is not finished' 3 'reference_pass has not finished' threshold_freeze "$other"
    rm -rf "$held_files"
done
passes 'it can be run again' "$other" reference_pass
same 'and gives the same bytes' "$(digests "$other")" "$first"

# --- no space, no folder ---
limited() { ( ulimit -f "$1"; shift; "$@"; echo "$rc $err" ) } # limited KIB COMMAND...
out=$(limited 40 stage reference_pass "$plan" "$work/full")
like 'no space in stage 1: exit 4' "$out" '^4 h3_reference_pass: cannot write .*; check space and permissions, then run again$'
is 'no space: one line' "$(wc -l <<<"$out")" 1
is 'no space: nothing half-written' "$(find "$work/full" -name '.tmp-*' -o -name stage.json -o -name reference-manifest.json)" ''
expect 'no space: nothing is accepted' 3 'reference_pass has not finished' threshold_freeze "$work/full"
passes 'with space it passes' "$work/full" reference_pass
other full
for name in candidate_gate generate_provider compare; do
    out=$(limited 2 stage $name "$plan" "$other")
    like "no space in $name: exit 4" "$out" "^4 h3_[a-z_]*: cannot write .*; check space and permissions, then run again\$"
    refuse "no space in $name: it has not finished" [ -e "$other/stages/$name/stage.json" ]
    check "no space in $name: the earlier attempt is set aside, complete" [ -e "$other/attempts/$name/1/stage.json" ]
    is "no space in $name: nothing half-written" "$(find "$other" -name '.tmp-*')" ''
    passes "with space $name passes" "$other" $name
    rm -rf "$other/attempts"
done
same 'all bytes are the first ones' "$(digests "$other")" "$first"
mkdir "$work/small"
if mount -t tmpfs -o size=600k none "$work/small" 2>/dev/null; then
    expect 'a full disk' 4 '(cannot write .*No space left on device; check space|needs about [0-9]* MB of disk, 0 MB are free; free some)' reference_pass "$work/small/run"
    is 'a full disk: nothing half-written' "$(find "$work/small" -name '.tmp-*' -o -name stage.json)" ''
    umount "$work/small"
fi
: >"$work/file"
for name in reference_pass compare; do
    expect "$name in a file" 4 'file is not a folder; choose another' $name "$work/file"
    expect "$name below a file" 4 'cannot look at .*/file/run: Not a directory; choose another' $name "$work/file/run"
done
tap_end
