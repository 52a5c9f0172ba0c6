"""The programs that run.py measures.

`work` is a Bash script for an empty directory on the medium; it puts `timed` before commands that write. `shown` is a
Bash script that runs in the resulting directory, at any place: its output is the result, for files that contain times
or paths. Without it the whole tree is the result. `needs` are commands, paths, and `module:NAME` for modules of the
distribution's Python.
"""

from collections import namedtuple

Program = namedtuple("Program", "name title done needs version file work shown", defaults=[""])

PYTHON = "/usr/bin/python3"


def of_python(name, title, done, module, work, shown=""):
    """A program in Python whose work is the body of `save()`, which is timed."""
    needs = ["module:" + module] if module else []
    version = f"{PYTHON} -c 'import {module} as m; print(m.__version__)'" if module else f"{PYTHON} --version"
    shown = f"{PYTHON} - <<'END'\n{shown}\nEND\n" if shown else ""
    return Program(name, title, done, needs, version, PYTHON,
                   f"cat >\"$ASIDE/program.py\" <<'END'\n{work}\nEND\ntimed {PYTHON} \"$ASIDE/program.py\"\n", shown)


LAMMPS = """
cat >"$ASIDE/in.melt" <<'END'
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 20 0 20 0 20
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
dump 1 all atom 20 melt.dump
restart 20 melt.restart.*
run 60
END
timed lmp -in "$ASIDE/in.melt" -log none -screen none
"""

ESPRESSO = """
cat >"$ASIDE/si.in" <<'END'
&control
  calculation = 'scf', prefix = 'si', outdir = './out', pseudo_dir = '/usr/share/espresso/pseudo'
/
&system
  ibrav = 2, celldm(1) = 10.2, nat = 2, ntyp = 1, ecutwfc = 12
/
&electrons
/
ATOMIC_SPECIES
 Si 28.086 Si.pz-vbc.UPF
ATOMIC_POSITIONS alat
 Si 0.00 0.00 0.00
 Si 0.25 0.25 0.25
K_POINTS automatic
 2 2 2 0 0 0
END
timed pw.x -in "$ASIDE/si.in" >scf.out
"""

REDIS = """
cat >"$ASIDE/load" <<'END'
eval "for i=1,20000 do redis.call('set','k'..i,string.rep('v',100)..i) end" 0
END
redis-server --port 0 --unixsocket "$ASIDE/socket" --dir "$PWD" --appendonly yes --save '' --daemonize yes --pidfile "$ASIDE/pid" \
    --logfile "$ASIDE/log" >/dev/null
until redis-cli -s "$ASIDE/socket" ping >/dev/null 2>&1; do sleep 0.05; done
work() { redis-cli -s "$ASIDE/socket" <"$ASIDE/load" >/dev/null && redis-cli -s "$ASIDE/socket" save >/dev/null; }
timed work
pid=$(cat "$ASIDE/pid")
redis-cli -s "$ASIDE/socket" shutdown save
while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
"""

REDIS_SHOWN = """
redis-server --port 0 --unixsocket "$ASIDE/again" --dir "$PWD" --appendonly yes --save '' --daemonize yes --pidfile "$ASIDE/pid2" >/dev/null
until redis-cli -s "$ASIDE/again" ping 2>/dev/null | grep -q PONG; do sleep 0.05; done
redis-cli -s "$ASIDE/again" dbsize
redis-cli -s "$ASIDE/again" get k19999 | tail -c 12
redis-cli -s "$ASIDE/again" shutdown nosave
"""

JAVA = """
cat >"$ASIDE/Save.java" <<'END'
import java.io.*;
import java.nio.*;
import java.nio.channels.FileChannel;
import java.nio.file.*;

public class Save {
    public static void main(String[] arguments) throws IOException {
        byte[] state = new byte[8 << 20];
        new java.util.Random(7).nextBytes(state);
        for (int step = 0; step < 5; step++) {
            Path part = Path.of("state.tmp");
            Files.write(part, state);
            Files.move(part, Path.of("state." + step), StandardCopyOption.ATOMIC_MOVE);
        }
        try (RandomAccessFile file = new RandomAccessFile("mapped", "rw"); FileChannel channel = file.getChannel()) {
            MappedByteBuffer mapped = channel.map(FileChannel.MapMode.READ_WRITE, 0, state.length);
            mapped.put(state);
            mapped.force();
        }
        try (ObjectOutputStream out = new ObjectOutputStream(new BufferedOutputStream(new FileOutputStream("objects")))) {
            for (int i = 0; i < 1000; i++) out.writeObject("object " + i);
        }
    }
}
END
timed java "$ASIDE/Save.java"
"""

NODE = """
cat >"$ASIDE/save.js" <<'END'
const fs = require('fs');
const state = Buffer.alloc(8 << 20, 'state');
for (let step = 0; step < 5; step++) {
    fs.writeFileSync('state.tmp', state);
    fs.renameSync('state.tmp', `state.${step}`);
}
const log = fs.createWriteStream('log');
for (let line = 0; line < 20000; line++) log.write(`line ${line}\\n`);
log.end();
fs.promises.writeFile('promised', state).then(() => fs.promises.truncate('promised', 1000));
END
timed node "$ASIDE/save.js"
"""

FORTRAN = """
cat >"$ASIDE/save.f90" <<'END'
program save
  implicit none
  real(8) :: field(1024, 1024)
  integer :: step
  character(20) :: name
  call random_seed(put=[(step, step = 1, 64)])
  call random_number(field)
  do step = 1, 5
    write (name, '(a,i0)') 'field.', step
    open (10, file=name, form='unformatted', status='replace')
    write (10) step, field
    close (10)
  end do
  open (11, file='direct', access='direct', recl=8192)
  do step = 1, 1024
    write (11, rec=1025 - step) field(:, step)
  end do
  close (11)
  open (12, file='text')
  write (12, '(10es13.5)') field(:, 1:20)
  close (12)
end program
END
gfortran -O1 -o "$ASIDE/save" "$ASIDE/save.f90"
timed "$ASIDE/save"
"""

GCC = """
mkdir src && cd src
for number in $(seq 30); do
    echo "#include <stdio.h>" >f$number.c
    echo "int f$number(int x) { return printf(\\"%d\\", x) + $number; }" >>f$number.c
done
{ for number in $(seq 30); do echo "int f$number(int);"; done
  echo "int main(void) { return 0"; for number in $(seq 30); do echo " + f$number(1)"; done; echo "; }"; } >main.c
printf 'objects := $(patsubst %%.c,%%.o,$(wildcard *.c))\\nprogram: $(objects)\\n\\tcc -Wl,--build-id=none -o $@ $(sort $^)\\n' >Makefile
timed make -s
"""

GIT = """
git init -q repository && cd repository
git config user.name n && git config user.email e@e
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
work() {
    for step in 1 2 3; do
        for number in $(seq 150); do echo "step $step, $number" >f$number; done
        git add -A && git commit -qm "step $step"
    done
    git gc -q && git clone -q . ../clone
}
timed work
"""

GIT_SHOWN = """
for name in repository clone; do
    git -c safe.directory='*' -C $name fsck --full 2>&1
    git -c safe.directory='*' -C $name log --format=%H
    git -c safe.directory='*' -C $name status --short
done
"""

TREE = """
mkdir -p "$ASIDE/tree/sub"
for number in $(seq 400); do head -c $((number * 37)) /dev/zero | tr '\\0' "$((number % 10))" >"$ASIDE/tree/sub/f$number"; done
head -c 20000000 /usr/bin/python3 >"$ASIDE/tree/large"; ln "$ASIDE/tree/large" "$ASIDE/tree/linked"; ln -s large "$ASIDE/tree/symlink"
chmod 600 "$ASIDE/tree/sub/f1"; touch -d 2020-01-01 "$ASIDE/tree/sub/f2"
"""

R = """
cat >"$ASIDE/save.R" <<'END'
set.seed(7)
frame <- data.frame(x = round(rnorm(100000), 6), y = seq_len(100000))
for (step in 1:3) saveRDS(frame, paste0("frame.", step, ".rds"))
write.csv(frame, "frame.csv", row.names = FALSE)
save(frame, file = "frame.RData")
stopifnot(identical(readRDS("frame.3.rds"), frame))
END
timed Rscript --vanilla "$ASIDE/save.R"
"""

OCTAVE = """
cat >"$ASIDE/save.m" <<'END'
state = reshape(mod((1:1000000) * 7, 1013), 1000, 1000);
for step = 1:3
  save("-binary", sprintf("state.%d", step), "state");
end
save("-text", "small.txt", "step");
fid = fopen("raw", "w"); fwrite(fid, state, "double"); fclose(fid);
again = load("state.3"); assert(isequal(again.state, state));
END
timed octave-cli --no-gui --norc --quiet "$ASIDE/save.m"
"""

OCTAVE_SHOWN = """
octave-cli --no-gui --norc --quiet --eval 'for s = 1:3; x = load(sprintf("state.%d", s)); disp(sum(x.state(:))); end'
sha256sum raw
grep -v '^# Created' small.txt
"""

ROCKSDB = """
work() {
    for step in 1 2 3; do
        ldb --db=base --create_if_missing batchput $(for number in $(seq 200); do echo "k$step-$number v$number"; done) >/dev/null
    done
    ldb --db=base compact >/dev/null
}
timed work
"""

PROGRAMS = [
    Program("lammps", "LAMMPS", "melt, dumps and restart files", ["lmp"], "lmp -help | sed -n 's/^Large.*- /LAMMPS /p'", "lmp", LAMMPS,
            "sha256sum melt.restart.* melt.dump | sort"),
    Program("espresso", "Quantum ESPRESSO", "self-consistent field of silicon, its wave functions and density",
            ["pw.x", "/usr/share/espresso/pseudo/Si.pz-vbc.UPF"], "dpkg-query -Wf '${Version}' quantum-espresso; pw.x --version 2>&1 | grep -o 'v\\.[0-9.]*' | head -1; true", "pw.x", ESPRESSO,
            "grep '^!' scf.out; find out -type f | sort; sha256sum out/si.save/charge-density.dat out/si.save/wfc*.dat"),
    of_python("sqlite", "SQLite", "20 000 rows in 20 transactions, with a rollback journal and with a write-ahead log", "",
              """import sqlite3
for mode in ("delete", "wal"):
    base = sqlite3.connect(f"{mode}.db")
    base.execute(f"PRAGMA journal_mode={mode}")
    base.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    for step in range(20):
        with base:
            base.executemany("INSERT INTO t (b) VALUES (?)", [(f"row {step} {n}",) for n in range(1000)])
    base.close()""",
              """import sqlite3
for mode in ("delete", "wal"):
    base = sqlite3.connect(f"file:{mode}.db?mode=ro&immutable=1", uri=True)
    print(base.execute("PRAGMA integrity_check").fetchall(), base.execute("SELECT count(*), max(b) FROM t").fetchall())"""),
    of_python("numpy", "NumPy", "arrays by `save`, `savez` and `memmap`", "numpy",
              """import numpy
state = numpy.arange(4 << 20, dtype="float64")
for step in range(3):
    numpy.save(f"state.{step}.npy", state + step)
mapped = numpy.memmap("mapped", dtype="float64", mode="w+", shape=state.shape)
mapped[:] = state
mapped.flush()
numpy.savez("pair.npz", one=state[:1000], other=state[1000:2000])""",
              """import numpy
print([numpy.load(f"state.{step}.npy").sum() for step in range(3)], numpy.fromfile("mapped").sum())
print({name: part.sum() for name, part in numpy.load("pair.npz").items()})"""),
    of_python("h5py", "HDF5 by h5py", "a chunked, compressed data set that grows, and one in one piece", "h5py",
              """import h5py, numpy
with h5py.File("run.h5", "w", libver="latest") as file:
    grown = file.create_dataset("grown", (0, 1024), maxshape=(None, 1024), chunks=(64, 1024), compression="gzip")
    for step in range(20):
        grown.resize((64 * (step + 1), 1024))
        grown[-64:] = numpy.full((64, 1024), step)
        file.flush()
    file["whole"] = numpy.arange(4 << 20)""",
              """import h5py
with h5py.File("run.h5") as file:
    print({name: (part.shape, int(part[...].sum())) for name, part in file.items()})"""),
    of_python("netcdf", "NetCDF", "a record dimension that grows, a file synchronised at each step", "netCDF4",
              """import netCDF4, numpy
with netCDF4.Dataset("run.nc", "w") as file:
    file.createDimension("time", None)
    file.createDimension("x", 65536)
    field = file.createVariable("field", "f8", ("time", "x"))
    for step in range(20):
        field[step] = numpy.full(65536, step)
        file.sync()""",
              """import netCDF4
print(netCDF4.Dataset("run.nc")["field"][:].sum())"""),
    of_python("torch", "PyTorch", "model and optimiser by `torch.save`, replaced by a rename; read back", "torch",
              """import os, torch
torch.manual_seed(7)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])
best = torch.optim.Adam(model.parameters())
for step in range(3):
    model(torch.ones(1, 1024)).sum().backward()
    best.step()
    torch.save({"step": step, "model": model.state_dict(), "optimiser": best.state_dict()}, "checkpoint.tmp")
    os.replace("checkpoint.tmp", f"checkpoint.{step}.pt")
assert torch.load("checkpoint.2.pt")["step"] == 2""",
              """import torch
for step in range(3):
    found = torch.load(f"checkpoint.{step}.pt")
    print(found["step"], sum(float(part.double().sum()) for part in found["model"].values()))"""),
    of_python("zarr", "Zarr", "an array of 256 chunks, a file each, and one in a ZIP file", "zarr",
              """import numpy, zarr
array = zarr.open("state.zarr", mode="w", shape=(4096, 1024), chunks=(64, 256), dtype="f8")
array[:] = numpy.arange(4096 * 1024).reshape(4096, 1024)
with zarr.ZipStore("state.zip", mode="w") as store:
    zarr.array(array[:512], store=store, chunks=(64, 256))""",
              """import zarr
print(zarr.open("state.zarr", mode="r")[:].sum(), zarr.open(zarr.ZipStore("state.zip", mode="r"), mode="r")[:].sum())"""),
    of_python("pandas", "pandas", "a frame as CSV, pickle and JSON; read back", "pandas",
              """import pandas
frame = pandas.DataFrame({"x": range(100000), "y": [f"row {n}" for n in range(100000)]})
frame.to_csv("frame.csv")
frame.to_pickle("frame.pickle")
frame.to_json("frame.json")
assert pandas.read_pickle("frame.pickle").equals(frame)"""),
    Program("git", "git", "three commits of 150 files, gc, clone", ["git"], "git --version", "git", GIT, GIT_SHOWN),
    Program("rsync", "rsync", "a tree copied, and again by checksum", ["rsync"], "rsync --version", "rsync",
            TREE + 'timed rsync -aH "$ASIDE/tree/" copy/\ntimed rsync -aHc --delete "$ASIDE/tree/" copy/\n'),
    Program("tar", "tar", "a tree packed and unpacked, with gzip", ["tar", "gzip"], "tar --version", "tar",
            TREE + 'pack() { tar -C "$ASIDE" -czf tree.tgz tree && tar -xzf tree.tgz && rm tree.tgz; }\ntimed pack\n'),
    Program("gcc", "GCC and make", "31 sources compiled and linked", ["gcc", "make"], "gcc --version", "gcc", GCC),
    Program("r", "R", "a frame by `saveRDS`, `save` and `write.csv`", ["Rscript"], "Rscript --version", "Rscript", R),
    Program("octave", "Octave", "a matrix in its own and in raw format", ["octave-cli"], "octave-cli --version", "octave-cli", OCTAVE, OCTAVE_SHOWN),
    Program("java", "Java", "files moved into place, a mapped file, objects", ["java"], "java --version", "java", JAVA),
    Program("node", "Node.js", "files moved into place, a stream, promises", ["node"], "node --version", "node", NODE),
    Program("fortran", "Fortran (gfortran)", "unformatted, direct and formatted files", ["gfortran"], "gfortran --version", "gfortran", FORTRAN),
    Program("redis", "Redis", "20 000 keys in an append-only file, and a snapshot; loaded again", ["redis-server", "redis-cli"],
            "redis-server --version", "redis-server", REDIS, REDIS_SHOWN),
    Program("rocksdb", "RocksDB (ldb)", "three batches and a compaction", ["ldb"], "dpkg-query -Wf '${Version}' rocksdb-tools", "ldb", ROCKSDB, "ldb --db=base scan | sha256sum"),
]
