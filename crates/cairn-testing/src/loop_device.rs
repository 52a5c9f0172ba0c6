//! A block device for tests: a loop device over a sparse file. It disappears when its last user
//! closes it.
//!
//! Invariant: only the test names the device, and only its own descriptor keeps it in the system.
//! Where loop devices are missing or this user may not make them, `LoopDevice::new` says so on
//! standard error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

// ioctl requests of loop devices (linux/loop.h).
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_SET_STATUS64: libc::c_ulong = 0x4c04;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Most attempts: another process may take a device that was free a moment ago.
const TRIES: u32 = 100;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    numbers_and_offset: [u64; 4],
    /// Size of the device, bytes, if it is not that of the file; 0 for the size of the file.
    limit_bytes: u64,
    number_and_cipher: [u32; 3],
    flags: u32,
    names: [u8; 176],
}

/// `struct loop_config`.
#[repr(C)]
struct Configuration {
    descriptor: u32,
    sector_bytes: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Configuration>() == 304);

/// A loop device.
pub struct LoopDevice {
    path: PathBuf,
    backing: File,
    /// Keeps the device from being cleared.
    device: File,
}

impl LoopDevice {
    /// Makes a device of `bytes` bytes over an unnamed file in `directory`. Returns `None`, and
    /// writes a line on standard error, where no device can be had.
    pub fn new(directory: &Path, bytes: u64) -> Option<LoopDevice> {
        LoopDevice::with_sectors(directory, bytes, 512)
    }

    /// As `new`, with sectors of `sector_bytes` bytes: a power of two, at most a page.
    pub fn with_sectors(directory: &Path, bytes: u64, sector_bytes: u32) -> Option<LoopDevice> {
        let mut options = OpenOptions::new();
        let unnamed = options.read(true).write(true).custom_flags(libc::O_TMPFILE);
        let backing = unnamed.open(directory).expect("the backing file is made");
        backing.set_len(bytes).expect("the backing file is sparse");
        LoopDevice::over(backing, sector_bytes, 0)
    }

    /// Makes another, read-only device over the same file.
    pub fn read_only(&self) -> Option<LoopDevice> {
        let backing = self.backing.try_clone().expect("a descriptor");
        LoopDevice::over(backing, 512, LO_FLAGS_READ_ONLY)
    }

    fn over(backing: File, sector_bytes: u32, flags: u32) -> Option<LoopDevice> {
        match (0..TRIES).find_map(|_| attach(&backing, sector_bytes, flags).transpose()) {
            Some(Ok((path, device))) => Some(LoopDevice { path, backing, device }),
            Some(Err(error)) => {
                eprintln!("not tested on a block device: no loop devices here: {error}");
                None
            }
            None => panic!("others take every loop device"),
        }
    }

    /// Returns the path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file under the device.
    pub fn backing(&self) -> &File {
        &self.backing
    }

    /// Limits the size of the device to `bytes`; 0 restores the size of the file. Data past the end
    /// are out of reach, not lost.
    pub fn limit(&self, bytes: u64) {
        let info = info(bytes, LO_FLAGS_AUTOCLEAR);
        // SAFETY: this request reads one `struct loop_info64`, and `info` outlives the call.
        let answer = unsafe {
            libc::ioctl(self.device.as_raw_fd(), LOOP_SET_STATUS64 as _, &raw const info)
        };
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
    }
}

fn info(limit_bytes: u64, flags: u32) -> Info {
    let (numbers_and_offset, number_and_cipher) = ([0; 4], [0; 3]);
    Info { numbers_and_offset, limit_bytes, number_and_cipher, flags, names: [0; 176] }
}

/// Attaches a free device to `backing`. Returns `None` if another process took the device first.
fn attach(backing: &File, sector_bytes: u32, flags: u32) -> io::Result<Option<(PathBuf, File)>> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    // SAFETY: this request has no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _, 0) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    let path = PathBuf::from(format!("/dev/loop{number}"));
    let device = OpenOptions::new().read(true).write(true).open(&path)?;
    let configuration = Configuration {
        descriptor: backing.as_raw_fd() as u32,
        sector_bytes,
        info: info(0, flags | LO_FLAGS_AUTOCLEAR),
        reserved: [0; 8],
    };
    // SAFETY: this request reads one `struct loop_config`, and `configuration` outlives the call.
    let answer =
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const configuration) };
    match answer {
        0 => Ok(Some((path, device))),
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY) => Ok(None),
        _ => Err(io::Error::last_os_error()),
    }
}
