//! Rows about the cost of the log and the snapshots of a durable namespace: recovery, records,
//! bytes on the media.
//!
//! The namespaces are on media in memory, and no file data is moved, because these rows measure the
//! core.

use cairn_core::recover;
use cairn_core::{
    Caller, Credentials, Durability, HUGEBLOCK_BYTES_DEFAULT, HandleId, MEDIA_BLOCK_BYTES, Media,
    MediaOptions, Memory, Microfs, OpenOptions, Position, ProcessIdentity, ROOT, Recovered,
    RenameMode, SlotId, Superblock, Timestamp, WriteKind, format_media, recover_read_only,
};
use cairn_device::Workspace;
use cairn_platform::checksum::crc32c;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::Places;
use crate::measure::report_limit;
use crate::memory_media::MemoryMedia;

const OWNER: Credentials = Credentials { uid: 0, gid: 0 };
const CREATE: OpenOptions = OpenOptions {
    read: false,
    write: true,
    append: false,
    create: true,
    exclusive: false,
    truncate: false,
    directory: false,
    no_follow: false,
    path_only: false,
    ..OpenOptions::NONE
};
const RUNS: usize = 5;
const MEBIBYTE: u64 = 1 << 20;
const GIBIBYTE: u64 = 1 << 30;

/// A node with a durable namespace on media in memory.
struct Node {
    media: Arc<MemoryMedia>,
    superblock: Superblock,
    memory: Arc<Workspace>,
}

impl Node {
    fn new(media_bytes: u64) -> Node {
        let media = Arc::new(MemoryMedia::new(media_bytes));
        let zeros = vec![0; HUGEBLOCK_BYTES_DEFAULT as usize];
        let options = MediaOptions {
            hugeblock_bytes: HUGEBLOCK_BYTES_DEFAULT,
            durability: Durability::Sync,
            mount: b"/cairn".to_vec(),
            zero_block_checksum: crc32c(0, &zeros),
            identity: [1, 2],
            now: Timestamp(1),
            further: Default::default(),
            holds_data: true,
        };
        let superblock = format_media(media.as_ref(), &options, crc32c, OWNER).expect("format");
        let memory = workspace(&superblock);
        recover(media.as_ref(), &memory, crc32c).expect("recover an empty media");
        Node { media, superblock, memory }
    }

    fn process(&self, pid: u32) -> Process {
        let memory = Box::new(self.memory.clone());
        let fs =
            Microfs::open_durable(memory, crc32c, self.media.clone(), Vec::new()).expect("open");
        let identity = ProcessIdentity { pid, pid_namespace: 1, start_time: 1 };
        fs.introduce(identity).expect("introduce");
        let slot = fs.attach(identity).expect("attach").slot;
        Process { fs, slot, clock: Cell::new(1) }
    }

    /// Returns the size of the newest snapshot, bytes. Its header holds the number of words that
    /// follow (docs/FORMAT.md).
    fn snapshot_bytes(&self) -> u64 {
        let header = |slot: u64| {
            let mut block = [0; MEDIA_BLOCK_BYTES];
            let place = 4 + self.superblock.log_blocks + slot * self.superblock.slot_blocks;
            let offset = place * MEDIA_BLOCK_BYTES as u64;
            self.media.read(offset, &mut block).expect("read a header");
            let word = |at: usize| {
                u64::from_le_bytes(block[8 * at..8 * at + 8].try_into().expect("eight bytes"))
            };
            (word(1), word(6) * 8)
        };
        header(0).max(header(1)).1 + MEDIA_BLOCK_BYTES as u64
    }

    /// Returns the size of all used pages of the meta segment, bytes.
    fn memory_bytes(&self) -> u64 {
        let pages = self.memory.words().chunks(MEDIA_BLOCK_BYTES / 8);
        let used =
            pages.filter(|page| page.iter().any(|word| word.load(Ordering::Relaxed) != 0)).count();
        (used * MEDIA_BLOCK_BYTES) as u64
    }

    /// Recovers without changing anything. Returns the result and the time, seconds.
    fn look(&self) -> (Recovered, f64) {
        let memory = workspace(&self.superblock);
        let start = Instant::now();
        let found = recover_read_only(self.media.as_ref(), &memory, crc32c).expect("recover");
        (found, start.elapsed().as_secs_f64())
    }
}

fn workspace(superblock: &Superblock) -> Arc<Workspace> {
    let words = superblock.geometry.segment_bytes() as usize / 8;
    Arc::new(Workspace::new(words).expect("address space"))
}

/// A process attached to the namespace.
struct Process {
    fs: Microfs,
    slot: SlotId,
    clock: Cell<i64>,
}

impl Process {
    fn now(&self) -> Timestamp {
        self.clock.set(self.clock.get() + 1);
        Timestamp(self.clock.get())
    }

    fn caller(&self) -> Caller {
        Caller { slot: self.slot, credentials: OWNER, groups: &[], now: self.now() }
    }

    fn create(&self, name: &str) -> HandleId {
        let opened = self.fs.open_file(&self.caller(), ROOT, name.as_bytes(), CREATE, 0o644);
        opened.expect("create").handle
    }

    /// Plans and commits a write without moving bytes.
    fn write(&self, handle: HandleId, offset: u64, length: u64) {
        let caller = self.caller();
        let at = Position::At(offset);
        let mut plan = self.fs.plan_write(&caller, handle, at, length).expect("plan");
        assert_eq!(plan.length, length, "the write is planned as a whole");
        let pieces: Vec<_> = plan.pieces().collect();
        for piece in pieces {
            match piece.kind {
                WriteKind::Fill => plan.fold(&piece, 1),
                _ => self.fs.store_checksum(piece.tier, piece.block, 1).expect("store"),
            }
        }
        self.fs.commit_write(&caller, &plan).expect("commit");
    }

    fn close(&self, handle: HandleId) {
        self.fs.release(self.slot, handle, self.now()).expect("close");
    }

    fn rename(&self, old: &str, new: &str) {
        let (old, new) = ((ROOT, old.as_bytes()), (ROOT, new.as_bytes()));
        self.fs.rename(&self.caller(), old, new, RenameMode::Replace).expect("rename");
    }

    fn unlink(&self, name: &str) {
        self.fs.unlink(&self.caller(), ROOT, name.as_bytes()).expect("unlink");
        while self.fs.reclaim(Some(self.slot)).expect("reclaim") {}
    }
}

/// Measures recovery from a log of a million records, and from the snapshot that follows it,
/// seconds.
pub fn recovery(_places: &Places) {
    /// Each file makes four records, and one more if it is deleted.
    const FILES_MADE: u64 = 220_000;
    /// Number of files that exist at a time.
    const FILES: u64 = 100_000;
    let node = Node::new(64 * GIBIBYTE);
    let process = node.process(1);
    for file in 0..FILES_MADE {
        let handle = process.create(&format!("rank.{file}.tmp"));
        process.write(handle, 0, 64 << 10);
        process.close(handle);
        process.rename(&format!("rank.{file}.tmp"), &format!("rank.{file}.ckpt"));
        if let Some(old) = file.checked_sub(FILES) {
            process.unlink(&format!("rank.{old}.ckpt"));
        }
    }
    process.fs.sync().expect("sync");
    let records = node.look().0.records;
    let seconds = || (0..RUNS).map(|_| node.look().1).collect::<Vec<f64>>();
    report_limit(&format!("recovery, log of {records} records"), "s", &seconds(), 0.3);
    let start = Instant::now();
    process.fs.write_snapshot().expect("snapshot");
    let snapshot = start.elapsed().as_secs_f64();
    let records = node.look().0.records;
    report_limit("snapshot of that log", "s", &[snapshot], None);
    report_limit(&format!("recovery, snapshot of {records} records"), "s", &seconds(), 1.0);
}

/// Measures the metadata of 100 000 files and of a file of 1 GiB, on the media and in memory.
pub fn metadata(_places: &Places) {
    const FILES: usize = 100_000;
    let node = Node::new(64 * GIBIBYTE);
    let process = node.process(1);
    let empty = node.memory_bytes();
    for file in 0..FILES {
        let handle = process.create(&format!("rank.{file}.checkpoint"));
        process.write(handle, 0, 64 << 10);
        process.close(handle);
    }
    let checksums = 2.0 * 4.0;
    let in_memory = (node.memory_bytes() - empty) as f64 / FILES as f64;
    report_limit("metadata in memory, 64 KiB file", "B", &[in_memory], 512.0);
    process.fs.write_snapshot().expect("snapshot");
    process.fs.sync().expect("sync");
    process.fs.write_snapshot().expect("snapshot");
    let on_media = node.snapshot_bytes() as f64 / FILES as f64 + checksums;
    report_limit("metadata on media, 64 KiB file", "B", &[on_media], 512.0);

    const LARGE: u64 = 8;
    let node = Node::new(64 * GIBIBYTE);
    let process = node.process(1);
    let empty = node.memory_bytes();
    for file in 0..LARGE {
        let handle = process.create(&format!("rank.{file}.checkpoint"));
        (0..GIBIBYTE / MEBIBYTE).for_each(|at| process.write(handle, at * MEBIBYTE, MEBIBYTE));
        process.close(handle);
    }
    let in_memory = (node.memory_bytes() - empty) as f64 / LARGE as f64 / 1024.0;
    report_limit("metadata in memory, 1 GiB file", "KiB", &[in_memory], 192.0);
    process.fs.sync().expect("sync");
    process.fs.write_snapshot().expect("snapshot");
    let checksums = 4 * GIBIBYTE / u64::from(HUGEBLOCK_BYTES_DEFAULT);
    let on_media = (node.snapshot_bytes() / LARGE + checksums) as f64 / 1024.0;
    report_limit("metadata on media, 1 GiB file", "KiB", &[on_media], 192.0);
}

const CHECKPOINT: u64 = 10 * GIBIBYTE;
/// Length of a call, bytes.
const CALL: u64 = MEBIBYTE;

/// Counts the records that a checkpoint of 10 GiB leaves: one file, a file per process, files that
/// one process writes in turn, and one file of which each process writes every n-th piece.
pub fn records(_places: &Places) {
    let count = records_of((1, 1), false);
    report_limit("records, 10 GiB in sequence", "", &[count], 100.0);
    for (processes, files, strided, bar) in [
        (2, 1, false, 10.0),
        (8, 1, false, 10.0),
        (1, 8, false, 16.0),
        (2, 1, true, 10.0),
        (8, 1, true, 10.0),
    ] {
        let shape = match (files, strided) {
            (1, false) => format!("{processes} processes, a file each"),
            (_, false) => format!("one process, {files} files in turn"),
            (_, true) => format!("{processes} processes, strides"),
        };
        let count = records_of((processes, files), strided) * GIBIBYTE as f64 / CHECKPOINT as f64;
        report_limit(&format!("records per GiB, {shape}"), "", &[count], bar);
    }
}

fn records_of((processes, files): (u32, u32), strided: bool) -> f64 {
    let node = Node::new(64 * GIBIBYTE);
    let processes: Vec<Process> = (1..=processes).map(|pid| node.process(pid)).collect();
    let open = |rank: usize, file: u32| match strided {
        true => processes[rank].create("shared"),
        false => processes[rank].create(&format!("{rank}.{file}")),
    };
    let writers: Vec<(&Process, HandleId)> = (0..processes.len())
        .flat_map(|rank| (0..files).map(move |file| (rank, file)))
        .map(|(rank, file)| (&processes[rank], open(rank, file)))
        .collect();
    let count = writers.len() as u64;
    for round in 0..CHECKPOINT / CALL / count {
        for (writer, &(process, handle)) in (0..).zip(&writers) {
            let call = if strided { round * count + writer } else { round };
            process.write(handle, call * CALL, CALL);
        }
    }
    writers.iter().for_each(|(process, handle)| process.close(*handle));
    processes[0].fs.sync().expect("sync");
    node.look().0.lsn as f64
}
