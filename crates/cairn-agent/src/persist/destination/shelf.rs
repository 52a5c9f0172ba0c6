//! The shelf: where the next copies wait, complete and durable, until a turn gives them their
//! names.
//!
//! Must stay true: there is a shelf per file system, because a rename works only within one: the
//! highest directory above a place that is on the same mount has it. So a user may mount or link
//! together what lies below the persist directory as he likes. What a failed attempt leaves there
//! has a name that the next attempt reuses.
//!
//! Does not decide what is copied, nor when it gets its name; `drain/copies.rs` and `ledger.rs` do.

use crate::store::extended;
use cairn_nvme::crypto::Hash;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{DIRECTORY, Destination, Refusals, timestamps};
use crate::model::error::{Error, Result};
use cairn_job::file::path::FilePath;

/// Maximum number of directories whose shelves are kept open.
const OPEN_MAX: usize = 64;

impl Destination {
    /// Creates a file on the shelf that gets the name `path` once it is complete.
    pub fn create_temporary(&self, path: &FilePath) -> Result<Temporary> {
        self.create_on(self.shelf("create", path)?, path)
    }

    fn create_on(&self, shelf: Arc<OwnedFd>, path: &FilePath) -> Result<Temporary> {
        let name = shelf_name(path);
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = || rustix::fs::openat(&shelf, &name, flags, Mode::from_raw_mode(0o600));
        let file = match create() {
            Err(Errno::EXIST) => {
                // A failed attempt left it: only this store uses the name.
                rustix::fs::unlinkat(&shelf, &name, AtFlags::empty()).and_then(|()| create())
            }
            other => other,
        };
        let file = File::from(file.map_err(self.error("create", path))?);
        Ok(self.temporary(path, shelf, file))
    }

    /// Opens the file on the shelf for `path` that an agent left which died; None if there is none.
    pub fn reopen_temporary(&self, path: &FilePath) -> Result<Option<Temporary>> {
        let shelf = self.shelf("open", path)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&shelf, shelf_name(path), flags, Mode::empty()) {
            Ok(file) => Ok(Some(self.temporary(path, shelf, File::from(file)))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("open", path)(errno)),
        }
    }

    fn temporary(&self, path: &FilePath, shelf: Arc<OwnedFd>, file: File) -> Temporary {
        Temporary {
            file,
            shelf,
            name: shelf_name(path),
            path: self.full_path(path),
            is_kept: false,
            refusals: self.refusals.clone(),
        }
    }

    /// Returns the inode of the file on the shelf for `path`; None if there is none.
    pub fn inode_on_shelf(&self, path: &FilePath) -> Result<Option<u64>> {
        let shelf = self.shelf("look at", path)?;
        match rustix::fs::statat(&shelf, shelf_name(path), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat.st_ino)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error("look at", path)(errno)),
        }
    }

    /// Gives the file on the shelf its name, replacing the file there. Durable once the directory
    /// is synchronised.
    pub fn publish(&self, path: &FilePath) -> Result<()> {
        let (parent, name) = self.parent("replace", path)?;
        let shelf = self.shelf("replace", path)?;
        rustix::fs::renameat(&shelf, shelf_name(path), &parent, &name)
            .map_err(self.error("replace", path))
    }

    /// Gives the file on the shelf its name if that is free. Errors: `Taken` if it is not.
    pub fn publish_new(&self, path: &FilePath) -> Result<()> {
        let (parent, to) = self.parent("name", path)?;
        let (shelf, from) = (self.shelf("name", path)?, shelf_name(path));
        let taken = || Error::Taken { path: self.full_path(path) };
        // Try `link` first: not every file system supports a rename that replaces nothing.
        match rustix::fs::linkat(&shelf, &from, &parent, &to, AtFlags::empty()) {
            Ok(()) => rustix::fs::unlinkat(&shelf, &from, AtFlags::empty())
                .map_err(self.error("finish", path)),
            Err(Errno::EXIST) => Err(taken()),
            Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => {
                let flags = rustix::fs::RenameFlags::NOREPLACE;
                match rustix::fs::renameat_with(&shelf, &from, &parent, &to, flags) {
                    Err(Errno::EXIST) => Err(taken()),
                    renamed => renamed.map_err(self.error("name", path)),
                }
            }
            Err(errno) => Err(self.error("name", path)(errno)),
        }
    }

    /// Makes `path` another name of the file at `from`, replacing the file there. If the file
    /// cannot have two names, `path` gets a copy of it.
    pub fn link(&self, from: &FilePath, path: &FilePath) -> Result<()> {
        let (old_parent, old_name) = self.parent("link", from)?;
        let (shelf, name) = (self.shelf("link", path)?, shelf_name(path));
        let link = || rustix::fs::linkat(&old_parent, &old_name, &shelf, &name, AtFlags::empty());
        let linked = match link() {
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&shelf, &name, AtFlags::empty()).and_then(|()| link())
            }
            other => other,
        };
        if linked.is_err() {
            self.copy_on_shelf(from, path)?;
        }
        self.publish(path)?;
        // `rename` does nothing if both names belong to the same file.
        match rustix::fs::unlinkat(&shelf, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("link", path)(errno)),
        }
    }

    /// Copies the regular file at `from` to the shelf, for `path`.
    pub(super) fn copy_on_shelf(&self, from: &FilePath, path: &FilePath) -> Result<()> {
        self.copy_to(from, self.create_temporary(path)?).map(Temporary::keep)
    }

    fn copy_to(&self, from: &FilePath, mut temporary: Temporary) -> Result<Temporary> {
        let failed = || Error::file("copy", &self.full_path(from));
        let lost = || failed()(std::io::Error::from(std::io::ErrorKind::NotFound));
        let found = self.look(from)?.ok_or_else(lost)?;
        let mut file = self.open_unreadable(from, found.mode)?;
        let bytes = std::io::copy(&mut file, &mut temporary.file).map_err(failed())?;
        if bytes != found.bytes {
            // Somebody is writing to it.
            return Err(failed()(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)));
        }
        extended::give(&extended::read(&file), &temporary.file);
        temporary.finish(found.mode, Some(found.mtime_ns))?;
        Ok(temporary)
    }

    /// Moves what is at `path` to a place below `other`, whose parents exist.
    pub(super) fn move_to_place(
        &self,
        path: &FilePath,
        other: &Destination,
        place: &FilePath,
    ) -> Result<()> {
        let (parent, name) = self.parent("move", path)?;
        let (above, new_name) =
            place.split().ok_or(Errno::ISDIR).map_err(self.error("move", path))?;
        let new_parent = other.walk(&above).map_err(self.error("move", path))?;
        match rustix::fs::renameat(&parent, &name, &new_parent, OsStr::from_bytes(new_name)) {
            Err(Errno::XDEV) => {
                self.copy_to_place(path, other, place)?;
                self.remove_file(path)
            }
            renamed => renamed.map_err(self.error("move", path)),
        }
    }

    /// Copies the file at `path` to a place below `other` on another file system, whose parents
    /// exist. It goes by way of the shelf there, so that the name never stands for a part of it.
    fn copy_to_place(&self, path: &FilePath, other: &Destination, place: &FilePath) -> Result<()> {
        let (above, name) = place.split().ok_or(Errno::ISDIR).map_err(self.error("move", path))?;
        let copy = self.copy_to(path, other.create_on(other.shelf_at("move", &above)?, path)?)?;
        let moved = other.walk(&above).and_then(|above| {
            rustix::fs::renameat(&copy.shelf, &copy.name, &above, OsStr::from_bytes(name))
        });
        moved.map_err(self.error("move", path))?;
        copy.keep();
        Ok(())
    }

    /// Keeps the file at `path` on the shelf as a *spare*, from which a later copy of it can be
    /// made. It has its own name, too, until another file takes that.
    pub fn set_spare(&self, path: &FilePath) -> Result<()> {
        let (parent, name) = self.parent("keep", path)?;
        let shelf = self.shelf("keep", path)?;
        keep((&parent, &name), (&shelf, &spare_name(path))).map_err(self.error("keep", path))
    }

    /// Keeps the file at `path` at the same path below the directory `place`, too, which lies in
    /// the persist directory or in the place of the mapped directory. Replaces what is there. The
    /// name never goes: another file takes it.
    pub fn keep_below(&self, path: &FilePath, place: &str) -> Result<()> {
        let (parent, name) = self.parent("keep", path)?;
        let aside = self.place_below(path, place)?;
        let (above, _) = aside.split().ok_or(Errno::ISDIR).map_err(self.error("keep", path))?;
        let shown = self.path.join(above.as_os_str());
        self.make_all(&above).map_err(Error::file("make the directory", &shown))?;
        let directory = self.walk(&above).map_err(self.error("keep", path))?;
        match keep((&parent, &name), (&directory, &name)) {
            Err(Errno::XDEV) => self.copy_to_place(path, self, &aside)?,
            kept => kept.map_err(self.error("keep", path))?,
        }
        rustix::fs::fsync(&directory).map_err(self.error("keep", path))
    }

    /// Makes the spare of `path` its file on the shelf, so that it can be changed. None if there is
    /// no spare with this inode, if it has other names, or if it is not writable.
    pub fn take_spare(&self, path: &FilePath, inode: u64) -> Result<Option<Temporary>> {
        let shelf = self.shelf("open", path)?;
        if rustix::fs::renameat(&shelf, spare_name(path), &shelf, shelf_name(path)).is_err() {
            return Ok(None);
        }
        let is_it = |taken: &Temporary| {
            rustix::fs::fstat(&taken.file).is_ok_and(|now| (now.st_ino, now.st_nlink) == (inode, 1))
        };
        // If it cannot be opened, whoever makes a new temporary file removes it.
        Ok(self.reopen_temporary(path).ok().flatten().filter(is_it))
    }

    /// Removes the spare of `path`, if there is one.
    pub fn drop_spare(&self, path: &FilePath) -> Result<()> {
        let shelf = self.shelf("remove", path)?;
        match rustix::fs::unlinkat(&shelf, spare_name(path), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("remove", path)(errno)),
        }
    }

    /// Removes what failed attempts and agents of this store left on the shelves, except the files
    /// for the paths in `kept`. A shelf that is empty then goes, too.
    pub fn sweep(&self, kept: &[FilePath]) -> Result<()> {
        let kept: Vec<OsString> = kept.iter().map(shelf_name).collect();
        for root in self.roots() {
            let path = self.path.join(root.as_os_str());
            let failed = || Error::file("clear", &path);
            let shelf = match self.walk(&root).and_then(|root| self.open_shelf(&root)) {
                Ok(shelf) => shelf,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(failed()(errno)),
            };
            for entry in rustix::fs::Dir::read_from(&shelf).map_err(failed())? {
                let entry = entry.map_err(failed())?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." && !kept.iter().any(|kept| kept == name) {
                    match rustix::fs::unlinkat(&shelf, name, AtFlags::empty()) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(errno) => return Err(failed()(errno)),
                    }
                }
            }
        }
        self.remove_empty_shelves();
        Ok(())
    }

    /// Removes shelves that are empty.
    pub fn remove_empty_shelves(&self) {
        self.open_shelves().clear();
        for root in self.roots() {
            if let Ok(root) = self.walk(&root) {
                // Fails if something is there.
                let _ = rustix::fs::unlinkat(&root, self.shelf_directory(), AtFlags::REMOVEDIR);
            }
        }
    }

    /// Makes the names on the shelves durable.
    pub fn synchronise_shelves(&self) -> Result<()> {
        for root in self.roots() {
            match self
                .walk(&root)
                .and_then(|root| self.open_shelf(&root))
                .and_then(|shelf| rustix::fs::fsync(&shelf))
            {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(self.error("make durable", &root)(errno)),
            }
        }
        Ok(())
    }

    /// Returns the places that have shelves, as far as they are known: those of the directory and
    /// of mapped ones, and those where this process has seen one.
    fn roots(&self) -> Vec<FilePath> {
        let mapped = self.mapping.rules().iter().map(|rule| rule.to.clone());
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner).clone();
        roots.extend(mapped.chain([FilePath::root()]));
        roots.into_iter().collect()
    }

    /// Finds the shelves for `directories`, so that `sweep` reaches those of an agent that died.
    pub fn find_shelves<'a>(&self, directories: impl Iterator<Item = &'a FilePath>) {
        for place in directories.filter_map(|path| self.mapping.place(path)) {
            // What cannot be reached has nothing to be swept.
            let _ = self.shelf_root(&place);
        }
    }

    /// Opens the directory that has the shelf for what lies directly in the directory `place`.
    fn shelf_root(&self, place: &FilePath) -> rustix::io::Result<OwnedFd> {
        let mut here = self.root.try_clone().map_err(|_| Errno::MFILE)?;
        let (mut root, mut mount) = (here.try_clone().map_err(|_| Errno::MFILE)?, mount_of(&here)?);
        let (mut path, mut root_path) = (FilePath::root(), FilePath::root());
        for component in place.components() {
            let opened =
                rustix::fs::openat(&here, OsStr::from_bytes(component), DIRECTORY, Mode::empty());
            // A directory that is still to be made will be on the mount of its parent.
            let Ok(inner) = opened else { break };
            path = path.join(component);
            let its = mount_of(&inner)?;
            if its != mount {
                (root, mount) = (inner.try_clone().map_err(|_| Errno::MFILE)?, its);
                root_path = path.clone();
            }
            here = inner;
        }
        if !root_path.is_root() {
            self.roots.lock().unwrap_or_else(PoisonError::into_inner).insert(root_path);
        }
        Ok(root)
    }

    fn shelf_directory(&self) -> OsString {
        OsString::from(format!("{}.new", self.suffix))
    }

    fn open_shelf(&self, root: &OwnedFd) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(root, self.shelf_directory(), DIRECTORY, Mode::empty())
    }

    /// Opens the shelf for `path`, and makes it if it is missing.
    pub(super) fn shelf(&self, action: &'static str, path: &FilePath) -> Result<Arc<OwnedFd>> {
        let place =
            self.mapping.place(path).ok_or_else(|| Error::Occupied { path: path.clone() })?;
        self.shelf_at(action, &place.split().map_or(FilePath::root(), |(parent, _)| parent))
    }

    /// Opens the shelf for what lies directly in the directory `place`, and makes it if it is
    /// missing.
    fn shelf_at(&self, action: &'static str, place: &FilePath) -> Result<Arc<OwnedFd>> {
        if let Some(open) = self.open_shelves().get(place) {
            return Ok(Arc::clone(open));
        }
        let opened = self.shelf_root(place).and_then(|root| match self.open_shelf(&root) {
            Err(Errno::NOENT) => {
                let mode = Mode::from_raw_mode(0o700);
                match rustix::fs::mkdirat(&root, self.shelf_directory(), mode) {
                    Ok(()) | Err(Errno::EXIST) => self.open_shelf(&root),
                    Err(errno) => Err(errno),
                }
            }
            opened => opened,
        });
        let opened = Arc::new(opened.map_err(self.error(action, place))?);
        let mut shelves = self.open_shelves();
        if shelves.len() >= OPEN_MAX {
            shelves.clear();
        }
        shelves.insert(place.clone(), Arc::clone(&opened));
        Ok(opened)
    }

    fn open_shelves(&self) -> MutexGuard<'_, HashMap<FilePath, Arc<OwnedFd>>> {
        // A panic leaves whole entries.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a file a second name, replacing what has that. On a file system without links the file
/// moves.
fn keep(
    (from, name): (&OwnedFd, &OsStr),
    (to, new_name): (&OwnedFd, &OsStr),
) -> rustix::io::Result<()> {
    let link = || rustix::fs::linkat(from, name, to, new_name, AtFlags::empty());
    let linked = match link() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(to, new_name, AtFlags::empty()).and_then(|()| link())
        }
        linked => linked,
    };
    match linked {
        Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => {
            rustix::fs::renameat(from, name, to, new_name)
        }
        linked => linked,
    }
}

/// Identity of the mount that a directory lies on. A rename across mounts fails, even if both are
/// of one file system; and within a mount, device numbers tell subvolumes apart.
fn mount_of(directory: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    match rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) {
        Ok(found) => {
            let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
            Ok((device, found.stx_mnt_id))
        }
        // An older kernel.
        Err(Errno::NOSYS) => Ok((rustix::fs::fstat(directory)?.st_dev, 0)),
        Err(errno) => Err(errno),
    }
}

/// Name on the shelf of the file that becomes `path`: a hash, so that files of all directories fit
/// into one, and no name is too long.
pub(super) fn shelf_name(path: &FilePath) -> OsString {
    let digest = Hash::Sha256.of(&[path.as_bytes()]);
    OsString::from(digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn spare_name(path: &FilePath) -> OsString {
    let mut name = shelf_name(path);
    name.push(".spare");
    name
}
/// A file being written on the shelf; removed unless it is kept.
pub struct Temporary {
    /// The open file.
    pub file: File,
    shelf: Arc<OwnedFd>,
    name: OsString,
    path: PathBuf,
    is_kept: bool,
    refusals: Refusals,
}

impl Temporary {
    /// Opens the file again, for reading and writing.
    pub fn reopen(&self) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.shelf, &self.name, flags, Mode::empty());
        opened.map(File::from).map_err(Error::file("open", &self.path))
    }

    /// Returns the path that the file will have, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its inode number. The published file keeps it.
    pub fn inode(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.file).map_err(Error::file("look at", &self.path))?;
        Ok(stat.st_ino)
    }

    /// Leaves the file on the shelf until it is published.
    pub fn keep(mut self) {
        self.is_kept = true;
    }

    /// Sets mode and modification time; they become durable with the data.
    pub fn set_attributes(&self, mode: u32, mtime_ns: Option<i64>) -> Result<()> {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        let set =
            self.refusals.note(rustix::fs::fchmod(&self.file, mode)).and_then(
                |()| match mtime_ns {
                    Some(mtime_ns) => rustix::fs::futimens(&self.file, &timestamps(mtime_ns)),
                    None => Ok(()),
                },
            );
        set.map_err(Error::file("finish", &self.path))
    }

    /// Makes data and attributes durable.
    pub fn make_durable(&self) -> Result<()> {
        self.file.sync_all().map_err(Error::file("make durable", &self.path))
    }

    /// Sets the attributes and makes everything durable.
    pub fn finish(&self, mode: u32, mtime_ns: Option<i64>) -> Result<()> {
        self.set_attributes(mode, mtime_ns)?;
        self.make_durable()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            // If this fails, the next agent reuses or sweeps the file.
            let _ = rustix::fs::unlinkat(&self.shelf, &self.name, AtFlags::empty());
        }
    }
}
