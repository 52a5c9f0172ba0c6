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
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::server::{OPENED as OTHERS_OPENED, Server, WRITERS};

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
#[derive(Default)]
pub(super) struct Inherited(Mutex<HashMap<HandleId, Files>>);

/// The kernel's files of a description.
struct Files {
    count: u64,
    /// Whether an earlier server may have opened more. Then the description is held until the end
    /// of the mount.
    is_incomplete: bool,
}

impl Inherited {
    fn map(&self) -> MutexGuard<'_, HashMap<HandleId, Files>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the kernel gets one more file, if `hold` succeeds, which returns whether this
    /// server did not hold the description before.
    fn open(&self, description: HandleId, hold: impl FnOnce() -> Result<bool>) -> Result<()> {
        let mut map = self.map();
        let is_new = hold()?;
        let none = Files { count: 0, is_incomplete: !is_new };
        map.entry(description).or_insert(none).count += 1;
        Ok(())
    }

    /// Notes that the kernel closes a file. Calls `let_go` if no other one has its description.
    pub(super) fn close(&self, description: HandleId, let_go: impl FnOnce()) {
        let mut map = self.map();
        // Opened by an earlier server otherwise.
        let Some(files) = map.get_mut(&description) else { return };
        files.count = files.count.saturating_sub(1);
        if files.count == 0 && !files.is_incomplete {
            map.remove(&description);
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
        let inherited = Inherited::default();
        let failed = inherited.open(HandleId(7), || Err(Errno(libc::EBADF)));
        assert_eq!(failed, Err(Errno(libc::EBADF)));
        inherited.open(HandleId(7), || Ok(true)).expect("opens");
        inherited.open(HandleId(7), || Ok(false)).expect("opens");
        assert!(!is_let_go(&inherited) && is_let_go(&inherited) && !is_let_go(&inherited));
        inherited.open(HandleId(7), || Ok(true)).expect("opens");
        assert!(is_let_go(&inherited));
    }

    /// Mechanism: after the death of a server, the next one let no description go. Consequence:
    /// what was removed kept its space until the end of the mount.
    #[test]
    fn only_a_description_that_an_earlier_server_had_is_held() {
        let inherited = Inherited::default();
        assert!(!is_let_go(&inherited), "an earlier server opened its file");
        inherited.open(HandleId(7), || Ok(false)).expect("opens");
        assert!(!is_let_go(&inherited));
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
