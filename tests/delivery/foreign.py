"""Programs in other languages, databases and tools that checkpoint and resume, for applications.py.

Each works in steps: a state that follows from the step, a log that grows, and a checkpoint by the
language's own means. Started again it resumes from what it finds, and refuses files that its tools
or its log contradict. Those in other languages are whole programs: they print `found N` once and
`safe N` for each checkpoint, and `relay` passes these lines to the course.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

SERVER_LIMIT_S = 60  # The start of a server that reads its log, on a busy machine.


def refuse(why):
    raise SystemExit("Error: " + why)


def state_after(steps):
    """The state that all programs of this file compute; a double holds it exactly."""
    state = 1
    for step in range(1, steps + 1):
        state = (state * 16807 + step) % 2147483647
    return state


def relay(root, course, *command):
    """Runs a program in `root` with the number of steps and their pause; passes on its output."""
    line = [*map(str, command), str(course.steps), str(course.pause)]
    program = subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for text in program.stdout:
        what, step = text.split()
        course.say(what, int(step))
    said = program.stderr.read()
    if program.wait():
        refuse(f"{command[0]} ended with {program.returncode}: {said[-300:]!r}")


def source(course, name, text):
    """Writes the program's source outside the store; returns its path."""
    path = course.aside / name
    path.write_text(text)
    return path


NODE = r"""
const fs = require('fs');
const [steps, pause] = process.argv.slice(2).map(Number);
const refuse = (why) => { console.error('Error: ' + why); process.exit(1); };
let found = {step: 0, state: 1, log: 0};
if (fs.existsSync('state.json')) found = JSON.parse(fs.readFileSync('state.json', 'utf8'));
let state = 1;
for (let step = 1; step <= found.step; step++) state = (state * 16807 + step) % 2147483647;
if (state !== found.state) refuse(`state.json says ${found.state}`);
const log = fs.openSync('log', 'a');
if (fs.fstatSync(log).size < found.log) refuse('the log is shorter than the checkpoint says');
fs.ftruncateSync(log, found.log);
fs.writeSync(1, `found ${found.step}\n`);
const clock = new Int32Array(new SharedArrayBuffer(4));
for (let step = found.step + 1; step <= steps; step++) {
    Atomics.wait(clock, 0, 0, pause * 1000);
    state = (state * 16807 + step) % 2147483647;
    fs.writeSync(log, `step ${step} state ${state}\n`);
    if (step % 5 === 0 || step === steps) {
        const content = {step, state, log: fs.fstatSync(log).size, fill: 'x'.repeat(20000)};
        fs.writeFileSync('state.tmp', JSON.stringify(content));
        fs.renameSync('state.tmp', 'state.json');
        fs.writeSync(1, `safe ${step}\n`);
    }
}
"""


def node(root, course):
    """Files written whole and renamed, a log that stays open."""
    relay(root, course, "node", source(course, "program.js", NODE))


JAVA = r"""
import java.io.*;
import java.nio.*;
import java.nio.channels.FileChannel;
import java.nio.file.*;

public class Program {
    static void refuse(String why) {
        System.err.println("Error: " + why);
        System.exit(1);
    }

    static long advance(long state, long step) {
        return (state * 16807 + step) % 2147483647L;
    }

    public static void main(String[] arguments) throws Exception {
        int steps = Integer.parseInt(arguments[0]);
        long pause = (long) (Double.parseDouble(arguments[1]) * 1000);
        long[] found = {0, 1};
        Path kept = Path.of("state.objects"), part = Path.of("state.tmp");
        if (Files.exists(kept)) {
            try (ObjectInputStream in = new ObjectInputStream(new BufferedInputStream(Files.newInputStream(kept)))) {
                found = (long[]) in.readObject();
            }
        }
        long state = 1;
        try (RandomAccessFile file = new RandomAccessFile("mapped", "rw"); FileChannel channel = file.getChannel()) {
            MappedByteBuffer mapped = channel.map(FileChannel.MapMode.READ_WRITE, 0, 8L * steps);
            for (int step = 1; step <= found[0]; step++) {
                state = advance(state, step);
                if (mapped.getLong(8 * (step - 1)) != state) refuse("step " + step + " of `mapped` is another one");
            }
            if (state != found[1]) refuse("state.objects says " + found[1]);
            System.out.println("found " + found[0]);
            for (int step = (int) found[0] + 1; step <= steps; step++) {
                Thread.sleep(pause);
                state = advance(state, step);
                mapped.putLong(8 * (step - 1), state);
                if (step % 5 == 0 || step == steps) {
                    mapped.force();
                    try (ObjectOutputStream out = new ObjectOutputStream(new FileOutputStream(part.toFile()))) {
                        out.writeObject(new long[] {step, state});
                        out.writeObject(new byte[20000]);
                    }
                    Files.move(part, kept, StandardCopyOption.ATOMIC_MOVE);
                    System.out.println("safe " + step);
                }
            }
        }
    }
}
"""


def java(root, course):
    """Objects by way of a temporary file, and a table that is mapped."""
    relay(root, course, "java", source(course, "Program.java", JAVA))


R = r"""
arguments <- as.numeric(commandArgs(TRUE))
advance <- function(state, step) (state * 16807 + step) %% 2147483647
found <- if (file.exists("state.rds")) readRDS("state.rds") else list(step = 0, state = 1)
state <- 1
for (step in seq_len(found$step)) state <- advance(state, step)
if (state != found$state) stop("state.rds has another state")
lines <- if (file.exists("log")) suppressWarnings(readLines("log")) else character()
if (length(lines) < found$step) stop("the log is shorter than the checkpoint says")
writeLines(lines[seq_len(found$step)], "log.tmp")
stopifnot(file.rename("log.tmp", "log"))
log <- file("log", "a")
cat("found", found$step, "\n")
for (step in seq_len(arguments[1])[seq_len(arguments[1]) > found$step]) {
    Sys.sleep(arguments[2])
    state <- advance(state, step)
    cat("step", step, "state", sprintf("%.0f", state), "\n", file = log)
    if (step %% 5 == 0 || step == arguments[1]) {
        flush(log)
        saveRDS(list(step = step, state = state, more = rep(step, 5000)), "state.tmp")
        stopifnot(file.rename("state.tmp", "state.rds"))
        cat("safe", step, "\n")
    }
}
close(log)
"""


def r(root, course):
    """Objects by `saveRDS` and a rename, a log of lines."""
    relay(root, course, "Rscript", "--vanilla", source(course, "program.R", R))


OCTAVE = r"""
arguments = cellfun(@str2double, argv());
found = struct("step", 0, "state", 1);
if exist("state.bin", "file"), found = load("state.bin"); end
state = 1;
for step = 1:found.step, state = mod(state * 16807 + step, 2147483647); end
if state != found.state, error("state.bin has another state"); end
before = "";
if exist("log", "file"), before = fileread("log"); end
ends = [0, find(before == "\n")];
if numel(ends) <= found.step, error("the log is shorter than the checkpoint says"); end
file = fopen("log.tmp", "w"); fwrite(file, before(1:ends(found.step + 1))); fclose(file);
rename("log.tmp", "log");
log = fopen("log", "a");
printf("found %d\n", found.step); fflush(stdout);
for step = found.step + 1:arguments(1)
  pause(arguments(2));
  state = mod(state * 16807 + step, 2147483647);
  fprintf(log, "step %d state %d\n", step, state);
  if mod(step, 5) == 0 || step == arguments(1)
    fflush(log);
    more = (1:3000) * step;
    save("-binary", "state.tmp", "step", "state", "more");
    rename("state.tmp", "state.bin");
    printf("safe %d\n", step); fflush(stdout);
  end
end
fclose(log);
"""


def octave(root, course):
    """Variables in its binary format by way of a temporary file, a log of lines."""
    line = ["octave-cli", "--no-gui", "--norc", "--quiet"]
    relay(root, course, *line, source(course, "program.m", OCTAVE))


FORTRAN = r"""
program checkpoints
  use, intrinsic :: iso_fortran_env, only: int64, output_unit
  implicit none
  integer(int64) :: state, steps, step, found, at, there, row
  real(8) :: pause_s, field(4096)
  character(32) :: word
  character(1), parameter :: slots(0:1) = ['a', 'b']
  integer :: slot, failed
  call get_command_argument(1, word); read (word, *) steps
  call get_command_argument(2, word); read (word, *) pause_s
  found = 0
  do slot = 0, 1
    open (10, file='state.'//slots(slot), form='unformatted', status='old', action='read', iostat=failed)
    if (failed /= 0) cycle
    read (10, iostat=failed) at, there, field
    close (10)
    if (failed == 0 .and. at > found) found = at
  end do
  open (11, file='rows', access='direct', recl=512)
  state = 1
  do step = 1, found
    state = advance(state, step)
    read (11, rec=step, iostat=failed) row
    if (failed /= 0 .or. row /= state) error stop 'a row is missing or another one'
  end do
  write (*, '(a,i0)') 'found ', found
  flush (output_unit)
  do step = found + 1, steps
    call rest(pause_s)
    state = advance(state, step)
    write (11, rec=step) state
    if (mod(step, 5_int64) == 0 .or. step == steps) then
      flush (11)
      field = real(state, 8)
      open (10, file='state.'//slots(mod(step / 5, 2_int64)), form='unformatted', status='replace')
      write (10) step, state, field
      close (10)
      write (*, '(a,i0)') 'safe ', step
      flush (output_unit)
    end if
  end do
contains
  function advance(before, at_step) result(after)
    integer(int64), intent(in) :: before, at_step
    integer(int64) :: after
    after = mod(before * 16807_int64 + at_step, 2147483647_int64)
  end function
  subroutine rest(seconds)
    real(8), intent(in) :: seconds
    integer(int64) :: begun, now, rate
    call system_clock(begun, rate)
    do
      call system_clock(now)
      if (now - begun >= seconds * rate) exit
    end do
  end subroutine
end program
"""


def fortran(root, course):
    """Unformatted files in two alternating places, and a direct-access file of records."""
    program = course.aside / "program"
    if not program.exists():
        part = course.aside / "program.part"
        line = ["gfortran", "-O1", "-o", part, source(course, "program.f90", FORTRAN)]
        subprocess.run(line, check=True)
        os.rename(part, program)
    relay(root, course, program)


# Redis: keys in an append-only file, which is rewritten from time to time.

@contextmanager
def redis_server(folder):
    """Yields a connection to a server of the files below `folder`; the server ends with it."""
    for left in folder.glob("temp-*"):
        left.unlink()  # Of a rewrite that was killed; the server does not look at it.
    with tempfile.TemporaryDirectory() as aside:
        place, log = Path(aside, "socket"), Path(aside, "log")
        line = ["redis-server", "--port", "0", "--unixsocket", place, "--dir", folder, "--appendonly", "yes",
                "--appendfsync", "everysec", "--save", "", "--auto-aof-rewrite-min-size", "200kb",
                "--auto-aof-rewrite-percentage", "50", "--logfile", log,
                "--set-proc-title", "no"]  # A title would overwrite the environment, by which it is found.
        server = subprocess.Popen(list(map(str, line)), stdout=subprocess.DEVNULL)
        try:
            with redis_connection(server, place, log) as connection:
                while redis(connection, "PING") != b"PONG":
                    time.sleep(0.02)
                yield connection
            server.terminate()
            server.wait(SERVER_LIMIT_S)
        finally:
            server.kill()


def redis_connection(server, place, log):
    until = time.monotonic() + SERVER_LIMIT_S
    with socket.socket(socket.AF_UNIX) as asked:
        while server.poll() is None and time.monotonic() < until:
            try:
                asked.connect(str(place))
                return asked.makefile("rwb")
            except OSError:
                time.sleep(0.02)
    refuse("redis-server: " + log.read_text()[-300:].replace("\n", " / "))


def redis(connection, *words):
    """Sends one command and returns its answer; parses only the kinds used here."""
    words = [str(word).encode() for word in words]
    sent = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    connection.write(b"*%d\r\n" % len(words) + sent)
    connection.flush()
    answer = connection.readline().rstrip()
    if answer[:1] == b"-" and not answer.startswith(b"-LOADING"):
        refuse(f"redis: {answer.decode()}")
    if answer[:1] != b"$":
        return answer[1:]
    length = int(answer[1:])
    return None if length < 0 else connection.read(length + 2)[:-2]


def redis_rows(connection):
    """Number of keys; refuses a key without the state of its step."""
    count = int(redis(connection, "DBSIZE"))
    for step in range(1, count + 1):
        if redis(connection, "GET", f"step {step}") != redis_value(step):
            refuse(f"of {count} keys, that of step {step} has another value")
    return count


def redis_value(step):
    return b"%d " % state_after(step) + b"x" * 1000


def redis_appends(root, course):
    """One key in each step; a key that the server has confirmed must not be missing."""
    with redis_server(root) as connection:
        for step in course.begin(redis_rows(connection)):
            redis(connection, "SET", f"step {step}", redis_value(step).decode())
            course.safe(step)


def redis_shown(folder):
    """Content as a server reads it from a copy of the files."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, Path(copy, folder.name))
        with redis_server(Path(copy)) as connection:
            return redis_rows(connection)


# git: a commit in each step.

def git_run(root, *words):
    date = "2026-01-01T00:00:00Z"
    known = dict(os.environ, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date, GIT_CONFIG_NOSYSTEM="1",
                 GIT_CONFIG_GLOBAL="/dev/null")
    line = ["git", "-c", "user.name=n", "-c", "user.email=e@e", "-c", "gc.auto=0", "-c", "safe.directory=*",
            "-C", root, *words]
    done = subprocess.run(list(map(str, line)), env=known, capture_output=True, text=True)
    if done.returncode:
        refuse(f"git {words[0]}: {done.stderr[-300:]!r}")
    return done.stdout


def git(root, course):
    repository = root / "repository"
    if not (repository / "file7").exists():
        shutil.rmtree(repository, ignore_errors=True)
        git_run(root, "init", "-q", "-b", "main", repository)
        git_run(repository, "commit", "-q", "--allow-empty", "-m", "step 0")
    # A killed git leaves its locks and asks the user to remove them.
    for lock in (repository / ".git").rglob("*.lock"):
        lock.unlink()
    git_run(repository, "fsck", "--full", "--strict")
    git_run(repository, "reset", "-q", "--hard")
    for step in course.begin(int(git_run(repository, "rev-list", "--count", "HEAD")) - 1):
        for number in (step % 7, 7):
            (repository / f"file{number}").write_text(f"{state_after(step)}\n" * 40)
        git_run(repository, "add", "-A")
        git_run(repository, "commit", "-q", "-m", f"step {step}")
        course.safe(step)
        if step % 20 == 0:
            git_run(repository, "repack", "-qad")


def git_shown(folder):
    git_run(folder, "fsck", "--full", "--strict")
    return git_run(folder, "log", "--format=%H %T %s") + git_run(folder, "status", "--short")


# RocksDB, by its own tool: one process for each batch.

def ldb(*words):
    done = subprocess.run(["ldb", *map(str, words)], capture_output=True, text=True)
    if done.returncode or done.stdout.startswith("Failed"):
        refuse(f"ldb: {(done.stdout + done.stderr)[-300:]!r}")
    return done.stdout


def rocksdb(root, course):
    base, found = root / "base", 0
    if base.exists():
        shown = rocksdb_rows(base)
        found = len(shown)
        if shown != [f"s{step:05} : {state_after(step)}" for step in range(1, found + 1)]:
            refuse(f"of {found} rows, one has another value")
    for step in course.begin(found):
        ldb(f"--db={base}", "--create_if_missing", "batchput", f"s{step:05}", state_after(step))
        course.safe(step)


def rocksdb_rows(base):
    return ldb(f"--db={base}", "scan").splitlines() if (base / "CURRENT").exists() else []


def rocksdb_shown(folder):
    """Content as read from a copy, because reading a database changes it."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        return rocksdb_rows(Path(copy))


FOREIGN = [node, java, r, octave, fortran, redis_appends, git, rocksdb]
