//! Directory streams: what `opendir` returns for a directory of ours.
//!
//! Streams live in one reserved range of addresses, so that two comparisons tell ours from the C
//! library's. A position is 0 at the start, 1 after `.`, 2 after `..`, and 2 plus the core's cookie
//! after any other entry. It stays valid while other names come and go.
//!
//! Invariant: a stream is used under its latch; a closed one is handed out again only after its bit
//! is cleared.

use crate::descriptors::description;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use cairn_core::InodeId;
use cairn_platform::{mlock_exempt, sys};

use crate::error::{Errno, PathResult, Result};
use crate::files::file;
use crate::files::place::Place;
use crate::kernel::latch::Latch;
use crate::mount::{self, Mount};
use crate::task::table;

/// Most streams that a process can have open at once.
const STREAMS_MAX: usize = 1024;
/// Size of the buffer for entries read ahead, in bytes.
const BUFFER_BYTES: usize = 8192;
/// Offset of `d_name` within `struct dirent64`.
const NAME_OFFSET: usize = 19;
/// Offsets of the other fields.
const OFF_OFFSET: usize = 8;
const LENGTH_OFFSET: usize = 16;
const KIND_OFFSET: usize = 18;
/// Position after `.` and `..`; the core's cookies are added to it.
const AFTER_DOTS: u64 = 2;

const _: () = assert!(NAME_OFFSET == core::mem::offset_of!(libc::dirent64, d_name));
const _: () = assert!(OFF_OFFSET == core::mem::offset_of!(libc::dirent64, d_off));
const _: () = assert!(LENGTH_OFFSET == core::mem::offset_of!(libc::dirent64, d_reclen));
const _: () = assert!(KIND_OFFSET == core::mem::offset_of!(libc::dirent64, d_type));

/// An open directory stream.
#[repr(C, align(64))]
pub struct Stream {
    latch: Latch,
    state: UnsafeCell<State>,
}

struct State {
    descriptor: i32,
    directory: InodeId,
    /// Position of the entry to be returned next.
    position: u64,
    /// Start and end of the part of `entries` not returned yet.
    start: usize,
    end: usize,
    /// Position after the last entry in `entries`.
    ahead: u64,
    entries: [u64; BUFFER_BYTES / 8],
}

// SAFETY: the state is reached only through `with`, which holds the latch.
unsafe impl Sync for Stream {}

/// Start of the reserved range; null until the first stream is opened.
static STREAMS: AtomicPtr<Stream> = AtomicPtr::new(core::ptr::null_mut());
/// One bit per stream in use.
static USED: [AtomicU64; STREAMS_MAX / 64] = [const { AtomicU64::new(0) }; STREAMS_MAX / 64];

/// Returns the stream at `address`, if it is one of ours.
#[inline]
pub fn stream<'a>(address: *const core::ffi::c_void) -> Option<&'a Stream> {
    let start = STREAMS.load(Ordering::Acquire);
    let distance = (address as usize).wrapping_sub(start as usize);
    if start.is_null() || distance >= STREAMS_MAX * size_of::<Stream>() {
        return None;
    }
    let index = distance / size_of::<Stream>();
    let used = USED[index / 64].load(Ordering::Relaxed) & 1 << (index % 64) != 0;
    // SAFETY: the range holds STREAMS_MAX streams and is never unmapped. The kernel zeroed it,
    // which is a valid state.
    used.then(|| unsafe { &*start.add(index) })
}

fn reserve() -> Result<*mut Stream> {
    let known = STREAMS.load(Ordering::Acquire);
    if !known.is_null() {
        return Ok(known);
    }
    let bytes = STREAMS_MAX * size_of::<Stream>();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let new = mlock_exempt::map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    let null = core::ptr::null_mut();
    match STREAMS.compare_exchange(null, new.cast(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(new.cast()),
        Err(winner) => {
            // SAFETY: another thread was first; this mapping was never published.
            unsafe { sys::munmap(new, bytes)? };
            Ok(winner)
        }
    }
}

fn take_place() -> Option<usize> {
    for (word, used) in USED.iter().enumerate() {
        let mut seen = used.load(Ordering::Relaxed);
        while seen != u64::MAX {
            let bit = seen.trailing_ones() as usize;
            match used.compare_exchange(seen, seen | 1 << bit, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some(word * 64 + bit),
                Err(now) => seen = now,
            }
        }
    }
    None
}

/// As `opendir(3)`.
pub fn open(place: &Place) -> PathResult<&'static Stream> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let descriptor = file::open(place, flags, 0)?;
    from_descriptor(descriptor)
        .inspect_err(|_| {
            let _ = description::close(descriptor);
        })
        .map_err(Into::into)
}

/// As `fdopendir(3)`: the stream takes ownership of the descriptor. Errors: `ENOTDIR`, `EBADF`,
/// `EMFILE`.
pub fn from_descriptor(descriptor: i32) -> Result<&'static Stream> {
    let directory = mount::current()?.directory_of(descriptor)?;
    let streams = reserve()?;
    let index = take_place().ok_or(Errno(libc::EMFILE))?;
    // SAFETY: `index` is below STREAMS_MAX, and the bit just taken makes this thread the only user.
    let stream = unsafe { &*streams.add(index) };
    stream.with(|state| {
        state.descriptor = descriptor;
        state.directory = directory;
        state.go_to(0);
    })?;
    Ok(stream)
}

impl Stream {
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> Result<R> {
        let _held = self.latch.hold()?;
        // SAFETY: the latch is held, and the reference does not leave this function.
        Ok(act(unsafe { &mut *self.state.get() }))
    }

    /// As `readdir(3)`: returns the next entry, null at the end. The entry stays valid until the
    /// next call on this stream.
    pub fn next(&self) -> Result<*mut libc::dirent64> {
        self.with(|state| {
            if state.start == state.end {
                state.read_ahead(mount::current()?)?;
            }
            Ok(state.take())
        })?
    }

    /// As `telldir(3)`.
    pub fn position(&self) -> Result<u64> {
        self.with(|state| state.position)
    }

    /// As `seekdir(3)`; 0 rewinds.
    pub fn set_position(&self, position: u64) -> Result<()> {
        self.with(|state| state.go_to(position))
    }

    /// As `dirfd(3)`.
    pub fn descriptor(&self) -> Result<i32> {
        self.with(|state| state.descriptor)
    }

    /// As `closedir(3)`.
    pub fn close(&self) -> Result<()> {
        let descriptor = self.descriptor()?;
        let start = STREAMS.load(Ordering::Acquire);
        let index = (core::ptr::from_ref(self) as usize - start as usize) / size_of::<Stream>();
        USED[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
        match table::is_ours(descriptor) {
            true => description::close(descriptor),
            // The application closed the descriptor without the stream.
            false => Err(Errno(libc::EBADF)),
        }
    }
}

impl State {
    fn go_to(&mut self, position: u64) {
        self.position = position;
        self.ahead = position;
        (self.start, self.end) = (0, 0);
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: u64 has no padding and every byte pattern is valid; the length is that of the
        // array.
        unsafe { core::slice::from_raw_parts_mut(self.entries.as_mut_ptr().cast(), BUFFER_BYTES) }
    }

    fn read_ahead(&mut self, mount: &Mount) -> Result<()> {
        let (directory, mut ahead) = (self.directory, self.ahead);
        let filled = match fill(mount, directory, &mut ahead, self.bytes()) {
            Err(Errno(libc::ENOENT)) => 0,
            filled => filled?,
        };
        self.ahead = ahead;
        (self.start, self.end) = (0, filled);
        Ok(())
    }

    fn take(&mut self) -> *mut libc::dirent64 {
        if self.start == self.end {
            return core::ptr::null_mut();
        }
        let start = self.start;
        let record = &mut self.bytes()[start..];
        let length =
            usize::from(u16::from_ne_bytes([record[LENGTH_OFFSET], record[LENGTH_OFFSET + 1]]));
        let mut position = [0; 8];
        position.copy_from_slice(&record[OFF_OFFSET..OFF_OFFSET + 8]);
        let entry = record.as_mut_ptr().cast();
        self.position = u64::from_ne_bytes(position);
        self.start += length;
        entry
    }
}

/// Fills `target` with `struct dirent64` records from `position` on and advances `position`.
/// Returns the number of bytes, 0 at the end. Errors: `EINVAL` if the next record does not fit;
/// `ENOENT` if the directory was removed.
pub fn fill(
    mount: &Mount,
    directory: InodeId,
    position: &mut u64,
    target: &mut [u8],
) -> Result<usize> {
    if mount.fs().attributes(directory)?.links == 0 {
        // The directory was removed: not even the dots are left.
        return Err(Errno(libc::ENOENT));
    }
    let mut records = Records { target, filled: 0 };
    let mut full = false;
    for (index, name) in [&b"."[..], b".."].into_iter().enumerate() {
        if *position == index as u64 {
            let inode = if index == 0 { directory } else { mount.fs().parent(directory)? };
            match records.push(name, inode, libc::DT_DIR, *position + 1) {
                true => *position += 1,
                false => full = true,
            }
        }
    }
    if !full {
        let after = *position - AFTER_DOTS;
        // Opening the directory was permitted; its mode may have changed since.
        mount.fs().list(&description::unrestricted(mount), directory, after, &mut |entry| {
            let next = entry.cookie + AFTER_DOTS;
            full = !records.push(entry.name, entry.inode, entry.kind, next);
            if !full {
                *position = next;
            }
            !full
        })?;
    }
    match records.filled {
        0 if full => Err(Errno(libc::EINVAL)),
        filled => Ok(filled),
    }
}

struct Records<'a> {
    target: &'a mut [u8],
    filled: usize,
}

impl Records<'_> {
    /// Appends a record; false if it does not fit.
    fn push(&mut self, name: &[u8], inode: InodeId, kind: u8, next: u64) -> bool {
        let length = (NAME_OFFSET + name.len() + 1).next_multiple_of(8);
        let Some(record) = self.target.get_mut(self.filled..self.filled + length) else {
            return false;
        };
        record[..OFF_OFFSET].copy_from_slice(&u64::from(inode.0).to_ne_bytes());
        record[OFF_OFFSET..LENGTH_OFFSET].copy_from_slice(&next.to_ne_bytes());
        record[LENGTH_OFFSET..KIND_OFFSET].copy_from_slice(&(length as u16).to_ne_bytes());
        record[KIND_OFFSET] = kind;
        record[NAME_OFFSET..NAME_OFFSET + name.len()].copy_from_slice(name);
        record[NAME_OFFSET + name.len()..].fill(0);
        self.filled += length;
        true
    }
}

/// As `getdents64(2)`: the position is the descriptor's shared cursor.
pub fn read_entries(descriptor: i32, target: &mut [u8]) -> Result<usize> {
    let mount = mount::current()?;
    let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
    description::opened(handle)?;
    let directory = mount.directory_of(descriptor)?;
    let mut position = mount.fs().seek(handle, 0, libc::SEEK_CUR)?;
    let filled = fill(mount, directory, &mut position, target)?;
    let position = i64::try_from(position).map_err(|_| Errno(libc::EOVERFLOW))?;
    mount.fs().seek(handle, position, libc::SEEK_SET)?;
    Ok(filled)
}
