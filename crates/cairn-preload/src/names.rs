//! Names: directories, links, renaming, removing, canonical paths.

use core::ffi::{CStr, c_char, c_int, c_uint};

use cairn_posix::files::names;
use cairn_posix::files::path::Route;
use cairn_posix::files::place::Place;
use cairn_posix::kernel::address;
use cairn_posix::task::table;
use cairn_posix::{Errno, PathError, PathResult, Result, kernel};
use libc::{mode_t, size_t, ssize_t};

use crate::answer::{answer, answer_path, answer_path_as};
use crate::hooks;

path_hooks! {
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int,
        [path, follow false] = |place| names::make_directory(&place, mode);
    fn mkdirat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int,
        [path at directory, follow false] = |place| names::make_directory(&place, mode);
    fn rmdir(path: *const c_char) -> c_int,
        [path, follow false] = |place| names::remove_directory(&place);
    fn unlink(path: *const c_char) -> c_int,
        [path, follow false] = |place| names::unlink(&place);
    fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int,
        [path at directory, follow false] = |place| match flags {
            0 => names::unlink(&place),
            libc::AT_REMOVEDIR => names::remove_directory(&place),
            _ => Err(Errno(libc::EINVAL).into()),
        };
    fn remove(path: *const c_char) -> c_int,
        [path, follow false] = |place| names::remove(&place);
    fn mknod(path: *const c_char, mode: mode_t, device: u64) -> c_int,
        [path, follow false] = |place| names::make_node(&place, mode);
    fn mknodat(directory: c_int, path: *const c_char, mode: mode_t, device: u64) -> c_int,
        [path at directory, follow false] = |place| names::make_node(&place, mode);
    fn __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut u64) -> c_int,
        [path, follow false] = |place| names::make_node(&place, mode);
    fn __xmknodat(version: c_int, directory: c_int, path: *const c_char, mode: mode_t, device: *mut u64) -> c_int,
        [path at directory, follow false] = |place| names::make_node(&place, mode);
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int,
        [path, follow false] = |place| names::make_node(&place, libc::S_IFIFO | mode);
    fn mkfifoat(directory: c_int, path: *const c_char, mode: mode_t) -> c_int,
        [path at directory, follow false] = |place| names::make_node(&place, libc::S_IFIFO | mode);
    fn symlink(target: *const c_char, path: *const c_char) -> c_int,
        // SAFETY: the caller passes a terminated target.
        [path, follow false] = |place| names::symlink(unsafe { bytes(target) }?, &place);
    fn symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int,
        // SAFETY: the caller passes a terminated target.
        [path at directory, follow false] = |place| names::symlink(unsafe { bytes(target) }?, &place);
    fn readlink(path: *const c_char, target: *mut c_char, room: size_t) -> ssize_t,
        // SAFETY: the caller passes a buffer of `room` bytes.
        [path, follow false] = |place| unsafe { read_link(&place, target, room) };
    fn __readlink_chk(path: *const c_char, target: *mut c_char, room: size_t, has: size_t) -> ssize_t,
        // SAFETY: the caller passes a buffer of `has` bytes.
        [path, follow false] = |place| unsafe { read_link(&place, target, room.min(has)) };
}

unsafe fn bytes<'a>(path: *const c_char) -> Result<&'a [u8]> {
    // SAFETY: null, or terminated as the caller promises.
    unsafe { cairn_posix::files::path::bytes(path) }
}

unsafe fn read_link(place: &Place, target: *mut c_char, room: size_t) -> PathResult<usize> {
    if room == 0 {
        return Err(Errno(libc::EINVAL).into());
    }
    let link = names::read_link(place)?;
    let length = link.len().min(room);
    // SAFETY: the buffer has `room` bytes and does not overlap the new vector.
    unsafe { address::give(target.cast(), link.as_ptr(), length) }?;
    Ok(length)
}

/// As `readlinkat(2)`. An empty path means the link that `directory` was opened for.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readlinkat(
    directory: c_int,
    path: *const c_char,
    target: *mut c_char,
    room: size_t,
) -> ssize_t {
    let real = || next!(readlinkat: fn(c_int, *const c_char, *mut c_char, size_t) -> ssize_t);
    // SAFETY: the caller passes a terminated path.
    let place = unsafe {
        opened_link(directory, path)
            .or_else(|| hooks::ours(cairn_posix::files::path::route_at(directory, path), false))
    };
    match place {
        Some(place) => answer_path(
            // SAFETY: the caller passes a buffer of `room` bytes.
            || unsafe { read_link(&place, target, room) },
            // SAFETY: as above; the path lives for the call.
            |elsewhere| unsafe { readlinkat(HERE, elsewhere.as_ptr(), target, room) },
        ),
        // SAFETY: the caller's own arguments.
        None => unsafe { real()(directory, path, target, room) },
    }
}

/// The link that an empty path names, if `descriptor` is an open link of Cairn. For other
/// descriptors the kernel reports ENOENT.
unsafe fn opened_link(descriptor: c_int, path: *const c_char) -> Option<Place<'static>> {
    // SAFETY: the caller passes null or a terminated path.
    if !unsafe { bytes(path) }.is_ok_and(<[u8]>::is_empty) {
        return None;
    }
    let handle = table::lookup(descriptor)?;
    let place = crate::answer::guarded(|| names::place_of(handle)).ok()?;
    let found = crate::answer::guarded(|| cairn_posix::files::file::attributes(handle)).ok()?;
    found.is_symlink().then_some(place)
}

/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __readlinkat_chk(
    directory: c_int,
    path: *const c_char,
    target: *mut c_char,
    room: size_t,
    has: size_t,
) -> ssize_t {
    // SAFETY: the caller passes a buffer of `has` bytes.
    unsafe { readlinkat(directory, path, target, room.min(has)) }
}

/// Owners of the two names of a rename or link.
enum Pair<'a> {
    Libc,
    /// One name is a bad address, and the other may be Cairn's.
    Bad(Errno),
    Ours(Place<'a>, Place<'a>),
    /// One name is Cairn's, the other is this foreign one.
    Mixed(Outside<'a>),
}

/// Foreign name in a call together with a Cairn name.
struct Outside<'a> {
    directory: c_int,
    /// None if the caller passed a null pointer.
    path: Option<&'a CStr>,
    is_source: bool,
    /// Whether an empty path names the open file `directory`.
    may_be_empty: bool,
}

impl<'a> Outside<'a> {
    /// # Safety
    /// The path is null, or terminated and outlives the result.
    unsafe fn new((directory, path): (c_int, *const c_char), is_source: bool) -> Outside<'a> {
        // SAFETY: not null, so terminated by the caller's promise.
        let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
        Outside { directory, path, is_source, may_be_empty: false }
    }

    /// Error of a rename between this name and a Cairn name: that of the name's directory,
    /// otherwise `EXDEV`.
    fn refuse_rename(&self) -> Errno {
        let names_something = self.path.is_some_and(|path| !path.is_empty());
        match self.look() {
            Err(errno) if errno != Errno(libc::ENOENT) || !names_something => errno,
            _ => Errno(libc::EXDEV),
        }
    }

    /// Error of a link between this name and a Cairn name. Unlike a rename, a link needs an
    /// existing source and no existing target.
    fn refuse_link(&self) -> Errno {
        match (self.is_source, self.look()) {
            (true, Err(errno)) => errno,
            (true, Ok(())) => Errno(libc::EXDEV),
            (false, Ok(())) => Errno(libc::EEXIST),
            (false, Err(_)) => self.refuse_rename(),
        }
    }

    /// Asks the kernel whether the name exists.
    fn look(&self) -> Result<()> {
        let path = self.path.ok_or(Errno(libc::EFAULT))?;
        let empty = if self.may_be_empty { libc::AT_EMPTY_PATH } else { 0 };
        let flags = libc::AT_SYMLINK_NOFOLLOW | empty;
        Ok(kernel::fstatat(self.directory, path, flags).map(drop)?)
    }
}

unsafe fn pair<'a>(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    follow: bool,
) -> Pair<'a> {
    // SAFETY: the caller passes terminated paths.
    let routes = unsafe {
        (
            cairn_posix::files::path::route_at(from.0, from.1),
            cairn_posix::files::path::route_at(to.0, to.1),
        )
    };
    let (outside, is_source) = match (hooks::ours(routes.0, follow), hooks::ours(routes.1, false)) {
        (None, None) => return Pair::Libc,
        (Some(from), Some(to)) => return Pair::Ours(from, to),
        (Some(_), None) => (to, false),
        (None, Some(_)) => (from, true),
    };
    // SAFETY: as above.
    match unsafe { bytes(outside.1) } {
        Err(errno) => Pair::Bad(errno),
        // SAFETY: as above.
        Ok(_) => Pair::Mixed(unsafe { Outside::new(outside, is_source) }),
    }
}

macro_rules! two_names {
    ($(
        fn $name:ident($($argument:ident: $type:ty),*), [$from:expr, $to:expr, follow $follow:expr], refuse [$refuse:expr]
            = |$old:ident, $new:ident| $ours:expr;
    )*) => {$(
        /// As the C library's function of this name. Errors: `EXDEV` between a Cairn file and a
        /// foreign one.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller passes terminated paths.
            match unsafe { pair($from, $to, $follow) } {
                // SAFETY: the caller's own arguments.
                Pair::Libc => unsafe { next!($name: fn($($type),*) -> c_int)($($argument),*) },
                Pair::Bad(errno) => answer(|| Err::<(), _>(errno)),
                Pair::Ours($old, $new) => answer(|| $ours),
                Pair::Mixed(outside) => answer(|| Err::<(), _>($refuse(&outside))),
            }
        }
    )*};
}

const HERE: c_int = libc::AT_FDCWD;

two_names! {
    fn rename(from: *const c_char, to: *const c_char), [(HERE, from), (HERE, to), follow false], refuse [Outside::refuse_rename]
        = |old, new| names::rename(&old, &new, 0);
    fn renameat(from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char),
        [(from_directory, from), (to_directory, to), follow false], refuse [Outside::refuse_rename]
        = |old, new| names::rename(&old, &new, 0);
    fn renameat2(from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char, flags: c_uint),
        [(from_directory, from), (to_directory, to), follow false],
        refuse [|outside: &Outside| names::rename_mode(flags).err().unwrap_or_else(|| outside.refuse_rename())]
        = |old, new| names::rename(&old, &new, flags);
    fn link(from: *const c_char, to: *const c_char), [(HERE, from), (HERE, to), follow false], refuse [Outside::refuse_link]
        = |old, new| names::link(&old, &new, false);
}

/// As `linkat(2)`: of a path, or of an open file with `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn linkat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    let by_descriptor = flags & libc::AT_EMPTY_PATH != 0
        // SAFETY: the caller passes a terminated path.
        && unsafe { bytes(from) }.is_ok_and(<[u8]>::is_empty);
    if let Some(handle) = table::lookup(from_directory).filter(|_| by_descriptor) {
        // SAFETY: the caller passes a terminated path.
        let route = unsafe { cairn_posix::files::path::route_at(to_directory, to) };
        return match hooks::ours(route, false) {
            Some(new) => answer(|| names::link(&names::place_of(handle)?, &new, false)),
            // SAFETY: the caller passes a terminated path.
            None => answer(|| unsafe {
                Err::<(), _>(Outside::new((to_directory, to), false).refuse_link())
            }),
        };
    }
    // SAFETY: the caller passes terminated paths.
    match unsafe { pair((from_directory, from), (to_directory, to), follow) } {
        // SAFETY: the caller's own arguments.
        Pair::Libc => unsafe {
            next!(linkat: fn(c_int, *const c_char, c_int, *const c_char, c_int) -> c_int)(
                from_directory,
                from,
                to_directory,
                to,
                flags,
            )
        },
        _ if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 => {
            answer(|| Err::<(), _>(Errno(libc::EINVAL)))
        }
        Pair::Bad(errno) => answer(|| Err::<(), _>(errno)),
        Pair::Ours(old, new) => answer(|| names::link(&old, &new, follow)),
        Pair::Mixed(outside) => answer(|| {
            let may_be_empty = flags & libc::AT_EMPTY_PATH != 0;
            Err::<(), _>(Outside { may_be_empty, ..outside }.refuse_link())
        }),
    }
}

/// Copies a path to the caller's buffer of `PATH_MAX` bytes, or to new memory if there is none.
unsafe fn deliver(path: Vec<u8>, buffer: *mut c_char) -> PathResult<*mut c_char> {
    if path.len() >= libc::PATH_MAX as usize {
        return Err(PathError::Errno(Errno(libc::ENAMETOOLONG)));
    }
    let target = match buffer.is_null() {
        // SAFETY: malloc may be called here. The caller frees the result, as realpath(3) says.
        true => unsafe { libc::malloc(path.len() + 1) }.cast::<c_char>(),
        false => buffer,
    };
    if target.is_null() {
        return Err(PathError::Errno(Errno(libc::ENOMEM)));
    }
    // SAFETY: the target has room for the path and its terminator.
    unsafe {
        core::ptr::copy_nonoverlapping(path.as_ptr(), target.cast(), path.len());
        *target.add(path.len()) = 0;
    }
    Ok(target)
}

unsafe fn canonical(
    path: *const c_char,
    buffer: *mut c_char,
    real: impl Fn(&CStr) -> *mut c_char,
) -> Option<*mut c_char> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller passes a terminated path.
    let place = match unsafe { cairn_posix::files::path::route(path) } {
        Route::Place(place) => place,
        _ => return None,
    };
    Some(answer_path_as(
        || "realpath",
        // SAFETY: the buffer has PATH_MAX bytes or is null.
        || names::canonical(&place).and_then(|path| unsafe { deliver(path, buffer) }),
        real,
    ))
}

/// As `realpath(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn realpath(path: *const c_char, buffer: *mut c_char) -> *mut c_char {
    let real = || next!(realpath: fn(*const c_char, *mut c_char) -> *mut c_char);
    // SAFETY: the caller passes a terminated path and a buffer of PATH_MAX bytes or null.
    unsafe {
        canonical(path, buffer, |elsewhere| realpath(elsewhere.as_ptr(), buffer))
            .unwrap_or_else(|| real()(path, buffer))
    }
}

/// As the C library's `__realpath_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __realpath_chk(
    path: *const c_char,
    buffer: *mut c_char,
    room: size_t,
) -> *mut c_char {
    if room < libc::PATH_MAX as usize {
        // SAFETY: the caller's own arguments. The C library aborts the program.
        return unsafe {
            next!(__realpath_chk: fn(*const c_char, *mut c_char, size_t) -> *mut c_char)(
                path, buffer, room,
            )
        };
    }
    // SAFETY: the caller's own arguments.
    unsafe { realpath(path, buffer) }
}

/// As `canonicalize_file_name(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's own argument.
    unsafe { realpath(path, core::ptr::null_mut()) }
}
