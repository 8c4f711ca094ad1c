#!/usr/bin/env bash
# Keeps the reference of a run that passed: its manifest and thresholds, to be committed and named by a plan's "pins".
#
#   scripts/freeze_reference.sh RUN [options]
#
#   --name NAME    writes manifests/NAME-manifest.json and thresholds/NAME-thresholds.json (NAME: the plan's name)
#   --replace      over another reference that is there already
#   --to FOLDER    below this folder instead of the project's
#
# Without --name, a model of the released dimensions goes to manifests/reference-manifest.json and
# thresholds/full-model-thresholds.json.
# The run must verify, and every stage of it must have passed. A plan with
#   "pins": {"manifest": "manifests/NAME-manifest.json", "thresholds": "thresholds/NAME-thresholds.json"}
# then reproduces this reference, on the same class of machine, or fails with exit code 3. Pins are no part of what identifies a
# plan.
#
# Exit codes: 0 done, or there already; 1 the run did not pass; 2 usage; 3 the run does not verify, or another reference is there;
# 4 environment.
# Example: scripts/freeze_reference.sh evidence/demo
set -uo pipefail

die() { # die CODE TEXT
    echo "freeze_reference: $2" >&2
    exit "$1"
}
help() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "$0"; }

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 4
run='' name='' to=$project replace=0
while [ $# -gt 0 ]; do
    case $1 in
        --replace) replace=1 ;;
        --name|--to)
            [ -n "${2:-}" ] || die 2 "$1 needs a value; see --help"
            declare "${1#--}=$2"
            shift
            ;;
        --help|-h) help; exit ;;
        -*) die 2 "unknown option $1; see --help" ;;
        *) [ -z "$run" ] || die 2 'one run at a time; see --help'; run=$1 ;;
    esac
    shift
done
[ -n "$run" ] || die 2 'which run? For example: scripts/freeze_reference.sh evidence/demo'
[ -d "$run" ] || die 2 "$run is no folder with a run; check the path"
[ -d "$to" ] || die 2 "--to $to is no folder"
[ -z "$name" ] || [[ $name =~ ^[A-Za-z0-9_-]{1,60}$ ]] || die 2 "--name $name: letters, digits, - and _, 60 at most"

verify=''
for folder in ${H3_BIN:+"$H3_BIN"} "$project/bin" "$project/../../bin"; do
    if [ -x "$folder/h3_verify" ]; then verify=$folder/h3_verify; break; fi
done
[ -n "$verify" ] || die 4 'no program h3_verify; run: make all'
said=$("$verify" run "$run") || { code=$?; echo "$said" >&2; die $code "$run does not verify; nothing was kept"; }
outcome=$(sed -n 's/^outcome *//p' <<<"$said")
case $outcome in
    VALID:*) ;;
    *) die 1 "$run did not pass ($outcome); nothing was kept" ;;
esac

# What the manifest says of its model stands before its list of files.
model() { sed '/^  "files":/q' "$run/reference-manifest.json"; }
model_has() { model | grep -q "\"$1\": $2,\{0,1\}$"; }
released_config() { sed -n 's/.*"config_sha256": *\("[0-9a-f]*"\).*/\1/p' "$project/generation-contract.json"; }
is_released() {
    model_has config_sha256 "$(released_config)" ||
        { model_has num_layers 50 && model_has hidden_size 5376 && model_has num_attention_heads 56 && model_has ffn_dim 14336; }
}

if [ -z "$name" ] && is_released; then
    files=(manifests/reference-manifest.json thresholds/full-model-thresholds.json)
else
    name=${name:-$(sed -n 's/^plan *\([^ ]*\) .*/\1/p' <<<"$said")}
    files=("manifests/$name-manifest.json" "thresholds/$name-thresholds.json")
fi
sources=("$run/reference-manifest.json" "$run/thresholds.json")

same=0
for i in 0 1; do
    file=$to/${files[i]}
    if [ ! -e "$file" ] && [ ! -L "$file" ]; then continue; fi
    if [ -f "$file" ] && [ ! -L "$file" ] && cmp -s "${sources[i]}" "$file"; then same=$((same + 1)); continue; fi
    [ $replace = 1 ] || die 3 "$file holds another reference; give this one a --name, or --replace that one"
done
if [ $same = 2 ]; then
    printf 'frozen   %s and %s hold this reference already\n' "${files[@]}"
    exit
fi

# Both are written whole before either gets its name.
temporaries=()
trap 'rm -f ${temporaries[@]+"${temporaries[@]}"}' EXIT
for i in 0 1; do
    mkdir -p "$(dirname "$to/${files[i]}")" || die 4 "cannot make a folder for ${files[i]}"
    temporary=$(mktemp "$(dirname "$to/${files[i]}")/.tmp-XXXXXX") || die 4 "cannot write beside ${files[i]}; check permissions"
    temporaries+=("$temporary")
    if ! { cat "${sources[i]}" >"$temporary" && chmod 644 "$temporary" && sync "$temporary"; }; then
        die 4 "cannot write ${files[i]}; check space and permissions"
    fi
    cmp -s "${sources[i]}" "$temporary" || die 4 "${sources[i]} changed while it was copied; try again"
done
for i in 0 1; do mv -f "${temporaries[i]}" "$to/${files[i]}" || die 4 "cannot write ${files[i]}; check permissions"; done
printf 'frozen   %s\n' "${files[@]}"
printf 'pins     {"manifest": "%s", "thresholds": "%s"}\n' "${files[@]}"
