//! File locks within a node. The kernel keeps them, on a lock file in the store for each file that
//! was ever locked. A later file with the same inode number has another lock file, because a
//! process that holds locks on the earlier one may not have ended yet. The agent removes the lock
//! files of files that are gone.
//!
//! `fcntl` locks belong to the process. It has one descriptor of the lock file per inode. When the
//! process closes any descriptor of the file, that one is closed, which drops the locks, as POSIX
//! asks. `flock` and open-file-description locks belong to the description. There is one descriptor
//! of the lock file per handle; it is closed with the handle's last number. A process opens it
//! before a child can inherit the handle, so that both lock through the same one. Its file offset
//! names the handle: an executed program finds by it what it inherited.
//!
//! Invariant: while the process has locks of its own on a file, no descriptor of its lock file is
//! closed, except to drop them. So none is opened then either: moving it to a high number closes
//! one.
//!
//! Invariant: during an exec, a lock descriptor is close-on-exec exactly if the numbers that the
//! exec closes end its locks.
//!
//! Weaker than a local file system: if a process has more open files than `SHARED_MAX` when it
//! makes a child, both lock the rest of them separately; so they do with a description of a file
//! that the process had locked through another one. Ranks in scope `rank` have no files in common
//! to lock.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};

use cairn_core::{HandleId, InodeId};
use cairn_device::store::lock_file;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::short_path::ShortPath;
use cairn_platform::sys;

use crate::error::{Errno, Result};
use crate::kernel::gate;
use crate::kernel::latch::{Held, Latch};
use crate::mount::{self, Mount};
use crate::task::{internal_floor, store_inodes, table};
use crate::{kernel, pages};

/// Owner of a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Process(InodeId),
    Description(HandleId),
}

/// Lock descriptors of this process.
struct Descriptors {
    latch: Latch,
    list: UnsafeCell<Vec<(Owner, Descriptor)>>,
    /// Length of the list, read without the latch.
    count: AtomicUsize,
}

// SAFETY: the list is reached only through `with`, which holds the latch.
unsafe impl Sync for Descriptors {}

static DESCRIPTORS: Descriptors = Descriptors {
    latch: Latch::new(),
    list: UnsafeCell::new(Vec::new()),
    count: AtomicUsize::new(0),
};

/// Most descriptions whose lock files are opened because a child is made.
const SHARED_MAX: usize = 64;
/// Bit of a file offset which says that the rest of it is the number of a handle.
const OF_DESCRIPTION: i64 = 1 << 40;

impl Descriptors {
    fn with<R>(&self, act: impl FnOnce(&mut Vec<(Owner, Descriptor)>) -> R) -> Result<R> {
        let _held = self.latch.hold()?;
        // SAFETY: the latch is held, and the reference does not leave this function.
        let list = unsafe { &mut *self.list.get() };
        list.extend(store_inodes::take_inherited_files().iter().copied().filter_map(adopted));
        let result = act(list);
        self.count.store(list.len(), Ordering::Relaxed);
        Ok(result)
    }

    /// Whether there is a descriptor of one of these owners. Errors: `EDEADLK`.
    fn has(&self, these: &[Owner]) -> Result<bool> {
        self.with(|list| list.iter().any(|(owner, _)| these.contains(owner)))
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0 && !store_inodes::has_inherited_files()
    }
}

/// Keeps the list unchanged until the result is dropped, in this process and in a child forked
/// meanwhile. Errors: `EDEADLK`.
pub fn quiet() -> Result<Held<'static>> {
    DESCRIPTORS.latch.hold()
}

/// Returns the descriptor that carries the locks of `owner`, opened if necessary.
fn descriptor(mount: &Mount, number: i32, inode: InodeId, owner: Owner) -> Result<i32> {
    let find = |list: &mut Vec<(Owner, Descriptor)>| {
        list.iter().find(|(found, _)| *found == owner).map(|(_, descriptor)| descriptor.raw())
    };
    if let Some(known) = DESCRIPTORS.with(find)? {
        return Ok(known);
    }
    let opened = open_for(mount, inode)?.raise();
    if let Owner::Description(handle) = owner {
        let offset = OF_DESCRIPTION | i64::from(handle.0);
        kernel::lseek(opened.raw(), offset, libc::SEEK_SET)?;
    }
    let inherited = sys::fcntl(number, libc::F_GETFD, 0)? & libc::FD_CLOEXEC;
    sys::fcntl(opened.raw(), libc::F_SETFD, i64::from(inherited))?;
    internal_floor::note(opened.raw());
    // If another thread was faster, its descriptor is used.
    DESCRIPTORS.with(|list| {
        find(list).unwrap_or_else(|| {
            let raw = opened.raw();
            list.push((owner, opened));
            raw
        })
    })
}

/// Opens the lock files of the descriptions that a child about to be made inherits. What fails is
/// locked separately by the child.
pub fn before_child() {
    let Some(mount) = mount::attached().filter(|_| !mount::is_poisoned()) else { return };
    for (number, handle) in table::all() {
        if DESCRIPTORS.count.load(Ordering::Relaxed) >= SHARED_MAX {
            return;
        }
        let info = mount.fs().handle(handle).ok().filter(|info| !info.path_only);
        let Some(info) = info else { continue };
        let owner = Owner::Description(handle);
        if DESCRIPTORS.has(&[owner, Owner::Process(info.inode)]) == Ok(false) {
            let _ = descriptor(mount, number, info.inode, owner);
        }
    }
}

/// Takes over a descriptor of the store that this process was executed with, if it is the lock file
/// of a description. Closes it if this process does not have the description.
fn adopted(number: i32) -> Option<(Owner, Descriptor)> {
    let offset = kernel::lseek(number, 0, libc::SEEK_CUR).unwrap_or(0) as i64;
    let handle = u32::try_from(offset ^ OF_DESCRIPTION).map(HandleId).ok()?;
    if !is_lock_file(number) {
        return None;
    }
    let lock = Descriptor::from_raw(number);
    table::holds(handle).then(|| {
        internal_floor::note(number);
        (Owner::Description(handle), lock)
    })
}

/// Whether a descriptor leads to a lock file, which may have no name any more.
fn is_lock_file(number: i32) -> bool {
    let mut link = ShortPath::new();
    link.push(b"/proc/self/fd/");
    link.push_number(number.unsigned_abs().into());
    let mut target = [0; 4096];
    let length = sys::readlinkat(libc::AT_FDCWD, &link, &mut target).unwrap_or(0);
    lock_file::is_path(&target[..length])
}

/// Opens the lock file of `inode`, for locks of a server's own. Errors: as `open`.
pub fn open(mount: &Mount, inode: InodeId) -> Result<OwnedFd> {
    let opened = open_for(mount, inode)?.into_raw();
    // SAFETY: the descriptor was just given up by its owner.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

fn open_for(mount: &Mount, inode: InodeId) -> Result<Descriptor> {
    let born = mount.fs().attributes(inode)?.born;
    let name = CString::new(lock_file::name(mount.name(), inode, born));
    open_file(mount.handles_directory(), &name.map_err(|_| Errno(libc::EINVAL))?)
}

/// Most attempts to open a lock file that is removed and created meanwhile.
const OPEN_TRIES: usize = 64;

/// Opens a lock file for all processes of the job, and creates it if there is none. Errors:
/// `ENOLCK` if it keeps being created and removed.
fn open_file(directory: i32, name: &CStr) -> Result<Descriptor> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW;
    for _ in 0..OPEN_TRIES {
        match Descriptor::open(directory, name, flags | libc::O_CREAT | libc::O_EXCL, 0o666) {
            Ok(made) => {
                // Undo the effect of the application's file mode creation mask.
                let _ = sys::fchmod(made.raw(), 0o666);
                return Ok(made);
            }
            Err(sys::Errno(libc::EEXIST)) => {}
            Err(errno) => return Err(errno.into()),
        }
        match Descriptor::open(directory, name, flags, 0) {
            // The locked file, and its lock file with it, was just removed.
            Err(sys::Errno(libc::ENOENT)) => {}
            opened => return Ok(opened?),
        }
    }
    Err(Errno(libc::ENOLCK))
}

fn release(is_released: impl Fn(Owner) -> bool) {
    // In a signal handler that interrupted a locking call, the descriptor stays open until the
    // process ends.
    let _ = DESCRIPTORS.with(|list| list.retain(|(owner, _)| !is_released(*owner)));
}

/// Drops the process's own locks on a file when a number of `handle` is closed.
pub(crate) fn number_closed(mount: &Mount, handle: HandleId) {
    if !DESCRIPTORS.is_empty() {
        // A number that only names the file cannot have locked it.
        if let Some(info) = mount.fs().handle(handle).ok().filter(|info| !info.path_only) {
            release(|owner| owner == Owner::Process(info.inode));
        }
    }
}

/// Drops this process's share of a description's locks when its last number of `handle` is closed.
pub(crate) fn handle_closed(handle: HandleId) {
    if !DESCRIPTORS.is_empty() {
        release(|owner| owner == Owner::Description(handle));
    }
}

/// Decides which locks an exec ends, by the numbers that it closes. The process's locks on a file
/// end with the first of its numbers, those of a description with its last.
pub(crate) fn before_exec(mount: &Mount) {
    if DESCRIPTORS.is_empty() {
        return;
    }
    let known = |(number, handle)| {
        let info = mount.fs().handle(handle).ok().filter(|info| !info.path_only)?;
        let flags = sys::fcntl(number, libc::F_GETFD, 0).unwrap_or(libc::FD_CLOEXEC);
        Some((info.inode, handle, flags & libc::FD_CLOEXEC != 0))
    };
    let numbers: Vec<(InodeId, HandleId, bool)> = table::all().filter_map(known).collect();
    let goes = |owner: Owner| match owner {
        Owner::Process(inode) => numbers.iter().any(|&(of, _, closes)| of == inode && closes),
        Owner::Description(handle) => numbers.iter().all(|&(_, of, closes)| of != handle || closes),
    };
    // The list is unavailable if a signal handler interrupted a locking call; its locks then stay
    // as they are.
    let _ = DESCRIPTORS.with(|list| {
        for (owner, lock) in list {
            let flags = if goes(*owner) { libc::FD_CLOEXEC } else { 0 };
            // The descriptor is open, and only its flag changes.
            let _ = sys::fcntl(lock.raw(), libc::F_SETFD, i64::from(flags));
        }
    });
}

/// Calls `visit` with each lock descriptor.
pub fn for_each_descriptor(visit: &mut dyn FnMut(i32)) {
    if !DESCRIPTORS.is_empty() {
        let _ = DESCRIPTORS.with(|list| list.iter().for_each(|(_, found)| visit(found.raw())));
    }
}

/// As `flock(2)`.
pub fn lock_whole(number: i32, operation: i32) -> Result<()> {
    let mount = mount::current()?;
    let handle = table::lookup(number).ok_or(Errno(libc::EBADF))?;
    if !matches!(operation & !libc::LOCK_NB, libc::LOCK_SH | libc::LOCK_EX | libc::LOCK_UN) {
        return Err(Errno(libc::EINVAL));
    }
    let info = mount.fs().handle(handle)?;
    let permitted = operation & libc::LOCK_UN != 0 || info.read || info.write;
    if info.path_only || !permitted {
        return Err(Errno(libc::EBADF));
    }
    let lock = descriptor(mount, number, info.inode, Owner::Description(handle))?;
    gate::outside(|| sys::flock(lock, operation))?;
    if operation & libc::LOCK_UN == 0 {
        pages::follow_all();
    }
    Ok(())
}

/// As `fcntl(2)` with one of the six lock commands; changes `lock` as `fcntl` does.
pub fn lock_range(number: i32, command: i32, lock: &mut libc::flock) -> Result<()> {
    let mount = mount::current()?;
    let handle = table::lookup(number).ok_or(Errno(libc::EBADF))?;
    let info = mount.fs().handle(handle)?;
    let sets = !matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    let permitted = match i32::from(lock.l_type) {
        _ if info.path_only => false,
        libc::F_RDLCK => info.read || !sets,
        libc::F_WRLCK => info.write || !sets,
        _ => true,
    };
    if !permitted {
        return Err(Errno(libc::EBADF));
    }
    let base = match i32::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => info.cursor,
        libc::SEEK_END => mount.fs().attributes(info.inode)?.size,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let base = i64::try_from(base).map_err(|_| Errno(libc::EOVERFLOW))?;
    let mut absolute = *lock;
    absolute.l_whence = libc::SEEK_SET as i16;
    absolute.l_start = base.checked_add(lock.l_start).ok_or(Errno(libc::EOVERFLOW))?;
    let owner = match command {
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => Owner::Process(info.inode),
        _ => Owner::Description(handle),
    };
    if !DESCRIPTORS.has(&[owner])? {
        // Also for a lock of the process: see the invariant.
        descriptor(mount, number, info.inode, Owner::Description(handle))?;
    }
    let on = descriptor(mount, number, info.inode, owner)?;
    kernel::lock(on, command, &mut absolute)?;
    match (sets, i32::from(absolute.l_type)) {
        // Unlocking needs no update of mappings: from then on others may change the file again.
        (true, libc::F_UNLCK) => {}
        (true, _) => pages::follow_all(),
        // No lock is in the way: the kernel changes nothing but the type.
        (false, libc::F_UNLCK) => lock.l_type = absolute.l_type,
        (false, _) => *lock = absolute,
    }
    Ok(())
}

/// As `lockf(3)`.
pub fn lock_section(number: i32, command: i32, length: i64) -> Result<()> {
    // SAFETY: plain integers, for which zero is a valid value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_whence = libc::SEEK_CUR as i16;
    lock.l_len = length;
    lock.l_type = match command {
        libc::F_ULOCK => libc::F_UNLCK,
        libc::F_LOCK | libc::F_TLOCK | libc::F_TEST => libc::F_WRLCK,
        _ => return Err(Errno(libc::EINVAL)),
    } as i16;
    match command {
        libc::F_LOCK => lock_range(number, libc::F_SETLKW, &mut lock),
        libc::F_TEST => {
            lock_range(number, libc::F_GETLK, &mut lock)?;
            match i32::from(lock.l_type) == libc::F_UNLCK {
                true => Ok(()),
                false => Err(Errno(libc::EACCES)),
            }
        }
        _ => lock_range(number, libc::F_SETLK, &mut lock),
    }
}
