//! An open directory of the store, and the operations on names in it.
//!
//! Invariant: every failure names the path and the errno. Cairn makes all names itself, without
//! `..`, so nothing outside the directory is reached through them.
//!
//! Does not know which files a store has; `store.rs` and `namespace.rs` do.

use core::ffi::CStr;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairn_core::Error;
use cairn_nvme::claim::Holder;
use cairn_nvme::shared::RemotePath;
use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::c_path;
use cairn_platform::sys::{self, Errno, SysResult};

/// Reason why the store, or a part of it, could not be made or opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreError {
    /// The attempted operation, as in "cannot {what}".
    pub what: &'static str,
    /// The file it was attempted on.
    pub path: PathBuf,
    /// Linux errno of the failure.
    pub errno: i32,
    /// The core's own error, if the core refused.
    pub refusal: Option<Error>,
    /// Advice for the user; may be empty.
    pub advice: Cow<'static, str>,
    /// The machine that has claimed the tier.
    pub holder: Option<Box<Holder>>,
}

impl StoreError {
    /// Returns the error for a failed attempt to `what` the file `path`.
    pub fn new(what: &'static str, path: &Path, cause: impl Cause) -> StoreError {
        let (errno, refusal) = (cause.number(), cause.refusal());
        StoreError { what, path: path.to_owned(), errno, refusal, advice: "".into(), holder: None }
    }

    /// Returns the same error with advice for the user.
    pub fn advise(mut self, advice: impl Into<Cow<'static, str>>) -> StoreError {
        self.advice = advice.into();
        self
    }

    /// Returns the same error with the machine that has claimed the tier.
    pub(crate) fn held_by(mut self, holder: Holder) -> StoreError {
        self.holder = Some(Box::new(holder));
        self
    }
}

impl core::fmt::Display for StoreError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The standard library's text for an errno, which ends in "(os error N)".
        let reason = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "cannot {} {}: {reason}", self.what, RemotePath::shown(&self.path))?;
        if let Some(holder) = &self.holder {
            write!(f, " (claimed by {holder})")?;
        }
        if self.advice.is_empty() { Ok(()) } else { write!(f, "; {}", self.advice) }
    }
}

impl std::error::Error for StoreError {}

/// Result of an operation on the store's files.
pub type StoreResult<T> = Result<T, StoreError>;

/// An errno, from the kernel or from the core.
pub trait Cause {
    /// Returns the Linux errno.
    fn number(&self) -> i32;
    /// Returns the core's own error; `None` for an errno of the kernel.
    fn refusal(&self) -> Option<Error>;
}

impl Cause for Errno {
    fn number(&self) -> i32 {
        self.0
    }

    fn refusal(&self) -> Option<Error> {
        None
    }
}

impl Cause for Error {
    fn number(&self) -> i32 {
        self.errno()
    }

    fn refusal(&self) -> Option<Error> {
        Some(*self)
    }
}

/// An open directory and the path it was opened by.
#[derive(Debug)]
pub struct Directory {
    descriptor: Descriptor,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory by any path, following symbolic links.
    pub fn open(path: &Path) -> StoreResult<Directory> {
        let failed = |errno: Errno| StoreError::new("open directory", path, errno);
        let name = c_path(path).map_err(failed)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let descriptor = Descriptor::open(libc::AT_FDCWD, &name, flags, 0).map_err(failed)?;
        Ok(Directory { descriptor: descriptor.raise(), path: path.to_owned() })
    }

    /// Opens the private directory `name`, and creates it with mode 0700 if it is missing. Errors:
    /// it exists but is not a directory (or is a symbolic link), belongs to another user, or others
    /// can enter it.
    pub fn private(&self, name: &CStr) -> StoreResult<Directory> {
        match sys::mkdirat(self.raw(), name, 0o700) {
            Ok(()) | Err(Errno(libc::EEXIST)) => {}
            Err(errno) => return Err(self.error("create directory", name, errno)),
        }
        self.existing_private(name)
    }

    /// Opens the directory `name` in this one, whoever may enter it.
    fn below(&self, name: &CStr) -> StoreResult<Directory> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let descriptor = Descriptor::open(self.raw(), name, flags, 0)
            .map_err(|errno| self.error("use directory", name, errno))?;
        Ok(Directory { descriptor: descriptor.raise(), path: self.join(name) })
    }

    /// Opens the private directory `name`. Errors: as `private`, and it does not exist.
    pub fn existing_private(&self, name: &CStr) -> StoreResult<Directory> {
        self.below(name)?.checked_private()
    }

    /// Returns this directory if it belongs to this user and no other user can enter it.
    pub fn checked_private(self) -> StoreResult<Directory> {
        let failed = |errno: Errno| StoreError::new("use directory", &self.path, errno);
        let stat = sys::fstat(self.raw()).map_err(failed)?;
        if stat.st_uid != sys::geteuid() {
            return Err(failed(Errno(libc::EPERM))
                .advise("it belongs to another user; choose another place with CAIRN_STORE_ROOT"));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(failed(Errno(libc::EPERM))
                .advise("other users can enter it; make it private with chmod 700"));
        }
        Ok(self)
    }

    /// Returns the number of the descriptor.
    pub fn raw(&self) -> i32 {
        self.descriptor.raw()
    }

    /// Returns the path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a name in this directory.
    pub fn join(&self, name: &CStr) -> PathBuf {
        self.path.join(OsStr::from_bytes(name.to_bytes()))
    }

    /// Returns the error for a failed attempt to `what` the file `name`.
    pub fn error(&self, what: &'static str, name: &CStr, cause: impl Cause) -> StoreError {
        StoreError::new(what, &self.join(name), cause)
    }

    /// Removes a file. A missing file is no error.
    pub fn remove_file(&self, name: &CStr) -> StoreResult<()> {
        match sys::unlinkat(self.raw(), name, 0) {
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(self.error("remove", name, errno)),
        }
    }

    /// Whether `name` exists. Does not follow symbolic links.
    pub fn contains(&self, name: &CStr) -> bool {
        sys::fstatat(self.raw(), name, libc::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// Waits for the exclusive right to add or remove files in this directory. The right ends when
    /// the returned descriptor is dropped or the process dies.
    pub fn exclusive(&self) -> StoreResult<Descriptor> {
        let handle = self.handle()?;
        loop {
            match sys::flock(handle.raw(), libc::LOCK_EX) {
                Ok(()) => return Ok(handle),
                Err(Errno(libc::EINTR)) => {}
                Err(errno) => return Err(self.error("lock", c"", errno)),
            }
        }
    }

    /// As `exclusive`, but returns `None` if somebody has the right.
    pub fn try_exclusive(&self) -> StoreResult<Option<Descriptor>> {
        let handle = self.handle()?;
        match sys::flock(handle.raw(), libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => Ok(Some(handle)),
            Err(Errno(libc::EWOULDBLOCK)) => Ok(None),
            Err(errno) => Err(self.error("lock", c"", errno)),
        }
    }

    /// Opens a separate file description for a lock.
    fn handle(&self) -> StoreResult<Descriptor> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let opened = Descriptor::open(self.raw(), c".", flags, 0);
        opened.map_err(|errno| self.error("lock", c"", errno))
    }

    /// Removes everything below this directory, on this file system.
    pub fn clear(&self) -> StoreResult<()> {
        let mut names = Vec::new();
        list(self.raw(), &mut |name, kind| {
            names.push((name.to_owned(), kind == libc::DT_DIR));
            true
        })
        .map_err(|errno| self.error("list", c"", errno))?;
        for (name, is_directory) in names {
            if !is_directory {
                self.remove_file(&name)?;
                continue;
            }
            self.below(&name)?.clear()?;
            sys::unlinkat(self.raw(), &name, libc::AT_REMOVEDIR)
                .map_err(|errno| self.error("remove directory", &name, errno))?;
        }
        Ok(())
    }
}

/// Calls `visit` with the name and the `DT_*` kind of each entry except `.` and `..`, until it
/// returns false. Starts at the position of the open directory. Allocates nothing. Entries that are
/// created or removed meanwhile may be missed.
pub fn list(directory: i32, visit: &mut dyn FnMut(&CStr, u8) -> bool) -> SysResult<()> {
    /// Offsets of `d_reclen`, `d_type` and `d_name` in `linux_dirent64`.
    const LENGTH: usize = 16;
    const KIND: usize = 18;
    const NAME: usize = 19;
    let mut buffer = [0_u8; 4096];
    loop {
        let filled = sys::getdents64(directory, &mut buffer)?;
        if filled == 0 {
            return Ok(());
        }
        let mut entries = &buffer[..filled];
        while !entries.is_empty() {
            let malformed = Errno(libc::EIO);
            let header = entries.get(..NAME).ok_or(malformed)?;
            let length = usize::from(u16::from_le_bytes([header[LENGTH], header[LENGTH + 1]]));
            let kind = header[KIND];
            let name = entries.get(NAME..length).ok_or(malformed)?;
            let name = CStr::from_bytes_until_nul(name).map_err(|_| malformed)?;
            entries = &entries[length..];
            if !matches!(name.to_bytes(), b"." | b"..") && !visit(name, kind) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A fresh private directory in /dev/shm. Drop removes it with its contents.
    pub(crate) struct Scratch(pub Directory);

    impl Scratch {
        pub(crate) fn new() -> Scratch {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("cairn-test-{}-{count}", sys::getpid());
            let parent = Directory::open(Path::new("/dev/shm")).unwrap();
            Scratch(parent.private(&CString::new(name).unwrap()).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.path());
        }
    }

    #[test]
    fn directory_open_to_others_is_refused_with_advice() {
        let scratch = Scratch::new();
        let path = scratch.0.path().join("open");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        let error = scratch.0.private(c"open").unwrap_err();
        assert_eq!((error.errno, &error.path), (libc::EPERM, &path));
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }

    #[test]
    fn symbolic_link_in_place_of_a_private_directory_is_refused() {
        let scratch = Scratch::new();
        scratch.0.private(c"real").unwrap();
        symlink("real", scratch.0.path().join("link")).unwrap();
        let error = scratch.0.private(c"link").unwrap_err();
        assert!(matches!(error.errno, libc::ELOOP | libc::ENOTDIR), "{error}");
    }

    #[test]
    fn listing_gives_every_name_once_even_over_many_batches() {
        let scratch = Scratch::new();
        for number in 0..500 {
            std::fs::write(scratch.0.path().join(format!("file-{number}")), b"").unwrap();
        }
        let mut names = std::collections::BTreeSet::new();
        list(scratch.0.raw(), &mut |name, _| names.insert(name.to_owned())).unwrap();
        assert_eq!(names.len(), 500);
    }

    #[test]
    fn clearing_removes_nested_directories() {
        let scratch = Scratch::new();
        let inner = scratch.0.private(c"a").unwrap().private(c"b").unwrap();
        std::fs::write(inner.path().join("file"), b"x").unwrap();
        scratch.0.clear().unwrap();
        assert!(!scratch.0.contains(c"a"));
    }

    #[test]
    fn errors_name_a_namespace_as_it_is_given() {
        let error = |path| StoreError::new("connect to", Path::new(path), Errno(libc::EIO));
        let said = error("//127.0.0.1:4420/nqn.x?nsid=1").to_string();
        assert!(said.starts_with("cannot connect to nvme-tcp://127.0.0.1:4420/nqn.x?nsid=1: "));
        assert!(error("/tiers/one").to_string().starts_with("cannot connect to /tiers/one: "));
    }
}
