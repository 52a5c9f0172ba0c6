//! Environment of executed programs. Keeps the variables in it that a program needs to reach the
//! store.
//!
//! A program that builds a new environment (`env -i`, `subprocess.run(env=...)`) would otherwise
//! start children that write files below the prefix to the wrong place. A variable that is set
//! stays as it is, except that `LD_PRELOAD` keeps this library. Allocates only by mmap, because a
//! forked child of a threaded program may not call malloc.

use core::ffi::{CStr, c_char};

use cairn_posix::kernel;
use cairn_posix::kernel::configuration::{self, Configuration, LIBRARY};

/// Maximum number of entries in an environment.
const ENTRIES_MAX: usize = 1 << 20;

/// Environment for an exec. Its mapping is unmapped on drop, which happens only if the exec failed.
pub struct Environment {
    entries: *const *const c_char,
    mapping: Option<(*mut u8, usize)>,
}

/// Entries of a null-terminated list.
fn entries(list: *const *const c_char) -> impl Iterator<Item = *const c_char> {
    (0..ENTRIES_MAX).map_while(move |index| {
        if list.is_null() {
            return None;
        }
        // SAFETY: the caller passes a list that ends with null, and the iteration stops there.
        let entry = unsafe { *list.add(index) };
        (!entry.is_null()).then_some(entry)
    })
}

/// Value of `entry` if it sets the variable `name`.
fn value_of<'a>(entry: *const c_char, name: &CStr) -> Option<&'a [u8]> {
    // SAFETY: an entry of an environment is terminated.
    let text = unsafe { CStr::from_ptr(entry) }.to_bytes();
    text.strip_prefix(name.to_bytes())?.strip_prefix(b"=")
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

impl Environment {
    /// Builds the environment `list` plus the missing variables.
    ///
    /// # Safety
    /// `list` is null or a null-terminated list of NUL-terminated strings.
    pub unsafe fn new(list: *const *const c_char) -> Environment {
        let unchanged = Environment { entries: list, mapping: None };
        let Some(configuration) = configuration::get() else { return unchanged };
        let count = entries(list).count();
        let is_missing = |name: &CStr| {
            let found = entries(list).find_map(|entry| value_of(entry, name));
            match name == c"LD_PRELOAD" {
                true => !found.is_some_and(|value| contains(value, LIBRARY)),
                false => found.is_none(),
            }
        };
        if !configuration.inherited().any(|(name, _)| is_missing(name)) {
            return unchanged;
        }
        extend(configuration, list, count, is_missing).unwrap_or(unchanged)
    }

    /// The list, in the form that `execve` takes.
    pub fn as_ptr(&self) -> *const *const c_char {
        self.entries
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if let Some((start, bytes)) = self.mapping {
            // SAFETY: mapped by `extend` for this object alone.
            let _ = unsafe { kernel::munmap(start, bytes) };
        }
    }
}

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Runs a function of the C library that starts a program with this process's environment, which is
/// complete during the call.
pub fn complete_while<R>(act: impl FnOnce() -> R) -> R {
    // SAFETY: a word of the C library, null or a list that ends with null.
    let before = unsafe { environ };
    // SAFETY: as above.
    let complete = unsafe { Environment::new(before) };
    if complete.mapping.is_none() {
        return act();
    }
    // SAFETY: the list lives until another one has replaced it. Another thread that reads or
    // changes the environment meanwhile finds additional entries, and misses none.
    unsafe { environ = complete.as_ptr() };
    let result = act();
    // SAFETY: as above.
    unsafe {
        if environ == complete.as_ptr() {
            environ = before;
        } else {
            // Another thread has replaced the environment, based on this list.
            core::mem::forget(complete);
        }
    }
    result
}

/// Copies the list and appends the missing variables; none if there is no memory.
fn extend(
    configuration: &Configuration,
    list: *const *const c_char,
    count: usize,
    is_missing: impl Fn(&CStr) -> bool,
) -> Option<Environment> {
    let preload = entries(list).find_map(|entry| value_of(entry, c"LD_PRELOAD"));
    let pointers = count + configuration::INHERITED.len() + 1;
    let text_bytes = configuration.preload().len() + preload.map_or(0, <[u8]>::len) + 16;
    let bytes = pointers * size_of::<*const c_char>() + text_bytes;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let start = kernel::mmap(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).ok()?;
    let target = start.cast::<*const c_char>();
    let mut filled = 0;
    let mut push = |entry: *const c_char| {
        // SAFETY: at most `pointers` entries are pushed: those of the list and the inherited ones.
        unsafe { target.add(filled).write(entry) };
        filled += 1;
    };
    let replaced = is_missing(c"LD_PRELOAD") && !configuration.preload().is_empty();
    entries(list)
        .filter(|&entry| !(replaced && value_of(entry, c"LD_PRELOAD").is_some()))
        .for_each(&mut push);
    for (name, text) in configuration.inherited().filter(|(name, _)| is_missing(name)) {
        match preload.filter(|_| name == c"LD_PRELOAD") {
            None => push(text.as_ptr()),
            Some(theirs) => {
                // SAFETY: the text area begins after the pointers, and has room for both values, a
                // name, a colon and the terminator. The mapping is zeroed.
                unsafe {
                    let place = target.add(pointers).cast::<u8>();
                    let ours = text.to_bytes();
                    core::ptr::copy_nonoverlapping(ours.as_ptr(), place, ours.len());
                    place.add(ours.len()).write(b':');
                    let rest = place.add(ours.len() + 1);
                    core::ptr::copy_nonoverlapping(theirs.as_ptr(), rest, theirs.len());
                    push(place.cast());
                }
            }
        }
    }
    push(core::ptr::null());
    Some(Environment { entries: target.cast_const(), mapping: Some((start, bytes)) })
}
