//! Write-ahead journal of the persist directory: the steps of one turn.
//!
//! Must stay true: nothing in the directory changes before the journal has all steps of the turn,
//! durably, with its end. A journal without its end announced a turn that did not begin. It is
//! removed only after the manifest on disk has the results, and the number of the turn: a journal
//! of that turn that is still there is over, because its steps cannot be carried out on the
//! results.
//!
//! Does not carry out steps; `ledger.rs` does.

use crate::model::error::{Error, Result};
use crate::persist::destination::Destination;
use cairn_job::file::path::FilePath;
use cairn_job::outside::steps::Step;
use cairn_platform::checksum;
use std::io::{Read, Write};

/// Begins the first line of a journal; the number of the turn follows.
const TURN: &str = "turn ";
/// Begins the last line; the CRC32C of the lines before it follows.
const END: &str = "end ";

/// Reads the steps of the turn after number `done`, if it was begun; else none. Errors: the journal
/// cannot be read, or a newer version wrote it.
pub fn read(destination: &Destination, done: u64) -> Result<Vec<Step>> {
    let path = destination.full_path(&destination.journal_path());
    let Some(mut file) = destination.open_journal()? else { return Ok(Vec::new()) };
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(Error::file("read", &path))?;
    let end = text.windows(END.len()).rposition(|part| part == END.as_bytes()).unwrap_or(0);
    let (steps, last) = text.split_at(end);
    if last != end_of(steps).as_bytes() {
        return Ok(Vec::new());
    }
    let first = steps.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let number = std::str::from_utf8(first).ok().and_then(|line| line.strip_prefix(TURN));
    let number = number.and_then(|number| number.parse::<u64>().ok());
    if number.is_some_and(|number| number <= done) {
        return Ok(Vec::new());
    }
    let steps = if number.is_some() { &steps[first.len()..] } else { steps };
    let lines = steps.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let json = |source| Error::Json { path: path.clone(), source };
    lines.map(|line| serde_json::from_slice(line).map_err(json)).collect()
}

/// Writes the steps of the turn `number`, durably. Errors: it cannot be written; the turn must not
/// begin.
pub fn write(destination: &Destination, number: u64, steps: &[Step]) -> Result<()> {
    let path = destination.full_path(&destination.journal_path());
    let mut text = format!("{TURN}{number}\n").into_bytes();
    for step in steps {
        serde_json::to_writer(&mut text, step)
            .map_err(|source| Error::Json { path: path.clone(), source })?;
        text.push(b'\n');
    }
    let end = end_of(&text);
    text.extend_from_slice(end.as_bytes());
    let mut file = destination.create_file(&destination.journal_path(), 0o600)?;
    file.write_all(&text).map_err(Error::file("write", &path))?;
    file.sync_all().map_err(Error::file("make durable", &path))?;
    destination.synchronise(&FilePath::root())
}

/// Removes the journal. Precondition: the manifest on disk has the results of its turn.
pub fn clear(destination: &Destination) -> Result<()> {
    destination.remove_file(&destination.journal_path())
}

fn end_of(steps: &[u8]) -> String {
    format!("{END}{:08x}\n", checksum::crc32c(0, steps))
}
