//! Path routing: the one predicate that decides whether a path is ours.
//!
//! The decision is lexical and allocates nothing. It understands `.`, `..` and repeated slashes,
//! and does not follow symbolic links outside the mount. A path that enters the mount and
//! has_parent_reference out again (`/cairn/../etc`) counts as ours here; the core then says where
//! it leads.
//!
//! Invariant: for a path that is not ours no system call is made. The exception is a relative path
//! that could lead into the mount: then the kernel is asked for the directory that the path starts
//! from.

use core::ffi::{CStr, c_char};
use core::marker::PhantomData;

use crate::error::{Errno, Result};
use crate::files::cwd;
use crate::files::place::Place;
use crate::kernel::configuration::{self, Configuration};
use crate::kernel::{address, gate, stack};
use crate::task::{fs_context, table};
use crate::{kernel, mount};

/// Longest path that the kernel accepts, with its NUL.
const PATH_BYTES: usize = 4096;
/// Most bytes of a path, beyond the mount's prefix, that are read before its end is known.
const LOOKED_AT_MAX: usize = 64;

/// Who serves a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// The C library.
    Libc,
    /// This crate serves it.
    Place(Place<'a>),
    /// This crate serves it: the path names this open descriptor of ours (`/dev/fd/3`).
    Descriptor(i32),
}

/// Result of a first look at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The path is the C library's.
    Foreign,
    /// The path starts with the prefix.
    Below,
    /// The path may lead into the mount indirectly.
    Unclear,
}

/// Decides who serves `path`, relative to the current directory.
///
/// # Safety
/// `path` is null or NUL-terminated, and outlives the result.
#[inline]
pub unsafe fn route<'a>(path: *const c_char) -> Route<'a> {
    let Some(configuration) = configuration::get() else { return Route::Libc };
    // SAFETY: the caller promises the same.
    let look = unsafe { look(configuration, path) };
    let text = Text { start: path.cast(), lifetime: PhantomData };
    match look {
        Look::Foreign => Route::Libc,
        Look::Below => below(text, configuration.mount().len()),
        Look::Unclear => text.bytes().map_or(Route::Libc, |path| examine(configuration, path)),
    }
}

/// Whether `path`, relative to the current directory, is the C library's. If so, the caller only
/// jumps to the library's function and needs nothing else.
///
/// # Safety
/// `path` is null or NUL-terminated.
#[inline(never)]
pub unsafe fn is_foreign(path: *const c_char) -> bool {
    // SAFETY: the caller promises the same.
    configuration::get().is_none_or(|found| unsafe { look(found, path) } == Look::Foreign)
}

/// # Safety
/// `path` is null or NUL-terminated.
#[inline(always)]
unsafe fn look(configuration: &Configuration, path: *const c_char) -> Look {
    let mount = configuration.mount();
    // SAFETY: the caller promises that the string, if there is one, is terminated.
    let Some((path, first)) = (unsafe { Text::new(path, mount.len()) }) else {
        // There is no string, or the kernel refuses it.
        return Look::Foreign;
    };
    let suspicious = match first {
        b'/' if path.starts_with(mount) => match path.byte(mount.len()) {
            0 | b'/' => return Look::Below,
            _ => false,
        },
        b'/' => path.is_unusual(),
        // An empty path names nothing.
        0 => return Look::Foreign,
        // A relative path leads into the mount if the current directory is ours, or by naming a
        // component of the prefix.
        _ => {
            let may_name = |first| configuration.starts_component(first);
            !fs_context::is_foreign() || path.first_of_relative().is_none_or(may_name)
        }
    };
    let Some(whole) = path.bytes() else { return Look::Foreign };
    match suspicious || contains(whole, configuration.required_substring()) {
        true => Look::Unclear,
        false => Look::Foreign,
    }
}

/// Whether a path contains `text`. Few paths contain even its first two bytes.
#[inline]
fn contains(path: &[u8], text: &CStr) -> bool {
    let &[first, second, ..] = text.to_bytes() else { return true };
    // SAFETY: both are NUL-terminated: `path` is a string of the application's without its NUL.
    has_pair(path, [first, second])
        && !unsafe { libc::strstr(path.as_ptr().cast(), text.as_ptr()) }.is_null()
}

/// Whether the two bytes occur next to each other in `text`. For most paths this takes two or three
/// steps.
#[inline]
fn has_pair(text: &[u8], pair: [u8; 2]) -> bool {
    /// Whether one of the N pairs that begin at `at` to `at + N - 1` matches.
    #[inline]
    fn is_among<const N: usize>(text: &[u8], at: usize, [first, second]: [u8; 2]) -> bool {
        let (firsts, seconds) = (&text[at..at + N], &text[at + 1..=at + N]);
        // Without branches, so that the compiler uses vector instructions.
        let found = |found, (&one, &next)| found | ((one == first) & (next == second));
        firsts.iter().zip(seconds).fold(false, found)
    }
    let pairs = text.len().saturating_sub(1);
    match pairs {
        16.. => {
            (0..pairs / 16).any(|block| is_among::<16>(text, block * 16, pair))
                || is_among::<16>(text, pairs - 16, pair)
        }
        8.. => is_among::<8>(text, 0, pair) || is_among::<8>(text, pairs - 8, pair),
        _ => text.windows(2).any(|two| two == pair),
    }
}

/// Returns the place of a path that starts with the prefix, which ends at `end`.
#[inline]
fn below(path: Text<'_>, end: usize) -> Route<'_> {
    let Some(whole) = path.bytes() else { return Route::Libc };
    let rest = &whole[end..];
    let start = rest.iter().position(|&byte| byte != b'/').unwrap_or(rest.len());
    Route::Place(Place { base: cairn_core::ROOT, path: &rest[start..] })
}

/// Decides who serves `path`, relative to the directory `directory` (or `AT_FDCWD`).
///
/// # Safety
/// As for [`route`].
#[inline]
pub unsafe fn route_at<'a>(directory: i32, path: *const c_char) -> Route<'a> {
    let first = match directory {
        libc::AT_FDCWD => None,
        _ => address::byte(path.cast()),
    };
    let Some(first) = first.filter(|&first| first != b'/') else {
        // SAFETY: the caller promises the same.
        return unsafe { route(path) };
    };
    if first == 0 {
        return Route::Libc;
    }
    if !table::in_use() || !table::is_ours(directory) {
        // SAFETY: the caller promises the same.
        return unsafe { route_from(directory, path) };
    }
    // SAFETY: the caller promises the same.
    let Ok(path) = (unsafe { bytes(path) }) else { return Route::Libc };
    match mount::current().and_then(|mount| mount.directory_of(directory)) {
        Ok(base) => Route::Place(Place { base, path }),
        Err(_) => Route::Libc,
    }
}

/// Decides who serves a relative path from a directory that is not ours. The directory may be above
/// the mount.
///
/// # Safety
/// As for [`route`].
#[inline]
unsafe fn route_from<'a>(directory: i32, path: *const c_char) -> Route<'a> {
    let Some(configuration) = configuration::get() else { return Route::Libc };
    // SAFETY: the caller promises the same.
    let Some((path, _)) = (unsafe { Text::new(path, 0) }) else { return Route::Libc };
    let has_parent_reference =
        |first| first == b'.' && path.contains(configuration.required_substring());
    let may_name = |first| configuration.starts_component(first) || has_parent_reference(first);
    match path.first_of_relative().is_none_or(may_name) {
        true => examine_from(configuration, directory, path),
        false => Route::Libc,
    }
}

/// C string of which only the first bytes are read where possible, because most paths are not ours.
#[derive(Clone, Copy)]
struct Text<'a> {
    start: *const u8,
    lifetime: PhantomData<&'a CStr>,
}

impl<'a> Text<'a> {
    /// Returns the text at `start` and its first byte; none for a bad address. `prefix_bytes` +
    /// [`LOOKED_AT_MAX`] bytes of it can be read, or it ends before.
    ///
    /// # Safety
    /// `start` is NUL-terminated and outlives 'a, or is a bad address.
    #[inline]
    unsafe fn new(start: *const c_char, prefix_bytes: usize) -> Option<(Text<'a>, u8)> {
        let text = Text { start: start.cast(), lifetime: PhantomData };
        let first = address::byte(text.start)?;
        let may_run_off = address::bytes_in_page(text.start) < prefix_bytes + LOOKED_AT_MAX;
        (!may_run_off || text.bytes().is_some()).then_some((text, first))
    }

    /// Returns byte `index`. Precondition: no byte before it is the NUL.
    #[inline]
    fn byte(self, index: usize) -> u8 {
        // SAFETY: the string does not end before `index`, so that byte (or the NUL) belongs to it.
        unsafe { *self.start.add(index) }
    }

    #[inline]
    fn starts_with(self, prefix: &[u8]) -> bool {
        prefix.iter().enumerate().all(|(index, &byte)| self.byte(index) == byte)
    }

    /// Whether an absolute path may name the mount, or a descriptor, indirectly.
    #[inline]
    fn is_unusual(self) -> bool {
        match self.byte(1) {
            b'/' | b'.' => true,
            b'd' => self.starts_with(b"/dev/fd/") || self.starts_with(b"/dev/std"),
            b'p' => {
                self.starts_with(b"/proc/self/fd/")
                    || self.starts_with(b"/proc/") && self.byte(6).is_ascii_digit()
            }
            _ => false,
        }
    }

    /// Returns the first byte of the first component that is not `.`; none if too many of those
    /// come before it.
    #[inline]
    fn first_of_relative(self) -> Option<u8> {
        let mut at = 0;
        while self.byte(at) == b'.' && self.byte(at + 1) == b'/' {
            at += 2;
            while at + 2 < LOOKED_AT_MAX && self.byte(at) == b'/' {
                at += 1;
            }
            if at + 2 >= LOOKED_AT_MAX {
                return None;
            }
        }
        Some(self.byte(at))
    }

    #[inline]
    fn contains(self, part: &CStr) -> bool {
        // SAFETY: both strings are NUL-terminated.
        !unsafe { libc::strstr(self.start.cast(), part.as_ptr()) }.is_null()
    }

    /// Returns all bytes of the text, if it ends before the readable memory does.
    #[inline]
    fn bytes(self) -> Option<&'a [u8]> {
        let length = address::length_of_string(self.start)?;
        // SAFETY: `length` bytes were just read, and they outlive 'a by the promise of `new`.
        Some(unsafe { core::slice::from_raw_parts(self.start, length) })
    }
}

#[cold]
fn examine<'a>(configuration: &Configuration, path: &'a [u8]) -> Route<'a> {
    let mount = configuration.mount();
    if path.first() == Some(&b'/') {
        if let Some(descriptor) = descriptor_name(path) {
            return match table::is_ours(descriptor) {
                true => Route::Descriptor(descriptor),
                false => Route::Libc,
            };
        }
        return match enter(mount, &[], path) {
            Some(rest) => Route::Place(Place { base: cairn_core::ROOT, path: rest }),
            None => Route::Libc,
        };
    }
    if let Some(base) = cwd::inode() {
        return Route::Place(Place { base, path });
    }
    match may_lead_in(mount, path) {
        true => enter_from(mount, path, kernel::getcwd),
        false => Route::Libc,
    }
}

#[cold]
fn examine_from<'a>(configuration: &Configuration, directory: i32, path: Text<'a>) -> Route<'a> {
    let mount = configuration.mount();
    match path.bytes().filter(|path| may_lead_in(mount, path)) {
        Some(path) => enter_from(mount, path, |buffer| kernel::path_of(directory, buffer)),
        None => Route::Libc,
    }
}

/// Whether a relative path can lead into the mount from some directory outside it.
fn may_lead_in(mount: &[u8], path: &[u8]) -> bool {
    let mut names = path.split(|&byte| byte == b'/');
    let first = names.find(|name| !matches!(*name, b"" | b".")).unwrap_or_default();
    first == b".." || mount.split(|&byte| byte == b'/').any(|name| name == first)
}

/// Routes a relative path from the directory whose path `ask` writes.
fn enter_from<'a>(
    mount: &[u8],
    path: &'a [u8],
    ask: impl FnOnce(&mut [u8]) -> Result<usize>,
) -> Route<'a> {
    let rest = gate::inside(|| {
        stack::with_room(
            #[inline(never)]
            || {
                let mut buffer = [0; PATH_BYTES];
                let length = ask(&mut buffer).ok()?;
                enter(mount, &buffer[..length], path)
            },
        )
    });
    match rest {
        Some(rest) => Route::Place(Place { base: cairn_core::ROOT, path: rest }),
        None => Route::Libc,
    }
}

/// Returns the rest of an absolute path after it has reached the mount, if it does.
pub(crate) fn inside<'a>(
    configuration: Option<&Configuration>,
    path: &'a [u8],
) -> Option<&'a [u8]> {
    enter(configuration?.mount(), &[], path)
}

/// Walks `from` and then `path` lexically. Returns the rest of `path` after it has reached `mount`.
fn enter<'a>(mount: &[u8], from: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let mut walk = Walk { mount, matched: 0, astray: 0 };
    for name in from.split(|&byte| byte == b'/') {
        walk.step(name);
    }
    let mut rest = path;
    loop {
        if walk.matched == mount.len() && walk.astray == 0 {
            let start = rest.iter().position(|&byte| byte != b'/').unwrap_or(rest.len());
            return Some(&rest[start..]);
        }
        if rest.is_empty() {
            return None;
        }
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        walk.step(&rest[..end]);
        rest = &rest[(end + 1).min(rest.len())..];
    }
}

/// Position of a lexical walk from the root, relative to the mount prefix.
struct Walk<'m> {
    mount: &'m [u8],
    /// Bytes of the prefix matched so far, whole components.
    matched: usize,
    /// Components below the matched part that are not the prefix's.
    astray: usize,
}

impl Walk<'_> {
    fn step(&mut self, name: &[u8]) {
        match name {
            b"" | b"." => {}
            b".." if self.astray > 0 => self.astray -= 1,
            b".." => {
                let parent = self.mount[..self.matched].iter().rposition(|&byte| byte == b'/');
                self.matched = parent.unwrap_or(0);
            }
            _ => {
                let next = self.mount[self.matched..].strip_prefix(b"/").unwrap_or_default();
                let end = next.iter().position(|&byte| byte == b'/').unwrap_or(next.len());
                match self.astray == 0 && !next.is_empty() && &next[..end] == name {
                    true => self.matched += 1 + end,
                    false => self.astray += 1,
                }
            }
        }
    }
}

/// Returns the descriptor that `/dev/stdin`, `/dev/fd/N` or `/proc/self/fd/N` names.
fn descriptor_name(path: &[u8]) -> Option<i32> {
    match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => {}
    }
    let digits = path
        .strip_prefix(b"/dev/fd/")
        .or_else(|| path.strip_prefix(b"/proc/self/fd/"))
        .or_else(|| own_process(path)?.strip_prefix(b"fd/"))?;
    number(digits)
}

/// Returns the rest after `/proc/PID/` if PID is this process.
fn own_process(path: &[u8]) -> Option<&[u8]> {
    let path = path.strip_prefix(b"/proc/")?;
    let end = path.iter().position(|&byte| byte == b'/')?;
    (number(&path[..end])? as u32 == cairn_platform::sys::getpid()).then(|| &path[end + 1..])
}

fn number(digits: &[u8]) -> Option<i32> {
    match digits.first()?.is_ascii_digit() {
        true => core::str::from_utf8(digits).ok()?.parse().ok(),
        false => None,
    }
}

/// Returns the bytes of a path argument of a call that is ours. Errors: `EFAULT`, `ENAMETOOLONG`.
///
/// # Safety
/// `path` is null or NUL-terminated, and outlives the result.
pub unsafe fn bytes<'a>(path: *const c_char) -> Result<&'a [u8]> {
    let start: *const u8 = path.cast();
    let length = address::byte(start).and_then(|_| address::length_of_string(start));
    let length = length.ok_or_else(|| refusal(start))?;
    // SAFETY: `length` bytes were just read.
    Ok(unsafe { core::slice::from_raw_parts(start, length) })
}

/// Returns the kernel's error for a path without an end. The kernel reads no more than it accepts.
#[cold]
fn refusal(start: *const u8) -> Errno {
    match address::readable(start, PATH_BYTES) {
        PATH_BYTES => Errno(libc::ENAMETOOLONG),
        _ => Errno(libc::EFAULT),
    }
}

/// Whether `path` is readable and empty.
///
/// # Safety
/// As for [`bytes`].
#[inline]
pub unsafe fn is_empty(path: *const c_char) -> bool {
    address::byte(path.cast()) == Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest<'a>(from: &str, path: &'a str) -> Option<&'a str> {
        enter(b"/cairn", from.as_bytes(), path.as_bytes())
            .map(|rest| core::str::from_utf8(rest).unwrap())
    }

    #[test]
    fn first_component_is_told_unless_too_much_precedes_it() {
        // SAFETY: the bytes are NUL-terminated and live for the call.
        let first = |path: &[u8]| unsafe {
            let (text, _) = Text::new(path.as_ptr().cast(), 0).expect("our own memory");
            text.first_of_relative()
        };
        assert_eq!((first(b"a/b\0"), first(b"././/./b\0")), (Some(b'a'), Some(b'b')));
        assert_eq!(
            (first(b".\0"), first(b"../a\0"), first(b"./\0")),
            (Some(b'.'), Some(b'.'), Some(0))
        );
        for precedes in [&b"./"[..], b"./////", b".//"] {
            let few = [&precedes.repeat(30 / precedes.len())[..], b"name\0"].concat();
            let many = [&precedes.repeat(400 / precedes.len())[..], b"name\0"].concat();
            assert_eq!((first(&few), first(&many)), (Some(b'n'), None));
        }
    }

    #[test]
    fn pair_is_found_wherever_it_is_and_nowhere_else() {
        for length in 0..70 {
            let mut text = vec![b'/'; length];
            assert!(!has_pair(&text, [b'/', b'c']) && !has_pair(&text, [b'c', b'/']), "{length}");
            for at in 1..length {
                text[at] = b'c';
                assert!(has_pair(&text, [b'/', b'c']), "{at} of {length}");
                assert_eq!(has_pair(&text, [b'c', b'/']), at + 1 < length, "{at} of {length}");
                text[at] = b'/';
            }
        }
    }

    #[test]
    fn prefix_itself_and_what_is_below_are_ours() {
        assert_eq!(rest("", "/cairn"), Some(""));
        assert_eq!(rest("", "/cairn/"), Some(""));
        assert_eq!(rest("", "//cairn///a/b"), Some("a/b"));
        assert_eq!(rest("", "/./cairn/./a"), Some("./a"));
        assert_eq!(rest("", "/tmp/../cairn/a"), Some("a"));
        assert_eq!(rest("", "/cairn/../etc"), Some("../etc"));
    }

    #[test]
    fn neighbours_of_the_prefix_are_not_ours() {
        for path in ["/cairnx", "/cair", "/tmp/cairn", "/", "/..", "/cairn.d/a", "/tmp/cairn/../a"]
        {
            assert_eq!(rest("", path), None, "{path}");
        }
    }

    #[test]
    fn relative_path_is_joined_to_the_current_directory() {
        assert_eq!(rest("/", "cairn/a"), Some("a"));
        assert_eq!(rest("/tmp/x", "../../cairn/a"), Some("a"));
        assert_eq!(rest("/tmp/x", "../cairn/a"), None);
        assert_eq!(rest("/tmp", "cairn/a"), None);
    }

    #[test]
    fn prefix_of_several_components_is_matched_whole() {
        let rest = |path: &'static str| enter(b"/mnt/cairn", b"", path.as_bytes());
        assert_eq!(rest("/mnt/cairn/a"), Some(&b"a"[..]));
        assert_eq!(rest("/mnt/../mnt/cairn/a"), Some(&b"a"[..]));
        assert_eq!(rest("/mnt/a/../cairn"), Some(&b""[..]));
        assert_eq!(rest("/mnt/a/cairn"), None);
        assert_eq!(rest("/cairn/a"), None);
    }

    #[test]
    fn names_of_descriptors_are_recognised() {
        assert_eq!(descriptor_name(b"/dev/stdout"), Some(1));
        assert_eq!(descriptor_name(b"/dev/fd/17"), Some(17));
        assert_eq!(descriptor_name(b"/proc/self/fd/3"), Some(3));
        assert_eq!(descriptor_name(b"/proc/self/fd/"), None);
        assert_eq!(descriptor_name(b"/proc/self/fd/+3"), None);
        assert_eq!(descriptor_name(b"/proc/1/fd/3/x"), None);
    }
}
