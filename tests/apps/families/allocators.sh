# shellcheck shell=bash disable=SC2016,SC2154
#
# Memory allocators in place of the C library's: jemalloc, tcmalloc and mimalloc, preloaded before
# and after Cairn's library, and linked into programs. Runs those that are installed; with --long
# all (scripts/setup.sh allocators).

# with_allocator NAME LIBRARY: each script first proves that it uses the allocator.
with_allocator() {
    local name=$1 library=$2 order
    begin_family "allocators_$name"
    program "streams.$name" streams.cpp c++ -std=c++17 -w -Wl,--no-as-needed "$library"
    program "stdio.$name" stdio_modes.c cc -w -Wl,--no-as-needed "$library"
    scenario linked <<<"\"\$B/streams.$name\" && \"\$B/stdio.$name\""
    for order in before behind; do
        local both="$library:\${LD_PRELOAD:-}"
        [ "$order" = before ] || both="\${LD_PRELOAD:-}:$library"
        scenario "preloaded_${order}_shell" <<E
export LD_PRELOAD=$both
cd "\$D"
grep -q "$library" /proc/self/maps && echo has it
seq 200000 | sort --parallel=2 --buffer-size=1M --temporary-directory="\$D" -r >sorted
tar cf all.tar --mtime=@0 sorted && gzip -nk all.tar && tar tzf all.tar.gz && sha256sum sorted all.tar
"\$B/stdio.$name"
E
        scenario -l python "preloaded_${order}_python" "$library" "$order" <<'E'
import mmap, os, subprocess, sys, threading
library, order = sys.argv[1:]
preloaded = os.environ.get("LD_PRELOAD", "")
if library not in preloaded:
    both = [library, preloaded] if order == "before" else [preloaded, library]
    os.environ["LD_PRELOAD"] = ":".join(both)
    os.execv("/usr/bin/python3", ["python3", "-B", *sys.argv])
print(library in open("/proc/self/maps").read())
os.chdir(os.environ["D"])

def work(name):
    for number in range(40):
        with open(f"{name}.{number}", "w+b") as file:
            file.write(b"x" * (number * 5000 + 1))
            file.flush()
            with mmap.mmap(file.fileno(), 0) as mapped:
                mapped[0:1] = b"m"

threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
script = "import os; [open(f'child.{n}', 'w').write('x' * n * 999) for n in range(40)]"
child = subprocess.run([sys.executable, "-c", script])
for thread in threads:
    thread.join()
forked = os.fork()
if forked == 0:
    work("forked")
    os._exit(0)
print(child.returncode, os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
print(subprocess.run(["cat", "a.0"], capture_output=True).stdout)
E
    done
}

while read -r name library package <&3; do
    path=$(/sbin/ldconfig -p 2>/dev/null | awk -v name="$library" '$1 == name { print $NF; exit }')
    if [ -n "$path" ]; then
        with_allocator "$name" "$path"
    else
        skip "allocators/$name" "$package is not installed (scripts/setup.sh allocators)"
    fi
done 3<<'E'
jemalloc libjemalloc.so.2 libjemalloc2
tcmalloc libtcmalloc_minimal.so.4 libtcmalloc-minimal4
mimalloc libmimalloc.so.2 libmimalloc2.0
E
