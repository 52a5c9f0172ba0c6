//! Rows about the cost of the log for writers, flushes shared by fsyncs, and the longest wait
//! caused by a snapshot.
//!
//! They need a store whose tier is a file (`cairn run --tier file:PATH:SIZE`).

use cairn_core::{
    Caller, Credentials, Durability, Geometry, HUGEBLOCK_BYTES_DEFAULT, HandleId, OpenOptions,
    Position, ROOT, SlotId, Timestamp, WriteKind,
};
use cairn_device::media::media_file::Allocation;
use cairn_device::store::namespace::{
    Creation, Namespace, create, create_namespace, open_namespace, places,
};
use cairn_device::{MediumKind, Store, TierPlace};
use cairn_platform::{checksum, process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Places;
use crate::measure::{Row, gigabytes_per_second, report_limit, report_longest};
use crate::process::in_children;

const OWNER: Credentials = Credentials { uid: 0, gid: 0 };
const CREATE: OpenOptions = OpenOptions {
    read: false,
    write: true,
    append: false,
    create: true,
    exclusive: false,
    truncate: true,
    directory: false,
    no_follow: false,
    path_only: false,
    ..OpenOptions::NONE
};
const BLOCK: u64 = HUGEBLOCK_BYTES_DEFAULT as u64;

/// Returns the store of this process and its durable file, if it has one.
pub fn durable_store() -> Option<(Store, PathBuf)> {
    let store = Store::open(Path::new(&std::env::var_os("CAIRN_STORE")?)).ok()?;
    match &places(&store, "node").ok()?[..] {
        [TierPlace::Medium { path, .. }] => Some((store, path.clone())),
        _ => None,
    }
}

/// Opens the namespace of this process once more.
pub fn durable_namespace() -> Namespace {
    let (store, _) = durable_store().expect("checked before any row");
    open_namespace(&store, "node").expect("open the namespace")
}

/// This process, attached to a namespace without the preload library.
struct Attached {
    namespace: Namespace,
    slot: SlotId,
}

impl Attached {
    fn new(namespace: Namespace) -> Attached {
        let identity = process::identity().expect("own identity");
        namespace.fs.introduce(identity).expect("introduce");
        let slot = namespace.fs.attach(identity).expect("attach").slot;
        Attached { namespace, slot }
    }

    fn caller(&self) -> Caller {
        Caller { slot: self.slot, credentials: OWNER, groups: &[], now: Timestamp(1) }
    }

    fn create(&self, name: &str, options: OpenOptions) -> HandleId {
        let fs = &self.namespace.fs;
        let opened = fs.open_file(&self.caller(), ROOT, name.as_bytes(), options, 0o644);
        opened.expect("create").handle
    }

    fn close(&self, handle: HandleId) {
        self.namespace.fs.release(self.slot, handle, Timestamp(2)).expect("close");
    }

    /// Writes a file as the library does, in calls of `call_bytes` bytes.
    fn write_file(&self, bytes: &[u8], call_bytes: usize) {
        let handle = self.create("file", CREATE);
        for (index, call) in bytes.chunks(call_bytes).enumerate() {
            self.write(handle, (index * call_bytes) as u64, call);
        }
        self.close(handle);
        while self.namespace.fs.reclaim(Some(self.slot)).expect("reclaim") {}
    }

    fn write(&self, handle: HandleId, offset: u64, bytes: &[u8]) {
        let Namespace { fs, tiers, .. } = &self.namespace;
        let caller = self.caller();
        let length = bytes.len() as u64;
        let mut plan = fs.plan_write(&caller, handle, Position::At(offset), length).expect("plan");
        assert_eq!(plan.length, length, "the write is planned as a whole");
        let mut at = 0;
        let mut filled = None;
        for piece in plan.pieces() {
            let place = u64::from(piece.block) * BLOCK + u64::from(piece.start);
            let (source, length) = (bytes[at..].as_ptr(), piece.length as usize);
            // SAFETY: the pieces of a plan lie within its length, which is that of `bytes`.
            let raw = unsafe { tiers[piece.tier as usize].write(place, source, length) };
            let raw = raw.expect("write");
            at += length;
            let trailing = BLOCK - u64::from(piece.start + piece.length);
            match piece.kind {
                WriteKind::Fill => filled = Some((piece, checksum::shift(raw, trailing))),
                // An overwritten block has no checksum until the file is sealed.
                WriteKind::Overwrite => {}
                WriteKind::Fresh => {
                    let sum = checksum::of_sparse_block(raw, trailing, BLOCK);
                    fs.store_checksum(piece.tier, piece.block, sum).expect("store");
                }
            }
        }
        if let Some((piece, term)) = filled {
            plan.fold(&piece, term);
        }
        fs.commit_write(&caller, &plan).expect("commit");
    }
}

/// Measures writes of a file to memory with the log, against the same without.
pub fn log_cost(at: &Places) {
    let store = Store::create(&at.tmpfs, "log").expect("make a store");
    let open = |name: &str| {
        let geometry = Geometry::new(b"/bench", [(512 << 20) / BLOCK as u32, 0, 0, 0], 0);
        create_namespace(&store, name, geometry, false).expect("make a namespace");
        open_namespace(&store, name).expect("open the namespace")
    };
    let logged = Attached::new(open("rank-0"));
    let mut unlogged = open("rank-1");
    unlogged.fs = unlogged.fs.without_log();
    let unlogged = Attached::new(unlogged);
    let state = vec![7; 256 << 20];
    for (call_bytes, name, bar) in [(1 << 20, "1 MiB", 0.95), (4 << 10, "4 KiB", 0.85)] {
        let rate = |process: &Attached| {
            gigabytes_per_second(state.len(), || process.write_file(&state, call_bytes))
        };
        Row::compare(
            format!("write to memory, {name} calls / no log"),
            "GB/s",
            bar,
            || rate(&logged),
            || rate(&unlogged),
        );
    }
    drop((logged, unlogged));
    store.remove().expect("remove the store");
}

/// Measures writes of 4 KiB, each followed by fsync, to one file per process. The baselines are
/// plain files beside the tier, then one process against several. Also counts the flushes per
/// fsync.
pub fn fsyncs(at: &Places) {
    let (_, tier) = durable_store().expect("checked before any row");
    let plain = tier.with_file_name(format!("cairn-bench.plain.{}", std::process::id()));
    std::fs::create_dir_all(&plain).expect("make a directory");
    // Disks differ by a factor of a hundred, so the number of calls fits about a fifth of a second.
    let calls = (200.0 * synced_writes(&at.cairn, 1, 20)).clamp(20.0, 1000.0) as usize;
    Row::compare(
        "write 4 KiB + fsync / plain file",
        "k/s",
        None,
        || synced_writes(&at.cairn, 1, calls),
        || synced_writes(&plain, 1, calls),
    );
    // A leftover directory of a benchmark does no harm.
    let _ = std::fs::remove_dir_all(&plain);
    for processes in [2, 4, 8] {
        Row::compare(
            format!("write 4 KiB + fsync, {processes} processes / one"),
            "k/s",
            1.0,
            || synced_writes(&at.cairn, processes, calls),
            || synced_writes(&at.cairn, 1, calls),
        );
    }
    let fs = durable_namespace().fs;
    for processes in [1, 2, 4, 8] {
        let flushes = || 2 * fs.log_usage().expect("usage").expect("it is durable").commits;
        let slice = || {
            let before = flushes();
            synced_writes(&at.cairn, processes, calls);
            (flushes() - before) as f64 / (calls * processes) as f64
        };
        let slices: Vec<f64> = (0..5).map(|_| slice()).collect();
        let name = format!("flushes per fsync, {processes} processes");
        report_limit(&name, "", &slices, None);
    }
}

/// Returns the rate of writes with an fsync each, thousands per second, of `processes` processes at
/// once.
fn synced_writes(directory: &Path, processes: usize, calls: usize) -> f64 {
    let seconds = in_children(processes, |rank| {
        let file = File::create(directory.join(format!("sync.{rank}"))).expect("create");
        for call in 0..calls {
            file.write_all_at(&[7; 4096], call as u64 * 4096).expect("write");
            file.sync_all().expect("fsync");
        }
    });
    (calls * processes) as f64 / seconds / 1e3
}

/// Measures the longest of many small writes while another process writes snapshots of many files
/// without a pause. Once on a file in memory, where only Cairn causes waits, and once on the disk.
pub fn waits(at: &Places) {
    let (disk, _) = durable_store().expect("checked before any row");
    let file = File::create(at.cairn.join("written")).expect("create");
    let on_disk = |offset| file.write_all_at(&[7; 4096], offset).expect("write");
    let store = Store::create(&at.tmpfs, "snapshots").expect("make a store");
    let namespace = on_memory(&store, &at.tmpfs.join("tier"));
    let process = Attached::new(namespace);
    let handle = process.create("written", CREATE);
    let in_memory = |offset| process.write(handle, offset, &[7; 4096]);
    longest_writes(&store, "in memory", Some(10.0), &in_memory);
    longest_writes(&disk, "on disk", None, &on_disk);
    drop(process);
    store.remove().expect("remove the store");
}

/// Makes a durable namespace on a file at `path`.
fn on_memory(store: &Store, path: &Path) -> Namespace {
    const TIER_BYTES: u64 = 4 << 30;
    let mut geometry = Geometry::new(b"/bench", [(TIER_BYTES / BLOCK) as u32, 0, 0, 0], 0);
    geometry.durability = Some(Durability::Sync);
    let places = vec![TierPlace::new(MediumKind::File, path).expect("random")];
    let allocation = Allocation::AsWritten;
    let (want_huge_pages, may_overwrite) = (false, false);
    let metadata_bytes = 0;
    let creation =
        Creation { geometry, metadata_bytes, places, want_huge_pages, allocation, may_overwrite };
    create(store, "node", creation).expect("make a namespace");
    open_namespace(store, "node").expect("open the namespace")
}

fn longest_writes(store: &Store, place: &str, bar: Option<f64>, write: &dyn Fn(u64)) {
    const SLICE: Duration = Duration::from_secs(1);
    child(store, "names").wait().expect("await the child");
    let (mut alone, mut beside, mut snapshots) = (Vec::new(), Vec::new(), 0.0);
    for _ in 0..5 {
        alone.push(longest_write(write, SLICE));
        let snapshooter = child(store, "snapshots");
        beside.push(longest_write(write, SLICE));
        // This closes its standard input, which ends it.
        let output = snapshooter.wait_with_output().expect("await the child");
        let count = String::from_utf8_lossy(&output.stdout);
        snapshots += count.trim().parse::<f64>().expect("a number");
    }
    let name = format!("longest write {place}, {snapshots} snapshots");
    report_longest(&name, "ms", &beside, &alone, bar);
}

/// Starts a process that works on the store without interception until its standard input ends.
fn child(store: &Store, work: &str) -> Child {
    let program = std::env::current_exe().expect("own path");
    let mut command = Command::new(program);
    command.args(["child", work]).env("CAIRN_STORE", store.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start a child")
}

/// Returns the time of the longest write within `time`, milliseconds. Time spent waiting for a
/// processor that others used does not count.
fn longest_write(write: &dyn Fn(u64), time: Duration) -> f64 {
    const WRAP: u64 = 16 << 20;
    let schedule = File::open("/proc/thread-self/schedstat").expect("open");
    let mut longest = Duration::ZERO;
    let end = Instant::now() + time;
    for call in 0.. {
        let delayed = scheduling_delay(&schedule);
        let start = Instant::now();
        if start >= end {
            break;
        }
        write(call * 4096 % WRAP);
        let took = start.elapsed();
        longest = longest.max(took.saturating_sub(scheduling_delay(&schedule) - delayed));
    }
    longest.as_secs_f64() * 1e3
}

/// Returns how long this thread was runnable but did not run: the second number of the file.
fn scheduling_delay(schedule: &File) -> Duration {
    let mut text = [0; 96];
    let length = schedule.read_at(&mut text, 0).expect("read");
    let numbers = std::str::from_utf8(&text[..length]).expect("digits");
    let delay = numbers.split(' ').nth(1).and_then(|number| number.parse().ok());
    Duration::from_nanos(delay.expect("a number"))
}

/// Work of a child: makes many files. They need no content to be part of a snapshot. Returns their
/// number.
pub fn make_names() -> f64 {
    const FILES: usize = 50_000;
    // Closing a file that was not open for writing does not wait for the media.
    let options = OpenOptions { write: false, truncate: false, ..CREATE };
    let process = Attached::new(durable_namespace());
    for file in 0..FILES {
        process.close(process.create(&format!("rank.{file}"), options));
    }
    process.namespace.fs.sync().expect("sync");
    FILES as f64
}

/// Work of a child: writes snapshots until its standard input ends. Returns their number.
pub fn write_snapshots() -> f64 {
    let namespace = durable_namespace();
    namespace.fs.introduce(process::identity().expect("own identity")).expect("introduce");
    let ended = std::thread::spawn(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let mut count = 0;
    while !ended.is_finished() {
        namespace.fs.write_snapshot().expect("snapshot");
        count += 1;
    }
    f64::from(count)
}
