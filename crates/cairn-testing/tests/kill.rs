//! Writers killed by SIGKILL at random points leave a consistent store. All rounds use the same
//! store.
//!
//! Checked after each death and reaping: A file that is not marked unclean is one of the versions
//! that were completely written, and the last one if no operation on it was in progress. A file
//! with an operation in progress is old, new, or unclean. An append never damages older bytes.
//! Checksums match. No block, handle, pin, name or slot is lost. A second writer continues beside
//! the dead one. The store works in the next round. The writers record in shared memory what they
//! are about to do, and report progress through a pipe.
//!
//! Does not test the death of the node or durability.

mod attached;

use attached::{at, check, close, compare_checksums, errno, get, open, put, read, reap, remove};
use attached::{mount, stat, store, usage, write, write_at};
use cairn_posix::Errno;
use cairn_posix::data::io::At;
use cairn_posix::files::{allocate, extended, file, names};
use cairn_posix::process::Spawn;
use cairn_posix::task::table;
use cairn_testing::random::{Random, SEED_VARIABLE, environment_number, soaking};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const ROUNDS: u64 = 500;
const SOAK_ROUNDS: u64 = 5000;
const WRITERS: usize = 2;
/// Number of files of each writer, without its temporary one and the one that both publish.
const FILES: usize = 6;
const BLOCKS: u32 = 512;
/// Size beyond which a file is not appended to, bytes.
const FILE_BYTES_MAX: u64 = 400 << 10;
/// Longest time that a living writer may be silent, milliseconds.
const PATIENCE_MS: i32 = 60_000;
const SHARED: &str = "shared";
/// Most bytes in an attribute: all attributes that the writers give one file or directory must fit.
const ATTRIBUTE_BYTES_MAX: u64 = 900;

static TURN: Mutex<()> = Mutex::new(());

/// Waits for this test's turn. Attaches the mount before the first fork, so that children inherit
/// it.
fn turn() -> MutexGuard<'static, ()> {
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    store(BLOCKS, 4096);
    assert_eq!(mount().fs().orphans(), 0);
    assert_eq!(usage().processes, 1);
    guard
}

// ---- Files that describe themselves: a sequence of records.

const MAGIC: u64 = 0x4341_4952_4e4b_494c;
/// Length of header and trailer, bytes.
const RECORD_BYTES_MIN: u64 = 40;
const NOISE_BYTES: u64 = 1 << 20;

/// Returns random bytes from which every record takes its content, so that the writers spend their
/// time in the store.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut random = Random::new(0);
        (0..NOISE_BYTES / 8).flat_map(|_| random.draw().to_le_bytes()).collect()
    })
}

/// Returns a record: a header (magic, length, seed, check), content chosen by the seed, and a
/// trailer.
fn record(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize);
    for word in [MAGIC, length, seed, MAGIC ^ length ^ seed] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let content = (length - RECORD_BYTES_MIN) as usize;
    let from = (seed % (NOISE_BYTES - length)) as usize;
    bytes.extend_from_slice(&noise()[from..from + content]);
    bytes.extend_from_slice(&(!seed).to_le_bytes());
    bytes
}

/// Returns seeds and lengths of the records in `bytes`. Errors: where the records stop being valid.
fn parse(bytes: &[u8]) -> Result<Vec<(u64, u64)>, String> {
    let mut records = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let rest = &bytes[start..];
        let word = |index: usize| {
            let bytes = rest.get(index * 8..index * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let (Some(magic), Some(length), Some(seed)) = (word(0), word(1), word(2)) else {
            return Err(format!("header cut at {start}"));
        };
        if magic != MAGIC
            || length < RECORD_BYTES_MIN
            || length > (rest.len() as u64).min(NOISE_BYTES / 2)
        {
            return Err(format!("no whole record at {start}: {magic:#x}, {length} bytes"));
        }
        let expected = record(seed, length);
        let found = &rest[..length as usize];
        if found != expected {
            let differs =
                found.iter().zip(&expected).position(|(found, expected)| found != expected);
            return Err(format!("record at {start} differs after {differs:?} of {length} bytes"));
        }
        records.push((seed, length));
        start += length as usize;
    }
    Ok(records)
}

/// Identity of a file's content: different contents have different versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    length: u64,
    digest: u64,
}

fn version(records: &[(u64, u64)]) -> Version {
    records.iter().fold(Version { length: 0, digest: 0 }, |before, &(seed, length)| Version {
        length: before.length + length,
        digest: Random::new(before.digest ^ seed).draw().rotate_left(7) ^ length,
    })
}

// ---- The ledger: what each writer has done and is about to do, in memory that outlives it.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Whole(Version),
    Unclean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Overwrite = 1,
    Replace,
    Append,
    Cut,
    AppendAndCut,
    Patch,
    Rewrite,
    Unlink,
}

use Operation::{Append, AppendAndCut, Cut, Overwrite, Patch, Replace, Rewrite, Unlink};

const OPERATIONS: [Operation; 8] =
    [Overwrite, Replace, Append, Cut, AppendAndCut, Patch, Rewrite, Unlink];

impl Operation {
    /// Whether the file is open for writing during the operation.
    fn may_leave_unclean(self) -> bool {
        !matches!(self, Replace | Cut | Unlink)
    }

    fn needs_old_content(self) -> bool {
        !matches!(self, Overwrite | Replace)
    }
}

/// Entry of one file. One word says which of two states is the present one and which operation is
/// in progress towards the other. Only a change of that word counts, so a death at any point leaves
/// a meaningful entry.
#[derive(Clone, Copy)]
struct Entry(&'static [AtomicU64; 8]);

impl Entry {
    fn state(self, which: u64) -> State {
        let word = |index: u64| self.0[(1 + which * 3 + index) as usize].load(Ordering::SeqCst);
        match word(0) {
            0 => State::Absent,
            1 => State::Whole(Version { length: word(1), digest: word(2) }),
            _ => State::Unclean,
        }
    }

    fn set_state(self, which: u64, state: State) {
        let words = match state {
            State::Absent => [0, 0, 0],
            State::Whole(version) => [1, version.length, version.digest],
            State::Unclean => [2, 0, 0],
        };
        for (word, value) in self.0[(1 + which * 3) as usize..].iter().zip(words) {
            word.store(value, Ordering::SeqCst);
        }
    }

    fn present(self) -> State {
        self.state(self.0[0].load(Ordering::SeqCst) & 1)
    }

    fn under_way(self) -> Option<(Operation, State)> {
        let control = self.0[0].load(Ordering::SeqCst);
        let operation = OPERATIONS.into_iter().find(|&known| known as u64 == control >> 1)?;
        Some((operation, self.state(control & 1 ^ 1)))
    }

    fn begin(self, operation: Operation, next: State) {
        let present = self.0[0].load(Ordering::SeqCst) & 1;
        self.set_state(present ^ 1, next);
        self.0[0].store((operation as u64) << 1 | present, Ordering::SeqCst);
    }

    fn finish(self) {
        let present = self.0[0].load(Ordering::SeqCst) & 1;
        self.0[0].store(present ^ 1, Ordering::SeqCst);
    }

    fn settle(self, state: State) {
        self.set_state(0, state);
        self.0[0].store(0, Ordering::SeqCst);
    }
}

type Ledger = [[Entry; FILES]; WRITERS];

fn ledger() -> Ledger {
    let length = WRITERS * FILES * 64;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice; the result is checked.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    let entries = address.cast::<[AtomicU64; 8]>();
    std::array::from_fn(|writer| {
        std::array::from_fn(|file| {
            // SAFETY: the entry lies inside the mapping, which is zeroed, aligned, shared only with
            // children, and never unmapped.
            Entry(unsafe { &*entries.add(writer * FILES + file) })
        })
    })
}

// ---- The writer, in a process of its own.

struct Writer {
    number: usize,
    random: Random,
    entries: [Entry; FILES],
    /// Records of the files, where this process knows them.
    known: [Option<Vec<(u64, u64)>>; FILES],
    /// Largest length of a record's variable part, bytes.
    record_bytes_max: u64,
    progress: i32,
}

fn file_name(writer: usize, file: usize) -> String {
    format!("writer-{writer}.file-{file}")
}

fn temporary_name(writer: usize) -> String {
    format!("writer-{writer}.temporary")
}

impl Writer {
    fn run(mut self) -> ! {
        loop {
            self.step();
            // SAFETY: writes one byte of a constant. The parent kills us before the pipe is full.
            let told = unsafe { libc::write(self.progress, c"!".as_ptr().cast(), 1) };
            assert_eq!(told, 1);
        }
    }

    fn step(&mut self) {
        if self.random.one_in(10) {
            let (_, bytes) = self.new_records(&[]);
            return self.publish(SHARED, &bytes);
        }
        let number = self.random.below(FILES as u64) as usize;
        if self.random.one_in(10) {
            let name =
                if self.random.one_in(2) { ".".into() } else { file_name(self.number, number) };
            return self.describe(&name);
        }
        let (entry, name) = (self.entries[number], file_name(self.number, number));
        let old = match entry.present() {
            State::Whole(expected) => {
                let known = self.known[number].take().filter(|_| !self.random.one_in(8));
                let read = || parse(&get(&name));
                let records = known.map_or_else(read, Ok);
                let records = records.unwrap_or_else(|why| panic!("{name}: {why}"));
                assert_eq!(version(&records), expected, "{name}, while this process lives");
                Some(records)
            }
            _ => None,
        };
        let operation = *self.random.pick(&OPERATIONS);
        if operation.needs_old_content() && old.is_none() {
            return;
        }
        self.known[number] = self.perform(entry, &name, operation, &old.unwrap_or_default());
    }

    /// Performs an operation. Returns the records of the file afterwards, if it did anything.
    fn perform(
        &mut self,
        entry: Entry,
        name: &str,
        operation: Operation,
        old: &[(u64, u64)],
    ) -> Option<Vec<(u64, u64)>> {
        let whole = |records: &[(u64, u64)]| State::Whole(version(records));
        let length = version(old).length;
        let records = match operation {
            Overwrite | Replace | Rewrite => {
                let (records, bytes) = self.new_records(&[]);
                entry.begin(operation, whole(&records));
                match operation {
                    Replace => self.publish(name, &bytes),
                    Overwrite => {
                        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
                        self.fill(open(name, flags).expect("opens"), &bytes);
                    }
                    _ => {
                        let descriptor = open(name, libc::O_RDWR).expect("opens");
                        cut_open(descriptor, 0);
                        self.fill(descriptor, &bytes);
                    }
                }
                records
            }
            Append | AppendAndCut if length > FILE_BYTES_MAX => return None,
            Append => {
                let (records, bytes) = self.new_records(old);
                entry.begin(operation, whole(&records));
                let flags = libc::O_WRONLY | libc::O_APPEND;
                self.fill(open(name, flags).expect("opens"), &bytes);
                records
            }
            AppendAndCut => {
                let (records, mut bytes) = self.new_records(old);
                let rubbish = self.random.below(self.record_bytes_max) as usize;
                bytes.resize(bytes.len() + rubbish, b'#');
                entry.begin(operation, whole(&records));
                let descriptor = open(name, libc::O_RDWR | libc::O_APPEND).expect("opens");
                self.write_in_pieces(descriptor, &bytes);
                cut_open(descriptor, version(&records).length);
                close(descriptor);
                records
            }
            Cut => {
                let kept = &old[..self.random.below(old.len() as u64 + 1) as usize];
                entry.begin(operation, whole(kept));
                let size = version(kept).length as i64;
                file::truncate(&at(name), size).expect("truncates");
                kept.to_vec()
            }
            Patch => {
                let &(_, last) = old.last()?;
                let seed = self.random.draw();
                let mut records = old.to_vec();
                records[old.len() - 1].0 = seed;
                entry.begin(operation, whole(&records));
                let descriptor = open(name, libc::O_RDWR).expect("opens");
                let bytes = record(seed, last);
                let written = write_at(descriptor, &bytes, At::Offset(length - last));
                assert_eq!(written, Ok(bytes.len()));
                close(descriptor);
                records
            }
            Unlink => {
                entry.begin(operation, State::Absent);
                remove(name);
                Vec::new()
            }
        };
        entry.finish();
        Some(records)
    }

    /// Sets an extended attribute of `name` to a record, or removes the attribute.
    fn describe(&mut self, name: &str) {
        let Ok(inode) = file::resolve(&at(name), true) else { return };
        let attribute = format!("user.{}.{}", self.number, self.random.below(2)).into_bytes();
        if self.random.one_in(4) {
            let removed = extended::remove(inode, &attribute);
            return assert!(matches!(removed, Ok(()) | Err(Errno(libc::ENODATA))), "{removed:?}");
        }
        let length = RECORD_BYTES_MIN + self.random.below(ATTRIBUTE_BYTES_MAX - RECORD_BYTES_MIN);
        let value = record(self.random.draw(), length);
        let update = extended::update(0).expect("no flags");
        extended::set(inode, &attribute, &value, update).expect("sets");
        assert_eq!(extended::get(inode, &attribute).as_ref(), Ok(&value));
    }

    /// Adds one to three records to `old`. Returns also the bytes of the new ones.
    fn new_records(&mut self, old: &[(u64, u64)]) -> (Vec<(u64, u64)>, Vec<u8>) {
        let mut records = old.to_vec();
        let mut bytes = Vec::new();
        for _ in 0..=self.random.below(3) {
            let length = RECORD_BYTES_MIN + self.random.below(self.record_bytes_max);
            let seed = self.random.draw();
            records.push((seed, length));
            bytes.extend_from_slice(&record(seed, length));
        }
        (records, bytes)
    }

    /// Writes a temporary file and renames it to `name`.
    fn publish(&mut self, name: &str, bytes: &[u8]) {
        let temporary = temporary_name(self.number);
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
        self.fill(open(&temporary, flags).expect("opens"), bytes);
        names::rename(&at(&temporary), &at(name), 0).expect("renames");
    }

    fn fill(&mut self, descriptor: i32, bytes: &[u8]) {
        self.write_in_pieces(descriptor, bytes);
        if self.random.one_in(4) {
            file::sync(table::lookup(descriptor).expect("ours")).expect("syncs");
        }
        close(descriptor);
    }

    fn write_in_pieces(&mut self, descriptor: i32, bytes: &[u8]) {
        let piece_max = *self.random.pick(&[900, 20_000, 90_000, u64::MAX]);
        let mut left = bytes;
        while !left.is_empty() {
            let wanted = (self.random.below(piece_max) + 1).min(left.len() as u64) as usize;
            assert_eq!(write(descriptor, &left[..wanted]), Ok(wanted));
            left = &left[wanted..];
        }
    }
}

fn cut_open(descriptor: i32, size: u64) {
    let handle = table::lookup(descriptor).expect("ours");
    file::truncate_handle(handle, size as i64).expect("truncates");
}

/// A running writer.
struct Child {
    pid: i32,
    progress: i32,
}

impl Child {
    /// Forks a writer. `introduced` says whether the fork is announced to the store, as an
    /// intercepted fork is.
    fn start(number: usize, seed: u64, ledger: &Ledger, introduced: bool) -> Child {
        let mut random = Random::new(seed);
        let record_bytes_max = *random.pick(&[60, 3000, 60_000, 120_000]);
        let mut ends = [0; 2];
        // SAFETY: the array has room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        let [progress, theirs] = ends;
        let spawn = introduced.then(|| Spawn::begin().expect("a slot for the child"));
        // SAFETY: the child runs only the writer and leaves without the parent's exit handlers.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            if let Some(spawn) = spawn {
                spawn.child();
            }
            let entries = ledger[number];
            let known = std::array::from_fn(|_| None);
            let progress = theirs;
            let writer = Writer { number, random, entries, known, record_bytes_max, progress };
            let panicked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| -> () { writer.run() }));
            // The harness captures the output of the panic and dies with this process.
            if let Err(payload) = panicked {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text.or(payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                let text = format!("writer {number}: {}\n", text.unwrap_or_default());
                // SAFETY: `text` is alive and has the given length.
                unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            }
            // SAFETY: ends this process.
            unsafe { libc::_exit(1) };
        }
        if let Some(spawn) = spawn {
            spawn.parent(pid);
        }
        // SAFETY: this copy of the child's end is ours, and nobody else uses it.
        unsafe { libc::close(theirs) };
        Child { pid, progress }
    }

    /// Waits until the writer has reported `steps` more steps.
    fn await_steps(&self, steps: u64) {
        let mut bytes = [0_u8; 64];
        let mut left = steps as usize;
        while left > 0 {
            let mut poll = libc::pollfd { fd: self.progress, events: libc::POLLIN, revents: 0 };
            // SAFETY: `poll` is one entry, as the count says.
            let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE_MS) };
            assert_eq!(ready, 1, "writer {} hangs", self.pid);
            let wanted = left.min(bytes.len());
            // SAFETY: the buffer has at least `wanted` bytes.
            let got = unsafe { libc::read(self.progress, bytes.as_mut_ptr().cast(), wanted) };
            assert!(got > 0, "writer {} ended by itself; it says why on stderr", self.pid);
            left -= got as usize;
        }
    }

    /// Kills the writer and waits for its end.
    fn kill(self) {
        let mut status = 0;
        // SAFETY: the child is ours and nobody has waited for it; `status` is a local; the
        // descriptor is ours.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            assert_eq!(libc::waitpid(self.pid, &raw mut status, 0), self.pid);
            libc::close(self.progress);
        }
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        assert!(killed, "the writer ended by itself ({status:#x}); it says why on stderr");
    }
}

/// Passes a random time without giving up the processor. A sleep would favour points at which the
/// writer waits.
fn spin(random: &mut Random) {
    let most = *random.pick(&[100, 2000, 20_000, 80_000]);
    for _ in 0..random.below(most) {
        std::hint::spin_loop();
    }
}

// ---- What must hold afterwards.

#[derive(Debug, Default)]
struct Tally {
    rounds: u64,
    pairs: u64,
    under_way: u64,
    old: u64,
    new: u64,
    unclean: u64,
    absent: u64,
}

/// Returns the state of the file with that name. Panics if it is damaged and not marked.
fn examine(name: &str) -> State {
    let Some(attributes) = stat(name) else { return State::Absent };
    assert_eq!((attributes.writers, attributes.opens), (0, 0), "{name} is open nowhere");
    let bytes = get(name);
    assert_eq!(bytes.len() as u64, attributes.size, "{name}");
    compare_checksums(name, &bytes);
    if attributes.unclean {
        return State::Unclean;
    }
    let records = parse(&bytes).unwrap_or_else(|why| panic!("{name} is clean, but damaged: {why}"));
    State::Whole(version(&records))
}

/// Checks that every extended attribute of `name` is one record, so that no attribute ever held a
/// part of a value.
fn examine_attributes(name: &str) {
    let Ok(inode) = file::resolve(&at(name), true) else { return };
    let attributes = mount().fs().all_extended(inode).expect("can be read");
    for (attribute, value) in attributes.iter() {
        let attribute = String::from_utf8_lossy(attribute);
        let records = parse(value).unwrap_or_else(|why| panic!("{attribute} of {name}: {why}"));
        assert_eq!(records.len(), 1, "{attribute} of {name}");
    }
}

/// Compares a file with its entry, and updates the entry to what was found.
fn verify(entry: Entry, name: &str, tally: &mut Tally) {
    let (old, found) = (entry.present(), examine(name));
    if let Some((operation, new)) = entry.under_way() {
        tally.under_way += 1;
        match found {
            _ if found == old => tally.old += 1,
            _ if found == new => tally.new += 1,
            State::Unclean if operation.may_leave_unclean() => tally.unclean += 1,
            _ => panic!("{name}: {operation:?} from {old:?} to {new:?} gave {found:?}"),
        }
        if let (State::Unclean, Append | AppendAndCut, State::Whole(before)) =
            (found, operation, old)
        {
            let bytes = get(name);
            assert!(bytes.len() as u64 >= before.length, "{name}: an append removed bytes");
            let records = parse(&bytes[..before.length as usize]);
            let records = records.unwrap_or_else(|why| panic!("{name}: append destroyed: {why}"));
            assert_eq!(version(&records), before, "{name}: an append changed what was there");
        }
    } else {
        assert_eq!(found, old, "{name}: nothing was under way");
    }
    tally.absent += u64::from(found == State::Absent);
    entry.settle(found);
}

fn verify_store(ledger: &Ledger, tally: &mut Tally) {
    let now = usage();
    assert_eq!((now.processes, now.handles, now.pins), (1, 0, 0), "all that the dead held is gone");
    let report = check();
    let mut present = 0;
    for (writer, entries) in ledger.iter().enumerate() {
        for (number, &entry) in entries.iter().enumerate() {
            verify(entry, &file_name(writer, number), tally);
            examine_attributes(&file_name(writer, number));
            present += u64::from(entry.present() != State::Absent);
        }
        // It may be unclean or whole.
        present += u64::from(examine(&temporary_name(writer)) != State::Absent);
    }
    examine_attributes(".");
    let shared = examine(SHARED);
    assert_ne!(shared, State::Unclean, "only closed files are given the shared name");
    present += u64::from(shared != State::Absent);
    assert_eq!(
        (report.names, report.inodes),
        (present, present + 1),
        "names, and the root's inode"
    );
}

fn use_store(round: u64) {
    let content = record(round, RECORD_BYTES_MIN + round * 977 % 100_000);
    put("usable", &content);
    assert_eq!(get("usable"), content);
    let descriptor = open("usable", libc::O_RDONLY).expect("opens");
    assert_eq!(read(descriptor, 8).expect("reads"), MAGIC.to_le_bytes());
    close(descriptor);
    remove("usable");
    assert_eq!(errno(open("usable", libc::O_RDONLY)), libc::ENOENT);
}

fn kill_in_round(round: u64, random: &mut Random, ledger: &Ledger, tally: &mut Tally) {
    let pair = random.one_in(3);
    tally.rounds += 1;
    tally.pairs += u64::from(pair);
    let mut order = [0, 1];
    if random.one_in(2) {
        order.swap(0, 1);
    }
    let start = |number: usize, random: &mut Random| {
        let introduced = !random.one_in(4);
        Child::start(number, random.draw(), ledger, introduced)
    };
    let first = start(order[0], random);
    let second = pair.then(|| start(order[1], random));
    // Some die before their first step, or even before they are attached.
    let most = *random.pick(&[2, 20, 100]);
    first.await_steps(random.below(most));
    spin(random);
    first.kill();
    if let Some(second) = second {
        let reaped_early = random.one_in(2);
        if reaped_early {
            reap();
        }
        // The dead writer does not block the living one, reaped or not.
        second.await_steps(1 + random.below(most));
        spin(random);
        second.kill();
    }
    reap();
    verify_store(ledger, tally);
    use_store(round);
}

/// Runs `child` in a forked process that is killed at its end.
fn killed_after(child: impl FnOnce()) {
    let spawn = Spawn::begin().expect("a slot for the child");
    // SAFETY: the child runs only the closure and is killed, without the parent's exit handlers.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        spawn.child();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_err();
        let signal = if panicked { libc::SIGABRT } else { libc::SIGKILL };
        // SAFETY: both calls end this process.
        unsafe {
            libc::kill(libc::getpid(), signal);
            libc::_exit(1)
        }
    }
    spawn.parent(pid);
    let mut status = 0;
    // SAFETY: the child is ours and nobody has waited for it; `status` is a local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:#x}");
    assert_eq!(reap(), 1);
}

#[test]
fn writer_dies_between_emptying_an_open_file_and_writing_it_then_the_file_is_unclean() {
    let _turn = turn();
    put("rewritten", &record(1, 5000));
    for size in [0, 100] {
        killed_after(|| cut_open(open("rewritten", libc::O_RDWR).expect("opens"), size));
        assert_eq!(examine("rewritten"), State::Unclean, "cut to {size}");
        put("rewritten", &record(1, 5000));
    }
    put("reserved", b"");
    killed_after(|| {
        let descriptor = open("reserved", libc::O_WRONLY).expect("opens");
        let handle = table::lookup(descriptor).expect("ours");
        allocate::allocate(handle, 0, 5000).expect("allocates");
    });
    assert_eq!(examine("reserved"), State::Unclean);
    // A process that only opens the file leaves it as it is.
    killed_after(|| assert!(open("rewritten", libc::O_RDWR).expect("opens") > 2));
    assert!(matches!(examine("rewritten"), State::Whole(_)));
    ["rewritten", "reserved"].into_iter().for_each(remove);
    assert_eq!(check().inodes, 1);
}

#[test]
fn writers_are_killed_at_random_points_then_no_clean_file_is_damaged_and_nothing_leaks() {
    let seed = environment_number(SEED_VARIABLE).unwrap_or(1);
    println!("{SEED_VARIABLE}={seed}");
    let _turn = turn();
    let ledger = ledger();
    let mut random = Random::new(seed);
    assert_eq!(noise().len() as u64, NOISE_BYTES);
    let mut tally = Tally::default();
    let rounds = if soaking() { SOAK_ROUNDS } else { ROUNDS };
    for round in 0..rounds {
        println!("round {round} of {SEED_VARIABLE}={seed}");
        kill_in_round(round, &mut random, &ledger, &mut tally);
    }
    println!("{tally:?}");
    // The test is meaningful only if deaths hit work in progress, at different stages of it.
    assert!(tally.under_way > rounds / 10, "{tally:?}");
    assert!(tally.old > 0 && tally.unclean > 0, "{tally:?}");
    for (writer, entries) in ledger.iter().enumerate() {
        for (number, entry) in entries.iter().enumerate() {
            if entry.present() != State::Absent {
                remove(&file_name(writer, number));
            }
        }
    }
    for name in [temporary_name(0), temporary_name(1), SHARED.to_owned()] {
        let _ = names::unlink(&at(&name));
    }
    let report = check();
    assert_eq!((report.file_blocks, report.inodes), (0, 1), "an empty store at the end");
}
