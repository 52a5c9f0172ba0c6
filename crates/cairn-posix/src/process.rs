//! Processes: the effect of fork, exec and exit on the process slot.
//!
//! Invariant: a child's references are taken before the child exists. An orderly end (exit, exec)
//! never leaves a file unclean, and a death by signal never counts as orderly. A rank of MPI that
//! exits before it has finalised does not end in an orderly way.
//!
//! Does not call fork or exec itself.

pub mod decisions;
pub mod handover;
pub mod job;
pub mod rank;
pub mod server;
pub mod unserved;
use core::sync::atomic::{AtomicBool, Ordering};

use cairn_core::{HandleId, SlotId};
use cairn_platform::{mlock_exempt, sys};

use crate::descriptors::{fd_passing, locks, placeholder, upkeep};
use crate::error::{Errno, Result};
use crate::files::{cwd, file};
use crate::kernel::configuration;
use crate::mapping;
use crate::mount::{self, Mount};
use crate::pages::readers;
use crate::task::{fs_context, store_inodes, table};

/// Whether this process may hold anything of ours that a child would inherit: an attached mount,
/// descriptors, or a current directory. If it was executed with such descriptors or directory,
/// attaches the mount. Looks for them once.
pub fn has_inheritable_state() -> bool {
    static HAS_NOTHING: AtomicBool = AtomicBool::new(false);
    if mount::attached().is_some() {
        return true;
    }
    if configuration::get().is_none() || HAS_NOTHING.load(Ordering::Relaxed) {
        return false;
    }
    let inherited = store_inodes::has_placeholders() || cwd::inode().is_some();
    // Descriptors and directories of a store that is gone are lost.
    let has_inheritable_state = inherited && mount::current().is_ok();
    // Descriptors received later in messages make themselves known.
    HAS_NOTHING.store(!has_inheritable_state, Ordering::Relaxed);
    has_inheritable_state
}

/// A child process that is being created.
#[must_use]
pub struct Spawn(Option<(&'static Mount, SlotId)>);

impl Spawn {
    /// Reserves a slot with references for the child. Call before the child is created. Errors:
    /// `EAGAIN` if the store has no slot for another process.
    pub fn begin() -> Result<Spawn> {
        if mount::is_poisoned() || !has_inheritable_state() {
            return Ok(Spawn(None));
        }
        let known = mount::attached().and_then(|mount| Some((mount, mount.current_slot()?)));
        let (mount, parent) = match known {
            Some(known) => known,
            None => mount::current().map(|mount| (mount, mount.slot()))?,
        };
        cwd::record(mount, parent);
        let child = mount.with_room(|| mount.fs().spawn_begin(parent))?;
        Ok(Spawn(Some((mount, child))))
    }

    /// Completes the spawn in the parent, once the child `pid` exists.
    pub fn parent(self, pid: i32) {
        if let Some((mount, child)) = self.0 {
            // The child may have registered itself, and even ended, before this.
            let _ = mount.fs().spawn_parent(child, pid as u32);
        }
    }

    /// Completes the spawn in the child, before anything else runs there.
    pub fn child(self) {
        table::forked();
        placeholder::forked();
        readers::forked();
        fd_passing::forked();
        fs_context::forked();
        // Memory locks are not inherited across a fork.
        mlock_exempt::set_following(false);
        if let Some((mount, child)) = self.0 {
            mount.fs().forked();
            // If this fails, the parent's call does the same.
            let _ = mount.fs().spawn_parent(child, sys::getpid());
            mount.inherit(child);
        }
    }

    /// Gives the references back in the parent, when no child was created or it needs none.
    pub fn cancel(self) {
        if let Some((mount, child)) = self.0 {
            let _ = mount.fs().spawn_cancel(child, mount::now());
        }
    }
}

/// An exec that is about to happen. If it succeeds, no code of this process runs again; if it
/// fails, call `failed`.
#[must_use]
pub struct Exec(Option<&'static Mount>);

impl Exec {
    /// Seals the files that this process wrote, marks its end as orderly, and gives up inherited
    /// references that the exec would close: the executed program may never look at the store.
    /// After a handover (`is_given`) it also gives up what the mount's server holds.
    pub fn begin(is_given: bool) -> Exec {
        let Some(mount) = mount::attached().filter(|_| !mount::is_poisoned()) else {
            return Exec(None);
        };
        locks::before_exec(mount);
        let Some(slot) = mount.own_slot() else { return Exec(None) };
        seal_all(mount);
        cwd::record(mount, slot);
        let mapped = mapping::before_exec(mount, slot);
        let mut kept = mapped || has_working_directory();
        for (_, handle) in table::all() {
            let stays = match is_given {
                true => has_placeholder(handle),
                false => !table::is_inherited(handle) || survives_exec(handle),
            };
            if stays {
                kept = true;
            } else if table::give_up(handle) {
                let _ = mount.fs().release(slot, handle, mount::now());
            }
        }
        if kept {
            // If this fails and the executed program never attaches, its files end unclean. That is
            // the safe side.
            let _ = mount.fs().mark_exec(slot, true);
        } else {
            let _ = mount.fs().detach(slot, mount::now());
            mount.abandon_slot();
        }
        Exec(Some(mount))
    }

    /// Recovers after a failed exec: the process goes on with the references that it can get back.
    pub fn failed(self) {
        let Some(mount) = self.0 else { return };
        if let Ok(mount) = mount::current() {
            let _ = mount.fs().mark_exec(mount.slot(), false);
        }
        mount.retain_all(mount.slot(), table::take_back);
    }
}

fn survives_exec(handle: HandleId) -> bool {
    table::all().any(|(descriptor, other)| {
        let flags = || sys::fcntl(descriptor, libc::F_GETFD, 0).unwrap_or(0);
        other == handle && flags() & libc::FD_CLOEXEC == 0
    })
}

fn has_placeholder(handle: HandleId) -> bool {
    table::all()
        .any(|(descriptor, other)| other == handle && store_inodes::may_be_placeholder(descriptor))
}

fn has_working_directory() -> bool {
    !fs_context::is_foreign() && cwd::inode().is_some()
}

/// Notes that `exit` was called: handlers and destructors run now, which may close files. If a rank
/// of MPI has not finalised, these files were interrupted, whoever closes them.
pub fn begin_exit() {
    if rank::is_unfinished() {
        mount::set_interrupted(true);
    }
}

/// Records that the process is ending in an orderly way. It may still write to its files. A rank of
/// MPI that has not finalised does not end in an orderly way.
pub fn mark_ending() {
    if rank::is_unfinished() {
        return;
    }
    if let Some(mount) = mount::attached() {
        let _ = mount::current();
        let _ = mount.own_slot().map(|slot| mount.fs().mark_exec(slot, true));
    }
}

/// Ends the process in an orderly way: releases everything that it holds as clean. Later calls of
/// ours fail. A rank of MPI that has not finalised is left to be reaped as a dead process, so the
/// files that it was writing are unclean, also those that other threads close from now on.
pub fn end() {
    // A poisoned mount must not mark anything clean.
    let Some(mount) = mount::attached().filter(|_| !mount::is_poisoned()) else { return };
    let Some(slot) = mount.own_slot() else { return };
    mount::begin_end();
    if rank::is_unfinished() {
        mount::set_interrupted(true);
        mount::set_ended();
        return;
    }
    seal_all(mount);
    mapping::end_all(mount, slot);
    let _ = mount.fs().detach(slot, mount::now());
    mount.abandon_slot();
    mount::set_ended();
    mount.reclaim();
}

/// Makes every open file of this process as durable as `fsync` does, and all data that is on its
/// way to a tier. Errors: the first failure; the remaining files are flushed all the same.
pub fn flush() -> Result<()> {
    if mount::attached().is_none() {
        return Ok(());
    }
    let mut outcome = Ok(());
    for (_, handle) in table::all() {
        match file::sync(handle) {
            // A descriptor that only names its file (`O_PATH`) has nothing to flush, nor has one
            // closed meanwhile.
            Err(Errno(libc::EBADF)) => {}
            flushed => outcome = outcome.and(flushed),
        }
    }
    outcome.and(file::sync_all())
}

fn seal_all(mount: &Mount) {
    for (_, handle) in table::all() {
        // The drain seals blocks that stay stale.
        let _ = upkeep::seal_handle(mount, handle);
    }
}

/// Prepares for a change of the process's credentials: does everything that needs the present ones.
/// If that fails, the first use of the store reports the error.
pub fn before_credentials_change() {
    let has_more_than_others = sys::geteuid() == 0 || sys::getuid() != sys::geteuid();
    if !has_more_than_others || configuration::get().is_none() {
        return;
    }
    if let Ok(mount) = mount::current() {
        readers::keep(mount);
        mount.admit_others();
    }
}

/// Refreshes the credentials after the process changed them.
pub fn credentials_changed() {
    if let Some(mount) = mount::attached() {
        mount.refresh_credentials();
    }
}

/// Refreshes the limits after the process changed them.
pub fn limits_changed() {
    if let Some(mount) = mount::attached() {
        mount.refresh_limits();
    }
}
