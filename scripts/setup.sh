#!/usr/bin/env bash
# Makes sure that what a make target needs is on this machine. Installs missing packages from the
# distribution, and below target what the distribution does not have: object stores, and the
# frameworks of training jobs.
#
#   scripts/setup.sh WHAT…      WHAT: build | test | fuzz | demo | mpi | slurm | allocators | object-stores |
#                               bench | guest | interop | conformance | pages | programs |
#                               applications | ml
#
# Must stay true: silent and done within milliseconds when nothing is missing. Nothing that is there
# is installed again. Without permission to install, it changes nothing and prints one message with
# the packages and the command.
#
# Does not install Rust. It checks the version and says what to do.
set -u

readonly RUST_MINIMUM=1.85
# A server for the archive, installed by cargo. pip installs another one and a client from
# object-stores.txt.
readonly S3S_VERSION=0.11.1

fail() {
    printf 'setup: %s\n' "$1" >&2
    exit 1
}

# One line per need: the package, then the proof that it is there (a command, a path, or a library).
needs_of() {
    case $1 in
    build) printf '%s\n' 'gcc cc' 'libc6-dev /usr/include/stdio.h' ;;
    demo) printf '%s\n' 'lammps lmp' 'openmpi-bin mpirun.openmpi' 'python3 /usr/bin/python3' ;;
    test)
        printf '%s\n' 'python3 /usr/bin/python3' 'g++ c++' 'tar tar' 'gzip gzip' 'util-linux setpriv' \
            'python3-numpy /usr/lib/python3/dist-packages/numpy/__init__.py' 'diffutils diff' 'fio fio'
        ;;
    programs)
        printf '%s\n' 'python3 /usr/bin/python3' 'lammps lmp' 'gromacs gmx' 'hdf5-tools h5clear' \
            'gromacs-data /usr/share/gromacs/top/spc216.gro' 'python3-h5py /usr/lib/python3/dist-packages/h5py' \
            'python3-netcdf4 /usr/lib/python3/dist-packages/netCDF4' \
            'python3-torch /usr/lib/python3/dist-packages/torch'
        ;;
    applications)
        printf '%s\n' 'python3 /usr/bin/python3' 'lammps lmp' 'git git' 'rsync rsync' 'gfortran gfortran' 'make make' \
            'quantum-espresso pw.x' 'quantum-espresso-data /usr/share/espresso/pseudo' 'r-base-core Rscript' \
            'octave octave-cli' 'redis-server redis-server' 'rocksdb-tools ldb' 'default-jre-headless java' 'nodejs node' \
            'python3-h5py /usr/lib/python3/dist-packages/h5py' 'python3-zarr /usr/lib/python3/dist-packages/zarr' \
            'python3-netcdf4 /usr/lib/python3/dist-packages/netCDF4' \
            'python3-pandas /usr/lib/python3/dist-packages/pandas' \
            'python3-torch /usr/lib/python3/dist-packages/torch'
        ;;
    fuzz) printf '%s\n' 'g++ c++' ;;
    mpi)
        printf '%s\n' 'openmpi-bin mpirun.openmpi' 'libopenmpi-dev /usr/share/doc/libopenmpi-dev' 'gfortran gfortran' \
            'mpich mpiexec.mpich' 'libmpich-dev mpicc.mpich' 'libhdf5-openmpi-dev h5pcc.openmpi' \
            'libhdf5-mpich-dev h5pcc.mpich' 'libpnetcdf-dev /usr/include/pnetcdf.h' \
            'python3-mpi4py /usr/lib/python3/dist-packages/mpi4py/__init__.py'
        ;;
    slurm)
        printf '%s\n' 'slurmctld slurmctld' 'slurmd slurmd' 'slurm-client srun' 'munge munged' 'util-linux unshare' \
            'slurm-wlm-basic-plugins /usr/share/doc/slurm-wlm-basic-plugins' 'gcc cc' \
            'libslurm-dev /usr/include/slurm/spank.h'
        ;;
    allocators)
        printf '%s\n' 'libjemalloc2 libjemalloc.so.2' 'libtcmalloc-minimal4 libtcmalloc_minimal.so.4' \
            'libmimalloc2.0 libmimalloc.so.2'
        ;;
    object-stores) printf '%s\n' 'gcc cc' 'python3 /usr/bin/python3' 'python3-venv /usr/share/doc/python3-venv' ;;
    bench) printf '%s\n' 'fio fio' ;;
    pages) printf '%s\n' 'chromium chromium' ;;
    conformance) printf '%s\n' 'fio fio' 'stress-ng stress-ng' ;;
    guest) printf '%s\n' 'qemu-system-x86 qemu-system-x86_64' 'cpio cpio' 'python3 /usr/bin/python3' \
        'e2fsprogs mkfs.ext4' ;;
    interop) printf '%s\n' 'qemu-system-x86 qemu-system-x86_64' 'e2fsprogs /sbin/mkfs.ext4' 'cpio cpio' 'kmod /sbin/modprobe' 'python3 /usr/bin/python3' 'fio fio' ;;
    ml | wheel) printf '%s\n' 'python3 /usr/bin/python3' 'python3-venv /usr/share/doc/python3-venv' 'binutils objdump' ;;
    *) fail "unknown need '$1' (known: build, test, fuzz, demo, mpi, slurm, allocators, object-stores, bench, guest, interop, conformance, pages, programs, applications, ml, wheel)" ;;
    esac
}

is_there() {
    case $1 in
    /*) [ -e "$1" ] ;;
    *.so.*) /sbin/ldconfig -p | grep -q "^[[:space:]]*$1 " ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

# Prints the prefix that makes a command run as root: empty for root, "sudo -n" where that needs no
# password.
elevation() {
    if [ "$(id -u)" -eq 0 ]; then
        return 0
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        echo 'sudo -n'
    else
        return 1
    fi
}

install_packages() {
    local root
    command -v apt-get >/dev/null 2>&1 ||
        fail "these Debian packages (or your distribution's like) are missing: $*. Install them, then run this again."
    root=$(elevation) ||
        fail "these packages are missing and this user may not install them: $*
Run: sudo apt-get update && sudo apt-get install --no-install-recommends $*"
    printf 'setup: installing %s\n' "$*" >&2
    # $root is empty or the two words "sudo -n": it has to split.
    # shellcheck disable=SC2086
    { $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update &&
        $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
            install --no-install-recommends "$@"; } >/dev/null ||
        fail "apt-get could not install: $*. Its message is above; mend that, or install them by hand, and run this again."
}

check_rust() {
    local version
    command -v cargo >/dev/null 2>&1 ||
        fail "cargo is missing. Cairn needs Rust $RUST_MINIMUM or newer: install it with rustup, or from your
distribution if that is new enough, and run this again."
    version=$(cargo --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$RUST_MINIMUM" "$version" | sort -V | head -n 1)" = "$RUST_MINIMUM" ] ||
        fail "cargo is version $version, Cairn needs $RUST_MINIMUM or newer. With rustup: rustup update stable"
}

# The formatter and the linter come with the distribution's Rust or with rustup's, whichever is in
# use.
check_rust_tools() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
    if command -v rustup >/dev/null 2>&1; then
        rustup component add rustfmt clippy >&2 || fail "run: rustup component add rustfmt clippy"
    else
        install_packages rustfmt rust-clippy
    fi
}

# Each with a record of its versions, written last, so an interrupted installation is repeated.
install_object_stores() {
    local here stores wanted
    here=$(cd "$(dirname "$0")" && pwd)
    stores=$here/../target/object-stores
    wanted="s3s-fs $S3S_VERSION $(cat "$here/object-stores.txt")"
    [ "$(cat "$stores/versions" 2>/dev/null)" != "$wanted" ] || return 0
    printf 'setup: installing s3s-fs, moto and boto3 below target/object-stores\n' >&2
    rm -rf "$stores/venv" && mkdir -p "$stores" && /usr/bin/python3 -m venv "$stores/venv" &&
        "$stores/venv/bin/pip" install -q --disable-pip-version-check -r "$here/object-stores.txt" >&2 ||
        fail "pip could not install what is in scripts/object-stores.txt; its message is above"
    CARGO_TARGET_DIR=$stores/build cargo install -q --locked --force --root "$stores" --version "$S3S_VERSION" \
        --features binary s3s-fs >&2 || fail "cargo could not install s3s-fs $S3S_VERSION; its message is above"
    rm -rf "$stores/build"
    echo "$wanted" >"$stores/versions"
}

# 5.5 GB, most of them torch.
install_ml() {
    local here venv wanted
    here=$(cd "$(dirname "$0")" && pwd)
    venv=$here/../target/ml-venv
    wanted=$(cat "$here/../tests/ml/requirements.txt")
    [ "$(cat "$venv/versions" 2>/dev/null)" != "$wanted" ] || return 0
    printf 'setup: installing the frameworks of training jobs below target/ml-venv\n' >&2
    rm -rf "$venv" && mkdir -p "$here/../target" && /usr/bin/python3 -m venv "$venv" &&
        "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/../tests/ml/requirements.txt" >&2 ||
        fail "pip could not install what is in tests/ml/requirements.txt; its message is above"
    echo "$wanted" >"$venv/versions"
}

[ $# -gt 0 ] || fail "say what for: scripts/setup.sh build|test|fuzz|demo…"
missing=()
for what in "$@"; do
    needs=$(needs_of "$what") || exit 1
    while read -r package proof; do
        is_there "$proof" || missing+=("$package")
    done <<<"$needs"
done
if [ ${#missing[@]} -gt 0 ]; then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    install_packages "${missing[@]}"
fi
for what in "$@"; do
    case $what in
    build) check_rust ;;
    test) check_rust_tools ;;
    object-stores) check_rust && install_object_stores ;;
    ml) install_ml ;;
    esac
done
