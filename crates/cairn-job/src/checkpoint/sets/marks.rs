//! Checkpoints that programs announce (`cairn_checkpoint_begin`, `cairn_checkpoint_end`), and their
//! hints about files (`cairn_hint`).
//!
//! The process that wrote a file is not known. A file belongs to the checkpoint during which it was
//! last changed; of several, to the one that began last. Pure.

use cairn_core::note::{HINTS, Kind, Note};
use glob::{MatchOptions, Pattern};
use std::collections::{HashMap, HashSet};

use crate::checkpoint::name::{Family, Name, Step};

/// Number of hints at the front of [`HINTS`] that state the purpose of a file; one of them holds.
/// The others state when the file is needed.
const PURPOSES: usize = 3;

/// Options for matching paths like a shell's wildcards.
pub const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// A checkpoint that programs announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Name that the programs gave.
    pub name: Name,
    /// Number of processes that have begun it.
    pub begun: usize,
    /// Number of processes that are done.
    pub ended: usize,
    /// Number of processes expected: as many as took part in the previous one.
    pub expected: usize,
    /// Time of the first announcement, nanoseconds since the epoch.
    pub first_ns: i64,
    /// Time of the last announcement, nanoseconds since the epoch.
    pub last_ns: i64,
    /// When the next run began, if processes of the last one had not ended the checkpoint: they are
    /// dead.
    pub cut_off_ns: Option<i64>,
}

impl Mark {
    /// Whether all processes that have begun are done.
    pub fn is_done(&self) -> bool {
        self.ended >= self.begun
    }

    /// Whether all expected processes are done.
    pub fn is_done_by_all(&self) -> bool {
        self.ended >= self.begun.max(self.expected)
    }
}

/// Returns the announced checkpoints, ordered by their first announcements. A checkpoint that a run
/// did not end, and that a later one begins again, counts as the later one.
pub fn marks(notes: &[Note]) -> Vec<Mark> {
    let mut found: Vec<Announced> = Vec::new();
    let mut known: HashMap<(&[u8], u64), usize> = HashMap::new();
    let mut run = 0;
    for note in notes {
        match note.kind {
            Kind::Hint => continue,
            Kind::Run => {
                run += 1;
                let open = found.iter_mut().filter(|one| !one.is_done());
                open.for_each(|one| one.cut_off_ns = one.cut_off_ns.or(Some(note.time_ns)));
                continue;
            }
            Kind::Begin | Kind::End => {}
        }
        let at = *known.entry((&note.text, note.number)).or_insert(found.len());
        if at == found.len() {
            found.push(Announced::of(note, run));
        } else if found[at].cut_off_ns.is_some() {
            found[at].is_replaced = true;
            known.insert((&note.text, note.number), found.len());
            found.push(Announced::of(note, run));
        }
        let last = known[&(&note.text[..], note.number)];
        found[last].take(note);
    }
    // Another run may have another number of processes.
    let mut before: HashMap<(&[u8], u64), usize> = HashMap::new();
    let mut marks = Vec::with_capacity(found.len());
    for one in found.iter().filter(|one| !one.is_replaced) {
        let expected = before.insert((&one.first.text, one.run), one.begun.len());
        marks.push(one.mark(expected.unwrap_or(0)));
    }
    marks
}

/// Returns the checkpoint during which a file was last changed.
pub fn mark_of(marks: &[Mark], written_ns: i64, now_ns: i64) -> Option<&Mark> {
    let last_ns = |mark: &Mark| match mark.cut_off_ns {
        Some(cut_off_ns) => cut_off_ns,
        None if mark.is_done_by_all() => mark.last_ns,
        None => now_ns,
    };
    let during =
        marks.iter().filter(|mark| mark.first_ns <= written_ns && written_ns <= last_ns(mark));
    during.max_by_key(|mark| mark.first_ns)
}

/// Returns the hints that hold for a file; `path` is its path as the program sees it.
pub fn hints(notes: &[Note], path: &[u8]) -> Vec<&'static str> {
    let [purpose, need] = last_hints(notes, path);
    purpose.into_iter().chain(need).map(|(name, _)| name).collect()
}

/// Returns the last hint that says when a file will be read, `preload` or `offload`, and when a
/// program gave it, nanoseconds since the epoch; `path` is as for [`hints`].
pub fn need(notes: &[Note], path: &[u8]) -> Option<(&'static str, i64)> {
    let [_, need] = last_hints(notes, path);
    need
}

/// Whether a note says that files will not be read soon.
pub fn is_offload(note: &Note) -> bool {
    let index = (note.number as usize).checked_sub(1);
    note.kind == Kind::Hint && index.is_some_and(|index| HINTS.get(index) == Some(&"offload"))
}

/// Returns the last hint about the purpose of a file, and the last one that says when it will be
/// read, with their times.
fn last_hints(notes: &[Note], path: &[u8]) -> [Option<(&'static str, i64)>; 2] {
    let mut last = [None, None];
    for note in notes.iter().filter(|note| note.kind == Kind::Hint && matches(&note.text, path)) {
        // A hint of a newer version is ignored.
        let index = (note.number as usize).checked_sub(1).filter(|&index| index < HINTS.len());
        if let Some(index) = index {
            last[usize::from(index >= PURPOSES)] = Some((HINTS[index], note.time_ns));
        }
    }
    last
}

/// An announced checkpoint with the processes and ranks that announced its begin and its end.
struct Announced<'notes> {
    first: &'notes Note,
    begun: HashSet<(u32, Option<u32>)>,
    ended: HashSet<(u32, Option<u32>)>,
    last_ns: i64,
    /// Number of runs that had begun before, as far as notes tell.
    run: u64,
    cut_off_ns: Option<i64>,
    /// Whether a later run has begun the checkpoint again.
    is_replaced: bool,
}

impl<'notes> Announced<'notes> {
    fn of(first: &'notes Note, run: u64) -> Announced<'notes> {
        Announced {
            first,
            begun: HashSet::new(),
            ended: HashSet::new(),
            last_ns: first.time_ns,
            run,
            cut_off_ns: None,
            is_replaced: false,
        }
    }

    fn is_done(&self) -> bool {
        self.ended.len() >= self.begun.len()
    }

    fn take(&mut self, note: &Note) {
        let who = if note.kind == Kind::Begin { &mut self.begun } else { &mut self.ended };
        who.insert((note.pid, note.rank));
        self.last_ns = self.last_ns.max(note.time_ns);
    }

    fn mark(&self, expected: usize) -> Mark {
        Mark {
            name: Name {
                family: Family(self.first.text.clone()),
                step: Some(Step::from(self.first.number)),
            },
            begun: self.begun.len(),
            ended: self.ended.len(),
            expected,
            first_ns: self.first.time_ns,
            last_ns: self.last_ns,
            cut_off_ns: self.cut_off_ns,
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

    fn step_of(mark: &Mark) -> Option<u64> {
        mark.name.step.as_ref()?.whole_number()
    }

    fn note(pid: u32, kind: Kind, number: u64, text: &str) -> Note {
        let time_ns = i64::from(pid);
        Note { time_ns, pid, rank: None, kind, number, text: text.as_bytes().to_vec() }
    }

    #[test]
    fn newest_hint_of_each_sort_holds() {
        let hint = |number, text| note(1, Kind::Hint, number, text);
        let notes = [
            hint(1, "/cairn/*.h5"),
            hint(4, "/cairn/a.h5"),
            hint(3, "/cairn/**/scratch.*"),
            hint(2, "/cairn/a.h5"),
            hint(99, "/cairn/a.h5"),
        ];
        assert_eq!(hints(&notes, b"/cairn/b.h5"), ["persistent"]);
        assert_eq!(hints(&notes, b"/cairn/a.h5"), ["reusable", "preload"]);
        assert_eq!(hints(&notes, b"/cairn/x/y/scratch.0"), ["temporary"]);
        assert!(hints(&notes, b"/cairn/x/b.h5").is_empty());
    }

    #[test]
    fn processes_are_counted_once_for_each_checkpoint_and_as_many_are_expected_of_the_next() {
        let notes = [
            note(1, Kind::Begin, 10, "melt"),
            note(2, Kind::Begin, 10, "melt"),
            note(2, Kind::Begin, 10, "melt"),
            note(2, Kind::End, 10, "melt"),
            note(3, Kind::Begin, 20, "melt"),
            note(3, Kind::End, 20, "melt"),
        ];
        let found = marks(&notes);
        let counts: Vec<_> =
            found.iter().map(|mark| (step_of(mark), mark.begun, mark.ended)).collect();
        assert_eq!(counts, [(Some(10), 2, 1), (Some(20), 1, 1)]);
        assert_eq!((found[0].first_ns, found[0].last_ns), (1, 2));
        assert!(!found[0].is_done() && found[1].is_done() && !found[1].is_done_by_all());
    }

    /// Mechanism: the begin of a process that was killed counted for ever, for its own mark and, by
    /// the number of processes that are expected, for all later marks of that name.
    ///
    /// Consequence: after one kill within a mark, no checkpoint of that name was ever complete.
    ///
    /// Fix: a run that begins notes it; earlier processes are dead.
    #[test]
    fn begin_of_a_process_of_an_earlier_run_holds_up_no_later_mark() {
        let run = Note { time_ns: 50, ..note(9, Kind::Run, 0, "-") };
        let at = |time_ns, pid, kind, step| Note { time_ns, ..note(pid, kind, step, "melt") };
        let notes = [
            at(10, 1, Kind::Begin, 1),
            at(11, 2, Kind::Begin, 1),
            at(12, 1, Kind::End, 1),
            at(13, 2, Kind::End, 1),
            at(20, 1, Kind::Begin, 2),
            at(21, 2, Kind::Begin, 2),
            at(30, 1, Kind::Begin, 3),
            run,
            at(60, 3, Kind::Begin, 2),
            at(70, 3, Kind::End, 2),
        ];
        let found = marks(&notes);
        let told: Vec<_> = found
            .iter()
            .map(|mark| (step_of(mark), mark.begun, mark.is_done_by_all(), mark.cut_off_ns))
            .collect();
        let steps =
            [(Some(1), 2, true, None), (Some(3), 1, false, Some(50)), (Some(2), 1, true, None)];
        assert_eq!(told, steps);
        let step = |mtime| mark_of(&found, mtime, 100).and_then(step_of);
        assert_eq!([40, 55, 65, 80].map(step), [Some(3), None, Some(2), None]);
    }

    #[test]
    fn file_belongs_to_the_mark_it_was_changed_in_and_of_two_to_the_later() {
        let all = |pid, step, end| {
            [
                note(pid, Kind::Begin, step, "a"),
                Note { time_ns: end, ..note(pid, Kind::End, step, "a") },
            ]
        };
        let notes: Vec<Note> = [all(10, 1, 20), all(30, 2, 50), all(40, 3, 60)].concat();
        let marks = marks(&notes);
        let step = |mtime| mark_of(&marks, mtime, 100).and_then(step_of);
        let steps = [5, 10, 20, 25, 35, 45, 55, 70].map(step);
        assert_eq!(steps, [None, Some(1), Some(1), None, Some(2), Some(3), Some(3), None]);
        let open = super::marks(&notes[..1]);
        assert!(mark_of(&open, 90, 100).is_some() && mark_of(&open, 110, 100).is_none());
    }
}
