#!/usr/bin/env bash
# Cairn's main job on a real simulation: LAMMPS checkpoints into memory, is killed in the middle of
# a checkpoint, restarts from the store, and ends with the result of an undisturbed run.
#
#   demo/run.sh [DIRECTORY]     results go to DIRECTORY (default: target/demo)
#   CAIRN=PATH                  the command (default: target/release/cairn)
#
# Must stay true: every comparison is of bytes, and the first one that fails ends the demo with exit
# code 1. Nothing needs root. It takes under three minutes on two cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cairn=${CAIRN:-$here/../target/release/cairn}
results=${1:-$here/../target/demo}

readonly RANKS=4 CELLS=30 KILL_FROM_STEP=100
readonly TIMED_CHECKPOINTS=12 TIMED_ROUNDS=3
steps=160 every=20
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

# lammps RANKS -var …: sets `command` to the command line of a run of $steps steps.
lammps() {
    local ranks=$1
    shift
    command=(mpirun.openmpi --oversubscribe -np "$ranks" lmp -in "$here/in.melt" -log none
        -var cells "$CELLS" -var every "$every" -var steps "$steps" "$@")
}

# same WHAT FILE FILE
same() {
    cmp -- "$2" "$3" || die "NOT THE SAME: $1 ($2, $3)"
    say "   same, bit for bit: $1"
}

[ -x "$cairn" ] || die "there is no $cairn; run: make build"
rm -rf "$results"
mkdir -p "$results"/{undisturbed,persist,disk}
results=$(cd "$results" && pwd)
undisturbed=demo-undisturbed-$$ job=demo-$$
started=$SECONDS

step "1. Undisturbed: $RANKS ranks, $((4 * CELLS ** 3)) atoms, $steps steps, a checkpoint every $every steps"
lammps $RANKS -var dir /cairn -var final /cairn/final.dump
"$cairn" run --job "$undisturbed" --persist "$results/undisturbed" -- "${command[@]}" >"$results/undisturbed.log" 2>&1 ||
    die "it failed; see $results/undisturbed.log"
checkpoints=("$results"/undisturbed/*.restart)
say "   finished; ${#checkpoints[@]} checkpoints and the final state were drained to $results/undisturbed"

step "2. Killed: the same run, SIGKILL to every rank in the middle of a checkpoint"
"$cairn" run --job "$job" --persist "$results/persist" -- "${command[@]}" >"$results/killed.log" 2>&1 &
launcher=$!
"$here/strike.py" "$cairn" "$job" $launcher $KILL_FROM_STEP >"$results/strike.txt" || die "see $results/killed.log"
say "   $(cat "$results/strike.txt")"
code=0
wait $launcher || code=$?
[ $code -ne 0 ] || die "cairn run reported success for a killed command"
newest=$("$cairn" ls "$job" --newest '*.restart')
! grep -q "into $newest\$" "$results/strike.txt" || die "$newest was killed half-way and is offered for a restart"
say "   cairn run ended with exit code $code and kept the store; newest clean checkpoint: $newest"

step "3. Resumed from memory"
# First the same checkpoint on two ranks, from Cairn here and later from its drained copy on the
# disk.
"$cairn" exec --job "$job" -- mkdir /cairn/two
lammps 2 -var dir /cairn/two -var from "$newest" -var final /cairn/two/final.dump
"$cairn" exec --job "$job" -- "${command[@]}" >"$results/two.log" 2>&1 || die "it failed; see $results/two.log"
# Then the run itself to its end, and checksums of the store's files before the store goes away.
lammps $RANKS -var dir /cairn -var from "$newest" -var final /cairn/final.dump
"$cairn" run --job "$job" -- bash -ec "$(printf '%q ' "${command[@]}")
    cd /cairn
    sha256sum -- *.restart final.dump two/* >'$results/store.sha256'" >"$results/resumed.log" 2>&1 ||
    die "it failed; see $results/resumed.log"
lammps 2 -var dir "$results/disk" -var from "$results/persist/${newest##*/}" -var final "$results/disk/final.dump"
"${command[@]}" >"$results/disk.log" 2>&1 || die "it failed; see $results/disk.log"
same "final state of the killed and resumed run, and of the undisturbed run" "$results"/{persist,undisturbed}/final.dump
for checkpoint in "${checkpoints[@]}"; do
    cmp -s "$checkpoint" "$results/persist/${checkpoint##*/}" || die "NOT THE SAME: ${checkpoint##*/}"
done
say "   same, bit for bit: all ${#checkpoints[@]} checkpoints of both runs"
same "two ranks restarted from Cairn, and from the drained copy on the disk" "$results"/{persist/two,disk}/final.dump
(cd "$results/persist" && sha256sum --quiet -c "$results/store.sha256") || die "drained copies differ from the store"
say "   same: sha256 of $(wc -l <"$results/store.sha256") files in the store, and of their drained copies"

step "4. What a checkpoint costs the ranks, in ms ($TIMED_CHECKPOINTS checkpoints a run, $TIMED_ROUNDS runs of each kind, taking turns)"
# timed RESULT DIRECTORY NAMES COMMAND…: output time per checkpoint, as LAMMPS reports it.
timed() {
    local result=$1 directory=$2 names=$3 every=1 steps=$TIMED_CHECKPOINTS
    shift 3
    lammps $RANKS -var dir "$directory" -var files "${names//@/$directory}"
    "$@" "${command[@]}" 2>>"$results/timed.log" |
        awk -v n=$TIMED_CHECKPOINTS '$1 == "Output" { printf "%.3f\n", $7 * 1000 / n; found = 1 } END { exit !found }' \
            >>"$result" || die "a timed run failed: $* ${command[*]}; see $results/timed.log"
}
shared=$(mktemp -d /dev/shm/demo.XXXXXX) || die "there is no /dev/shm to compare with"
trap 'rm -rf "$shared"' EXIT
mkdir "$results/timed"
for ((round = 0; round < TIMED_ROUNDS; round++)); do
    for kind in new turns; do
        names='@/melt.*.restart'
        [ $kind = new ] || names='@/a.restart @/b.restart'
        timed "$results/ms.Cairn.$kind" /cairn "$names" \
            "$cairn" run --job "demo-timed-$$-$round-$kind" --discard --
        timed "$results/ms.tmpfs.$kind" "$shared" "$names"
        timed "$results/ms.disk.$kind" "$results/timed" "$names"
        rm -f "$shared"/* "$results/timed"/*
    done
done
summary() {
    sort -n "$1" | awk '{ ms[NR] = $1 }
        END { printf "%7.2f (%.2f to %.2f)", ms[int((NR + 1) / 2)], ms[1], ms[NR] }'
}
bytes=$(stat -c %s "$results/undisturbed/melt.$every.restart")
printf '   %-8s %-30s %s\n' '' 'each a new file' 'two files that take turns'
for medium in Cairn tmpfs disk; do
    printf '   %-8s %-30s %s\n' $medium "$(summary "$results/ms.$medium.new")" "$(summary "$results/ms.$medium.turns")"
done
say "   Median (lowest to highest). A checkpoint is $((bytes / 1000)) kB, gathered and written by rank 0 while the"
say "   others wait, with the gathering counted. Nothing is fsynced: the disk's figure is that of its cache."

say ""
say "Everything is equal. $((SECONDS - started)) s. Files and logs: $results"
