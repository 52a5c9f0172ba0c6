#!/usr/bin/env bash
# Runs a script on a virtual machine: two memory nodes, control groups version 2, no other
# processes.
#
#   scripts/guest.sh SCRIPT…    each in a fresh guest; exits with 0 if all succeed
#
# A script with a line `# machine: PARAMETERS` gets these kernel parameters and may reset its
# machine. Then it is started again, on whatever the reset left.
#
# The guest is a Debian kernel under QEMU that sees this machine's files read-only, so it has the
# same programs at the same paths; /tmp and /dev/shm are its own. Scripts find the command in $CAIRN
# and this repository in $TOP.
#
# Must stay true: nothing is written outside target/guest, no kernel is installed, and a guest that
# hangs is ended.
#
# Does not build Cairn.
set -eu

readonly GUEST_SECONDS_MAX=${GUEST_SECONDS_MAX:-300}
# Not KVM, even where it is allowed: inside another virtual machine it may hang.
readonly GUEST_ACCELERATOR=${GUEST_ACCELERATOR:-tcg}
# In order of dependency; a module that is built into the kernel has no file.
readonly MODULES=(virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet
    9pnet_virtio 9p libnvdimm nd_btt nd_pmem nd_e820 crc32c_generic crc16 mbcache jbd2 ext4)

top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/target/guest
export CAIRN=${CAIRN:-$top/target/debug/cairn}

fail() {
    printf 'guest: %s\n' "$1" >&2
    exit 1
}

# Fetches the kernel and busybox from the distribution, and packs the guest's initial file system.
prepare() {
    [ ! "$work/start.cpio" -nt "$0" ] || return 0
    rm -rf "$work" && mkdir -p "$work/packages" "$work/tree/bin" "$work/tree/modules" "$work/tree/host"
    local kernel module
    kernel=$(apt-cache show linux-image-amd64 | sed -n 's/^Depends: \([^ ,]*\).*/\1/p' | head -n 1)
    [ -n "$kernel" ] || fail 'the package linux-image-amd64 is unknown here; run: apt-get update'
    (cd "$work/packages" && apt-get -qq -o APT::Sandbox::User=root download "$kernel" busybox-static) ||
        fail 'kernel and busybox cannot be downloaded; apt-get says why above'
    for package in "$work"/packages/*.deb; do
        dpkg -x "$package" "$work/unpacked"
    done
    cp "$work"/unpacked/boot/vmlinuz-* "$work/kernel"
    cp "$work/unpacked/bin/busybox" "$work/tree/bin/"
    for module in "${MODULES[@]}"; do
        find "$work/unpacked/lib/modules" -name "$module.ko" -exec cp {} "$work/tree/modules/" \;
    done
    rm -r "$work/unpacked" "$work/packages"
    write_init >"$work/tree/init"
    chmod 755 "$work/tree/init"
    (cd "$work/tree" && find . | cpio -o -H newc --quiet >"$work/new.cpio") && mv "$work/new.cpio" "$work/start.cpio"
}

# The guest's first process. Its last line of output is the script's exit code.
write_init() {
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys && mount -t proc proc /proc && mount -t sysfs sysfs /sys
option() { sed -n "s/.*guest\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
INIT
    printf 'for module in %s; do\n' "${MODULES[*]}"
    cat <<'INIT'
    [ ! -e "/modules/$module.ko" ] || insmod "/modules/$module.ko"
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host &&
    mount -t devtmpfs dev /host/dev && mkdir -p /host/dev/shm /host/dev/pts &&
    mount -t tmpfs -o mode=1777 tmpfs /host/dev/shm && mount -t tmpfs -o mode=1777 tmpfs /host/tmp &&
    mount -t proc proc /host/proc && mount -t sysfs sysfs /host/sys &&
    mount -t cgroup2 cgroup2 /host/sys/fs/cgroup &&
    PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C.UTF-8 HOME=/tmp \
        TOP=$(option top) CAIRN=$(option cairn) chroot /host /bin/bash "$(option script)"
echo "guest: exit code $?"
poweroff -f
INIT
}

# Runs one script and shows its output as it arrives.
run() {
    local script status parameters resets=-no-reboot log=$work/console.log
    script=$(realpath "$1")
    parameters=$(sed -n 's/^# machine: //p' "$script")
    [ -z "$parameters" ] || resets=
    printf 'guest: %s\n' "${script#"$top"/}"
    timeout -k 5 "$GUEST_SECONDS_MAX" qemu-system-x86_64 -nodefaults -no-user-config $resets -display none \
        -machine q35 -accel "$GUEST_ACCELERATOR" -cpu max -smp 2 -m 2G \
        -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
        -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
        -kernel "$work/kernel" -initrd "$work/start.cpio" \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 $parameters guest.top=$top guest.cairn=$CAIRN guest.script=$script" \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        -serial stdio </dev/null 2>&1 | tr -d '\r' | tee "$log" || true
    status=$(sed -n 's/^guest: exit code \([0-9]*\)$/\1/p' "$log" | tail -n 1)
    [ "${status:-1}" -eq 0 ] || fail "$1 failed in the guest (exit code ${status:-none}); its output is above"
}

[ $# -gt 0 ] || fail 'say which scripts: scripts/guest.sh SCRIPT…'
[ -x "$CAIRN" ] || fail "there is no $CAIRN; run: cargo build -p cairn-preload -p cairn-cli"
prepare
for script in "$@"; do
    run "$script"
done
