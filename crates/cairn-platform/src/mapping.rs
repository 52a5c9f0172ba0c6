//! Shared mapping of a segment's file. Makes pages present before they are touched.
//!
//! Must stay true: past the limit of a tmpfs, touching a new page kills the process (SIGBUS). So
//! pages are made present only through `populate`, which reports `NoSpace` instead. Mappings are
//! left out of core dumps.
//!
//! Does not know what the bytes mean.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use cairn_core::{Error, Result};

use crate::descriptor::Descriptor;
use crate::mlock_exempt;
use crate::sys::{self, Errno, SysResult};

/// Unit of mapping on every machine that we support at run time.
pub const PAGE_BYTES: usize = 4096;

/// Not in the headers of every libc; the values are the kernel's.
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;

/// Purpose for which pages are made present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Populate {
    /// Allocated pages become readable and writable here; holes become readable zeros.
    Read,
    /// Pages are allocated, too.
    Write,
}

/// A file that is mapped as a whole, readable and writable, and shared with other processes.
#[derive(Debug)]
pub struct Mapping {
    file: Descriptor,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that is shared even with other processes. `Mapping` itself
// only hands out its address; its own accesses are atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `file`, whose size is at least that.
    pub fn new(file: Descriptor, bytes: usize) -> SysResult<Mapping> {
        let start = map(&file, bytes, libc::MAP_SHARED)?;
        Mapping::over(file, bytes, start)
    }

    /// As `new`, but nobody else sees what is stored here. A page to which nothing was stored shows
    /// the content of the file.
    pub fn private(file: Descriptor, bytes: usize) -> SysResult<Mapping> {
        let start = map(&file, bytes, libc::MAP_PRIVATE)?;
        Mapping::over(file, bytes, start)
    }

    /// As `new`, with `MAP_SYNC` if the file system grants it. Returns whether it does.
    pub fn synchronous(file: Descriptor, bytes: usize) -> SysResult<(Mapping, bool)> {
        match map(&file, bytes, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) {
            Ok(start) => Ok((Mapping::over(file, bytes, start)?, true)),
            // This file system or kernel does not have it. Any other error comes again.
            Err(_) => Ok((Mapping::new(file, bytes)?, false)),
        }
    }

    fn over(file: Descriptor, bytes: usize, start: *mut u8) -> SysResult<Mapping> {
        let address = NonNull::new(start).ok_or(Errno(libc::ENOMEM))?;
        // SAFETY: our fresh mapping; the advice concerns core dumps only. Best effort.
        let _ = unsafe { sys::madvise(start, bytes, libc::MADV_DONTDUMP) };
        Ok(Mapping { file, address, bytes })
    }

    /// Returns the address of the file's first byte.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the length of the mapping in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the mapped file.
    pub fn file(&self) -> &Descriptor {
        &self.file
    }

    /// Makes the pages of this range present, so that touching them does not fault. The range is
    /// widened to whole pages. Errors: `NoSpace`; `Corrupt` if it leaves the mapping.
    pub fn populate(&self, offset: usize, length: usize, purpose: Populate) -> Result<()> {
        let end = self.check(offset, length)?.next_multiple_of(PAGE_BYTES).min(self.bytes);
        let start = offset / PAGE_BYTES * PAGE_BYTES;
        let advice = match purpose {
            Populate::Read => MADV_POPULATE_READ,
            Populate::Write => MADV_POPULATE_WRITE,
        };
        loop {
            // SAFETY: `start..end` lies in this mapping; populating changes no byte.
            let address = unsafe { self.address.as_ptr().add(start) };
            // SAFETY: as above.
            match unsafe { sys::madvise(address, end - start, advice) } {
                Ok(()) => return Ok(()),
                Err(Errno(libc::EINTR | libc::EAGAIN)) => {}
                // Before Linux 5.14.
                Err(Errno(libc::EINVAL)) => return self.touch(start, end),
                // The file system has no page left. A touch would raise SIGBUS.
                Err(Errno(libc::EFAULT)) => return Err(Error::NoSpace),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Removes whole pages of this range from the page tables of this process. They keep their
    /// bytes and their memory, so touching them raises no signal.
    pub fn depopulate(&self, offset: usize, length: usize) -> Result<()> {
        let end = self.check(offset, length)? / PAGE_BYTES * PAGE_BYTES;
        let start = offset.next_multiple_of(PAGE_BYTES).min(end);
        // SAFETY: `start..end` lies in this mapping, which is shared: no byte is lost.
        let address = unsafe { self.address.as_ptr().add(start) };
        // SAFETY: as above.
        Ok(unsafe { sys::madvise(address, end - start, libc::MADV_DONTNEED) }?)
    }

    /// Frees the memory of the file from `start` on, which reads as zeros from then on.
    pub fn punch_from(&self, start: usize) -> SysResult<()> {
        self.punch(start, self.bytes.saturating_sub(start))
    }

    /// Frees the memory of a range of the file, which reads as zeros from then on.
    pub fn punch(&self, start: usize, length: usize) -> SysResult<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match length {
            0 => Ok(()),
            _ => sys::fallocate(self.file.raw(), mode, start as u64, length as u64),
        }
    }

    /// Returns the end of a range if it lies in the mapping. Errors: `Corrupt`.
    pub fn check(&self, offset: usize, length: usize) -> Result<usize> {
        match offset.checked_add(length) {
            Some(end) if end <= self.bytes => Ok(end),
            _ => Err(Error::Corrupt { what: "range outside its segment" }),
        }
    }

    /// `populate` for kernels that lack it: allocates, then faults each page in.
    fn touch(&self, start: usize, end: usize) -> Result<()> {
        allocate(&self.file, start as u64, (end - start) as u64)?;
        for page in (start..end).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping; the page is allocated, and adding 0 atomically neither
            // loses nor tears what another process writes there.
            let byte = unsafe { AtomicU8::from_ptr(self.address.as_ptr().add(page)) };
            byte.fetch_add(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the owner of the mapping goes away; borrows of it cannot outlive it.
        let _ = unsafe { mlock_exempt::unmap(self.address.as_ptr(), self.bytes) };
    }
}

fn map(file: &Descriptor, bytes: usize, flags: i32) -> SysResult<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    mlock_exempt::map(bytes, protection, flags | libc::MAP_NORESERVE, file.raw(), 0)
}

/// Allocates a range of `file` without mapping it. Errors: `NoSpace`.
fn allocate(file: &Descriptor, offset: u64, length: u64) -> Result<()> {
    loop {
        match sys::fallocate(file.raw(), 0, offset, length) {
            Err(Errno(libc::EINTR)) => {}
            result => return Ok(result?),
        }
    }
}

/// A table of bytes that begin as zeros. It is private to this process and zero again in a forked
/// child. Its memory is allocated as it is touched.
#[derive(Debug)]
pub struct LocalTable {
    address: NonNull<AtomicU8>,
    entries: usize,
}

// SAFETY: the table is reached only as a slice of atomics.
unsafe impl Send for LocalTable {}
// SAFETY: as above.
unsafe impl Sync for LocalTable {}

impl LocalTable {
    /// Returns a table of `entries` zeros.
    pub fn new(entries: usize) -> SysResult<LocalTable> {
        let bytes = Self::bytes(entries);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = mlock_exempt::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
        // SAFETY: advice on a fresh mapping of ours. A forked child finds it zeroed, because it
        // does not inherit the page tables of shared mappings. If the kernel cannot wipe the table,
        // the child wrongly takes pages to be present; each costs it a minor fault.
        let _ = unsafe { sys::madvise(start, bytes, libc::MADV_WIPEONFORK) };
        let address = NonNull::new(start.cast::<AtomicU8>()).ok_or(Errno(libc::ENOMEM))?;
        Ok(LocalTable { address, entries })
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[AtomicU8] {
        // SAFETY: `entries` bytes were mapped zeroed, and are unmapped only on drop.
        unsafe { core::slice::from_raw_parts(self.address.as_ptr(), self.entries) }
    }

    fn bytes(entries: usize) -> usize {
        entries.max(1).next_multiple_of(PAGE_BYTES)
    }
}

impl Drop for LocalTable {
    fn drop(&mut self) {
        // SAFETY: the owner goes away; `entries` borrows from it.
        let _ =
            unsafe { mlock_exempt::unmap(self.address.as_ptr().cast(), Self::bytes(self.entries)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(bytes: u64) -> Descriptor {
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        let file = Descriptor::open(libc::AT_FDCWD, c"/dev/shm", flags, 0o600).unwrap();
        sys::ftruncate(file.raw(), bytes).unwrap();
        file
    }

    fn allocated_bytes(file: &Descriptor) -> i64 {
        sys::fstat(file.raw()).unwrap().st_blocks * 512
    }

    #[test]
    fn populate_for_writing_allocates_exactly_the_pages_of_the_range() {
        let mapping = Mapping::new(temporary(1 << 20), 1 << 20).unwrap();
        mapping.populate(5000, 4000, Populate::Write).unwrap();
        assert_eq!(allocated_bytes(mapping.file()), 2 * PAGE_BYTES as i64);
    }

    #[test]
    fn depopulated_pages_keep_their_bytes_and_their_memory() {
        let mapping = Mapping::new(temporary(1 << 20), 1 << 20).unwrap();
        mapping.populate(0, 4 * PAGE_BYTES, Populate::Write).unwrap();
        // SAFETY: the pages are present and nobody else uses them.
        unsafe { mapping.address().as_ptr().write_bytes(7, 4 * PAGE_BYTES) };
        mapping.depopulate(0, 4 * PAGE_BYTES).unwrap();
        assert_eq!(allocated_bytes(mapping.file()), 4 * PAGE_BYTES as i64);
        // SAFETY: the pages are allocated.
        assert_eq!(unsafe { mapping.address().as_ptr().add(PAGE_BYTES).read() }, 7);
    }

    #[test]
    fn touching_instead_of_populating_allocates_the_same_and_keeps_the_bytes() {
        let mapping = Mapping::new(temporary(1 << 20), 1 << 20).unwrap();
        sys::write(mapping.file().raw(), b"kept").unwrap();
        mapping.touch(0, 3 * PAGE_BYTES).unwrap();
        assert_eq!(allocated_bytes(mapping.file()), 3 * PAGE_BYTES as i64);
        // SAFETY: the first page is present and nobody writes it.
        assert_eq!(unsafe { mapping.address().cast::<[u8; 4]>().read() }, *b"kept");
    }

    #[test]
    fn range_outside_the_mapping_is_refused() {
        let mapping = Mapping::new(temporary(8192), 8192).unwrap();
        let outside = Err(Error::Corrupt { what: "range outside its segment" });
        assert_eq!(mapping.populate(4096, 4097, Populate::Write), outside);
        assert_eq!(mapping.populate(usize::MAX, 2, Populate::Read), outside);
    }

    #[test]
    fn page_past_the_files_end_is_no_space_and_not_a_signal() {
        let mapping = Mapping::new(temporary(8192), 16_384).unwrap();
        assert_eq!(mapping.populate(8192, 8192, Populate::Write), Err(Error::NoSpace));
    }

    #[test]
    fn local_table_is_zero_again_in_a_forked_child() {
        let table = LocalTable::new(10_000).unwrap();
        table.entries()[9_999].store(7, Ordering::Relaxed);
        // SAFETY: the child reads one byte and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let inherited = table.entries()[9_999].load(Ordering::Relaxed);
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(inherited)) };
        }
        let mut status = 0;
        // SAFETY: `status` receives one int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
