//! `ftw` and `nftw` on trees of ours: the C library's own would open the directories past our hooks.

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::CString;

use cairn_posix::path::{Place, Route};
use cairn_posix::{
    Attributes, Errno, PathResult, Result, attributes, directory, file, gate, mount,
};
use libc::stat as Stat;

use crate::answer::{answer_path, errno, set_errno};
use crate::directories;

/// `struct FTW` of the C library.
#[repr(C)]
pub struct Position {
    /// Where the name begins in the path.
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C-unwind" fn(*const c_char, *const Stat, c_int) -> c_int;
type VisitPosition =
    unsafe extern "C-unwind" fn(*const c_char, *const Stat, c_int, *mut Position) -> c_int;

/// Flags of `nftw`.
const PHYSICAL: c_int = 1;
const CHANGE_DIRECTORY: c_int = 4;
const CONTENTS_FIRST: c_int = 8;
const ACTION_RESULTS: c_int = 16;
/// What a visit is told about.
const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const NO_ATTRIBUTES: c_int = 3;
const SYMLINK: c_int = 4;
const CONTENTS_DONE: c_int = 5;
const DANGLING: c_int = 6;
/// What a visit answers with `ACTION_RESULTS`.
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;
/// Directories within each other.
const DEPTH_MAX: c_int = 2048;

/// A walk in progress.
struct Walk<'a> {
    flags: c_int,
    call: &'a dyn Fn(&CStr, &Stat, c_int, &mut Position) -> c_int,
    /// Directories seen so far, where symbolic links are followed: each is walked once.
    seen: RefCell<BTreeSet<u32>>,
    /// With `CHANGE_DIRECTORY`: where the walk began, which is where relative paths start from.
    start: Option<CString>,
}

/// What comes after a visit.
enum Next {
    Continue,
    SkipSubtree,
    SkipSiblings,
    /// The walk ends with this result.
    End(c_int),
}

fn place_of(path: &CStr) -> Result<Place<'_>> {
    // SAFETY: the path is terminated and outlives the result.
    match unsafe { cairn_posix::path::route(path.as_ptr()) } {
        Route::Place(place) => Ok(place),
        _ => Err(Errno(libc::ENOENT)),
    }
}

fn names(path: &CStr) -> PathResult<Vec<CString>> {
    let stream = directory::open(&place_of(path)?)?;
    let mut found = Vec::new();
    let listed = loop {
        match stream.next() {
            Ok(entry) if entry.is_null() => break Ok(()),
            // SAFETY: a non-null entry is complete, and valid until the next call on the stream.
            Ok(entry) => found.push(unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) }.to_owned()),
            Err(errno) => break Err(errno),
        }
    };
    stream.close()?;
    listed?;
    found.retain(|name| !matches!(name.as_bytes(), b"." | b".."));
    Ok(found)
}

impl Walk<'_> {
    /// The path as it has to be now that a visit may have been elsewhere.
    fn locate<'a>(&self, path: &'a CStr) -> Result<Cow<'a, CStr>> {
        match &self.start {
            Some(start) if !path.to_bytes().starts_with(b"/") => {
                let whole = [start.to_bytes(), b"/", path.to_bytes()].concat();
                Ok(Cow::Owned(CString::new(whole).map_err(|_| Errno(libc::EINVAL))?))
            }
            _ => Ok(Cow::Borrowed(path)),
        }
    }

    /// With `CHANGE_DIRECTORY`: goes where a visit of `path` is to be, which is the directory that holds it or, when its
    /// contents are done, itself.
    fn go_to(&self, path: &CStr, base: usize, kind: c_int) -> Result<()> {
        if self.start.is_none() {
            return Ok(());
        }
        let directory = match (kind, base) {
            (CONTENTS_DONE, _) => path.to_bytes(),
            (_, 0) => b".",
            (_, base) => &path.to_bytes()[..base],
        };
        let directory = CString::new(directory).map_err(|_| Errno(libc::EINVAL))?;
        change_directory(&self.locate(&directory)?)
    }

    fn visit(
        &self,
        path: &CStr,
        found: Option<&Attributes>,
        kind: c_int,
        level: c_int,
    ) -> Result<Next> {
        // SAFETY: plain integers, for which zero is a value.
        let mut status: Stat = unsafe { core::mem::zeroed() };
        if let Some(found) = found {
            status = attributes::stat(mount::current()?, found);
        }
        let bytes = path.to_bytes();
        let base = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut position = Position { base: base as c_int, level };
        self.go_to(path, base, kind)?;
        let result = (self.call)(path, &status, kind, &mut position);
        Ok(match result {
            0 => Next::Continue,
            SKIP_SUBTREE if self.flags & ACTION_RESULTS != 0 => Next::SkipSubtree,
            SKIP_SIBLINGS if self.flags & ACTION_RESULTS != 0 => Next::SkipSiblings,
            result => Next::End(result),
        })
    }

    /// Walks the tree at `path`.
    fn walk(&self, path: &CStr, level: c_int) -> PathResult<Next> {
        if level > DEPTH_MAX {
            return Err(Errno(libc::ELOOP).into());
        }
        let located = self.locate(path)?;
        let place = place_of(&located)?;
        let physical = self.flags & PHYSICAL != 0;
        let itself = match file::stat(&place, false) {
            Ok(found) => found,
            Err(error) if level == 0 => return Err(error),
            Err(_) => return Ok(self.visit(path, None, NO_ATTRIBUTES, level)?),
        };
        let found = match itself.is_symlink() && !physical {
            true => file::stat(&place, true).ok(),
            false => Some(itself),
        };
        let Some(found) = found else {
            return Ok(self.visit(path, Some(&itself), DANGLING, level)?);
        };
        if !found.is_directory() {
            let kind = if found.is_symlink() { SYMLINK } else { FILE };
            return Ok(self.visit(path, Some(&found), kind, level)?);
        }
        if !physical && !self.seen.borrow_mut().insert(found.inode.0) {
            return Ok(Next::Continue);
        }
        let Ok(names) = names(&located) else {
            return Ok(self.visit(path, Some(&found), UNREADABLE, level)?);
        };
        let contents_first = self.flags & CONTENTS_FIRST != 0;
        if !contents_first {
            match self.visit(path, Some(&found), DIRECTORY, level)? {
                Next::Continue => {}
                Next::SkipSubtree => return Ok(Next::Continue),
                next => return Ok(next),
            }
        }
        for name in names {
            let separator = if path.to_bytes().ends_with(b"/") { &b""[..] } else { b"/" };
            let below = [path.to_bytes(), separator, name.as_bytes()].concat();
            let below = CString::new(below).map_err(|_| Errno(libc::EINVAL))?;
            match self.walk(&below, level + 1)? {
                Next::Continue | Next::SkipSubtree => {}
                Next::SkipSiblings => break,
                end => return Ok(end),
            }
        }
        match contents_first {
            true => Ok(self.visit(path, Some(&found), CONTENTS_DONE, level)?),
            false => Ok(Next::Continue),
        }
    }
}

fn current_directory() -> Result<CString> {
    // SAFETY: without a buffer the result is in memory of its own, which is ours.
    unsafe {
        let path = directories::getcwd(core::ptr::null_mut(), 0);
        if path.is_null() {
            return Err(Errno(errno()));
        }
        let copy = CStr::from_ptr(path).to_owned();
        libc::free(path.cast());
        Ok(copy)
    }
}

fn change_directory(path: &CStr) -> Result<()> {
    // SAFETY: the path is terminated.
    match unsafe { directories::chdir(path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Errno(errno())),
    }
}

/// # Safety
/// `path` is terminated.
unsafe fn walk(
    path: *const c_char,
    flags: c_int,
    call: &dyn Fn(&CStr, &Stat, c_int, &mut Position) -> c_int,
) -> c_int {
    answer_path(
        || {
            let start = match flags & CHANGE_DIRECTORY {
                0 => None,
                _ => Some(current_directory()?),
            };
            let walk = Walk { flags, call, seen: RefCell::default(), start };
            // SAFETY: promised by the caller.
            let walked = walk.walk(unsafe { CStr::from_ptr(path) }, 0);
            if let Some(start) = &walk.start {
                change_directory(start)?;
            }
            match walked? {
                Next::End(result) => Ok(result),
                _ => Ok(0),
            }
        },
        |_| {
            // The tree is a symbolic link out of the mount.
            set_errno(libc::EXDEV);
            -1
        },
    )
}

/// # Safety
/// `path` is terminated.
unsafe fn is_ours(path: *const c_char) -> bool {
    // SAFETY: promised by the caller.
    matches!(unsafe { cairn_posix::path::route(path) }, Route::Place(_))
}

macro_rules! walks {
    ($(fn $name:ident with $visit:ty, flags [$($flags:ident)?], |$path:ident, $status:ident, $kind:ident, $position:ident| $($given:expr)?;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char, visit: $visit, descriptors: c_int $(, $flags: c_int)?
        ) -> c_int {
            // SAFETY: the caller passes a terminated path.
            if !unsafe { is_ours(path) } {
                let real = next!($name: fn(*const c_char, *mut c_void, c_int $(, walks!(@int $flags))?) -> c_int);
                // SAFETY: the caller's own arguments.
                return unsafe { real(path, visit as *mut c_void, descriptors $(, $flags)?) };
            }
            let flags = walks!(@flags $($flags)?);
            let call = |$path: &CStr, $status: &Stat, $kind: c_int, $position: &mut Position| {
                let _ = &$position;
                // SAFETY: the function is the caller's, and gets what it demands.
                gate::outside(|| unsafe { visit($path.as_ptr(), $status, $kind $(, $given)?) })
            };
            // SAFETY: the caller passes a terminated path.
            unsafe { walk(path, flags, &call) }
        }
    )*};
    (@int $flags:ident) => { c_int };
    (@flags $flags:ident) => { $flags };
    (@flags) => { 0 };
}

walks! {
    fn ftw with Visit, flags [], |path, status, kind, position|;
    fn ftw64 with Visit, flags [], |path, status, kind, position|;
    fn nftw with VisitPosition, flags [flags], |path, status, kind, position| position;
    fn nftw64 with VisitPosition, flags [flags], |path, status, kind, position| position;
}
