//! `ftw` and `nftw` on Cairn trees. The C library's own would open the directories past our hooks.
//!
//! Must stay true: a walk consists of calls of our hooks and of the caller's function, which may
//! leave by an exception or end its thread. So nothing around it catches that, defers signals or
//! runs on another stack.

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::CString;

use cairn_posix::files::path::Route;
use cairn_posix::{Errno, Result};
use libc::stat as Stat;

use crate::answer::{answer_unguarded, errno, set_errno};
use crate::{directories, stat};

/// `struct FTW` of the C library.
#[repr(C)]
pub struct Position {
    /// Offset of the file's name in the path.
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C-unwind" fn(*const c_char, *const Stat, c_int) -> c_int;
type VisitPosition =
    unsafe extern "C-unwind" fn(*const c_char, *const Stat, c_int, *mut Position) -> c_int;

/// Flags of `nftw` (`FTW_PHYS` and so on).
const PHYSICAL: c_int = 1;
const CHANGE_DIRECTORY: c_int = 4;
const CONTENTS_FIRST: c_int = 8;
const ACTION_RESULTS: c_int = 16;
/// Kinds of entries passed to the caller's function (`FTW_F` and so on).
const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const NO_ATTRIBUTES: c_int = 3;
const SYMLINK: c_int = 4;
const CONTENTS_DONE: c_int = 5;
const DANGLING: c_int = 6;
/// Results of the caller's function with `ACTION_RESULTS`.
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;
/// Maximum nesting of directories.
const DEPTH_MAX: c_int = 2048;

/// A walk in progress.
struct Walk<'a> {
    flags: c_int,
    call: &'a dyn Fn(&CStr, &Stat, c_int, &mut Position) -> c_int,
    /// Device and inode of directories seen so far, if symbolic links are followed. Each is walked
    /// once.
    seen: RefCell<BTreeSet<(u64, u64)>>,
    /// Directory where the walk began, with `CHANGE_DIRECTORY`. Relative paths start from it.
    start: Option<CString>,
}

/// How to continue after a visit.
enum Next {
    Continue,
    SkipSubtree,
    SkipSiblings,
    /// The walk ends with this result.
    End(c_int),
}

/// Attributes of a file: a Cairn file, or a foreign one that a symbolic link leads to.
fn status(path: &CStr, follow: bool) -> Result<Stat> {
    // SAFETY: plain integers, for which zero is a valid value.
    let mut status: Stat = unsafe { core::mem::zeroed() };
    let ask = if follow { stat::stat } else { stat::lstat };
    // SAFETY: the path is terminated, and there is room for one structure.
    match unsafe { ask(path.as_ptr(), &mut status) } {
        0 => Ok(status),
        _ => Err(Errno(errno())),
    }
}

fn names(path: &CStr) -> Result<Vec<CString>> {
    // SAFETY: the path is terminated.
    let stream = unsafe { directories::opendir(path.as_ptr()) };
    if stream.is_null() {
        return Err(Errno(errno()));
    }
    let mut found = Vec::new();
    set_errno(0);
    // SAFETY: the stream was opened above; an entry is valid until the next call.
    while let Some(entry) = unsafe { directories::readdir64(stream).as_ref() } {
        // SAFETY: the name of an entry is terminated.
        found.push(unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_owned());
    }
    let failure = errno();
    // SAFETY: the stream is not used afterwards.
    unsafe { directories::closedir(stream) };
    found.retain(|name| !matches!(name.as_bytes(), b"." | b".."));
    if failure == 0 { Ok(found) } else { Err(Errno(failure)) }
}

fn is(status: &Stat, kind: u32) -> bool {
    status.st_mode & libc::S_IFMT == kind
}

impl Walk<'_> {
    /// Path that is valid from any current directory, because a visit may have changed it.
    fn locate<'a>(&self, path: &'a CStr) -> Result<Cow<'a, CStr>> {
        match &self.start {
            Some(start) if !path.to_bytes().starts_with(b"/") => {
                let whole = [start.to_bytes(), b"/", path.to_bytes()].concat();
                Ok(Cow::Owned(CString::new(whole).map_err(|_| Errno(libc::EINVAL))?))
            }
            _ => Ok(Cow::Borrowed(path)),
        }
    }

    /// With `CHANGE_DIRECTORY`: changes to the directory for the visit of `path`, which is its
    /// parent, or the directory itself after its contents.
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

    fn visit(&self, path: &CStr, status: &Stat, kind: c_int, level: c_int) -> Result<Next> {
        let bytes = path.to_bytes();
        let base = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut position = Position { base: base as c_int, level };
        self.go_to(path, base, kind)?;
        Ok(match (self.call)(path, status, kind, &mut position) {
            0 => Next::Continue,
            SKIP_SUBTREE if self.flags & ACTION_RESULTS != 0 => Next::SkipSubtree,
            SKIP_SIBLINGS if self.flags & ACTION_RESULTS != 0 => Next::SkipSiblings,
            result => Next::End(result),
        })
    }

    /// Visits an entry whose attributes cannot be read because of `errno`, or fails where the C
    /// library's walk fails.
    fn visit_unknown(&self, path: &CStr, level: c_int, Errno(errno): Errno) -> Result<Next> {
        let itself =
            status(&self.locate(path)?, false).ok().filter(|found| is(found, libc::S_IFLNK));
        match (itself, errno) {
            (Some(link), libc::ENOENT) => self.visit(path, &link, DANGLING, level),
            (Some(link), libc::EACCES) if level > 0 => self.visit(path, &link, DANGLING, level),
            (None, libc::ENOENT | libc::EACCES) if level > 0 => {
                // SAFETY: plain integers, for which zero is a valid value.
                let nothing: Stat = unsafe { core::mem::zeroed() };
                self.visit(path, &nothing, NO_ATTRIBUTES, level)
            }
            _ => Err(Errno(errno)),
        }
    }

    /// Walks the tree at `path`.
    fn walk(&self, path: &CStr, level: c_int) -> Result<Next> {
        if level > DEPTH_MAX {
            return Err(Errno(libc::ELOOP));
        }
        let physical = self.flags & PHYSICAL != 0;
        let located = self.locate(path)?;
        let found = match status(&located, !physical) {
            Ok(found) => found,
            Err(errno) => return self.visit_unknown(path, level, errno),
        };
        if !is(&found, libc::S_IFDIR) {
            let kind = if is(&found, libc::S_IFLNK) { SYMLINK } else { FILE };
            return self.visit(path, &found, kind, level);
        }
        if !physical && !self.seen.borrow_mut().insert((found.st_dev, found.st_ino)) {
            return Ok(Next::Continue);
        }
        let Ok(names) = names(&located) else {
            return self.visit(path, &found, UNREADABLE, level);
        };
        let contents_first = self.flags & CONTENTS_FIRST != 0;
        if !contents_first {
            match self.visit(path, &found, DIRECTORY, level)? {
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
            true => self.visit(path, &found, CONTENTS_DONE, level),
            false => Ok(Next::Continue),
        }
    }
}

fn current_directory() -> Result<CString> {
    // SAFETY: without a buffer the result is new memory, which is ours to free.
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
    symbol: &'static str,
    path: *const c_char,
    flags: c_int,
    call: &dyn Fn(&CStr, &Stat, c_int, &mut Position) -> c_int,
) -> c_int {
    let act = || {
        let start = match flags & CHANGE_DIRECTORY {
            0 => None,
            _ => Some(current_directory()?),
        };
        let walk = Walk { flags, call, seen: RefCell::default(), start };
        // SAFETY: promised by the caller.
        let walked = walk.walk(&without_slashes(unsafe { CStr::from_ptr(path) })?, 0);
        if let Some(start) = &walk.start {
            change_directory(start)?;
        }
        match walked? {
            Next::End(result) => Ok(result),
            _ => Ok(0),
        }
    };
    answer_unguarded(symbol, act)
}

/// The path without trailing slashes.
fn without_slashes(path: &CStr) -> Result<CString> {
    let path = path.to_bytes();
    let last = path.iter().rposition(|&byte| byte != b'/');
    let end = last.map_or(path.len().min(1), |last| last + 1);
    CString::new(&path[..end]).map_err(|_| Errno(libc::EINVAL))
}

/// # Safety
/// `path` is terminated.
unsafe fn is_ours(path: *const c_char) -> bool {
    // SAFETY: promised by the caller.
    matches!(unsafe { cairn_posix::files::path::route(path) }, Route::Place(_))
}

/// Kind that `ftw` reports for a kind of `nftw`.
fn without_links(kind: c_int) -> c_int {
    match kind {
        SYMLINK => FILE,
        CONTENTS_DONE => DIRECTORY,
        DANGLING => NO_ATTRIBUTES,
        kind => kind,
    }
}

macro_rules! walks {
    ($(fn $name:ident with $visit:ty, flags [$($flags:ident)?], |$path:ident, $status:ident, $kind:ident, $position:ident| $($given:expr)?, kinds $kinds:expr;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char, visit: $visit, descriptors: c_int $(, $flags: c_int)?
        ) -> c_int {
            // SAFETY: the caller passes a terminated path.
            if !unsafe { is_ours(path) } {
                let real = || next!($name: fn(*const c_char, *mut c_void, c_int $(, walks!(@int $flags))?) -> c_int);
                // SAFETY: the caller's own arguments.
                return unsafe { real()(path, visit as *mut c_void, descriptors $(, $flags)?) };
            }
            let flags = walks!(@flags $($flags)?);
            let call = |$path: &CStr, $status: &Stat, $kind: c_int, $position: &mut Position| {
                let _ = &$position;
                // SAFETY: the caller's own function, with the arguments it expects.
                unsafe { visit($path.as_ptr(), $status, $kinds($kind) $(, $given)?) }
            };
            // SAFETY: the caller passes a terminated path.
            unsafe { walk(stringify!($name), path, flags, &call) }
        }
    )*};
    (@int $flags:ident) => { c_int };
    (@flags $flags:ident) => { $flags };
    (@flags) => { 0 };
}

walks! {
    fn ftw with Visit, flags [], |path, status, kind, position|, kinds without_links;
    fn ftw64 with Visit, flags [], |path, status, kind, position|, kinds without_links;
    fn nftw with VisitPosition, flags [flags], |path, status, kind, position| position, kinds core::convert::identity;
    fn nftw64 with VisitPosition, flags [flags], |path, status, kind, position| position, kinds core::convert::identity;
}
