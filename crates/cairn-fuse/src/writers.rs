//! Which processes write through which description.
//!
//! A file is unclean if a process died that wrote it. The kernel says when a process closes a
//! descriptor, also when it is killed, but a description may be open in processes that never wrote:
//! children that inherited it. And it says nothing when a mapping ends, which may be the last that
//! a killed process had of a file.
//!
//! Must stay true: of a description that an earlier server opened, every process counts as a
//! writer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cairn_core::{HandleId, InodeId};

use crate::requester;

/// The tasks that wrote through a description, or opened it for writing, each with its process.
struct Writers {
    /// None for a description that an earlier server opened; it may have had other writers.
    inode: Option<InodeId>,
    tasks: Vec<(u32, u32)>,
    /// Whether something was written since a descriptor was last closed.
    is_unfinished: bool,
}

impl Writers {
    fn add(&mut self, task: u32) {
        if !self.tasks.iter().any(|(known, _)| *known == task) {
            self.tasks.push((task, requester::process(task)));
        }
    }
}

/// Writers of all descriptions that this server has opened.
#[derive(Default)]
pub struct WriterTable(Mutex<HashMap<HandleId, Writers>>);

impl WriterTable {
    fn map(&self) -> MutexGuard<'_, HashMap<HandleId, Writers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the task `task` opened a description for writing.
    pub fn open(&self, handle: HandleId, inode: InodeId, task: u32) {
        let none = || Writers { inode: Some(inode), tasks: Vec::new(), is_unfinished: false };
        self.map().entry(handle).or_insert_with(none).add(task);
    }

    /// Notes that the task `task` writes.
    pub fn write(&self, handle: HandleId, task: u32) {
        let mut map = self.map();
        let unknown = || Writers { inode: None, tasks: Vec::new(), is_unfinished: false };
        let writers = map.entry(handle).or_insert_with(unknown);
        writers.is_unfinished = true;
        writers.add(task);
    }

    /// Notes that a process closes a descriptor of a description.
    pub fn flush(&self, handle: HandleId) {
        if let Some(writers) = self.map().get_mut(&handle) {
            writers.is_unfinished = false;
        }
    }

    /// Returns the descriptions through which something was written since they were last flushed.
    pub fn unfinished(&self) -> Vec<HandleId> {
        let map = self.map();
        let unfinished = map.iter().filter(|(_, writers)| writers.is_unfinished);
        unfinished.map(|(handle, _)| *handle).collect()
    }

    /// Whether the process of `task` may have written through a description.
    pub fn is_writer(&self, handle: HandleId, task: u32) -> bool {
        let process = requester::process(task);
        self.map().get(&handle).is_none_or(|writers| {
            writers.inode.is_none()
                || writers.tasks.iter().any(|(known, of)| *known == task || *of == process)
        })
    }

    /// Returns the descriptions of a file whose writers are being killed. To be called when pages
    /// of a mapping are written, which the kernel does when the mapping ends.
    pub fn killed(&self, inode: InodeId) -> Vec<HandleId> {
        let map = self.map();
        let of_file = map.iter().filter(|(_, writers)| writers.inode == Some(inode));
        let is_killed = |writers: &Writers| {
            let mut processes = writers.tasks.iter().flat_map(|(task, process)| [task, process]);
            processes.any(|task| requester::is_killed(*task))
        };
        of_file.filter(|(_, writers)| is_killed(writers)).map(|(handle, _)| *handle).collect()
    }

    /// Forgets a description that is closed.
    pub fn close(&self, handle: HandleId) {
        self.map().remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::Command;

    #[test]
    fn only_who_opened_or_wrote_is_a_writer_and_of_unknown_descriptions_everybody_is() {
        let table = WriterTable::default();
        let own = std::process::id();
        table.open(HandleId(1), InodeId(7), own);
        let mut other = Command::new("sleep").arg("60").spawn().expect("starts");
        assert!(table.is_writer(HandleId(1), own) && !table.is_writer(HandleId(1), other.id()));
        table.write(HandleId(1), other.id());
        assert!(table.is_writer(HandleId(1), other.id()));
        table.write(HandleId(2), own);
        assert!(table.is_writer(HandleId(2), own) && table.is_writer(HandleId(2), other.id()));
        let unfinished: BTreeSet<HandleId> = table.unfinished().into_iter().collect();
        assert_eq!(unfinished, BTreeSet::from([HandleId(1), HandleId(2)]));
        table.flush(HandleId(2));
        assert!(table.killed(InodeId(7)).is_empty());
        assert_eq!(table.unfinished(), [HandleId(1)]);
        table.flush(HandleId(1));
        assert_eq!(table.unfinished(), []);
        table.close(HandleId(1));
        assert!(table.is_writer(HandleId(1), own));
        other.kill().expect("is ours");
        other.wait().expect("ends");
    }
}
