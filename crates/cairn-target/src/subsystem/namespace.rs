//! Storage of a namespace's blocks: a file or device, or memory behind a file descriptor.
//!
//! Invariant: ranges are checked against the size before anything is accessed. The size changes
//! only on request.

use cairn_nvme::wire::command::Blocks;
use cairn_nvme::wire::{Status, identify};
use cairn_platform::direct;
use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Error, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::subsystem::flushes::Flushes;
use crate::subsystem::identity;
use crate::subsystem::reservation::Reservations;

/// Most bytes zeroed or deallocated at a time. It bounds the wait for a command that is not wanted
/// any more.
const PIECE_BYTES: u64 = 64 << 20;

/// A namespace.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    /// The same device, opened past the page cache. The page cache would hold all data twice on
    /// their way, and would write nothing to the device before a flush.
    direct: Option<File>,
    /// Shape when the namespace was opened.
    shape: identify::Namespace,
    blocks: AtomicU64,
    is_memory: bool,
    /// Whether the space was promised, and stays allocated whatever hosts do.
    keeps_room: bool,
    reservations: Reservations,
    flushes: Flushes,
    /// Start that hosts are told once bytes were lost, and whether the connected hosts still have
    /// to be told.
    loss: OnceLock<[u8; 16]>,
    is_news: AtomicBool,
}

impl Namespace {
    /// Namespace in memory of this process, zeroed. `bytes` is a positive number of blocks of 512
    /// to 65536 bytes.
    pub fn in_memory(bytes: u64, block_bytes: u64) -> io::Result<Namespace> {
        let file = File::from(rustix::fs::memfd_create("cairn-namespace", MemfdFlags::CLOEXEC)?);
        file.set_len(bytes)?;
        let namespace = Namespace::new(file, bytes, block_bytes, identity::new()?)?;
        Ok(Namespace { is_memory: true, ..namespace })
    }

    /// Namespace in an unnamed file in that directory, fully allocated and zeroed. The file is gone
    /// with the namespace.
    pub fn in_unnamed_file(
        directory: &Path,
        bytes: u64,
        block_bytes: u64,
    ) -> io::Result<Namespace> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = File::from(rustix::fs::open(directory, flags, mode)?);
        Namespace::allocated(file, bytes, block_bytes)
    }

    /// Namespace in an empty file, which is fully allocated.
    pub(crate) fn allocated(file: File, bytes: u64, block_bytes: u64) -> io::Result<Namespace> {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP) => file.set_len(bytes)?,
            allocated => allocated?,
        }
        let namespace = Namespace::new(file, bytes, block_bytes, identity::new()?)?;
        Ok(Namespace { keeps_room: true, ..namespace })
    }

    /// Namespace in a file that `allocated` has filled before, with its former `guid`.
    pub(crate) fn of(mut file: File, block_bytes: u64, guid: [u8; 16]) -> io::Result<Namespace> {
        let bytes = file.seek(SeekFrom::End(0))?;
        let namespace = Namespace::new(file, bytes, block_bytes, guid)?;
        Ok(Namespace { keeps_room: true, ..namespace })
    }

    /// Namespace in the existing file or block device at `path`. It ends with the last whole block.
    /// While it is exported, nobody else can export it or use it as a tier, nor mount a device.
    /// Errors: it is in use in one of these ways; the system's.
    pub fn in_file(path: &Path, block_bytes: u64) -> io::Result<Namespace> {
        let is_device = std::fs::metadata(path)?.file_type().is_block_device();
        let exclusive = if is_device { OFlags::EXCL.bits() as i32 } else { 0 };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).custom_flags(exclusive).open(path)?;
        if !is_device {
            claim(&file)?;
        }
        let guid = identity::of(&file.metadata()?);
        let bytes = file.seek(SeekFrom::End(0))?;
        let namespace = Namespace::new(file, bytes, block_bytes, guid)?;
        let goes_direct = is_device
            && block_bytes % u64::from(rustix::fs::ioctl_blksszget(&namespace.file)?) == 0;
        // The claim above also covers this descriptor.
        let direct = OFlags::DIRECT.bits() as i32;
        let mut options = OpenOptions::new();
        let open = || options.read(true).write(true).custom_flags(direct).open(path);
        Ok(Namespace { direct: goes_direct.then(open).transpose()?, ..namespace })
    }

    fn new(file: File, bytes: u64, block_bytes: u64, guid: [u8; 16]) -> io::Result<Namespace> {
        let block_shift = block_bytes.trailing_zeros() as u8;
        let blocks = bytes / block_bytes.max(1);
        let shape = identify::Namespace {
            blocks,
            block_shift,
            is_write_protected: false,
            guid,
            access_group: 0,
            start: identity::start(&guid)?,
        };
        let is_usable =
            block_bytes.is_power_of_two() && identify::Namespace::decode(&shape.encode()).is_some();
        match is_usable {
            true => {
                let (reservations, flushes) = (Reservations::default(), Flushes::default());
                let (direct, blocks) = (None, AtomicU64::new(blocks));
                let (is_memory, keeps_room) = (false, false);
                let (loss, is_news) = (OnceLock::new(), AtomicBool::new(false));
                Ok(Namespace {
                    file,
                    direct,
                    shape,
                    blocks,
                    is_memory,
                    keeps_room,
                    reservations,
                    flushes,
                    loss,
                    is_news,
                })
            }
            false => Err(Error::new(ErrorKind::InvalidInput, "it has no whole block of that size")),
        }
    }

    /// Sets the start of the machine that hosts are told.
    pub fn since(mut self, start: [u8; 16]) -> Namespace {
        self.shape.start = start;
        self
    }

    /// Shape that hosts are told.
    pub fn shape(&self) -> identify::Namespace {
        let blocks = self.blocks.load(Ordering::Relaxed);
        let start = self.loss.get().copied().unwrap_or(self.shape.start);
        identify::Namespace { blocks, start, ..self.shape }
    }

    /// Whether it has at least one block.
    pub(crate) fn is_there(&self) -> bool {
        self.shape().blocks > 0
    }

    /// Takes over the current size of its file or device. Returns whether it has changed.
    pub(crate) fn look_again(&self) -> bool {
        // If the size cannot be determined, it counts as 0.
        let bytes = (&self.file).seek(SeekFrom::End(0)).unwrap_or(0);
        let blocks = bytes >> self.shape.block_shift;
        self.blocks.swap(blocks, Ordering::Relaxed) != blocks
    }

    /// Registrations and reservation.
    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Whether it is in memory, so that no operation blocks.
    pub(crate) fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// File that holds its blocks in order.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reads the first bytes of a range.
    pub fn read(&self, blocks: Blocks, target: &mut [u8]) -> Result<(), Status> {
        let (offset, _) = self.range(blocks)?;
        self.way_of(target).read_exact_at(target, offset).map_err(status)
    }

    /// Writes the blocks of a range.
    pub fn write(&self, blocks: Blocks, source: &[u8], is_durable: bool) -> Result<(), Status> {
        let (offset, _) = self.range(blocks)?;
        let written = self.way_of(source).write_all_at(source, offset);
        written.map_err(|error| self.failed(error))?;
        if is_durable { self.flush() } else { Ok(()) }
    }

    /// Zeroes a range. Deallocates it if that is permitted. Ends early, with an error, once
    /// `is_over` says so.
    pub fn zero(
        &self,
        blocks: Blocks,
        may_deallocate: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Status> {
        let may_punch = self.is_memory || may_deallocate && !self.keeps_room;
        self.each_piece(blocks, is_over, |offset, bytes| {
            match self.clear(may_punch, offset, bytes) {
                Err(Errno::OPNOTSUPP) => self.write_zeros(offset, bytes),
                cleared => cleared.map_err(Error::from),
            }
            .map_err(|error| self.failed(error))
        })
    }

    /// Deallocates a range. It reads as zeros afterwards where that is cheap. Ends early, as `zero`
    /// does.
    pub fn deallocate(&self, blocks: Blocks, is_over: &dyn Fn() -> bool) -> Result<(), Status> {
        self.each_piece(blocks, is_over, |offset, bytes| {
            match self.clear(!self.keeps_room, offset, bytes) {
                Err(Errno::OPNOTSUPP) => Ok(()),
                cleared => cleared.map_err(|errno| status(errno.into())),
            }
        })
    }

    /// Calls `act` for each piece of a range.
    fn each_piece(
        &self,
        blocks: Blocks,
        is_over: &dyn Fn() -> bool,
        act: impl Fn(u64, u64) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let (offset, bytes) = self.range(blocks)?;
        for at in (0..bytes).step_by(PIECE_BYTES as usize) {
            if is_over() {
                return Err(Status::INTERNAL_ERROR);
            }
            let length = PIECE_BYTES.min(bytes - at);
            act(offset + at, length)?;
        }
        Ok(())
    }

    fn clear(&self, may_punch: bool, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let way = if may_punch { punch } else { FallocateFlags::ZERO_RANGE };
        rustix::fs::fallocate(&self.file, way, offset, bytes)
    }

    /// Descriptor for I/O with these bytes: the direct one if they are aligned for it.
    fn way_of(&self, bytes: &[u8]) -> &File {
        self.direct.as_ref().filter(|_| direct::is_aligned(bytes)).unwrap_or(&self.file)
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> io::Result<()> {
        const PIECE: u64 = 1 << 20;
        let zeros = vec![0; PIECE.min(bytes) as usize];
        (0..bytes).step_by(PIECE as usize).try_for_each(|at| {
            let length = PIECE.min(bytes - at) as usize;
            self.file.write_all_at(&zeros[..length], offset + at)
        })
    }

    /// Makes written bytes durable. Errors: some bytes were lost, in this flush or earlier.
    pub fn flush(&self) -> Result<(), Status> {
        self.end_flush(self.ask_flush())
    }

    /// Requests a flush of everything written so far. Returns its number for `end_flush`.
    pub(crate) fn ask_flush(&self) -> u64 {
        self.flushes.ask()
    }

    /// Waits until that flush is complete. Errors: as `flush`.
    pub(crate) fn end_flush(&self, number: u64) -> Result<(), Status> {
        let ended = self.flushes.end(number, || self.file.sync_data());
        ended.inspect_err(|_| self.lose())
    }

    /// Status for bytes that could not be stored. Also makes all flushes fail: other hosts would
    /// not learn of the loss otherwise.
    fn failed(&self, error: Error) -> Status {
        let status = status(error);
        if status == Status::INTERNAL_ERROR {
            self.flushes.fail();
            self.lose();
        }
        status
    }

    /// Records that bytes are lost. This target and the next one then report another start than the
    /// one known to hosts that may have written those bytes.
    fn lose(&self) {
        self.loss.get_or_init(|| {
            self.is_news.store(true, Ordering::SeqCst);
            match self.is_memory {
                // No other target ever has it.
                true => identity::new().unwrap_or([1; 16]),
                false => identity::lose(&self.shape.guid),
            }
        });
    }

    /// Whether bytes were lost since the last call.
    pub(crate) fn takes_note_of_loss(&self) -> bool {
        self.is_news.swap(false, Ordering::SeqCst)
    }

    /// Zeroed namespace in a file that cannot be written to.
    #[cfg(test)]
    pub(crate) fn that_loses(bytes: u64) -> Namespace {
        let mut namespace = Namespace::in_memory(bytes, 4096).expect("there is memory");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&namespace.file));
        namespace.file = File::open(path).expect("is there");
        namespace.shape.start = [1; 16];
        namespace
    }

    /// Returns offset and length of a range in the file, bytes. Errors: the range does not lie in
    /// the namespace.
    pub(crate) fn range(&self, blocks: Blocks) -> Result<(u64, u64), Status> {
        let end = blocks.first.checked_add(blocks.count.into());
        match end.is_some_and(|end| end <= self.shape().blocks) {
            true => {
                let shift = self.shape.block_shift;
                Ok((blocks.first << shift, u64::from(blocks.count) << shift))
            }
            false => Err(Status::OUT_OF_RANGE.for_good()),
        }
    }
}

/// Locks a file for as long as it is open, as stores lock their tiers.
fn claim(file: &File) -> io::Result<()> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::WOULDBLOCK => Error::other("it is exported already, or the tier of a store"),
        errno => errno.into(),
    })
}

fn status(error: Error) -> Status {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => Status::CAPACITY_EXCEEDED,
        _ => Status::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn blocks(first: u64, count: u32) -> Blocks {
        Blocks { first, count }
    }

    #[test]
    fn blocks_are_kept_zeroed_and_never_outside() {
        let namespace = Namespace::in_memory(16 * 4096, 4096).unwrap();
        let mut bytes = [7; 2 * 4096];
        namespace.write(blocks(14, 2), &bytes, true).unwrap();
        for may_deallocate in [false, true] {
            namespace.zero(blocks(14, 1), may_deallocate, &|| false).unwrap();
            namespace.read(blocks(14, 2), &mut bytes).unwrap();
            assert!(bytes[..4096].iter().all(|&byte| byte == 0));
            assert!(bytes[4096..].iter().all(|&byte| byte == 7));
        }
        for outside in [blocks(15, 2), blocks(16, 1), blocks(u64::MAX, 1)] {
            let refused = Err(Status::OUT_OF_RANGE.for_good());
            assert_eq!(namespace.write(outside, &bytes, false), refused);
            assert_eq!(namespace.read(outside, &mut bytes), refused);
            assert_eq!(namespace.zero(outside, true, &|| false), refused);
            assert_eq!(namespace.deallocate(outside, &|| false), refused);
        }
    }

    /// Mechanism: if bytes could not be written, the kernel lets `fdatasync` fail once and forgets
    /// them.
    ///
    /// Consequence: the next flush reported them as durable.
    ///
    /// Fix: after one failure, every flush fails.
    #[test]
    fn flush_that_failed_fails_for_good() {
        // Nothing written to this file can be made durable.
        let null = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        let mut namespace = Namespace::new(null, 1 << 16, 4096, [0; 16]).unwrap();
        let failed = Err(Status::INTERNAL_ERROR.for_good());
        assert_eq!(namespace.flush(), failed);
        let healthy = Namespace::in_memory(1 << 16, 4096).unwrap();
        namespace.file = healthy.file;
        assert_eq!(namespace.flush(), failed);
        assert_eq!(namespace.write(blocks(0, 1), &[1; 4096], true), failed);
        assert_eq!(namespace.write(blocks(0, 1), &[1; 4096], false), Ok(()));
        identity::forget_loss(&namespace.shape.guid);
    }

    /// Mechanism: a target that was started again did not know that bytes had been lost before; the
    /// system reports that only once.
    ///
    /// Consequence: it made durable only what was left of the bytes that hosts had written before.
    ///
    /// Fix: it reports another start to hosts, and so does this target from the loss on.
    #[test]
    fn who_has_used_what_was_lost_is_told_so_by_this_target_and_the_next_one() {
        let path = std::env::temp_dir().join(format!("cairn-test-lost-{}", std::process::id()));
        File::create(&path).unwrap().set_len(1 << 16).unwrap();
        let mut namespace = Namespace::in_file(&path, 4096).unwrap();
        let first = namespace.shape();
        namespace.write(blocks(0, 1), &[1; 4096], true).unwrap();
        assert_eq!((namespace.shape().start, namespace.takes_note_of_loss()), (first.start, false));
        namespace.file = File::open(&path).unwrap();
        namespace.write(blocks(0, 1), &[1; 4096], false).expect_err("it can only be read");
        let second = namespace.shape();
        assert!(namespace.takes_note_of_loss() && !namespace.takes_note_of_loss(), "once");
        drop(namespace);
        let next = Namespace::in_file(&path, 4096).unwrap();
        let third = next.shape();
        let starts = [first, second, third].map(|shape| shape.start);
        assert!(starts[0] != starts[1] && starts[1] != starts[2] && starts[2] != starts[0]);
        assert_eq!(next.flush(), Ok(()), "what it is given itself");
        identity::forget_loss(&first.guid);
        drop(next);
        assert_eq!(Namespace::in_file(&path, 4096).unwrap().shape().start, first.start);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn write_that_failed_is_not_made_durable_by_a_flush() {
        let healthy = Namespace::in_memory(1 << 16, 4096).unwrap();
        let mut namespace = Namespace::that_loses(1 << 16);
        namespace.write(blocks(0, 1), &[1; 4096], false).expect_err("it can only be read");
        namespace.file = healthy.file;
        assert_eq!(namespace.flush(), Err(Status::INTERNAL_ERROR.for_good()));
    }

    /// Mechanism: a command that had been given up continued, and zeroed what the host had stored
    /// since. A deallocation, which is only a hint, wrote zeros where the file system cannot
    /// deallocate.
    #[test]
    fn what_is_over_is_zeroed_no_further_and_a_hint_is_not_worth_writing_zeros() {
        let piece = (PIECE_BYTES / 4096) as u32;
        let mut namespace = Namespace::in_memory(3 * PIECE_BYTES, 4096).unwrap();
        for first in [0, 1, 2].map(|number| number * u64::from(piece)) {
            namespace.write(blocks(first, 1), &[7; 4096], false).unwrap();
        }
        let found = |namespace: &Namespace| {
            [0, 1, 2].map(|number| {
                let mut bytes = [1; 4096];
                namespace.read(blocks(number * u64::from(piece), 1), &mut bytes).unwrap();
                bytes[0]
            })
        };
        let asked = std::cell::Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) == 1;
        namespace.zero(blocks(0, 3 * piece), true, &is_over).expect_err("it was over");
        assert_eq!(found(&namespace), [0, 7, 7]);
        // Memory cannot be zeroed without deallocating it.
        (namespace.is_memory, namespace.keeps_room) = (false, true);
        assert_eq!(namespace.deallocate(blocks(0, 3 * piece), &|| false), Ok(()));
        assert_eq!(found(&namespace), [0, 7, 7]);
        assert_eq!(namespace.zero(blocks(0, 3 * piece), true, &|| false), Ok(()));
        assert_eq!(found(&namespace), [0, 0, 0]);
    }

    #[test]
    fn file_is_exported_once_at_a_time_and_not_while_a_store_has_it() {
        let name = format!("cairn-test-exported-once-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let other = File::create(&path).unwrap();
        other.set_len(1 << 16).unwrap();
        let namespace = Namespace::in_file(&path, 4096).unwrap();
        let twice = Namespace::in_file(&path, 4096).expect_err("it is exported");
        assert!(twice.to_string().contains("exported already"), "{twice}");
        drop(namespace);
        rustix::fs::flock(&other, FlockOperation::LockShared).unwrap();
        Namespace::in_file(&path, 4096).expect_err("a store has it");
        drop(other);
        Namespace::in_file(&path, 4096).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn room_that_was_promised_is_not_given_back_by_a_host() {
        let bytes = 1 << 20;
        let namespace = Namespace::in_unnamed_file(&std::env::temp_dir(), bytes, 4096).unwrap();
        let all = blocks(0, (bytes / 4096) as u32);
        namespace.write(all, &vec![7; bytes as usize], true).unwrap();
        namespace.deallocate(all, &|| false).unwrap();
        namespace.zero(all, true, &|| false).unwrap();
        let mut found = vec![1; bytes as usize];
        namespace.read(all, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0));
        assert!(namespace.file.metadata().unwrap().blocks() * 512 >= bytes);
    }

    #[test]
    fn blocks_of_no_possible_size_are_refused() {
        for (bytes, block_bytes) in [(4096, 0), (4096, 1000), (4096, 256), (511, 512), (0, 4096)] {
            assert!(Namespace::in_memory(bytes, block_bytes).is_err(), "{bytes} {block_bytes}");
        }
    }
}
