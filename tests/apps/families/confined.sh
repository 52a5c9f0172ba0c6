# shellcheck shell=bash disable=SC2016
# Machines that are not like a developer's: a tiny, a read-only and a missing /dev/shm, few descriptors, a
# limited file size. Cairn then keeps its segments elsewhere.

# Runs its arguments in a mount namespace after a preparation; needs root or user namespaces.
in_mount_namespace() {
    local preparation=$1
    shift
    if [ "$(id -u)" -eq 0 ]; then
        unshare --mount sh -c "$preparation"' && exec "$@"' sh "$@"
    else
        unshare --user --map-root-user --mount sh -c "$preparation"' && exec "$@"' sh "$@"
    fi
}
with_small_shm() { in_mount_namespace 'mount -t tmpfs -o size=16m,mode=1777 tmpfs /dev/shm' "$@"; }
with_read_only_shm() { in_mount_namespace 'mount -t tmpfs -o ro,size=4k tmpfs /dev/shm' "$@"; }
without_shm() {
    in_mount_namespace '
        mount -t tmpfs -o size=1m,mode=755 tmpfs /dev &&
        mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/zero c 1 5 && mknod -m 444 /dev/urandom c 1 9 &&
        ln -s /proc/self/fd /dev/fd' "$@"
}
with_few_descriptors() { (ulimit -n 64 && "$@"); }
with_little_address_space() { (ulimit -v 4000000 && "$@"); }

work_script=$(
    cat <<'E'
cd "$D"
seq 1 300000 >n; sha256sum n; sort -rn n | head -n 1; head -c 40000000 /dev/zero | tr '\0' z >large
sha256sum large; cp large copy; cmp large copy && echo equal
tar cf t.tar n copy && tar tf t.tar; rm t.tar copy; for i in {1..300}; do echo $i >f$i; done
cat f* | sort -n | tail -n 1; mkdir d; mv f1* d/; ls d | wc -l; sed -i s/1/one/ d/*; cat d/f1; /usr/bin/python3 -c 'open("p", "wb").write(b"p" * 10**7)'
stat -c %s p; rm -r d f* large p
E
)

if in_mount_namespace true true 2>/dev/null; then
    scenario -e with_small_shm small_shm <<<"$work_script"
    scenario -e with_read_only_shm read_only_shm <<<"$work_script"
else
    skip confined/small_shm "this machine does not allow mount namespaces (unshare --mount)"
    skip confined/read_only_shm "the same"
fi
if [ "$(id -u)" -eq 0 ] && without_shm true 2>/dev/null; then
    scenario -e without_shm missing_shm <<<"$work_script"
else
    skip confined/missing_shm "this user may not make device files"
fi
scenario -e with_few_descriptors few_descriptors <<'E'
cd "$D"
ulimit -n
/usr/bin/python3 - <<'END'
import errno, os
held = []
try:
    for i in range(100): held.append(os.open("f%d" % i, os.O_CREAT | os.O_WRONLY))
except OSError as e: print(errno.errorcode[e.errno], len(held) >= 48, max(held))
# Cairn itself may hold a few numbers, so the files beyond the first 48 are not compared.
for i in range(48, len(held)): os.close(held.pop()); os.unlink("f%d" % i)
for fd in held: os.write(fd, b"x"); os.close(fd)
print(sorted(os.listdir()))
END
E
scenario -e with_little_address_space little_address_space <<<"$work_script"
scenario file_size_limit <<'E'
cd "$D"
(ulimit -f 100; /usr/bin/python3 - <<'END'
import errno, os, signal
signal.signal(signal.SIGXFSZ, lambda *_: print("SIGXFSZ"))
fd = os.open("f", os.O_CREAT | os.O_WRONLY)
try:
    for i in range(5): print(os.write(fd, b"x" * 60000))
except OSError as e: print(errno.errorcode[e.errno], os.fstat(fd).st_size)
END
)
E
