//! Queries about files: both generations of the stat family, statx, access, space in the file
//! system.

use core::ffi::{c_char, c_int, c_long, c_uint};

use cairn_posix::Attributes;
use cairn_posix::files::place::Place;
use cairn_posix::files::{attributes, file};
use cairn_posix::mount::Rights;
use cairn_posix::task::{store_inodes, table};
use cairn_posix::{Errno, PathResult, Result, mount};
use libc::{stat as Stat, statfs as Statfs, statvfs as Statvfs, statx as Statx};

use crate::answer::{self, answer, answer_path};
use crate::hooks;

unsafe fn deliver(found: &Attributes, target: *mut Stat) -> Result<()> {
    let value = attributes::stat(mount::current()?, found);
    // SAFETY: the caller of the stat family passes room for one structure.
    unsafe { answer::deliver(target, value) }
}

unsafe fn stat_place(place: &Place, follow: bool, target: *mut Stat) -> PathResult<()> {
    // Matched by reference: moving the attributes out of the result costs a tenth of the call.
    match file::stat(place, follow) {
        // SAFETY: as in `deliver`.
        Ok(ref found) => Ok(unsafe { deliver(found, target) }?),
        Err(error) => Err(error),
    }
}

fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

macro_rules! by_path {
    ($(fn $name:ident([$($version:ident)?] path, target), follow $follow:literal;)*) => { path_hooks! {$(
        fn $name($($version: c_int,)? path: *const c_char, target: *mut Stat) -> c_int,
            // SAFETY: the caller passes room for one structure.
            [path, follow $follow] = |place| unsafe { stat_place(&place, $follow, target) };
    )*} };
}

by_path! {
    fn stat([] path, target), follow true;
    fn stat64([] path, target), follow true;
    fn lstat([] path, target), follow false;
    fn lstat64([] path, target), follow false;
    fn __xstat([version] path, target), follow true;
    fn __xstat64([version] path, target), follow true;
    fn __lxstat([version] path, target), follow false;
    fn __lxstat64([version] path, target), follow false;
}

/// Whether the kernel's answer describes a placeholder that was not in the table yet.
fn recognise_after_failure(descriptor: c_int, mode: u32, device: u64) -> bool {
    store_inodes::is_placeholder(mode, device) && crate::answer::recognise(descriptor)
}

macro_rules! by_descriptor {
    ($(fn $name:ident([$($version:ident)?] descriptor, target);)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($version: c_int,)? descriptor: c_int, target: *mut Stat) -> c_int {
            if !table::is_ours(descriptor) {
                let real = || next!($name: fn($(by_descriptor!(@int $version),)? c_int, *mut Stat) -> c_int);
                // SAFETY: the caller's own arguments.
                let result = unsafe { real()($($version,)? descriptor, target) };
                // SAFETY: a successful call has filled the structure.
                if result != 0 || !unsafe { recognise_after_failure(descriptor, (*target).st_mode, (*target).st_dev) } {
                    return result;
                }
            }
            answer(|| {
                let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
                // SAFETY: the caller passes room for one structure.
                unsafe { deliver(&file::attributes(handle)?, target) }
            })
        }
    )*};
    (@int $version:ident) => { c_int };
}

by_descriptor! {
    fn fstat([] descriptor, target);
    fn fstat64([] descriptor, target);
    fn __fxstat([version] descriptor, target);
    fn __fxstat64([version] descriptor, target);
}

/// Place named by a directory, a path and `AT_` flags, if it is Cairn's.
///
/// # Safety
/// `path` is null or terminated, and outlives the result.
#[inline]
unsafe fn place_at<'a>(directory: c_int, path: *const c_char, flags: c_int) -> Option<Place<'a>> {
    // SAFETY: promised by the caller.
    unsafe {
        hooks::by_empty_path(directory, path, flags).or_else(|| {
            hooks::ours(cairn_posix::files::path::route_at(directory, path), follows(flags))
        })
    }
}

macro_rules! at_directory {
    ($(fn $name:ident([$($version:ident)?] directory, path, target, flags);)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($version: c_int,)? directory: c_int, path: *const c_char, target: *mut Stat, flags: c_int,
        ) -> c_int {
            #[inline(never)]
            unsafe extern "C-unwind" fn any_path(
                $($version: c_int,)? directory: c_int, path: *const c_char, target: *mut Stat, flags: c_int,
            ) -> c_int {
                // SAFETY: the caller passes a terminated path.
                let place = unsafe { place_at(directory, path, flags) };
                if let Some(place) = place {
                    return answer_path(
                        || hooks::with_flags(flags, STAT_FLAGS, || {
                            // SAFETY: the caller passes room for one structure.
                            unsafe { stat_place(&place, follows(flags), target) }
                        }),
                        // SAFETY: the caller's own arguments, except for the path, which lives for
                        // the call.
                        |elsewhere| unsafe { $name($($version,)? libc::AT_FDCWD, elsewhere.as_ptr(), target, flags) },
                    );
                }
                // SAFETY: the caller's own arguments.
                let result = unsafe { at_directory!(@real $name $($version)?)($($version,)? directory, path, target, flags) };
                let asked_of_descriptor = result == 0 && directory >= 0;
                let missed = asked_of_descriptor
                    // SAFETY: a successful call has filled the structure.
                    && unsafe { recognise_after_failure(directory, (*target).st_mode, (*target).st_dev) };
                match missed {
                    // SAFETY: the caller's own arguments; the descriptor is in the table by now.
                    true => unsafe { $name($($version,)? directory, path, target, flags) },
                    false => result,
                }
            }
            // SAFETY: the caller passes a terminated path. The split is as in `path_hooks`.
            match unsafe { hooks::passes(directory, path, flags) } {
                // SAFETY: the caller's own arguments.
                true => unsafe { at_directory!(@real $name $($version)?)($($version,)? directory, path, target, flags) },
                // SAFETY: as above.
                false => unsafe { any_path($($version,)? directory, path, target, flags) },
            }
        }
    )*};
    (@real $name:ident $($version:ident)?) => {
        next!($name: fn($(at_directory!(@int $version),)? c_int, *const c_char, *mut Stat, c_int) -> c_int)
    };
    (@int $version:ident) => { c_int };
}

at_directory! {
    fn fstatat([] directory, path, target, flags);
    fn fstatat64([] directory, path, target, flags);
    fn __fxstatat([version] directory, path, target, flags);
    fn __fxstatat64([version] directory, path, target, flags);
}

const STAT_FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
const STATX_FLAGS: c_int = STAT_FLAGS | libc::AT_STATX_SYNC_TYPE;

unsafe fn statx_place(
    place: &Place,
    follow: bool,
    mask: c_uint,
    target: *mut Statx,
) -> PathResult<()> {
    if mask & libc::STATX__RESERVED as c_uint != 0 {
        return Err(Errno(libc::EINVAL).into());
    }
    let found = file::stat(place, follow)?;
    let value = attributes::statx(mount::current()?, &found);
    // SAFETY: the caller of statx passes room for one structure.
    Ok(unsafe { answer::deliver(target, value) }?)
}

/// As `statx(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    target: *mut Statx,
) -> c_int {
    #[inline(never)]
    unsafe extern "C-unwind" fn any_path(
        directory: c_int,
        path: *const c_char,
        flags: c_int,
        mask: c_uint,
        target: *mut Statx,
    ) -> c_int {
        // SAFETY: the caller passes a terminated path.
        let place = unsafe { place_at(directory, path, flags) };
        if let Some(place) = place {
            return answer_path(
                || {
                    hooks::with_flags(flags, STATX_FLAGS, || {
                        // SAFETY: the caller passes room for one structure.
                        unsafe { statx_place(&place, follows(flags), mask, target) }
                    })
                },
                // SAFETY: the caller's own arguments, except for the path, which lives for the
                // call.
                |elsewhere| unsafe {
                    statx(libc::AT_FDCWD, elsewhere.as_ptr(), flags, mask, target)
                },
            );
        }
        let real = next!(statx: fn(c_int, *const c_char, c_int, c_uint, *mut Statx) -> c_int);
        // SAFETY: the caller's own arguments.
        let result = unsafe { real(directory, path, flags, mask, target) };
        if result == 0 && directory >= 0 {
            // SAFETY: a successful call has filled the structure.
            let found = unsafe { &*target };
            let device = libc::makedev(found.stx_dev_major, found.stx_dev_minor);
            if recognise_after_failure(directory, u32::from(found.stx_mode), device) {
                // SAFETY: the caller's own arguments; the descriptor is in the table by now.
                return unsafe { statx(directory, path, flags, mask, target) };
            }
        }
        result
    }
    // SAFETY: the caller passes a terminated path.
    if !unsafe { hooks::passes(directory, path, flags) } {
        // SAFETY: the caller's own arguments.
        return unsafe { any_path(directory, path, flags, mask, target) };
    }
    let real = next!(statx: fn(c_int, *const c_char, c_int, c_uint, *mut Statx) -> c_int);
    // SAFETY: the caller's own arguments. A jump, as in `path_hooks`.
    unsafe { real(directory, path, flags, mask, target) }
}

path_hooks! {
    fn access(path: *const c_char, mask: c_int) -> c_int,
        [path, follow true] = |place| file::access(&place, mask, true, Rights::Real);
    fn euidaccess(path: *const c_char, mask: c_int) -> c_int,
        [path, follow true] = |place| file::access(&place, mask, true, Rights::Effective);
    fn eaccess(path: *const c_char, mask: c_int) -> c_int,
        [path, follow true] = |place| file::access(&place, mask, true, Rights::Effective);
    fn faccessat(directory: c_int, path: *const c_char, mask: c_int, flags: c_int) -> c_int,
        [path at directory, follow follows(flags)]
        = |place| hooks::with_flags(flags, ACCESS_FLAGS, || {
            let rights =
                if flags & libc::AT_EACCESS != 0 { Rights::Effective } else { Rights::Real };
            file::access(&place, mask, follows(flags), rights)
        });
    fn statfs(path: *const c_char, target: *mut Statfs) -> c_int,
        // SAFETY: the caller passes room for one structure.
        [path, follow true] = |place| unsafe { statfs_place(&place, target) };
    fn statfs64(path: *const c_char, target: *mut Statfs) -> c_int,
        // SAFETY: the caller passes room for one structure.
        [path, follow true] = |place| unsafe { statfs_place(&place, target) };
    fn __statfs(path: *const c_char, target: *mut Statfs) -> c_int,
        // SAFETY: the caller passes room for one structure.
        [path, follow true] = |place| unsafe { statfs_place(&place, target) };
    fn ftok(path: *const c_char, project: c_int) -> c_int,
        [path, follow true] = |place| key_of(&place, project);
    fn statvfs(path: *const c_char, target: *mut Statvfs) -> c_int,
        // SAFETY: the caller passes room for one structure.
        [path, follow true] = |place| unsafe { statvfs_place(&place, target) };
    fn statvfs64(path: *const c_char, target: *mut Statvfs) -> c_int,
        // SAFETY: the caller passes room for one structure.
        [path, follow true] = |place| unsafe { statvfs_place(&place, target) };
    fn pathconf(path: *const c_char, name: c_int) -> c_long,
        [path, follow true] = |place| {
            if is_of_file_system(name) {
                file::resolve(&place, true)?;
            }
            Ok(limit(name)?)
        };
}

/// Key made from a file's inode number and device, as the C library's `ftok` makes it.
fn key_of(place: &Place, project: c_int) -> PathResult<c_int> {
    let found = attributes::stat(mount::current()?, &file::stat(place, true)?);
    let parts = [found.st_ino & 0xffff, (found.st_dev & 0xff) << 16, (project as u64 & 0xff) << 24];
    Ok((parts[0] | parts[1] | parts[2]) as c_int)
}

unsafe fn statfs_place(place: &Place, target: *mut Statfs) -> PathResult<()> {
    file::resolve(place, true)?;
    // SAFETY: promised by the caller.
    Ok(unsafe { statfs_mount(target) }?)
}

unsafe fn statfs_mount(target: *mut Statfs) -> Result<()> {
    let value = attributes::statfs(mount::current()?)?;
    // SAFETY: promised by the caller.
    unsafe { answer::deliver(target, value) }
}

unsafe fn statvfs_place(place: &Place, target: *mut Statvfs) -> PathResult<()> {
    file::resolve(place, true)?;
    // SAFETY: promised by the caller.
    Ok(unsafe { statvfs_mount(target) }?)
}

unsafe fn statvfs_mount(target: *mut Statvfs) -> Result<()> {
    let value = attributes::statvfs(mount::current()?)?;
    // SAFETY: promised by the caller.
    unsafe { answer::deliver(target, value) }
}

descriptor_hooks! {
    fn fstatfs(descriptor: c_int, target: *mut Statfs) -> c_int
        // SAFETY: the caller passes room for one structure.
        = |_handle| unsafe { statfs_mount(target) };
    fn fstatfs64(descriptor: c_int, target: *mut Statfs) -> c_int
        // SAFETY: the caller passes room for one structure.
        = |_handle| unsafe { statfs_mount(target) };
    fn fstatvfs(descriptor: c_int, target: *mut Statvfs) -> c_int
        // SAFETY: the caller passes room for one structure.
        = |_handle| unsafe { statvfs_mount(target) };
    fn fstatvfs64(descriptor: c_int, target: *mut Statvfs) -> c_int
        // SAFETY: the caller passes room for one structure.
        = |_handle| unsafe { statvfs_mount(target) };
    fn fpathconf(descriptor: c_int, name: c_int) -> c_long = |_handle| limit(name);
}

const ACCESS_FLAGS: c_int = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

/// Whether the C library asks the file system for this limit. For other limits it does not look at
/// the file.
fn is_of_file_system(name: c_int) -> bool {
    matches!(
        name,
        libc::_PC_LINK_MAX
            | libc::_PC_NAME_MAX
            | libc::_PC_CHOWN_RESTRICTED
            | libc::_PC_FILESIZEBITS
            | libc::_PC_2_SYMLINKS
    )
}

/// Limit of the mount, by its number in `pathconf(3)`. Errors: `EINVAL` for an unknown number.
fn limit(name: c_int) -> Result<i64> {
    match name {
        libc::_PC_LINK_MAX => Ok(1 << 20),
        libc::_PC_NAME_MAX => Ok(cairn_posix::NAME_BYTES_MAX as i64),
        libc::_PC_PATH_MAX => Ok(i64::from(libc::PATH_MAX)),
        libc::_PC_PIPE_BUF => Ok(4096),
        libc::_PC_MAX_CANON | libc::_PC_MAX_INPUT => Ok(255),
        libc::_PC_VDISABLE => Ok(0),
        libc::_PC_NO_TRUNC | libc::_PC_CHOWN_RESTRICTED | libc::_PC_2_SYMLINKS => Ok(1),
        libc::_PC_FILESIZEBITS => Ok(64),
        libc::_PC_SYMLINK_MAX => Ok(cairn_posix::PATH_BYTES_MAX as i64),
        libc::_PC_REC_MIN_XFER_SIZE | libc::_PC_REC_XFER_ALIGN | libc::_PC_ALLOC_SIZE_MIN => {
            Ok(4096)
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}
