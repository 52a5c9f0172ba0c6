//! Time of single calls, each against the same call on tmpfs: the benefit of interception.
//!
//! Figures are nanoseconds per call; less is better. A bar is the largest allowed share of tmpfs's
//! time.

use crate::Places;
use crate::measure::{Row, nanoseconds_each};
use crate::metadata::{create, names, unlink};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Number of files in the directory.
const FILES: usize = 10_000;
/// Number of files that the calls by name cycle through.
const ROUND: usize = 1000;
/// Number of calls per measured slice.
const CALLS: usize = 50_000;
/// Length of the file that is read and written, bytes.
const FILE_BYTES: usize = 16 << 20;
/// Length of a small read or write, bytes.
const SMALL: usize = 8;
/// Number of bytes copied at a time from a mapping.
const PAGE: usize = 4096;

/// Files that the calls work on.
struct Medium {
    directory: CString,
    names: Vec<CString>,
    data: PathBuf,
    file: File,
}

impl Medium {
    fn new(place: &Path) -> Medium {
        let directory = place.join("calls");
        std::fs::create_dir_all(&directory).expect("make a directory");
        let names = names(&directory, FILES);
        create(&names);
        let data = place.join("calls.data");
        std::fs::write(&data, vec![1; FILE_BYTES]).expect("write a file");
        let file = File::options().read(true).write(true).open(&data).expect("open the file");
        let directory = CString::new(directory.as_os_str().as_bytes()).expect("no zero in a path");
        Medium { directory, names, data, file }
    }

    fn stat(&self) -> f64 {
        self.by_name(|name| {
            let mut attributes = std::mem::MaybeUninit::<libc::stat>::uninit();
            // SAFETY: `name` is zero-terminated, and `attributes` has room for the result.
            let failed = unsafe { libc::stat(name.as_ptr(), attributes.as_mut_ptr()) };
            assert_eq!(failed, 0, "stat: {}", std::io::Error::last_os_error());
        })
    }

    fn open(&self) -> f64 {
        self.by_name(|name| {
            // SAFETY: `name` is zero-terminated, and the call closes only what it opened.
            let closed = unsafe { libc::close(libc::open(name.as_ptr(), libc::O_RDONLY)) };
            assert_eq!(closed, 0, "open or close: {}", std::io::Error::last_os_error());
        })
    }

    fn by_name(&self, call: impl Fn(&CStr)) -> f64 {
        let names = self.names[..ROUND].iter().cycle().take(CALLS);
        nanoseconds_each(CALLS, || names.for_each(|name| call(name)))
    }

    /// Calls `call` for consecutive small pieces of the file. Returns nanoseconds per call.
    fn at_offsets(&self, call: impl Fn(i32, &mut [u8; SMALL], i64) -> isize) -> f64 {
        let (file, mut buffer) = (self.file.as_raw_fd(), [2; SMALL]);
        nanoseconds_each(CALLS, || {
            for index in 0..CALLS {
                let moved = call(file, &mut buffer, (index * SMALL % FILE_BYTES) as i64);
                assert_eq!(moved, SMALL as isize, "{}", std::io::Error::last_os_error());
            }
        })
    }

    fn read(&self) -> f64 {
        self.at_offsets(|file, buffer, offset| {
            // SAFETY: `buffer` has `SMALL` bytes and is valid for writes.
            unsafe { libc::pread(file, buffer.as_mut_ptr().cast(), SMALL, offset) }
        })
    }

    fn write(&self) -> f64 {
        self.at_offsets(|file, buffer, offset| {
            // SAFETY: `buffer` has `SMALL` bytes.
            unsafe { libc::pwrite(file, buffer.as_ptr().cast(), SMALL, offset) }
        })
    }

    /// Lists the directory. Returns nanoseconds per entry.
    fn list(&self) -> f64 {
        let mut entries = 0;
        let all = nanoseconds_each(1, || {
            // SAFETY: `directory` is zero-terminated.
            let stream = unsafe { libc::opendir(self.directory.as_ptr()) };
            assert!(!stream.is_null(), "opendir: {}", std::io::Error::last_os_error());
            // SAFETY: the stream is not null and stays open until `closedir` below.
            while !unsafe { libc::readdir(stream) }.is_null() {
                entries += 1;
            }
            // SAFETY: the stream is open and is not used afterwards.
            unsafe { libc::closedir(stream) };
        });
        assert_eq!(entries, FILES + 2, "every file, `.` and `..`");
        all / entries as f64
    }

    /// Copies the file out of a mapping page by page. Returns nanoseconds per page.
    fn copy(&self, mapping: &FileMapping) -> f64 {
        let mut target = [0_u8; PAGE];
        nanoseconds_each(FILE_BYTES / PAGE, || {
            for offset in (0..FILE_BYTES).step_by(PAGE) {
                // SAFETY: the page lies inside the mapping, and `target` has `PAGE` bytes.
                unsafe {
                    let page = mapping.0.cast::<u8>().add(offset);
                    std::ptr::copy_nonoverlapping(page, target.as_mut_ptr(), PAGE);
                }
                std::hint::black_box(&mut target);
            }
        })
    }

    /// Copies the file out of a new mapping. Returns nanoseconds per page.
    fn map_and_copy(&self) -> f64 {
        nanoseconds_each(FILE_BYTES / PAGE, || {
            self.copy(&self.map());
        })
    }

    fn map(&self) -> FileMapping {
        let (protection, file) = (libc::PROT_READ, self.file.as_raw_fd());
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe { libc::mmap(null, FILE_BYTES, protection, libc::MAP_SHARED, file, 0) };
        assert!(start != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        FileMapping(start)
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        unlink(&self.names);
        // A leftover file of a benchmark does no harm.
        let _ = std::fs::remove_file(&self.data);
    }
}

/// A mapping of the file.
struct FileMapping(*mut libc::c_void);

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this length, and nothing borrows it.
        unsafe { libc::munmap(self.0, FILE_BYTES) };
    }
}

/// Prints all rows.
pub fn times(places: &Places) {
    let (ours, tmpfs) = (Medium::new(&places.cairn), Medium::new(&places.tmpfs));
    let compare = |name: &str, bar: f64, call: fn(&Medium) -> f64| {
        Row::compare_times(format!("{name} / tmpfs"), bar, || call(&ours), || call(&tmpfs));
    };
    compare("stat", 0.25, Medium::stat);
    compare("open+close of a file", 0.5, Medium::open);
    compare("pread of 8 bytes", 0.2, Medium::read);
    compare("pwrite of 8 bytes", 0.2, Medium::write);
    compare("readdir, an entry", 0.5, Medium::list);
    let (mapped, on_tmpfs) = (ours.map(), tmpfs.map());
    let (copy, from_tmpfs) = (|| ours.copy(&mapped), || tmpfs.copy(&on_tmpfs));
    Row::compare_times("4 KiB from a mapped file / tmpfs", 1.0, copy, from_tmpfs);
    compare("the same, mapped anew for 16 MiB", 1.0, Medium::map_and_copy);
}
