//! A block device as the medium of a tier. It outlives the tier, others may use it, and it may hold
//! anything.
//!
//! Must stay true: a device that holds anything is not written to unless the caller allows it, and
//! one that is mounted or otherwise in use is never written to. While Cairn has a device, nobody
//! can mount it. A removed tier leaves a device that looks new to every program: zeros at both
//! ends.

use core::ffi::CStr;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use cairn_nvme::shared::RemotePath;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::c_path;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::directory::{StoreError, StoreResult};
use crate::media::label::{self, Identity, Label, Wrong};
use crate::media::media_file::pages::error_of;
use crate::media::media_file::{MediaFile, read_all};

use super::signature::{self, Ends};
use super::{Access, ENDING, LOOK_EVERY, Medium, MediumKind, PAGE, refused};

/// Size of each end of a device. No owner's mark is further from the beginning or the end than
/// this.
const END_BYTES: u64 = 1 << 20;
const READ_ONLY: &str = "the device is read-only";
const NOT_A_DEVICE: &str = "it is not a block device";

/// Returns the medium of an open device. Errors: no room for a label; read-only, and `access` is
/// not.
pub(super) fn medium(path: &Path, ordinary: Descriptor, access: Access) -> StoreResult<Medium> {
    let failed = |errno| StoreError::new("open tier", path, errno);
    // Some kernels do not check that at open.
    let is_read_only = sys::is_block_device_read_only(ordinary.raw()).map_err(failed)?;
    if is_read_only && access != Access::Read {
        return Err(failed(Errno(libc::EROFS)).advise(READ_ONLY));
    }
    let bytes = sys::block_device_bytes(ordinary.raw()).map_err(failed)?;
    let label_at = label_at(bytes);
    if label_at == 0 {
        return Err(refused(path, "it has no room for a tier: the device is gone, or not set up"));
    }
    let unit_bytes = sys::block_device_sector(ordinary.raw()).map_err(failed)?;
    Ok(Medium { kind: MediumKind::Block, ordinary, label_at, unit_bytes, remote: None })
}

/// Returns the offset of the last whole page of a device.
fn label_at(device_bytes: u64) -> u64 {
    (device_bytes / PAGE * PAGE).saturating_sub(PAGE)
}

/// Opens a device so that nobody can mount it. Only one process at a time can do that; processes of
/// Cairn recognise each other by a lock on the first byte. Waits a moment for a process that is
/// ending. Errors: somebody else has it (`EBUSY`).
pub(super) fn claim(path: &Path, name: &CStr, flags: i32) -> StoreResult<Descriptor> {
    let failed = |errno| StoreError::new("open tier", path, errno);
    let open = |flags| Descriptor::open(libc::AT_FDCWD, name, flags, 0);
    let started = Instant::now();
    loop {
        match open(flags | libc::O_EXCL) {
            Ok(device) => {
                sys::lock_first_byte(device.raw()).map_err(failed)?;
                return Ok(device);
            }
            Err(Errno(libc::EBUSY)) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let device = open(flags).map_err(failed)?;
        if sys::is_first_byte_locked(device.raw()).map_err(failed)? {
            return Ok(device);
        }
        if started.elapsed() > ENDING {
            let advice = "it is mounted, or something else uses it exclusively";
            return Err(failed(Errno(libc::EBUSY)).advise(advice));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns advice for a device that could not be opened; empty for anything else.
pub(super) fn why_not_opened(name: &CStr, errno: Errno) -> &'static str {
    let is_device = sys::lstat(name).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFBLK);
    let flags = libc::O_RDONLY | libc::O_NONBLOCK;
    let opened = || Descriptor::open(libc::AT_FDCWD, name, flags, 0);
    match errno.0 {
        libc::EACCES | libc::EPERM | libc::EROFS if is_device => {
            match opened().and_then(|device| sys::is_block_device_read_only(device.raw())) {
                Ok(true) => READ_ONLY,
                _ => "this user may not read and write it; devices belong to the group disk",
            }
        }
        _ => "",
    }
}

/// Content of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Zeros, wherever another program would look.
    Nothing,
    /// A tier of Cairn.
    Tier(Label),
    /// A tier that is blank, without even metadata. It belongs to this machine, or to one that is
    /// given up. Its store has the metadata elsewhere, or its maker has died.
    Unfinished(Label),
    /// Something else, as in "it holds …".
    Foreign(&'static str),
}

/// Returns the content of the device at `path`. Nobody uses it at the moment. Errors: it is no
/// device, is not for this user, read-only, mounted, or in use by a store; another machine uses it
/// and the caller does not take over; it holds a tier that is damaged or too new.
pub fn contents(path: &Path, takes_over: bool) -> StoreResult<Contents> {
    let access = if takes_over { Access::Read } else { Access::Look };
    let (device, label) = open_alone(path, access)?;
    let held = contents_of(path, &device, label)?;
    match held {
        Contents::Tier(label) if takes_over || device.is_claimed_here(&label) => {
            let is_blank = device.is_blank_but_for_its_label();
            match is_blank.map_err(|errno| StoreError::new("read", path, errno))? {
                true => Ok(Contents::Unfinished(label)),
                false => Ok(held),
            }
        }
        held => Ok(held),
    }
}

/// Makes the device at `path` blank if it holds an unfinished tier: see `Contents`. Errors: it is
/// in use; it is another machine's and the caller does not take over.
pub fn clear_unfinished(path: &Path, takes_over: bool) -> StoreResult<()> {
    let Contents::Unfinished(label) = contents(path, takes_over)? else { return Ok(()) };
    if RemotePath::is_one(path) {
        super::claim(path, takes_over)?;
    }
    match MediaFile::open_own(path, &label.identity, libc::LOCK_EX)? {
        Some(device) => device.remove_from(path),
        None => Ok(()),
    }
}

/// Sizes of a block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSize {
    /// Size of the largest tier that the device has room for.
    pub bytes_max: u64,
    /// Size of the tier that it holds, if any.
    pub tier_bytes: Option<u64>,
}

/// Returns the sizes of the device at `path`, whoever uses it. Errors: it is no block device, or
/// this user may not read it.
pub fn measure(path: &Path) -> StoreResult<DeviceSize> {
    if RemotePath::is_one(path) {
        let device = Medium::open(path, Access::Read)?;
        return measure_remote(path, &device);
    }
    let failed = |errno| StoreError::new("open tier", path, errno);
    let name = c_path(path).map_err(failed)?;
    let flags = Access::Read.flags();
    let device = Descriptor::open(libc::AT_FDCWD, &name, flags, 0)
        .map_err(|errno| failed(errno).advise(why_not_opened(&name, errno)))?;
    let bytes = match size(&device) {
        Err(Errno(libc::ENOTTY)) => return Err(refused(path, NOT_A_DEVICE)),
        result => result.map_err(failed)?,
    };
    let bytes_max = label_at(bytes);
    let page = read(&device, bytes_max..(bytes_max + PAGE).min(bytes)).map_err(failed)?;
    let label = page.first_chunk().map_or(Err(Wrong::Missing), label::decode);
    let label = MediumKind::Block.checked(label, bytes_max).ok();
    Ok(DeviceSize { bytes_max, tier_bytes: label.map(|label| label.bytes) })
}

fn measure_remote(path: &Path, device: &Medium) -> StoreResult<DeviceSize> {
    let bytes_max = device.label_at;
    let mut page = [0; PAGE as usize];
    let remote = device.remote.as_ref().ok_or(refused(path, NOT_A_DEVICE))?;
    // SAFETY: the page is writable and used here only.
    unsafe { remote.read(page.as_mut_ptr(), page.len(), bytes_max) }
        .map_err(|error| StoreError::new("open tier", path, error_of(error)))?;
    let label = MediumKind::Remote.checked(label::decode(&page), bytes_max).ok();
    Ok(DeviceSize { bytes_max, tier_bytes: label.map(|label| label.bytes) })
}

fn open_alone(path: &Path, access: Access) -> StoreResult<(MediaFile, Result<Label, Wrong>)> {
    let (device, label) = MediaFile::open_any(path, libc::LOCK_EX, access)?;
    match device.kind().is_device() {
        true => Ok((device, label)),
        false => Err(refused(path, NOT_A_DEVICE)),
    }
}

fn contents_of(
    path: &Path,
    device: &MediaFile,
    label: Result<Label, Wrong>,
) -> StoreResult<Contents> {
    match label {
        Ok(label) => Ok(Contents::Tier(label)),
        Err(Wrong::Missing) => {
            if let Some(why) = device.why_not_divided(path)? {
                return Ok(Contents::Foreign(why));
            }
            let ends = device.ends().map_err(|errno| StoreError::new("read", path, errno))?;
            let page = ends.tail.last_chunk().or(ends.head.last_chunk());
            if let Some(Ok(label)) = page.map(label::decode) {
                // Another machine was faster, a moment ago.
                device.check_claim(path, &label)?;
                return Ok(Contents::Tier(label));
            }
            Ok(signature::find(&ends).map_or(Contents::Nothing, Contents::Foreign))
        }
        Err(wrong) => Err(refused(path, wrong.describe())),
    }
}

impl MediaFile {
    /// Makes the device at `path` a tier of `bytes`. Errors: as `contents`; it holds something that
    /// may not be overwritten (`EEXIST`, the advice says what); it is too small (`ENOSPC`); `bytes`
    /// is not a positive number of pages.
    pub fn create_on_device(
        path: &Path,
        bytes: u64,
        identity: Identity,
        may_overwrite: bool,
    ) -> StoreResult<()> {
        let failed = |errno| StoreError::new("create tier", path, errno);
        if bytes == 0 || bytes % PAGE != 0 {
            return Err(failed(Errno(libc::EINVAL)).advise("its size is not a number of pages"));
        }
        let (device, label) = open_alone(path, Access::ReadWrite)?;
        if bytes > device.label_at() {
            return Err(failed(Errno(libc::ENOSPC)).advise("the device is smaller"));
        }
        let held = contents_of(path, &device, label)?;
        if held != Contents::Nothing && !may_overwrite {
            return Err(failed(Errno(libc::EEXIST)).advise(held.describe()));
        }
        let clear = |up_to| match held {
            Contents::Nothing => Ok(()),
            _ => device.clear_ends(up_to).map_err(failed),
        };
        let label = Label { bytes, identity, start: device.start(), ..Label::default() };
        match device.claims_by_label() {
            Some(host) => {
                device.divide(path, may_overwrite)?;
                device.make_claimed_label(path, &host, label)?;
                device.check_divided(path)?;
                // Only from here on does the old content belong to this machine.
                clear(device.label_at())
            }
            None => {
                clear(device.device_bytes().map_err(failed)?)?;
                let page = label::encode(&label);
                let put = device.put_bytes(device.label_at(), &page);
                put.and_then(|()| device.sync()).map_err(failed)
            }
        }
    }

    /// Makes the device look unused, and lets it discard the bytes of the tier.
    pub(crate) fn empty(&self) -> SysResult<()> {
        // Not every device can discard.
        let _ = self.discard_all();
        self.clear_ends(self.device_bytes()?)
    }

    /// Zeros the beginning, and then the end, of the first `bytes`. The label goes last, so that an
    /// interrupted call can be repeated.
    fn clear_ends(&self, bytes: u64) -> SysResult<()> {
        for end in ends(bytes) {
            let zeros = vec![0; (end.end - end.start) as usize];
            self.put_bytes(end.start, &zeros)?;
            self.sync()?;
        }
        Ok(())
    }

    /// Whether both ends of the device are zero apart from the label.
    fn is_blank_but_for_its_label(&self) -> SysResult<bool> {
        let Ends { head, tail, bytes } = self.ends()?;
        let label = self.label_at()..self.label_at() + PAGE;
        let is_blank = |from: u64, end: &[u8]| {
            (from..).zip(end).all(|(at, &byte)| byte == 0 || label.contains(&at))
        };
        Ok(is_blank(0, &head) && is_blank(bytes - tail.len() as u64, &tail))
    }

    /// Returns both ends of the device.
    fn ends(&self) -> SysResult<Ends> {
        let bytes = self.device_bytes()?;
        let [head, tail] = ends(bytes).map(|range| self.bytes_at(range));
        Ok(Ends { head: head?, tail: tail?, bytes })
    }
}

impl Contents {
    /// Describes the content for people.
    pub fn describe(self) -> &'static str {
        match self {
            Contents::Nothing => "it is empty",
            Contents::Tier(_) | Contents::Unfinished(_) => {
                "it is a tier of another store; remove that with cairn rm"
            }
            Contents::Foreign(what) => what,
        }
    }
}

fn size(device: &Descriptor) -> SysResult<u64> {
    sys::block_device_bytes(device.raw())
}

/// Returns the two ranges of a device in which other programs look for their marks. They do not
/// overlap.
fn ends(device_bytes: u64) -> [Range<u64>; 2] {
    let head = END_BYTES.min(device_bytes);
    [0..head, device_bytes.saturating_sub(END_BYTES).max(head)..device_bytes]
}

fn read(device: &Descriptor, range: Range<u64>) -> SysResult<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    // SAFETY: the vector is writable and used here only.
    unsafe { read_all(device, bytes.as_mut_ptr(), bytes.len(), range.start)? };
    Ok(bytes)
}
