//! Mapped files of a store on another machine's namespace: when stores reach the namespace, and who
//! sees them before.

mod common;
#[path = "common/exported.rs"]
mod exported;
#[path = "common/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../../cairn-target/tests/nvme/proxy.rs"]
mod proxy;

use common::Sandbox;
use exported::{Target, exporting, lose_memory};
use machine::{Machine, ran};
use proxy::{Harm, Proxy};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// Python helpers. `stored(text)`: whether the namespace has the text. `seen(text)`: whether
/// another process reads it. `later(act)`: waits for `act`.
const TOOLS: &str = "
import ctypes, mmap, os, signal, subprocess, sys, time
export, path, size = sys.argv[1], '/cairn/f', 300000
def stored(text):
    with open(export, 'rb') as file:
        return text in file.read()
def seen(text):
    reads = 'import sys; sys.exit(sys.argv[1].encode() not in open(sys.argv[2], \"rb\").read())'
    return subprocess.run([sys.executable, '-c', reads, text.decode(), path]).returncode == 0
def later(act):
    for round in range(3000):
        if act():
            return True
        time.sleep(0.01)
    return False
def in_memory():
    return os.stat(os.environ['CAIRN_STORE'] + '/node.transit0').st_blocks * 512
file = open(path, 'w+b', buffering=0)
file.write(b'.' * size)
os.fsync(file.fileno())
";

/// Output of a program with the helpers, in a store that is discarded.
fn printed(sandbox: &Sandbox, program: &str) -> String {
    let target = Target::start(sandbox, "127.0.0.1:0");
    let (program, export) = (format!("{TOOLS}{program}"), sandbox.work().join("export"));
    let export = export.display().to_string();
    let run = ["run", "--tier", &target.tier, "--discard", "--", "python3", "-c", &program];
    sandbox.cairn(&[&run[..], &[&export]].concat()).succeeds().stdout
}

#[test]
fn stores_are_everybodys_at_once_and_the_namespaces_when_they_are_synced_or_unmapped() {
    let program = "
m = mmap.mmap(file.fileno(), size)
m[70000:70009] = b'by msync.'
print(seen(b'by msync.'), stored(b'by msync.'))
m.flush()
print(stored(b'by msync.'))
m[290000:290009] = b'by fsync.'
os.fsync(file.fileno())
print(stored(b'by fsync.'))
os.pwrite(file.fileno(), b'written', 70004)
print(bytes(m[70000:70012]), stored(b'by mwritten'))
m[5:15] = b'by munmap.'
print(stored(b'by munmap.'), seen(b'by munmap.'))
m.close()
print(stored(b'by munmap.'), seen(b'by munmap.'))
";
    let expected = "True False\nTrue\nTrue\nb'by mwritten.' True\nFalse True\nTrue True\n";
    assert_eq!(printed(&exporting(), program), expected);
}

#[test]
fn stores_of_a_program_that_is_killed_are_everybodys_and_the_agent_brings_them_to_the_namespace() {
    let program = "
child = os.fork()
if child == 0:
    m = mmap.mmap(file.fileno(), size)
    m[200000:200012] = b'by the dead.'
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
print(seen(b'by the dead.'), later(lambda: stored(b'by the dead.')), seen(b'by the dead.'))
";
    assert_eq!(printed(&exporting(), program), "True True True\n");
}

#[test]
fn memory_is_given_back_when_nobody_has_the_file_mapped() {
    let program = "
large = open('/cairn/large', 'w+b', buffering=0)
large.write(b'-' * (24 << 20))
before = in_memory()
m = mmap.mmap(large.fileno(), 24 << 20)
n = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
print(in_memory() - before >= 24 << 20)
m[12345678:12345685] = b'was it.'
m.close()
print(later(lambda: in_memory() - before < 8 << 20), bytes(n[:3]))
print(os.pread(large.fileno(), 9, 12345677))
m = mmap.mmap(large.fileno(), 24 << 20)
print(bytes(m[12345677:12345686]))
os.unlink('/cairn/large')
large.close()
m[12345678:12345682] = b'gone'
m.close()
print(later(lambda: in_memory() - before < 8 << 20))
";
    let expected = "True\nTrue b'...'\nb'-was it.-'\nb'-was it.-'\nTrue\n";
    assert_eq!(printed(&exporting(), program), expected);
}

#[test]
fn several_files_stay_mapped_while_the_agent_looks() {
    let program = "
files = [file] + [open('/cairn/file%d' % number, 'w+b', buffering=0) for number in range(3)]
for one in files: one.write(b'-' * (5 << 20))
maps = [mmap.mmap(one.fileno(), 5 << 20) for one in files]
for m in maps: m[4321:4326] = b'first'
gone = maps.pop()
before = in_memory()
gone.close()
# Which shows that the agent has looked.
print(later(lambda: in_memory() < before))
for number, m in enumerate(maps):
    m[4326:4334] = b' later %d' % number
    m.flush()
print([bytes(m[4321:4334]) for m in maps] == [b'first later %d' % number for number in range(3)])
print([stored(b'first later %d' % number) for number in range(3)])
";
    let expected = "True\nTrue\n[True, True, True]\n";
    assert_eq!(printed(&exporting(), program), expected);
}

#[test]
fn mapping_for_which_there_is_no_right_or_room_is_refused_and_a_private_one_is_a_copy() {
    let program = "
import resource
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, unlimited[1]))
try: mmap.mmap(file.fileno(), size)
except OSError as error: print(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
reading = open(path, 'rb', buffering=0)
start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, reading.fileno(), 0)
refused = libc.mprotect(start, size, mmap.PROT_READ | mmap.PROT_WRITE)
print(refused, ctypes.get_errno())
os.pwrite(file.fileno(), b'shown', 4096)
print(ctypes.string_at(start + 4095, 7))
private = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE)
private[4096:4099] = b'own'
os.pwrite(file.fileno(), b'later', 8192)
print(bytes(private[4095:4101]), bytes(private[8192:8197]), os.pread(file.fileno(), 5, 4096))
";
    let (too_large, refused) = (libc::EFBIG, libc::EACCES);
    let shown = "b'.shown.'\nb'.ownwn' b'.....' b'shown'";
    let expected = format!("{too_large}\n-1 {refused}\n{shown}\n");
    assert_eq!(printed(&exporting(), program), expected);
}

#[test]
fn what_was_synced_is_there_when_the_node_has_lost_its_memory() {
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    let run = |job: &str, program: &[&str]| {
        sandbox.cairn(&[&["run", "--job", job, "--tier", &target.tier, "--"], program].concat())
    };
    let program = "
m = mmap.mmap(file.fileno(), size)
m[70000:70007] = b'synced.'
m.flush()
os.kill(os.getpid(), signal.SIGKILL)
";
    let export = sandbox.work().join("export").display().to_string();
    run("first", &["python3", "-c", &format!("{TOOLS}{program}"), &export]).ends_with(137);
    lose_memory(&sandbox, "first");
    let found = run("second", &["grep", "-o", "synced.", "/cairn/f"]);
    assert_eq!(found.stdout, "synced.\n", "{}", found.stderr);
}

/// The target refuses the blocks with file data, and serves the blocks before them.
#[test]
fn write_back_that_failed_when_a_file_was_unmapped_fails_its_fsync_until_it_succeeds() {
    let program = "
def synced():
    try: os.fsync(file.fileno())
    except OSError as error: return error.errno
    return 0
def waits(text):
    print(text, flush=True)
    input()
m = mmap.mmap(file.fileno(), size)
m[70000:70007] = b'stored.'
waits('mapped')
m.close()
print(synced(), synced(), stored(b'stored.'))
waits('refused')
print(synced(), stored(b'stored.'))
";
    let mut dialogue = Dialogue::begin(program);
    assert_eq!(dialogue.said(), "mapped");
    let first = dialogue.first_block();
    dialogue.proxy.arm(Harm::Refusal { first }, i64::MAX);
    dialogue.answer();
    let refused = [format!("{0} {0} False", libc::EIO), "refused".to_string()];
    assert_eq!([dialogue.said(), dialogue.said()], refused);
    dialogue.proxy.disarm();
    dialogue.answer();
    assert_eq!(dialogue.said(), "0 True");
    dialogue.end();
}

/// Mechanism: `msync` recorded that the file was stored to, wrote the bytes and then made that
/// record durable. Another process's `fsync` made the record durable in between.
///
/// Consequence: nothing told the target to make the bytes durable.
///
/// Fix: `msync` tells it.
#[test]
fn msync_has_the_target_make_durable_what_it_wrote_after_another_process_synced() {
    let program = "
other = open('/cairn/other', 'wb', buffering=0)
m = mmap.mmap(file.fileno(), size)
m[70000:70007] = b'stored.'
print('mapped', flush=True)
input()
child = os.fork()
if child == 0:
    m.flush()
    print('stored', flush=True)
    os._exit(0)
input()
os.fchmod(other.fileno(), 0o600)
os.fsync(other.fileno())
print('synced', flush=True)
os.waitpid(child, 0)
";
    let mut dialogue = Dialogue::begin(program);
    assert_eq!(dialogue.said(), "mapped");
    let first = dialogue.first_block();
    dialogue.proxy.arm(Harm::Delay { first }, i64::MAX);
    dialogue.answer();
    while !dialogue.proxy.is_delaying() {
        std::thread::yield_now();
    }
    dialogue.answer();
    assert_eq!(dialogue.said(), "synced");
    let before = dialogue.proxy.flushes();
    dialogue.proxy.disarm();
    assert_eq!(dialogue.said(), "stored");
    assert!(dialogue.proxy.flushes() > before);
    dialogue.end();
}

/// A program with the helpers that reports its progress, with a proxy in front of its target.
struct Dialogue {
    export: std::path::PathBuf,
    proxy: Proxy,
    child: Child,
    answers: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    _target: Target,
    _sandbox: Sandbox,
}

impl Dialogue {
    fn begin(program: &str) -> Dialogue {
        let sandbox = exporting();
        let target = Target::start(&sandbox, "127.0.0.1:0");
        let proxy = Proxy::calm(target.address.parse().expect("an address"));
        let tier = target.tier.replace(&target.address, &proxy.address.to_string());
        let (program, export) = (format!("{TOOLS}{program}"), sandbox.work().join("export"));
        let run = ["run", "--tier", &tier, "--discard", "--", "python3", "-c", &program];
        let mut command = sandbox.command(&run);
        command.arg(&export).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let answers = child.stdin.take().expect("it is a pipe");
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        Dialogue { export, proxy, child, answers, lines, _target: target, _sandbox: sandbox }
    }

    fn said(&mut self) -> String {
        self.lines.next().and_then(Result::ok).unwrap_or_default()
    }

    fn answer(&mut self) {
        writeln!(self.answers).expect("it reads");
    }

    /// First block with file data.
    fn first_block(&self) -> u64 {
        let content = std::fs::read(&self.export).expect("is there");
        let first = content.windows(4096).position(|bytes| bytes.iter().all(|&byte| byte == b'.'));
        first.expect("was synced") as u64 / 4096
    }

    fn end(mut self) {
        assert!(self.child.wait().expect("it is a child").success());
    }
}

/// Mechanism: a piece was fetched if an eighth of the memory was free before, and the piece then
/// reduced that eighth.
///
/// Consequence: less than an eighth was left to others.
///
/// Fix: an eighth must be free with the piece in memory.
#[test]
fn mappings_leave_an_eighth_of_the_memory_for_shared_files_free() {
    let Some(machine) = Machine::start() else { return };
    let program = "
def free():
    found = os.statvfs(os.environ['CAIRN_STORE'])
    return found.f_bavail * found.f_bsize, found.f_blocks * found.f_bsize
file.write(b'+' * (40 << 20))
maps = []
try:
    while True:
        maps.append(mmap.mmap(file.fileno(), 1 << 20, offset=len(maps) << 20))
except OSError as error: print(error.errno)
left, all = free()
# What else the store has there may grow meanwhile.
print(left >= all // 8 - (128 << 10), left < all // 8 + (4 << 20))
print(bytes(maps[-1][-1:]), len(maps) < 40)
while maps:
    maps.pop().close()
def maps_again():
    try: return maps.append(mmap.mmap(file.fileno(), 8 << 20)) is None
    except OSError: return False
print(later(maps_again), bytes(maps[0][-1:]))
";
    let sandbox = exporting();
    let target = Target::start(&sandbox, "127.0.0.1:0");
    let mount = ["-t", "tmpfs", "-o", "size=32m", "none"];
    ran(machine.command("mount").args(mount).arg(sandbox.root())).succeeds();
    let (program, export) = (format!("{TOOLS}{program}"), sandbox.work().join("export"));
    let run = ["run", "--tier", &target.tier, "--discard", "--", "python3", "-c", &program];
    let export = export.display().to_string();
    let found = ran(&mut machine.cairn(&sandbox, &[&run[..], &[&export]].concat())).succeeds();
    let expected = format!("{}\nTrue True\nb'+' True\nTrue b'+'\n", libc::ENOSPC);
    assert_eq!(found.stdout, expected, "{}", found.stderr);
}
