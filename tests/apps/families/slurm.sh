# shellcheck shell=bash disable=SC2016,SC2154
#
# Cairn under Slurm's launchers, with --long: srun, sbatch, PMIx and PMI2, on two nodes that this
# machine simulates (slurm.bash).

# shellcheck source=tests/apps/slurm.bash
. "$here/slurm.bash"
begin_slurm || return 0
program life.openmpi mpi_life.c mpicc.openmpi -w
program life.mpich mpi_life.c mpicc.mpich -w

prologue="export SLURM_CONF=$slurm_conf HOME=\$PWD M"'
launches="/usr/bin/python3 $B/../sources/launches.py" mount=$M/mount
cairn() { "$B/cairn" "$@"; }
# Two tasks on each of both nodes; or so many on one.
four() { srun --nodes=2 --ntasks-per-node=2 "$@"; }
two() { srun --nodes=1 --ntasks=2 "$@"; }
# Writes a file, and looks when both tasks of its node have.
cat >look <<\END
touch "$M/mount/f.$SLURM_PROCID"
until [ "$(ls "$M/mount" | wc -l)" = 2 ]; do sleep 0.01; done
echo "node $SLURM_NODEID:" $(ls "$M/mount")
END
'

expect tasks_of_a_node_share_a_store 'node 0: f.0 f.1
node 0: f.0 f.1
node 1: f.2 f.3
node 1: f.2 f.3' <<E
$prologue
four "\$B/cairn" run --mount "\$mount" --discard -- sh look | sort
E

expect stores_of_all_nodes_are_drained_to_directories_of_their_own 'node-0/cairn-manifest.slurm-N.0-n1.json
node-1/cairn-manifest.slurm-N.0-n2.json
node-0/f.0 node-0/f.1 node-1/f.2 node-1/f.3
kept: 0' <<E
$prologue
mkdir "\$D/out"
four "\$B/cairn" run --mount "\$mount" --persist "\$D/out" -- sh look >&2
(cd "\$D/out" && ls */cairn-*.json | sed 's/slurm-[0-9]*/slurm-N/' && echo */f.*)
echo "kept: \$(srun --nodes=2 --ntasks-per-node=1 "\$B/cairn" status --json | grep -c '"job"')"
E

expect stores_of_all_nodes_are_drained_to_one_directory_that_they_share 'cairn-manifest.slurm-N.0-n1.json
cairn-manifest.slurm-N.0-n2.json
f.0 f.1 f.2 f.3
kept: 0' <<E
$prologue
mkdir "\$D/out"
four "\$B/cairn" run --mount "\$mount" --persist "\$D/out" --shared -- sh look >&2
(cd "\$D/out" && ls cairn-*.json | sed 's/slurm-[0-9]*/slurm-N/' && echo f.*)
echo "kept: \$(srun --nodes=2 --ntasks-per-node=1 "\$B/cairn" status --json | grep -c '"job"')"
E

# mpi_under PLUGIN MPI LAUNCHER: LAUNCHER is Cairn's name for it.
mpi_under() {
    local plugin=$1 mpi=$2 launcher=$3
    expect "ranks_by_${plugin}_in_a_store_of_their_node" "$launcher 4 2 2 0 0" <<E
$prologue
export J
four --mpi=$plugin "\$B/cairn" run --job "\$J" --mount "\$mount" --discard -- "\$B/life.$mpi" "\$mount" asks "\$launches"
E
    expect "ranks_by_${plugin}_in_a_batch_job" "$launcher 2 2 2 2 0 finished
$launcher 2 2 2 2 0 finished
no note
kept rank.0 rank.1" <<E
$prologue
export J B M mount launches
cat >batch <<\\END
#!/bin/bash
# The launcher is in the store, then joins it from outside.
run=("\$B/cairn" run --job "\$J" --mount "\$mount" --)
"\${run[@]}" srun --mpi=$plugin "\$B/life.$mpi" "\$mount" 2>told
\$launches
"\${run[@]}" touch "\$mount/kept" 2>>told
srun --mpi=$plugin "\$B/cairn" exec --job "\$J" -- "\$B/life.$mpi" "\$mount"
\$launches | tail -n 1
grep 'other nodes' told || echo no note
"\$B/cairn" exec --job "\$J" -- sh -c 'cd "\$mount" && echo *'
"\$B/cairn" rm "\$J" --discard >&2
END
sbatch --quiet --wait --nodes=1 --ntasks=2 --output=said --error=complained batch
cat said; cat complained >&2
E
}

mpi_under pmix openmpi pmix
mpi_under pmi2 mpich pmi

expect tasks_on_other_nodes_are_told_of '1 told before
2 tasks without a store
exit code 1' <<E
$prologue
cairn run --mount "\$mount" --discard -- srun --nodes=2 --ntasks=2 touch "\$mount/f" 2>told
code=\$?
echo "\$(grep -c 'tasks that srun starts on other nodes find no store' told) told before"
echo "\$(grep -c 'No such device' told) tasks without a store"
echo "exit code \$code"
E

expect job_that_is_cancelled_is_drained 'f.0 f.1' <<E
$prologue
mkdir "\$D/out"
two "\$B/cairn" run --mount "\$mount" --persist "\$D/out" -- sh -c '
    echo whole >"\$M/mount/f.\$SLURM_PROCID"; touch "begun.\$SLURM_PROCID"; exec sleep 100' >&2 &
until [ -e begun.0 ] && [ -e begun.1 ]; do sleep 0.05; done
scancel --signal=TERM "\$(squeue --noheader --format=%i)"
wait
cd "\$D/out" && grep -l whole f.* | paste -sd ' '
E

expect task_that_is_alone_waits_a_moment_for_others 'f
within 10 seconds' <<E
$prologue
two sh -c '[ \$SLURM_PROCID = 1 ] || exec "\$B/cairn" run --mount "\$M/mount" --discard -- sh -c "touch \$M/mount/f; ls \$M/mount"'
[ "\$SECONDS" -gt 20 ] || echo within 10 seconds
E

[ -n "$list_only" ] || stop_slurm
