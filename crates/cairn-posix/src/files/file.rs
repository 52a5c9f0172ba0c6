//! Files: open, close, attributes, size, cursor and status flags.
//!
//! Invariant: a descriptor number is in the table exactly while it refers to an open handle to
//! which this process holds a reference.
//!
//! Does not read or write data (`io.rs`), allocate space (`allocate.rs`) or change names
//! (`names.rs`).

use cairn_core::{
    Attributes, Caller, Error, HandleId, HandleInfo, InodeId, OpenOptions, Opened, PathBounds,
    TimeUpdate, Timestamp, Truncation,
};

use crate::data::{absent, io};
use crate::descriptors::{description, placeholder, upkeep};
use crate::error::{Errno, PathResult, Result};
use crate::files::place::Place;
use crate::mount::{self, Mount, Rights};
use crate::pages;
use crate::task::fs_context;

const PERMISSION_BITS: u32 = 0o7777;
/// Flags of `open(2)` that have no effect on memory but that `fcntl(F_GETFL)` returns.
const STATUS_FLAGS: i32 = SETTABLE_FLAGS | libc::O_SYNC | libc::O_TMPFILE | libc::O_NOFOLLOW;
/// Status flags that `fcntl(F_SETFL)` changes.
const SETTABLE_FLAGS: i32 = libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
/// Shift of the status flags in the core, which keeps 15 bits. The lowest flag kept becomes bit 0.
const STATUS_SHIFT: u32 = 8;

const _: () = assert!(STATUS_FLAGS & ((1 << STATUS_SHIFT) - 1) == 0);
const _: () = assert!(STATUS_FLAGS >> STATUS_SHIFT < 1 << 15);

/// Most steps of one truncation; each frees a bounded part of the file.
const TRUNCATE_STEPS_MAX: usize = 1 << 22;

fn options(flags: i32) -> Result<OpenOptions> {
    let has = |flag: i32| flags & flag == flag;
    if has(libc::O_CREAT | libc::O_DIRECTORY) {
        return Err(Errno(libc::EINVAL));
    }
    let (read, write) = match flags & libc::O_ACCMODE {
        _ if has(libc::O_PATH) => (false, false),
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => (false, false),
    };
    let options = OpenOptions {
        read,
        write,
        with_rights: has(libc::O_ACCMODE) && !has(libc::O_PATH),
        append: has(libc::O_APPEND),
        create: has(libc::O_CREAT),
        exclusive: has(libc::O_EXCL),
        truncate: has(libc::O_TRUNC),
        directory: has(libc::O_DIRECTORY),
        no_follow: has(libc::O_NOFOLLOW),
        path_only: has(libc::O_PATH),
        ..OpenOptions::default()
    };
    Ok(options.effective())
}

/// As `open(2)`: returns the lowest free descriptor number. `O_TMPFILE` without `O_EXCL`, whose
/// file may be given a name, fails with `EOPNOTSUPP` where metadata is durable. Flags about caching
/// and blocking (`O_DIRECT`, `O_SYNC`, `O_NONBLOCK`, ...) have no effect on memory and are
/// remembered. Waits for a file whose data are still elsewhere.
pub fn open(place: &Place, flags: i32, mode: u32) -> PathResult<i32> {
    open_within(place, flags, mode, PathBounds::NONE)
}

/// As [`open`], with bounds on the path. Errors: `EXDEV` if the path leaves its bounds; `ELOOP` if
/// it takes a symbolic link where none is allowed.
pub fn open_within(place: &Place, flags: i32, mode: u32, bounds: PathBounds) -> PathResult<i32> {
    let mount = mount::current()?;
    let options = OpenOptions { bounds, ..options(flags)? };
    let mode = mode & PERMISSION_BITS & !fs_context::umask();
    let caller = mount.caller();
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        let opened = open_nameless(mount, &caller, place, (flags, bounds), mode)?;
        return Ok(give_number(mount, &caller, opened.handle, flags)?);
    }
    if flags & libc::O_NOATIME != 0 {
        let follow = flags & libc::O_NOFOLLOW == 0;
        // A file that does not exist yet will belong to the caller.
        let owner = stat(place, follow).map_or(caller.credentials.uid, |found| found.uid);
        if ![owner, 0].contains(&caller.credentials.uid) {
            return Err(Errno(libc::EPERM).into());
        }
    }
    let opened = open_description(mount, &caller, (place.base, place.path), options, mode)?;
    let keeps_link = options.no_follow || options.create && options.exclusive;
    let follow = !keeps_link;
    let opened = mount.at(place, follow, opened)?;
    if options.truncate {
        pages::follow(opened.inode);
        mount.reclaim();
    }
    let descriptor = give_number(mount, &caller, opened.handle, flags);
    Ok(descriptor.inspect_err(|_| {
        // Without its bounds the path may lead elsewhere.
        if opened.created && bounds == PathBounds::NONE {
            // The caller learns why it got no number; a failure here would only repeat it.
            let _ = mount.fs().unlink(&caller, place.base, place.path);
        }
    })?)
}

/// Opens the file at `path`, relative to `base`, without a number for it. Waits for a file whose
/// data are still elsewhere.
pub(crate) fn open_description(
    mount: &Mount,
    caller: &Caller,
    (base, path): (InodeId, &[u8]),
    options: OpenOptions,
    mode: u32,
) -> Result<cairn_core::Result<Opened>> {
    let open =
        |options| absent::wait(mount, || mount.fs().open_file(caller, base, path, options, mode));
    match open(OpenOptions { unless_written: true, ..options })? {
        Err(Error::BeingWritten) => {
            // If the other writers are dead, this program takes over what they left; find out
            // first.
            mount.reap_gone();
            open(options)
        }
        opened => Ok(opened),
    }
}

/// As `open(2)` with `O_TMPFILE`.
fn open_nameless(
    mount: &Mount,
    caller: &Caller,
    place: &Place,
    (flags, bounds): (i32, PathBounds),
    mode: u32,
) -> PathResult<Opened> {
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => return Err(Errno(libc::EINVAL).into()),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => (false, false),
    };
    let linkable = flags & libc::O_EXCL == 0;
    if linkable && mount.fs().is_durable() {
        return Err(Errno(libc::EOPNOTSUPP).into());
    }
    let append = flags & libc::O_APPEND != 0;
    let options = OpenOptions { read, write, append, bounds, ..OpenOptions::default() };
    let opened = mount.fs().open_nameless(caller, place.base, place.path, options, linkable, mode);
    mount.at(place, true, opened)
}

/// Assigns a descriptor number to a handle that was just opened. Releases the handle if that fails.
fn give_number(mount: &Mount, caller: &Caller, handle: HandleId, flags: i32) -> Result<i32> {
    let number = keep_status(mount, handle, flags)
        .and_then(|()| placeholder::open(mount, handle, flags & libc::O_CLOEXEC != 0));
    number.inspect_err(|_| {
        // The caller learns why it got no number; a failure here would only repeat it.
        let _ = mount.fs().release(caller.slot, handle, caller.now);
    })
}

fn keep_status(mount: &Mount, handle: HandleId, flags: i32) -> Result<()> {
    match flags & STATUS_FLAGS {
        0 => Ok(()),
        kept => Ok(mount.fs().set_status(handle, kept as u32 >> STATUS_SHIFT)?),
    }
}

/// Returns the attributes of a file by name.
pub fn stat(place: &Place, follow: bool) -> PathResult<Attributes> {
    let mount = mount::current()?;
    let found = mount.fs().stat(&mount.caller(), place.base, place.path, follow);
    let found = mount.at(place, follow, found)?;
    pages::follow(found.inode);
    Ok(found)
}

/// Returns the attributes of an open file.
pub fn attributes(handle: HandleId) -> Result<Attributes> {
    let mount = mount::current()?;
    let found = mount.fs().attributes(mount.inode_of(handle)?)?;
    // After the answer, so that a mapping shows no less than the answer says.
    pages::follow(found.inode);
    Ok(found)
}

/// As `access(2)`, for these rights; `mask` consists of `R_OK`, `W_OK` and `X_OK`.
pub fn access(place: &Place, mask: i32, follow: bool, rights: Rights) -> PathResult<()> {
    let mask = u32::try_from(mask).ok().filter(|mask| mask & !7 == 0).ok_or(Errno(libc::EINVAL))?;
    let mount = mount::current()?;
    let result =
        mount.fs().access(&mount.caller_with(rights), place.base, place.path, mask, follow);
    mount.at(place, follow, result)
}

/// Returns the inode that a place names.
pub fn resolve(place: &Place, follow: bool) -> PathResult<InodeId> {
    let mount = mount::current()?;
    let found = mount.fs().resolve(&mount.caller(), place.base, place.path, follow);
    mount.at(place, follow, found)
}

/// A file that was found by its name. Until this is dropped, the inode is not given to another
/// file, although somebody may remove the name or give it to another file.
pub struct Found {
    /// The file.
    pub inode: InodeId,
    /// What keeps it; none if it is open.
    kept: Option<HandleId>,
}

impl Found {
    /// Returns the file behind a handle, which keeps it. Errors: `EBADF` if the handle only names a
    /// file.
    pub fn opened(handle: HandleId) -> Result<Found> {
        Ok(Found { inode: description::opened(handle)?.inode, kept: None })
    }

    /// Returns the attributes of the file.
    pub fn attributes(&self) -> Result<Attributes> {
        Ok(mount::current()?.fs().attributes(self.inode)?)
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if let (Some(handle), Ok(mount)) = (self.kept, mount::current()) {
            // If this fails, the handle is released with the process slot.
            let _ = mount.fs().release(mount.slot(), handle, mount::now());
        }
    }
}

/// Finds the file that a place names.
pub fn find(place: &Place, follow: bool) -> PathResult<Found> {
    let mount = mount::current()?;
    let options = OpenOptions { path_only: true, no_follow: !follow, ..OpenOptions::default() };
    let opened = mount.fs().open_file(&mount.caller(), place.base, place.path, options, 0);
    let opened = mount.at(place, follow, opened)?;
    Ok(Found { inode: opened.inode, kept: Some(opened.handle) })
}

/// As `truncate(2)`.
pub fn truncate(place: &Place, size: i64) -> PathResult<()> {
    let size = u64::try_from(size).map_err(|_| Errno(libc::EINVAL))?;
    let (found, mount) = (find(place, true)?, mount::current()?);
    if found.attributes()?.is_directory() {
        return Err(Errno(libc::EISDIR).into());
    }
    let permitted = mount.fs().access(&mount.caller(), found.inode, b"", libc::W_OK as u32, false);
    permitted.map_err(Errno::from)?;
    Ok(set_size(mount, found.inode, size)?)
}

/// As `ftruncate(2)`.
pub fn truncate_handle(handle: HandleId, size: i64) -> Result<()> {
    let size = u64::try_from(size).map_err(|_| Errno(libc::EINVAL))?;
    let mount = mount::current()?;
    let info = description::opened(handle)?;
    if !info.write {
        return Err(Errno(libc::EINVAL));
    }
    mount.fs().note_change(handle)?;
    set_size(mount, info.inode, size)
}

pub(crate) fn set_size(mount: &Mount, inode: InodeId, size: u64) -> Result<()> {
    let caller = mount.caller();
    if size > mount.file_size_limit() && size > mount.fs().attributes(inode)?.size {
        return Err(io::too_large());
    }
    for _ in 0..TRUNCATE_STEPS_MAX {
        match absent::wait(mount, || mount.fs().truncate(&caller, inode, size))? {
            Ok(Truncation::Done) => {
                show_cut(mount, inode)?;
                mount.reclaim();
                return Ok(());
            }
            Ok(Truncation::More) => mount.reclaim(),
            Err(Error::Unsettled) => mount.settle(inode)?,
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno(libc::EIO))
}

/// Makes mappings of the file show its new end.
fn show_cut(mount: &Mount, inode: InodeId) -> Result<()> {
    if mount.fs().is_mapped(inode)? {
        mount.settle(inode)?;
        pages::follow(inode);
    }
    Ok(())
}

/// Sets permission bits.
pub fn set_mode(inode: InodeId, mode: u32) -> Result<()> {
    let mount = mount::current()?;
    Ok(mount.fs().set_mode(&mount.caller(), inode, mode)?)
}

/// Sets owner and group; `u32::MAX` leaves one unchanged.
pub fn set_owner(inode: InodeId, uid: u32, gid: u32) -> Result<()> {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    let mount = mount::current()?;
    Ok(mount.fs().set_owner(&mount.caller(), inode, given(uid), given(gid))?)
}

/// Sets access and modification time; `None` sets both to the present time.
pub fn set_times(inode: InodeId, times: Option<[libc::timespec; 2]>) -> Result<()> {
    let update = |time: &libc::timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(TimeUpdate::Now),
        libc::UTIME_OMIT => Ok(TimeUpdate::Omit),
        0..=999_999_999 => Ok(TimeUpdate::At(Timestamp::from_parts(time.tv_sec, time.tv_nsec))),
        _ => Err(Errno(libc::EINVAL)),
    };
    let (accessed, modified) = match &times {
        Some([accessed, modified]) => (update(accessed)?, update(modified)?),
        None => (TimeUpdate::Now, TimeUpdate::Now),
    };
    let mount = mount::current()?;
    Ok(mount.fs().set_times(&mount.caller(), inode, accessed, modified)?)
}

/// As `lseek(2)`. On a directory `SEEK_SET` takes a position that `readdir` returned.
pub fn seek(handle: HandleId, offset: i64, whence: i32) -> Result<i64> {
    let position = description::seek(handle, offset, whence)?;
    if !matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
        pages::follow_handle(handle);
    }
    Ok(position)
}

/// As `fsync(2)`: makes the data as durable as its tiers can, with valid checksums.
pub fn sync(handle: HandleId) -> Result<()> {
    description::opened(handle)?;
    let mount = mount::current()?;
    upkeep::seal_handle(mount, handle)?;
    let is_durable = mount.fs().geometry().durability.is_some();
    if is_durable {
        let inode = mount.inode_of(handle)?;
        let may_be_stored_to = mount.fs().note_mapped_stores(&mount.caller(), inode)?;
        // Stores may not have been written back when the last mapping ended.
        if may_be_stored_to || mount.shows_copies() {
            mount.write_back(inode, 0..u64::MAX)?;
            mount.flush_mapped_stores()?;
        }
    }
    mount.fs().sync()?;
    mount.fs().note_barrier();
    Ok(())
}

/// As `syncfs(2)`.
pub fn sync_all() -> Result<()> {
    let mount = mount::current()?;
    mount.fs().sync()?;
    mount.fs().note_barrier();
    Ok(())
}

/// As `sync_file_range(2)`; syncs the whole file.
pub fn sync_range(handle: HandleId, offset: i64, length: i64, flags: u32) -> Result<()> {
    const KNOWN: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    description::opened(handle)?;
    let end = offset.checked_add(length).filter(|&end| offset >= 0 && end >= offset);
    if flags & !KNOWN != 0 || end.is_none() {
        return Err(Errno(libc::EINVAL));
    }
    sync(handle)
}

/// As `posix_fadvise(3)`. Memory is the cache, so advice has no effect and is only checked.
pub fn advise(handle: HandleId, length: i64, advice: i32) -> Result<()> {
    description::opened(handle)?;
    match length >= 0 && (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice) {
        true => Ok(()),
        false => Err(Errno(libc::EINVAL)),
    }
}

/// As `readahead(2)`, with no effect: memory needs no read-ahead.
pub fn read_ahead(handle: HandleId) -> Result<usize> {
    let info = description::opened(handle)?;
    match (info.read, info.is_directory) {
        (false, _) => Err(Errno(libc::EBADF)),
        (true, true) => Err(Errno(libc::EINVAL)),
        (true, false) => Ok(0),
    }
}

/// As `fcntl(F_GETFL)`.
pub fn status_flags(handle: HandleId) -> Result<i32> {
    let info = mount::current()?.fs().handle(handle)?;
    let access = match (info.read, info.write) {
        _ if info.path_only => return Ok(libc::O_PATH),
        (true, false) => libc::O_RDONLY,
        (false, false) => libc::O_ACCMODE,
        (false, true) => libc::O_WRONLY,
        (true, true) => libc::O_RDWR,
    };
    // The kernel reports O_LARGEFILE (0o100000), which is 0 in the C library of 64-bit targets.
    let append = if info.append { libc::O_APPEND } else { 0 };
    Ok(access | append | kept_status(&info) | 0o100_000)
}

fn kept_status(info: &HandleInfo) -> i32 {
    (info.status << STATUS_SHIFT) as i32
}

/// As `fcntl(F_SETFL)`: only `O_APPEND` has an effect; other flags are remembered.
pub fn set_status_flags(handle: HandleId, flags: i32) -> Result<()> {
    let mount = mount::current()?;
    let info = description::opened(handle)?;
    let before = kept_status(&info);
    let after = before & !SETTABLE_FLAGS | flags & SETTABLE_FLAGS;
    if after != before {
        mount.fs().set_status(handle, after as u32 >> STATUS_SHIFT)?;
    }
    Ok(mount.fs().set_append(handle, flags & libc::O_APPEND != 0)?)
}
