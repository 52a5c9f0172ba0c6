//! Descriptors that Cairn itself keeps open inside an application.
//!
//! Must stay true: they are close-on-exec and have high numbers, so that the application gets the
//! low numbers it expects.
//!
//! Does not protect them from the application's `close`; `cairn-posix` does, with the numbers that
//! `descriptors()` of their owners reports.

use core::ffi::CStr;

use crate::sys::{self, Errno, SysResult};

/// Lowest number of our descriptors, if the limit on open files allows it.
const HIGH_NUMBER: u64 = 512;

/// An open descriptor, closed on drop.
#[derive(Debug)]
pub struct Descriptor(i32);

impl Descriptor {
    /// Opens `path` relative to `directory`, close-on-exec.
    pub fn open(directory: i32, path: &CStr, flags: i32, mode: u32) -> SysResult<Descriptor> {
        sys::openat(directory, path, flags | libc::O_CLOEXEC, mode).map(Descriptor)
    }

    /// Opens a file as `open` does, but only a regular one. Does not wait for anything else at that
    /// path and follows no symbolic link. Errors: `EINVAL` for another kind of file, `ELOOP` for a
    /// link, `ENXIO` for a FIFO opened for writing that nobody reads.
    pub fn open_regular(
        directory: i32,
        path: &CStr,
        flags: i32,
        mode: u32,
    ) -> SysResult<Descriptor> {
        let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = Descriptor::open(directory, path, flags, mode)?;
        match sys::fstat(file.raw())?.st_mode & libc::S_IFMT {
            libc::S_IFREG => Ok(file),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// Returns the rest of a regular file from the descriptor's position on, at most `bytes_max`
    /// bytes.
    pub fn read_up_to(&self, bytes_max: usize) -> SysResult<Vec<u8>> {
        let size = usize::try_from(sys::fstat(self.0)?.st_size).unwrap_or(0);
        let mut content = vec![0; size.min(bytes_max)];
        let mut filled = 0;
        while filled < content.len() {
            match sys::read(self.0, &mut content[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        content.truncate(filled);
        Ok(content)
    }

    /// Takes over a raw descriptor.
    pub fn from_raw(raw: i32) -> Descriptor {
        Descriptor(raw)
    }

    /// Returns the number, still owned by this object.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// Returns the number, which the caller owns from then on.
    pub fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    /// Returns another descriptor of the same open file, with a high number and close-on-exec.
    pub fn duplicate(&self) -> SysResult<Descriptor> {
        sys::fcntl(self.0, libc::F_DUPFD_CLOEXEC, 0).map(|copy| Descriptor(copy).raise())
    }

    /// Moves to a high number. If none is free there, the descriptor keeps its number.
    pub fn raise(self) -> Descriptor {
        let limit = sys::soft_limit(libc::RLIMIT_NOFILE).unwrap_or(1024);
        let lowest = HIGH_NUMBER.min(limit - limit / 4);
        match sys::fcntl(self.0, libc::F_DUPFD_CLOEXEC, lowest as i64) {
            Ok(high) => Descriptor(high),
            Err(Errno(_)) => self,
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // The kernel frees the number even if it returns an error, so there is nothing to handle.
        let _ = sys::close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_read_in_part() {
        let path = std::env::temp_dir().join(format!("cairn-regular-{}", sys::getpid()));
        std::fs::create_dir_all(&path).unwrap();
        let at = |name: &str| crate::sys::c_path(&path.join(name)).unwrap();
        std::fs::write(path.join("file"), "content").unwrap();
        sys::mknodat(libc::AT_FDCWD, &at("fifo"), libc::S_IFIFO | 0o600).unwrap();
        std::os::unix::fs::symlink(path.join("file"), path.join("link")).unwrap();
        let open =
            |name: &str, flags| Descriptor::open_regular(libc::AT_FDCWD, &at(name), flags, 0);
        let errno = |name, flags| open(name, flags).unwrap_err().0;
        assert_eq!(errno("fifo", libc::O_RDONLY), libc::EINVAL);
        assert_eq!(errno("fifo", libc::O_WRONLY), libc::ENXIO);
        assert_eq!(errno("link", libc::O_RDONLY), libc::ELOOP);
        assert_eq!(errno(".", libc::O_RDONLY), libc::EINVAL);
        let file = |bytes| open("file", libc::O_RDONLY).unwrap().read_up_to(bytes).unwrap();
        assert_eq!(
            (file(7), file(100), file(3)),
            (b"content".into(), b"content".into(), b"con".into())
        );
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn raised_descriptor_is_high_and_closed_on_exec() {
        let file = Descriptor::open(libc::AT_FDCWD, c"/", libc::O_PATH, 0).unwrap().raise();
        let limit = sys::soft_limit(libc::RLIMIT_NOFILE).unwrap();
        assert!(file.raw() as u64 >= HIGH_NUMBER.min(limit - limit / 4));
        let flags = sys::fcntl(file.raw(), libc::F_GETFD, 0).unwrap();
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
}
