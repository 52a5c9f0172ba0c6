# shellcheck shell=bash disable=SC2016,SC2154
#
# MPI: files that ranks share through MPI-IO, and the life of ranks as Cairn sees it. Uses Open MPI,
# where it is installed; with --long also MPICH, parallel HDF5, PnetCDF and mpi4py (scripts/setup.sh
# mpi installs them all).

# Sets $prologue to the script text that defines `ranks N COMMAND…`.
prologue_of() {
    prologue="export TAG=${scratch##*.}"'
export HOME=$PWD OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
launches="/usr/bin/python3 $B/../sources/launches.py"'
    case $1 in
    openmpi) prologue+='
ranks() { mpirun.openmpi --oversubscribe -np "$@"; }' ;;
    mpich) prologue+='
ranks() { mpiexec.mpich -np "$@"; }' ;;
    esac
}

# life_under MPI LAUNCHER: properties of ranks under each MPI; LAUNCHER is Cairn's name for its
# launcher.
life_under() {
    local mpi=$1 launcher=$2 prologue
    prologue_of "$mpi"
    begin_family "mpi_$mpi"
    program "life.$mpi" mpi_life.c "mpicc.$mpi" -w
    program "life.$mpi.so" mpi_life.c "mpicc.$mpi" -w -shared -fPIC -DMODULE
    program life_loader mpi_life.c cc -w -DLOADER
    program "io.$mpi" mpi_io.c "mpicc.$mpi" -w

    expect_on_cairn ranks_are_known_until_they_finalise "$launcher 3 3 3 0 0
$launcher 3 3 3 3 0 finished
$launcher 3 3 3 0 3
rank.0 rank.1 rank.2" <<E
$prologue
ranks 3 "\$B/life.$mpi" "\$D" asks "\$launches"
ranks 3 "\$B/life.$mpi" "\$D" dies 1 >&2 && echo 'nobody noticed that a rank was killed'
\$launches
cd "\$D" && echo rank.*
E
    expect_on_cairn loaded_for_one_module_alone "$launcher 2 2 2 2 0 finished" <<E
$prologue
ranks 2 "\$B/life_loader" "\$B/life.$mpi.so" && \$launches
E
    expect_on_cairn rank_has_a_tree_of_its_own "rank.0
$launcher 2 2 2 2 0 finished" --scope rank <<E
$prologue
ranks 2 "\$B/life.$mpi" "\$M" asks 'ls "\$M"'
\$launches
E
    # "cairn exec" starts each rank, and the launcher does not know Cairn.
    expect ranks_join_a_job_one_by_one "$launcher 3 3 3 3 0 finished
kept rank.0 rank.1 rank.2" <<E
$prologue
export M
"\$B/cairn" run --job "\$J" --mount "\$M/mount" -- touch "\$M/mount/kept"
ranks 3 "\$B/cairn" exec --job "\$J" -- "\$B/life.$mpi" "\$M/mount"
\$launches
"\$B/cairn" exec --job "\$J" -- bash -c 'cd "\$M/mount" && echo *'
"\$B/cairn" rm "\$J" --discard >&2
E
    # After a rank has finalised MPI with its file open, the tier's file holds what a crash of the
    # node would leave.
    expect files_of_a_finalised_rank_are_durable '100001 bytes' <<E
$prologue
export -f ranks
export D M
"\$B/cairn" run --job "\$J" --discard --mount "\$M/mount" --tier "file:\$D/tier:64M" -- \
    bash -c 'ranks 1 "\$B/life.$mpi" "\$M/mount" leaves "cp --sparse=always \$D/tier \$D/crash"'
"\$B/cairn" run --job "\$J-found" --discard --mount "\$M/mount" --tier "file:\$D/crash:64M" -- \
    stat -c '%s bytes' "\$M/mount/rank.0"
E
    # On a durable tier, blocks that ranks write to in turn are checksummed, written behind and read
    # ahead.
    expect shared_files_on_a_tier_in_a_file 'the same files' <<E
$prologue
export -f ranks
export D M
mkdir "\$D/disk"
ranks 2 "\$B/io.$mpi" "\$D/disk" unlocked >"\$D/said.disk"
"\$B/cairn" run --job "\$J" --discard --mount "\$M/mount" --tier "file:\$D/tier:64M" -- bash -c '
    mkdir "\$M/mount/files"
    ranks 2 "\$B/io.$mpi" "\$M/mount/files" unlocked >"\$D/said.cairn"
    diff -r "\$D/disk" "\$M/mount/files" && diff "\$D"/said.* && echo the same files'
E
    scenario launcher_and_its_commands <<E
$prologue
ranks 3 sh -c 'echo one of three >"\$D/f.\$\$"' && cat "\$D"/f.* && rm "\$D"/f.*
echo input | ranks 1 cat
ranks 2 sh -c 'exit 7' >/dev/null 2>&1
echo "exit \$?"
cd "\$D" && ranks 2 touch here && ls
E
}

# fortran_under MPI LAUNCHER: the same for both Fortran modules.
fortran_under() {
    local mpi=$1 launcher=$2 prologue
    prologue_of "$mpi"
    command -v "mpif90.$mpi" >/dev/null || {
        skip "mpi/$mpi/fortran" "there is no mpif90.$mpi"
        return
    }
    program "fortran.$mpi" mpi_fortran.f90 "mpif90.$mpi" -w -cpp
    program "fortran_08.$mpi" mpi_fortran.f90 "mpif90.$mpi" -w -cpp -DMODERN
    scenario fortran <<E
$prologue
ranks 3 "\$B/fortran.$mpi" "\$D" && mv "\$D/fortran" "\$D/with_mpi"
ranks 3 "\$B/fortran_08.$mpi" "\$D"
E
    expect_on_cairn ranks_in_fortran "mpi: 0 wrong
mpi_f08: 0 wrong
$launcher 2 2 2 2 0 finished
$launcher 2 2 2 2 0 finished" <<E
$prologue
ranks 2 "\$B/fortran.$mpi" "\$D" && ranks 2 "\$B/fortran_08.$mpi" "\$D"
\$launches
E
}

# shared_file [-u] NAME MPI RANKS PROGRAM [OPTION…] [-- ARGUMENT…]: an MPI-IO program; the files and
# output must be the same as on a disk.
shared_file() {
    local unprivileged='' prologue
    [ "$1" != -u ] || { unprivileged=-u && shift; }
    local name=$1 count=$3 program=$4 options=()
    prologue_of "$2"
    shift 4
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        options+=("$1") && shift
    done
    # shellcheck disable=SC2086
    scenario $unprivileged "$name" <<<"$prologue
ranks $count ${options[*]} \"\$B/$program\" \"\$D\" ${*:2}"
}

# The compiler's command comes with mpirun; the files it needs to compile do not.
if command -v mpirun.openmpi >/dev/null && echo '#include <mpi.h>' | mpicc.openmpi -x c -c -o /dev/null - 2>/dev/null; then
    life_under openmpi openmpi
    fortran_under openmpi openmpi
    # OMPIO takes no locks in atomic mode.
    shared_file -u ompio openmpi 4 io.openmpi --mca io ompio -- unlocked
    shared_file romio openmpi 4 io.openmpi --mca io romio321
else
    skip mpi/openmpi "Open MPI or what programs for it are compiled with is not installed (scripts/setup.sh mpi)"
fi

if [ -z "$long" ]; then
    skip mpi/mpich "runs with --long (make apps), as do HDF5, PnetCDF and mpi4py"
    return
fi

life_under mpich pmi
fortran_under mpich pmi
# Ranks of MPICH wait by spinning, so use no more of them than a small machine has processors.
shared_file -u romio mpich 2 io.mpich

begin_family mpi_libraries
program hdf5.openmpi mpi_hdf5.c mpicc.openmpi -w -Wl,--no-as-needed -I/usr/include/hdf5/openmpi -lhdf5_openmpi
program hdf5.mpich mpi_hdf5.c mpicc.mpich -w -Wl,--no-as-needed -I/usr/include/hdf5/mpich -lhdf5_mpich
shared_file hdf5_ompio openmpi 3 hdf5.openmpi --mca io ompio
shared_file hdf5_romio openmpi 3 hdf5.openmpi --mca io romio321
shared_file hdf5_mpich mpich 2 hdf5.mpich
program netcdf.openmpi mpi_netcdf.c mpicc.openmpi -w -Wl,--no-as-needed -lpnetcdf
shared_file netcdf_ompio openmpi 4 netcdf.openmpi --mca io ompio
shared_file netcdf_romio openmpi 4 netcdf.openmpi --mca io romio321

prologue_of openmpi
scenario mpi4py <<E
$prologue
cat >"\$D/program.py" <<'END'
import sys
import numpy
from mpi4py import MPI
ranks, path = MPI.COMM_WORLD, sys.argv[1] + "/numbers"
file = MPI.File.Open(ranks, path, MPI.MODE_CREATE | MPI.MODE_RDWR)
numbers = numpy.arange(5000, dtype="d") * (ranks.rank + 1)
file.Write_at_all(ranks.rank * numbers.nbytes, numbers)
file.Close()
if ranks.rank == 0:
    print(numpy.fromfile(path).sum())
END
ranks 3 /usr/bin/python3 -B "\$D/program.py" "\$D"
E
expect_on_cairn mpi4py_ranks 'openmpi 2 2 2 2 0 finished' <<E
$prologue
ranks 2 /usr/bin/python3 -c 'from mpi4py import MPI' && \$launches
E
