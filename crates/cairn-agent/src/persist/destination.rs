//! File operations in the persist directory.
//!
//! Must stay true: no operation follows a symbolic link below the directory, so nothing outside it
//! can be read, replaced or removed through one. A file gets its name only by renaming a complete
//! and durable file. Until then it waits in a directory of its own, the *shelf*, which no user
//! looks into: `.cairn-STORE.new`. Names are durable after `synchronise`. Paths are those of the
//! store; files land where the mapping says.
//!
//! Does not know what should be there; `plan.rs` does.

mod shelf;

use crate::store::extended;
pub use shelf::Temporary;
use shelf::shelf_name;

use cairn_core::Timestamp;
use cairn_job::file::node::Kind;
use cairn_job::outside::found::Found;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::model::directory_id::DirectoryId;
use crate::model::error::{Error, Result};
use cairn_job::file::extended::Extended;
use cairn_job::file::mapping::Mapping;
use cairn_job::file::path::FilePath;

/// Flags for opening a directory on the way to a file.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open persist directory.
pub struct Destination {
    root: OwnedFd,
    path: PathBuf,
    suffix: String,
    mapping: Mapping,
    refusals: Refusals,
    /// Directories other than this one and the mapped ones that have shelves, as places.
    roots: Mutex<BTreeSet<FilePath>>,
    /// The open shelf for what lies directly in a directory, until shelves are removed.
    shelves: Mutex<HashMap<FilePath, Arc<OwnedFd>>>,
}

/// Whether the file system refused to change permission bits: some have none, or use access control
/// lists instead. Copies keep the bits that such a file system gives them, and the manifest records
/// that.
#[derive(Clone, Default)]
struct Refusals(Arc<AtomicBool>);

impl Refusals {
    /// Records a refusal instead of returning it as an error.
    fn note(&self, set: rustix::io::Result<()>) -> rustix::io::Result<()> {
        match set {
            Err(Errno::PERM | Errno::NOTSUP | Errno::NOSYS) => {
                self.0.store(true, Ordering::Relaxed);
                Ok(())
            }
            set => set,
        }
    }
}

impl Destination {
    /// Opens the directory `path`. `store` makes the names of temporary files unique to one store.
    pub fn open(path: &Path, store: &str) -> Result<Destination> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(Error::file("open the directory", path))?;
        let (path, suffix) = (path.to_path_buf(), format!(".cairn-{store}"));
        let (mapping, refusals) = (Mapping::default(), Refusals::default());
        let (roots, shelves) = Default::default();
        Ok(Destination { root, path, suffix, mapping, refusals, roots, shelves })
    }

    /// Whether the file system refused to change permission bits.
    pub fn has_refused_modes(&self) -> bool {
        self.refusals.0.load(Ordering::Relaxed)
    }

    /// Whether the path still leads to the directory that is open.
    pub fn is_current(&self) -> bool {
        match (rustix::fs::fstat(&self.root), rustix::fs::stat(&self.path)) {
            (Ok(open), Ok(named)) => (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino),
            _ => false,
        }
    }

    /// Whether a read error concerns one file alone. It does not if the directory is gone, or if
    /// the process lacks resources to read anything.
    pub fn blames_one_file(&self, error: &std::io::Error) -> bool {
        const OF_ALL: [i32; 10] = [
            libc::ESTALE,
            libc::ENODEV,
            libc::ENOTCONN,
            libc::ECONNABORTED,
            libc::ESHUTDOWN,
            libc::ETIMEDOUT,
            libc::EHOSTDOWN,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
        ];
        let is_of_all = error.raw_os_error().is_some_and(|code| OF_ALL.contains(&code));
        !is_of_all && self.is_current() && std::fs::read_dir(&self.path).is_ok()
    }

    /// Makes files land where `mapping` says from now on.
    pub fn map(&mut self, mapping: Mapping) {
        self.mapping = mapping;
    }

    /// Returns the mapping of paths to places.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Makes the places of mapped directories, durably. They stay whatever happens to the
    /// directories.
    pub fn make_places(&self) -> Result<()> {
        for rule in self.mapping.rules() {
            let path = self.path.join(rule.to.as_os_str());
            self.make_all(&rule.to).map_err(Error::file("make the directory", &path))?;
        }
        Ok(())
    }

    /// Makes a directory and its missing parents with the mode of the persist directory.
    fn make_all(&self, place: &FilePath) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&self.root)?.st_mode & 0o7777);
        let mut directory = self.root.try_clone().map_err(|_| Errno::MFILE)?;
        for component in place.components() {
            let name = OsStr::from_bytes(component);
            let made = rustix::fs::mkdirat(&directory, name, mode);
            let inner = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?;
            match made {
                Ok(()) => {
                    self.refusals.note(rustix::fs::fchmod(&inner, mode))?;
                    rustix::fs::fsync(&directory)?;
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            directory = inner;
        }
        Ok(())
    }

    /// Errors: `AnotherDirectory` if the directory is not one that `known` may be.
    pub fn check(&self, known: DirectoryId) -> Result<()> {
        let found = DirectoryId::of(&self.root).map_err(Error::file("look at", &self.path))?;
        match known.may_be(found) {
            true => Ok(()),
            false => Err(Error::AnotherDirectory { path: self.path.clone() }),
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the full path of a file below the directory, for messages.
    pub fn full_path(&self, path: &FilePath) -> PathBuf {
        let place = self.mapping.place(path);
        self.path.join(place.as_ref().unwrap_or(path).as_os_str())
    }

    /// Looks at `path`. None if nothing is there, or a parent is missing or not a directory.
    pub fn look(&self, path: &FilePath) -> Result<Option<Found>> {
        match self.mapping.place(path) {
            Some(place) => self.look_at_place(&place),
            None => Ok(None),
        }
    }

    /// Looks at a place below the directory.
    pub(crate) fn look_at_place(&self, path: &FilePath) -> Result<Option<Found>> {
        let Some((parent, name)) = path.split() else { return Ok(None) };
        let absent = |errno| matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP);
        let directory = match self.walk(&parent) {
            Ok(directory) => directory,
            Err(errno) if absent(errno) => return Ok(None),
            Err(errno) => return Err(self.error("look at", path)(errno)),
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::statat(&directory, OsStr::from_bytes(name), flags) {
            Ok(stat) => Ok(Some(Found {
                kind: kind_of(FileType::from_raw_mode(stat.st_mode)),
                bytes: u64::try_from(stat.st_size).unwrap_or(0),
                mtime_ns: Timestamp::from_parts(stat.st_mtime, stat.st_mtime_nsec as i64).0,
                mode: stat.st_mode & 0o7777,
                inode: stat.st_ino,
                links: stat.st_nlink,
            })),
            Err(errno) if absent(errno) => Ok(None),
            Err(errno) => Err(self.error("look at", path)(errno)),
        }
    }

    /// Opens the regular file `path` for reading.
    pub fn open_file(&self, path: &FilePath) -> Result<File> {
        let (parent, name) = self.parent("open", path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&parent, &name, flags, Mode::empty());
        Ok(File::from(file.map_err(self.error("open", path))?))
    }

    /// Makes a directory with at least all rights for the owner. An existing directory is fine.
    pub fn make_directory(&self, path: &FilePath, mode: u32) -> Result<()> {
        let (parent, name) = self.parent("make the directory", path)?;
        match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(mode & 0o7777 | 0o700)) {
            Ok(()) => Ok(()),
            // If it is not a directory, only a later write would fail; report it here instead.
            Err(Errno::EXIST) => match self.open_directory(path) {
                Ok(_) => Ok(()),
                Err(errno) => Err(self.error("use as a directory", path)(errno)),
            },
            Err(errno) => Err(self.error("make the directory", path)(errno)),
        }
    }

    /// Removes a file or symbolic link, if it still exists.
    pub fn remove_file(&self, path: &FilePath) -> Result<()> {
        self.remove(path, AtFlags::empty())
    }

    /// Removes a directory if it still exists and is empty.
    pub fn remove_directory(&self, path: &FilePath) -> Result<()> {
        self.remove(path, AtFlags::REMOVEDIR)
    }

    fn remove(&self, path: &FilePath, flags: AtFlags) -> Result<()> {
        let place = self.mapping.place(path).filter(|_| !self.mapping.is_mapped(path));
        let Some((parent, name)) = place.as_ref().and_then(FilePath::split) else { return Ok(()) };
        let removed = self
            .walk(&parent)
            .and_then(|parent| rustix::fs::unlinkat(&parent, OsStr::from_bytes(name), flags));
        match removed {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.error("remove", path)(errno)),
        }
    }

    /// Renames a file, replacing the file at the new name.
    pub fn rename(&self, from: &FilePath, to: &FilePath) -> Result<()> {
        let (old_parent, old_name) = self.parent("rename", from)?;
        let (new_parent, new_name) = self.parent("rename to", to)?;
        let file = |parent: &OwnedFd, name: &OsString| {
            let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((found.st_dev, found.st_ino))
        };
        let old = file(&old_parent, &old_name);
        // The places of mapped directories may be on two file systems that use the same inode
        // numbers.
        let is_same = old.is_some() && old == file(&new_parent, &new_name);
        let renamed = match is_same {
            // `rename` does nothing if both names belong to the same file.
            true => rustix::fs::unlinkat(&old_parent, &old_name, AtFlags::empty()),
            false => rustix::fs::renameat(&old_parent, &old_name, &new_parent, &new_name),
        };
        match renamed {
            // The user has put one of the directories on another file system.
            Err(Errno::XDEV) => {
                self.copy_on_shelf(from, to)?;
                self.publish(to)?;
                self.remove_file(from)
            }
            renamed => renamed.map_err(self.error("rename to", to)),
        }
    }

    /// Moves `path` to the same path of another directory. Precondition: its parents exist there.
    pub fn move_to(&self, path: &FilePath, other: &Destination) -> Result<()> {
        let place = other.mapping.place(path);
        let place = place.ok_or_else(|| Error::Occupied { path: path.clone() })?;
        self.move_to_place(path, other, &place)
    }

    /// Moves `path` to the same path of another directory, durably, and makes its parents there.
    /// Precondition: the name is free there.
    pub fn set_aside_in(&self, path: &FilePath, other: &Destination) -> Result<()> {
        if let Some((parent, _)) = path.split() {
            other.make_all(&parent).map_err(other.error("make the directory", &parent))?;
        }
        self.move_to(path, other)?;
        let parent = path.split().map_or(FilePath::root(), |(parent, _)| parent);
        other.synchronise(&parent)
    }

    /// Opens a directory below this one, and makes it if it is missing.
    pub fn make_and_open(&self, place: &FilePath) -> Result<Destination> {
        self.make_all(place).map_err(self.error("make the directory", place))?;
        let store = self.suffix.trim_start_matches(".cairn-");
        Destination::open(&self.path.join(place.as_os_str()), store)
    }

    /// Lists a directory: names, and whether each is a directory. Empty if there is no such
    /// directory.
    pub fn list(&self, directory: &FilePath) -> Result<Vec<(Vec<u8>, bool)>> {
        let place = self.mapping.place(directory).unwrap_or_default();
        let opened = match self.walk(&place) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
            Err(errno) => return Err(self.error("list", directory)(errno)),
        };
        let list = || -> rustix::io::Result<Vec<(Vec<u8>, bool)>> {
            let mut found = Vec::new();
            for entry in rustix::fs::Dir::read_from(&opened)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    let kind = match entry.file_type() {
                        FileType::Unknown => {
                            let stat = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW);
                            stat.map_or(FileType::Unknown, |it| FileType::from_raw_mode(it.st_mode))
                        }
                        kind => kind,
                    };
                    let is_directory = kind == FileType::Directory;
                    found.push((name.to_vec(), is_directory));
                }
            }
            Ok(found)
        };
        list().map_err(self.error("list", directory))
    }

    /// Makes a symbolic link, replacing the file at that name.
    pub fn make_symlink(&self, path: &FilePath, target: &[u8], mtime_ns: i64) -> Result<()> {
        let action = "make the symbolic link";
        let (parent, name) = self.parent(action, path)?;
        let (shelf, temporary) = (self.shelf(action, path)?, shelf_name(path));
        let target = OsStr::from_bytes(target);
        let make = || rustix::fs::symlinkat(target, &shelf, &temporary);
        let made = match make() {
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&shelf, &temporary, AtFlags::empty()).and_then(|()| make())
            }
            other => other,
        };
        made.and_then(|()| {
            set_times(&shelf, OsStr::new(&temporary), mtime_ns)?;
            rustix::fs::renameat(&shelf, &temporary, &parent, &name)
        })
        .map_err(self.error(action, path))
    }

    /// Returns the target of a symbolic link.
    pub fn read_link(&self, path: &FilePath) -> Result<Vec<u8>> {
        let (parent, name) = self.parent("read the symbolic link", path)?;
        let target = rustix::fs::readlinkat(&parent, &name, Vec::new());
        Ok(target.map_err(self.error("read the symbolic link", path))?.into_bytes())
    }

    /// Sets exactly these extended attributes on a file or directory. False if its file system does
    /// not take them. Leaves the owner with read and write permission: permission bits are set
    /// last.
    pub fn set_extended(&self, path: &FilePath, extended: &Extended) -> Result<bool> {
        let action = "set the attributes of";
        self.separate(path)?;
        let (parent, name) = self.parent(action, path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, &name, flags, Mode::empty());
        let file = file.map_err(self.error(action, path))?;
        let mode = rustix::fs::fstat(&file).map_err(self.error(action, path))?.st_mode;
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        let set = rustix::fs::chmod(&itself, Mode::from_raw_mode(mode & 0o7777 | 0o600));
        self.refusals.note(set).map_err(self.error(action, path))?;
        Ok(extended::give(extended, &file))
    }

    /// Returns the extended attributes of a file or directory; none if it does not exist.
    pub fn extended(&self, path: &FilePath) -> Extended {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = self.parent("look at", path).ok();
        let opened = opened.and_then(|(parent, name)| {
            rustix::fs::openat(&parent, &name, flags, Mode::empty()).ok()
        });
        opened.map(extended::read).unwrap_or_default()
    }

    /// Gives the file at `path` an inode of its own if it has other names: those keep the old inode
    /// unchanged.
    fn separate(&self, path: &FilePath) -> Result<()> {
        match self.look(path)? {
            Some(found) if found.kind == Some(Kind::File) && found.links > 1 => {}
            _ => return Ok(()),
        }
        self.copy_on_shelf(path, path)?;
        self.publish(path)
    }

    /// Opens a regular file for reading even if its owner may not read it: grants the right for
    /// that moment.
    fn open_unreadable(&self, path: &FilePath, mode: u32) -> Result<File> {
        const READ: u32 = 0o400;
        if mode & READ != 0 {
            return self.open_file(path);
        }
        let (parent, name) = self.parent("open", path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, &name, flags, Mode::empty());
        let file = file.map_err(self.error("open", path))?;
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        let allow = |mode| {
            let set = rustix::fs::chmod(&itself, Mode::from_raw_mode(mode));
            self.refusals.note(set).map_err(self.error("set the attributes of", path))
        };
        allow(mode | READ)?;
        let opened = self.open_file(path);
        allow(mode)?;
        opened
    }

    /// Sets mode and modification time of a file or directory.
    pub fn set_attributes(&self, path: &FilePath, mode: u32, mtime_ns: i64) -> Result<()> {
        match self.look(path)? {
            Some(found) if (found.mode, found.mtime_ns) == (mode & 0o7777, mtime_ns) => {
                return Ok(());
            }
            _ => self.separate(path)?,
        }
        let (parent, name) = self.parent("set the attributes of", path)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&parent, &name, flags, Mode::empty())
            .and_then(|file| {
                // An O_PATH descriptor cannot be changed itself; its name in /proc leads to exactly
                // this file.
                let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
                let set = rustix::fs::chmod(&itself, Mode::from_raw_mode(mode & 0o7777));
                self.refusals.note(set)?;
                set_times(&parent, &name, mtime_ns)
            })
            .map_err(self.error("set the attributes of", path))
    }

    /// Removes what `keep_below` has put there, and directories that are empty then.
    pub fn remove_below(&self, path: &FilePath, place: &str) -> Result<()> {
        let mut aside = self.place_below(path, place)?;
        let mut flags = AtFlags::empty();
        while let Some((above, name)) = aside.split() {
            let removed = self
                .walk(&above)
                .and_then(|above| rustix::fs::unlinkat(&above, OsStr::from_bytes(name), flags));
            let is_top = name == place.as_bytes();
            match removed {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(()),
                Err(errno) => return Err(self.error("remove", path)(errno)),
            }
            if is_top {
                return Ok(());
            }
            (aside, flags) = (above, AtFlags::REMOVEDIR);
        }
        Ok(())
    }

    /// Path of a file that `keep_below` has moved, as a place below the persist directory.
    pub fn place_below(&self, path: &FilePath, place: &str) -> Result<FilePath> {
        let occupied = || Error::Occupied { path: path.clone() };
        let full = self.mapping.place(path).ok_or_else(occupied)?;
        let root = self.mapping.root_of(path);
        let inner = full.strip_prefix(&root).ok_or_else(occupied)?;
        Ok(root.join(place.as_bytes()).append(&inner))
    }

    /// Opens what `keep_below` has put below `place`. Returns also its full path. Errors: as
    /// `open_file`.
    pub fn open_below(&self, path: &FilePath, place: &str) -> Result<(File, PathBuf)> {
        let place = self.place_below(path, place)?;
        let (parent, name) = place.split().ok_or(Errno::ISDIR).map_err(self.error("open", path))?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = self.walk(&parent).and_then(|parent| {
            rustix::fs::openat(&parent, OsStr::from_bytes(name), flags, Mode::empty())
        });
        let file = File::from(file.map_err(self.error("open", path))?);
        Ok((file, self.path.join(place.as_os_str())))
    }

    /// Replaces the file `name` in the directory itself by one with these bytes, durably.
    pub fn replace_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        let temporary = format!(".{name}{}", self.suffix);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let opened = rustix::fs::openat(&self.root, &temporary, flags, mode);
        let mut file = File::from(opened.map_err(Error::file("create", &path))?);
        file.write_all(bytes).map_err(Error::file("write", &path))?;
        self.refusals
            .note(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)))
            .map_err(Error::file("finish", &path))?;
        file.sync_all().map_err(Error::file("make durable", &path))?;
        rustix::fs::renameat(&self.root, &temporary, &self.root, name)
            .map_err(Error::file("replace", &path))?;
        self.synchronise(&FilePath::root())
    }

    /// Makes names in `directory` durable: creations, renames and removals. A missing directory
    /// needs nothing.
    pub fn synchronise(&self, directory: &FilePath) -> Result<()> {
        match self.open_directory(directory).and_then(|opened| rustix::fs::fsync(&opened)) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(errno) => Err(self.error("make durable", directory)(errno)),
        }
    }

    /// Path of the journal.
    pub fn journal_path(&self) -> FilePath {
        FilePath::root().join(self.suffix.as_bytes())
    }

    /// Opens the journal for reading. None if it does not exist.
    pub fn open_journal(&self) -> Result<Option<File>> {
        let path = self.journal_path();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.root, path.as_os_str(), flags, Mode::empty()) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("open", &path)(errno)),
        }
    }

    /// Makes the empty file `name` in the directory itself. One that is there is emptied.
    pub fn create_file(&self, name: &FilePath, mode: u32) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(mode);
        let file = rustix::fs::openat(&self.root, name.as_os_str(), flags, mode);
        Ok(File::from(file.map_err(self.error("create", name))?))
    }

    /// Opens the parent of the place of `path`; returns it and the last component.
    fn parent(&self, action: &'static str, path: &FilePath) -> Result<(OwnedFd, OsString)> {
        let place = self.mapping.place(path);
        let place = place.ok_or_else(|| Error::Occupied { path: path.clone() })?;
        let (parent, name) = place.split().ok_or(Errno::ISDIR).map_err(self.error(action, path))?;
        let directory = self.walk(&parent).map_err(self.error(action, path))?;
        Ok((directory, OsString::from_vec(name.to_vec())))
    }

    fn open_directory(&self, path: &FilePath) -> rustix::io::Result<OwnedFd> {
        self.walk(&self.mapping.place(path).ok_or(Errno::NOENT)?)
    }

    /// Opens a directory without following a symbolic link on the way.
    fn walk(&self, place: &FilePath) -> rustix::io::Result<OwnedFd> {
        if place.is_root() {
            return self.root.try_clone().map_err(|_| Errno::MFILE);
        }
        let ways = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        match rustix::fs::openat2(&self.root, place.as_os_str(), DIRECTORY, Mode::empty(), ways) {
            // An old kernel, a container that knows no such call, or a path that is too long for
            // one.
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => self.walk_by_steps(place),
            opened => opened,
        }
    }

    fn walk_by_steps(&self, place: &FilePath) -> rustix::io::Result<OwnedFd> {
        let mut directory = self.root.try_clone().map_err(|_| Errno::MFILE)?;
        for component in place.components() {
            let name = OsStr::from_bytes(component);
            directory = rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?;
        }
        Ok(directory)
    }

    fn error(&self, action: &'static str, path: &FilePath) -> impl FnOnce(Errno) -> Error + use<> {
        Error::file(action, &self.full_path(path))
    }
}

fn kind_of(found: FileType) -> Option<Kind> {
    match found {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Directory),
        FileType::Symlink => Some(Kind::Symlink),
        _ => None,
    }
}

fn timestamps(mtime_ns: i64) -> Timestamps {
    let (tv_sec, tv_nsec) = Timestamp(mtime_ns).parts();
    let time = Timespec { tv_sec, tv_nsec };
    Timestamps { last_access: time, last_modification: time }
}

fn set_times(directory: impl AsFd, name: &OsStr, mtime_ns: i64) -> rustix::io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(directory, name, &timestamps(mtime_ns), flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir()
                .join(format!("cairn-destination-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("out")).expect("a scratch directory");
            Scratch(path)
        }

        fn open(&self) -> Destination {
            Destination::open(&self.0.join("out"), "0123").expect("opens")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    #[test]
    fn a_file_appears_only_when_published_and_carries_mode_and_time() {
        let scratch = Scratch::new("publish");
        let destination = scratch.open();
        destination.make_directory(&path("d"), 0o755).expect("makes");
        let mut temporary = destination.create_temporary(&path("d/f")).expect("creates");
        temporary.file.write_all(b"data").expect("writes");
        temporary.finish(0o640, Some(1_500_000_000_123_456_789)).expect("finishes");
        assert_eq!(destination.look(&path("d/f")).expect("looks"), None);
        temporary.keep();
        destination.publish(&path("d/f")).expect("publishes");
        let found = destination.look(&path("d/f")).expect("looks").expect("is there");
        assert_eq!((found.bytes, found.mode, found.kind), (4, 0o640, Some(Kind::File)));
        assert!(cairn_job::outside::found::same_time(1_500_000_000_123_456_789, found.mtime_ns));
    }

    #[test]
    fn a_dropped_temporary_leaves_nothing_and_a_stale_one_is_reused() {
        let scratch = Scratch::new("drop");
        let destination = scratch.open();
        let shelf = scratch.0.join("out/.cairn-0123.new");
        let stale = |name: &str| {
            let mut temporary = destination.create_temporary(&path(name)).expect("creates");
            temporary.file.write_all(b"from an agent that died").expect("writes");
            temporary.keep();
        };
        stale("f");
        drop(destination.create_temporary(&path("f")).expect("creates over the stale one"));
        assert_eq!(fs::read_dir(&shelf).expect("lists").count(), 0);
        stale("f");
        stale("g");
        let other = scratch.0.join("out/.cairn-other.new");
        fs::create_dir(&other).expect("makes");
        destination.sweep(&[path("f")]).expect("sweeps");
        assert!(destination.reopen_temporary(&path("f")).expect("looks").is_some_and(|it| {
            it.keep();
            true
        }));
        assert!(destination.inode_on_shelf(&path("g")).expect("looks").is_none());
        destination.sweep(&[]).expect("sweeps");
        assert!(!shelf.exists() && other.exists());
    }

    #[test]
    fn links_in_the_directory_never_lead_out_of_it() {
        let scratch = Scratch::new("links");
        let destination = scratch.open();
        let outside = scratch.0.join("outside");
        fs::create_dir(&outside).expect("makes");
        fs::write(outside.join("f"), "precious").expect("writes");
        symlink(&outside, scratch.0.join("out/d")).expect("links");
        symlink(outside.join("f"), scratch.0.join("out/f")).expect("links");
        for walked in [destination.walk(&path("d")), destination.walk_by_steps(&path("d"))] {
            walked.expect_err("is a link");
        }
        destination.create_temporary(&path("d/f")).expect("creates").keep();
        assert!(destination.publish(&path("d/f")).is_err());
        assert!(destination.make_directory(&path("d"), 0o755).is_err());
        assert!(destination.open_file(&path("f")).is_err());
        destination.remove_file(&path("d/f")).expect("nothing of ours is there");
        destination.create_temporary(&path("f")).expect("creates").keep();
        destination.publish(&path("f")).expect("publishes");
        assert_eq!(fs::read(outside.join("f")).expect("is untouched"), b"precious");
        assert!(fs::symlink_metadata(scratch.0.join("out/f")).expect("exists").is_file());
    }

    #[test]
    fn a_symlink_is_replaced_and_directories_with_foreign_files_stay() {
        let scratch = Scratch::new("symlink");
        let destination = scratch.open();
        destination.make_symlink(&path("l"), b"one", 1_000_000_000).expect("links");
        destination.make_symlink(&path("l"), b"two", 2_000_000_000).expect("links again");
        assert_eq!(destination.read_link(&path("l")).expect("reads"), b"two");
        let link = fs::symlink_metadata(scratch.0.join("out/l")).expect("exists");
        assert_eq!(link.mtime(), 2);
        destination.make_directory(&path("d"), 0o755).expect("makes");
        fs::write(scratch.0.join("out/d/foreign"), "").expect("writes");
        destination.remove_directory(&path("d")).expect("leaves it");
        assert!(scratch.0.join("out/d/foreign").exists());
    }

    #[test]
    fn long_names_leave_room_for_the_suffix() {
        let scratch = Scratch::new("long");
        let destination = scratch.open();
        let long = FilePath::parse(&[b'n'; 255]).expect("a valid path");
        destination.create_temporary(&long).expect("creates").keep();
        destination.publish(&long).expect("publishes");
        assert!(destination.look(&long).expect("looks").is_some());
    }

    /// Mechanism: a directory was opened by one call, with its whole path. Consequence: nothing
    /// arrived where the path is longer than one call takes. Fix: such a path is walked by steps.
    #[test]
    fn path_that_is_longer_than_a_call_takes_is_reached() {
        let scratch = Scratch::new("deep");
        let destination = scratch.open();
        let mut deep = FilePath::root();
        while deep.as_bytes().len() <= libc::PATH_MAX as usize {
            deep = deep.join(&[b'd'; 250]);
            destination.make_directory(&deep, 0o755).expect("makes");
        }
        let file = deep.join(b"f");
        destination.create_temporary(&file).expect("creates").keep();
        destination.publish(&file).expect("publishes");
        assert!(destination.look(&file).expect("looks").is_some());
    }

    #[test]
    fn file_that_is_kept_has_a_name_below_the_place_and_leaves_no_directory() {
        let scratch = Scratch::new("aside");
        let destination = scratch.open();
        destination.make_directory(&path("d"), 0o755).expect("makes");
        for text in ["one", "two"] {
            fs::write(scratch.0.join("out/d/f"), text).expect("writes");
            destination.keep_below(&path("d/f"), "cairn-whole.job").expect("keeps");
            assert!(scratch.0.join("out/d/f").exists(), "until another file has the name");
            fs::remove_file(scratch.0.join("out/d/f")).expect("removes");
        }
        let aside = scratch.0.join("out/cairn-whole.job");
        assert_eq!(fs::read(aside.join("d/f")).expect("reads"), b"two");
        destination.remove_below(&path("d/f"), "cairn-whole.job").expect("removes");
        assert!(!aside.exists() && scratch.0.join("out/d").exists());
        destination.remove_below(&path("d/f"), "cairn-whole.job").expect("nothing is there");
    }

    #[test]
    fn spare_is_taken_only_if_it_is_the_one_that_is_known() {
        let scratch = Scratch::new("spare");
        let destination = scratch.open();
        let file = scratch.0.join("out/f");
        for wrong in [0, 1] {
            fs::write(&file, "text").expect("writes");
            let inode = fs::metadata(&file).expect("is there").ino();
            destination.set_spare(&path("f")).expect("keeps");
            fs::remove_file(&file).expect("another file takes its name");
            let taken = destination.take_spare(&path("f"), inode + wrong).expect("looks");
            assert_eq!(taken.is_some(), wrong == 0);
        }
    }

    /// Mechanism: to give a linked file an inode of its own, the file was opened for reading. A
    /// user who is not root cannot do that if the owner has no read permission. Consequence: the
    /// run could not be delivered. Fix: the owner gets the permission for that moment.
    #[test]
    fn attributes_of_one_name_are_not_those_of_the_others() {
        let scratch = Scratch::new("names");
        let out = scratch.0.join("out");
        fs::write(out.join("file"), "state").expect("writes");
        fs::hard_link(out.join("file"), out.join("other")).expect("links");
        let there = scratch.open();
        let path = FilePath::parse(b"file").expect("a valid path");
        rustix::fs::chmod(out.join("file"), Mode::empty()).expect("sets");
        there.set_attributes(&path, 0o640, 7_000_000_000).expect("sets");
        let found = |name: &str| fs::metadata(out.join(name)).expect("is there");
        assert_eq!((found("file").mode() & 0o777, found("other").mode() & 0o777), (0o640, 0));
        assert_eq!((found("file").mtime(), found("file").nlink()), (7, 1));
        assert_eq!(fs::read(out.join("file")).expect("reads"), b"state");
    }

    /// Mechanism: every error in reading a file of the persist directory counted as damage of that
    /// file. Consequence: when the directory vanished while a store was filled, all checkpoints
    /// were left out, and the program began anew. Fix: an error that does not concern one file
    /// alone ends the filling.
    #[test]
    fn directory_that_vanishes_is_no_damage_of_its_files() {
        let scratch = std::env::temp_dir().join(format!("cairn-staging-{}", std::process::id()));
        let path = scratch.join("out");
        fs::create_dir_all(&path).expect("a scratch directory");
        let directory = Destination::open(&path, "store").expect("opens");
        let is_of_one_file =
            |code| directory.blames_one_file(&std::io::Error::from_raw_os_error(code));
        for code in [libc::ENOENT, libc::EIO, libc::EACCES] {
            assert!(is_of_one_file(code), "{code}");
        }
        for code in [libc::ESTALE, libc::ENOTCONN, libc::EMFILE] {
            assert!(!is_of_one_file(code), "{code}");
        }
        fs::rename(&path, scratch.join("away")).expect("renames");
        assert!(!is_of_one_file(libc::ENOENT), "nothing is there any more");
        fs::create_dir(&path).expect("makes");
        assert!(!is_of_one_file(libc::ENOENT), "another one is there");
        fs::remove_dir_all(scratch).expect("removes");
    }
}
