"""Programs that checkpoint and resume as real applications do, each in its framework's own way.

    applications.py NAME ROOT ASIDE STEPS

A program does STEPS small steps below ROOT, a store or a plain directory, and knows nothing of
Cairn. Started again, it resumes from its newest checkpoint. It is deterministic: however often it
was stopped, in the end ROOT holds what an undisturbed run leaves there. It refuses to resume from
files that its framework would refuse. ASIDE is a plain directory. Its file `pause` has the seconds
per step, and `journal` gets a line for each start (the step it found) and each checkpoint.
"""

import hashlib
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path

from foreign import FOREIGN

FRAME = struct.Struct("<q32s")


class Course:
    """The steps of one start: their first number, their duration, and the journal about them."""

    def __init__(self, aside, steps):
        self.aside, self.steps = Path(aside), steps
        self.pause = float((self.aside / "pause").read_text())

    def begin(self, found):
        """Records which step was found; yields the remaining steps."""
        self.say("found", found)
        for step in range(found + 1, self.steps + 1):
            time.sleep(self.pause)
            yield step

    def safe(self, step):
        """Records that the checkpoint of `step` is written: a kill must not lose it."""
        self.say("safe", step)

    def say(self, what, step):
        line = json.dumps([what, step, time.time()]) + "\n"
        with open(self.aside / "journal", "a") as file:
            file.write(line)


def advance(state, step):
    return hashlib.sha256(f"{state} {step}".encode()).hexdigest()


def states(steps):
    """The states after 0, 1 … `steps` steps."""
    found = ["begin"]
    for step in range(1, steps + 1):
        found.append(advance(found[-1], step))
    return found


def refuse(why):
    sys.exit("Error: " + why)


# Files with a digest, which distinguishes torn files from whole ones, as the formats of frameworks
# do.

def packed(content, size=20000):
    """`content` as bytes, padded to about `size` bytes, with a digest at the end."""
    text = json.dumps(content, sort_keys=True).encode()
    body = struct.pack("<q", len(text)) + text
    body += hashlib.shake_128(text).digest(size)
    return body + hashlib.sha256(body).digest()


def unpacked(path):
    """Content of a packed file, or None if it is missing or torn."""
    try:
        found = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    body, digest = found[:-32], found[-32:]
    if len(found) < 40 or hashlib.sha256(body).digest() != digest:
        return None
    length = struct.unpack_from("<q", body)[0]
    return json.loads(body[8:8 + length])


def write(path, data, sync=False):
    """Writes a file in place, in pieces."""
    with open(path, "wb", buffering=0) as file:
        for start in range(0, len(data), 4096):
            file.write(data[start:start + 4096])
        if sync:
            os.fsync(file.fileno())


def replace(path, data, sync=True):
    """Writes beside `path` and renames: the file is always whole."""
    write(f"{path}.tmp", data, sync)
    os.rename(f"{path}.tmp", path)
    if sync:
        sync_folder(path.parent)


def keep_only(folder, pattern, names):
    """Removes leftovers of an interrupted save, as checkpoint managers do."""
    for path in folder.glob(pattern):
        if path.name not in names:
            path.unlink()


def sync_folder(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


# SQLite: a row and a sum in each transaction. The database must never be damaged or miss a row.

def sqlite_rollback(root, course):
    sqlite(root, course, "delete")


def sqlite_wal(root, course):
    sqlite(root, course, "wal")


def sqlite(root, course, journal):
    base = sqlite3.connect(root / "rows.db", isolation_level=None)
    whole = base.execute("PRAGMA integrity_check").fetchone()[0]
    if whole != "ok":
        refuse(f"integrity_check: {whole}")
    base.execute(f"PRAGMA journal_mode={journal}")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("PRAGMA wal_autocheckpoint=20")
    base.execute("BEGIN IMMEDIATE")
    base.execute("CREATE TABLE IF NOT EXISTS row(step INTEGER PRIMARY KEY, state TEXT, fill BLOB)")
    base.execute("CREATE INDEX IF NOT EXISTS by_state ON row(state)")
    base.execute("CREATE TABLE IF NOT EXISTS last(one INTEGER PRIMARY KEY, step INTEGER)")
    base.execute("COMMIT")
    found = sqlite_found(base)
    state = states(found)[-1]
    for step in course.begin(found):
        state = advance(state, step)
        base.execute("BEGIN IMMEDIATE")
        fill = hashlib.shake_128(state.encode()).digest(3000)
        base.execute("INSERT INTO row VALUES(?, ?, ?)", (step, state, fill))
        base.execute("INSERT OR REPLACE INTO last VALUES(1, ?)", (step,))
        base.execute("COMMIT")
        course.safe(step)
    base.close()


def sqlite_found(base):
    """Number of rows, which must be consecutive and agree with the other table."""
    rows = base.execute("SELECT step, state FROM row ORDER BY step").fetchall()
    if rows != list(enumerate(states(len(rows))))[1:]:
        refuse("rows are missing or not those that were written")
    last = base.execute("SELECT step FROM last").fetchone() or (0,)
    if last[0] != len(rows):
        refuse(f"{len(rows)} rows, and {last[0]} was the last")
    return len(rows)


# A trainer: a log that stays open and is synced with each checkpoint, as in GROMACS.

def trainer(root, course):
    latest = root / "latest"
    found = {"step": 0, "state": "begin", "log": 0}
    if latest.exists():
        found = unpacked(root / latest.read_text().strip())
        if found is None:
            refuse("latest names a checkpoint that is not whole")
    state = found["state"]
    keep_only(root, "ckpt-*", [f"ckpt-{found['step'] - back}" for back in (0, 5)])
    with open_log(root / "train.log", found["log"]) as log:
        for step in course.begin(found["step"]):
            state = advance(state, step)
            log.write(f"step {step} loss {state[:16]}\n".encode())
            if step % 5 == 0 or step == course.steps:
                os.fsync(log.fileno())
                at = {"step": step, "state": state, "log": log.tell()}
                replace(root / f"ckpt-{step}", packed(at))
                replace(latest, f"ckpt-{step}\n".encode())
                (root / f"ckpt-{step - 10}").unlink(missing_ok=True)
                course.safe(step)


def open_log(path, length):
    """Opens a log to continue at `length`; refuses one that is shorter or has other content."""
    log = open(path, "ab", buffering=0)
    if os.path.getsize(path) < length:
        refuse(f"{path.name} has {os.path.getsize(path)} bytes, the checkpoint says {length}")
    for number, line in enumerate(path.read_bytes()[:length].decode().splitlines(), 1):
        if not line.startswith(f"step {number} loss "):
            refuse(f"line {number} of {path.name} is {line!r}")
    os.ftruncate(log.fileno(), length)
    log.seek(0, os.SEEK_END)
    return log


# TensorFlow: parts by way of a temporary folder, then the index, then the text that names both.

def tensorflow(root, course):
    found, text = {"step": 0, "state": "begin"}, root / "checkpoint"
    if text.exists():
        found = tensorflow_found(root, text.read_text().splitlines())
    state, kept = found["state"], tensorflow_kept(found["step"])
    files = [path.name for step in kept for path in tensorflow_files(root, step)]
    keep_only(root, "ckpt-*.*", files)
    for step in course.begin(found["step"]):
        state = advance(state, step)
        if step % 5 == 0 or step == course.steps:
            tensorflow_save(root, step, state)
            course.safe(step)


def tensorflow_found(root, lines):
    step = int(lines[0].split('"')[1].rpartition("-")[2])
    index = unpacked(root / f"ckpt-{step}.index")
    parts = [unpacked(path) for path in tensorflow_files(root, step)[1:]]
    if None in (index, *parts) or any(part["state"] != index["state"] for part in parts):
        refuse(f"ckpt-{step}, which `checkpoint` names, is not whole")
    return index


def tensorflow_files(root, step):
    parts = [root / f"ckpt-{step}.data-{part:05}-of-00002" for part in range(2)]
    return [root / f"ckpt-{step}.index", *parts]


def tensorflow_kept(step):
    return [step - back for back in (10, 5, 0) if step > back]


def tensorflow_save(root, step, state):
    index, *parts = tensorflow_files(root, step)
    temporary = root / f"ckpt-{step}_temp"
    temporary.mkdir(exist_ok=True)
    for number, part in enumerate(parts):
        write(temporary / part.name, packed({"part": number, "state": state}))
    for part in parts:
        os.rename(temporary / part.name, part)
    temporary.rmdir()
    replace(index, packed({"step": step, "state": state}, 300), sync=False)
    lines = [f'model_checkpoint_path: "ckpt-{step}"']
    lines += [f'all_model_checkpoint_paths: "ckpt-{each}"' for each in tensorflow_kept(step)]
    replace(root / "checkpoint", "\n".join(lines).encode() + b"\n", sync=False)
    for old in tensorflow_files(root, step - 15):
        old.unlink(missing_ok=True)


# NAMD: three restart files, whose previous versions are renamed to .old; a trajectory that stays
# open.

KINDS = ("coor", "vel", "xsc")
DCD_HEADER = struct.Struct("<4sq")


def namd(root, course):
    found = namd_found(root)
    state = found["state"]
    with open_dcd(root / "run.dcd", found["step"]) as dcd:
        for step in course.begin(found["step"]):
            state = advance(state, step)
            dcd.seek(0, os.SEEK_END)
            dcd.write(FRAME.pack(step, bytes.fromhex(state)))
            dcd.seek(0)
            dcd.write(DCD_HEADER.pack(b"CORD", step))
            if step % 5 == 0 or step == course.steps:
                namd_save(root, step, state)
                course.safe(step)


def namd_save(root, step, state):
    for kind in KINDS:
        path = root / f"run.restart.{kind}"
        if path.exists():
            os.rename(path, f"{path}.old")
        write(path, packed({"step": step, "state": state, "kind": kind}))


def namd_found(root):
    """The newest step for which all three files exist, under the new or the old name.

    Removes newer and torn files, because the next save would rename them over an older whole one.
    """
    found = {kind: {} for kind in KINDS}
    for kind in KINDS:
        for name in (f"run.restart.{kind}.old", f"run.restart.{kind}"):
            content = unpacked(root / name)
            if content is not None:
                found[kind][content["step"]] = content
    common = max(set.intersection(*(set(steps) for steps in found.values())), default=0)
    for path in root.glob("run.restart.*"):
        content = unpacked(path)
        if content is None or content["step"] > common:
            path.unlink()
    return found["coor"].get(common, {"step": 0, "state": "begin"})


def open_dcd(path, frames):
    """Opens the trajectory and truncates it after `frames`; refuses fewer or other frames."""
    dcd = open(path, "r+b" if path.exists() else "w+b", buffering=0)
    content, start = dcd.read(), DCD_HEADER.size
    length = start + frames * FRAME.size
    if frames and len(content) < length:
        refuse(f"{path.name} has {len(content)} bytes, {frames} frames need {length}")
    for number, state in enumerate(states(frames)[1:]):
        if FRAME.unpack_from(content, start + number * FRAME.size)[1].hex() != state:
            refuse(f"frame {number + 1} of {path.name} is not the one that was written")
    dcd.truncate(length)
    dcd.seek(0)
    dcd.write(DCD_HEADER.pack(b"CORD", frames))
    return dcd


# Lightning: the two best epochs, and last.ckpt, which is overwritten in place.

def lightning(root, course):
    found = lightning_found(root)
    state, best = found["state"], found["best"]
    keep_only(root, "epoch=*.ckpt", best.values())
    for step in course.begin(found["step"]):
        state = advance(state, step)
        if step % 5 == 0 or step == course.steps:
            best = lightning_save(root, step, state, best)
            course.safe(step)


def lightning_found(root):
    """Content of last.ckpt or, if it is torn, of the newest epoch's own checkpoint."""
    found = unpacked(root / "last.ckpt")
    whole = [unpacked(path) for path in root.glob("epoch=*.ckpt")] if found is None else [found]
    whole = [content for content in whole if content is not None]
    found = max(whole, key=lambda content: content["step"], default=None)
    if found is None:
        return {"step": 0, "state": "begin", "best": {}}
    for name in found["best"].values():
        if unpacked(root / name) is None:
            refuse(f"{name}, one of the best, is missing or not whole")
    return found


def lightning_save(root, step, state, best):
    """Writes the new files, then removes the worst. `best` maps scores to file names."""
    name = f"epoch={step // 5}-step={step}.ckpt"
    kept = dict(sorted({**best, state[:8]: name}.items())[:2])
    content = packed({"step": step, "state": state, "best": kept})
    if name in kept.values():
        write(root / name, content)
    write(root / "last.ckpt", content)
    for old in best.values():
        if old not in kept.values():
            (root / old).unlink()
    return kept


# Formats of the distribution's libraries, and PyTorch.

def hdf5(root, course):
    """A growing dataset, flushed from time to time, whose file is readable at any time."""
    import h5py
    path, state = root / "run.h5", "begin"
    if path.exists():
        subprocess.run(["h5clear", "-s", path], check=True)
    found = unpacked(root / "run.flushed") or {"step": 0}
    file = h5py.File(path, "r+" if found["step"] else "w", libver="latest")
    if found["step"] == 0:
        file.create_dataset("state", (0,), "S64", maxshape=(None,), chunks=(16,))
    rows = file["state"]
    if [row.decode() for row in rows[:found["step"]]] != states(found["step"])[1:]:
        refuse(f"run.h5 has {len(rows)} rows, not the {found['step']} that were flushed")
    rows.resize((found["step"],))
    state = states(found["step"])[-1]
    file.swmr_mode = True
    for step in course.begin(found["step"]):
        state = advance(state, step)
        rows.resize((step,))
        rows[step - 1] = state.encode()
        if step % 5 == 0 or step == course.steps:
            file.flush()
            replace(root / "run.flushed", packed({"step": step}))
            course.safe(step)
    file.close()


def netcdf(root, course):
    """Records of the classic format, synced in each step.

    The library writes the number of records before the last record, so a text file has the number
    of records that are safe.
    """
    import netCDF4
    path, flushed = root / "run.nc", root / "run.flushed"
    found = unpacked(flushed) or {"step": 0}
    if found["step"] == 0:
        netcdf_create(netCDF4, path)
    with netCDF4.Dataset(path, "a") as file:
        file.set_always_mask(False)
        rows = [bytes(row).hex() for row in file["state"][:found["step"]]]
        if rows != states(found["step"])[1:]:
            refuse(f"run.nc lacks records of the {found['step']} that were synced")
        state = states(found["step"])[-1]
        for step in course.begin(found["step"]):
            state = advance(state, step)
            file["state"][step - 1] = netCDF4.numpy.frombuffer(bytes.fromhex(state), "i1")
            file.sync()
            replace(flushed, packed({"step": step}))
            course.safe(step)


def netcdf_create(library, path):
    with library.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.createDimension("time", None)
        file.createDimension("byte", 32)
        file.createVariable("state", "i1", ("time", "byte"))


def torch(root, course):
    """A small network: checkpoints of model and optimizer, and a log that stays open."""
    import torch as library
    library.manual_seed(7)
    library.set_num_threads(1)
    model = library.nn.Sequential(library.nn.Linear(16, 64), library.nn.Tanh(),
                                  library.nn.Linear(64, 1))
    optimizer = library.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found, path = {"step": 0, "log": 0}, root / "model.pt"
    if path.exists():
        found = library.load(path)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    with open_log(root / "train.log", found["log"]) as log:
        for step in course.begin(found["step"]):
            loss = torch_step(library, model, optimizer, step)
            log.write(f"step {step} loss {loss.hex()}\n".encode())
            if step % 5 == 0 or step == course.steps:
                os.fsync(log.fileno())
                library.save({"step": step, "log": log.tell(), "model": model.state_dict(),
                              "optimizer": optimizer.state_dict()}, root / "model.pt.tmp")
                os.rename(root / "model.pt.tmp", path)
                course.safe(step)


def torch_step(library, model, optimizer, step):
    source = library.Generator().manual_seed(step)
    data = library.randn(32, 16, generator=source)
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# LAMMPS and GROMACS: started by this program, which checks their output.

MELT = Path(__file__).resolve().parents[2] / "demo/in.melt"
LAMMPS_EVERY = 100


def lammps_one(root, course):
    """One restart file, overwritten in place; if it is torn, the run starts from the beginning."""
    lammps(root, course, ["melt.restart"])


def lammps_two(root, course):
    """Two alternating restart files, one of which is always whole."""
    lammps(root, course, ["melt.a", "melt.b"])


def lammps(root, course, names):
    there = [name for name in names if (root / name).exists()]
    there.sort(key=lambda name: (root / name).stat().st_mtime_ns, reverse=True)
    for name in there:
        others = [other for other in names if other != name]
        if lammps_run(root, course, [*others, name], ["-var", "from", root / name]):
            return
        course.say("torn " + name, 0)
    if not lammps_run(root, course, names, []):
        refuse("lmp failed")


def lammps_run(root, course, names, begin):
    """Runs from one restart file to the end; returns False if LAMMPS could not read the file."""
    turns = " ".join(str(root / names[turn % len(names)]) for turn in range(2))
    melt = course.aside / "in.melt"
    melt.write_text(MELT.read_text().replace("\nrun ", "\nthermo_modify flush yes\nrun "))
    line = ["lmp", "-in", melt, "-log", "none", "-var", "dir", root, "-var", "cells", "8", "-var",
            "every", LAMMPS_EVERY, "-var", "steps", course.steps, "-var", "final",
            root / "final.dump", *begin, "-var", "files", turns]
    lmp = subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, text=True)
    found, said = False, []
    for text in lmp.stdout:
        said.append(text)
        if (number := text.split()[:1]) and number[0].isdigit() and len(text.split()) == 6:
            course.say("safe" if found else "found", int(number[0]))
            found = True
    if lmp.wait() and found:
        refuse("lmp failed: " + "".join(said)[-300:])
    return found


GROMACS_INPUT = {"md.mdp": """
integrator = md
dt = 0.002
nstxout = 400
nstvout = 400
nstenergy = 100
nstlog = 400
nstxout-compressed = 100
coulombtype = Reaction-Field
rcoulomb = 0.8
rvdw = 0.8
rlist = 0.8
tcoupl = v-rescale
tc-grps = System
tau-t = 0.5
ref-t = 300
gen-vel = yes
gen-temp = 300
gen-seed = 7
ld-seed = 7
""", "top.top": """
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spc.itp"
[ system ]
water
[ molecules ]
SOL 216
"""}
GROMACS_WATER = "/usr/share/gromacs/top/spc216.gro"


def gromacs(root, course):
    """A box of water: four files that stay open, and a checkpoint every 1.2 seconds."""
    tpr = gromacs_input(course.aside, course.steps)
    begin = [root / name for name in ("md.cpt", "md_prev.cpt") if (root / name).exists()]
    line = ["gmx", "-quiet", "-nobackup", "mdrun", "-s", tpr, "-deffnm", root / "md", "-cpt",
            "0.02", "-ntmpi", "1", "-ntomp", "1", "-nb", "cpu", "-reprod"]
    line += ["-cpi", begin[0]] if begin else []
    with open(course.aside / "mdrun", "w") as said:
        mdrun = subprocess.Popen(list(map(str, line)), stdout=said, stderr=said, cwd=course.aside)
    gromacs_watch(root, course, mdrun)
    if mdrun.returncode:
        refuse("mdrun failed: " + (course.aside / "mdrun").read_text()[-600:].replace("\n", " / "))


def gromacs_input(folder, steps):
    """The run input, made once with GROMACS' own tools from its own box of water."""
    tpr = folder / "run.tpr"
    if not tpr.exists():
        for name, text in GROMACS_INPUT.items():
            text += f"nsteps = {steps}\n" if name == "md.mdp" else ""
            (folder / name).write_text(text)
        subprocess.run(["gmx", "-quiet", "-nobackup", "grompp", "-f", "md.mdp", "-p", "top.top",
                        "-c", GROMACS_WATER, "-o", "part.tpr", "-maxwarn", "3"], cwd=folder,
                       check=True, capture_output=True)
        os.rename(folder / "part.tpr", tpr)
    return tpr


def gromacs_watch(root, course, mdrun):
    """Records the step that mdrun begins with, and each step with a written checkpoint."""
    said, checkpoint = False, inode(root / "md.cpt")
    while mdrun.poll() is None:
        time.sleep(0.02)
        start = re.search(r"\d+ steps,.*", (course.aside / "mdrun").read_text())
        if start and not said:
            step = re.search(r"continuing from step +(\d+)", start[0])
            course.say("found", int(step[1]) if step else 0)
            said = True
        if (now := inode(root / "md.cpt")) not in (None, checkpoint):
            checkpoint = now
            written = re.findall(r"Writing checkpoint, step (\d+)", (root / "md.log").read_text())
            course.safe(int(written[-1]))


def inode(path):
    try:
        return path.stat().st_ino, path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


APPLICATIONS = [sqlite_rollback, sqlite_wal, trainer, tensorflow, namd, lightning, hdf5, netcdf,
                torch, lammps_one, lammps_two, gromacs, *FOREIGN]


def main():
    name, root, aside, steps = sys.argv[1:]
    application = {each.__name__: each for each in APPLICATIONS}[name]
    root = Path(root) / "work"
    root.mkdir(exist_ok=True)
    application(root, Course(aside, int(steps)))


if __name__ == "__main__":
    main()
