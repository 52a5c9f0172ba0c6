#!/usr/bin/env bash
# Builds the wheel of python/build.py for systems with glibc 2.28 or newer, as RHEL 8 has it.
#
#   python/build-old-glibc.sh [DIST]    needs python3 with venv, binutils, and rustup's standard library
#
# The compiler's own C library is newer, so binaries linked against it do not start there. Zig has the
# symbols of every glibc version, and cargo-zigbuild lets cargo link with it; both come from the Python
# package index, into target/wheel-venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

glibc=2.28 venv=target/wheel-venv triple=$(uname -m)-unknown-linux-gnu
wanted='ziglang==0.17.1 cargo-zigbuild==0.24.1'
if [ "$(cat $venv/wanted 2>/dev/null)" != "$wanted" ]; then
    python3 -m venv $venv
    # shellcheck disable=SC2086 # two packages
    $venv/bin/pip install -q --disable-pip-version-check $wanted
    echo "$wanted" >$venv/wanted
fi
# Zig's linker does not know -z initfirst; build.py sets the flag.
CAIRN_WITHOUT_INITFIRST=1 PATH=$PWD/$venv/bin:$PATH CARGO_TARGET_DIR=target/wheel \
    "${CARGO:-cargo}" zigbuild --release --locked --target "$triple.$glibc" -p cairn-cli -p cairn-preload
python/build.py --binaries "target/wheel/$triple/release" --dist "${1:-python/dist}"
