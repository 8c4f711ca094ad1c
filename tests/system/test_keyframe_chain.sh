#!/usr/bin/env bash
# A reference picture through generation: stored as a picture it gives what its latents give, which bin/h3_keyframe makes beforehand; for any number of
# ranks; and what has no encoder, or has an encoder of another model, is refused before anything runs.
# timeout: 300
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
vae=$PWD/tests/golden/video-vae
keyframe=$H3_BIN/h3_keyframe

media_plan "$work"
sed -i -E '/^  "video": /,/"tiling"/c\  "video": {"folder": "'"$vae"'", "hashes": {}},' "$work/plan.json"

# 12 rows of text; the picture is a frame that an earlier generation made
header='{"text":{"dtype":"BF16","shape":[12,8],"data_offsets":[0,192]}}'
{ printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"; printf '%192s' '' | tr ' ' '?'; } >"$work/text.safetensors"
PLAN=$work/plan.json
check 'a reference pass' stage 1 reference_pass "$work/first"
check 'a generation of which a frame is taken' stage 1 generate_provider "$work/first"
no_leak_search
picture=$work/first/data/generate/provider/seed42/frames/frame_00003.png

# conditioned NAME OPTION...: $work/NAME.json with a conditioning file that h3_keyframe made
conditioned() {
    local name=$1 said
    shift
    said=$("$keyframe" --text "$work/text.safetensors" --out "$work/$name.safetensors" "$@") || return
    sed "s|\"conditioning\": {\"synthetic\": {\"seed\": 7}}|$(sed -n 's/^plan *//p' <<<"$said")|" "$work/plan.json" >"$work/$name.json"
}
check 'a file with the picture' conditioned picture --first "$picture" --canvas 48x30
check 'a file with latents' conditioned latents --first "$work/first/data/generate/provider/seed42/frames/frame_00003.png" --canvas 24x16 --vae "$vae"
check 'a file with the picture on its canvas' conditioned canvas --first "$picture" --canvas 24x16

generated() { # generated NAME RANKS: reference pass and generation of that plan
    PLAN=$work/$1.json stage "$2" reference_pass "$work/$1-$2" && PLAN=$work/$1.json stage "$2" generate_provider "$work/$1-$2"
}
field() { tr -d ' \n' <"$work/$1/generate-provider.json" | grep -o "\"$2\":\[[^]]*\]" | head -n 1; }
for ranks in 1 2 3; do check "generation encodes the picture, $ranks ranks" generated picture $ranks; done
check '2 ranks give the bytes of one' same_run "$work/picture-1" "$work/picture-2"
check 'so do 3' same_run "$work/picture-1" "$work/picture-3"
check 'generation from latents' generated latents 1
check 'generation from the canvas' generated canvas 1
like 'the report has a digest of the latents' "$(field latents-1 condition)" '^"condition":\["[0-9a-f]{64}"\]$'
is 'the canvas becomes the latents that h3_keyframe made' "$(field canvas-1 condition)" "$(field latents-1 condition)"
is 'and every velocity is the same' "$(tr -d ' \n' <"$work/canvas-1/generate-provider.json" | grep -o '"velocity":.*')" "$(tr -d ' \n' <"$work/latents-1/generate-provider.json" | grep -o '"velocity":.*')"
like 'of a picture the canvas is named' "$(field canvas-1 canvas)" '^"canvas":\["[0-9a-f]{64}"\]$'
is 'of latents it is not known' "$(field latents-1 canvas)" ''
unlike 'another picture gives other latents' "$(field picture-1 condition)" "$(field latents-1 condition | grep -o '[0-9a-f]\{64\}')"

refused() { # refused NAME PATTERN SED: the plan with the picture, changed: exit 2 in the first stage, nothing begun
    local out
    sed "$3" "$work/picture.json" >"$work/refused.json"
    out=$("$H3_BIN/h3_reference_pass" --plan "$work/refused.json" --run "$work/refused" 2>&1 </dev/null)
    is "$1: exit 2, nothing begun" "$? $([ -e "$work/refused" ] && echo begun)" '2 '
    like "$1: says so" "$out" "$2"
}
refused 'a picture and no decoders' 'names no video autoencoder' '/^ "decoders"/,/^ "preview"/{/^ "preview"/!d}'

unusable() { # unusable NAME PATTERN SED: the text file with another header or content: exit 3, nothing written
    local out
    LC_ALL=C sed "$3" "$work/text.safetensors" >"$work/unusable.safetensors"
    out=$("$keyframe" --text "$work/unusable.safetensors" --first "$picture" --canvas 24x16 --out "$work/none.safetensors" 2>&1)
    is "$1: exit 3, one line, nothing written" "$? $(wc -l <<<"$out") $([ -e "$work/none.safetensors" ] && echo written)" '3 1 '
    like "$1: says so" "$out" "$2"
}
unusable 'no text' 'no prompt embeddings; scripts/export_conditioning.py makes them: .*: the tensor text is missing' 's/"text"/"took"/'
unusable 'text that is not finite' 'text has values that are not finite; make it again' 's/??$/\xff\x7f/'
unusable 'text without a row' 'rows and width, of at least 1 each' 's/\[12,8\],"data_offsets":\[0,192\]}}.*/[0,888],"data_offsets":[0,0]}} /'

# an input under another name is still an input
cp "$picture" "$work/kept.png" && cp "$work/text.safetensors" "$work/kept.safetensors" && ln -s kept.png "$work/link.png"
for out in kept.png kept.safetensors link.png; do
    said=$("$keyframe" --text "$work/kept.safetensors" --last "$work/kept.png" --canvas 24x16 --out "$work/$out" 2>&1)
    is "$out is read and not written: exit 2, one line" "$? $(wc -l <<<"$said")" '2 1'
    like 'and named' "$said" "^h3_keyframe: --out .*/$out is .*/kept.*, which is read; give another name$"
done
check 'the picture is as it was' cmp "$picture" "$work/kept.png"
check 'so is the text' cmp "$work/text.safetensors" "$work/kept.safetensors"
out=$("$keyframe" --text "$work/text.safetensors" --first "$picture" --canvas 48x30 --out "$work/a\"b.safetensors")
like 'a quote in the name stands in the line for the plan as JSON has it' "$out" '^plan +"conditioning": \{"file": "[^"]*/a\\"b\.safetensors", "sha256": "[0-9a-f]{64}"\}$'
tap_end
