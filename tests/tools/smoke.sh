# Sourced, after tap.sh, by tests/system/*.sh that break the run of the smallest plan.
#
#   smoke_libraries FOLDER      H3_LIB with relays of both shipped libraries (tests/candidates/relay.c) in FOLDER
#   smoke_plan FILE [SED]       plans/smoke.json with these relays, changed by a sed script; the contract beside it
#   stage STAGE PLAN RUN [OPTION...]   one stage without mpirun, at most 60 s; sets rc and err (its stderr); its exit code
#   chain PLAN RUN STAGE...     several; the first that fails ends it and says why
#   hold RELAY CALL COMMAND...  starts it, waits until that call of attention in the relay of the provider or the candidate; sets held (process)
#   release                     lets it go on and waits for its end; sets rc and err
#   flip FILE OFFSET            one bit of one byte, in place
#   copy FROM TO                a copy that shares unchanged files with the original
#   own FILE                    a file of such a copy gets bytes of its own
#   listing FOLDER              names, kinds, inodes and sizes of everything but locks: the same text, nothing happened
# shellcheck shell=bash

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl=${OMPI_MCA_btl:-self,vader,tcp} OMP_NUM_THREADS=1 LC_ALL=C
export H3_BIN=${H3_BIN:-bin} H3_LIB=${H3_LIB:-lib/h3}
unset H3_RUN H3_PLAN H3_RANKS H3_DEVICE H3_ROOT H3_ARGS H3_RESUME H3_RELAY H3_RELAY_WAIT H3_RELAY_CALL H3_RELAY_CHANGE
smoke_chain='reference_pass threshold_freeze generate_provider candidate_gate generate_candidate compare'

smoke_libraries() {
    mkdir -p "$1"
    cp "${H3_BUILD:-build}/tests/librelay.so" "$1/librelay.so" && cp "$1/librelay.so" "$1/librelay_provider.so" || return
    H3_LIB=$1:$H3_LIB
}

smoke_plan() {
    cp generation-contract.json "$(dirname "$1")"
    sed -e 's/libh3_provider_[^.]*\.so/librelay_provider.so/; s/libh3_candidate_[^.]*\.so/librelay.so/' -e "${2:-}" plans/smoke.json >"$1"
}

program_of() {
    case $1 in
        generate_*) echo "h3_generate --side ${1#generate_}" ;;
        *) echo "h3_$1" ;;
    esac
}

stage() {
    local name=$1 plan=$2 run=$3 program
    shift 3
    read -ra program < <(program_of "$name")
    err=$(timeout -k 5 60 "$H3_BIN/${program[0]}" "${program[@]:1}" --plan "$plan" --run "$run" "$@" 2>&1 >/dev/null </dev/null)
    rc=$?
    return $rc
}

chain() {
    local plan=$1 run=$2 name
    shift 2
    for name in "$@"; do
        stage "$name" "$plan" "$run" && continue
        echo "$name: exit $rc: $err" >&2
        return 1
    done
}

hold() {
    local relay=$1 call=$2 i
    shift 2
    held_files=$(mktemp -d)
    H3_RELAY=$relay H3_RELAY_CALL=$call H3_RELAY_WAIT=$held_files/go timeout -k 5 120 "$@" >/dev/null 2>"$held_files/err" </dev/null &
    held_timeout=$!
    for ((i = 0; i < 600; i++)); do
        [ ! -e "$held_files/go.reached" ] || break
        sleep 0.05
    done
    held=$(cat "$held_files/go.reached" 2>/dev/null)
    [ -n "$held" ] || { echo "never there: $*" >&2; cat "$held_files/err" >&2; }
}

release() {
    touch "$held_files/go"
    wait $held_timeout
    rc=$?
    err=$(cat "$held_files/err")
    rm -rf "$held_files"
}

flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059  # an escape is what it is for
    printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

copy() { rm -rf "$2" && cp -al "$1" "$2" && find "$2" -name .lock -delete; } # a shared lock would be held by both
own() { cp "$1" "$1.own" && mv -f "$1.own" "$1"; }
listing() { (cd "$1" && find . ! -name .lock -printf '%p %y %i %s %l\n' | sort); }
