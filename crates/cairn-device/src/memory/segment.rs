//! Segment files. They are made as a whole or not at all, and opened only if they are valid.
//!
//! `MetaSegment` holds the metadata of a namespace; data segments share the functions.
//!
//! Must stay true: a segment has its final size before it has its final name, and it never shrinks.
//! So the file backs every mapping of it.
//!
//! Does not interpret the words; the core does.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::ffi::CString;

use cairn_core::{Acquired, Error, Memory, PrivateWords, Result};
use cairn_platform::copy::prefetch;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::mapping::{LocalTable, Mapping, PAGE_BYTES, Populate};
use cairn_platform::sys::{self, Errno};

use crate::directory::{Directory, StoreResult};
use crate::memory::lock::{Holder, LockStatistics, RobustLock};

/// Creates a sparse file of exactly `bytes`, with mode 0600. It must not exist yet.
pub fn create_file(directory: &Directory, name: &CStr, bytes: u64) -> StoreResult<Descriptor> {
    let failed = |errno| directory.error("create segment", name, errno);
    // Past this limit the kernel also sends SIGXFSZ.
    if bytes > sys::soft_limit(libc::RLIMIT_FSIZE).map_err(failed)? {
        return Err(failed(Errno(libc::EFBIG))
            .advise("the limit on file sizes is too small; raise it with ulimit -f unlimited"));
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let file = Descriptor::open(directory.raw(), name, flags, 0o600).map_err(failed)?;
    let sized = sys::fchmod(file.raw(), 0o600).and_then(|()| sys::ftruncate(file.raw(), bytes));
    if let Err(errno) = sized {
        let _ = directory.remove_file(name);
        return Err(failed(errno));
    }
    Ok(file.raise())
}

/// Opens a segment and returns its size. Errors: it is not a regular file, not ours, open to
/// others, or not a positive number of pages.
pub fn open_file(directory: &Directory, name: &CStr) -> StoreResult<(Descriptor, u64)> {
    let failed = |errno| directory.error("open segment", name, errno);
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = Descriptor::open(directory.raw(), name, flags, 0).map_err(failed)?;
    let stat = sys::fstat(file.raw()).map_err(failed)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(failed(Errno(libc::EINVAL)).advise("it is not a regular file"));
    }
    if stat.st_uid != sys::geteuid() || stat.st_mode & 0o077 != 0 {
        return Err(failed(Errno(libc::EPERM)).advise("others could have written it"));
    }
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if bytes == 0 || bytes % PAGE_BYTES as u64 != 0 {
        return Err(failed(Errno(libc::EINVAL)).advise("its size is not a number of pages"));
    }
    Ok((file.raise(), bytes))
}

/// The words of a namespace in shared memory, with their lock.
#[derive(Debug)]
pub struct MetaSegment {
    mapping: Mapping,
    /// Segment in which pages are saved while an image is held.
    shadow: Option<Mapping>,
    /// Nonzero for each page that is present in this process.
    present: LocalTable,
}

impl MetaSegment {
    /// Makes the segment `name` of `bytes` (rounded up to pages), with what `format` writes into
    /// it. It gets its name only when `format` has succeeded. The caller holds
    /// `directory.exclusive()`. Errors: a segment of that name exists (`EEXIST`), no space, an
    /// error of `format`.
    pub fn create(
        directory: &Directory,
        name: &CStr,
        bytes: u64,
        format: impl FnOnce(&MetaSegment) -> Result<()>,
    ) -> StoreResult<MetaSegment> {
        let temporary = [name.to_bytes(), b".new"].concat();
        let temporary = CString::new(temporary).expect("the parts contain no NUL");
        // Left by a dead creator: the caller's exclusive right keeps others from creating.
        directory.remove_file(&temporary)?;
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
        let file = create_file(directory, &temporary, bytes)?;
        let made = MetaSegment::map(directory, name, file, bytes).and_then(|segment| {
            format(&segment).map_err(|error| directory.error("format", name, error))?;
            publish(directory, &temporary, name)?;
            Ok(segment)
        });
        if made.is_err() {
            let _ = directory.remove_file(&temporary);
        }
        made
    }

    /// Maps the existing segment `name`.
    pub fn open(directory: &Directory, name: &CStr) -> StoreResult<MetaSegment> {
        let (file, bytes) = open_file(directory, name)?;
        MetaSegment::map(directory, name, file, bytes)
    }

    /// Adds the segment `name` as its shadow.
    pub fn with_shadow(mut self, directory: &Directory, name: &CStr) -> StoreResult<MetaSegment> {
        let (file, bytes) = open_file(directory, name)?;
        let failed = |errno| directory.error("map segment", name, errno);
        let length = usize::try_from(bytes).map_err(|_| failed(Errno(libc::EFBIG)))?;
        self.shadow = Some(Mapping::new(file, length).map_err(failed)?);
        Ok(self)
    }

    /// Returns the owner of the lock.
    pub fn lock_holder(&self) -> Option<Holder> {
        self.robust_lock().holder()
    }

    /// Returns the counters of the lock.
    pub fn lock_statistics(&self) -> LockStatistics {
        self.robust_lock().statistics()
    }

    /// Returns the descriptor that this object keeps open.
    pub fn descriptor(&self) -> i32 {
        self.mapping.file().raw()
    }

    /// Returns the descriptor of its shadow.
    pub fn shadow_descriptor(&self) -> Option<i32> {
        self.shadow.as_ref().map(|shadow| shadow.file().raw())
    }

    fn map(
        directory: &Directory,
        name: &CStr,
        file: Descriptor,
        bytes: u64,
    ) -> StoreResult<MetaSegment> {
        let failed = |errno| directory.error("map segment", name, errno);
        let length = usize::try_from(bytes).map_err(|_| failed(Errno(libc::EFBIG)))?;
        let mapping = Mapping::new(file, length).map_err(failed)?;
        let present = LocalTable::new(length / PAGE_BYTES).map_err(failed)?;
        let segment = MetaSegment { mapping, shadow: None, present };
        // The lock's words are touched before any other word is backed.
        segment.back(0, 1).map_err(|error| directory.error("back segment", name, error))?;
        Ok(segment)
    }

    fn robust_lock(&self) -> RobustLock<'_> {
        RobustLock::new(self.words())
    }
}

impl Memory for MetaSegment {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: segments never shrink, so the file backs the mapping as long as the mapping
        // exists.
        unsafe { atomics(&self.mapping) }
    }

    fn shadow(&self) -> &[AtomicU64] {
        match &self.shadow {
            // SAFETY: as for `words`.
            Some(shadow) => unsafe { atomics(shadow) },
            None => &[],
        }
    }

    fn back_shadow(&self, first_word: usize, word_count: usize) -> Result<()> {
        const WORD: usize = size_of::<AtomicU64>();
        let (start, bytes) = (first_word.saturating_mul(WORD), word_count.saturating_mul(WORD));
        match &self.shadow {
            Some(shadow) => shadow.populate(start, bytes, Populate::Write),
            None => Err(Error::NoSpace),
        }
    }

    fn clear_shadow(&self, first_word: usize) {
        let start = first_word.saturating_mul(size_of::<AtomicU64>());
        // If the memory is not freed, the next image uses it.
        let _ = self.shadow.as_ref().map(|shadow| shadow.punch_from(start));
    }

    fn lock(&self) -> Result<Acquired> {
        self.robust_lock().lock()
    }

    fn unlock(&self) {
        self.robust_lock().unlock();
    }

    fn back(&self, first_word: usize, word_count: usize) -> Result<()> {
        const WORD: usize = size_of::<AtomicU64>();
        let start = first_word.saturating_mul(WORD);
        let end = self.mapping.check(start, word_count.saturating_mul(WORD))?;
        let first_page = start / PAGE_BYTES;
        let pages = &self.present.entries()[first_page..end.div_ceil(PAGE_BYTES)];
        let absent = |page: &core::sync::atomic::AtomicU8| page.load(Ordering::Relaxed) == 0;
        let Some(first) = pages.iter().position(absent) else {
            return Ok(());
        };
        let last = pages.iter().rposition(absent).unwrap_or(first);
        let missing = &pages[first..=last];
        let offset = (first_page + first) * PAGE_BYTES;
        self.mapping.populate(offset, missing.len() * PAGE_BYTES, Populate::Write)?;
        missing.iter().for_each(|page| page.store(1, Ordering::Relaxed));
        Ok(())
    }

    #[inline]
    fn prefetch(&self, first_word: usize, word_count: usize) {
        const WORD: usize = size_of::<AtomicU64>();
        let start = self.mapping.address().as_ptr().wrapping_add(first_word.wrapping_mul(WORD));
        prefetch(start, word_count.saturating_mul(WORD));
    }
}

/// A private mapping of a meta segment: nobody else sees what is stored to it.
#[derive(Debug)]
pub struct PrivateSegment(Mapping);

impl PrivateSegment {
    /// Maps the existing segment `name`.
    pub fn open(directory: &Directory, name: &CStr) -> StoreResult<PrivateSegment> {
        let (file, bytes) = open_file(directory, name)?;
        let failed = |errno| directory.error("map segment", name, errno);
        let length = usize::try_from(bytes).map_err(|_| failed(Errno(libc::EFBIG)))?;
        Mapping::private(file, length).map(PrivateSegment).map_err(failed)
    }
}

impl PrivateWords for PrivateSegment {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: segments never shrink, so the file backs the mapping as long as the mapping
        // exists.
        unsafe { atomics(&self.0) }
    }

    fn shows_segment(&self) -> bool {
        true
    }
}

/// Returns the words of a mapping.
///
/// # Safety
/// The file stays at least as long as the mapping for as long as the mapping exists.
unsafe fn atomics(mapping: &Mapping) -> &[AtomicU64] {
    let words = mapping.bytes() / size_of::<AtomicU64>();
    // SAFETY: the mapping is page-aligned and lives as long as it is borrowed; the caller vouches
    // for the file. All access is atomic.
    unsafe { core::slice::from_raw_parts(mapping.address().cast().as_ptr(), words) }
}

/// Gives the finished file its name, unless that name is taken.
fn publish(directory: &Directory, temporary: &CStr, name: &CStr) -> StoreResult<()> {
    let (from, to) = ((directory.raw(), temporary), (directory.raw(), name));
    let renamed = match sys::renameat2(from, to, libc::RENAME_NOREPLACE) {
        // A file system without this flag. A link does not replace anything either.
        Err(Errno(libc::EINVAL | libc::ENOSYS)) => {
            sys::linkat(from, to, 0).and_then(|()| sys::unlinkat(from.0, from.1, 0))
        }
        result => result,
    };
    renamed.map_err(|errno| directory.error("create", name, errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;

    const BYTES: u64 = 1 << 30;

    #[test]
    fn formatted_segment_is_seen_by_a_second_mapping() {
        let scratch = Scratch::new();
        let first = MetaSegment::create(&scratch.0, c"node.meta", BYTES, |segment| {
            segment.back(8, 1)?;
            segment.words()[8].store(42, Ordering::Relaxed);
            Ok(())
        });
        let first = first.unwrap();
        let second = MetaSegment::open(&scratch.0, c"node.meta").unwrap();
        assert_eq!(second.words().len() as u64, BYTES / 8);
        assert_eq!(second.words()[8].load(Ordering::Relaxed), 42);
        assert_eq!(first.lock(), Ok(Acquired::Clean));
        assert_eq!(second.lock_holder().unwrap().tid, sys::gettid());
        first.unlock();
    }

    #[test]
    fn failed_format_leaves_nothing_behind() {
        let scratch = Scratch::new();
        let error = MetaSegment::create(&scratch.0, c"node.meta", BYTES, |_| Err(Error::Invalid));
        assert_eq!(error.unwrap_err().errno, libc::EINVAL);
        assert!(std::fs::read_dir(scratch.0.path()).unwrap().next().is_none());
    }

    #[test]
    fn second_creation_is_refused_and_keeps_the_first() {
        let scratch = Scratch::new();
        let create = || MetaSegment::create(&scratch.0, c"node.meta", 4096, |_| Ok(()));
        create().unwrap().words()[9].store(7, Ordering::Relaxed);
        assert_eq!(create().unwrap_err().errno, libc::EEXIST);
        let segment = MetaSegment::open(&scratch.0, c"node.meta").unwrap();
        assert_eq!(segment.words()[9].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn backing_allocates_only_what_is_asked_and_checks_the_range() {
        let scratch = Scratch::new();
        let segment = MetaSegment::create(&scratch.0, c"node.meta", BYTES, |_| Ok(())).unwrap();
        segment.back(100_000, 600).unwrap();
        segment.back(100_000, 600).unwrap();
        let stat = sys::fstat(segment.descriptor()).unwrap();
        assert!(stat.st_blocks * 512 <= 4 * PAGE_BYTES as i64, "{}", stat.st_blocks);
        assert!(segment.back(segment.words().len(), 1).is_err());
        assert!(segment.back(usize::MAX, usize::MAX).is_err());
    }

    #[test]
    fn memory_of_the_shadow_is_given_back_from_a_word_on() {
        let scratch = Scratch::new();
        let segment = MetaSegment::create(&scratch.0, c"node.meta", BYTES, |_| Ok(())).unwrap();
        create_file(&scratch.0, c"node.image", BYTES).unwrap();
        let segment = segment.with_shadow(&scratch.0, c"node.image").unwrap();
        let words = segment.shadow();
        segment.back_shadow(0, 2048).unwrap();
        words[0].store(1, Ordering::Relaxed);
        words[2047].store(2, Ordering::Relaxed);
        segment.clear_shadow(512);
        let stat = sys::fstat(segment.shadow_descriptor().unwrap()).unwrap();
        assert_eq!(stat.st_blocks * 512, PAGE_BYTES as i64);
        assert_eq!([0, 2047].map(|at| words[at].load(Ordering::Relaxed)), [1, 0]);
        segment.clear_shadow(words.len());
    }

    #[test]
    fn file_that_is_no_segment_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new();
        let path = scratch.0.path().join("odd.meta");
        std::fs::write(&path, b"short").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = MetaSegment::open(&scratch.0, c"odd.meta").unwrap_err();
        assert_eq!((error.errno, error.path), (libc::EINVAL, path.clone()));
        std::fs::write(&path, [0; 4096]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(MetaSegment::open(&scratch.0, c"odd.meta").unwrap_err().errno, libc::EPERM);
        std::os::unix::fs::symlink("odd.meta", scratch.0.path().join("link.meta")).unwrap();
        assert_eq!(MetaSegment::open(&scratch.0, c"link.meta").unwrap_err().errno, libc::ELOOP);
    }
}
