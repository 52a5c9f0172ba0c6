//! Files of ours in the address space.
//!
//! A private mapping is a copy. A shared one that only reads maps the file's blocks in the tier itself, read-only, so
//! that it shows what is written to them later. Refused with ENODEV: shared mappings that may write.
//! Invariant: a shared mapping holds a handle of its own, so its blocks stay the file's after close and unlink.
//! Weaker than a local file system: a block written for the first time after mapping is not seen, and truncation
//! leaves stale bytes instead of SIGBUS.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use cairn_core::{HandleId, InodeId, OpenOptions, Position, ReadPlan};
use cairn_device::descriptor::Descriptor;
use cairn_device::sys;

use crate::error::{Errno, Result};
use crate::io::{self, At};
use crate::kernel;
use crate::latch::Latch;
use crate::mount::{self, Mount};
use crate::transfer::Buffers;

const PAGE_BYTES: usize = 4096;
/// Attempts at a mapping whose blocks keep moving.
const ATTEMPTS_MAX: usize = 100;

/// What one `mmap` asks for.
#[derive(Clone, Copy)]
pub struct Request {
    /// Wanted address, or null.
    pub address: *mut c_void,
    /// Bytes.
    pub length: usize,
    /// `PROT_*`.
    pub protection: i32,
    /// `MAP_*`.
    pub flags: i32,
    /// Offset in the file.
    pub offset: i64,
}

/// A shared mapping.
struct Mapping {
    start: usize,
    end: usize,
    handle: HandleId,
}

struct Mappings {
    latch: Latch,
    list: UnsafeCell<Vec<Mapping>>,
    /// Length of the list, read without the latch.
    count: AtomicUsize,
}

// SAFETY: the list is only reached through `with`, which holds the latch.
unsafe impl Sync for Mappings {}

static MAPPINGS: Mappings =
    Mappings { latch: Latch::new(), list: UnsafeCell::new(Vec::new()), count: AtomicUsize::new(0) };

impl Mappings {
    fn with<R>(&self, act: impl FnOnce(&mut Vec<Mapping>) -> R) -> Result<R> {
        let _held = self.latch.hold()?;
        // SAFETY: the latch is held, and the reference does not leave this function.
        let list = unsafe { &mut *self.list.get() };
        let result = act(list);
        self.count.store(list.len(), Ordering::Relaxed);
        Ok(result)
    }
}

/// As `mmap(2)` of the file behind `handle`.
///
/// # Safety
/// As for `mmap`: a fixed address replaces what is there.
pub unsafe fn map(handle: HandleId, request: &Request) -> Result<*mut c_void> {
    let mount = mount::current()?;
    let info = mount.fs().handle(handle)?;
    let offset = u64::try_from(request.offset).map_err(|_| Errno(libc::EINVAL))?;
    if offset % PAGE_BYTES as u64 != 0 || request.length == 0 {
        return Err(Errno(libc::EINVAL));
    }
    if !info.read || info.is_directory {
        return Err(Errno(libc::EACCES));
    }
    match request.flags & libc::MAP_TYPE {
        // SAFETY: promised by the caller.
        libc::MAP_PRIVATE => unsafe { copy(handle, request, offset) },
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE
            if request.protection & libc::PROT_WRITE == 0 =>
        {
            // SAFETY: promised by the caller.
            unsafe { share(mount, info.inode, request, offset) }
        }
        _ => Err(Errno(libc::ENODEV)),
    }
}

/// Anonymous memory where the request wants it.
///
/// # Safety
/// As for `mmap`.
unsafe fn reserve(request: &Request, protection: i32) -> Result<*mut c_void> {
    let flags = request.flags & !libc::MAP_TYPE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: promised by the caller.
    unsafe { kernel::map(request.address, request.length, protection, flags, -1, 0) }
}

unsafe fn copy(handle: HandleId, request: &Request, offset: u64) -> Result<*mut c_void> {
    // SAFETY: promised by the caller.
    let start = unsafe { reserve(request, request.protection | libc::PROT_WRITE) }?;
    // SAFETY: the new mapping has `length` bytes and nobody else knows it yet.
    let filled = unsafe { fill(handle, start, request.length, offset) };
    let finished = filled.and_then(|()| match request.protection & libc::PROT_WRITE {
        // SAFETY: the mapping made above, not written to any more.
        0 => unsafe { kernel::protect(start, request.length, request.protection) },
        _ => Ok(()),
    });
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

unsafe fn share(
    mount: &Mount,
    inode: InodeId,
    request: &Request,
    offset: u64,
) -> Result<*mut c_void> {
    mount.settle(inode)?;
    let options = OpenOptions { read: true, ..OpenOptions::default() };
    let caller = mount.caller();
    let handle = mount.fs().open_file(&caller, inode, b"", options, 0)?.handle;
    // SAFETY: promised by the caller.
    let mapped = unsafe { reserve(request, request.protection) }.and_then(|start| {
        let placed = Shared { mount, handle, start, request, offset }.place();
        if placed.is_err() {
            // SAFETY: the mapping made above.
            let _ = unsafe { kernel::munmap(start.cast(), request.length) };
        }
        placed.map(|()| start)
    });
    let kept = mapped.and_then(|start| {
        let mapping =
            Mapping { start: start as usize, end: start as usize + request.length, handle };
        MAPPINGS.with(|list| list.push(mapping)).map(|()| start)
    });
    if kept.is_err() {
        let _ = mount.fs().release(mount.slot(), handle, caller.now);
    }
    kept
}

/// A shared mapping in the making.
struct Shared<'a> {
    mount: &'a Mount,
    handle: HandleId,
    start: *mut c_void,
    request: &'a Request,
    offset: u64,
}

impl Shared<'_> {
    /// Puts the file's blocks where they belong, again if they moved meanwhile.
    fn place(&self) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            if self.place_once()? {
                return Ok(());
            }
            let over = Request {
                address: self.start,
                flags: self.request.flags | libc::MAP_FIXED,
                ..*self.request
            };
            // SAFETY: replaces only what this mapping consists of.
            unsafe { reserve(&over, self.request.protection) }?;
        }
        Err(Errno(libc::EAGAIN))
    }

    /// False: blocks moved.
    fn place_once(&self) -> Result<bool> {
        let caller = self.mount.caller();
        let mut done = 0;
        while done < self.request.length {
            let at = Position::At(self.offset + done as u64);
            let left = (self.request.length - done) as u64;
            let plan = self.mount.fs().plan_read(&caller, self.handle, at, left)?;
            if plan.length == 0 {
                break;
            }
            self.place_runs(&plan, done)?;
            if !self.mount.fs().read_is_valid(&plan) {
                return Ok(false);
            }
            done += plan.length as usize;
        }
        Ok(true)
    }

    fn place_runs(&self, plan: &ReadPlan, done: usize) -> Result<()> {
        let mut at = done;
        for run in plan.runs() {
            if let Some((tier, offset)) = run.source {
                let device = self.mount.tier(tier)?;
                let tier = device.mappable().ok_or(Errno(libc::ENODEV))?;
                device.settle_for_mapping()?;
                let file = read_only(tier.descriptor)?;
                let length = (run.bytes as usize).next_multiple_of(PAGE_BYTES);
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                let (place, protection) =
                    (self.start.wrapping_byte_add(at), self.request.protection);
                // SAFETY: the range lies in the reservation: a run ends at its end or within its last page.
                unsafe {
                    let offset = tier.offset + offset;
                    kernel::map(place, length, protection, flags, file.raw(), offset)?;
                    if !tier.in_memory {
                        sys::madvise(place.cast(), length, libc::MADV_RANDOM)?;
                    }
                }
            }
            at += run.bytes as usize;
        }
        Ok(())
    }
}

/// A descriptor of the tier that cannot be mapped for writing, not even by a later `mprotect`.
fn read_only(file: i32) -> Result<Descriptor> {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{file}"));
    let path = path.map_err(|_| Errno(libc::EINVAL))?;
    Ok(Descriptor::open(libc::AT_FDCWD, &path, libc::O_RDONLY, 0)?)
}

/// Whether there is a shared mapping of ours.
#[inline]
pub fn any() -> bool {
    MAPPINGS.count.load(Ordering::Relaxed) > 0
}

/// The application removed its mappings in this range: those of ours that are gone give up their files.
pub fn removed(start: *const c_void, length: usize) {
    give_up(start as usize, length);
}

fn give_up(start: usize, length: usize) {
    let end = start.saturating_add(length.next_multiple_of(PAGE_BYTES));
    let mut gone = Vec::new();
    // A signal handler that interrupted a mapping call gives up late: with the process.
    let _ = MAPPINGS.with(|list| {
        for mapping in &mut *list {
            // What is cut off at an end is forgotten; a hole in the middle keeps the whole file.
            if start <= mapping.start && end > mapping.start {
                mapping.start = end.min(mapping.end);
            } else if end >= mapping.end && start < mapping.end {
                mapping.end = start;
            }
            if mapping.start >= mapping.end {
                gone.push(mapping.handle);
            }
        }
        list.retain(|mapping| mapping.start < mapping.end);
    });
    if let Ok(mount) = mount::current() {
        for handle in gone {
            let _ = mount.fs().release(mount.slot(), handle, mount::now());
        }
        mount.reclaim();
    }
}
