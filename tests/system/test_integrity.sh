#!/usr/bin/env bash
# One byte flipped in any file that a stage reads, or the file cut, emptied, taken away or replaced: exit code 3, one line that names the
# file, and nothing of the run touched.
# shellcheck disable=SC2317,SC2086,SC2128,SC2178  # functions that are called by check; names without blanks
# timeout: 600
set -u
. tests/tools/tap.sh
. tests/tools/smoke.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
smoke_libraries "$work/lib"

# --- a run that reads every kind of file: the checkpoint from a folder, the conditioning from a file, no hash pinned ---
master=$work/master
mkdir -p "$master"
cp -R tests/golden/nano/transformer "$master/checkpoint"
shards=(diffusion_pytorch_model-0000{1,2}-of-00002.safetensors)
index=diffusion_pytorch_model.safetensors.index.json
conditioning() { # text [5,8] and one keyframe of finite numbers
    local header='{"condition.0":{"dtype":"F32","shape":[1,4,1,4,6],"data_offsets":[0,384]},"text":{"dtype":"BF16","shape":[5,8],"data_offsets":[384,464]}}'
    # shellcheck disable=SC2059
    printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"
    printf '%464s' '' | tr ' ' '?'
}
conditioning >"$master/conditioning.safetensors"
hash=$(sha256sum <"$master/conditioning.safetensors")
smoke_plan "$master/plan.json" '/"checkpoint"/,/^ },/c\ "checkpoint": {"folder": "checkpoint", "hashes": {}},
/"conditioning"/,/^  }/c\  "conditioning": {"file": "conditioning.safetensors", "sha256": "'"${hash:0:64}"'"}'
# shellcheck disable=SC2086
check 'a run passes all stages' chain "$master/plan.json" "$master/run" $smoke_chain diagnose
whole=$(listing "$master")

# --- damage ---
kinds=(cut removed fifo emptied link folder) ends=(first last)
damage() { # damage KIND FILE
    local size
    size=$(stat -c %s "$2")
    case $1 in
        first) own "$2" && flip "$2" 0 ;;
        middle) own "$2" && flip "$2" $((size / 2)) ;;
        last) own "$2" && flip "$2" $((size - 1)) ;;
        byte*) own "$2" && flip "$2" "${1#byte}" ;;
        cut) own "$2" && truncate -s $((size - 1)) "$2" ;;
        emptied) rm "$2" && : >"$2" ;;
        removed) rm "$2" ;;
        link) mv "$2" "$2.real" && if [[ $2 == */checkpoint/* ]]; then ln -s nowhere "$2"; else ln -s "$(basename "$2").real" "$2"; fi ;; # a checkpoint's links are followed
        folder) rm "$2" && mkdir "$2" ;;
        fifo) rm "$2" && mkfifo "$2" ;;
    esac
}
tried=0
try() { # try STAGE FILE KIND [OPTION...]: one line of results, "STAGE FILE ok" or what is wrong; in the background
    local stage=$1 file=$2 kind=$3 case=$work/case$tried problem='' before name
    shift 3
    copy "$master" "$case"
    damage "$kind" "$case/$file"
    before=$(listing "$case")
    stage "$stage" "$case/plan.json" "$case/run" "$@"
    name=${file#run/}
    [[ $file != checkpoint/* ]] || name=${file#checkpoint/}
    # what a person writes and names on the command line, or in the plan, may just as well be a mistake of that person
    [[ $kind =~ ^(first|middle|last|byte|cut|emptied) || $file == */* || $rc != 2 ]] || rc=3
    [ "$rc" = 3 ] || problem+=" exit $rc"
    [ "$(wc -l <<<"$err")" = 1 ] || problem+=" not one line"
    [[ $err == *"$name"* ]] || problem+=" does not name it"
    [ "$(listing "$case")" = "$before" ] || problem+=" the run has changed"
    echo "$stage $file ${problem:+$kind:$problem (${err//$'\n'/ // })}" >>"$work/results"
    rm -rf "$case"
}
start() { # two at a time
    tried=$((tried + 1))
    [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n
    try "$@" &
}
next_kind=0
attack() { # attack STAGE FILE: a flip in the middle, one at an end, and another kind, in turn
    start "$1" "$2" middle
    start "$1" "$2" "${ends[next_kind % 2]}"
    start "$1" "$2" "${kinds[next_kind % 6]}"
    next_kind=$((next_kind + 1))
}
flip_middle() { start "$1" "$2" middle; }
judge() { # one result for each stage and file
    local stage file problems
    wait
    while read -r stage file; do
        problems=$(grep "^$stage $file " "$work/results" | sed "s#^$stage $file *##" | grep .)
        if [ -z "$problems" ]; then ok "$stage: $file"; else not_ok "$stage: $file" "$problems"; fi
    done < <(cut -d' ' -f1,2 "$work/results" | sort -u)
    is 'every damage was tried' "$(wc -l <"$work/results")" "$tried"
    rm -f "$work/results"
    tried=0
}

try compare run/compare.json none
like 'without damage all this would be noticed' "$(cat "$work/results")" '^compare run/compare.json none: exit 0 .*does not name it the run has changed'
rm "$work/results"

# --- everything that stage.json says was read, and the stage.json files themselves ---
listed() { sed -n "/\"$2\": \[/,/^  \]/s/^ *\"$3\": \"\(.*\)\",*\$/\1/p" "$master/run/stages/$1/stage.json"; }
for name in threshold_freeze generate_provider candidate_gate generate_candidate compare diagnose; do
    attack=attack
    [ $name != diagnose ] || attack=flip_middle
    for file in $(listed $name inputs path); do $attack $name "run/$file"; done
    for file in $(listed $name needs stage); do $attack $name "run/stages/$file/stage.json"; done
done
check 'there are artifacts, manifest, thresholds, gate and reports among these files' \
    [ "$(printf '%s\n' "$work"/master/run/stages/*/stage.json | xargs sed -n '/"inputs": \[/,/^  \]/s/^ *"path": "\(.*\)",*$/\1/p' | sort -u | wc -l)" = 20 ]
judge

# --- what the stages read besides ---
for name in $smoke_chain diagnose; do
    attack "$name" plan.json
    start "$name" run/plan.json middle
    start "$name" run/plan.json fifo
done
for name in generate_provider generate_candidate compare; do attack $name generation-contract.json; done
for name in reference_pass generate_provider; do attack $name conditioning.safetensors; done
for name in threshold_freeze candidate_gate generate_provider; do
    attack $name checkpoint/config.json
    attack $name "checkpoint/$index"
    for file in "${shards[@]}"; do
        attack $name "checkpoint/$file"
        start $name "checkpoint/$file" byte40
    done
done
start diagnose "checkpoint/${shards[1]}" middle
judge

# --- an interrupted generation: the state from which it goes on ---
hold provider 20 "$H3_BIN/h3_generate" --side provider --plan "$master/plan.json" --run "$master/run"
kill -USR1 "$held"
release
is 'a generation stops at a signal' $rc 75
state=data/generate/provider/resume
check 'and leaves its state' [ -e "$master/run/$state/state.json" ]
resumed() { for kind in first middle last cut emptied; do start generate_provider "run/$state/$1" $kind --resume; done; }
key=$(grep -abo '"key": "' "$master/run/$state/state.json" | cut -d: -f1)
resumed state.json
start generate_provider "run/$state/state.json" "byte$((key + 20))" --resume
for file in "$master/run/$state"/steps-*.h5; do resumed "$(basename "$file")"; done
judge

# --- pinned hashes, a pinned manifest and pinned thresholds: before anything is written ---
fresh() { # fresh FILE KIND: stage 1 of a new run
    local case=$work/fresh problem=''
    copy "$work/pinned" "$case" && damage "$2" "$case/$1"
    stage reference_pass "$case/plan.json" "$case/run"
    [ "$rc" = 3 ] && [ "$(wc -l <<<"$err")" = 1 ] && [[ $err == *"$(basename "$1")"* ]] || problem="exit $rc: $err"
    [ ! -e "$case/run" ] || problem+=' the run was begun'
    if [ -z "$problem" ]; then ok "pinned: $1 $2"; else not_ok "pinned: $1 $2" "$problem"; fi
}
mkdir "$work/pinned"
cp -R "$master/checkpoint" "$master/conditioning.safetensors" "$work/pinned"
cp "$master/run/reference-manifest.json" "$work/pinned/manifest.json"
cp "$master/run/thresholds.json" "$work/pinned/pinned-thresholds.json"
hashes=$(cd "$work/pinned/checkpoint" && sha256sum -- * | sed 's/^\([0-9a-f]*\)  \(.*\)/"\2": "\1"/' | paste -sd, -)
smoke_plan "$work/pinned/plan.json" '/"checkpoint"/,/^ },/c\ "checkpoint": {"folder": "checkpoint", "hashes": {'"$hashes"'}},\n "pins": {"manifest": "manifest.json", "thresholds": "pinned-thresholds.json"},
/"conditioning"/,/^  }/c\  "conditioning": {"file": "conditioning.safetensors", "sha256": "'"${hash:0:64}"'"}'
for file in config.json "$index" "${shards[@]}"; do for kind in middle last; do fresh "checkpoint/$file" $kind; done; done
fresh "checkpoint/${shards[0]}" removed
for offset in 3 60 120 20000; do fresh manifest.json byte$offset; fresh pinned-thresholds.json byte$offset; done
for kind in middle last cut; do fresh manifest.json $kind; fresh pinned-thresholds.json $kind; done
check 'the pinned references are reproduced when nothing is damaged' chain "$work/pinned/plan.json" "$work/pinned/run" reference_pass threshold_freeze

# A manifest that is sound in itself, and not what this pass makes.
copy "$work/pinned" "$work/other" && own "$work/other/manifest.json" && rm -rf "$work/other/run"
sed -i 's/, "thresholds": "pinned-thresholds.json"//' "$work/other/plan.json"
sed -i '0,/"digest": "\([0-9a-f]\{63\}\)[0-9a-f]"/s//"digest": "\1g"/; s/g"$/0"/' "$work/other/manifest.json"
cmp -s "$work/other/manifest.json" "$work/pinned/manifest.json" && sed -i '0,/"digest": "\([0-9a-f]\{63\}\)0"/s//"digest": "\11"/' "$work/other/manifest.json"
stage reference_pass "$work/other/plan.json" "$work/other/run"
like 'another digest in a pinned manifest is exit 3 and names the tensor' "$rc $err" '^3 h3_reference_pass: .*manifest\.json: tensor s48/[^ ]* is not reproduced'
refuse 'and the stage has not finished' [ -e "$work/other/run/stages/reference_pass/stage.json" ]

is 'the run that all of this was done to is as it was' "$(listing "$master" | grep -v "generate_provider\|generate/provider\|generate-provider\|attempts")" \
    "$(grep -v "generate_provider\|generate/provider\|generate-provider" <<<"$whole")"
tap_end
