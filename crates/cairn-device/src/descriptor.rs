//! Descriptors that Cairn itself keeps open inside an application.
//!
//! Must stay true: they are close-on-exec and live at high numbers, so that the low numbers the
//! application expects to get next stay its own.
//! Does not protect them from the application's `close`; `cairn-posix` does, from the numbers
//! reported by `descriptors()` of their owners.

use core::ffi::CStr;

use crate::sys::{self, Errno, SysResult};

/// Where our descriptors start if the limit on open files allows.
const HIGH_NUMBER: u64 = 512;

/// An open descriptor, closed on drop.
#[derive(Debug)]
pub struct Descriptor(i32);

impl Descriptor {
    /// Opens `path` relative to `directory`, close-on-exec.
    pub fn open(directory: i32, path: &CStr, flags: i32, mode: u32) -> SysResult<Descriptor> {
        sys::openat(directory, path, flags | libc::O_CLOEXEC, mode).map(Descriptor)
    }

    /// Opens a file as `open` does, but only a regular one: whatever else stands there is not
    /// waited for, nor is a symbolic link followed. Errors: `EINVAL`: it is of another kind
    /// (`ELOOP`: a link; `ENXIO`: to be written to, and nobody reads it).
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

    /// What a regular file holds from where the descriptor stands, `bytes_max` of it at most.
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

    /// The number, still owned by this object.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// The number, now owned by the caller.
    pub fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    /// Another number for the same open file, high and close-on-exec.
    pub fn duplicate(&self) -> SysResult<Descriptor> {
        sys::fcntl(self.0, libc::F_DUPFD_CLOEXEC, 0).map(|copy| Descriptor(copy).raise())
    }

    /// Moves to a high number. Where no number is free there, the descriptor stays as it is.
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
        // The kernel frees the number whatever it answers; nothing can be done about an error.
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
        let at = |name: &str| crate::directory::c_path(&path.join(name)).unwrap();
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
