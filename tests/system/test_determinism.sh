#!/usr/bin/env bash
# Two identical runs, one here and now through scripts/submit.sh, one a day later on another host, by another user, in another
# folder and time zone: the same bytes in every deterministic file, HDF5 included, and nothing of those circumstances in them.
# shellcheck disable=SC2317  # functions that are called by check
# timeout: 300
set -u
. tests/tools/tap.sh
. tests/tools/chain.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
check 'there is a candidate that the gate accepts' clean_candidate "$work/clean"

# --- the first run ---
one=$work/first-place
out=$(H3_CLEAN_BUILD=0 scripts/submit.sh --local --plan plans/smoke.json --run "$one" 2>&1)
is 'the first run passes' "$?" 0
digest=$(sed -n 's/^VALID .* digest //p' <<<"$out")

# --- the second run: everything around it is another ---
# A clock that is a day ahead, for every way in which a program can ask.
cat >"$work/clock.c" <<'C'
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
enum { A_DAY = 86400 };
int clock_gettime(clockid_t id, struct timespec *now)
{
    long code = syscall(SYS_clock_gettime, id, now);
    if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += A_DAY;
    return (int)code;
}
time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}
C
check 'a clock for the second run compiles' gcc -O2 -shared -fPIC "$work/clock.c" -o "$work/clock.so"
mkdir -p "$work/second/place/plans"
cp generation-contract.json "$work/second/place"
plan=$work/second/place/plans/other-name.json
cp plans/smoke.json "$plan"
two=$work/second/place/evidence
tomorrow=$(date -u -d '+1 day' +%Y-%m-%d)
sleep 2
cat >"$work/second/run" <<'SH'
#!/usr/bin/env bash
set -u
host=$1 run=$2 PLAN=$3
if [ "$host" != - ]; then hostname "$host" || exit; fi
. tests/tools/chain.sh
export USER=u6193 LOGNAME=u6193 HOME=/nowhere/u6193 TZ=Asia/Kathmandu LC_ALL=C.UTF-8 OMP_NUM_THREADS=2
# What a job's ranks see. mpirun itself must not: it would ask that Slurm for its nodes.
site=(SLURM_JOB_ID=48151623 SLURM_JOBID=48151623 SLURM_JOB_NAME=j48151623 SLURM_JOB_ACCOUNT=a48151623 SLURM_JOB_PARTITION=p48151623
    SLURM_CLUSTER_NAME=c48151623 SLURMD_NODENAME=n48151623 SLURM_JOB_NODELIST=n48151623 SLURM_JOB_USER=u6193)
umask 077
for stage in $chain_stages; do
    side=()
    program=h3_$stage
    case $stage in generate_*) program=h3_generate side=(--side "${stage#generate_}" --repeat) ;; esac
    mpirun -q -n 2 env "${site[@]}" LD_PRELOAD="$CLOCK" ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0" \
        "$H3_BIN/$program" --plan "$PLAN" --run "$run" ${side[@]+"${side[@]}"} </dev/null || exit
done
"$H3_BIN/h3_report" --run "$run"
SH
# another host name where that is allowed (root), else the same one
others=() host=-
if unshare --uts hostname h7261test 2>/dev/null; then others=(unshare --uts) host=h7261test; fi
check 'the second run passes' env CLOCK="$work/clock.so" ${others[@]+"${others[@]}"} bash "$work/second/run" "$host" "$two" "$plan"

# --- the same bytes ---
check 'every deterministic file has the same bytes' same_run "$one" "$two"
is 'HDF5 files are among them' "$(digests "$two" | grep -c '\.h5$')" 14
check 'so are plan, manifest, bounds, reports and stages' [ "$(digests "$two" | grep -c '\.json$')" = 15 ]
like 'the verdict has a digest' "$digest" '^[0-9a-f]{8}$'

# --- and nothing of the site in them; that what is looked for was there is seen in site.json ---
site=$(cat "$two"/stages/*/site.json)
like 'the second run was a day later' "$site" "\"(started|finished)\": \"$tomorrow"
[ "$host" = - ] && host=$(hostname)
like 'on its host' "$site" "\"$host\""
like 'in its job' "$site" '48151623'
# The deterministic files of both runs that have one of these texts. `said` looks at JSON alone, for texts so short that they
# are found in any tensor's bytes.
search() { # search NAMES PATTERN...
    local names=$1 pattern folder files
    shift
    for folder in "$one" "$two"; do
        files=$(digests "$folder" | sed 's/^[0-9a-f]* *//' | grep -e "$names")
        [ -n "$files" ] || echo "nothing to search in $folder"
        for pattern in "$@"; do (cd "$folder" && xargs -r grep -laE -e "$pattern" <<<"$files"); done
    done
}
found() { search '' "$@"; }
said() { search '\.json$' "$@"; }
here_host="\"([^\"]*[^[:alnum:]])?$(hostname)([^[:alnum:]][^\"]*)?\"" here_user="\"$(id -un)\"" a_path='"/[A-Za-z]'
a_date='20[0-9][0-9]-[01][0-9]-[0-3][0-9]' a_time='[0-2][0-9]:[0-5][0-9]:[0-5][0-9]'
an_epoch="[^0-9A-Za-z.]$(date +%s | cut -c 1-5)[0-9]{5}([^0-9A-Za-z.]|\$)"
is 'no host name' "$(found h7261test localhost)$(said "$here_host")" ''
is 'no user name' "$(found u6193)$(said "$here_user")" ''
is 'no job, account, partition, cluster, node' "$(found 48151623)" ''
is 'no absolute path' "$(found "$work" "$PWD" /tmp/ /home/ other-name first-place)$(said "$a_path")" ''
is 'no date and no time zone' "$(found "$a_date" "$a_time" Kathmandu)$(said '\+0545' '\bUTC\b')" ''
is 'no seconds since 1970' "$(found "$an_epoch")" ''

# --- the search itself finds ---
one=$work/seeded two=$work/seeded
mkdir "$work/seeded"
finds() { # finds PATTERN TEXT
    printf '{\n  %s\n}\n' "$2" >"$work/seeded/gate.json"
    is "a file with ${2%%:*} would be found" "$(said "$1" | sort -u)" ./gate.json
}
finds "$here_host" "\"host\": \"$(hostname)\""
finds "$here_host" "\"producer\": \"someone@$(hostname)\""
finds "$here_user" "\"user\": \"$(id -un)\""
finds "$a_path" "\"file\": \"$work/x\""
finds "$a_date" "\"made\": \"$tomorrow\""
finds "$a_time" "\"at\": \"$(date +%T)\""
finds "$an_epoch" "\"when\": $(date +%s),"
tap_end
