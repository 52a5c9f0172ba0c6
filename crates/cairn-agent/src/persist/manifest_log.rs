//! The log that continues a manifest: a record for each time that it changed.
//!
//! A record is a line with the length of its text, the CRC32C of that, and the CRC32C of this line
//! so far, each eight hexadecimal digits; then the text, which is [`Changes`] in JSON, and a line
//! feed.
//!
//! Must stay true: a record is durable before what it tells of is forgotten elsewhere. A last
//! record that was not written whole says nothing; anything else that is not what was written is
//! damage. A log belongs to one text of the manifest, which names it, so that a log without it, or
//! one of an agent that was superseded, is never read.

use crate::model::error::{Error, Result};
use crate::persist::destination::Destination;
use cairn_job::file::path::FilePath;
use cairn_job::outside::manifest::changes::Changes;
use cairn_job::outside::manifest::{Manifest, is_log_name, log_name};
use cairn_platform::checksum::crc32c;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Length of the line before the text of a record.
const HEAD_BYTES: usize = 27;

/// A log that is being written.
pub struct ManifestLog {
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// What a log goes on with.
enum Next<'a> {
    /// A record, and what is behind it.
    Record(&'a [u8], &'a [u8]),
    /// One that was not written whole.
    Unfinished,
    Damaged,
}

impl ManifestLog {
    /// Makes the empty log of `manifest`, which is about to be written. Errors: it cannot be made.
    pub fn begin(destination: &Destination, manifest: &Manifest, log: &str) -> Result<ManifestLog> {
        let name = log_path(&manifest.job, log);
        let file = destination.create_file(&name, 0o644)?;
        Ok(ManifestLog { file, path: destination.full_path(&name), bytes: 0 })
    }

    /// Whether it still has its name: whoever tidies up may have removed it.
    pub fn has_name(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }

    /// Adds a record, durably. Errors: it cannot be written, and the log is as before.
    pub fn append(&mut self, changes: &Changes) -> Result<()> {
        let json = |source| Error::Json { path: self.path.clone(), source };
        let mut record = vec![0; HEAD_BYTES];
        serde_json::to_writer(&mut record, changes).map_err(json)?;
        record.push(b'\n');
        let head = head(&record[HEAD_BYTES..]);
        record[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        // An earlier record may have been written in part.
        let added = self
            .file
            .set_len(self.bytes)
            .and_then(|()| self.file.write_all_at(&record, self.bytes))
            .and_then(|()| self.file.sync_data());
        added.map_err(Error::file("write", &self.path))?;
        self.bytes += record.len() as u64;
        Ok(())
    }
}

/// Reads the log of `manifest` into it, if it has one. Errors: it cannot be read;
/// `ManifestDamaged`.
pub fn replay(destination: &Destination, manifest: &mut Manifest) -> Result<()> {
    let Some(log) = &manifest.log else { return Ok(()) };
    let name = log_path(&manifest.job, log);
    let path = destination.full_path(&name);
    let mut text = Vec::new();
    let mut file = destination.open_file(&name)?;
    file.read_to_end(&mut text).map_err(Error::file("read", &path))?;
    let mut rest = &text[..];
    while !rest.is_empty() {
        match next(rest) {
            Next::Record(record, behind) => {
                let json = |source| Error::Json { path: path.clone(), source };
                let changes: Changes = serde_json::from_slice(record).map_err(json)?;
                changes.apply(manifest).map_err(json)?;
                rest = behind;
            }
            Next::Unfinished => return Ok(()),
            Next::Damaged => return Err(Error::ManifestDamaged { path }),
        }
    }
    Ok(())
}

/// Removes the logs of `job` except that of `kept`. A failure is ignored: nobody reads them.
pub fn sweep(destination: &Destination, job: &str, kept: Option<&Manifest>) {
    let kept = kept.and_then(|manifest| Some(log_path(job, manifest.log.as_ref()?)));
    let names = destination.list(&FilePath::root()).unwrap_or_default().into_iter();
    for (name, _) in names.filter(|(name, _)| is_log_name(name, job)) {
        let path = FilePath::root().join(&name);
        if kept.as_ref() != Some(&path) {
            let _ = destination.remove_file(&path);
        }
    }
}

fn log_path(job: &str, log: &str) -> FilePath {
    FilePath::root().join(log_name(job, log).as_bytes())
}

fn head(text: &[u8]) -> String {
    let begin = format!("{:08x} {:08x} ", text.len(), crc32c(0, text));
    format!("{begin}{:08x}\n", crc32c(0, begin.as_bytes()))
}

fn next(log: &[u8]) -> Next<'_> {
    // What was to be written and was not is missing, or zero.
    let ends_in_zero = |part: &[u8]| part.last() == Some(&0);
    let is_zero = |part: &[u8]| part.iter().all(|byte| *byte == 0);
    let Some((line, rest)) = log.split_at_checked(HEAD_BYTES) else { return Next::Unfinished };
    let (begin, sum) = line.split_at(HEAD_BYTES - 9);
    if format!("{:08x}\n", crc32c(0, begin)).as_bytes() != sum {
        return if ends_in_zero(log) { Next::Unfinished } else { Next::Damaged };
    }
    let length = std::str::from_utf8(&begin[..8]).ok();
    let length = length.and_then(|digits| usize::from_str_radix(digits, 16).ok());
    let Some(length) = length else { return Next::Damaged };
    match rest.split_at_checked(length) {
        None => Next::Unfinished,
        Some((text, behind)) if head(text).as_bytes() == line => Next::Record(text, behind),
        Some((text, behind)) if ends_in_zero(text) && is_zero(behind) => Next::Unfinished,
        Some(_) => Next::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_job::file::node::{Kind, Node};
    use cairn_job::outside::manifest::changes::Touched;
    use cairn_job::outside::manifest::{Entry, State, Target};

    fn path(name: &str) -> FilePath {
        FilePath::parse(name.as_bytes()).expect("a path")
    }

    fn link(target: &str) -> Entry {
        let node = Node::new(7, Kind::Symlink);
        Entry { target: Some(Target(target.into())), ..node.entry(State::Drained) }
    }

    /// A manifest with a log of three records, and what it is after each.
    fn sample(name: &str) -> (PathBuf, Destination, Vec<Manifest>) {
        let directory = std::env::temp_dir().join(format!("cairn-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a scratch directory");
        let destination = Destination::open(&directory, "0123").expect("opens");
        let mut manifest = Manifest::new("melt", "0123", "/cairn");
        manifest.files.insert(path("kept"), link("a"));
        manifest.files.insert(path("gone"), link("b"));
        manifest.log = Some("0-0123".to_string());
        let mut log = ManifestLog::begin(&destination, &manifest, "0-0123").expect("begins");
        let mut states = vec![manifest.clone()];
        for turn in 1..=3 {
            manifest.turn = turn;
            manifest.complete = turn == 2;
            let new = path(&format!("new.{turn}"));
            manifest.files.insert(new.clone(), link("c"));
            manifest.whole.insert(new.clone(), link("d"));
            manifest.files.remove(&path("gone"));
            let touched =
                Touched { files: [new.clone(), path("gone")].into(), whole: [new].into() };
            log.append(&Changes::of(&manifest, &touched, &[])).expect("appends");
            states.push(manifest.clone());
        }
        (directory, destination, states)
    }

    fn replayed(destination: &Destination, from: &Manifest) -> Result<Manifest> {
        let mut manifest = from.clone();
        replay(destination, &mut manifest).map(|()| manifest)
    }

    #[test]
    fn log_that_ends_anywhere_shows_the_records_that_were_written_whole() {
        let (directory, destination, states) = sample("log-cut");
        let file = directory.join("cairn-manifest.melt.0-0123.changes");
        let text = std::fs::read(&file).expect("reads");
        let mut ends = Vec::new();
        let mut rest = &text[..];
        while let Next::Record(_, behind) = next(rest) {
            rest = behind;
            ends.push(text.len() - rest.len());
        }
        assert_eq!((ends.len(), ends[2]), (3, text.len()));
        for length in 0..=text.len() {
            let whole = ends.iter().filter(|end| **end <= length).count();
            // A file system may make a file longer before it writes what is in it.
            for zeros in [0, 1, 100] {
                let mut cut = text[..length].to_vec();
                cut.extend(vec![0; zeros]);
                std::fs::write(&file, &cut).expect("writes");
                let found = replayed(&destination, &states[0]).expect("is no damage");
                let states = states[whole].files == found.files && states[whole].turn == found.turn;
                assert!(states, "{length} bytes and {zeros} zeros");
            }
        }
        std::fs::remove_dir_all(directory).expect("removes");
    }

    #[test]
    fn bit_of_a_log_that_flips_is_damage_and_so_is_a_log_that_is_gone() {
        let (directory, destination, states) = sample("log-flip");
        let file = directory.join("cairn-manifest.melt.0-0123.changes");
        let text = std::fs::read(&file).expect("reads");
        assert_eq!(replayed(&destination, &states[0]).expect("is read"), states[3]);
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, &flipped).expect("writes");
            replayed(&destination, &states[0]).expect_err("a flipped bit is found");
        }
        sweep(&destination, "melt", Some(&states[0]));
        assert!(file.exists(), "it is in use");
        sweep(&destination, "mel", None);
        assert!(file.exists(), "it is of another job");
        sweep(&destination, "melt", None);
        assert!(!file.exists());
        replayed(&destination, &states[0]).expect_err("it is missing");
        std::fs::remove_dir_all(directory).expect("removes");
    }
}
