#!/usr/bin/env bash
# Tests Cairn's NVMe/TCP initiator on the Linux kernel's target, and the kernel's initiator on
# `cairn target`, in a virtual machine under QEMU.
#
#   scripts/interop.sh [TEST…]     those tests of crates/cairn-target/tests/nvme and crates/cairn-cli/tests/remote.rs, or all
#
# Before it exports anything, the guest uses namespaces that this machine exports, as an initiator.
# It writes to one, reads it back and discards it, with and without digests. It also mounts an ext4,
# with and without digests and authentication: fio verifies its writes there, and files written are
# there after the next mount. e2fsck then checks the file system. fio comes from this machine's
# files, which the guest sees read-only.
#
# The guest's target then exports two namespaces of 64 MiB under the name that the tests expect: a
# RAM disk with blocks of 512 bytes, and a file in memory with blocks of 4 KiB. Under a second name
# it exports both to hosts that authenticate (DH-HMAC-CHAP), one host for each hash and group, as
# crates/cairn-target/tests/nvme/authentication.rs expects. The kernel of Debian 12 cannot
# authenticate, so there the script uses the kernel of its backports.
#
# Must stay true: nothing is written outside target/interop, and no kernel is installed. The guest
# ends with this script, whatever happens, and by itself after GUEST_SECONDS_MAX.
#
# Does not measure: a guest without hardware support moves some 20 MiB/s.
set -eu

readonly GUEST_SECONDS_MAX=${GUEST_SECONDS_MAX:-600}
# Not KVM, even where it is allowed: inside another virtual machine it may hang.
readonly GUEST_ACCELERATOR=${GUEST_ACCELERATOR:-tcg}
readonly START_SECONDS_MAX=300
readonly SUBSYSTEM=nqn.2026-11.io.cairn:interop
# The guest's identity as a host, and the secrets of the guest and of `cairn target`.
readonly HOST_ID=11111111-2222-3333-4444-555555555555
readonly HOST=nqn.2014-08.org.nvmexpress:uuid:$HOST_ID
readonly HOST_SECRET=DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:
readonly TARGET_SECRET=DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:
readonly MODULES=(virtio_pci virtio_net configfs brd nvmet nvmet_tcp nvme_tcp crc32c_generic hmac sha256_generic sha512_generic dh_generic ext4 9pnet_virtio 9p)

top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/target/interop
cairn=${CAIRN:-$top/target/debug/cairn}
guest=
targets=()

fail() {
    printf 'interop: %s\n' "$1" >&2
    exit 1
}

# Adds Debian 12's backports to apt's sources, for the rest of this script only.
use_backports() {
    local mirror
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v '^#' | tr ' ' '\n' |
        grep -E '^https?://.*/debian/?$' | head -n 1)
    [ -n "$mirror" ] || fail 'no mirror of Debian is named in /etc/apt'
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    printf "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror %s main\n" bookworm bookworm-backports \
        >"$work/apt/sources.list"
    printf '%s "%s";\n' Dir::State::lists "$work/apt/lists" Dir::Cache "$work/apt/cache" \
        Dir::Etc::sourcelist "$work/apt/sources.list" Dir::Etc::sourceparts /etc/apt/auth.conf.d \
        Dir::Etc::preferencesparts /etc/apt/auth.conf.d APT::Default-Release bookworm-backports >"$work/apt/apt.conf"
    export APT_CONFIG=$work/apt/apt.conf
    apt-get -qq -o APT::Sandbox::User=root update || fail 'the lists of packages cannot be downloaded; apt-get says why above'
}

# Fetches the kernel and busybox from the distribution, and packs the guest's initial file system.
prepare() {
    [ ! "$work/start.cpio" -nt "$0" ] || return 0
    rm -rf "$work" && mkdir -p "$work/packages" "$work/tree/bin" "$work/tree/modules"
    local kernel
    ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || use_backports
    kernel=$(apt-cache show --no-all-versions linux-image-amd64 | sed -n 's/^Depends: \([^ ,]*\).*/\1/p' | head -n 1)
    [ -n "$kernel" ] || fail 'the package linux-image-amd64 is unknown here; run: apt-get update'
    (cd "$work/packages" && apt-get -qq -o APT::Sandbox::User=root download "$kernel" busybox-static) ||
        fail 'kernel and busybox cannot be downloaded; apt-get says why above'
    unset APT_CONFIG
    for package in "$work"/packages/*.deb; do
        dpkg -x "$package" "$work/unpacked"
    done
    cp "$work"/unpacked/boot/vmlinuz-* "$work/kernel"
    cp "$work/unpacked/bin/busybox" "$work/tree/bin/"
    pack_modules "$work"/unpacked/lib/modules/*
    rm -rf "$work/unpacked" "$work/packages" "$work/apt"
    write_init >"$work/tree/init"
    chmod 755 "$work/tree/init"
    (cd "$work/tree" && find . | cpio -o -H newc --quiet >"$work/new.cpio") && mv "$work/new.cpio" "$work/start.cpio"
}

# Copies the wanted modules below $1, numbered in order of dependency.
pack_modules() {
    local module number=100 file
    depmod -b "${1%/lib/modules/*}" "${1##*/}"
    for module in "${MODULES[@]}"; do
        modprobe -d "${1%/lib/modules/*}" -S "${1##*/}" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$work/modules"
    while read -r file; do
        case $file in
            *.xz) file=${file%.xz} && xz -dc "$file.xz" >"$work/tree/modules/$number-${file##*/}" ;;
            *) cp "$file" "$work/tree/modules/$number-${file##*/}" ;;
        esac
        number=$((number + 1))
    done <"$work/modules"
}

# The guest's first process: uses this machine's target, exports one of its own, and waits for its
# end.
write_init() {
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /memory /host
mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t devtmpfs dev /dev && mount -t tmpfs memory /memory
option() { sed -n "s/.*interop\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
for module in /modules/*; do
    case $module in *-brd.ko) insmod "$module" rd_nr=1 rd_size=65536 ;; *) insmod "$module" ;; esac
done
ip link set lo up && ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 && ip route add default via 10.0.2.2
dd if=/dev/urandom of=/memory/random bs=1M count=8 2>/dev/null
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host && mount -t devtmpfs dev /host/dev &&
    mount -t proc proc /host/proc && mount -t tmpfs tmp /host/tmp
# connect PORT OPTIONS: as a host of the other machine's target there.
connect() {
    echo "transport=tcp,traddr=10.0.2.2,trsvcid=$1,nqn=$(option subsystem),hostid=$(option hostid),hostnqn=$(option host)$2" \
        >/dev/nvme-fabrics
}
disconnect() { echo 1 | tee /sys/class/nvme/nvme*/delete_controller >/dev/null; }
# device NAMESPACE: of what is connected, once it is there.
device() {
    local tries=100
    until ls /dev/nvme*n"$1" 2>/dev/null || [ $tries -eq 0 ]; do sleep 0.1; tries=$((tries - 1)); done
}
# initiate OPTIONS: uses the other machine's namespace over one connection.
initiate() {
    local device status=1
    connect "$(option port)" "$1" && device=$(device 1) || return 1
    dd if=/memory/random of="$device" bs=1M oflag=direct conv=fsync 2>/dev/null &&
        dd if="$device" bs=64K count=128 iflag=direct 2>/dev/null | cmp - /memory/random &&
        blkdiscard -o 4096 -l 65536 "$device" &&
        [ -z "$(dd if="$device" bs=4K skip=1 count=16 iflag=direct 2>/dev/null | tr -d '\\0')" ] && status=0
    disconnect
    return $status
}
# verify FILE: fio writes it in random order, sixteen blocks at a time and past the cache, and reads it back.
verify() {
    PATH=/usr/bin:/bin chroot /host fio --name=verify --filename="$1" --size=16M --rw=randwrite --bsrange=4k-64k --direct=1 \
        --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --eta=never --output=/tmp/fio.log ||
        { cat /host/tmp/fio.log; return 1; }
}
# keep_files NAME PORT OPTIONS: on the file system that the other machine exports.
keep_files() {
    local device status=1
    connect "$2" "$3" && device=$(device 1) || return 1
    mount -t ext4 "$device" /host/mnt && verify /mnt/fio && mkdir "/host/mnt/$1" && cd "/host/mnt/$1" && {
        for file in 1 2 3; do dd if=/memory/random of="$file" bs=64K count=$((file * 32)) conv=fsync 2>/dev/null; done
        sha256sum 1 2 3 >sums && cd / && umount /host/mnt && echo 3 >/proc/sys/vm/drop_caches
    } && mount -t ext4 "$device" /host/mnt && cd "/host/mnt/$1" && sha256sum -c -s sums &&
        [ "$(dd if=/memory/random bs=64K count=96 2>/dev/null | sha256sum)" = "$(sha256sum <3)" ] &&
        rm 2 && cd / && umount /host/mnt && status=0
    disconnect
    return $status
}
initiate '' && initiate ,hdr_digest,data_digest && echo 'interop: initiator works'
proof=,dhchap_secret=$(option secret),dhchap_ctrl_secret=$(option target_secret)
keep_files plain "$(option files)" '' && keep_files digests "$(option files)" ,hdr_digest,data_digest &&
    echo 'interop: files are kept'
keep_files proven "$(option guarded)" "$proof" && keep_files both "$(option guarded)" "$proof,hdr_digest,data_digest" &&
    echo 'interop: files are kept for hosts with a secret'
! connect "$(option guarded)" ",dhchap_secret=$(option target_secret)" 2>/dev/null && echo 'interop: a wrong secret is refused'
mount -t configfs configfs /sys/kernel/config
truncate -s 64M /memory/file
cd /sys/kernel/config/nvmet
subsystem=subsystems/$(option subsystem)
mkdir "$subsystem" && echo 1 >"$subsystem/attr_allow_any_host"
export_as() {
    local namespace=$subsystem/namespaces/$1
    mkdir "$namespace" && echo "$2" >"$namespace/device_path" && echo "$3" >"$namespace/buffered_io" &&
        echo 1 >"$namespace/enable"
}
# admit HASH SECRET: lets hosts that use the hash, with each group, use the guarded subsystem.
admit() {
    for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
        local name=nqn.2026-11.io.cairn:host-$1-$group
        mkdir "hosts/$name" && echo "$2" >"hosts/$name/dhchap_key" && echo "$of_target" >"hosts/$name/dhchap_ctrl_key" &&
            echo "hmac($1)" >"hosts/$name/dhchap_hash" && echo "$group" >"hosts/$name/dhchap_dhgroup" &&
            ln -s "hosts/$name" "$guarded/allowed_hosts/$name" || return 1
    done
}
export_as 1 /dev/ram0 0 && export_as 2 /memory/file 1 || exit 1
guarded=subsystems/nqn.2026-11.io.cairn:guarded
of_target=DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:
mkdir "$guarded" && subsystem=$guarded && export_as 1 /dev/ram0 0 && export_as 2 /memory/file 1 &&
    admit sha256 DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH: &&
    admit sha384 DHHC-1:02:AgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKSorLC0uLzAxZ5lb1w==: &&
    admit sha512 DHHC-1:00:AwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQgHVOkA=: ||
    echo 'interop: no authentication'
mkdir ports/1 && cd ports/1 && echo ipv4 >addr_adrfam && echo tcp >addr_trtype && echo 0.0.0.0 >addr_traddr &&
    echo 4420 >addr_trsvcid && ln -s "../../subsystems/$(option subsystem)" "subsystems/$(option subsystem)" &&
    ln -s "../../$guarded" "subsystems/${guarded#*/}" && echo 'interop: ready'
sleep "$(option seconds)"
poweroff -f
INIT
}

# Prints an unused port of this machine.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Starts a target; its arguments follow the port.
export_at() {
    local port=$1
    shift
    "$cairn" target --listen "127.0.0.1:$port" --nqn "$SUBSYSTEM" "$@" >/dev/null &
    targets+=($!)
}

# Starts the guest, with its port 4420 as port $1 of this machine. The guest uses the targets at
# ports $2 (memory), $3 (files) and $4 (files, with authentication). Returns when the guest's own
# target is there.
start() {
    timeout -k 5 "$GUEST_SECONDS_MAX" qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
        -machine q35 -accel "$GUEST_ACCELERATOR" -cpu max -smp 1 -m 512M -kernel "$work/kernel" -initrd "$work/start.cpio" \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 interop.subsystem=$SUBSYSTEM interop.port=$2 interop.files=$3 \
interop.guarded=$4 interop.hostid=$HOST_ID interop.host=$HOST interop.secret=$HOST_SECRET interop.target_secret=$TARGET_SECRET \
interop.seconds=$GUEST_SECONDS_MAX" \
        -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$1-:4420" -device virtio-net-pci,netdev=net,romfile= \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        -serial "file:$work/console.log" </dev/null &
    guest=$!
    local waited=0
    until grep -q '^interop: ready' "$work/console.log" 2>/dev/null; do
        kill -0 "$guest" 2>/dev/null || fail "the guest ended before its target was there; see $work/console.log"
        [ "$waited" -lt $((START_SECONDS_MAX * 10)) ] || fail "the guest does not start; see $work/console.log"
        sleep 0.1
        waited=$((waited + 1))
    done
}

# Fails unless the guest's console has this message.
expect() {
    tr -d '\r' <"$work/console.log" | grep -q "^interop: $1\$" || fail "this did not happen: $2; see $work/console.log"
    echo "interop: $2"
}

end_all() {
    local process
    for process in $guest "${targets[@]}"; do
        kill "$process" 2>/dev/null || true
    done
}

[ -x "$cairn" ] || fail "there is no $cairn; run: cargo build -p cairn-preload -p cairn-cli"
prepare
trap end_all EXIT
: >"$work/console.log"
port=$(free_port)
own_port=$(free_port)
files_port=$(free_port)
guarded_port=$(free_port)
rm -f "$work/hosts"
# A file is exported by one target at a time.
for files in files guarded; do
    rm -f "$work/$files"
    truncate -s 64M "$work/$files" && mkfs.ext4 -q -F -b 4096 "$work/$files"
done
(umask 077 && echo "$HOST $HOST_SECRET $TARGET_SECRET" >"$work/hosts")
export_at "$own_port" ram:32M
export_at "$files_port" "file:$work/files"
export_at "$guarded_port" --auth "$work/hosts" "file:$work/guarded"
start "$port" "$own_port" "$files_port" "$guarded_port"
expect 'initiator works' "the kernel's initiator works on cairn target"
expect 'files are kept' "the kernel keeps the files of an ext4 on cairn target, and fio verifies one"
expect 'files are kept for hosts with a secret' 'the same where hosts prove who they are'
expect 'a wrong secret is refused' 'and not with a wrong secret'
for files in files guarded; do
    e2fsck -fn "$work/$files" >"$work/e2fsck.log" 2>&1 || fail "the file system is damaged; see $work/e2fsck.log"
done
cd "$top"
echo "interop: the kernel's target is at port $port"
export CAIRN_NVME_PEER=127.0.0.1:$port
{ ${CARGO:-cargo} test --locked -p cairn-target --test nvme -- "$@" &&
    ${CARGO:-cargo} test --locked -p cairn-cli --test remote -- "$@"; } ||
    { tail -n 20 "$work/console.log" >&2; fail 'failed; the last lines of the guest are above'; }
