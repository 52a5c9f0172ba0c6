//! Open files and the current directory of a program that Cairn's library will not be in, given to
//! it through the mount of the store (FUSE).
//!
//! A static program has a placeholder where its parent opened a file of the store, and a stand-in
//! as its current directory. If the store is mounted at the prefix, both become what they stand
//! for just before the program is executed: the kernel's own, served by the mount's server.
//!
//! Must stay true:
//! - A description stays one: whoever inherited it reads and writes at the same position, with the
//!   library or without. So the server moves the position, and to the kernel the file is a stream:
//!   the program cannot seek in it.
//! - A program that cannot be executed leaves this process as it was.
//!
//! Does not give away descriptors of `O_PATH`.

use core::ffi::CStr;

use cairn_core::{HandleId, HandleInfo};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::short_path::ShortPath;
use cairn_platform::sys;

use crate::descriptors::placeholder;
use crate::error::{Errno, Result};
use crate::files::{cwd, names};
use crate::kernel;
use crate::kernel::configuration::{self, Configuration};
use crate::mount::{self, Mount};
use crate::process::{has_inheritable_state, unserved};
use crate::task::table;

/// Extended attribute of the mount's first directory that tells the store, as [`store_name`].
pub const STORE_ATTRIBUTE: &CStr = c"user.cairn.store";
/// A file of this name, followed by the number of a description, that is made in the mount's first
/// directory, is that description.
pub const DESCRIPTION_NAME: &[u8] = b".cairn-description.";
/// Name of the file in the store that is there since it was first mounted at its prefix.
pub const MOUNTED: &str = "mounted";
/// Type of a FUSE file system (`FUSE_SUPER_MAGIC`).
const FUSE: i64 = 0x6573_5546;
/// Longest path of ours that is opened by name.
const PATH_BYTES: usize = 4096;

/// Returns the name by which a mount tells which store it shows: device and inode of the store's
/// directory.
pub fn store_name(store: &CStr) -> Result<ShortPath> {
    let found = sys::fstatat(libc::AT_FDCWD, store, 0)?;
    let mut name = ShortPath::new();
    name.push_number(found.st_dev);
    name.push(b".");
    name.push_number(found.st_ino);
    Ok(name)
}

/// An exec of a program that the library does not reach.
#[must_use]
pub struct Handover(Option<Given>);

struct Given {
    mount: &'static Mount,
    /// The stand-in of the current directory.
    stand_in: Option<Descriptor>,
}

impl Handover {
    /// Gives the program at `path`, which this process is about to execute, the files that it
    /// inherits. Does nothing if the library will be in it. If the store is not mounted, notes that
    /// the program cannot use them.
    pub fn begin(path: &CStr) -> Handover {
        let found = configuration::get().filter(|_| has_inheritable_state());
        let mount = mount::attached().filter(|_| !mount::is_poisoned());
        let Some((found, mount)) = found.zip(mount) else { return Handover(None) };
        let inherited = || table::all().filter(|(descriptor, _)| survives(*descriptor));
        let inherits = inherited().next().is_some() || cwd::inode().is_some();
        if !inherits || !unserved::is_out_of_reach(path) {
            return Handover(None);
        }
        if !is_mounted(found) {
            unserved::note_unreached(path);
            return Handover(None);
        }
        // Those that close on exec, too: then the mount's server notices their end, and this
        // process need not hold their descriptions while the program runs.
        for (descriptor, handle) in table::all() {
            // What fails stays a placeholder, with which the program gets `EBADF`.
            let _ = give(mount, found, descriptor, handle);
        }
        Handover(Some(Given { mount, stand_in: enter_directory() }))
    }

    /// Whether files were given away.
    pub fn is_needed(&self) -> bool {
        self.0.is_some()
    }

    /// Takes everything back after a failed exec.
    pub fn failed(self) {
        let Some(Given { mount, stand_in }) = self.0 else { return };
        for (descriptor, handle) in table::all() {
            let _ = placeholder::replace(mount, handle, descriptor);
        }
        if let Some(stand_in) = stand_in {
            let _ = kernel::fchdir(stand_in.raw());
        }
    }
}

/// Whether the store is mounted at its prefix.
fn is_mounted(configuration: &Configuration) -> bool {
    let mut name = ShortPath::new();
    name.push(b"/");
    name.push(MOUNTED.as_bytes());
    let note = path(configuration.store(), name.to_bytes());
    let is_there = |note: Path| sys::faccessat(libc::AT_FDCWD, note.as_c_str(), libc::F_OK).is_ok();
    if !note.is_ok_and(is_there) {
        return false;
    }
    let Ok(prefix) = path(configuration.mount(), b"") else { return false };
    let prefix = prefix.as_c_str();
    if !sys::statfs(prefix).is_ok_and(|system| system.f_type == FUSE) {
        return false;
    }
    let mut shown = [0_u8; 64];
    let arguments = [
        prefix.as_ptr() as libc::c_long,
        STORE_ATTRIBUTE.as_ptr() as libc::c_long,
        shown.as_mut_ptr() as libc::c_long,
        shown.len() as libc::c_long,
    ];
    // SAFETY: both strings end with a NUL, and the kernel writes no more than the buffer holds.
    let Ok(length) = (unsafe { sys::call(libc::SYS_getxattr, arguments) }) else { return false };
    let own = store_name(configuration.store_path());
    own.is_ok_and(|own| shown.get(..length) == Some(own.to_bytes()))
}

/// Whether a descriptor stays open across an exec.
fn survives(descriptor: i32) -> bool {
    sys::fcntl(descriptor, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

/// Puts the mount's file in place of a placeholder.
fn give(
    mount: &Mount,
    configuration: &Configuration,
    descriptor: i32,
    handle: HandleId,
) -> Result<()> {
    let info = mount.fs().handle(handle)?;
    let file = match info {
        HandleInfo { path_only: true, .. } => return Err(Errno(libc::EBADF)),
        HandleInfo { is_directory: true, .. } => {
            let path = path(&names::absolute(info.inode)?, b"")?;
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            Descriptor::open(libc::AT_FDCWD, path.as_c_str(), flags, 0)?
        }
        _ => {
            let mut name = ShortPath::new();
            name.push(b"/");
            name.push(DESCRIPTION_NAME);
            name.push_number(handle.0.into());
            let path = path(configuration.mount(), name.to_bytes())?;
            let access = match (info.read, info.write) {
                (true, true) => libc::O_RDWR,
                (false, true) => libc::O_WRONLY,
                _ => libc::O_RDONLY,
            };
            let append = if info.append { libc::O_APPEND } else { 0 };
            // A file that has this name already is a user's.
            let flags = access | append | libc::O_CREAT | libc::O_EXCL;
            Descriptor::open(libc::AT_FDCWD, path.as_c_str(), flags, 0o600)?
        }
    };
    let flags = if survives(descriptor) { 0 } else { libc::O_CLOEXEC };
    sys::dup3(file.raw(), descriptor, flags)?;
    Ok(())
}

/// Moves from a stand-in to the directory that it is for. Returns the stand-in.
fn enter_directory() -> Option<Descriptor> {
    let directory = path(&names::absolute(cwd::inode()?).ok()?, b"").ok()?;
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let stand_in = Descriptor::open(libc::AT_FDCWD, c".", flags, 0).ok()?;
    let entered = Descriptor::open(libc::AT_FDCWD, directory.as_c_str(), flags, 0).ok()?;
    kernel::fchdir(entered.raw()).ok()?;
    Some(stand_in)
}

/// A path for a system call.
struct Path([u8; PATH_BYTES]);

impl Path {
    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

fn path(directory: &[u8], rest: &[u8]) -> Result<Path> {
    let mut bytes = [0; PATH_BYTES];
    let length = directory.len() + rest.len();
    if length >= PATH_BYTES {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    bytes[..directory.len()].copy_from_slice(directory);
    bytes[directory.len()..length].copy_from_slice(rest);
    Ok(Path(bytes))
}
