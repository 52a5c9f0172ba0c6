//! What programs said of their checkpoints and files (`cairn.h`), for people and their scripts.
//!
//! Does not act on it. Must stay true: a note that is damaged is left out, and hides no other.

use crate::error::{Error, Result};
use crate::store::OpenStore;
use cairn_device::Store;
use cairn_device::notes::{self, HINTS, Kind, Note};
use glob::{MatchOptions, Pattern};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::io;

/// How many of [`HINTS`], from the first on, say what a file is for: one of them holds. One of the others says when it is needed.
const PURPOSES: usize = 3;
const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// The notes of a job, oldest first.
pub struct Notes(Vec<Note>);

/// A checkpoint that programs announced.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Checkpoint {
    /// Its name; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// Its step.
    pub step: u64,
    /// Processes that said they begin it, and that they are done.
    pub begun: usize,
    pub ended: usize,
    /// When the last of them said something, nanoseconds since the epoch.
    pub time_ns: i64,
}

impl Notes {
    /// The notes of the job of a store. Errors: they cannot be read.
    pub fn of(store: &OpenStore) -> Result<Notes> {
        let directory = store.directory();
        let opened = Store::open(directory).map_err(crate::store::refuse)?;
        let found = notes::read(opened.directory().raw());
        let failed = |errno: cairn_device::Errno| io::Error::from_raw_os_error(errno.0);
        let file = directory.join(notes::NOTES_FILE);
        Ok(Notes(found.map_err(failed).map_err(Error::file("read", &file))?))
    }

    /// The hints that hold for a file, by its path as the program sees it.
    pub fn hints(&self, path: &[u8]) -> Vec<&'static str> {
        let purposes = 1..=PURPOSES as u64;
        let (mut purpose, mut need) = (None, None);
        for note in
            self.0.iter().filter(|note| note.kind == Kind::Hint && matches(&note.text, path))
        {
            // One of a newer version means nothing here.
            let known = (note.number as usize).checked_sub(1).and_then(|index| HINTS.get(index));
            match (known, purposes.contains(&note.number)) {
                (None, _) => {}
                (known, true) => purpose = known,
                (known, false) => need = known,
            }
        }
        purpose.into_iter().chain(need).copied().collect()
    }

    /// The checkpoints that were announced, in the order of their first marks.
    pub fn checkpoints(&self) -> Vec<Checkpoint> {
        let mut found: Vec<Announced> = Vec::new();
        let mut known: HashMap<(&[u8], u64), usize> = HashMap::new();
        for note in self.0.iter().filter(|note| note.kind != Kind::Hint) {
            let at = *known.entry((&note.text, note.number)).or_insert(found.len());
            if at == found.len() {
                found.push(Announced::of(note));
            }
            found[at].take(note);
        }
        found.into_iter().map(Announced::checkpoint).collect()
    }
}

/// A checkpoint, and which processes with which ranks have said something of it.
struct Announced<'notes> {
    first: &'notes Note,
    begun: HashSet<(u32, Option<u32>)>,
    ended: HashSet<(u32, Option<u32>)>,
    time_ns: i64,
}

impl<'notes> Announced<'notes> {
    fn of(first: &'notes Note) -> Announced<'notes> {
        Announced { first, begun: HashSet::new(), ended: HashSet::new(), time_ns: first.time_ns }
    }

    fn take(&mut self, note: &Note) {
        let who = if note.kind == Kind::Begin { &mut self.begun } else { &mut self.ended };
        who.insert((note.pid, note.rank));
        self.time_ns = self.time_ns.max(note.time_ns);
    }

    fn checkpoint(self) -> Checkpoint {
        Checkpoint {
            name: String::from_utf8_lossy(&self.first.text).into_owned(),
            step: self.first.number,
            begun: self.begun.len(),
            ended: self.ended.len(),
            time_ns: self.time_ns,
        }
    }
}

fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let compiled = Pattern::new(&text(pattern));
    pattern == path || compiled.is_ok_and(|compiled| compiled.matches_with(&text(path), MATCHING))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(pid: u32, kind: Kind, number: u64, text: &str) -> Note {
        let time_ns = i64::from(pid);
        Note { time_ns, pid, rank: None, kind, number, text: text.as_bytes().to_vec() }
    }

    #[test]
    fn newest_hint_of_each_sort_holds() {
        let hint = |number, text| note(1, Kind::Hint, number, text);
        let notes = Notes(vec![
            hint(1, "/cairn/*.h5"),
            hint(4, "/cairn/a.h5"),
            hint(3, "/cairn/**/scratch.*"),
            hint(2, "/cairn/a.h5"),
            hint(99, "/cairn/a.h5"),
        ]);
        assert_eq!(notes.hints(b"/cairn/b.h5"), ["persistent"]);
        assert_eq!(notes.hints(b"/cairn/a.h5"), ["reusable", "preload"]);
        assert_eq!(notes.hints(b"/cairn/x/y/scratch.0"), ["temporary"]);
        assert!(notes.hints(b"/cairn/x/b.h5").is_empty());
    }

    #[test]
    fn processes_are_counted_once_for_each_checkpoint() {
        let notes = Notes(vec![
            note(1, Kind::Begin, 10, "melt"),
            note(2, Kind::Begin, 10, "melt"),
            note(2, Kind::Begin, 10, "melt"),
            note(2, Kind::End, 10, "melt"),
            note(3, Kind::Begin, 20, "melt"),
        ]);
        let found = notes.checkpoints();
        let counts: Vec<_> = found.iter().map(|one| (one.step, one.begun, one.ended)).collect();
        assert_eq!(counts, [(10, 2, 1), (20, 1, 0)]);
        assert_eq!(found[0].time_ns, 2);
    }
}
