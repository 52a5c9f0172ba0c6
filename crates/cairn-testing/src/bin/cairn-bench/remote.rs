//! Rows about namespaces on another machine, which is `cairn target` in a process of its own here,
//! against what TCP itself does on this machine in the same run.
//!
//! Host and target have a processor each: initiator and plain stream send from the first, target
//! and sink receive on the last. Rows about the whole stack let the kernel place everything.

use crate::data::{CHECKPOINT_BYTES, application_state, create, write_all};
use crate::measure::{PAIRS, Row, gigabytes_per_second, nanoseconds_each, thousands_per_second};
use crate::process::number_from;
use cairn_device::nvme::controller::{Controller, Settings};
use cairn_device::nvme::queue::Queue;
use cairn_device::nvme::tcp::{TcpFabric, TcpTransport};
use cairn_device::nvme::wire::Nqn;
use serde_json::Value;
use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const NAME: &str = "nqn.2026-11.io.cairn:bench";
/// Room for a checkpoint, and for a store around it.
const EXPORT_BYTES: usize = CHECKPOINT_BYTES * 2;
/// Commands under way, of which the bars speak.
const DEPTH: usize = 32;
const DEPTH_OF_SMALL: usize = 64;
const LARGE: usize = 128 << 10;
const SMALL: usize = 4 << 10;
/// Bytes that a slice of a row moves, and commands of one about small ones.
const SLICE_BYTES: usize = 512 << 20;
const SLICE_COMMANDS: usize = 100_000;
const ROUND_TRIPS: usize = 20_000;
/// What surrounds data: a command, and the header of what comes back.
const COMMAND_BYTES: usize = 72;
const HEADER_BYTES: usize = 24;
/// The machine of which the bar for small commands was set: its plain stream, and thousands of
/// commands a second.
const BAR_STREAM: f64 = 5.3;
const BAR_COMMANDS: f64 = 350.0;
/// A checkpoint for which the medium and not its beginning and end count.
const SYNCED_BYTES: usize = 64 << 20;

/// All rows; those of the last kind alone if `path` is a device, else in a file that is made there.
pub fn rows(path: &Path) {
    println!("{}", Row::header());
    match is_device(path) {
        true => on_device(path),
        false => {
            bare();
            whole_stack();
            in_file(path);
        }
    }
}

/// The initiator alone, against TCP.
fn bare() {
    let [here, there] = processors();
    pin(here);
    let target = Target::start(&format!("ram:{EXPORT_BYTES}"), Some(there));
    let host = RefCell::new(Host::connect(&target));
    let stream = || plain_stream(there);
    let large =
        |direction| host.borrow_mut().transfer(direction, LARGE, DEPTH, SLICE_BYTES / LARGE);
    for (direction, bar) in [(Direction::Write, 0.45), (Direction::Read, 0.55)] {
        let name = format!("{direction}, 128 KiB, depth 32 / plain stream");
        let ours = || gigabytes_per_second(SLICE_BYTES, || large(direction));
        Row::compare(name, "GB/s", bar, ours, stream);
    }
    for direction in [Direction::Write, Direction::Read] {
        let (out, back) = direction.bytes_of_small();
        let one = || host.borrow_mut().transfer(direction, SMALL, 1, ROUND_TRIPS);
        let ours = || nanoseconds_each(ROUND_TRIPS, one);
        let name = format!("{direction}, 4 KiB, depth 1 / ping-pong");
        Row::compare_times(name, 1.9, ours, || ping_pong(there, out, back));
    }
    let small = |direction| {
        host.borrow_mut().transfer(direction, SMALL, DEPTH_OF_SMALL, SLICE_COMMANDS);
    };
    for direction in [Direction::Write, Direction::Read] {
        let name = format!("{direction}, 4 KiB, depth 64 / bar of stream");
        let ours = || thousands_per_second(SLICE_COMMANDS, || small(direction));
        Row::compare(name, "k/s", 1.0, ours, || stream() / BAR_STREAM * BAR_COMMANDS);
    }
    pin_to_any();
}

/// Checkpoints of a program under `cairn run`, against the same bytes by the initiator alone.
fn whole_stack() {
    let target = Target::start(&format!("ram:{EXPORT_BYTES}"), None);
    let state = application_state();
    let stack = || checkpoint_in_store(&["--tier", &target.tier, "--yes"], CHECKPOINT_BYTES);
    let bare = || {
        let mut host = Host::connect(&target);
        gigabytes_per_second(state.len(), || host.write_and_flush(&state))
    };
    Row::compare("checkpoint, whole stack / bare initiator", "GB/s", 0.95, stack, bare);
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Checkpoints on a device of this machine: exported, and as it is.
fn on_device(path: &Path) {
    let device = format!("block:{}", path.display());
    let bar = Some(0.965);
    same_medium("device", bar, |bytes| (exported(&device, bytes), on_tier(&device, bytes)));
}

/// The same in a file on this machine's disk. No bar: the page cache takes it, so the processors
/// are compared, of which host and target have one machine's together, and not what they write to.
fn in_file(path: &Path) {
    same_medium("file", None, |bytes| {
        take_space(path);
        let remote = exported(&format!("file:{}", path.display()), bytes);
        std::fs::remove_file(path).expect("removes the file");
        (remote, on_tier(&format!("file:{}:{EXPORT_BYTES}", path.display()), bytes))
    });
}

/// Rows that compare a medium on another machine with the same one here.
fn same_medium(medium: &str, bar: Option<f64>, pair: impl Fn(usize) -> (f64, f64)) {
    for bytes in [SYNCED_BYTES, CHECKPOINT_BYTES] {
        let pairs: Vec<_> = (0..PAIRS).map(|_| pair(bytes)).collect();
        let name = format!("checkpoint, {} MiB, remote / local {medium}", bytes >> 20);
        Row::print(name, "GB/s", bar, &pairs);
    }
}

fn exported(export: &str, bytes: usize) -> f64 {
    let target = Target::start(export, None);
    on_tier(&target.tier, bytes)
}

fn on_tier(tier: &str, bytes: usize) -> f64 {
    checkpoint_in_store(&["--tier", tier, "--yes"], bytes)
}

/// Makes a file that has all its space, as a tier does.
fn take_space(path: &Path) {
    let file = File::create(path).expect("makes the file");
    // SAFETY: no pointers are passed.
    let errno = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, EXPORT_BYTES as libc::off_t) };
    assert_eq!(errno, 0, "{}", path.display());
}

/// What a program under `cairn run` says of a checkpoint that replaces another: GB/s until it is
/// durable.
fn checkpoint_in_store(options: &[&str], bytes: usize) -> f64 {
    let own = std::env::current_exe().expect("own path");
    let mut command = cairn();
    command.args(["run", "--discard"]).args(options).arg("--").arg(&own);
    number_from(command.args(["child", "remote", &bytes.to_string()]))
}

/// The work of such a program.
pub fn checkpoint(bytes: usize) -> f64 {
    let mount = std::env::var("CAIRN_MOUNT").expect("CAIRN_MOUNT");
    let path = Path::new(&mount).join("checkpoint");
    let state = &application_state()[..bytes];
    let write = || {
        let file = create(&path);
        write_all(&file, state, 1 << 20);
        file.sync_all().expect("fsync");
    };
    write();
    gigabytes_per_second(bytes, write)
}

/// `cairn target`, ended with this.
struct Target {
    child: Child,
    address: SocketAddr,
    tier: String,
}

impl Target {
    fn start(export: &str, processor: Option<usize>) -> Target {
        let mut command = cairn();
        command.args(["--json", "target", "--listen", "127.0.0.1:0", "--nqn", NAME, export]);
        if let Some(processor) = processor {
            let place = move || {
                pin(processor);
                Ok(())
            };
            // SAFETY: one system call, which is all that the child does before it executes.
            unsafe { command.pre_exec(place) };
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("cairn starts");
        let stdout = child.stdout.take().expect("piped");
        let mut documents = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
        let report = documents.next().expect("it says where it is").expect("JSON");
        let address = report["address"].as_str().expect("an address");
        let tier = format!("nvme-tcp://{address}/{NAME}");
        Target { child, address: address.parse().expect("an address"), tier }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// Where data go.
#[derive(Clone, Copy)]
enum Direction {
    Write,
    Read,
}

impl Direction {
    /// What a small command is on the wire: bytes to the target, and from it.
    fn bytes_of_small(self) -> (usize, usize) {
        match self {
            Direction::Write => (COMMAND_BYTES + SMALL, HEADER_BYTES),
            Direction::Read => (COMMAND_BYTES, HEADER_BYTES + SMALL),
        }
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Direction::Write => "write",
            Direction::Read => "read",
        })
    }
}

/// The initiator, with one queue.
struct Host {
    queue: Queue<TcpTransport>,
    _controller: Controller<TcpFabric>,
    memory: Vec<u8>,
}

impl Host {
    fn connect(target: &Target) -> Host {
        let mut settings = Settings::new(*b"cairn-bench-host");
        settings.depth = DEPTH_OF_SMALL;
        settings.keep_alive = Duration::ZERO;
        let name = Nqn::new(NAME).expect("a valid name");
        let fabric = TcpFabric::new(target.address);
        let mut controller = Controller::connect(fabric, &name, &settings).expect("connected");
        let queue = controller.queue(1).expect("connected");
        Host { queue, _controller: controller, memory: vec![7; DEPTH * LARGE] }
    }

    /// `count` commands of `bytes`, `depth` of them under way: one after the other through the
    /// namespace, and round again.
    fn transfer(&mut self, direction: Direction, bytes: usize, depth: usize, count: usize) {
        let mut under_way = 0;
        for index in 0..count {
            if under_way == depth {
                assert!(self.queue.wait().expect("the target lives").status.is_success());
                under_way -= 1;
            }
            let at = (index * bytes % EXPORT_BYTES) as u64;
            let memory = &mut self.memory[index % DEPTH * bytes..][..bytes];
            // SAFETY: the memory lives until all commands have ended. What several of them have
            // left in it does not matter.
            let submitted = unsafe {
                match direction {
                    Direction::Write => self.queue.submit_write(at, memory.as_ptr(), bytes),
                    Direction::Read => self.queue.submit_read(at, memory.as_mut_ptr(), bytes),
                }
            };
            submitted.expect("the target lives");
            under_way += 1;
        }
        (0..under_way).for_each(|_| {
            assert!(self.queue.wait().expect("the target lives").status.is_success());
        });
    }

    fn write_and_flush(&mut self, state: &[u8]) {
        self.queue.write(0, state).expect("the target lives");
        self.queue.flush().expect("the target lives");
    }
}

/// GB/s of bytes that are sent as they are and read as they come.
fn plain_stream(processor: usize) -> f64 {
    let (mut ours, mut theirs) = connection();
    let sink = std::thread::spawn(move || {
        pin(processor);
        let mut memory = vec![0; LARGE];
        while theirs.read(&mut memory).expect("the stream lives") > 0 {}
        theirs.write_all(&[0]).expect("says that all has come");
    });
    let memory = vec![7; LARGE];
    let rate = gigabytes_per_second(SLICE_BYTES, || {
        (0..SLICE_BYTES / LARGE).for_each(|_| ours.write_all(&memory).expect("the stream lives"));
        ours.shutdown(std::net::Shutdown::Write).expect("the stream lives");
        ours.read_exact(&mut [0]).expect("all has come");
    });
    sink.join().expect("the sink has ended");
    rate
}

/// Nanoseconds until so many bytes have gone and so many have come back, where both sides look for
/// them all the time.
fn ping_pong(processor: usize, out: usize, back: usize) -> f64 {
    let (mut ours, mut theirs) = connection();
    for stream in [&ours, &theirs] {
        stream.set_nonblocking(true).expect("a mode");
    }
    let echo = std::thread::spawn(move || {
        pin(processor);
        let (mut ping, pong) = (vec![0; out], vec![7; back]);
        (0..ROUND_TRIPS).for_each(|_| {
            receive(&mut theirs, &mut ping);
            send(&mut theirs, &pong);
        });
    });
    let (ping, mut pong) = (vec![7; out], vec![0; back]);
    let time = nanoseconds_each(ROUND_TRIPS, || {
        (0..ROUND_TRIPS).for_each(|_| {
            send(&mut ours, &ping);
            receive(&mut ours, &mut pong);
        });
    });
    echo.join().expect("the echo has ended");
    time
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("there is a port");
    let ours = TcpStream::connect(listener.local_addr().expect("it listens")).expect("connected");
    let (theirs, _) = listener.accept().expect("connected");
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true).expect("an option");
    }
    (ours, theirs)
}

fn receive(stream: &mut TcpStream, mut memory: &mut [u8]) {
    while !memory.is_empty() {
        match stream.read(memory) {
            Ok(count) => memory = &mut memory[count..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

/// The command beside this program.
fn cairn() -> Command {
    Command::new(std::env::current_exe().expect("own path").with_file_name("cairn"))
}

/// Processors for the host and for the target.
fn processors() -> [usize; 2] {
    [0, std::thread::available_parallelism().map_or(1, usize::from) - 1]
}

/// Has this thread run on one processor. Where it may not, it runs anywhere.
fn pin(processor: usize) {
    run_on(processor..processor + 1);
}

fn pin_to_any() {
    run_on(0..libc::CPU_SETSIZE as usize);
}

fn run_on(processors: std::ops::Range<usize>) {
    // SAFETY: plain words, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours; numbers beyond its size are ignored.
    processors.for_each(|processor| unsafe { libc::CPU_SET(processor, &mut set) });
    // SAFETY: the kernel reads the set, which lives for the call.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}
