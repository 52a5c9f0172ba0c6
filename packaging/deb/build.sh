#!/usr/bin/env bash
# Debian package of what `make install` installs, for this machine's architecture.
#
#   packaging/deb/build.sh [--from TREE] [DIR]    writes DIR/cairn_VERSION_ARCH.deb (default: target)
#
# Without --from it installs into a tree of its own, which builds Cairn. It uses dpkg-deb, so that the list
# of files stays in one place, the Makefile. No root. Remove the package with `apt remove cairn`; stores of
# running jobs stay.
set -euo pipefail

repository=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
tree=
[ "${1:-}" != --from ] || { tree=$(readlink -f "${2:?"a tree"}"); shift 2; }
directory=$(readlink -f "${1:-$repository/target}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
mkdir "$root"

if [ -n "$tree" ]; then
    cp -a "$tree/." "$root"
else
    make -C "$repository" install DESTDIR="$root" PREFIX=/usr
fi
version=$("$root/usr/bin/cairn" --version | cut -d ' ' -f 2)
architecture=$(dpkg --print-architecture)
install -d "$root/usr/share/doc/cairn"
cat "$repository/LICENSE-APACHE" "$repository/LICENSE-MIT" >"$root/usr/share/doc/cairn/copyright"
find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} + 2>/dev/null || true
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: cairn
Version: $version
Architecture: $architecture
Section: utils
Priority: optional
Maintainer: The Cairn developers <cairn@localhost>
Installed-Size: $(du -sk "$root" | cut -f 1)
Depends: libc6 (>= 2.34), libgcc-s1
Recommends: fuse3
Description: job-lifetime storage for checkpoint and restart
 Put "cairn run --" before an unmodified program. Its checkpoints are absorbed at
 the speed of memory, survive crashes, and reach the parallel file system in the
 background as plain, verified files.
CONTROL
mkdir -p "$directory"
dpkg-deb --root-owner-group --build "$root" "$directory/cairn_${version}_$architecture.deb"
