# shellcheck shell=bash disable=SC2016,SC2154
# LAMMPS under MPI, where it is installed (make demo installs it): checkpoints, dumps and restarts.

if ! command -v lmp >/dev/null || ! command -v mpirun.openmpi >/dev/null; then
    skip simulation/lammps "LAMMPS or OpenMPI is not installed (scripts/setup.sh demo)"
    return
fi
[ -n "$list_only" ] || cp "$repository/demo/in.melt" "$scratch/bin/"

# Sets `launcher` to a function that runs N ranks. As root, OpenMPI needs two confirmations.
read -r -d '' launcher <<'E'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 HOME=$PWD
melt() {
    local ranks=$1
    shift
    mpirun.openmpi --oversubscribe -np "$ranks" lmp -in "$B/in.melt" -log none -screen none \
        -var cells 6 -var every 10 -var steps 40 "$@"
}
E

scenario -u one_rank_restarts <<E
$launcher
melt 1 -var dir "\$D" -var final "\$D/final"
mkdir "\$D/again"
melt 1 -var dir "\$D/again" -var from "\$D/melt.20.restart" -var final "\$D/again/final"
cmp "\$D/final" "\$D/again/final" && echo 'the restarted run ends where the undisturbed one does'
E

scenario -u four_ranks_restart_on_two <<E
$launcher
melt 4 -var dir "\$D" -var final "\$D/final"
mkdir "\$D/two"
melt 2 -var dir "\$D/two" -var from "\$D/melt.30.restart" -var final "\$D/two/final"
E

scenario a_file_per_rank_and_two_that_take_turns <<E
$launcher
cd "\$D" || exit
cat >in.files <<'END'
units           lj
lattice         fcc 0.8442
region          box block 0 6 0 6 0 6
create_box      1 box
create_atoms    1 box
mass            1 1.0
velocity        all create 2.4 71933 loop geom
pair_style      lj/cut 2.5
pair_coeff      1 1 1.0 1.0
fix             1 all nve
atom_modify     sort 0 0.0
restart         10 each.*.%.restart
restart         7 odd.restart even.restart
dump            1 all atom 10 trajectory.gz
dump            2 all custom 10 snapshot.*.text id x y z
dump            3 all xyz 20 movie.xyz
log             log.lammps
run             40
write_data      state.data nofix
END
mpirun.openmpi --oversubscribe -np 4 lmp -in in.files -screen none
grep -c Step log.lammps
zcat trajectory.gz | wc -l
rm log.lammps trajectory.gz
E
