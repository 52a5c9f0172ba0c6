//! What has changed in a manifest since it was written last.
//!
//! Must stay true: the manifest as it was written, with all changes since in their order, is the
//! manifest in memory. Owner, store, mount and mapping do not change while one agent writes.

use super::{Checkpoint, Entry, Line, LogPosition, Manifest};
use crate::file::json_text::read_number;
use crate::file::path::FilePath;
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The parts of a manifest that may differ from what was written.
#[derive(Debug, Default)]
pub struct Touched {
    /// Paths whose entries may differ.
    pub files: BTreeSet<FilePath>,
    /// Paths whose last whole versions may differ.
    pub whole: BTreeSet<FilePath>,
}

impl Touched {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.files.len() + self.whole.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Changes of a manifest: a record of its log.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    #[serde(deserialize_with = "read_number")]
    turn: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    position: Option<LogPosition>,
    complete: bool,
    everything: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending: Option<String>,
    without_modes: bool,
    /// All checkpoints, oldest first; None if they are as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoints: Option<Vec<Place>>,
    files: Vec<Change>,
    whole: Vec<Change>,
}

/// A checkpoint in the list.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    /// One of the list before, by its index there, and its place in the order now.
    Kept(usize, #[serde(deserialize_with = "read_number")] u64),
    /// Another one.
    New(Checkpoint),
}

/// The entry of a path, or that there is none any more.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Change {
    Entry(Line<FilePath, Entry>),
    Gone { gone: FilePath },
}

impl Changes {
    /// Returns what differs in `manifest` from what was written, with these checkpoints.
    pub fn of(manifest: &Manifest, touched: &Touched, written: &[Checkpoint]) -> Changes {
        let change = |path: &FilePath, entry: Option<&Entry>| match entry.cloned() {
            Some(entry) => Change::Entry(Line { path: path.clone(), entry }),
            None => Change::Gone { gone: path.clone() },
        };
        let (files, whole) = (touched.files.iter(), touched.whole.iter());
        Changes {
            turn: manifest.turn,
            position: manifest.position.clone(),
            complete: manifest.complete,
            everything: manifest.everything,
            pending: manifest.pending.clone(),
            without_modes: manifest.without_modes,
            checkpoints: places(&manifest.checkpoints, written),
            files: files.map(|path| change(path, manifest.files.get(path))).collect(),
            whole: whole.map(|path| change(path, manifest.whole.get(path))).collect(),
        }
    }

    /// Makes these changes in `manifest`. Errors: they are not of this manifest; a file is drained
    /// and has no checksum.
    pub fn apply(self, manifest: &mut Manifest) -> serde_json::Result<()> {
        if let Some(places) = self.checkpoints {
            let known = |place: Place| match place {
                Place::New(checkpoint) => Some(checkpoint),
                Place::Kept(index, order) => {
                    let kept = manifest.checkpoints.get(index)?;
                    Some(Checkpoint { order, ..kept.clone() })
                }
            };
            let checkpoints: Option<Vec<Checkpoint>> = places.into_iter().map(known).collect();
            let lacking = || serde_json::Error::custom("it names a checkpoint that was not there");
            manifest.checkpoints = checkpoints.ok_or_else(lacking)?;
        }
        manifest.turn = self.turn;
        manifest.position = self.position;
        (manifest.complete, manifest.everything) = (self.complete, self.everything);
        (manifest.pending, manifest.without_modes) = (self.pending, self.without_modes);
        for (changes, entries) in
            [(self.files, &mut manifest.files), (self.whole, &mut manifest.whole)]
        {
            for change in changes {
                match change {
                    Change::Entry(line) if line.entry.lacks_checksum() => {
                        return Err(line.without_checksum());
                    }
                    Change::Entry(line) => drop(entries.insert(line.path, line.entry)),
                    Change::Gone { gone } => drop(entries.remove(&gone)),
                }
            }
        }
        Ok(())
    }
}

/// Returns the list `now`, told by that `before`; None if it is the same.
fn places(now: &[Checkpoint], before: &[Checkpoint]) -> Option<Vec<Place>> {
    if now == before {
        return None;
    }
    let mut index = 0;
    let place = |checkpoint: &Checkpoint| {
        let is_it = |known: &Checkpoint| {
            (&known.store, known.id, &known.name)
                == (&checkpoint.store, checkpoint.id, &checkpoint.name)
                && known.modified_ns == checkpoint.modified_ns
                && known.files == checkpoint.files
        };
        // Both are ordered, so that the next one is near.
        let found = (index..before.len()).chain(0..index).find(|&at| is_it(&before[at]));
        match found {
            Some(at) => {
                index = at + 1;
                Place::Kept(at, checkpoint.order)
            }
            None => Place::New(checkpoint.clone()),
        }
    };
    Some(now.iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::name::{Family, Name};
    use crate::file::node::{Kind, Node};
    use crate::outside::manifest::{CheckpointFile, State};

    fn checkpoint(id: u64, order: u64) -> Checkpoint {
        let path = FilePath::parse(format!("f.{id}").as_bytes()).expect("a path");
        Checkpoint {
            store: "0123".to_string(),
            id,
            order,
            name: Name { family: Family(b"f.{step}".to_vec()), step: None },
            modified_ns: 7,
            files: [CheckpointFile { path, bytes: id, crc32c: 1 }].into(),
        }
    }

    /// Any manifest becomes any other one by what is told of the difference.
    #[test]
    fn manifest_with_its_changes_is_the_changed_one() {
        let mut seed = 7u64;
        let mut below = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % limit
        };
        let mut before = Manifest::new("melt", "0123", "/cairn");
        for round in 0..2000 {
            let mut now = before.clone();
            let mut touched = Touched::default();
            now.turn += 1;
            (now.complete, now.without_modes) = (below(2) == 0, below(2) == 0);
            now.pending = (below(2) == 0).then(|| "program".to_string());
            for _ in 0..below(4) {
                let path = FilePath::parse(format!("f.{}", below(8)).as_bytes()).expect("a path");
                let entry = Node::new(below(4) as u32, Kind::Directory).entry(State::Drained);
                let (entries, paths) = match below(2) {
                    0 => (&mut now.files, &mut touched.files),
                    _ => (&mut now.whole, &mut touched.whole),
                };
                paths.insert(path.clone());
                match below(3) {
                    0 => drop(entries.remove(&path)),
                    _ => drop(entries.insert(path, entry)),
                }
            }
            now.checkpoints.retain(|_| below(5) > 0);
            for _ in 0..below(3) {
                let at = below(now.checkpoints.len() as u64 + 1) as usize;
                now.checkpoints.insert(at, checkpoint(below(6), 0));
            }
            if below(4) == 0 {
                now.checkpoints.reverse();
            }
            for known in &mut now.checkpoints {
                known.order = below(3);
            }
            let changes = Changes::of(&now, &touched, &before.checkpoints);
            let text = serde_json::to_vec(&changes).expect("is written");
            let read: Changes = serde_json::from_slice(&text).expect("is read");
            assert_eq!(read, changes);
            let mut found = before.clone();
            read.apply(&mut found).expect("is of this manifest");
            assert_eq!(found, now, "round {round}");
            before = now;
        }
        let refused = |text: &str| {
            let read = serde_json::from_str::<Changes>(text);
            read.and_then(|read| read.apply(&mut Manifest::new("melt", "0123", "/cairn")))
                .expect_err("is refused");
        };
        let head = r#""complete":true,"everything":false,"without_modes":false,"whole":[]"#;
        let entry = r#"{"path":"f","kind":"file","state":"drained","inode":1,"version":1,
            "mode":"0644","mtime":"0.000000000","bytes":1}"#;
        refused(&format!(r#"{{"turn":1,{head},"files":[{entry}]}}"#));
        refused(&format!(r#"{{"turn":{},{head},"files":[]}}"#, u64::MAX));
        refused(&format!(
            r#"{{"turn":1,{head},"files":[],"checkpoints":[{{"kept":[0,{}]}}]}}"#,
            u64::MAX
        ));
        let of_another = Changes::of(&before, &Touched::default(), &[]);
        let kept = Place::Kept(0, 1);
        let changes = Changes { checkpoints: Some(vec![kept]), ..of_another };
        changes.apply(&mut Manifest::new("melt", "0123", "/cairn")).expect_err("is refused");
    }
}
