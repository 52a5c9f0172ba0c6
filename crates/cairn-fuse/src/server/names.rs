//! Requests about names: looked up, made, removed, listed.
//!
//! Must stay true: a request that comes again makes or removes nothing twice.

use cairn_core::{
    Attributes, Caller, Credentials, InodeId, OpenOptions, Opened, RenameMode, Timestamp,
};
use cairn_posix::{Errno, Result};
use fuser::{INodeNo, RenameFlags, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::node;
use crate::server::{Name, Server};

/// Positions of the dots in a directory; those of names come behind them.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

impl Server {
    pub(super) fn look_up(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
    ) -> Result<Attributes> {
        let parent = self.inode(parent)?;
        Ok(self.mount.fs().stat(&self.caller(request), parent, name.as_bytes(), false)?)
    }

    pub(super) fn make_directory(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        mode: u32,
    ) -> Result<Attributes> {
        self.make(request, (parent, name), |caller, parent| {
            self.mount.fs().make_directory(caller, parent, name.as_bytes(), mode & 0o7777)
        })
    }

    /// Makes a name, unless an earlier server has made it for the same request. Returns the
    /// attributes of what was made.
    pub(super) fn make(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        act: impl FnOnce(&Caller, InodeId) -> cairn_core::Result<InodeId>,
    ) -> Result<Attributes> {
        let (fs, caller, parent) = (self.mount.fs(), self.caller(request), self.inode(parent)?);
        if self.answered(request).is_some() {
            return Ok(fs.stat(&caller, parent, name.as_bytes(), false)?);
        }
        let begun = self.begin(request);
        let made = match act(&caller, parent) {
            Err(cairn_core::Error::Exists) if begun.is_some() => {
                let found = fs.stat(&caller, parent, name.as_bytes(), false)?;
                if begun.is_none_or(|begun| found.changed < begun) {
                    return Err(Errno(libc::EEXIST));
                }
                found.inode
            }
            made => made?,
        };
        self.note_answer(request, 1);
        Ok(fs.attributes(made)?)
    }

    pub(super) fn make_node(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        mode: u32,
    ) -> Result<Attributes> {
        if !matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG) {
            return Err(Errno(libc::EPERM));
        }
        let flags = libc::O_WRONLY | libc::O_EXCL;
        let (found, opened) = self.create(request, (parent, name), flags, mode)?;
        self.release(opened);
        Ok(found)
    }

    pub(super) fn link_to(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        target: &Path,
    ) -> Result<Attributes> {
        self.make(request, (parent, name), |caller, parent| {
            let target = target.as_os_str().as_bytes();
            self.mount.fs().symlink(caller, target, parent, name.as_bytes())
        })
    }

    pub(super) fn link(
        &self,
        request: &Request,
        number: INodeNo,
        (parent, name): Name<'_>,
    ) -> Result<Attributes> {
        let inode = self.inode(number)?;
        self.make(request, (parent, name), |caller, parent| {
            let place = (parent, name.as_bytes());
            self.mount.fs().link(caller, (inode, b""), place, false).map(|()| inode)
        })
    }

    pub(super) fn rename(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
        (new_parent, new_name): Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (parent, new_parent) = (self.inode(parent)?, self.inode(new_parent)?);
        let mode = match flags {
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            flags if flags.is_empty() => RenameMode::Replace,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let (from, to) = ((parent, name.as_bytes()), (new_parent, new_name.as_bytes()));
        self.removing(request, to, |caller, begun| {
            let fs = self.mount.fs();
            // An exchange that is done twice undoes itself.
            let is_done = |begun| {
                let found = fs.stat(caller, to.0, to.1, false);
                mode == RenameMode::Exchange && found.is_ok_and(|found| found.changed >= begun)
            };
            match begun.is_some_and(is_done) {
                true => Ok(()),
                false => fs.rename(caller, from, to, mode),
            }
        })
    }

    pub(super) fn remove(&self, request: &Request, (parent, name): Name<'_>) -> Result<()> {
        let place = (self.inode(parent)?, name.as_bytes());
        self.removing(request, place, |caller, _| self.mount.fs().unlink(caller, place.0, place.1))
    }

    pub(super) fn remove_directory(
        &self,
        request: &Request,
        (parent, name): Name<'_>,
    ) -> Result<()> {
        let place = (self.inode(parent)?, name.as_bytes());
        self.removing(request, place, |caller, _| {
            self.mount.fs().remove_directory(caller, place.0, place.1)
        })
    }

    /// Does what may remove the file at `place`. The kernel may know that file, by a current
    /// directory or a path that it has just looked up, so its inode is kept until it forgets it.
    pub(super) fn removing(
        &self,
        request: &Request,
        (parent, name): (InodeId, &[u8]),
        act: impl FnOnce(&Caller, Option<Timestamp>) -> cairn_core::Result<()>,
    ) -> Result<()> {
        if self.answered(request).is_some() {
            return Ok(());
        }
        let begun = self.begin(request);
        let (fs, caller) = (self.mount.fs(), self.caller(request));
        let options = OpenOptions { path_only: true, no_follow: true, ..OpenOptions::default() };
        let victim = fs.open_file(&caller, parent, name, options, 0).ok();
        let done = match act(&caller, begun) {
            Err(cairn_core::Error::NotFound) if begun.is_some() => Ok(()),
            done => done,
        };
        if done.is_ok() {
            self.note_answer(request, 1);
        }
        if let Some(Opened { handle, inode, .. }) = victim {
            let gone = fs.attributes(inode).ok().filter(|found| found.links == 0);
            let unneeded = match gone {
                Some(found) => self.removed.keep(node::number(&found), handle),
                None => Some(handle),
            };
            if let Some(unneeded) = unneeded {
                fs.release(caller.slot, unneeded, caller.now)?;
            }
        }
        self.mount.reclaim();
        Ok(done?)
    }

    /// Calls `add` with each entry of a directory behind position `after`: its number, the position
    /// behind it, its name, and its attributes. Stops when `add` returns true.
    pub(super) fn list(
        &self,
        request: &Request,
        number: INodeNo,
        after: u64,
        add: &mut dyn FnMut(u64, &OsStr, &Attributes) -> bool,
    ) -> Result<()> {
        let own = self.found(number)?;
        if own.links == 0 {
            // The directory was removed: not even the dots are left.
            return Err(Errno(libc::ENOENT));
        }
        let fs = self.mount.fs();
        if after < DOT && add(DOT, OsStr::new("."), &own) {
            return Ok(());
        }
        if after < DOT_DOT {
            let parent = fs.attributes(fs.parent(own.inode)?)?;
            if add(DOT_DOT, OsStr::new(".."), &parent) {
                return Ok(());
            }
        }
        // Opening the directory was permitted; its mode may have changed since.
        let caller = self.caller(request);
        let caller = Caller { credentials: Credentials { uid: 0, ..caller.credentials }, ..caller };
        let behind = after.saturating_sub(DOT_DOT);
        fs.list(&caller, own.inode, behind, &mut |entry| {
            // Removed meanwhile otherwise.
            let Ok(found) = fs.attributes(entry.inode) else { return true };
            !add(entry.cookie.saturating_add(DOT_DOT), OsStr::from_bytes(entry.name), &found)
        })?;
        Ok(())
    }
}
