//! Changing attributes: mode, owner, times.

use cairn_posix::descriptors::description;
use core::ffi::{c_char, c_int};

use cairn_posix::files::file;
use cairn_posix::files::place::Place;
use cairn_posix::{Errno, HandleId, PathResult, Result};
use libc::{gid_t, mode_t, timespec, timeval, uid_t, utimbuf};

use crate::answer::given;
use crate::hooks::{self, by_empty_path, with_flags};

const FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

fn change_mode(place: &Place, mode: mode_t, follow: bool) -> PathResult<()> {
    let found = file::find(place, follow)?;
    if found.attributes()?.is_symlink() {
        return Err(Errno(libc::EOPNOTSUPP).into());
    }
    Ok(file::set_mode(found.inode, mode)?)
}

fn change_owner(place: &Place, uid: uid_t, gid: gid_t, follow: bool) -> PathResult<()> {
    let found = file::find(place, follow)?;
    Ok(file::set_owner(found.inode, uid, gid)?)
}

type Times = Option<[timespec; 2]>;

fn change_times(place: &Place, times: Result<Times>, follow: bool) -> PathResult<()> {
    if times.is_ok_and(is_omitted) {
        return Ok(());
    }
    let found = file::find(place, follow)?;
    Ok(file::set_times(found.inode, times?)?)
}

/// Whether both times are `UTIME_OMIT`. In this case the kernel does not even look at the file.
fn is_omitted(times: Times) -> bool {
    let is_omitted = |time: &timespec| time.tv_nsec == libc::UTIME_OMIT;
    times.is_some_and(|times| times.iter().all(is_omitted))
}

fn set_times(handle: HandleId, times: Result<Times>) -> Result<()> {
    let times = times?;
    match is_omitted(times) {
        true => Ok(()),
        false => file::set_times(description::opened(handle)?.inode, times),
    }
}

/// Reads the two times at `times`. None if null, which means the current time.
unsafe fn exact(times: *const timespec) -> Result<Times> {
    // SAFETY: the caller passes null or two structures.
    unsafe { given(times.cast::<[timespec; 2]>()) }
}

/// As `exact`, from microseconds. Errors: `EINVAL` if they are out of range.
unsafe fn coarse(times: *const timeval) -> Result<Times> {
    // SAFETY: the caller passes null or two structures.
    let times = unsafe { given(times.cast::<[timeval; 2]>()) }?;
    let Some(times) = times else { return Ok(None) };
    let convert = |time: &timeval| match time.tv_usec {
        0..=999_999 => Ok(timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 }),
        _ => Err(Errno(libc::EINVAL)),
    };
    Ok(Some([convert(&times[0])?, convert(&times[1])?]))
}

/// As `exact`, from seconds.
unsafe fn whole(times: *const utimbuf) -> Result<Times> {
    // SAFETY: the caller passes null or one structure.
    let times = unsafe { given(times) }?;
    let time = |tv_sec| timespec { tv_sec, tv_nsec: 0 };
    Ok(times.map(|times| [time(times.actime), time(times.modtime)]))
}

path_hooks! {
    fn chmod(path: *const c_char, mode: mode_t) -> c_int,
        [path, follow true] = |place| change_mode(&place, mode, true);
    fn lchmod(path: *const c_char, mode: mode_t) -> c_int,
        [path, follow false] = |place| change_mode(&place, mode, false);
    fn fchmodat(directory: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int,
        [path at directory, follow follows(flags)]
        = |place| with_flags(flags, libc::AT_SYMLINK_NOFOLLOW, || change_mode(&place, mode, follows(flags)));
    fn chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int,
        [path, follow true] = |place| change_owner(&place, uid, gid, true);
    fn lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int,
        [path, follow false] = |place| change_owner(&place, uid, gid, false);
    fn utime(path: *const c_char, times: *const utimbuf) -> c_int,
        // SAFETY: the caller passes null or one structure.
        [path, follow true] = |place| change_times(&place, unsafe { whole(times) }, true);
    fn utimes(path: *const c_char, times: *const timeval) -> c_int,
        // SAFETY: the caller passes null or two structures.
        [path, follow true] = |place| change_times(&place, unsafe { coarse(times) }, true);
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int,
        // SAFETY: the caller passes null or two structures.
        [path, follow false] = |place| change_times(&place, unsafe { coarse(times) }, false);
    fn futimesat(directory: c_int, path: *const c_char, times: *const timeval) -> c_int,
        // SAFETY: the caller passes null or two structures.
        [path at directory, follow true] = |place| change_times(&place, unsafe { coarse(times) }, true);
}

descriptor_hooks! {
    fn fchmod(descriptor: c_int, mode: mode_t) -> c_int
        = |handle| file::set_mode(description::opened(handle)?.inode, mode);
    fn fchown(descriptor: c_int, uid: uid_t, gid: gid_t) -> c_int
        = |handle| file::set_owner(description::opened(handle)?.inode, uid, gid);
    fn futimens(descriptor: c_int, times: *const timespec) -> c_int
        // SAFETY: the caller passes null or two structures.
        = |handle| set_times(handle, unsafe { exact(times) });
    fn futimes(descriptor: c_int, times: *const timeval) -> c_int
        // SAFETY: the caller passes null or two structures.
        = |handle| set_times(handle, unsafe { coarse(times) });
}

/// As `fchownat(2)`: of a path, or of an open file with `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fchownat(
    directory: c_int,
    path: *const c_char,
    uid: uid_t,
    gid: gid_t,
    flags: c_int,
) -> c_int {
    let real = || next!(fchownat: fn(c_int, *const c_char, uid_t, gid_t, c_int) -> c_int);
    // SAFETY: the caller passes a terminated path.
    let place = unsafe {
        by_empty_path(directory, path, flags).or_else(|| {
            hooks::ours(cairn_posix::files::path::route_at(directory, path), follows(flags))
        })
    };
    match place {
        Some(place) => crate::answer::answer_path(
            || with_flags(flags, FLAGS, || change_owner(&place, uid, gid, follows(flags))),
            // SAFETY: the caller's own arguments, except for the path, which lives for the call.
            |elsewhere| unsafe { fchownat(libc::AT_FDCWD, elsewhere.as_ptr(), uid, gid, flags) },
        ),
        // SAFETY: the caller's own arguments.
        None => unsafe { real()(directory, path, uid, gid, flags) },
    }
}

/// As `utimensat(2)`: of a path, or of an open file with `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn utimensat(
    directory: c_int,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    let real = || next!(utimensat: fn(c_int, *const c_char, *const timespec, c_int) -> c_int);
    // SAFETY: the caller passes null or a terminated path.
    let place = unsafe {
        by_empty_path(directory, path, flags).or_else(|| {
            hooks::ours(cairn_posix::files::path::route_at(directory, path), follows(flags))
        })
    };
    match place {
        Some(place) => crate::answer::answer_path(
            || {
                with_flags(flags, FLAGS, || {
                    // SAFETY: the caller passes null or two structures.
                    change_times(&place, unsafe { exact(times) }, follows(flags))
                })
            },
            // SAFETY: the caller's own arguments, except for the path, which lives for the call.
            |elsewhere| unsafe { utimensat(libc::AT_FDCWD, elsewhere.as_ptr(), times, flags) },
        ),
        // SAFETY: the caller's own arguments.
        None => unsafe { real()(directory, path, times, flags) },
    }
}
