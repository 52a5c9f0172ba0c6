# shellcheck shell=bash disable=SC2154 # here, repository, only, list_only, keep: run.sh sets them
#
# Machinery of tests/apps: functions by which family files declare scenarios and programs, the run
# of a scenario on both media, and the comparison of the two runs. Sourced by run.sh.
#
# Must stay true: both runs see the same environment, user, programs and path M. M is first a
# directory on the disk; after that directory is removed, M is Cairn's mount prefix. So nothing in
# what they print, write or measure needs translation.

readonly UNPRIVILEGED_ID=65534
readonly SCENARIO_SECONDS_MAX=120
readonly EXPLANATION_LINES_MAX=60
# Messages that a correct scenario never prints to standard error on disk.
BROKEN_SCENARIO='Traceback|Aborted|Segmentation fault|syntax error|unbound variable'
readonly BROKEN_SCENARIO+='|command not found|invalid option|unrecognized option|usage:'
passed=0 failed=0 skipped=0
# Commands that families want executed at the end, however the run ends.
at_end=()
scratch='' disk=''

# -- Set-up and end ------------------------------------------------------------------------------

prepare() {
    umask 022
    [ -n "$list_only" ] && return
    local command=${CAIRN:-}
    for candidate in "$repository/target/debug/cairn" "$repository/target/release/cairn"; do
        [ -n "$command" ] || { [ -x "$candidate" ] && command=$candidate; }
    done
    [ -n "$command" ] || {
        echo "run.sh: there is no target/debug/cairn; run: cargo build -p cairn-preload -p cairn-cli" >&2
        exit 2
    }
    # The name must not contain "/cairn", which -c translates.
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/apps.XXXXXX")
    # Copies, so that the unprivileged share can read them wherever the checkout is.
    disk=$scratch/m
    mkdir "$scratch/bin" "$scratch/sources"
    install -m 755 "$command" "$here/once.sh" "$scratch/bin/"
    install -m 644 "$(dirname "$command")/libcairn_preload.so" "$scratch/bin/" || exit 2
    cp "$here"/programs/* "$scratch/sources/"
    chmod 1777 "$scratch"
    printf 'cairn: %s\nscratch: %s\n' "$command" "$scratch"
}

begin_family() {
    current_family=$1 counter=0
    [ -n "$list_only" ] || printf '\n-- %s\n' "$1"
}

finish() {
    [ -n "${scratch:-}" ] || return
    local step
    for step in "${at_end[@]}"; do "$step"; done
    if [ -n "$keep" ] && [ "$failed" -gt 0 ]; then
        echo "scratch kept: $scratch"
    else
        rm -rf "$scratch"
    fi
}

report() {
    [ -n "$list_only" ] && return
    printf '\n%d passed, %d failed' "$passed" "$failed"
    [ "$skipped" -eq 0 ] || printf ', %d skipped' "$skipped"
    printf '\n'
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# -- Verdicts ------------------------------------------------------------------------------------

passes() {
    passed=$((passed + 1))
    printf 'ok   %s\n' "$1"
}

# fails NAME EXPLANATION
fails() {
    failed=$((failed + 1))
    printf 'FAIL %s\n' "$1"
    # Of a long one, the beginning, and the end, which says where it ended.
    local lines
    mapfile -t lines <<<"$2"
    if [ "${#lines[@]}" -gt "$EXPLANATION_LINES_MAX" ]; then
        lines=("${lines[@]:0:EXPLANATION_LINES_MAX/3}" '...' "${lines[@]: -EXPLANATION_LINES_MAX*2/3}")
    fi
    printf '     | %s\n' "${lines[@]}"
}

# skip NAME WHY
skip() {
    skipped=$((skipped + 1))
    printf 'SKIP %s: %s\n' "$1" "$2"
}

# -- What family files call ----------------------------------------------------------------------

# scenario [-l bash|python] [-u] [-c] [-e WRAPPER] NAME [ARGUMENT…]: runs the script on standard
# input on both media.
#   -u  as root: once more as an unprivileged user
#   -c  below Cairn's default prefix (/cairn), whose name is translated afterwards
#   -e  under this function, which runs its arguments in an unusual environment
scenario() {
    local language=bash unprivileged='' environment='' prefix=$disk option OPTIND=1
    while getopts l:uce: option; do
        case $option in
        l) language=$OPTARG ;;
        u) unprivileged=yes ;;
        c) prefix=/cairn ;;
        e) environment=$OPTARG ;;
        *) exit 2 ;;
        esac
    done
    shift $((OPTIND - 1))
    local name=$current_family/$1 script
    shift
    take_script "$name" || return 0
    compare "$name" "$environment" "$language" "$script" "$@"
    if [ -n "$unprivileged" ] && [ "$(id -u)" -eq 0 ]; then
        compare "$name (unprivileged)" "$environment as_unprivileged" "$language" "$script" "$@"
    fi
}

# expect NAME EXPECTED [WRAPPER…]: runs the script on standard input, for features that a disk does
# not have. bash runs it under WRAPPER or, without one, on the disk. It must exit with 0 and print
# exactly EXPECTED. $B/cairn is the command, $J a job name.
expect() {
    local name=$current_family/$1 expected=$2 script run=$scratch/run job=$job_prefix-$((++jobs))
    shift 2
    take_script "$name" || return 0
    rm -rf "$run" "$disk"
    mkdir -p "$run/result" "$run/cwd"
    [ $# -gt 0 ] || mkdir "$disk"
    launch '' "$run/result" "$disk" J="$job" "$@" bash "$scratch/bin/once.sh" "$run/result" bash "$script"
    difference=$(
        diff -a -u --label expected --label printed <(printf '%s\n' "$expected") "$run/result/stdout" 2>&1
        grep -q ': 0$' "$run/result/code" || cat "$run/result/code"
    )
    if [ -z "$difference" ]; then
        passes "$name"
    else
        fails "$name" "$difference
$(cat "$run/result/stderr" "$run/result/outer")"
    fi
}

# expect_on_cairn NAME EXPECTED [OPTION…]: the same in job $J below Cairn's mount prefix; OPTIONs
# are those of "cairn run".
expect_on_cairn() {
    local name=$1 expected=$2
    shift 2
    expect "$name" "$expected" \
        "$scratch/bin/cairn" run --job "$job_prefix-$((jobs + 1))" --mount "$disk" --discard "$@" --
}

# Reads the script on standard input into the file $script. Fails if $1 is not to run, and lists it
# if --list was given.
take_script() {
    if [ -n "$list_only" ]; then
        cat >/dev/null
        if is_wanted "$1"; then echo "$1"; fi
        return 1
    fi
    counter=$((counter + 1))
    script=$scratch/$current_family.$counter
    cat >"$script"
    is_wanted "$1"
}

is_wanted() {
    # shellcheck disable=SC2053
    [[ $1 == $only || ${1#*/} == $only ]]
}

# program NAME SOURCE COMPILER OPTION…: builds tests/apps/programs/SOURCE as $B/NAME.
program() {
    local name=$1 source=$2 log
    shift 2
    [ -n "$list_only" ] && return
    log=$("$@" -o "$scratch/bin/$name" "$scratch/sources/$source" 2>&1) && return
    fails "$current_family/$name compiles" "$log"
}

# -- One comparison ------------------------------------------------------------------------------

as_unprivileged() {
    setpriv --reuid=$UNPRIVILEGED_ID --regid=$UNPRIVILEGED_ID --clear-groups "$@"
}

# compare NAME WRAPPERS LANGUAGE SCRIPT ARGUMENT…
compare() {
    local name=$1
    shift
    run_on_both "$@"
    if [ -z "$difference" ]; then
        passes "$name"
    else
        fails "$name" "$difference"
    fi
}

# run_on_both WRAPPERS LANGUAGE SCRIPT ARGUMENT… (and $prefix): sets $difference to the differences.
run_on_both() {
    local wrappers=$1 language=$2 script=$3
    shift 3
    local run=$scratch/run
    rm -rf "$run" "$disk"
    mkdir -p "$run/disk" "$run/cairn" "$run/cwd" "$disk"
    [[ $wrappers != *as_unprivileged* ]] || chown -R $UNPRIVILEGED_ID:$UNPRIVILEGED_ID "$run" "$disk"
    launch "$wrappers" "$run/disk" "$disk" bash "$scratch/bin/once.sh" "$run/disk" "$language" "$script" "$@"
    rm -rf "$disk"
    launch "$wrappers" "$run/cairn" "$prefix" \
        "$scratch/bin/cairn" run --job "$job_prefix-$((++jobs))" --mount "$prefix" --discard -- \
        bash "$scratch/bin/once.sh" "$run/cairn" "$language" "$script" "$@"
    difference=$(differences "$run")
}

# launch WRAPPERS RESULTS MEDIUM COMMAND…
launch() {
    local wrappers=$1 results=$2 medium=$3
    shift 3
    # shellcheck disable=SC2086
    $wrappers timeout -k 5 "${SCENARIO_SECONDS:-$SCENARIO_SECONDS_MAX}" \
        env -i "${clean_environment[@]}" B="$scratch/bin" M="$medium" "$@" \
        >"$results/outer" 2>&1 </dev/null
    echo "launcher exit code: $?" >"$results/code"
}

clean_environment=(PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/nonexistent LC_ALL=C.UTF-8 TZ=UTC)
job_prefix=apps-$$
jobs=0

# Prints the differences between the two runs; nothing when they are equal.
differences() {
    local run=$1 part
    if [ ! -s "$run/disk/tree" ]; then
        echo "the run on disk did not get to its end, so there is nothing to compare with:"
        cat "$run/disk/outer"
        return
    fi
    if ! grep -q ': 0$' "$run/disk/code"; then
        echo "a scenario ends with 0 on disk but not this one:"
        cat "$run/disk/code" "$run/disk/stderr"
    fi
    if grep -a -E "$BROKEN_SCENARIO" "$run/disk/stderr"; then
        echo "so the scenario itself is broken: that was its run on disk"
    fi
    if [ -e "$disk" ]; then
        echo "these calls went past Cairn, to the disk:"
        find "$disk"
    fi
    for part in code stdout stderr tree; do
        [ "$prefix" = "$disk" ] || sed -i "s|$prefix\b|$disk|g" "$run/cairn/$part" 2>/dev/null
        diff -a -u --label "$part on disk" --label "$part on Cairn" -- "$run/disk/$part" "$run/cairn/$part" 2>&1
    done
    if [ ! -s "$run/cairn/tree" ]; then
        echo "the run on Cairn said:"
        cat "$run/cairn/outer"
    fi
}

# -- Checks of the whole ------------------------------------------------------------------------

# A comparison that cannot fail proves nothing: this one must fail.
check_that_differences_are_seen() {
    local prefix=$disk
    # shellcheck disable=SC2016
    echo 'echo $RANDOM$RANDOM >"$D/f"' >"$scratch/different"
    run_on_both '' bash "$scratch/different"
    if [[ $difference == *'tree on disk'* ]]; then
        passes "a difference is seen"
    else
        fails "a difference is seen" "the harness found two different trees equal: $difference"
    fi
}

# A discarded job leaves no store and no process behind.
check_nothing_is_left() {
    local left
    left=$(
        find /dev/shm "${XDG_RUNTIME_DIR:-/tmp}" /tmp -maxdepth 2 -path "*cairn-*/$job_prefix-*" 2>/dev/null
        for process in /proc/[0-9]*; do
            case $(readlink "$process/exe" 2>/dev/null) in
            "$scratch"/*) echo "process ${process#/proc/}: $(tr '\0' ' ' <"$process/cmdline")" ;;
            esac
        done
    )
    if [ -z "$left" ]; then
        passes "no store and no process is left behind"
    else
        fails "no store and no process is left behind" "$left"
    fi
}
