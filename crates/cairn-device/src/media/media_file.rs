//! One preallocated file, or a block device, as the medium of a tier: `file:PATH:SIZE`,
//! `block:/dev/NAME:SIZE`.
//!
//! Whole pages travel by direct I/O. For a file, parts of pages go through the kernel's page cache:
//! every process shares it, it survives them, and two writers of one page do not undo each other in
//! it. The kernel keeps cache and file the same, page by page: a direct transfer first writes back
//! the cached pages of its range, and a direct write drops them. For a device the kernel does not
//! do that while both write to one page. So no write to a device goes through the cache: a process
//! that writes a part of a page reads the rest of it first, and has its turn at the page meanwhile
//! (`Transit::turn`). Reads of parts go through the cache for both. A file that is mapped
//! (`dax:PATH:SIZE`) uses neither way: bytes are copied to and from the mapping (`dax`). The label
//! is one more page behind the tier's bytes; it names the owner of the tier.
//!
//! Must stay true: the cache holds single pages only. A cached piece of several pages, made dirty
//! by a write to one of them, would be written back over what a direct write has put beside it. So
//! there is no reading ahead, and no direct I/O where the unit of the file system or the device is
//! larger than a page. A device is written to with a transit area, or by one process alone. When a
//! write returns, the kernel has the bytes; they are durable after `flush`.
//!
//! Does not know what the bytes mean, nor how a file and a device differ; `medium` does.

pub(crate) mod pages;
mod remote_view;
mod shown;
mod transfer;

use core::time::Duration;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use cairn_core::{Error, MEDIA_BLOCK_BYTES, Media, Memory, ProcessIdentity, Result};
use cairn_nvme::partition::Part;
use cairn_nvme::shared::{RemotePath, SharedRemote};
use cairn_nvme::wait_queue::Line;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::process;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::directory::{StoreError, StoreResult};
use crate::media::dax::DaxMapping;
use crate::media::label::{self, Identity, Label, Wrong};
use crate::media::medium::known::Known;
use crate::media::medium::{
    ENDING, LOOK_EVERY, Medium, MediumKind, refused, remove_file, remove_stand_ins,
    stand_in_of_tier,
};
use crate::media::staging::Staging;
use crate::media::transit::Transit;
use crate::memory::workspace::Workspace;

use pages::{Pages, errno_of};
use shown::View;

pub use crate::media::medium::Access;
pub(crate) use pages::{put, put_zeros, read_all};

const PAGE: usize = MEDIA_BLOCK_BYTES;
/// A process that waits for another one first yields this often, then sleeps `WAIT` each time.
/// Every `CHECK_EVERY` rounds it checks that the other process still exists.
const YIELDS: u32 = 50;
const WAIT: Duration = Duration::from_micros(50);
const CHECK_EVERY: u32 = 100;
/// Number of attempts to open something that others remove at the same time.
const OPEN_TRIES: u32 = 16;

/// When a file's space is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// All of it when the file is made: a full file system is found then and never later.
    AtOnce,
    /// As `AtOnce`, and in persistent memory all of it is written, too: then the first store to a
    /// page changes nothing that the file system would have to make durable first.
    ForMapping,
    /// As it is written to.
    AsWritten,
}

/// An open file of a tier, or a device.
#[derive(Debug)]
pub struct MediaFile {
    kind: MediumKind,
    ordinary: Descriptor,
    direct: Option<Descriptor>,
    remote: Option<SharedRemote>,
    /// Lock of the tier that a namespace on another machine holds, by whatever address the
    /// namespace is reached.
    tier_lock: Option<Descriptor>,
    label_at: u64,
    bytes: u64,
    identity: Identity,
    staging: Staging,
    transit: Option<Transit>,
    mapping: Option<DaxMapping>,
    view: View,
}

impl MediaFile {
    /// Opens the file or device. Errors: it holds no tier, is not for this user, or has another
    /// size than its label says.
    pub fn open(path: &Path) -> StoreResult<MediaFile> {
        MediaFile::open_labelled(path, libc::LOCK_SH, Access::ReadWrite)
    }

    /// As `open`, but exclusively. Waits a moment for processes that are ending. Errors: somebody
    /// else has it open (`EWOULDBLOCK`).
    pub fn open_alone(path: &Path) -> StoreResult<MediaFile> {
        MediaFile::open_labelled(path, libc::LOCK_EX, Access::ReadWrite)
    }

    /// As `open_alone`, to look at the medium before anything is done to it. With `takes_over` the
    /// claim of another machine does not matter.
    pub fn look(path: &Path, takes_over: bool) -> StoreResult<MediaFile> {
        let access = if takes_over { Access::Read } else { Access::Look };
        MediaFile::open_labelled(path, libc::LOCK_EX, access)
    }

    /// As `open_alone`, to look at and to repair. The label may be missing or damaged; the second
    /// result says so. The caller then has to find out whether the file is that of a tier.
    pub fn open_to_check(path: &Path, access: Access) -> StoreResult<(MediaFile, Option<Wrong>)> {
        let (file, label) = MediaFile::open_any(path, libc::LOCK_EX, access)?;
        match label {
            Ok(_) => Ok((file, None)),
            Err(Wrong::Newer) => Err(refused(path, Wrong::Newer.describe())),
            Err(wrong) => Ok((file, Some(wrong))),
        }
    }

    /// Writes the label again. Not durable before a flush. Errors: `Io`; the file was opened for
    /// reading only.
    pub fn write_label(&mut self, label: Label) -> Result<()> {
        self.put_bytes(self.label_at, &label::encode(&label))?;
        (self.bytes, self.identity) = (label.bytes, label.identity);
        Ok(())
    }

    /// Turns the exclusive lock into a shared one, so that others can open the file, too.
    pub fn share(&self) -> SysResult<()> {
        let mut files = core::iter::once(&self.ordinary).chain(&self.tier_lock);
        files.try_for_each(|file| sys::flock(file.raw(), libc::LOCK_SH | libc::LOCK_NB))
    }

    fn open_labelled(path: &Path, sharing: i32, access: Access) -> StoreResult<MediaFile> {
        let (file, label) = MediaFile::open_any(path, sharing, access)?;
        match label {
            Ok(_) => Ok(file),
            Err(wrong) => Err(refused(path, file.kind.describe(wrong))),
        }
    }

    /// Opens the file, and returns what its label says. Without a label the file counts as large as
    /// it can be.
    pub(crate) fn open_any(
        path: &Path,
        sharing: i32,
        access: Access,
    ) -> StoreResult<(MediaFile, core::result::Result<Label, Wrong>)> {
        let (file, label) = MediaFile::open_unclaimed(path, sharing, access)?;
        match (access, &label) {
            (Access::ReadWrite, Ok(label)) => drop(file.claim(path, label, false)?),
            (Access::Look, Ok(label)) => file.check_claim(path, label)?,
            _ => {}
        }
        Ok((file, label))
    }

    /// As `open_any`, whoever owns the tier according to its label.
    pub(crate) fn open_unclaimed(
        path: &Path,
        sharing: i32,
        access: Access,
    ) -> StoreResult<(MediaFile, core::result::Result<Label, Wrong>)> {
        let failed = |errno| StoreError::new("open tier", path, errno);
        let medium = open_locked(path, sharing, access, || Medium::open(path, access))?;
        let mut file = MediaFile::over(medium, path, access)?;
        let page = file.label().map_err(failed)?;
        let label = file.kind.checked(label::decode(&page), file.label_at);
        if let Ok(label) = &label {
            file.become_tier(path, label, sharing, access)?;
        }
        Ok((file, label))
    }

    /// As `open`, for a namespace on another machine about which `known` is recorded. Connects, and
    /// checks the namespace, at its first use. Errors: `EIO` if it cannot be that namespace; no
    /// memory or descriptors.
    pub(crate) fn open_known(path: &Path, known: &Known) -> StoreResult<MediaFile> {
        let access = Access::ReadWrite;
        let open = || Medium::known(path, &known.traits);
        let medium = open_locked(path, libc::LOCK_SH, access, open)?;
        let mut file = MediaFile::over(medium, path, access)?;
        let (label, label_at) = (known.label, file.label_at);
        let checked = file.kind.checked(Ok(label), label_at);
        checked.map_err(|wrong| refused(path, file.kind.describe(wrong)))?;
        file.become_tier(path, &label, libc::LOCK_SH, access)?;
        Ok(file)
    }

    /// Makes this the tier of that label and takes the tier's lock. Errors: the tier is in use, by
    /// whatever address.
    fn become_tier(
        &mut self,
        path: &Path,
        label: &Label,
        sharing: i32,
        access: Access,
    ) -> StoreResult<()> {
        (self.bytes, self.identity) = (label.bytes, label.identity);
        if self.remote.is_some() {
            let open = || stand_in_of_tier(path, &label.identity, access);
            self.tier_lock = Some(open_locked(path, sharing, access, open)?.raise());
        }
        Ok(())
    }

    /// Returns the id of the current start of the target's machine; zeros if the target does not
    /// report one, and for every other medium.
    pub(crate) fn start(&self) -> [u8; 16] {
        self.remote.as_ref().map_or([0; 16], |remote| remote.traits().shape.start)
    }

    /// Returns what processes without a connection need to know about a namespace on another
    /// machine; `None` for every other medium. Errors: `Io`.
    pub(crate) fn known(&self) -> Result<Option<Known>> {
        let Some(remote) = &self.remote else { return Ok(None) };
        let page = self.bytes_at(self.label_at..self.label_at + PAGE as u64)?;
        let page = page.first_chunk().expect("a page was read");
        let mut first_page = [0; PAGE];
        Media::read(self, 0, &mut first_page)?;
        Ok(label::decode(page).ok().map(|label| {
            let mut traits = *remote.traits();
            if label.start != [0; 16] {
                // Bytes stored since that start must still be there.
                traits.shape.start = label.start;
            }
            Known { traits, label, first_page }
        }))
    }

    /// Sets a check that a namespace on another machine has to pass before its first use.
    pub(crate) fn check_first(
        &self,
        check: impl Fn(&dyn Media) -> Result<()> + Send + Sync + 'static,
    ) {
        if let Some(remote) = &self.remote {
            remote.check_first(Box::new(move |view| remote_view::is_known(view, &check)));
        }
    }

    /// Makes processes that get no connection to another machine wait in that line.
    pub(crate) fn wait_in(&self, line: Line) {
        if let Some(remote) = &self.remote {
            remote.wait_in(line);
        }
    }

    /// Returns an object over an open medium whose label was not read yet.
    fn over(medium: Medium, path: &Path, access: Access) -> StoreResult<MediaFile> {
        let failed = |errno| StoreError::new("open tier", path, errno);
        sys::fadvise(medium.ordinary.raw(), libc::POSIX_FADV_RANDOM).map_err(failed)?;
        let direct = medium.open_direct(path, access).map_err(failed)?;
        let staging = Staging::new().map_err(failed)?;
        Ok(MediaFile {
            kind: medium.kind,
            label_at: medium.label_at,
            ordinary: medium.ordinary.raise(),
            direct,
            remote: medium.remote,
            tier_lock: None,
            bytes: medium.label_at,
            identity: Identity::default(),
            staging,
            transit: None,
            mapping: None,
            view: View::default(),
        })
    }

    /// Lets writes return before the device has the bytes, and reads begin before they are asked
    /// for, through a transit area. Has no effect where the page cache does that.
    pub fn with_transit(mut self, transit: Transit) -> MediaFile {
        self.transit = (self.direct.is_some() || self.remote.is_some()).then_some(transit);
        self
    }

    /// Reads and writes the file through a mapping from then on. A file without all of its space is
    /// not mapped: a store might find no space, which raises a signal. Errors: no room in the
    /// address space.
    pub fn mapped(mut self) -> SysResult<MediaFile> {
        let has_all = sys::fstat(self.ordinary.raw())?.st_blocks as u64 * 512 >= self.bytes;
        (self.direct, self.transit) = (None, None);
        if has_all {
            // No page bypasses the cache any more.
            sys::fadvise(self.ordinary.raw(), libc::POSIX_FADV_NORMAL)?;
            let bytes = usize::try_from(self.bytes).map_err(|_| Errno(libc::EFBIG))?;
            self.mapping = Some(DaxMapping::new(self.ordinary.duplicate()?, bytes)?);
        }
        self.kind = MediumKind::Dax;
        Ok(self)
    }

    /// For a mapped file: whether stores are durable when they return. False if it could not be
    /// mapped. `None` for every other medium.
    pub fn is_synchronous(&self) -> Option<bool> {
        let is_synchronous = self.mapping.as_ref().is_some_and(DaxMapping::is_synchronous);
        (self.kind == MediumKind::Dax).then_some(is_synchronous)
    }

    /// Makes sure that the next flush makes a range durable, even if the process that stored it
    /// died on the way. For callers that vouch for bytes of others. Errors: `Corrupt` for a range
    /// outside.
    pub fn write_back(&self, offset: u64, length: usize) -> Result<()> {
        match &self.mapping {
            Some(mapping) => mapping.write_back(offset, length),
            None => self.write_back_shown(offset, length),
        }
    }

    /// Removes the file, which is at `path`, or empties the device.
    pub fn remove_from(self, path: &Path) -> StoreResult<()> {
        let removed = match self.kind {
            MediumKind::Block => self.empty(),
            MediumKind::Remote => self.empty().and_then(|()| self.release()).inspect(|()| {
                let tier = self.tier_lock.iter();
                tier.for_each(|tier| {
                    remove_stand_ins(path, &self.ordinary, tier, &self.identity);
                });
            }),
            MediumKind::File | MediumKind::Dax => return remove_file(path),
        };
        removed.map_err(|errno| StoreError::new("remove tier", path, errno))
    }

    /// Returns the kind of medium.
    pub fn kind(&self) -> MediumKind {
        self.kind
    }

    /// Returns the offset of the label: the size of the largest tier that the medium can hold.
    pub(crate) fn label_at(&self) -> u64 {
        self.label_at
    }

    /// Returns the identity of the tier: no two tiers share one.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether whole pages bypass the page cache; false where the file system refuses that.
    pub fn direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Returns the descriptor that goes through the page cache.
    pub fn ordinary(&self) -> i32 {
        self.ordinary.raw()
    }

    /// Calls `visit` with each descriptor that this object keeps open.
    pub fn descriptors(&self, visit: &mut dyn FnMut(i32)) {
        visit(self.ordinary.raw());
        self.direct.iter().for_each(|direct| visit(direct.raw()));
        self.remote.iter().for_each(|remote| remote.descriptors(visit));
        self.tier_lock.iter().for_each(|file| visit(file.raw()));
        self.transit.iter().for_each(|transit| visit(transit.descriptor()));
        self.mapping.iter().for_each(|mapping| visit(mapping.descriptor()));
        self.view.get().iter().for_each(|view| visit(view.file().raw()));
    }

    /// Writes private bytes; whole pages if the medium is on another machine.
    pub(crate) fn put_bytes(&self, at: u64, bytes: &[u8]) -> SysResult<()> {
        match &self.remote {
            // SAFETY: the slice is readable.
            Some(remote) => unsafe { Pages::Remote(remote).write(bytes.as_ptr(), bytes.len(), at) },
            None => put(&self.ordinary, at, bytes),
        }
    }

    /// Returns the bytes of a range of a device.
    pub(crate) fn bytes_at(&self, range: Range<u64>) -> SysResult<Vec<u8>> {
        let device = self.remote.as_ref().map_or(Pages::Device(&self.ordinary), Pages::Remote);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        // SAFETY: the vector is writable and used here only.
        unsafe { device.read(bytes.as_mut_ptr(), bytes.len(), range.start)? };
        Ok(bytes)
    }

    /// Makes everything that was written to a device durable.
    pub(crate) fn sync(&self) -> SysResult<()> {
        match &self.remote {
            Some(remote) => remote.flush().map_err(errno_of),
            None => sys::fsync(self.ordinary.raw()),
        }
    }

    /// Returns the size of a device; for one on another machine only its whole pages count.
    pub(crate) fn device_bytes(&self) -> SysResult<u64> {
        match &self.remote {
            Some(remote) => Ok(remote.bytes() / PAGE as u64 * PAGE as u64),
            None => sys::block_device_bytes(self.ordinary.raw()),
        }
    }

    /// Returns the id of this machine if the label has to name the owner of the tier.
    pub(crate) fn claims_by_label(&self) -> Option<[u8; 16]> {
        let remote = self.remote.as_ref();
        remote
            .filter(|remote| remote.part().is_some() || !remote.can_reserve())
            .map(|remote| *remote.host_id())
    }

    /// Returns the part of a namespace that this is; `None` for a whole one.
    pub(crate) fn part(&self) -> Option<Part> {
        self.remote.as_ref().and_then(SharedRemote::part)
    }

    /// Reads the last page of a whole namespace, which belongs to no part.
    pub(crate) fn last_page_of_all(&self) -> SysResult<[u8; PAGE]> {
        let mut page = [0; PAGE];
        let remote = self.remote.as_ref().ok_or(Errno(libc::ENOTSUP))?;
        remote.read_last_page(&mut page).map_err(errno_of)?;
        Ok(page)
    }

    /// Writes the last page of a whole namespace, in one attempt. Errors: it was not written at
    /// `deadline`.
    pub(crate) fn put_last_page_of_all(
        &self,
        page: &[u8; PAGE],
        deadline: Instant,
    ) -> SysResult<()> {
        let remote = self.remote.as_ref().ok_or(Errno(libc::ENOTSUP))?;
        remote.write_last_page(page, deadline).map_err(errno_of)
    }

    /// Writes the label of a medium on another machine, in one attempt. Errors: as
    /// `put_last_page_of_all`.
    pub(crate) fn put_label_once(&self, page: &[u8; PAGE], deadline: Instant) -> SysResult<()> {
        let remote = self.remote.as_ref().ok_or(Errno(libc::ENOTSUP))?;
        remote.write_once(self.label_at, page, deadline).map_err(errno_of)
    }

    /// Whether a medium on another machine was seen to be reserved for this machine; true for any
    /// other medium.
    pub(crate) fn is_reserved_here(&self) -> bool {
        self.remote.as_ref().is_none_or(SharedRemote::is_reserved_here)
    }

    /// Whether this machine has reserved a medium on another one only since this object was opened.
    pub(crate) fn was_free(&self) -> bool {
        self.remote.as_ref().is_some_and(SharedRemote::was_free)
    }

    /// Gives up this machine's reservation of a medium on another one, so that others can use it.
    pub(crate) fn release(&self) -> SysResult<()> {
        self.remote.as_ref().map_or(Ok(()), |remote| remote.release().map_err(errno_of))
    }

    /// Tells a device that the bytes of its tier are not needed any more.
    pub(crate) fn discard_all(&self) -> SysResult<()> {
        match &self.remote {
            Some(remote) => remote.discard(0, self.bytes).map_err(errno_of),
            None => sys::block_device_discard(self.ordinary.raw(), 0, self.bytes),
        }
    }

    /// Reads the label's page. Gives up direct I/O if the file system accepts it at open but not
    /// for transfers.
    fn label(&mut self) -> SysResult<[u8; PAGE]> {
        let read = |file: &Descriptor| {
            let buffer = self.staging.take()?;
            // SAFETY: the buffer is longer than a page and used here only.
            unsafe {
                read_all(file, buffer.address(), PAGE, self.label_at)?;
                Ok(buffer.address().cast::<[u8; PAGE]>().read())
            }
        };
        match self.direct.as_ref().map(read) {
            Some(Err(Errno(libc::EINVAL))) => self.direct = None,
            Some(result) => return result,
            None => {}
        }
        match &self.remote {
            Some(_) => {
                let bytes = self.bytes_at(self.label_at..self.label_at + PAGE as u64)?;
                Ok(*bytes.first_chunk().expect("a page was read"))
            }
            None => read(&self.ordinary),
        }
    }
}

impl Media for MediaFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        check_unit(offset, target.len())?;
        self.load(offset, target.len(), |address, done, bytes| {
            let piece = &mut target[done..done + bytes];
            // SAFETY: `load` hands out `bytes` there, which are no part of `target`.
            unsafe { core::ptr::copy_nonoverlapping(address, piece.as_mut_ptr(), bytes) };
        })
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<()> {
        check_unit(offset, source.len())?;
        self.store_by_way_of(None, offset, source.len(), |address, done, bytes| {
            // SAFETY: `store` gives room for `bytes`, in a buffer that is no part of `source`.
            unsafe { core::ptr::copy_nonoverlapping(source[done..].as_ptr(), address, bytes) };
        })
    }

    fn flush(&self) -> Result<()> {
        if let Some(transit) = &self.transit {
            transit.settle_all(&self.putter())?;
        }
        if self.is_synchronous() == Some(true) {
            // The process that stored a byte has made it durable before its call returned.
            return Ok(());
        }
        self.flush_by_kernel()
    }

    fn wait_for(&self, owner: ProcessIdentity, round: u32) -> bool {
        // A flush takes from tens of microseconds to tens of milliseconds.
        match round < YIELDS {
            true => std::thread::yield_now(),
            // A sleep that is cut short does no harm.
            false => drop(sys::nanosleep(WAIT)),
        }
        if round % CHECK_EVERY < CHECK_EVERY - 1 {
            return false;
        }
        if let Some(remote) = &self.remote {
            remote.yield_connection();
        }
        !process::is_alive(owner)
    }

    fn workspace(&self, words: usize) -> Result<Box<dyn Memory>> {
        Ok(Box::new(Workspace::new(words)?))
    }
}

fn check_unit(offset: u64, length: usize) -> Result<()> {
    match offset % PAGE as u64 == 0 && length % PAGE == 0 {
        true => Ok(()),
        false => Err(Error::Invalid),
    }
}

/// An open object whose descriptor carries the lock.
trait Locked {
    fn file(&self) -> &Descriptor;
}

impl Locked for Medium {
    fn file(&self) -> &Descriptor {
        &self.ordinary
    }
}

impl Locked for Descriptor {
    fn file(&self) -> &Descriptor {
        self
    }
}

/// Opens what is at `path` and takes its lock. Repeats that if it, or the file that is locked in
/// its place, was removed meanwhile.
fn open_locked<T: Locked>(
    path: &Path,
    sharing: i32,
    access: Access,
    open: impl Fn() -> StoreResult<T>,
) -> StoreResult<T> {
    let failed = |errno| StoreError::new("open tier", path, errno);
    for _ in 0..OPEN_TRIES {
        let opened = open()?;
        lock(opened.file(), sharing).map_err(|errno| {
            failed(errno).advise("another store uses it: end that store first, or check its files with cairn verify JOB")
        })?;
        let is_named = sys::fstat(opened.file().raw()).map_err(failed)?.st_nlink > 0;
        // To look at a namespace on another machine, a lock file that never had a name is enough.
        let needs_name = match access {
            Access::Read => false,
            Access::Look => !RemotePath::is_one(path),
            Access::ReadWrite => true,
        };
        if is_named || !needs_name {
            return Ok(opened);
        }
    }
    Err(failed(Errno(libc::EBUSY)))
}

/// Takes the file's lock. Errors: others still have it after `ENDING` (`EWOULDBLOCK`).
fn lock(file: &Descriptor, sharing: i32) -> SysResult<()> {
    let started = Instant::now();
    loop {
        match sys::flock(file.raw(), sharing | libc::LOCK_NB) {
            Err(Errno(libc::EWOULDBLOCK)) if started.elapsed() < ENDING => {
                std::thread::sleep(LOOK_EVERY);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
