//! `mmap` of a file of ours: checks the request, reserves the addresses and fills them.
//!
//! Must stay true: a mapping owns its description before its first page is placed. What a fixed
//! address replaced is given up before anything of the new mapping is in the list.

use core::ffi::c_void;

use cairn_core::{HandleId, InodeId};
use cairn_platform::process;

use super::change::await_writes;
use super::unmap::removed;
use crate::data::absent;
use crate::data::io::{self, At};
use crate::data::transfer::Buffers;
use crate::error::{Errno, Result};
use crate::kernel;
use crate::mount::{self, Mount};
use crate::task::mappings::{LENGTH_MAX, MAPPINGS, Manner, Mapping, PAGE_BYTES, Placed, pages};

/// Flags of `mmap` that say where a mapping goes, and those that say how its pages are allocated.
const PLACE_FLAGS: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | MAP_32BIT;
const PAGE_FLAGS: i32 = libc::MAP_POPULATE | libc::MAP_LOCKED | libc::MAP_NORESERVE;
#[cfg(target_arch = "x86_64")]
const MAP_32BIT: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const MAP_32BIT: i32 = 0;

/// Arguments of one `mmap`.
#[derive(Clone, Copy)]
pub struct Request {
    /// Wanted address, or null.
    pub address: *mut c_void,
    /// Length in bytes.
    pub length: usize,
    /// `PROT_*`.
    pub protection: i32,
    /// `MAP_*`.
    pub flags: i32,
    /// Offset in the file.
    pub offset: i64,
}

/// As `mmap(2)` of the file behind `handle`.
///
/// # Safety
/// As for `mmap`: a fixed address replaces what is there.
pub unsafe fn map(handle: HandleId, request: &Request) -> Result<*mut c_void> {
    let mount = mount::current()?;
    let info = mount.fs().handle(handle)?;
    // A negative offset becomes one far beyond what a file can have.
    let offset = request.offset as u64;
    if offset % PAGE_BYTES as u64 != 0 {
        return Err(Errno(libc::EINVAL));
    }
    if info.path_only {
        return Err(Errno(libc::EBADF));
    }
    if request.length == 0 || request.flags & libc::MAP_HUGETLB != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let length = request.length.checked_next_multiple_of(PAGE_BYTES);
    let length = length.filter(|&length| length <= LENGTH_MAX).ok_or(Errno(libc::ENOMEM))?;
    if offset.checked_add(length as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno(libc::EOVERFLOW));
    }
    let shared = match request.flags & libc::MAP_TYPE {
        libc::MAP_PRIVATE => false,
        libc::MAP_SHARED => true,
        libc::MAP_SHARED_VALIDATE if request.flags & libc::MAP_SYNC == 0 => true,
        libc::MAP_SHARED_VALIDATE => return Err(Errno(libc::EOPNOTSUPP)),
        _ => return Err(Errno(libc::EINVAL)),
    };
    let stores = shared && request.protection & libc::PROT_WRITE != 0;
    if !info.read || stores && !info.write {
        return Err(Errno(libc::EACCES));
    }
    if info.is_directory {
        return Err(Errno(libc::ENODEV));
    }
    if request.flags & libc::MAP_GROWSDOWN != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let (protection, flags) = (request.protection, request.flags & PAGE_FLAGS);
    let wanted = Wanted {
        handle,
        inode: info.inode,
        request: Request { length, ..*request },
        offset,
        manner: Manner { protection, shared, stores, flags },
        may_store: info.write,
    };
    // A mapping of a tier in a file makes all writes to the file wait for the disk. Private pages
    // do not justify that, because they can be copied.
    if !shared && !mount.is_in_memory() {
        // SAFETY: promised by the caller.
        return unsafe { copy(handle, &wanted.request, offset) };
    }
    // SAFETY: promised by the caller.
    match unsafe { wanted.map(mount) } {
        // The tier's file system may forbid execution in place, and a small file may have no block
        // of its own.
        Err(Errno(libc::EPERM | libc::ENOSPC)) if !shared => {
            // SAFETY: promised by the caller.
            unsafe { copy(handle, &wanted.request, offset) }
        }
        mapped => mapped,
    }
}

/// A checked request.
struct Wanted {
    handle: HandleId,
    inode: InodeId,
    request: Request,
    offset: u64,
    manner: Manner,
    may_store: bool,
}

impl Wanted {
    /// # Safety
    /// As for `mmap`.
    unsafe fn map(&self, mount: &Mount) -> Result<*mut c_void> {
        let caller = mount.caller();
        let map = || mount.fs().map_file(&caller, self.handle, self.manner.stores);
        let mapping = absent::wait(mount, map)??;
        // SAFETY: promised by the caller.
        let mapped = unsafe { reserve(&self.request, libc::PROT_NONE) }.and_then(|start| {
            // A mapping that a fixed address replaced is gone.
            removed(start, self.request.length);
            let placed = self.place(mount, mapping, start);
            if placed.is_err() {
                // SAFETY: the reservation made above.
                let _ = unsafe { kernel::munmap(start.cast(), self.request.length) };
            }
            placed.map(|()| start)
        });
        if mapped.is_err() {
            let _ = mount.fs().release(mount.slot(), mapping, caller.now);
        }
        mapped
    }

    /// Fills the reservation at `start`.
    fn place(&self, mount: &Mount, mapping: HandleId, start: *mut c_void) -> Result<()> {
        let pages = pages(start, self.request.length)?;
        let mut made = Mapping {
            pages,
            offset: self.offset,
            handle: mapping,
            inode: self.inode,
            manner: self.manner,
            may_store: self.may_store,
            placed: Placed { moves: 0, adds: 0, end: 0, holes: false },
            generation: process::generation(),
        };
        if self.manner.stores {
            await_writes(mount, mapping)?;
        }
        made.replace(mount)?;
        made.manner.flags = 0;
        MAPPINGS.with(|list| list.push(made))
    }
}

/// Maps anonymous memory where the request asks for it.
///
/// # Safety
/// As for `mmap`.
pub(super) unsafe fn reserve(request: &Request, protection: i32) -> Result<*mut c_void> {
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = request.flags & PLACE_FLAGS | kind;
    // SAFETY: promised by the caller.
    unsafe { kernel::map(request.address, request.length, protection, flags, -1, 0) }
}

/// Makes a private mapping that holds a copy of the file's bytes.
///
/// # Safety
/// As for `mmap`.
unsafe fn copy(handle: HandleId, request: &Request, offset: u64) -> Result<*mut c_void> {
    // SAFETY: promised by the caller.
    let start = unsafe { reserve(request, libc::PROT_READ | libc::PROT_WRITE) }?;
    removed(start, request.length);
    // SAFETY: the new mapping has `length` bytes, and no other code has its address yet.
    let filled = unsafe { fill(handle, start, request.length, offset) };
    // SAFETY: the mapping made above, to which no more is written.
    let finished =
        filled.and_then(|()| unsafe { kernel::protect(start, request.length, request.protection) });
    if finished.is_err() {
        // SAFETY: the mapping made above.
        let _ = unsafe { kernel::munmap(start.cast(), request.length) };
    }
    finished.map(|()| start)
}

unsafe fn fill(handle: HandleId, start: *mut c_void, length: usize, offset: u64) -> Result<()> {
    let mut done = 0;
    while done < length {
        let entry = libc::iovec { iov_base: start.wrapping_byte_add(done), iov_len: length - done };
        // SAFETY: promised by the caller of this function.
        let buffers = unsafe { Buffers::one(&entry) };
        match io::read(handle, buffers, At::Offset(offset + done as u64))? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(())
}
