//! Descriptions that a program of the job opened, and that a program inherits which is served by
//! the mount (`cairn_posix::process::handover`).
//!
//! Must stay true: all who inherited a description share its position, which the kernel does not
//! know. The server holds the description as long as the kernel has it in any file.

use cairn_core::{Attributes, HandleId};
use cairn_posix::process::handover::DESCRIPTION_NAME;
use cairn_posix::{Errno, Result};
use fuser::{FileHandle, FopenFlags, INodeNo, Request};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use crate::server::{OPENED as OTHERS_OPENED, Server, Start, WRITERS};

/// Marks the kernel's number of such a file.
const INHERITED: u64 = 1 << 32;
/// How the kernel treats such a file: it has no position.
pub(super) const OPENED: FopenFlags = OTHERS_OPENED.union(FopenFlags::FOPEN_STREAM);

/// Whether the file of this number was inherited.
pub(super) fn is_inherited(number: FileHandle) -> bool {
    number.0 & INHERITED != 0
}

/// Returns the description that is meant by a name that is to be made, if one is.
pub(super) fn description(parent: INodeNo, name: &OsStr) -> Option<HandleId> {
    let number = name.as_bytes().strip_prefix(DESCRIPTION_NAME)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    (parent == INodeNo::ROOT).then_some(HandleId(number))
}

/// In how many files the kernel has each description.
pub(super) struct Inherited {
    files: Mutex<HashMap<HandleId, u64>>,
    /// Whether an earlier server may have handed out more: then nothing is given up before the end
    /// of the mount.
    is_incomplete: bool,
}

impl Inherited {
    pub(super) fn new(start: Start) -> Inherited {
        Inherited { files: Mutex::default(), is_incomplete: start == Start::Again }
    }

    /// Notes that the kernel gets one more file, if `hold` succeeds.
    fn open(&self, description: HandleId, hold: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        hold()?;
        *files.entry(description).or_default() += 1;
        Ok(())
    }

    /// Notes that the kernel closes a file. Calls `let_go` if no other one has its description.
    pub(super) fn close(&self, description: HandleId, let_go: impl FnOnce()) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let left = files.get(&description).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => files.remove(&description),
            left => files.insert(description, left),
        };
        if left == 0 && !self.is_incomplete {
            // Under the lock: nobody may open it meanwhile.
            let_go();
        }
    }
}

impl Server {
    /// Opens a file for a description that a program of this user has.
    pub(super) fn share(
        &self,
        request: &Request,
        description: HandleId,
    ) -> Result<(Attributes, FileHandle)> {
        let own = rustix::process::geteuid().as_raw();
        if request.uid() != own && request.uid() != 0 {
            return Err(Errno(libc::EACCES));
        }
        let info = self.mount.fs().handle(description)?;
        let found = self.mount.fs().attributes(info.inode)?;
        self.inherited.open(description, || {
            // Without the keeper, the description ends with this server.
            let _ = self.mount.fs().retain(self.keeper, description);
            Ok(self.mount.fs().retain(self.mount.slot(), description)?)
        })?;
        if info.write {
            WRITERS.open(description, info.inode, request.pid());
        }
        Ok((found, FileHandle(u64::from(description.0) | INHERITED)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the description is let go when one of its files is closed.
    fn is_let_go(inherited: &Inherited) -> bool {
        let mut is_let_go = false;
        inherited.close(HandleId(7), || is_let_go = true);
        is_let_go
    }

    #[test]
    fn description_is_held_until_its_last_file_is_closed() {
        let inherited = Inherited::new(Start::New);
        let failed = inherited.open(HandleId(7), || Err(Errno(libc::EBADF)));
        assert_eq!(failed, Err(Errno(libc::EBADF)));
        inherited.open(HandleId(7), || Ok(())).expect("opens");
        inherited.open(HandleId(7), || Ok(())).expect("opens");
        assert!(!is_let_go(&inherited) && is_let_go(&inherited));
    }

    #[test]
    fn server_that_does_not_know_all_files_lets_nothing_go() {
        let inherited = Inherited::new(Start::Again);
        inherited.open(HandleId(7), || Ok(())).expect("opens");
        assert!(!is_let_go(&inherited) && !is_let_go(&inherited));
    }

    #[test]
    fn names_of_descriptions_are_told_from_those_of_files() {
        let told = |parent, name: &str| description(parent, OsStr::new(name));
        assert_eq!(told(INodeNo::ROOT, ".cairn-description.12"), Some(HandleId(12)));
        assert_eq!(told(INodeNo(9), ".cairn-description.12"), None);
        for other in ["out", ".cairn-description.", ".cairn-description.x", ".cairn-description.-1"]
        {
            assert_eq!(told(INodeNo::ROOT, other), None);
        }
    }
}
