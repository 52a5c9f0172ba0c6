//! Processes: what a fork, an exec and an end mean for the slot.
//!
//! Invariant: a child's references are taken before it exists; an orderly end (exit, exec) never
//! leaves a file unclean, a death by signal is never mistaken for one.
//! Does not call fork or exec itself.

pub mod calls;
pub mod decisions;
pub mod job;
pub mod rank;
pub mod unserved;
use core::sync::atomic::{AtomicBool, Ordering};

use cairn_core::{HandleId, SlotId};
use cairn_device::{sys, unlocked};

use crate::data::upkeep;
use crate::descriptors::{fd_passing, locks, placeholder, readers, table};
use crate::error::{Errno, Result};
use crate::files::{cwd, file};
use crate::kernel::configuration;
use crate::mapping;
use crate::mount::{self, Mount};

/// Whether this process may have something of ours that a child would inherit: it has attached the
/// mount, or was executed with descriptors or in a directory of ours, and attaches it now. Looks
/// for those once.
pub fn has_something() -> bool {
    static HAS_NOTHING: AtomicBool = AtomicBool::new(false);
    if mount::attached().is_some() {
        return true;
    }
    if configuration::get().is_none() || HAS_NOTHING.load(Ordering::Relaxed) {
        return false;
    }
    let inherited = placeholder::is_any_inherited() || cwd::inode().is_some();
    // What is of a store that is gone is lost.
    let has_something = inherited && mount::current().is_ok();
    // What comes later, by messages, makes itself known.
    HAS_NOTHING.store(!has_something, Ordering::Relaxed);
    has_something
}

/// A child in the making.
#[must_use]
pub struct Spawn(Option<(&'static Mount, SlotId)>);

impl Spawn {
    /// Call before the child is created. Errors: `EAGAIN` if the store has no slot for another
    /// process.
    pub fn begin() -> Result<Spawn> {
        if mount::is_poisoned() || !has_something() {
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

    /// In the parent, once the child `pid` exists.
    pub fn parent(self, pid: i32) {
        if let Some((mount, child)) = self.0 {
            // The child may have introduced itself, and even ended, before.
            let _ = mount.fs().spawn_parent(child, pid as u32);
        }
    }

    /// In the child, before anything else.
    pub fn child(self) {
        table::forked();
        placeholder::forked();
        readers::forked();
        fd_passing::forked();
        cwd::forked();
        // What the kernel locks of a process it does not lock of its child.
        unlocked::set_following(false);
        if let Some((mount, child)) = self.0 {
            mount.fs().forked();
            // If this fails, the parent does the same.
            let _ = mount.fs().spawn_parent(child, sys::getpid());
            mount.inherit(child);
        }
    }

    /// In the parent, when there is no child after all, or when it needs no references any more.
    pub fn cancel(self) {
        if let Some((mount, child)) = self.0 {
            let _ = mount.fs().spawn_cancel(child, mount::now());
        }
    }
}

/// An exec that is about to happen. If it does, nothing of this process remains to run; if not,
/// call `failed`.
#[must_use]
pub struct Exec(Option<&'static Mount>);

impl Exec {
    /// Seals what this process wrote, marks its end as orderly, and gives up inherited references
    /// that the exec would close: the executed program may never look at the store.
    pub fn begin() -> Exec {
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
            if !table::is_inherited(handle) || survives_exec(handle) {
                kept = true;
            } else if table::give_up(handle) {
                let _ = mount.fs().release(slot, handle, mount::now());
            }
        }
        if kept {
            // Without the mark the executed program's files end unclean if it never attaches: the
            // safe side.
            let _ = mount.fs().mark_exec(slot, true);
        } else {
            let _ = mount.fs().detach(slot, mount::now());
            mount.abandon_slot();
        }
        Exec(Some(mount))
    }

    /// The exec failed: the process goes on with what it can get back.
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

fn has_working_directory() -> bool {
    !cwd::is_foreign() && cwd::inode().is_some()
}

/// Says that the process is ending in an orderly way, while its files may still be written to.
pub fn about_to_end() {
    if let Some(mount) = mount::attached() {
        let _ = mount::current();
        let _ = mount.own_slot().map(|slot| mount.fs().mark_exec(slot, true));
    }
}

/// The orderly end of the process: everything it holds is released as clean. Later calls of ours
/// fail.
pub fn end() {
    // A poisoned mount may call nothing clean.
    let Some(mount) = mount::attached().filter(|_| !mount::is_poisoned()) else { return };
    let Some(slot) = mount.own_slot() else { return };
    mount::begin_end();
    seal_all(mount);
    mapping::end_all(mount, slot);
    let _ = mount.fs().detach(slot, mount::now());
    mount.abandon_slot();
    mount::set_ended();
    mount.reclaim();
}

/// Makes everything that this process has open as durable as `fsync` makes it, and what is still on
/// its way to a tier.
/// Errors: the first failure; the other files are flushed all the same.
pub fn flush() -> Result<()> {
    if mount::attached().is_none() {
        return Ok(());
    }
    let mut outcome = Ok(());
    for (_, handle) in table::all() {
        match file::sync(handle) {
            // One that only names its file has nothing to flush, nor has one that was closed
            // meanwhile.
            Err(Errno(libc::EBADF)) => {}
            flushed => outcome = outcome.and(flushed),
        }
    }
    outcome.and(file::sync_all())
}

fn seal_all(mount: &Mount) {
    for (_, handle) in table::all() {
        // What stays stale is sealed by the drain.
        let _ = upkeep::seal_handle(mount, handle);
    }
}

/// The process's credentials are about to change: what the store asks of them is asked now. Where
/// that fails, the first use says so.
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

/// The process's credentials changed.
pub fn credentials_changed() {
    if let Some(mount) = mount::attached() {
        mount.refresh_credentials();
    }
}

/// The process's limits changed.
pub fn limits_changed() {
    if let Some(mount) = mount::attached() {
        mount.refresh_limits();
    }
}
