//! Absent files among the random operations: made, fetched a part at a time with other operations
//! in between, disturbed, and made absent again.
//!
//! Must stay true: fetching changes what programs see of a file only at its end.

use cairn_core::{Error, HandleId, OpenOptions, Position, Result};
use std::sync::Arc;

use super::super::OPEN;
use super::super::state::{FileState, Node, elsewhere};
use super::{Act, Workload};
use crate::tier::CHECKSUM;

/// A file that a process fetches.
pub(super) struct Brought {
    pub(super) pid_slot: usize,
    handle: HandleId,
    file: u64,
    content: Arc<Vec<u8>>,
    done: usize,
    /// Whether the file was emptied since fetching began.
    is_emptied: bool,
}

impl<'w> Workload<'w> {
    /// Makes a file absent. The file is new, or is emptied first.
    pub(super) fn make_absent(&mut self) -> Act<'w> {
        let (name, file) = match self.file_to_change() {
            Ok(found) => found,
            Err(instead) => return instead,
        };
        let is_open = self.open.iter().any(|open| open.file == file);
        let is_brought = self.brought.iter().any(|brought| brought.file == file);
        let bytes = self.random.below(6 * self.block_bytes()) as usize + 1;
        let content = Arc::new(elsewhere(bytes));
        if is_open || is_brought {
            return Self::nothing();
        }
        self.empty(file);
        self.push_state();
        let state = self.state.files.get_mut(&file).expect("the file has a name");
        (state.content, state.absent) = (content.clone(), true);
        Box::new(move |this| {
            let (process, caller) = (this.process(), this.process().caller());
            let options = OpenOptions { read: false, truncate: true, ..OPEN };
            let handle = process.fs.open_file(&caller, this.home, name, options, 0o644)?.handle;
            process.fs.make_absent(&caller, handle, bytes as u64, CHECKSUM(0, &content))?;
            process.close(handle).map(|()| false)
        })
    }

    /// Makes a file absent again that was fetched and not changed since.
    pub(super) fn release_data(&mut self) -> Act<'w> {
        let was_fetched = |state: &FileState| {
            let bytes = state.content.len();
            !state.absent && bytes > 0 && *state.content == elsewhere(bytes)
        };
        let Some((name, file)) = self.pick_file(was_fetched) else { return Self::nothing() };
        if self.open.iter().any(|open| open.file == file) {
            return Self::nothing();
        }
        let state = self.state.files.get_mut(&file).expect("the file has a name");
        state.absent = true;
        let crc32c = CHECKSUM(0, &state.content);
        Box::new(move |this| {
            let (process, caller) = (this.process(), this.process().caller());
            let inode = process.fs.resolve(&caller, this.home, &name, false)?;
            let found = process.fs.attributes(inode)?;
            process.fs.mark_drained(inode, found.version, caller.now)?;
            let is_released = process.fs.release_data(&caller, inode, found.version, crc32c)?;
            assert_eq!(is_released, !found.unclean && !found.torn && found.opens == 0, "{found:?}");
            if !is_released {
                let state = this.state.files.get_mut(&file).expect("the file has a name");
                state.absent = false;
                this.push_state();
            }
            Ok(false)
        })
    }

    /// Picks a file for which `is_meant` holds, and one of its names.
    fn pick_file(&mut self, is_meant: impl Fn(&FileState) -> bool) -> Option<(Vec<u8>, u64)> {
        let meant = self.state.names.iter().filter_map(|(name, node)| match node {
            Node::File(file) if is_meant(&self.state.files[file]) => Some((name.clone(), *file)),
            _ => None,
        });
        let meant: Vec<_> = meant.collect();
        (!meant.is_empty()).then(|| self.random.pick(&meant).clone())
    }

    fn empty(&mut self, file: u64) {
        self.change(file, Vec::clear);
        let state = self.state.files.get_mut(&file).expect("the file has a name");
        state.overwrites += 1;
        state.absent = false;
    }

    /// Empties an absent file, or tries an operation that must fail on one.
    pub(super) fn disturb_absent(&mut self, name: &'w [u8], file: u64) -> Act<'w> {
        let opens = self.random.one_in(2);
        let empties = self.random.one_in(4);
        if empties {
            self.empty(file);
            let brought = self.brought.iter_mut().filter(|brought| brought.file == file);
            brought.for_each(|brought| brought.is_emptied = true);
        }
        Box::new(move |this| {
            let (process, caller) = (this.process(), this.process().caller());
            let inode = process.fs.resolve(&caller, this.home, name, false)?;
            let done = if opens {
                let options = OpenOptions { truncate: empties, ..OPEN };
                let opened = process.fs.open_file(&caller, this.home, name, options, 0);
                opened.and_then(|opened| process.close(opened.handle))
            } else {
                process.truncate(&caller, inode, if empties { 0 } else { 1 })
            };
            match done {
                Err(Error::Absent { inode: which }) if !empties => assert_eq!(which, inode),
                done => assert!(done.map(|()| empties)?, "an absent file was opened"),
            }
            Ok(false)
        })
    }

    /// Begins to fetch a file, or continues.
    pub(super) fn bring(&mut self) -> Act<'w> {
        let turn = self.turn;
        match self.brought.iter().position(|brought| brought.pid_slot == turn) {
            None => self.begin_to_bring(),
            Some(at) if self.random.one_in(8) => Box::new(move |this| this.stop_bringing(at)),
            Some(at) if self.brought[at].done == self.brought[at].content.len() => {
                self.end_absence(at)
            }
            Some(at) => self.bring_part(at),
        }
    }

    fn begin_to_bring(&mut self) -> Act<'w> {
        let Some((name, file)) = self.pick_file(|state| state.absent) else {
            return Self::nothing();
        };
        let is_brought = self.brought.iter().any(|brought| brought.file == file);
        let content = self.state.files[&file].content.clone();
        Box::new(move |this| {
            let (process, caller) = (this.process(), this.process().caller());
            let inode = process.fs.resolve(&caller, this.home, &name, false)?;
            match process.fs.open_absent(&caller, inode) {
                Err(Error::Busy) if is_brought => {}
                opened => {
                    let handle = opened?;
                    assert!(!is_brought, "two bring a file");
                    let (pid_slot, done, is_emptied) = (this.turn, 0, false);
                    this.brought.push(Brought {
                        pid_slot,
                        handle,
                        file,
                        content,
                        done,
                        is_emptied,
                    });
                }
            }
            Ok(false)
        })
    }

    fn bring_part(&mut self, at: usize) -> Act<'w> {
        let part = self.random.below(3 * self.block_bytes()) as usize + 1;
        Box::new(move |this| {
            let Brought { handle, done, is_emptied, .. } = this.brought[at];
            let content = this.brought[at].content.clone();
            let (process, caller) = (this.process(), this.process().caller());
            let end = content.len().min(done + part);
            let place = Position::At(done as u64);
            let write = process.begin_write(&caller, handle, place, &content[done..end])?;
            assert_eq!(write.plan.brings(), !is_emptied, "who brings it learns of that");
            if is_emptied {
                process.abort(&caller, &write)?;
                return this.stop_bringing(at);
            }
            let (_, count) = process.finish_write(&caller, handle, write)?;
            this.brought[at].done += count as usize;
            Ok(false)
        })
    }

    fn end_absence(&mut self, at: usize) -> Act<'w> {
        let Brought { file, handle, is_emptied, .. } = self.brought[at];
        // A file without a name is not in the state any more.
        if let Some(state) = self.state.files.get_mut(&file).filter(|_| !is_emptied) {
            state.absent = false;
        }
        Box::new(move |this| {
            let (process, caller) = (this.process(), this.process().caller());
            assert_eq!(process.fs.end_absence(&caller, handle)?, !is_emptied);
            this.stop_bringing(at)
        })
    }

    fn stop_bringing(&mut self, at: usize) -> Result<bool> {
        let Brought { handle, .. } = self.brought.remove(at);
        self.process().close(handle).map(|()| false)
    }
}
