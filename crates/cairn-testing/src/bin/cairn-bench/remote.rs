//! Rows about namespaces on another machine, against plain TCP on this machine in the same run. The
//! other machine is a `cairn target` in a process of its own here.
//!
//! Host and target have one processor each: the initiator and the plain stream send from the first,
//! the target and the sink receive on the last. For rows about the whole stack the kernel places
//! everything.

use cairn_nvme::controller::{Controller, Settings};
use cairn_nvme::queue::Queue;
use cairn_nvme::tcp::{TcpFabric, TcpTransport};
use cairn_nvme::wire::Nqn;
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

use crate::data::{CHECKPOINT_BYTES, application_state, create, write_all};
use crate::measure::{PAIRS, Row, gigabytes_per_second, nanoseconds_each, thousands_per_second};
use crate::process::number_from;

const NAME: &str = "nqn.2026-11.io.cairn:bench";
/// Size of the exported namespace, bytes: room for a checkpoint and for the store around it.
const EXPORT_BYTES: usize = CHECKPOINT_BYTES * 2;
/// Queue depths that the bars assume.
const DEPTH: usize = 32;
const DEPTH_OF_SMALL: usize = 64;
const LARGE: usize = 128 << 10;
const SMALL: usize = 4 << 10;
/// Number of bytes that a slice of a row moves, and number of commands in a slice of small ones.
const SLICE_BYTES: usize = 512 << 20;
const SLICE_COMMANDS: usize = 100_000;
const ROUND_TRIPS: usize = 20_000;
/// Overhead on the wire, bytes: of a command, and of the header of what comes back.
const COMMAND_BYTES: usize = 72;
const HEADER_BYTES: usize = 24;
/// Machine for which the bar of small commands was set: GB/s of its plain stream, and thousands of
/// commands per second.
const BAR_STREAM: f64 = 5.3;
const BAR_COMMANDS: f64 = 350.0;
/// Size of a checkpoint that is large enough for the medium to matter, not the beginning and end,
/// bytes.
const SYNCED_BYTES: usize = 64 << 20;

/// Prints all rows. If `path` is a block device, prints only those on that device; otherwise the
/// last rows use a file that is made at `path`.
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

/// Measures the initiator alone against TCP.
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

/// Measures checkpoints of a program under `cairn run`, against the same bytes written by the
/// initiator alone.
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

/// Measures checkpoints on a device of this machine: exported, against direct use.
fn on_device(path: &Path) {
    let device = format!("block:{}", path.display());
    let bar = Some(0.965);
    same_medium("device", bar, |bytes| (exported(&device, bytes), on_tier(&device, bytes)));
}

/// Measures checkpoints on a file on this machine's disk: exported, against direct use. There is no
/// bar: the page cache absorbs the writes, so this compares processors, and here host and target
/// share those of one machine.
fn in_file(path: &Path) {
    same_medium("file", None, |bytes| {
        take_space(path);
        let remote = exported(&format!("file:{}", path.display()), bytes);
        std::fs::remove_file(path).expect("removes the file");
        (remote, on_tier(&format!("file:{}:{EXPORT_BYTES}", path.display()), bytes))
    });
}

/// Prints rows that compare a medium on another machine with the same medium here.
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

/// Makes a file with all its space allocated, as a tier does.
fn take_space(path: &Path) {
    let file = File::create(path).expect("makes the file");
    // SAFETY: posix_fallocate takes no pointers.
    let errno = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, EXPORT_BYTES as libc::off_t) };
    assert_eq!(errno, 0, "{}", path.display());
}

/// Runs a program under `cairn run` that replaces a checkpoint. Returns its rate until the
/// checkpoint is durable, GB/s.
fn checkpoint_in_store(options: &[&str], bytes: usize) -> f64 {
    let own = std::env::current_exe().expect("own path");
    let mut command = cairn();
    command.args(["run", "--discard"]).args(options).arg("--").arg(&own);
    number_from(command.args(["child", "remote", &bytes.to_string()]))
}

/// Work of such a program.
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

/// A running `cairn target`; dropping it ends the process.
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
            // SAFETY: the child only makes one system call before it executes the program.
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

/// Direction of a data transfer.
#[derive(Clone, Copy)]
enum Direction {
    Write,
    Read,
}

impl Direction {
    /// Returns the number of bytes of a small command on the wire: to the target, and from it.
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

/// The initiator with one queue.
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

    /// Runs `count` commands of `bytes` bytes with `depth` of them in flight. They go through the
    /// namespace in order and start over at its end.
    fn transfer(&mut self, direction: Direction, bytes: usize, depth: usize, count: usize) {
        let mut under_way = 0;
        for index in 0..count {
            if under_way == depth {
                assert!(self.queue.wait().expect("the target lives").status.is_success());
                under_way -= 1;
            }
            let at = (index * bytes % EXPORT_BYTES) as u64;
            let memory = &mut self.memory[index % DEPTH * bytes..][..bytes];
            // SAFETY: the memory lives until all commands have completed. It does not matter which
            // bytes they leave in shared places.
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

/// Returns the rate of a plain TCP stream, GB/s.
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

/// Returns the time of a round trip of `out` bytes there and `back` bytes back, nanoseconds. Both
/// sides poll.
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

/// Returns the `cairn` command beside this program.
fn cairn() -> Command {
    Command::new(std::env::current_exe().expect("own path").with_file_name("cairn"))
}

/// Returns the processors for the host and for the target.
fn processors() -> [usize; 2] {
    [0, std::thread::available_parallelism().map_or(1, usize::from) - 1]
}

/// Pins this thread to one processor. Where that is not allowed, the thread runs anywhere.
fn pin(processor: usize) {
    run_on(processor..processor + 1);
}

fn pin_to_any() {
    run_on(0..libc::CPU_SETSIZE as usize);
}

fn run_on(processors: std::ops::Range<usize>) {
    // SAFETY: `cpu_set_t` consists of plain words, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set belongs to this function; the macro ignores numbers beyond its size.
    processors.for_each(|processor| unsafe { libc::CPU_SET(processor, &mut set) });
    // SAFETY: the kernel only reads the set, which lives for the call.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}
