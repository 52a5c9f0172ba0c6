#!/usr/bin/env bash
# Tries the wheel of build-old-glibc.sh on a system with an older glibc: Debian 11, which has 2.31, in
# a directory of its own. Says so where that cannot be: it takes root and debootstrap.
#
#   python/tests/old-glibc.sh [WHEEL]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

wheel=${1:-$(ls -t python/dist/*manylinux_2_28*.whl | head -n 1)}
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "old-glibc.sh: not tried: this takes root and debootstrap" >&2
    exit 0
fi
system=target/debian-11
if [ ! -e $system/complete ]; then
    rm -rf $system
    debootstrap --variant=minbase --include=python3,python3-pip bullseye "$PWD/$system" http://deb.debian.org/debian \
        >target/debian-11.log 2>&1 || { tail target/debian-11.log >&2; exit 1; }
    touch $system/complete
fi
rm -f $system/root/*.whl
cp "$wheel" $system/root/
cat >$system/root/save.py <<'END'
import mmap, os, subprocess, threading, cairn

def write(name, content):
    with open("/cairn/" + name, "wb") as file:
        file.write(content)

def read(name):
    with open("/cairn/" + name, "rb") as file:
        return file.read()

assert cairn.is_active()
for step in range(3):
    with cairn.checkpoint(step):
        write("part", b"%d" % step * 3_000_000)
        os.rename("/cairn/part", f"/cairn/step-{step}.pt")
# What glibc 2.33 and 2.34 changed: functions of stat, and the threads, which had a library of their own.
assert os.stat("/cairn/step-1.pt").st_size == os.lstat("/cairn/step-1.pt").st_size == 3_000_000
assert sorted(os.listdir("/cairn")) == [f"step-{step}.pt" for step in range(3)]
with open("/cairn/step-2.pt", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    assert mapped[:] == b"2" * 3_000_000
writer = threading.Thread(target=write, args=("thread", b"of a thread"))
writer.start()
writer.join()
child = os.fork()
if child == 0:
    write("child", b"of a child")
    os._exit(0)
os.waitpid(child, 0)
assert (read("thread"), read("child")) == (b"of a thread", b"of a child")
shell = "cd /cairn && cp step-0.pt copy && stat -c %s copy && tar cf all.tar child thread && tar tf all.tar && find . -name 'step*' | wc -l"
assert subprocess.check_output(shell, shell=True, text=True) == "3000000\nchild\nthread\n3\n"
END
cat >$system/root/try.sh <<'END'
set -eu
cd /root
rm -rf out
ldd --version | head -n 1
pip3 install -q --no-index --no-warn-script-location --force-reinstall ./*.whl
cairn run --job old --persist out -- python3 save.py 2>said || { cat said; exit 1; }
if grep "not served" said; then exit 1; fi
cairn verify --persist out
python3 -c 'assert open("out/step-1.pt", "rb").read() == b"1" * 3_000_000'
END
# A mount namespace of its own: nothing stays mounted, whatever happens.
unshare --mount bash -euc "
    mkdir -p $system/dev/shm
    mount --rbind /dev $system/dev
    mount -t proc proc $system/proc
    exec chroot $system bash /root/try.sh"
echo 'old-glibc.sh: passed'
