//! Notes of programs about their files and checkpoints: an append-only text file in the store's
//! directory.
//!
//! Each note is a line `CHECKSUM TIME PID RANK KIND NUMBER TEXT`: CRC32C of the rest in
//! hexadecimal, nanoseconds since the epoch, the process, its rank or `-`, the kind of note, its
//! number, and its text. In the text, `%` and bytes other than visible ASCII are written as `%XX`.
//! One call appends a note, which begins with a line feed. So a writer that was killed in the
//! middle, or met a full store, damages no other note than its own.
//!
//! Invariant: nothing that was appended changes.
//!
//! Does not act on notes.

use std::fmt::Write;

pub use cairn_core::note::{HINTS, Kind, Note};
use cairn_platform::checksum::crc32c;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno, SysResult};

/// Name of the file in the store's directory.
pub const NOTES_FILE: &str = "notes";
const NAME: &core::ffi::CStr = c"notes";
/// Longest text of a note, in bytes as the program gave them.
pub const TEXT_BYTES_MAX: usize = 4095;
/// Largest size of the file.
const FILE_BYTES_MAX: u64 = 64 << 20;

const KINDS: [(Kind, &str); 4] =
    [(Kind::Begin, "begin"), (Kind::End, "end"), (Kind::Hint, "hint"), (Kind::Run, "run")];

/// Appends a note. Errors: `EINVAL` for a text that is empty or too long; `ENOSPC` also if the file
/// has reached its largest size.
pub fn append(directory: i32, note: &Note) -> SysResult<()> {
    if note.text.is_empty() || note.text.len() > TEXT_BYTES_MAX {
        return Err(Errno(libc::EINVAL));
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
    let file = Descriptor::open_regular(directory, NAME, flags, 0o600)?;
    let line = format!("\n{}\n", line(note));
    let end = sys::fstat(file.raw())?.st_size as u64 + line.len() as u64;
    if end > FILE_BYTES_MAX || sys::write(file.raw(), line.as_bytes())? < line.len() {
        return Err(Errno(libc::ENOSPC));
    }
    Ok(())
}

/// Returns all notes in the order in which they were appended. Skips everything that is not a whole
/// note.
pub fn read(directory: i32) -> SysResult<Vec<Note>> {
    let file = match Descriptor::open_regular(directory, NAME, libc::O_RDONLY, 0) {
        Ok(file) => file,
        Err(Errno(libc::ENOENT)) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let content = file.read_up_to(FILE_BYTES_MAX as usize)?;
    Ok(content.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

fn line(note: &Note) -> String {
    let (kind, number) = (kind_name(note.kind), note.number);
    let rank = note.rank.map_or("-".to_owned(), |rank| rank.to_string());
    let mut rest = format!("{} {} {rank} {kind} {number} ", note.time_ns, note.pid);
    for &byte in &note.text {
        match byte {
            b'!'..=b'~' if byte != b'%' => rest.push(byte.into()),
            _ => write!(rest, "%{byte:02x}").expect("text in memory takes all"),
        }
    }
    format!("{:08x} {rest}", crc32c(0, rest.as_bytes()))
}

fn kind_name(kind: Kind) -> &'static str {
    KINDS.into_iter().find(|&(known, _)| known == kind).map_or("", |(_, name)| name)
}

fn parse(line: &[u8]) -> Option<Note> {
    let line = core::str::from_utf8(line).ok()?;
    let (checksum, rest) = line.split_once(' ')?;
    if u32::from_str_radix(checksum, 16).ok()? != crc32c(0, rest.as_bytes()) {
        return None;
    }
    let mut words = rest.split(' ');
    let mut next = || words.next();
    let note = Note {
        time_ns: next()?.parse().ok()?,
        pid: next()?.parse().ok()?,
        rank: match next()? {
            "-" => None,
            rank => Some(rank.parse().ok()?),
        },
        kind: next().and_then(|name| KINDS.iter().find(|(_, known)| *known == name))?.0,
        number: next()?.parse().ok()?,
        text: unescaped(next()?.as_bytes())?,
    };
    (next().is_none() && !note.text.is_empty()).then_some(note)
}

fn unescaped(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((&first, rest)) = text.split_first() {
        text = rest;
        bytes.push(match first {
            b'%' => {
                let (digits, rest) = text.split_at_checked(2)?;
                text = rest;
                u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()?
            }
            _ => first,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;

    struct Scratch(Directory);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("cairn-notes-{name}-{}", sys::getpid()));
            std::fs::create_dir_all(&path).expect("a scratch directory");
            Scratch(Directory::open(&path).expect("it is there"))
        }

        fn file(&self) -> std::path::PathBuf {
            self.0.path().join(NOTES_FILE)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.path());
        }
    }

    fn note(text: &[u8]) -> Note {
        let (kind, rank) = (Kind::Begin, Some(3));
        Note { time_ns: 7, pid: 42, rank, kind, number: u64::MAX, text: text.to_vec() }
    }

    #[test]
    fn notes_of_any_bytes_are_read_back_in_order() {
        let scratch = Scratch::new("bytes");
        let every: Vec<u8> = (1..=255).collect();
        let notes =
            [note(b"a"), note(b"100% of it\n"), note(&every), note(&[b'%'; TEXT_BYTES_MAX])];
        assert_eq!(read(scratch.0.raw()), Ok(Vec::new()));
        notes.iter().for_each(|note| append(scratch.0.raw(), note).expect("there is room"));
        assert_eq!(read(scratch.0.raw()), Ok(notes.to_vec()));
        for text in [&b""[..], &[b'x'; TEXT_BYTES_MAX + 1]] {
            assert_eq!(append(scratch.0.raw(), &note(text)), Err(Errno(libc::EINVAL)));
        }
    }

    #[test]
    fn note_that_was_torn_anywhere_costs_no_other() {
        let scratch = Scratch::new("torn");
        append(scratch.0.raw(), &note(b"first")).expect("there is room");
        let whole = std::fs::read(scratch.file()).expect("it was written");
        for cut in 0..whole.len() {
            std::fs::write(scratch.file(), [&whole[..], &whole[..cut]].concat()).expect("writes");
            append(scratch.0.raw(), &note(b"last")).expect("there is room");
            let read = read(scratch.0.raw()).expect("reads");
            let texts: Vec<&[u8]> = read.iter().map(|note| &note.text[..]).collect();
            assert_eq!((texts.first(), texts.last()), (Some(&&b"first"[..]), Some(&&b"last"[..])));
            assert!(texts.len() <= 3, "cut at {cut}: {texts:?}");
        }
    }

    #[test]
    fn note_with_a_flipped_bit_is_left_out() {
        let scratch = Scratch::new("bits");
        append(scratch.0.raw(), &note(b"checkpoint")).expect("there is room");
        let whole = std::fs::read(scratch.file()).expect("it was written");
        for bit in 8..8 * (whole.len() - 1) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(scratch.file(), &bytes).expect("writes");
            let found = read(scratch.0.raw()).expect("reads");
            // The checksum's own digits may be of either case.
            assert!(found.is_empty() || found == [note(b"checkpoint")], "bit {bit}: {found:?}");
        }
    }
}
