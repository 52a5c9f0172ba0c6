//! Reading and writing files past the page cache, where their file system and the part allow it.
//!
//! Must stay true: what cannot be done past the cache is done through it, and nobody is told: the
//! bytes are the same.
//! Does not make anything durable.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::sys::{self, SysResult};

/// Shorter files go through the cache: they are written back and read together with others.
const LARGE_BYTES: u64 = 1 << 20;
/// What offsets, lengths and addresses are multiples of; a file system that wants more refuses.
const ALIGNMENT: usize = 4096;

/// An open file.
pub struct Direct<'a> {
    file: &'a File,
    is_direct: bool,
}

impl<'a> Direct<'a> {
    /// For `file`, which has `bytes` or will have them.
    pub fn new(file: &'a File, bytes: u64) -> Direct<'a> {
        let is_direct = bytes >= LARGE_BYTES && set_direct(file, true).is_ok();
        Direct { file, is_direct }
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_direct) {
            // A flag that stays costs what was to be gained, and the next call says so.
            let _ = set_direct(self.file, false);
        }
    }

    /// Does it past the cache if that is possible, else through it.
    fn attempt<T>(
        &mut self,
        address: *const u8,
        mut action: impl FnMut(&File) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_direct && begins_aligned(address) {
            match action(self.file) {
                // The offset, or the length, is not what the file system wants.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                done => return done,
            }
        }
        self.leave();
        action(self.file)
    }

    /// Writes all of `bytes`.
    pub fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % ALIGNMENT);
        if !whole.is_empty() {
            self.attempt(whole.as_ptr(), |file| file.write_all_at(whole, offset))?;
        }
        if !rest.is_empty() {
            self.leave();
            self.file.write_all_at(rest, offset + whole.len() as u64)?;
        }
        Ok(())
    }

    /// Reads what is there; 0 at the end of the file.
    pub fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.attempt(buffer.as_ptr(), |file| file.read_at(buffer, offset))
    }
}

/// Whether these bytes begin where what goes past the cache may.
pub fn is_aligned(bytes: &[u8]) -> bool {
    begins_aligned(bytes.as_ptr())
}

fn begins_aligned(address: *const u8) -> bool {
    address.align_offset(ALIGNMENT) == 0
}

fn set_direct(file: &File, is_direct: bool) -> SysResult<()> {
    let flags = sys::fcntl(file.as_raw_fd(), libc::F_GETFL, 0)?;
    let flags = if is_direct { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT };
    sys::fcntl(file.as_raw_fd(), libc::F_SETFL, i64::from(flags)).map(drop)
}

/// Memory that begins where what goes past the cache may.
#[derive(Default)]
pub struct Aligned {
    pages: Vec<Page>,
    length: usize,
}

#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; ALIGNMENT]);

impl Aligned {
    /// Makes it at least so long; what it holds then is not defined.
    pub fn grow(&mut self, length: usize) {
        if length > self.length {
            self.pages = vec![Page([0; ALIGNMENT]); length.div_ceil(ALIGNMENT)];
            self.length = length;
        }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: pages are nothing but their bytes, and so many of them are there.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.length) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    fn file(name: &str, directory: &Path) -> File {
        let path = directory.join(format!("cairn-direct-{name}-{}", std::process::id()));
        let options = &mut File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        fs::remove_file(&path).expect("has a name");
        file.expect("is made")
    }

    fn pattern(length: usize) -> Aligned {
        let mut bytes = Aligned::default();
        bytes.grow(length);
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        bytes
    }

    #[test]
    fn what_is_written_is_what_is_read_aligned_or_not_on_disk_and_in_memory() {
        let long = 3 * ALIGNMENT + 7;
        for directory in [&std::env::temp_dir(), Path::new("/dev/shm")] {
            let file = file("both", directory);
            let bytes = pattern(long);
            let mut direct = Direct::new(&file, LARGE_BYTES);
            direct.write_all_at(&bytes, 0).expect("writes");
            direct.write_all_at(&bytes[1..], long as u64).expect("writes what is not aligned");
            let mut found = Aligned::default();
            found.grow(4 * long);
            let mut direct = Direct::new(&file, LARGE_BYTES);
            let mut length = 0;
            while let got @ 1.. =
                direct.read_at(&mut found[length..], length as u64).expect("reads")
            {
                length += got;
            }
            assert_eq!(length, 2 * long - 1);
            assert!(found[..long] == bytes[..] && found[long..length] == bytes[1..]);
        }
    }

    #[test]
    fn large_files_go_past_the_cache_and_short_ones_do_not() {
        let file = file("flags", &std::env::temp_dir());
        let is_direct = || {
            sys::fcntl(file.as_raw_fd(), libc::F_GETFL, 0).expect("has flags") & libc::O_DIRECT != 0
        };
        let direct = Direct::new(&file, LARGE_BYTES - 1);
        assert!(!direct.is_direct && !is_direct());
        let mut direct = Direct::new(&file, LARGE_BYTES);
        // Not every file system takes the flag.
        let probe = std::env::temp_dir().join(format!("cairn-direct-probe-{}", std::process::id()));
        let options = &mut File::options();
        let options = options.write(true).create(true).custom_flags(libc::O_DIRECT);
        let takes_it = options.open(&probe).is_ok();
        let _ = fs::remove_file(&probe);
        assert_eq!((direct.is_direct, is_direct()), (takes_it, takes_it));
        direct.write_all_at(b"a tail", 0).expect("writes");
        assert!(!direct.is_direct && !is_direct());
    }

    #[test]
    fn memory_begins_at_a_page_however_it_grew() {
        let mut memory = Aligned::default();
        assert!(memory.is_empty());
        for length in [1, 5000, 4096, 1 << 20] {
            memory.grow(length);
            assert!(memory.len() >= length);
            assert_eq!(memory.as_ptr().align_offset(ALIGNMENT), 0);
        }
    }
}
