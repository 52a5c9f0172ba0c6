#!/usr/bin/env bash
# Fuzzes Cairn, guided by coverage, with the stable compiler.
#
#   scripts/fuzz.sh [TARGET…]           runs each target for FUZZ_RUNS inputs or FUZZ_SECONDS, after --canary
#   scripts/fuzz.sh --canary            only checks that the fuzzer finds the planted bugs
#   scripts/fuzz.sh --keep [TARGET…]    stores inputs found so far in fuzz/corpus: the fewest with the same coverage
#
# FUZZ_RUNS (10000000), FUZZ_SECONDS (3600), FUZZ_JOBS (targets at a time; default: number of
# processors).
#
# Must stay true: it works in target/fuzz. It changes the checkout only with --keep, and to add
# inputs that crashed to fuzz/regressions. An input that crashes makes it fail.
#
# Does not replay the inputs below fuzz/; crates/cairn-testing/tests/corpus.rs does, in every test
# run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly RUNS=${FUZZ_RUNS:-10000000}
readonly SECONDS_EACH=${FUZZ_SECONDS:-3600}
readonly JOBS=${FUZZ_JOBS:-$(nproc)}
# Number of inputs within which the fuzzer must find each planted bug. It needs about a tenth of
# that.
readonly CANARY_RUNS=5000000
# Limits of one input: seconds, and memory in MiB.
readonly LIMITS=(-timeout=20 -rss_limit_mb=1024)
# Largest number of inputs kept for a target, and their largest total size. The largest inputs reach
# most.
readonly KEPT_MAX=100
readonly KEPT_BYTES_MAX=200000

readonly WORK=target/fuzz
HOST=$(rustc --version --verbose | sed -n 's/^host: //p')
readonly HOST
readonly PROGRAM=$PWD/$WORK/$HOST/fuzz/cairn-fuzz
# The flags of `cargo fuzz`, without a sanitizer, because sanitizers need the nightly compiler.
readonly COVERAGE='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares'

build() {
    # With --target the flags do not reach build scripts and procedural macros.
    RUSTFLAGS="${RUSTFLAGS:-} $COVERAGE" cargo build --locked -p cairn-testing --profile fuzz --features fuzzer \
        --bin cairn-fuzz --target "$HOST" --target-dir "$WORK"
}

# Prints "name bytes_max" of the targets that are planted ("true") or not ("false").
targets() {
    sed -n "s/.*Target { name: \"\([a-z_]*\)\",.*bytes_max: \([0-9]*\), planted: $1 }.*/\1 \2/p" \
        crates/cairn-testing/src/fuzz/mod.rs
}

bytes_max_of() {
    { targets false; targets true; } | awk -v name="$1" '$1 == name { print $2 }'
}

run() {
    local target=$1
    shift
    CAIRN_FUZZ_TARGET=$target "$PROGRAM" -max_len="$(bytes_max_of "$target")" "${LIMITS[@]}" "$@"
}

# The fuzzer starts without inputs, so it finds the bug by coverage alone.
find_planted() {
    local target=$1 directory=$WORK/planted/$1
    rm -rf "$directory"
    mkdir -p "$directory/corpus"
    if run "$target" -runs="$CANARY_RUNS" -seed=1 -artifact_prefix="$directory/" "$directory/corpus" \
        >"$directory/log" 2>&1; then
        echo "fuzz: $target: the planted bug was not found in $CANARY_RUNS runs ($directory/log)" >&2
        return 1
    fi
    if ! compgen -G "$directory/crash-*" >/dev/null; then
        echo "fuzz: $target: ended without a crash to show ($directory/log)" >&2
        return 1
    fi
    printf 'fuzz: %s: found after %s runs\n' "$target" \
        "$(sed -n 's/^#\([0-9]*\).*/\1/p' "$directory/log" | tail -n 1)"
}

canary() {
    local target _
    while read -r target _; do
        find_planted "$target"
    done < <(targets true)
}

# Makes the first crash a regression input, shortened for at most a minute.
keep_crash() {
    local target=$1 directory=$WORK/crashes/$1 crash kept
    crash=$(find "$directory" -type f ! -name shortest | sort | head -n 1)
    kept=fuzz/regressions/$target/$(sha1sum "$crash" | cut -c 1-16)
    mkdir -p "fuzz/regressions/$target"
    cp "$crash" "$kept"
    case $crash in
    */crash-*)
        # Minimizing sets a length limit of its own, and aborts if one was given.
        CAIRN_FUZZ_TARGET=$target "$PROGRAM" "${LIMITS[@]}" -minimize_crash=1 -max_total_time=60 \
            -exact_artifact_path="$directory/shortest" "$crash" >"$directory.log" 2>&1 || true
        # An input that does not fail is not the crash.
        if [ -s "$directory/shortest" ] &&
            ! run "$target" "$directory/shortest" >>"$directory.log" 2>&1; then
            cp "$directory/shortest" "$kept"
        fi
        ;;
    esac
    echo "fuzz: $target: $kept fails. Once its cause is mended, keep it: it is replayed in every test run." >&2
    echo "      CAIRN_FUZZ_TARGET=$target $PROGRAM $kept" >&2
}

fuzz() {
    local target=$1 directory=$WORK/crashes/$1 log=$WORK/$1.log
    rm -rf "$directory"
    mkdir -p "$directory" "$WORK/corpus/$target" "fuzz/corpus/$target"
    if run "$target" -runs="$RUNS" -max_total_time="$SECONDS_EACH" -print_final_stats=1 \
        -artifact_prefix="$directory/" "$WORK/corpus/$target" "fuzz/corpus/$target" >"$log" 2>&1; then
        printf 'fuzz: %s: %s inputs, %s a second, %s\n' "$target" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
            "$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")" \
            "$(sed -n 's/^#.*DONE *\(cov: [0-9]*\).*/\1/p' "$log")"
        return 0
    fi
    grep -m 1 -A 1 -E 'panicked at|ERROR: libFuzzer' "$log" >&2 || true
    echo "fuzz: $target failed ($log)" >&2
    if [ -n "$(ls -A "$directory")" ]; then keep_crash "$target"; fi
    return 1
}

# Prints totals of all these targets.
total() {
    cd "$WORK"
    awk '/^stat::number_of_executed_units:/ { inputs += $2 }
        END { printf "fuzz: %d targets, %d inputs\n", ARGC - 1, inputs }' "${@/%/.log}"
}

keep() {
    local target=$1 merged=$WORK/merged/$1 kept=0 bytes=0 input size
    rm -rf "$merged"
    mkdir -p "$merged" "$WORK/corpus/$target" "fuzz/corpus/$target"
    run "$target" -set_cover_merge=1 "$merged" "fuzz/corpus/$target" "$WORK/corpus/$target" >"$merged.log" 2>&1
    rm -rf "fuzz/corpus/$target"
    mkdir -p "fuzz/corpus/$target"
    while read -r size input; do
        kept=$((kept + 1))
        bytes=$((bytes + size))
        if [ "$kept" -gt "$KEPT_MAX" ] || [ "$bytes" -gt "$KEPT_BYTES_MAX" ]; then break; fi
        cp "$input" "fuzz/corpus/$target/$(basename "$input" | cut -c 1-16)"
    done < <(find "$merged" -type f -printf '%s %p\n' | sort -rn)
    printf 'fuzz: %s: %s inputs kept, %s bytes\n' "$target" "$(find "fuzz/corpus/$target" -type f | wc -l)" "$bytes"
}

mode=fuzz
case ${1:-} in
--canary | --keep)
    mode=${1#--}
    shift
    ;;
-*)
    echo "fuzz: unknown option $1 (known: --canary, --keep)" >&2
    exit 2
    ;;
esac
chosen=("$@")
if [ ${#chosen[@]} -eq 0 ]; then
    mapfile -t chosen < <(targets false | cut -d ' ' -f 1)
fi
for target in "${chosen[@]}"; do
    if [ -z "$(bytes_max_of "$target")" ]; then
        echo "fuzz: there is no target $target" >&2
        exit 2
    fi
done
build
if [ "$mode" != keep ]; then canary; fi
if [ "$mode" = canary ]; then exit 0; fi

failed=0
running=0
for target in "${chosen[@]}"; do
    if [ "$running" -ge "$JOBS" ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    case $mode in
    fuzz) fuzz "$target" & ;;
    keep) keep "$target" & ;;
    esac
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
if [ "$mode" = fuzz ]; then total "${chosen[@]}"; fi
exit "$failed"
