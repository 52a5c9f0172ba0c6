//! Descriptors of ours that this process did not open: inherited by a program that was executed, or
//! received from another process.
//!
//! The kernel knows them as placeholders or tokens; here they enter the table.

use cairn_platform::sys;

use crate::descriptors::{descriptor, fd_passing, upkeep};
use crate::error::{Errno, Result};
use crate::kernel::configuration;
use crate::mount;
use crate::task::{store_inodes, table};

/// Whether `descriptor`, which is not in the table, is a placeholder or a token of ours that was
/// inherited, or received from another process. If so, enters it; the call that failed on it can be
/// tried again.
#[cold]
pub fn classify(descriptor: i32) -> bool {
    if configuration::get().is_none() || table::is_closing(descriptor) {
        return false;
    }
    let Ok(stat) = sys::fstat(descriptor) else { return false };
    if store_inodes::is_token(stat.st_mode, stat.st_dev) {
        let taken =
            mount::current().and_then(|mount| fd_passing::take(mount, descriptor, stat.st_ino));
        return taken.is_ok();
    }
    store_inodes::is_placeholder(stat.st_mode, stat.st_dev)
        && recognise(descriptor, stat.st_ino).is_ok()
}

fn recognise(descriptor: i32, placeholder: u64) -> Result<()> {
    let mount = mount::current()?;
    if table::is_ours(descriptor) {
        // Attaching has entered it.
        return Ok(());
    }
    let found = mount.fs().handle_by_placeholder(placeholder)?;
    let handle = found.ok_or(Errno(libc::EBADF))?;
    table::refer(handle, || Ok(mount.fs().retain(mount.slot(), handle).map(drop)?))?;
    upkeep::release_displaced(mount, table::put(descriptor, handle)?);
    // If another thread closed the number meanwhile, it may refer to something else by now.
    if sys::fstat(descriptor).map(|stat| stat.st_ino) != Ok(placeholder) {
        upkeep::release_displaced(mount, table::forget(descriptor));
        return Err(Errno(libc::EBADF));
    }
    Ok(())
}

/// Handles a descriptor that the kernel received from another process. Enters it if it is ours.
pub fn received(descriptor: i32) {
    descriptor::claimed(descriptor);
    classify(descriptor);
}
