//! `openat2(2)`: opening a file with rules for the resolution of its path.
//!
//! Only the kernel knows whether an `open_how` is valid, so it is asked with the same structure and
//! a path that cannot be opened. The file system around the mount is another one, and nothing is
//! known of it here: a path that enters or leaves the mount crosses file systems.

use core::ffi::{c_char, c_int, c_long};

use cairn_posix::files::cwd;
use cairn_posix::files::path::{self, Route};
use cairn_posix::files::place::Place;
use cairn_posix::kernel::address;
use cairn_posix::{Above, Errno, InodeId, PathBounds, PathResult, mount};

use crate::answer::{answer_as, answer_path_as, count_refusal, errno, guarded};
use crate::{hooks, open};

/// As `openat2(2)`.
///
/// # Safety
/// The arguments are as that call demands.
pub unsafe fn openat2(
    directory: c_int,
    path: *const c_char,
    how: *const libc::open_how,
    size: usize,
) -> c_long {
    // SAFETY: promised by the caller.
    unsafe { Request { directory, path, how, size }.answer() }
}

/// One call, as the application made it.
#[derive(Clone, Copy)]
struct Request {
    directory: c_int,
    path: *const c_char,
    how: *const libc::open_how,
    size: usize,
}

impl Request {
    /// Serves the call or passes it on.
    ///
    /// # Safety
    /// The arguments are those of `openat2(2)`.
    unsafe fn answer(self) -> c_long {
        // SAFETY: promised by the caller.
        if !unsafe { self.is_ours() } {
            return self.pass();
        }
        let nowhere = Request { directory: -1, path: c".".as_ptr(), ..self };
        if nowhere.pass() != -1 || errno() != libc::EBADF {
            count_refusal("openat2", errno());
            return -1;
        }
        // SAFETY: the kernel has just read it.
        let how = unsafe { *self.how };
        let opening = Opening { request: self, how };
        // SAFETY: as above; a path of ours is terminated.
        unsafe { opening.answer() }
    }

    /// Whether the path starts from a Cairn directory or leads into the mount.
    unsafe fn is_ours(&self) -> bool {
        let is_named = address::byte(self.path.cast()).is_some_and(|first| first != 0);
        // SAFETY: the caller passes a terminated path or a bad address.
        let route = || unsafe { cairn_posix::files::path::route_at(self.directory, self.path) };
        is_named && (self.base().is_some() || route() != Route::Libc)
    }

    /// Directory that a relative path starts from, if it is Cairn's.
    fn base(&self) -> Option<InodeId> {
        match self.directory {
            libc::AT_FDCWD => cwd::inode(),
            directory => {
                hooks::known(directory)?;
                guarded(|| mount::current()?.directory_of(directory)).ok()
            }
        }
    }

    /// Makes the kernel's call.
    fn pass(&self) -> c_long {
        let real = next!(syscall: fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long);
        let words = [self.directory as usize, self.path as usize, self.how as usize, self.size];
        // SAFETY: the caller's own arguments, or a path that leads nowhere.
        unsafe { real(libc::SYS_openat2, words[0], words[1], words[2], words[3], 0, 0) }
    }
}

/// A call with a valid `open_how`.
struct Opening {
    request: Request,
    how: libc::open_how,
}

impl Opening {
    fn demands(&self, rules: u64) -> bool {
        self.how.resolve & rules != 0
    }

    /// Whether the path must stay below its starting directory.
    fn is_bounded(&self) -> bool {
        self.demands(libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT)
    }

    /// Serves the call or passes it on.
    ///
    /// # Safety
    /// The path is terminated, or at a bad address.
    unsafe fn answer(&self) -> c_long {
        const KNOWN: u64 = libc::RESOLVE_NO_XDEV
            | libc::RESOLVE_NO_MAGICLINKS
            | libc::RESOLVE_NO_SYMLINKS
            | libc::RESOLVE_BENEATH
            | libc::RESOLVE_IN_ROOT
            | libc::RESOLVE_CACHED;
        if self.demands(!KNOWN) {
            return refuse(libc::EINVAL);
        }
        // SAFETY: promised by the caller.
        let path = match unsafe { path::bytes(self.request.path) } {
            Ok(path) => path,
            Err(errno) => return refuse(errno.0),
        };
        let is_absolute = path.first() == Some(&b'/');
        match (self.request.base(), self.is_bounded()) {
            (Some(_), true) if is_absolute && self.demands(libc::RESOLVE_BENEATH) => {
                refuse(libc::EXDEV)
            }
            (Some(base), true) => self.open(Place { base, path: without_slashes(path) }),
            (None, true) if is_absolute => self.request.pass(),
            (base, _) => {
                // SAFETY: promised by the caller.
                let route = unsafe {
                    cairn_posix::files::path::route_at(self.request.directory, self.request.path)
                };
                self.follow(route, path, base.is_none() || is_absolute)
            }
        }
    }

    /// Opens a path that may begin outside the mount.
    fn follow(&self, route: Route<'_>, path: &[u8], enters: bool) -> c_long {
        const LINKS: u64 = libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_SYMLINKS;
        const EXCLUSIVE: c_int = libc::O_CREAT | libc::O_EXCL;
        let flags = self.how.flags as c_int;
        let follows = flags & libc::O_NOFOLLOW == 0 && flags & EXCLUSIVE != EXCLUSIVE;
        match route {
            Route::Libc => self.request.pass(),
            Route::Descriptor(_) if !follows => self.request.pass(),
            _ if enters && self.demands(libc::RESOLVE_NO_XDEV) => refuse(libc::EXDEV),
            Route::Descriptor(_) if self.demands(LINKS) => refuse(libc::ELOOP),
            Route::Descriptor(_) if self.is_bounded() => refuse(libc::EXDEV),
            // Only the kernel can resolve `..` outside the mount.
            Route::Place(place) if self.is_bounded() && has_parent_reference(path, place.path) => {
                self.request.pass()
            }
            _ => match hooks::ours(route, follows) {
                Some(place) => self.open(place),
                None => self.request.pass(),
            },
        }
    }

    fn open(&self, place: Place<'_>) -> c_long {
        let above = match self.how.resolve {
            rules if rules & libc::RESOLVE_BENEATH != 0 => Above::Forbidden,
            rules if rules & libc::RESOLVE_IN_ROOT != 0 => Above::Itself,
            _ => Above::There,
        };
        let bounds = PathBounds {
            above,
            no_links: self.demands(libc::RESOLVE_NO_SYMLINKS),
            one_device: self.demands(libc::RESOLVE_NO_XDEV),
        };
        let (flags, mode) = (self.how.flags as c_int, self.how.mode as u32);
        let act =
            || -> PathResult<i64> { Ok(open::open_place(&place, flags, mode, bounds)?.into()) };
        answer_path_as(
            || "openat2",
            act,
            |elsewhere| match self.demands(libc::RESOLVE_NO_XDEV) {
                true => refuse(libc::EXDEV),
                // SAFETY: the caller's own arguments, except for the path, which lives for the
                // call.
                false => unsafe {
                    let (directory, path) = (libc::AT_FDCWD, elsewhere.as_ptr());
                    Request { directory, path, ..self.request }.answer()
                },
            },
        )
    }
}

fn refuse(number: c_int) -> c_long {
    answer_as(|| "openat2", || Err::<i64, _>(Errno(number)))
}

fn without_slashes(path: &[u8]) -> &[u8] {
    let slashes = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    &path[slashes..]
}

/// Whether a path has a `..` before the part `inside` the mount.
fn has_parent_reference(path: &[u8], inside: &[u8]) -> bool {
    let outside = &path[..path.len().saturating_sub(inside.len())];
    outside.split(|&byte| byte == b'/').any(|name| name == b"..")
}
