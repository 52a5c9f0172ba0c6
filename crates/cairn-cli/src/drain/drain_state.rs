//! Progress of a store's drain, read from the store alone: no agent is asked, nothing is waited
//! for.

use cairn_agent::store::inputs::Inputs;
use cairn_job::file::node::Kind;
use serde::Serialize;

use crate::error::Result;
use crate::output::count;
use crate::size::human;
use crate::store::OpenStore;

/// Regular files of a store, and how many of them are safe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DrainProgress {
    /// Number of regular files, without inputs that nobody has changed.
    pub files: u64,
    /// Number of other names: directories and links.
    pub others: u64,
    /// Files whose newest version is verified in the persist directory.
    pub drained_files: u64,
    /// Size of these files in bytes.
    pub drained_bytes: u64,
    /// Files that are only in the store.
    pub undrained_files: u64,
    /// Size of these files in bytes.
    pub undrained_bytes: u64,
    /// Undrained files whose writer died or could not write everything.
    pub unclean_files: u64,
}

impl DrainProgress {
    /// Reads the state of `store`.
    pub fn of(store: &OpenStore) -> Result<DrainProgress> {
        let mut standing = DrainProgress::default();
        let inputs = Inputs::known(store.directory());
        for volume in store.volumes()? {
            let tree = volume.tree()?;
            for (_, node) in tree.iter().filter(|(path, node)| !inputs.is_unchanged(path, node)) {
                if node.kind != Kind::File {
                    standing.others += 1;
                    continue;
                }
                standing.files += 1;
                standing.unclean_files += u64::from(node.unclean && !node.drained);
                if node.absence.is_some_and(|absence| absence.damaged) {
                    // Its data exist nowhere.
                    continue;
                }
                let (files, bytes) = match node.drained && !node.open {
                    true => (&mut standing.drained_files, &mut standing.drained_bytes),
                    false => (&mut standing.undrained_files, &mut standing.undrained_bytes),
                };
                *files += 1;
                *bytes += node.bytes;
            }
        }
        Ok(standing)
    }

    /// Whether the store has no files, directories or links.
    pub fn is_empty(&self) -> bool {
        self.files + self.others == 0
    }

    /// Returns lines for a person: what is safe in `persist`, and what is only in `place`.
    pub fn lines(&self, persist: &str, place: &str) -> Vec<String> {
        let line = |files: u64, bytes: u64, what: String| {
            (files > 0).then(|| format!("{}, {}, {what}", count(files, "file"), human(bytes)))
        };
        let drained = format!("drained to {persist} and verified");
        let undrained = match self.unclean_files {
            0 => format!("not safe yet: only in {place}"),
            unclean => format!("not safe yet: only in {place}; {unclean} of them unclean"),
        };
        let drained = line(self.drained_files, self.drained_bytes, drained);
        let undrained = line(self.undrained_files, self.undrained_bytes, undrained);
        drained.into_iter().chain(undrained).collect()
    }
}
