//! Output of the commands: one JSON document, or lines for a person.

pub(crate) mod duration;
pub(crate) mod markup;
pub(crate) mod progress;
pub(crate) mod ranks;
pub(crate) mod toml_file;
pub(crate) mod waiting;
use cairn_agent::model::error::why;
use cairn_core::Timestamp;
use serde::Serialize;
use std::ffi::{CStr, CString};
use std::io::{self, Write};

use crate::error::{EXIT_FAILURE, Result};

/// Prints a line on standard error in one write, so that it does not mix with the output of other
/// writers. Errors are ignored: a full standard error does not stop a run.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::output::to_standard_error(format!($($text)*))
    };
}
pub(crate) use say;

/// Prints `value` as one JSON document.
pub fn json<T: Serialize>(value: &T) -> Result<()> {
    let mut text =
        serde_json::to_vec_pretty(value).expect("our reports hold nothing JSON cannot say");
    text.push(b'\n');
    print(&text);
    Ok(())
}

/// Prints a line on standard output.
pub fn line(text: &str) {
    print(format!("{text}\n").as_bytes());
}

/// Writes to standard output and flushes. Exits with code 0 if the reader closed the pipe (`|
/// head`), and with a failure after any other error, such as a full disk.
pub fn print(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            say!("cairn: cannot write to standard output: {}", why(&error));
            std::process::exit(EXIT_FAILURE);
        }
    }
}

/// Implements [`say`].
pub fn to_standard_error(mut line: String) {
    line.push('\n');
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Returns a number with its noun: `1 file`, `2 files`.
pub fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// Returns process ids as the start of a sentence: `process 17 still uses`, `processes 17, 18, 19
/// and 5 more still use`.
pub fn still_use(processes: &[u32]) -> String {
    const NAMED_MAX: usize = 3;
    let named: Vec<String> = processes.iter().take(NAMED_MAX).map(u32::to_string).collect();
    let (noun, verb) = match processes.len() {
        1 => ("process", "still uses"),
        _ => ("processes", "still use"),
    };
    let more = match processes.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{noun} {}{more} {verb}", named.join(", "))
}

/// Quotes a word for a shell if needed.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=+,@%^".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Escapes a file name for a person: one line, without terminal control characters.
pub fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' | '\n' | '\r' | '\t' => text.extend(letter.escape_default()),
                _ if letter.is_control() => text.push_str(&format!("\\x{:02x}", u32::from(letter))),
                _ => text.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// Escapes the control characters of a text that may come from others: one line, which cannot
/// control the terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => shown.push_str(&format!("\\x{:02x}", u32::from(letter))),
            false => shown.push(letter),
        }
    }
    shown
}

/// Returns permission bits as `ls -l` shows them, after the letter `kind` of the file type.
pub fn mode_letters(kind: char, mode: u32) -> String {
    let mut letters = String::with_capacity(10);
    letters.push(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

/// Formats a time in the local time zone.
pub fn local_time(time: Timestamp) -> String {
    let seconds = time.parts().0;
    // SAFETY: an all-zero tm is a valid value; its zone pointer may be null. localtime_r fills it.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers refer to values that live in this frame.
    if unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) }.is_null() {
        return format!("{seconds}");
    }
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec
    )
}

/// Returns the name of a user, or the number if it has no name.
pub fn user_name(uid: u32) -> String {
    // SAFETY: only one thread of this program looks names up, and the entry is copied before the
    // next call.
    let name = unsafe {
        let entry = libc::getpwuid(uid);
        if entry.is_null() { None } else { copy_text((*entry).pw_name) }
    };
    name.unwrap_or_else(|| uid.to_string())
}

/// Returns the name of a group, or the number if it has no name.
pub fn group_name(gid: u32) -> String {
    // SAFETY: only one thread of this program looks names up, and the entry is copied before the
    // next call.
    let name = unsafe {
        let entry = libc::getgrgid(gid);
        if entry.is_null() { None } else { copy_text((*entry).gr_name) }
    };
    name.unwrap_or_else(|| gid.to_string())
}

/// # Safety
/// `text` is null or a NUL-terminated string.
unsafe fn copy_text(text: *const libc::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller promises a NUL-terminated string; null was checked above.
    let text: CString = unsafe { CStr::from_ptr(text) }.to_owned();
    text.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode_letters('-', 0o644), "-rw-r--r--");
        assert_eq!(mode_letters('d', 0o1777), "drwxrwxrwt");
        assert_eq!(mode_letters('-', 0o4750), "-rwsr-x---");
        assert_eq!(mode_letters('-', 0o2640), "-rw-r-S---");
    }

    #[test]
    fn one_process_uses_and_several_use() {
        assert_eq!(still_use(&[17]), "process 17 still uses");
        assert_eq!(still_use(&[17, 18]), "processes 17, 18 still use");
        assert_eq!(still_use(&[1, 2, 3, 4]), "processes 1, 2, 3 and 1 more still use");
    }

    #[test]
    fn names_are_one_line_that_no_terminal_obeys() {
        assert_eq!(escaped("plain ünï".as_bytes()), "plain ünï");
        assert_eq!(escaped(b"line\nbreak\x1b[31m\\"), r"line\nbreak\x1b[31m\\");
        assert_eq!(escaped(b"caf\xe9\xff"), r"caf\xe9\xff");
    }

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        assert_eq!(quoted("/a/b-1.x"), "/a/b-1.x");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
