#!/usr/bin/env bash
# A real simulation on a durable tier whose node loses its memory in the middle of a checkpoint. The
# store in shared memory is gone, and the tier's file is there. The resumed run ends with the result
# of an undisturbed one.
#
#   demo/memory-lost.sh [DIRECTORY]     results go to DIRECTORY (default: target/memory-lost)
#   CAIRN=PATH                          the command (default: target/release/cairn)
#
# Must stay true: nothing of the first store is left but the tier's file, and the comparison is of
# bytes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cairn=${CAIRN:-$here/../target/release/cairn}
results=${1:-$here/../target/memory-lost}

readonly RANKS=2 CELLS=16 STEPS=400 EVERY=20 KILL_FROM_STEP=200
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1

die() {
    printf 'memory-lost: %s\n' "$*" >&2
    exit 1
}

# lammps ARGUMENTS…: sets `command` to the command line of a run.
lammps() {
    command=(mpirun.openmpi --oversubscribe -np $RANKS lmp -in "$here/in.melt" -log none
        -var cells $CELLS -var every $EVERY -var steps $STEPS "$@")
}

rm -rf "$results"
mkdir -p "$results"/{undisturbed,persist}
results=$(cd "$results" && pwd)
tier=file:$results/tier:512M
lost=memory-lost-$$ job=memory-found-$$

lammps -var dir "$results/undisturbed" -var final "$results/undisturbed/final.dump"
"${command[@]}" >"$results/undisturbed.log" 2>&1 || die "it failed; see $results/undisturbed.log"

lammps -var dir /cairn -var final /cairn/final.dump
"$cairn" run --job "$lost" --tier "$tier" -- "${command[@]}" >"$results/killed.log" 2>&1 &
launcher=$!
"$here/strike.py" "$cairn" "$lost" $launcher $KILL_FROM_STEP >"$results/strike.txt" || die "see $results/killed.log"
wait $launcher || true
# Simulates a power failure: no process shuts down in order, and the memory is lost.
read -r agent store < <("$cairn" status --json "$lost" | python3 -c '
import json, sys
store = json.load(sys.stdin)[0]
print((store.get("agent") or {}).get("pid", 0), store["store"])')
[ "$agent" = 0 ] || kill -KILL "$agent"
rm -rf "$store"

"$cairn" run --job "$job" --tier "$tier" -- true >"$results/found.log" 2>&1 || die "see $results/found.log"
newest=$("$cairn" ls "$job" --newest '*.restart')
! grep -q "into $newest\$" "$results/strike.txt" || die "$newest was killed half-way and is offered for a restart"
lammps -var dir /cairn -var from "$newest" -var final /cairn/final.dump
"$cairn" exec --job "$job" -- "${command[@]}" >"$results/resumed.log" 2>&1 || die "it failed; see $results/resumed.log"
"$cairn" drain "$job" --persist "$results/persist" >>"$results/resumed.log" 2>&1 || die "see $results/resumed.log"
compared=0
for file in "$results"/undisturbed/final.dump "$results"/undisturbed/*.restart; do
    cmp -- "$file" "$results/persist/${file##*/}" || die "NOT THE SAME: ${file##*/}"
    compared=$((compared + 1))
done
"$cairn" rm "$job" --discard
printf 'Memory was lost after "%s"; resumed from %s; same, bit for bit: the final state and %d checkpoints.\n' \
    "$(cat "$results/strike.txt")" "$newest" $((compared - 1))
