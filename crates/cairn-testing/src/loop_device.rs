//! A block device for tests: a loop device over a sparse file, gone when its last user closes it.
//!
//! Must stay true: nobody but the test names the device, and it is taken from the system by its own
//! descriptor. Where there are no loop devices, or this user may not make them, `LoopDevice::new`
//! says so on standard error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

// Requests of loop devices (linux/loop.h).
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_SET_STATUS64: libc::c_ulong = 0x4c04;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Others may take the device that was free a moment ago.
const TRIES: u32 = 100;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    numbers_and_offset: [u64; 4],
    /// Size of the device if that is not the file's; 0 = as large as that.
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
    /// Keeps it from being cleared.
    device: File,
}

impl LoopDevice {
    /// A device of `bytes` over a file in `directory` that has no name; None, and a line on
    /// standard error, where none can be had.
    pub fn new(directory: &Path, bytes: u64) -> Option<LoopDevice> {
        LoopDevice::with_sectors(directory, bytes, 512)
    }

    /// As `new`, with sectors of so many bytes, a power of two of at most a page.
    pub fn with_sectors(directory: &Path, bytes: u64, sector_bytes: u32) -> Option<LoopDevice> {
        let mut options = OpenOptions::new();
        let unnamed = options.read(true).write(true).custom_flags(libc::O_TMPFILE);
        let backing = unnamed.open(directory).expect("the backing file is made");
        backing.set_len(bytes).expect("the backing file is sparse");
        LoopDevice::over(backing, sector_bytes, 0)
    }

    /// Another device over the same file, which cannot be written.
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

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its bytes lie in.
    pub fn backing(&self) -> &File {
        &self.backing
    }

    /// Makes it smaller, or, with 0, as large as it was. What stands behind its end is out of
    /// reach, not lost.
    pub fn limit(&self, bytes: u64) {
        let info = info(bytes, LO_FLAGS_AUTOCLEAR);
        // SAFETY: this request reads one `struct loop_info64`.
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

/// Makes a device that is free one over `backing`; None if somebody else has just done so.
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
    // SAFETY: this request reads one `struct loop_config`.
    let answer =
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const configuration) };
    match answer {
        0 => Ok(Some((path, device))),
        _ if io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY) => Ok(None),
        _ => Err(io::Error::last_os_error()),
    }
}
