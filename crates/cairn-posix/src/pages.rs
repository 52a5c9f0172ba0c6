//! Pages of mapped files: what they show, and how they follow changes of the file.
//!
//! A mapping maps the file's blocks in the tier itself. A store through a shared mapping is in the
//! file at once, for every process, whatever happens to this one. Private mappings share the blocks
//! until a page is stored to. Blocks of a tier on another machine are mapped from shared memory,
//! for every process of this machine; `msync` writes the stores back to that tier.
//!
//! Weaker than a local file system: if another process makes the file longer or shorter, or fills a
//! hole under a mapping that only reads, this process sees it when it next looks at the file
//! ([`follow`]).
//!
//! Does not make or end mappings; `mapping` does.
//!
//! ```text
//! place.rs     placing the pieces of a file
//! readers.rs   read-only descriptors of tiers
//! ```

use cairn_core::{HandleId, InodeId};

use crate::error::Result;
use crate::mount::{self, Mount};
use crate::task::mappings::{MAPPINGS, Manner, Mapping, Placed, any};

mod place;
pub(crate) mod readers;

use place::Place;

impl Mapping {
    fn place<'a>(&self, mount: &'a Mount) -> Place<'a> {
        let (mapping, inode, manner) = (self.handle, self.inode, self.manner);
        let (start, offset) = (self.pages.start, self.offset);
        Place { mount, mapping, inode, start, offset, manner }
    }

    /// Places all pages again.
    pub(crate) fn replace(&mut self, mount: &Mount) -> Result<()> {
        self.placed = self.place(mount).place(self.offset, self.end())?;
        Ok(())
    }

    /// Applies changes of the file since the mapping was placed. Pages that cannot be placed stay
    /// as they are.
    fn follow(&mut self, mount: &Mount) -> Result<()> {
        let (place, seen) = (self.place(mount), self.placed);
        let now = place.state()?;
        // Private pages before the end may have become the process's own copies.
        let is_other = now.moves != seen.moves || seen.holes && now.adds != seen.adds;
        let from = match self.manner.shared && is_other {
            true => self.offset,
            false if now.end != seen.end => now.end.min(seen.end).max(self.offset),
            false => return Ok(()),
        };
        if from < self.end() {
            let placed = place.place(from, self.end())?;
            let holes = placed.holes || seen.holes && from > self.offset;
            self.placed = Placed { holes, ..placed };
        }
        Ok(())
    }

    /// Makes later stores go to pages of this process.
    pub(crate) fn make_private(&mut self, mount: &Mount) -> Result<()> {
        self.manner = Manner { shared: false, stores: false, ..self.manner };
        self.replace(mount)
    }
}

/// Updates the mappings of a file that this process has changed or is about to look at.
pub fn follow(inode: InodeId) {
    if any() {
        follow_where(|mapping| mapping.inode == inode);
    }
}

/// As `follow`, for all files. For a process that has taken a lock, under which other processes may
/// have changed any of them.
pub fn follow_all() {
    if any() {
        follow_where(|_| true);
    }
}

fn follow_where(chosen: impl Fn(&Mapping) -> bool) {
    let Ok(mount) = mount::current() else { return };
    // Pages that cannot be placed for lack of blocks are tried again when the process next looks.
    let _ = MAPPINGS.with(|list| {
        for mapping in list.iter_mut().filter(|mapping| chosen(mapping)) {
            let _ = mapping.follow(mount);
        }
    });
}

/// As `follow`, for the file behind `handle`.
#[inline]
pub fn follow_handle(handle: HandleId) {
    if any() {
        if let Ok(inode) = mount::current().and_then(|mount| mount.inode_of(handle)) {
            follow(inode);
        }
    }
}
