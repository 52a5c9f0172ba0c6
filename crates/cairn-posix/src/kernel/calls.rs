//! Counters of calls to C library functions and their outcomes. Every process of a job counts in
//! one file of the store, if `cairn run --report-calls` created that file.
//!
//! ```text
//! head      magic, number of calls that found no room
//! programs  executed programs: name and file
//! rows      function, outcome, program, an example path; count
//! ```
//! A record is found by hashing its key and probing a few places. A process that needs a new record
//! takes a free place, fills it, and then marks it as ready. If it dies in between, the place stays
//! unused. If two processes do this at once, they make two records, and the reader adds them up. So
//! a count is in the file as soon as it is made, whichever process is killed when, and nobody
//! waits.
//!
//! Invariant: the file has its size and its memory before a process maps it. Readers take a copy
//! and check what they find.
//!
//! Does not know which outcome is a refusal; `decisions.rs` does.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use cairn_platform::{mlock_exempt, sys};

use crate::error::Result;
use crate::kernel::configuration;

/// Name of the file in the store's directory.
pub const FILE_NAME: &str = "calls";
/// Environment variable that tells processes to count, if it is not empty.
pub const VARIABLE: &str = "CAIRN_CALLS";
/// Size of the file in bytes.
pub const BYTES: usize = size_of::<Table>();

/// Function name under which a raw system call, made by an instruction outside the C library and
/// caught, is counted. If it was served, it is counted under its real name as well.
pub const BY_INSTRUCTION: &str = "syscall (instruction)";

const MAGIC: u64 = u64::from_le_bytes(*b"cairncl1");
/// Words of a record.
const WORDS: usize = 32;
/// Words of a record that hold text.
const TEXT_WORDS: usize = WORDS - 2;
/// Words of a program's text that hold its name; the rest holds its file.
const NAME_WORDS: usize = 2;
/// Words of a row's text that hold the function; the rest holds the path.
const SYMBOL_WORDS: usize = 6;
const PROGRAMS: usize = 256;
const ROWS: usize = 4096 - PROGRAMS - 1;
/// Most places probed for a record.
const PROBES_MAX: usize = 64;

const FREE: u64 = 0;
const FILLING: u64 = 1;
const READY: u64 = 2;

/// Outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// Cairn served it with success.
    Served,
    /// It concerned no file of ours and was left to the C library.
    Passed,
    /// Cairn served it, and it failed with this errno.
    Failed(i32),
    /// Cairn did not see the call, only its effect: the kernel changed a descriptor of ours.
    Missed,
}

impl Outcome {
    fn code(self) -> u64 {
        match self {
            Outcome::Served => 1,
            Outcome::Passed => 2,
            Outcome::Failed(errno) => 3 | u64::from(errno as u16) << 8,
            Outcome::Missed => 4,
        }
    }

    fn from_code(code: u64) -> Option<Outcome> {
        match (code & 0xff, code >> 8) {
            (1, 0) => Some(Outcome::Served),
            (2, 0) => Some(Outcome::Passed),
            (3, errno @ 1..=0xffff) => Some(Outcome::Failed(errno as i32)),
            (4, 0) => Some(Outcome::Missed),
            _ => None,
        }
    }
}

#[repr(C)]
struct Record {
    /// `FREE`, `FILLING`, or `READY` in the low byte; a ready record has its code in the bits
    /// above.
    state: AtomicU64,
    count: AtomicU64,
    text: [AtomicU64; TEXT_WORDS],
}

#[repr(C)]
struct Table {
    /// Its state is the magic; its count is the number of uncounted calls.
    head: Record,
    programs: [Record; PROGRAMS],
    rows: [Record; ROWS],
}

const _: () = assert!(size_of::<Record>() == WORDS * 8 && size_of::<Table>() == 1 << 20);

/// Content for a record.
struct Entry {
    state: u64,
    text: [u64; TEXT_WORDS],
    /// Number of leading text words that are the key.
    key_words: usize,
}

impl Entry {
    /// Makes an entry with `first` in the first words and `second` in the others; truncates what is
    /// too long.
    fn new(code: u64, first: &[u8], first_words: usize, second: &[u8]) -> Entry {
        let mut text = [0; TEXT_WORDS];
        let (start, rest) = text.split_at_mut(first_words);
        for (words, bytes) in [(start, first), (rest, second)] {
            for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
                let mut padded = [0; 8];
                padded[..chunk.len()].copy_from_slice(chunk);
                *word = u64::from_le_bytes(padded);
            }
        }
        Entry { state: READY | code << 8, text, key_words: first_words }
    }

    fn hash(&self) -> u64 {
        let mix = |hash: u64, word: &u64| {
            (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        self.text[..self.key_words].iter().fold(mix(0, &self.state), mix)
    }

    /// Returns the index of the entry's record and fills a free one if there is none; none if there
    /// is no room.
    fn place(&self, records: &[Record]) -> Option<usize> {
        let start = self.hash() as usize % records.len();
        (0..PROBES_MAX)
            .map(|step| (start + step) % records.len())
            .find(|&index| self.is_in(&records[index]))
    }

    /// Whether the record holds this entry. Fills the record if it is free.
    fn is_in(&self, record: &Record) -> bool {
        let taken =
            record.state.compare_exchange(FREE, FILLING, Ordering::Acquire, Ordering::Acquire);
        match taken {
            Ok(_) => {
                for (target, word) in record.text.iter().zip(self.text) {
                    target.store(word, Ordering::Relaxed);
                }
                record.state.store(self.state, Ordering::Release);
                true
            }
            Err(state) => {
                let key = record.text.iter().zip(self.text).take(self.key_words);
                state == self.state
                    && key.into_iter().all(|(at, word)| at.load(Ordering::Relaxed) == word)
            }
        }
    }
}

/// Whether this process is told to count.
#[cold]
pub fn is_wanted() -> bool {
    configuration::get().is_some_and(configuration::Configuration::counts_calls)
}

/// Counts a call of the function `symbol`. Keeps `path` as an example if the call is the first of
/// its kind. Changes no errno, and does nothing if there is no file to count in.
#[cold]
pub fn count(symbol: &str, outcome: Outcome, path: &[u8]) {
    let Some(table) = table() else { return };
    table.counter(program(table), symbol, outcome, path).fetch_add(1, Ordering::Relaxed);
}

impl Table {
    /// Returns the counter for such calls. If there is no room for them or their program, that is
    /// the counter of uncounted calls.
    fn counter(
        &self,
        program: Option<u16>,
        symbol: &str,
        outcome: Outcome,
        path: &[u8],
    ) -> &AtomicU64 {
        let place = program.and_then(|program| {
            let code = outcome.code() | u64::from(program) << 24;
            Entry::new(code, symbol.as_bytes(), SYMBOL_WORDS, path).place(&self.rows)
        });
        &place.map_or(&self.head, |index| &self.rows[index]).count
    }
}

/// Returns the table, mapped on first use.
fn table() -> Option<&'static Table> {
    const UNTRIED: u8 = 0;
    const TRIED: u8 = 1;
    static STATE: AtomicU8 = AtomicU8::new(UNTRIED);
    static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());
    if STATE.load(Ordering::Acquire) == UNTRIED {
        if let Ok(Some(mapped)) = map() {
            TABLE.store(mapped, Ordering::Release);
        }
        STATE.store(TRIED, Ordering::Release);
    }
    // SAFETY: null, or a mapping of a whole table that is never unmapped. A table consists of
    // atomic words, for which every value is valid, so writes by other processes do no harm.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Maps the file; none if it does not have the right size. If another thread does the same, one
/// mapping stays unused.
fn map() -> Result<Option<*mut Table>> {
    let Some(configuration) = configuration::get().filter(|found| found.counts_calls()) else {
        return Ok(None);
    };
    const NAME: &CStr = c"calls";
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let store = sys::openat(libc::AT_FDCWD, configuration.store_path(), flags, 0)?;
    let opened = sys::openat(store, NAME, libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW, 0);
    let _ = sys::close(store);
    let file = opened?;
    let mapped = sys::fstat(file).and_then(|stat| match stat.st_size == BYTES as i64 {
        true => {
            mlock_exempt::map(BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0)
                .map(Some)
        }
        false => Ok(None),
    });
    let _ = sys::close(file);
    Ok(mapped?.map(|start| start.cast()))
}

/// Index of the record for the program that this process executes.
fn program(table: &Table) -> Option<u16> {
    const UNKNOWN: u32 = u32::MAX;
    static NUMBER: AtomicU32 = AtomicU32::new(UNKNOWN);
    let known = NUMBER.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return u16::try_from(known).ok();
    }
    let (mut name, mut file) = ([0; NAME_WORDS * 8], [0; (TEXT_WORDS - NAME_WORDS) * 8]);
    let name_bytes = read_name(&mut name).unwrap_or(0);
    let file_bytes = sys::readlinkat(libc::AT_FDCWD, c"/proc/self/exe", &mut file).unwrap_or(0);
    let mut entry = Entry::new(0, &name[..name_bytes], NAME_WORDS, &file[..file_bytes]);
    entry.key_words = TEXT_WORDS;
    let index = entry.place(&table.programs)?;
    NUMBER.store(index as u32, Ordering::Relaxed);
    u16::try_from(index).ok()
}

/// Reads the kernel's name of the process; for a script it is the script's.
fn read_name(target: &mut [u8]) -> Result<usize> {
    let file =
        sys::openat(libc::AT_FDCWD, c"/proc/self/comm", libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let read = sys::read(file, target);
    let _ = sys::close(file);
    let bytes = read?;
    Ok(target[..bytes].iter().position(|&byte| byte == b'\n').unwrap_or(bytes))
}

/// A row as read from the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Name of the function.
    pub symbol: String,
    /// Outcome of the calls.
    pub outcome: Outcome,
    /// Kernel's name of the program that made the calls.
    pub name: String,
    /// File of the program.
    pub file: String,
    /// Path that such a call was given; empty if none is known.
    pub path: String,
    /// Number of calls.
    pub count: u64,
}

/// All counts of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// One row for each function, outcome and program, sorted.
    pub rows: Vec<Row>,
    /// Number of calls for which there was no room.
    pub uncounted: u64,
}

/// Returns the content of a new file.
pub fn new_file() -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes
}

/// Reads a copy of the file; none if it is not such a file. Leaves out damaged records.
pub fn read(bytes: &[u8]) -> Option<Report> {
    if bytes.len() != BYTES || bytes[..8] != MAGIC.to_le_bytes() {
        return None;
    }
    let records: Vec<&[u8]> = bytes.chunks_exact(size_of::<Record>()).collect();
    let (programs, rows) = records[1..].split_at(PROGRAMS);
    let mut rows: Vec<Row> = rows.iter().filter_map(|record| read_row(record, programs)).collect();
    let key = |row: &Row| (row.symbol.clone(), row.outcome, row.name.clone(), row.file.clone());
    rows.sort_by_key(key);
    rows.dedup_by(|next, kept| {
        let same = key(next) == key(kept);
        if same {
            kept.count = kept.count.saturating_add(next.count);
        }
        same
    });
    Some(Report { rows, uncounted: word(records[0], 1) })
}

fn read_row(record: &[u8], programs: &[&[u8]]) -> Option<Row> {
    let state = word(record, 0);
    if state & 0xff != READY {
        return None;
    }
    let code = state >> 8;
    let outcome = Outcome::from_code(code & 0xff_ffff)?;
    let program = programs.get(usize::try_from(code >> 24).ok()?)?;
    let (symbol, path) = texts(record, SYMBOL_WORDS);
    let (name, file) = texts(program, NAME_WORDS);
    Some(Row { symbol, outcome, name, file, path, count: word(record, 1) })
}

fn word(record: &[u8], index: usize) -> u64 {
    record[index * 8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the two texts of a record.
fn texts(record: &[u8], first_words: usize) -> (String, String) {
    let (first, second) = record[16..].split_at(first_words * 8);
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    (text(first), text(second))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Vec<Record> {
        let record = || Record {
            state: AtomicU64::new(FREE),
            count: AtomicU64::new(0),
            text: [const { AtomicU64::new(0) }; TEXT_WORDS],
        };
        (0..PROBES_MAX + 1).map(|_| record()).collect()
    }

    fn entry(symbol: &str) -> Entry {
        Entry::new(Outcome::Served.code(), symbol.as_bytes(), SYMBOL_WORDS, b"/cairn/f")
    }

    #[test]
    fn same_call_finds_its_record_and_another_a_free_one() {
        let records = empty();
        let first = entry("open").place(&records).expect("there is room");
        assert_eq!(entry("open").place(&records), Some(first));
        assert_ne!(entry("openat").place(&records), Some(first));
        let failed = Entry::new(Outcome::Failed(2).code(), b"open", SYMBOL_WORDS, b"");
        assert_ne!(failed.place(&records), Some(first));
    }

    #[test]
    fn record_whose_writer_died_is_passed_over() {
        let records = empty();
        let first = entry("open").place(&records).expect("there is room");
        records[first].state.store(FILLING, Ordering::Relaxed);
        let second = entry("open").place(&records).expect("there is room");
        assert_eq!(second, (first + 1) % records.len());
        records.iter().for_each(|record| record.state.store(FILLING, Ordering::Relaxed));
        assert_eq!(entry("open").place(&records), None);
    }

    /// Writes a record with this state, count and text to its place in a file.
    fn put(file: &mut [u8], index: usize, state: u64, count: u64, text: &[u64]) {
        let words = [state, count].into_iter().chain(text.iter().copied());
        for (place, word) in file[index * WORDS * 8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Mechanism: a call of a program that found no room among the programs was counted nowhere.
    ///
    /// Consequence: `cairn check` could report no missed call although it had not seen them all.
    ///
    /// Fix: such a call counts as one that found no room.
    #[test]
    fn calls_of_a_program_that_found_no_room_are_not_forgotten() {
        let mut words = vec![0_u64; BYTES / 8];
        // SAFETY: a table consists of as many words, for which every value is valid, and the vector
        // outlives the reference.
        let table = unsafe { &*words.as_mut_ptr().cast::<Table>() };
        let counter = |program| table.counter(program, "open", Outcome::Served, b"");
        assert!(core::ptr::eq(counter(None), &table.head.count));
        assert!(!core::ptr::eq(counter(Some(0)), &table.head.count));
    }

    #[test]
    fn reader_adds_up_and_leaves_out_what_cannot_be() {
        let mut file = new_file();
        let program = Entry::new(0, b"sh", NAME_WORDS, b"/bin/dash");
        put(&mut file, 1 + 5, program.state, 0, &program.text);
        let row = Entry::new(
            Outcome::Failed(95).code() | 5 << 24,
            b"getxattr",
            SYMBOL_WORDS,
            b"/cairn/f",
        );
        let first_row = 1 + PROGRAMS;
        put(&mut file, first_row, row.state, 3, &row.text);
        put(&mut file, first_row + 9, row.state, 4, &row.text);
        put(&mut file, first_row + 1, FILLING, 7, &row.text);
        let no_program = Outcome::Served.code() | (PROGRAMS as u64) << 24;
        put(&mut file, first_row + 2, READY | no_program << 8, 7, &row.text);
        put(&mut file, first_row + 3, READY | 0x09 << 8, 7, &row.text);
        put(&mut file, first_row + 4, u64::MAX, 7, &row.text);
        let report = read(&file).expect("a file of ours");
        let expected = Row {
            symbol: "getxattr".to_owned(),
            outcome: Outcome::Failed(95),
            name: "sh".to_owned(),
            file: "/bin/dash".to_owned(),
            path: "/cairn/f".to_owned(),
            count: 7,
        };
        assert_eq!(report, Report { rows: vec![expected], uncounted: 0 });
    }

    #[test]
    fn file_of_another_size_or_kind_is_none() {
        assert_eq!(read(&new_file()), Some(Report::default()));
        assert_eq!(read(&new_file()[8..]), None);
        assert_eq!(read(&vec![0; BYTES]), None);
    }
}
