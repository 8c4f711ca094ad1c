#!/usr/bin/env bash
# Plans, contracts, checkpoints, cases, bindings, thresholds and command lines that nobody should believe: exit code 2 or 3 as the
# specification says, one clear line, nothing left behind, no crash.
# shellcheck disable=SC2317,SC2086,SC2128,SC2178  # functions that are called by check; names without blanks
# timeout: 600
set -u
. tests/tools/tap.sh
. tests/tools/smoke.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
smoke_libraries "$work/lib"
nano=$PWD/tests/golden/nano
mkdir "$work/plans.d" "$work/runs"

# --- the instrument: two programs at a time, results in order ---
tried=0
refused() { # refused NAME EXIT PATTERN LEFT COMMAND...: the exit code, one line of the program's own, nothing at LEFT
    local name=$1 wanted=$2 pattern=$3 left=$4 err rc problem=''
    shift 4
    err=$(timeout -k 5 60 "$@" 2>&1 >/dev/null </dev/null)
    rc=$?
    [[ $rc =~ ^($wanted)$ ]] || problem+=" exit $rc, not $wanted;"
    [ "$(wc -l <<<"$err")" = 1 ] || problem+=' not one line;'
    [[ $err == h3_*:\ * ]] || problem+=' not its own line;'
    grep -qE -- "$pattern" <<<"$err" || problem+=" does not say $pattern;"
    [ ! -e "$left" ] || problem+=" left $left behind;"
    echo "$name${problem:+|$problem ${err//$'\n'/ // }}" >"$work/result.$tried"
}
start() {
    tried=$((tried + 1))
    [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n
    refused "$@" &
}
judge() {
    local i name problem
    wait
    for ((i = 1; i <= tried; i++)); do
        IFS='|' read -r name problem <"$work/result.$i" || name="result $i is missing" problem=lost
        if [ -z "$problem" ]; then ok "$name"; else not_ok "$name" "$problem"; fi
    done
    rm -f "$work"/result.*
    tried=0
}

# --- command lines ---
stages='h3_reference_pass h3_threshold_freeze h3_generate h3_candidate_gate h3_compare h3_diagnose'
usage() { # usage PATTERN PROGRAM ARGUMENT...
    local pattern=$1 program=$2
    shift 2
    start "$program $*" 2 "$pattern" "$work/none" "$H3_BIN/$program" "$@"
}
small='h3_sheet h3_keyframe'
[ ! -x "$H3_BIN/h3_preview" ] || small+=' h3_preview'
for program in $stages h3_verify h3_report $small; do
    for option in --help --version; do
        out=$("$H3_BIN/$program" $option 2>"$work/err")
        is "$program $option: exit 0, nothing on stderr" "$? $(cat "$work/err")" '0 '
        like "$program $option: names itself" "$out" "^$program "
    done
    usage 'unknown option "--none"; see h3_[a-z_]* --help' $program --none
    usage 'needed; see|unknown|is needed|go together|checkpoint' $program
done
for program in $stages; do
    side=()
    [ $program != h3_generate ] || side=(--side provider)
    plan=(--plan plans/smoke.json --run "$work/none")
    usage '--plan needs a value' $program "${side[@]}" --run "$work/none" --plan
    usage '--run needs a value' $program "${side[@]}" --plan plans/smoke.json --run ''
    usage '--plan is given twice' $program "${side[@]}" --plan plans/smoke.json "${plan[@]}"
    usage '--plan FILE and --run DIR are needed' $program "${side[@]}" --plan plans/smoke.json
    usage 'unknown option "plans/smoke.json"' $program "${side[@]}" plans/smoke.json
    for value in 0 nan; do usage "--watchdog $value: give seconds" $program "${side[@]}" "${plan[@]}" --watchdog $value; done
    usage '--device gpu: use cpu or cuda' $program "${side[@]}" "${plan[@]}" --device gpu
    start "$program without a GPU" 4 'no cuda device|no CUDA' "$work/none" "$H3_BIN/$program" "${side[@]}" "${plan[@]}" --device cuda
    [ $program = h3_compare ] || start "$program: more ranks than blocks" '[23]' '3 ranks are too many for 2 blocks; start at most 2|run h3_reference_pass first' \
        "$work/none" mpirun -q -n 3 "$H3_BIN/$program" "${side[@]}" "${plan[@]}"
done
for value in -1 1e9 5x ''; do usage '--watchdog' h3_compare "${plan[@]}" --watchdog "$value"; done
usage 'side provider\|candidate is needed' h3_generate "${plan[@]}"
usage '--side both: use provider or candidate' h3_generate --side both "${plan[@]}"
usage '--precision fp64: use fp32 or bf16' h3_reference_pass --case x --checkpoint x --precision fp64 --out "$work/none"
usage 'go together' h3_reference_pass --case "$nano/case.safetensors" --precision fp32 --out "$work/none"
usage 'go together' h3_reference_pass "${plan[@]}" --operators provider
usage 'goes without --plan' h3_reference_pass --checkpoint x --case x --precision fp32 --out "$work/none" --plan plans/smoke.json
usage 'matches no check' h3_candidate_gate --plan plans/smoke.json --only 'none*' --list
usage '--plan FILE is needed' h3_candidate_gate --list
usage 'for the gate itself' h3_candidate_gate --internal-replay 1 "${plan[@]}"
judge
for option in --list --dry-run; do check "h3_candidate_gate $option" "$H3_BIN/h3_candidate_gate" "${plan[@]}" $option; done
check 'which makes nothing' [ ! -e "$work/none" ]

# --- plans ---
smoke_plan "$work/plans.d/good.json"
numbered=0
begin() { # begin NAME EXIT PATTERN PLAN: stage 1 of it
    start "plan: $1" "$2" "$3" "$work/runs/$numbered" "$H3_BIN/h3_reference_pass" --plan "$4" --run "$work/runs/$numbered"
    numbered=$((numbered + 1))
}
plan() { # plan NAME EXIT PATTERN SED: the good one changed
    local file=$work/plans.d/$numbered.json
    sed -E "$4" "$work/plans.d/good.json" >"$file"
    if cmp -s "$file" "$work/plans.d/good.json"; then not_ok "plan: $1" 'the sed script changes nothing'; fi
    begin "$1" "$2" "$3" "$file"
}
raw() { # raw NAME PATTERN: from stdin
    cat >"$work/plans.d/$numbered.json"
    begin "$1" 2 "$2" "$work/plans.d/$numbered.json"
}
begin 'missing' 2 'cannot open .*No such file' "$work/plans.d/none.json"
begin 'a folder' 2 'is not a regular file' "$work/plans.d"
begin 'a device' 2 'is not a regular file' /dev/zero
mkfifo "$work/plans.d/fifo.json"
begin 'a FIFO' 2 'is not a regular file' "$work/plans.d/fifo.json"
ln -s good.json "$work/plans.d/link.json"
begin 'a symlink' 2 'a symbolic link' "$work/plans.d/link.json"
raw 'empty' 'empty where JSON was expected' < <(:)
raw 'not JSON' 'no valid JSON at line 1' < <(echo 'plan: smoke')
raw 'zeros' 'no valid JSON' < <(head -c 3000 /dev/zero)
raw 'cut off' 'no valid JSON' < <(head -c 400 "$work/plans.d/good.json")
raw 'something behind it' 'something stands behind the value' < <(cat "$work/plans.d/good.json"; echo '{}')
raw 'a byte order mark' 'begins with a byte order mark; save it as UTF-8 without one' < <(printf '\xef\xbb\xbf'; cat "$work/plans.d/good.json")
raw 'a list' 'a plan is a JSON object' < <(echo '[]')
raw 'deep nesting' 'nested too deeply' < <(printf '%200000s' '' | tr ' ' '[')
raw 'deep objects' 'nested too deeply' < <(printf '{"a":%.0s' {1..3000})
raw 'five megabytes' 'larger than' < <(head -c 5000000 /dev/zero | tr '\0' ' ')
plan 'not UTF-8' 2 'not UTF-8' 's/"name": "smoke"/"name": "sm\xffoke"/'
plan 'a zero in a string' 2 'a zero character' 's/"name": "smoke"/"name": "sm\\u0000oke"/'
plan 'a key twice' 2 'duplicate key "name"' 's/ "name": "smoke",/&&/'
plan 'a key twice, deep' 2 'duplicate key "seed"' 's/"seed": 0,/&&/'
plan 'an unknown key' 2 'unknown field "extra"' 's/ "name": "smoke",/& "extra": 1,/'
plan 'an unknown key in a layout' 2 'unknown field "extra"' 's/"input_seed": 7/&, "extra": 1/'
plan 'an unknown key in a config' 2 'unknown field "heads"' 's/"hidden_size"/"heads": 1, &/'
plan 'NaN' 2 'no valid JSON' 's/0\.25/NaN/'
plan 'Infinity' 2 'no valid JSON' 's/0\.25/-Infinity/'
plan 'a number beyond double' 2 'a number is too large' 's/0\.25/1e999/'
plan 'an integer beyond exactness' 2 'too large to be exact' 's/"input_seed": 7/"input_seed": 9007199254740993/'
plan 'a long number' 2 'a number is too long' "s/\"input_seed\": 7/\"input_seed\": $(printf '7%.0s' {1..500})/"
plan 'another schema' 2 'schema is "h3-plan-v2"' 's/h3-plan-v1/h3-plan-v2/'
plan 'another policy' 2 'artifacts is "some"' 's/"artifacts": "full"/"artifacts": "some"/'
plan 'another preview' 2 'preview is "on"; use off or if-available or required' 's/"preview": "off"/"preview": "on"/'
plan 'a preview of nothing' 2 'nothing is decoded' 's/"preview": "off"/"preview": "required"/'
for name in a/b .. ../s48 '' 'a b' "$(printf 'x%.0s' {1..41})"; do
    plan "a layout named \"$name\"" 2 'a layout name may hold letters' "s#\"name\": \"s48\"#\"name\": \"$name\"#"
done
plan 'a name with a slash' 2 'name may hold letters' 's#"name": "smoke"#"name": "../smoke"#'
plan 'no layouts' 2 'layouts must hold 1 to 64' '/"layouts": \[/,/^ \],/c\ "layouts": [],'
plan 'a layout of 10^9 rows' 2 '"frames" is 1000000000 but must be' 's/"frames": 2/"frames": 1000000000/'
plan 'a layout of 2^59 rows' 2 'more than 2\^31 rows' 's/"frames": 2/"frames": 1048576/; s/"h": 4/"h": 1048576/; s/"w": 6/"w": 1048576/'
plan 'a layout that no machine holds' 4 'needs about [0-9]* MB of memory, this machine has' 's/"frames": 2/"frames": 1000/; s/"h": 4/"h": 1000/; s/"w": 6/"w": 1000/'
plan 'a generation that no machine holds' 4 'generation needs about [0-9]* MB of memory' '/"generation"/,$ { s/"frames": 2/"frames": 1000/; s/"h": 4/"h": 1000/; s/"w": 6/"w": 1000/ }'
plan 'a picture that does not divide' 2 'json: layout s48: latents of 5 x 6 do not divide into patches of 2 x 2; make h and w multiples of these' 's/"h": 4/"h": 5/'
plan 'more vision rows than text' 2 'json: layout s48: 5 vision rows do not fit behind the first of 5 text rows; at most 4 do' 's/"vision_rows": 2/"vision_rows": 5/'
plan 'the same of the generation' 2 "json: the generation's layout: 5 vision rows do not fit" '/"generation"/,$ s/"vision_rows": 2/"vision_rows": 5/'
plan 'an unknown anchor' 2 'anchors may hold' 's/"first"/"middle"/'
plan 'an anchor twice' 2 'anchors may hold' 's/"first"/"first", "first"/'
plan 'a time beyond 1' 2 'layout s48: timesteps: video is 1.25 but must be 0 to 1' 's/0\.25/1.25/'
plan 'a config that cannot be' 2 'rotary channels do not fit' 's/"rope_freq_dim": 2/"rope_freq_dim": 3/'
plan 'a model of 10^13 parameters' 4 'needs about [0-9]* MB of memory' 's/"hidden_size": 24/"hidden_size": 1048576/; s/"ffn_dim": 32/"ffn_dim": 1048576/; s/"num_layers": 2/"num_layers": 10000/'
plan 'a model beyond counting' 2 'beyond all sizes' 's/"(hidden_size|ffn_dim|text_dim)": [0-9]*/"\1": 16777216/; s/"num_layers": 2/"num_layers": 10000/; s/"num_attention_heads": 2/"num_attention_heads": 1048576/'
plan 'points 1' 2 '"points" is 1 but must be 2' 's/"points": 4/"points": 1/'
for seeds in '' '42, 42' 0.5 '"42"' -1 4294967296 null "$(seq -s, 65)"; do
    plan "seeds [${seeds:0:12}]" 2 'seed' "/\"seeds\"/,/\]/c\\  \"seeds\": [$seeds],"
done
plan 'seeds that are no list' 2 'seeds must be a list' '/"seeds"/,/\]/c\  "seeds": 42,'
plan 'bindings of an unknown node' 2 '"rope_v", which is no node of a block; use one of docs/plan.md, or "\*"' 's/"\*": \{/"rope_v": {/'
plan 'bindings that leave nodes out' 2 'no binding for node adaln_projection' 's/"\*": \{/"swiglu": {/'
plan 'bindings that are no object' 2 'the binding of "\*" must be \{"library": FILE, "operator": NAME\}' '/"\*": \{/,/\}/c\  "*": "librelay.so"'
plan 'an unknown key in a binding' 2 'unknown field "path"' 's/"library": "librelay.so"/&, "path": "x"/'
plan 'a provider without a name' 2 'provider has no name' 's/"librelay_provider.so"/""/'
for library in /none/lib.so ../none/lib.so none.so /dev/null / plans/smoke.json; do
    plan "the provider $library" 1 'is unavailable|is not a regular file' "s#\"librelay_provider.so\"#\"$library\"#"
done
plan 'a conditioning file that is not there' 3 "json: the generation's conditioning: cannot open .*none.safetensors" \
    "/\"conditioning\"/,/^   \}/c\\  \"conditioning\": {\"file\": \"none.safetensors\", \"sha256\": \"$(printf '0%.0s' {1..64})\""
plan 'a text about it that is none' 2 '"about" must be a string' 's/"about": "[^"]*"/"about": 5/'
plan 'limits of nothing' 2 '"acceptance" has nothing to limit without "generation"; add that, or remove it' \
    '/^ "generation"/,/^ \},/d; s/ "preview"/ "acceptance": {"latent_error": 1}, &/'
plan 'no contract' 2 'json: generation: contract: cannot open .*[^/]/none.json' 's/"generation-contract.json"/"none.json"/'
plan 'a contract that is a device' 2 'not a regular file' 's#"generation-contract.json"#"/dev/zero"#'
plan 'a pinned manifest that is not there' 3 'json: pins.manifest: cannot open .*none.json' 's/ "preview"/ "pins": {"manifest": "none.json"}, &/'
plan 'a pinned manifest that is something else' 3 'good.json: unknown field' 's/ "preview"/ "pins": {"manifest": "good.json"}, &/'
plan 'pinned thresholds that are something else' 3 'json: pins.thresholds: .*good.json: unknown field' 's/ "preview"/ "pins": {"thresholds": "good.json"}, &/'
for limit in '"psnr": 1' '"latent_error": -1' '"latent_error": "1"' '"latent_error": null'; do
    plan "acceptance {$limit}" 2 'accept' "s/ \"preview\"/ \"acceptance\": {$limit}, &/"
done
judge

# Every field with a value that it cannot have.
lines=$(grep -nE '^ +("[a-z_]+": )?("?[a-z0-9_.-]+"?|[0-9.]+),?$' "$work/plans.d/good.json" | grep -v '"about"' | cut -d: -f1)
wrong=('{"a": [1]}' '-1' '1e300' '"5"' 'null' 'true' '[[]]')
turn=0
for line in $lines; do
    value=${wrong[turn % 7]}
    text=$(sed -n "${line}p" "$work/plans.d/good.json" | tr -d ' ,')
    [[ $text != *'"'*:*'"'* || $value != '"5"' ]] || value='[]' # a string is no wrong kind for a string
    plan "line $line $text becomes $value" 2 ': ' "$line s/(: *|^ *)(\"[^\":]*\"|[0-9.]+)(,?)\$/\\1$value\\3/"
    turn=$((turn + 1))
done
check 'these are all fields of the plan' [ "$turn" -ge 45 ]
judge

# --- the contract ---
contract() { # contract NAME PATTERN SED
    local folder=$work/contracts/$tried
    mkdir -p "$folder"
    sed -E "$3" generation-contract.json >"$folder/generation-contract.json"
    if cmp -s generation-contract.json "$folder/generation-contract.json"; then not_ok "contract: $1" 'the sed script changes nothing'; fi
    cp "$work/plans.d/good.json" "$folder/plan.json"
    start "contract: $1" 2 "$2" "$folder/run" "$H3_BIN/h3_reference_pass" --plan "$folder/plan.json" --run "$folder/run"
}
contract 'empty' 'empty where JSON' 'd'
contract 'cut off' 'no valid JSON' '10,$ d'
contract 'another schema' 'this version knows' 's/contract-v1/contract-v2/'
contract 'another variant' 'variant is "t2va"' 's/fl2va/t2va/'
contract 'a hash that is none' 'SHA-256 in lower-case hex' 's/"config_sha256": ".{4}/"config_sha256": "ABCD/'
contract 'no acceptance limit' 'latent_error' '/latent_error/ d; s/("audio_lsd_db": 2),/\1/'
contract 'a limit that is no number' 'latent_error' 's/0\.05/"0.05"/'
contract 'a negative limit' 'latent_error must be a number of 0 or more' 's/0\.05/-0.05/'
contract 'another noise' 'this version knows' 's/torch-cpu-generator/numpy/'
contract 'draws in another order' 'draws must be condition, video, audio' 's/"condition", "video"/"video", "condition"/'
contract 'evaluations that do not fit the points' 'evaluations' 's/"evaluations": 49/"evaluations": 50/'
contract 'a shift of 0' 'a shift must be above 0' 's/"video_shift": 12/"video_shift": 0/'
contract 'an unknown key' 'unknown field "secret"' 's/"seeds"/"secret": 1, &/'
contract 'a canvas of no size' '"width" is 0' 's/"width": 1344/"width": 0/'
judge

# --- safetensors files, changed in place: names, types and shapes of equal length, and single numbers ---
header_size() { od -An -tu8 -N 8 "$1" | tr -d ' '; }
edit() { LC_ALL=C sed -i "1 $2" "$1"; } # edit FILE SED: in the header
put() { # put FILE TENSOR INDEX BYTES...: one element
    local file=$1 tensor=$2 index=$3 size begin
    shift 3
    size=$(header_size "$file")
    begin=$(head -c $((8 + size)) "$file" | tail -c "$size" | sed -E "s/.*\"$tensor\":\{[^}]*\"data_offsets\":\[([0-9]+),.*/\1/")
    # shellcheck disable=SC2059
    printf "$(printf '\\x%s' "$@")" | dd of="$file" bs=1 seek=$((8 + size + begin + index * $#)) conv=notrunc status=none
}
case_number=0
new_case() { case_number=$((case_number + 1)); file=$work/case$case_number.safetensors; cp "$nano/case.safetensors" "$file"; }
run_case() { # run_case NAME PATTERN [OPTION...]: of $file
    local name=$1 pattern=$2
    shift 2
    start "case: $name" 3 "$pattern" "$work/out" "$H3_BIN/h3_reference_pass" --checkpoint "$nano/transformer" --case "$file" --precision fp32 \
        --out "$work/out" "$@"
}
header() { new_case; edit "$file" "$3"; run_case "$1" "$2"; }        # header NAME PATTERN SED
number() { new_case; put "$file" "${@:3}"; run_case "$1" "$2"; }     # number NAME PATTERN TENSOR INDEX BYTES...
minus=(ff ff ff ff ff ff ff ff) large=(00 00 00 00 01 00 00 00) three=(03 00 00 00 00 00 00 00)
file=$work/none.safetensors
run_case 'missing' 'cannot open .*none.safetensors'
file=$work/plans.d
run_case 'a folder' 'not a regular file'
file=$work/plans.d/fifo.json
run_case 'a FIFO' 'not a regular file'
new_case; : >"$file"; run_case 'empty' 'truncated'
new_case; truncate -s 7 "$file"; run_case 'seven bytes' 'truncated'
new_case; truncate -s 1000 "$file"; run_case 'a cut header' 'truncated header'
new_case; truncate -s -1 "$file"; run_case 'cut data' 'truncated'
new_case; echo >>"$file"; run_case 'one byte more' '1 trailing bytes'
new_case; printf '\xff\xff\xff\xff\xff\xff\xff\x7f' | dd of="$file" bs=1 conv=notrunc status=none; run_case 'a header of 2^63 bytes' 'oversized header'
new_case; printf '\0\0\0\0\0\0\0\0' | dd of="$file" bs=1 conv=notrunc status=none; run_case 'a header of no bytes' 'does not start with'
{ printf '\x00\x00\x10\0\0\0\0\0'; head -c 1048576 /dev/zero | tr '\0' '['; } >"$work/deep.safetensors"; file=$work/deep.safetensors; run_case 'a deep header' 'does not start with|nested too deeply'
for tensor in layout.timestep_indices layout.position_ids layout.token_tags input.text input.cot_video; do
    header "without $tensor" "the tensor $tensor is missing" "s/\"$tensor\":/\"${tensor%?}_\":/"
done
header 'a tensor twice' 'duplicate key' 's/"input.cot_audio":/"input.cot_video":/'
header 'another type' 'input.audio has dtype' 's/"input.audio":{"dtype":"F32"/"input.audio":{"dtype":"I32"/'
header 'a type of another size' 'data_offsets span' 's/"input.text":{"dtype":"BF16"/"input.text":{"dtype":"F32" /'
header 'an unknown type' 'dtype "F8_" is not supported' 's/"input.audio":{"dtype":"F32"/"input.audio":{"dtype":"F8_"/'
header 'another shape' '' 's/\("input.audio":{[^}]*"shape":\)\[6,6\]/\1[4,9]/'
header 'rows and columns' '' 's/\("input.video":{[^}]*"shape":\)\[18,16\]/\1[16,18]/'
header 'a negative size' 'no plain integer' 's/\("input.audio":{[^}]*"shape":\)\[6,6\]/\1[-6,]/'
header 'positions in two dimensions' 'position_ids must be' 's/"shape":\[29,3\]/"shape":[3,29]/'
header 'overlapping tensors' 'overlap|hole|span' 's/"data_offsets":\[48,88\]/"data_offsets":[40,80]/'
header 'offsets that run backward' 'run backward' 's/"data_offsets":\[48,88\]/"data_offsets":[88,48]/'
number 'a row index below 0' 'video_indices\[0\] = -1 is out of range' layout.video_indices 0 "${minus[@]}"
number 'a row index of 2^32' 'audio_indices\[5\] = 4294967296 is out of range' layout.audio_indices 5 "${large[@]}"
number 'a row taken twice' 'taken twice' layout.text_indices 0 "${three[@]}"
number 'a timestep index of 3' 'timestep index 3' layout.timestep_indices 28 "${three[@]}"
number 'a timestep index below 0' 'timestep index -1' layout.timestep_indices 0 "${minus[@]}"
number 'a tag of 3' 'tag 3' layout.token_tags 7 "${three[@]}"
number 'a NaN in the video' 'input.video has values that are not finite' input.video 5 00 00 c0 7f
number 'an infinity in the audio' 'input.audio has values that are not finite' input.audio 0 00 00 80 ff
number 'a NaN in the text' 'input.text has values that are not finite' input.text 3 c0 7f
number 'a NaN in a cotangent' 'input.cot_audio has values that are not finite' input.cot_audio 1 00 00 c0 7f
number 'a timestep that is infinite' 'layout.timestep has values that are not finite' layout.timestep 1 00 00 80 7f
number 'a position beyond FP32' 'layout.position_ids has values that are not finite' layout.position_ids 4 00 00 00 00 00 00 f0 7e
judge
file=$nano/case.safetensors
check 'the untouched case passes' "$H3_BIN/h3_reference_pass" --checkpoint "$nano/transformer" --case "$file" --precision fp32 --out "$work/good"
: >"$work/file"
start 'case: no folder for the output' 4 'cannot make the folder' "$work/out" "$H3_BIN/h3_reference_pass" --checkpoint "$nano/transformer" --case "$file" \
    --precision fp32 --out "$work/file/out"

# --- bindings ---
bindings() { # bindings NAME EXIT PATTERN TEXT
    printf '%s' "$4" >"$work/bindings$tried.json"
    start "bindings: $1" "$2" "$3" "$work/out" "$H3_BIN/h3_reference_pass" --checkpoint "$nano/transformer" --case "$file" --precision bf16 \
        --out "$work/out" --operators "$work/bindings$tried.json"
}
bindings 'empty' 2 'empty where JSON' ''
bindings 'a list' 2 'bindings must be an object' '[]'
bindings 'nothing bound' 2 'no binding for node' '{}'
bindings 'an unknown node' 2 'no node of a block' '{"softmax": {"library": "librelay.so"}}'
bindings 'a string' 2 'the binding of "\*" must be' '{"*": "librelay.so"}'
bindings 'no library' 2 '"library" is missing' '{"*": {}}'
bindings 'a nameless library' 2 'has no name' '{"*": {"library": ""}}'
bindings 'a library that is a number' 2 'must be a string' '{"*": {"library": 5}}'
bindings 'an unknown operator' 2 'has no operator "fastest"' '{"*": {"library": "librelay.so"}, "swiglu": {"library": "librelay.so", "operator": "fastest"}}'
bindings 'a missing library' 1 'is unavailable' '{"*": {"library": "../../none.so"}}'
bindings 'a library that is text' 1 'is unavailable' '{"*": {"library": "plans/smoke.json"}}'
start 'bindings: a missing file' 2 'cannot open' "$work/out" "$H3_BIN/h3_reference_pass" --checkpoint "$nano/transformer" --case "$file" --precision bf16 \
    --out "$work/out" --operators "$work/none.json"

# --- checkpoint folders, by --case and by a plan ---
index=diffusion_pytorch_model.safetensors.index.json
shard=diffusion_pytorch_model-00001-of-00002.safetensors
folder_number=0
checkpoint() { # checkpoint NAME PATTERN SCRIPT: run in a copy of the folder
    local name=$1 pattern=$2 folder
    shift 2
    folder_number=$((folder_number + 1))
    folder=$work/checkpoint$folder_number
    cp -R "$nano/transformer" "$folder"
    (cd "$folder" && LC_ALL=C eval "$*")
    start "checkpoint: $name" 3 "$pattern" "$work/out" "$H3_BIN/h3_reference_pass" --checkpoint "$folder" --case "$file" --precision fp32 --out "$work/out"
    [ $((folder_number % 3)) = 0 ] || return 0
    sed -e '/"checkpoint"/,/^ },/c\ "checkpoint": {"folder": "'"$folder"'", "hashes": {}},' "$work/plans.d/good.json" >"$work/plans.d/folder$folder_number.json"
    begin "with a checkpoint: $name" 3 "$pattern" "$work/plans.d/folder$folder_number.json"
}
start 'checkpoint: missing' 3 'cannot open .*config.json' "$work/out" "$H3_BIN/h3_reference_pass" --checkpoint "$work/none" --case "$file" --precision fp32 --out "$work/out"
checkpoint 'no config' 'config.json' rm config.json
checkpoint 'no index' 'holds neither' rm $index
checkpoint 'no shard' "$shard" rm $shard
checkpoint 'an empty shard' "$shard: truncated" ": >$shard"
checkpoint 'a cut shard' "$shard: .*truncated" truncate -s -100 $shard
checkpoint 'a shard that is a link to nothing' "$shard: a symbolic link to a file that is not there" "mv $shard real && ln -s unreal $shard"
checkpoint 'a shard that is a link to itself' "$shard: symbolic links in a circle" "rm $shard && ln -s $shard $shard"
checkpoint 'a shard that is a link to a device' "$shard is not a regular file" "ln -sf /dev/zero $shard"
checkpoint 'a shard that is a folder' 'not a regular file' "rm $shard && mkdir $shard"
checkpoint 'a shard path with ..' 'is no plain file name' "sed -i '0,/$shard/s//..\/$shard/' $index"
checkpoint 'an absolute shard path' 'is no plain file name' "sed -i '0,/$shard/s//\/etc\/passwd/' $index"
checkpoint 'a hidden shard' 'is no plain file name' "sed -i '0,/$shard/s//.hidden/' $index"
checkpoint 'an empty index' 'empty where JSON' ": >$index"
checkpoint 'an index that is a list' 'weight_map|object' "echo '[]' >$index"
checkpoint 'an index without tensors' 'weight_map is empty' "echo '{\"metadata\": {\"total_size\": 0}, \"weight_map\": {}}' >$index"
checkpoint 'a wrong total' 'total_size is' "sed -i 's/82152/82153/' $index"
checkpoint 'a tensor in the wrong shard' 'lies in' "sed -i '0,/00001-of/s//00002-of/' $index"
checkpoint 'a tensor of another name' 'missing tensor|additional tensor' "sed -i '1 s/\"proj_in.bias\"/\"proj_in.bios\"/' $shard"
checkpoint 'a tensor of another type' 'wrong dtype' "sed -i '1 s/\"proj_in.bias\":{\"dtype\":\"F32\"/\"proj_in.bias\":{\"dtype\":\"I32\"/' $shard"
checkpoint 'a tensor of another shape' 'wrong shape' "sed -i '1 s/\(\"audio_proj_in.weight\":{[^}]*\)\[24,6\]/\1[6,24]/' $shard"
checkpoint 'a config of another width' 'wrong shape|wrong dtype' "sed -i 's/\"hidden_size\": 24/\"hidden_size\": 25/' config.json"
checkpoint 'a config of more blocks' 'missing tensor transformer_blocks.2' "sed -i 's/\"num_layers\": 2/\"num_layers\": 3/' config.json"
checkpoint 'a config of a negative size' '"ffn_dim" is -32' "sed -i 's/\"ffn_dim\": 32/\"ffn_dim\": -32/' config.json"
checkpoint 'a config of a huge size' '"ffn_dim" is 1000000000 but' "sed -i 's/\"ffn_dim\": 32/\"ffn_dim\": 1000000000/' config.json"
checkpoint 'a config of another model' 'unknown field "experts"' "sed -i 's/\"ffn_dim\"/\"experts\": 8, &/' config.json"
checkpoint 'a config that is no object' 'must be a JSON object' "echo 5 >config.json"
judge

# --- conditioning files: the hash is right, the rest is not ---
conditioning() { # conditioning NAME PATTERN HEADER BYTES
    local path=$work/plans.d/conditioning$tried.safetensors hash
    # shellcheck disable=SC2059
    { printf "$(printf '\\x%02x\\x%02x' $((${#3} % 256)) $((${#3} / 256)))\\0\\0\\0\\0\\0\\0%s" "$3"; printf "%$4s" '' | tr ' ' "${5:-?}"; } >"$path"
    hash=$(sha256sum <"$path")
    plan "conditioning: $1" "${want:-3}" "$2" '/"conditioning"/,/^  \}/c\  "conditioning": {"file": "'"$(basename "$path")"'", "sha256": "'"${6:-${hash:0:64}}"'"}'
}
text='"text":{"dtype":"BF16","shape":[5,8],"data_offsets":[384,464]}' frame='"condition.0":{"dtype":"F32","shape":[1,4,1,4,6],"data_offsets":[0,384]}'
conditioning 'another hash' 'SHA-256 differs' "{$frame,$text}" 464 '?' "$(printf '0%.0s' {1..64})"
conditioning 'no text' 'the tensor text is missing' "{$frame}" 384
conditioning 'no keyframe' 'condition.0 is missing' '{"text":{"dtype":"BF16","shape":[5,8],"data_offsets":[0,80]}}' 80
conditioning 'text of another type' 'text has dtype' "{$frame,\"text\":{\"dtype\":\"F32\",\"shape\":[5,4],\"data_offsets\":[384,464]}}" 464
conditioning 'text of another shape' 'text has another shape' "{$frame,\"text\":{\"dtype\":\"BF16\",\"shape\":[8,5],\"data_offsets\":[384,464]}}" 464
conditioning 'a tensor too many' 'holds 3 tensors' "{$frame,$text,\"more\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[464,466]}}" 466
image='"image.0":{"dtype":"U8","shape":[16,8,3],"data_offsets":[0,384]}'
conditioning 'both latents and a picture' 'holds both condition.0 and image.0' "{$frame,${image/0,384/384,768},${text/384,464/768,848}}" 848
conditioning 'a picture of four colours' 'image.0 is no picture' "{${image/16,8,3/12,8,4},$text}" 464
conditioning 'a picture of floats' 'image.0 is no picture' "{\"image.0\":{\"dtype\":\"F32\",\"shape\":[4,8,3],\"data_offsets\":[0,384]},$text}" 464
want=2 conditioning 'a picture, and no encoder for it' 'names no video autoencoder' "{$image,$text}" 464
conditioning 'values that are not finite' 'not finite' "{$frame,$text}" 464 '\377'
judge

# --- runs edited by somebody who knows how to seal a stage.json ---
master=$work/master
mkdir "$master"
smoke_plan "$master/plan.json"
check 'a run passes' chain "$master/plan.json" "$master/run" reference_pass threshold_freeze candidate_gate
sealed() { # sealed STAGE: its stage.json, with the SHA-256 of its own text
    local file=$case/run/stages/$1/stage.json body hash
    body=$(head -n -2 "$file" | sed '$ s/,$//')
    hash=$(printf '%s\n}\n' "$body" | sha256sum)
    printf '%s,\n  "sha256": "%s"\n}\n' "$body" "${hash:0:64}" >"$file.new" && mv "$file.new" "$file"
}
relist() { # relist STAGE FILE: its size and hash as they are now
    local hash
    hash=$(sha256sum <"$case/run/$2")
    sed -i "\\#\"path\": \"$2\"# { n; s/: .*/: $(stat -c %s "$case/run/$2"),/; n; s/: .*/: \"${hash:0:64}\"/ }" "$case/run/stages/$1/stage.json"
    sealed "$1"
}
forged() { # forged NAME PATTERN STAGE WRITER FILE SED: FILE of the run, edited, listed and sealed again by WRITER
    case=$work/forged$tried
    copy "$master" "$case"
    own "$case/run/$5"
    own "$case/run/stages/$4/stage.json"
    sed -i -E "$6" "$case/run/$5"
    if cmp -s "$case/run/$5" "$master/run/$5"; then not_ok "forged: $1" 'the sed script changes nothing'; fi
    if [ "$5" = "stages/$4/stage.json" ]; then sealed "$4"; else relist "$4" "$5"; fi
    # shellcheck disable=SC2046
    start "forged: $1" 3 "$2" "$case/none" "$H3_BIN/"$(program_of "$3") --plan "$case/plan.json" --run "$case/run"
}
case=$work/resealed
copy "$master" "$case" && own "$case/run/stages/threshold_freeze/stage.json"
relist threshold_freeze thresholds.json
is 'resealing what is not changed changes nothing' "$(cat "$case/run/stages/threshold_freeze/stage.json")" "$(cat "$master/run/stages/threshold_freeze/stage.json")"
thresholds() { forged "thresholds: $1" "thresholds.json.*$2" candidate_gate threshold_freeze thresholds.json "$3"; }
thresholds 'one bound is wider' 'is not what the formula makes' '0,/"bound": [0-9.e-]+/s//"bound": 0.5/'
thresholds 'another formula' 'another formula' 's/"forward_scale": 1.25/"forward_scale": 12.5/'
thresholds 'a negative error' 'malformed bound' '0,/"provider_error": /s//&-/'
thresholds 'a bound that is a string' 'must be a finite number' '0,/"bound": ([0-9.e-]+)/s//"bound": "\1"/'
thresholds 'of another manifest' 'frozen from another' 's/"manifest_sha256": "...../"manifest_sha256": "00000/'
thresholds 'of another plan' 'another plan' 's/"plan_identity": "...../"plan_identity": "00000/'
thresholds 'of another machine' 'not comparable' 's/"libm": "/&9/'
thresholds 'a bound twice' 'two bounds' '0,/"tensor": "s48\/boundary.hidden"/s//"tensor": "s48\/boundary.temb"/'
forged 'thresholds: a bound for another tensor' 'tensor s48/boundary.hidden has no bound' candidate_gate threshold_freeze thresholds.json \
    '0,/"tensor": "s48\/boundary.hidden"/s//"tensor": "s48\/boundary.hiddem"/'
thresholds 'an unknown key' 'unknown field' '0,/"schema"/s//"widened": true, &/'
thresholds 'no JSON' 'no valid JSON' '5 d'
manifest() { forged "manifest: $1" "$2" "$3" reference_pass reference-manifest.json "$4"; }
for name in threshold_freeze generate_provider; do
    manifest "of another plan, for $name" 'another plan' $name 's/"plan_identity": "...../"plan_identity": "00000/'
    manifest "of another machine, for $name" 'not comparable' $name 's/"libm": "/&9/'
    manifest "of another model, for $name" 'another model' $name 's/"seed": 0/"seed": 1/'
done
manifest 'another digest' 'reference-manifest.json does not list' threshold_freeze '0,/"digest": "...../s//"digest": "00000/'
manifest 'another hash of an artifact' 'block-000.h5' threshold_freeze '/bf16\/block-000.h5",/,/\}/s/"sha256": "...../"sha256": "00000/'
manifest 'a path with ..' 'reference-manifest.json' threshold_freeze '0,/"path": "data/s//"path": "..\/data/'
manifest 'a tensor less' 'reference-manifest.json' threshold_freeze '0,/"name": "s48\/bf16\/boundary.hidden"/s//"name": "s48\/bf16\/boundary.hiddem"/'
manifest 'a tensor twice' 'twice' threshold_freeze '0,/"name": "s48\/bf16\/boundary.hidden"/s//"name": "s48\/bf16\/boundary.temb"/'
manifest 'no tensors' 'reference-manifest.json' threshold_freeze '/"tensors": \[/,/^  \]/c\  "tensors": []'
record() { forged "stage.json: $1" "stage.json.*$2|$2.*stage.json" threshold_freeze reference_pass stages/reference_pass/stage.json "$3"; }
record 'an output with ..' 'refused' 's#"path": "data/reference/s48/bf16/block-000.h5"#"path": "../x.h5"#'
record 'an absolute output' 'refused' 's#"path": "data/reference/s48/bf16/block-000.h5"#"path": "/etc/passwd"#'
record 'an unknown verdict' 'is not a verdict' 's/"verdict": "passed"/"verdict": "fine"/'
record 'another schema' 'schema' 's/h3-stage-v1/h3-stage-v9/'
record 'an unknown key' 'unknown field' 's/"schema"/"trust": 1, &/'
record 'a negative size' 'size' '0,/"size": /s//&-/'
forged 'stage.json: of another plan' 'made with another plan' threshold_freeze reference_pass stages/reference_pass/stage.json 's/"plan_sha256": "...../"plan_sha256": "00000/'
forged 'a failed stage' 'did not pass' threshold_freeze reference_pass stages/reference_pass/stage.json 's/"verdict": "passed"/"verdict": "failed"/'
gate() { forged "gate: $1" "$2" generate_candidate candidate_gate gate.json "$3"; }
gate 'another library' 'did not qualify' '/"libraries"/,/\]/s/"sha256": "...../"sha256": "00000/'
gate 'another provider' 'made with another' '/"provider": \{/,/\}/s/"sha256": "...../"sha256": "00000/'
gate 'not VALID inside' 'gate.json says INVALID' 's/"verdict": "VALID"/"verdict": "INVALID"/'
gate 'no verdict' 'verdict' 's/"verdict": "VALID"/"verdicts": "VALID"/'
judge

# --- minimal cases of one node ---
smoke_plan "$work/plans.d/wrong.json" 's/librelay.so/libwrong.so/'
H3_LIB=${H3_LIB#*:}
export H3_LIB="$H3_LIB:${H3_BUILD:-build}/tests:$work/lib"
check 'a reference for a wrong candidate' chain "$work/plans.d/wrong.json" "$work/wrong" reference_pass threshold_freeze
H3_WRONG=norm1:nan stage candidate_gate "$work/plans.d/wrong.json" "$work/wrong" --allow-dirty
is 'a wrong node leaves a case' "$rc $(cd "$work/wrong/cases" && echo *)" '1 s48.norm1.safetensors'
node_case() { # node_case NAME PATTERN SED: in its header
    local replay=$work/node$tried.safetensors
    cp "$work/wrong/cases/s48.norm1.safetensors" "$replay"
    edit "$replay" "$3"
    if cmp -s "$replay" "$work/wrong/cases/s48.norm1.safetensors"; then not_ok "node case: $1" 'the sed script changes nothing'; fi
    start "node case: $1" '[23]' "$2" "$work/none" "$H3_BIN/h3_candidate_gate" --case "$replay"
}
node_case 'an unknown node' 'which no block has' 's/"node":"norm1"/"node":"norm7"/'
node_case 'another node' 'missing' 's/"node":"norm1"/"node":"norm2"/'
node_case 'another schema' 'no node case of this version' 's/node-case-v1/node-case-v7/'
node_case 'no config' 'config' 's/"config":/"c_nfig":/'
node_case 'a config of another width' 'has not the type and shape' 's/hidden_size\\":24/hidden_size\\":25/'
node_case 'a table that is cut' 'has not the type and shape' 's/"shape":\[9,6,24\]/"shape":[6,9,24]/'
node_case 'rows that are columns' 'has not the type and shape' 's/\("value.x":{[^}]*"shape":\)\[29,24\]/\1[24,29]/'
node_case 'a parameter of another type' 'not bfloat16|span' 's/\("param.0":{"dtype":\)"BF16"/\1"F32" /'
node_case 'an index of another type' 'has not the type and shape' 's/\("value.index":{"dtype":\)"I32"/\1"F32"/'
node_case 'no value' 'value.x is missing' 's/"value.x"/"value.y"/'
node_case 'an unknown operator' 'has no operator' 's/\("operator":"\)[a-z]/\1Z/'
cp "$work/wrong/cases/s48.norm1.safetensors" "$work/index.safetensors"
put "$work/index.safetensors" value.index 3 ff ff ff 7f
start 'node case: an index beyond the table' 3 'is no row of the table' "$work/none" "$H3_BIN/h3_candidate_gate" --case "$work/index.safetensors"
start 'node case: another kind of case' 3 '"schema" is missing' "$work/none" "$H3_BIN/h3_candidate_gate" --case "$nano/case.safetensors"
start 'node case: missing' 3 'cannot open' "$work/none" "$H3_BIN/h3_candidate_gate" --case "$work/none.safetensors"
start 'node case: a FIFO' 3 'not a regular file' "$work/none" "$H3_BIN/h3_candidate_gate" --case "$work/plans.d/fifo.json"
judge
tap_end
