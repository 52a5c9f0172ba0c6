//! How often functions of the C library were called, and how that ended: counted by every process
//! of a job in one file of the store, where `cairn run --report-calls` made such a file.
//!
//! ```text
//! head      magic, calls that found no room
//! programs  what executes: its name and its file
//! rows      a function, an outcome, a program, a path for example; how often
//! ```
//! Records are found by hashing what they are about and looking at a few places. Who needs one that
//! is not there takes a free place, fills it, and then says so; a process that dies meanwhile
//! leaves a place that nobody uses, and two that are at it at once make two records, which the
//! reader adds up. So counts are there when they were made, whoever is killed when, and nobody
//! waits.
//! Invariant: the file has its size and its memory before a process maps it. Readers take a copy of
//! it and check what they find.
//! Does not know which outcome is a refusal; `decisions.rs` does.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use cairn_device::{sys, unlocked};

use crate::error::Result;
use crate::kernel::configuration;

/// Name of the file in the store's directory.
pub const FILE_NAME: &str = "calls";
/// The variable that tells processes to count, if it is not empty.
pub const VARIABLE: &str = "CAIRN_CALLS";
/// Size of the file.
pub const BYTES: usize = size_of::<Table>();

/// Stands for a function where a call was made by an instruction that is not the C library's, and
/// caught: it is counted as what it was, too, if it was served.
pub const BY_INSTRUCTION: &str = "syscall (instruction)";

const MAGIC: u64 = u64::from_le_bytes(*b"cairncl1");
/// Words of a record.
const WORDS: usize = 32;
/// Words of a record that text fills.
const TEXT_WORDS: usize = WORDS - 2;
/// Words of a program's text that are its name; the rest is its file.
const NAME_WORDS: usize = 2;
/// Words of a row's text that are the function; the rest is the path.
const SYMBOL_WORDS: usize = 6;
const PROGRAMS: usize = 256;
const ROWS: usize = 4096 - PROGRAMS - 1;
/// Places that are looked at for a record.
const PROBES_MAX: usize = 64;

const FREE: u64 = 0;
const FILLING: u64 = 1;
const READY: u64 = 2;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// By us, with success.
    Served,
    /// It concerned nothing of ours and was left to the C library.
    Passed,
    /// By us, with this errno.
    Failed(i32),
    /// It was not seen, and its effect was: the kernel did something with a descriptor of ours.
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
    /// `FREE`, `FILLING`, or `READY` with what else the record is about.
    state: AtomicU64,
    count: AtomicU64,
    text: [AtomicU64; TEXT_WORDS],
}

#[repr(C)]
struct Table {
    /// The magic as its state; what was not counted as its count.
    head: Record,
    programs: [Record; PROGRAMS],
    rows: [Record; ROWS],
}

const _: () = assert!(size_of::<Record>() == WORDS * 8 && size_of::<Table>() == 1 << 20);

/// What a record is to hold.
struct Entry {
    state: u64,
    text: [u64; TEXT_WORDS],
    /// So many words of the text tell it from others.
    key_words: usize,
}

impl Entry {
    /// `first` in the first words, `second` in the others; what is too long is cut.
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

    /// Where it is, or now is; none if there is no room.
    fn place(&self, records: &[Record]) -> Option<usize> {
        let start = self.hash() as usize % records.len();
        (0..PROBES_MAX)
            .map(|step| (start + step) % records.len())
            .find(|&index| self.is_in(&records[index]))
    }

    /// Whether the record is this entry's, free ones becoming so.
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

/// Counts a call of the function `symbol`; `path` is kept as an example if it is the first of its
/// kind. Changes no errno, and does nothing where there is no file to count in.
#[cold]
pub fn count(symbol: &str, outcome: Outcome, path: &[u8]) {
    let Some(table) = table() else { return };
    table.counter(program(table), symbol, outcome, path).fetch_add(1, Ordering::Relaxed);
}

impl Table {
    /// Where such calls are counted: with those that found no room, if there is none for them or
    /// their program.
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

/// The table, mapped when first needed.
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
    // SAFETY: null, or a mapping of a whole table that is never unmapped; a table is atomic words,
    // for which every value is valid, so that it does not matter what other processes write there.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Maps the file; nothing if it is not one of ours. Another thread may do the same: then one
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
        true => unlocked::map(BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0)
            .map(Some),
        false => Ok(None),
    });
    let _ = sys::close(file);
    Ok(mapped?.map(|start| start.cast()))
}

/// The number of what this process executes.
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

/// What the kernel calls the process: for a script, the script.
fn read_name(target: &mut [u8]) -> Result<usize> {
    let file =
        sys::openat(libc::AT_FDCWD, c"/proc/self/comm", libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    let read = sys::read(file, target);
    let _ = sys::close(file);
    let bytes = read?;
    Ok(target[..bytes].iter().position(|&byte| byte == b'\n').unwrap_or(bytes))
}

/// A row, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The function.
    pub symbol: String,
    /// How the calls ended.
    pub outcome: Outcome,
    /// What executed, as the kernel calls it.
    pub name: String,
    /// Its file.
    pub file: String,
    /// A path that such a call was given; empty if none is known.
    pub path: String,
    /// How many there were.
    pub count: u64,
}

/// What was counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// One for each function, outcome and program, sorted.
    pub rows: Vec<Row>,
    /// Calls for which there was no room.
    pub uncounted: u64,
}

/// The beginning of a new file.
pub fn new_file() -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes
}

/// Reads a copy of the file; none if it is no such file. What is not as it should be is left out.
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

/// The two texts of a record.
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

    /// A record with this state, count and text at its place in a file.
    fn put(file: &mut [u8], index: usize, state: u64, count: u64, text: &[u64]) {
        let words = [state, count].into_iter().chain(text.iter().copied());
        for (place, word) in file[index * WORDS * 8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Mechanism: a call of a program that found no room among the programs was counted nowhere.
    /// Consequence: `cairn check` could say that nothing was missed of what it had not seen.
    /// Fix: it is one of those that found no room.
    #[test]
    fn calls_of_a_program_that_found_no_room_are_not_forgotten() {
        let mut words = vec![0_u64; BYTES / 8];
        // SAFETY: a table is as many words, for which every value is valid, and lives as long as
        // they do.
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
