//! The C library's functions that ours interpose, looked up at first use. The dynamic linker finds
//! them; in a program with the archive `libcairn.a` linked in, a list built by the static linker
//! does.
//!
//! The archive (scripts/linked-libraries.sh) adds an entry to that list for each hook. It knows
//! nothing else of this library, and this library knows only where the list begins and ends.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cairn_posix::kernel::calls::{self, Outcome};

/// A function of the C library, or of another preloaded library behind this one.
///
/// Does not hold the function's name: the dynamic linker would have to relocate its address at the
/// start of every process.
pub struct Next {
    /// Stays null for functions whose calls are counted, so that `look_up` sees each call and
    /// others pay nothing for it.
    address: AtomicPtr<c_void>,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Creates an entry that is not looked up yet.
    pub const fn new() -> Next {
        let null = core::ptr::null_mut();
        Next { address: AtomicPtr::new(null), found: AtomicPtr::new(null) }
    }

    /// Address of the function `name`, or of [`absent`] if there is none. With `is_counted` the
    /// caller is about to call it, so this counts as a call.
    #[inline]
    fn address(&self, name: &CStr, is_counted: bool) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up(name, is_counted) } else { known }
    }

    #[cold]
    fn look_up(&self, name: &CStr, is_counted: bool) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = match from_archive(name) {
                Some(function) => function,
                None if is_linked() && !is_superseded() => core::ptr::null_mut(),
                // SAFETY: the name is NUL-terminated; dlsym may be called at any time in a running
                // process.
                None => unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) },
            };
            if found.is_null() {
                found = absent as *mut c_void;
            }
            self.found.store(found, Ordering::Relaxed);
        }
        match is_counted && calls::is_wanted() {
            true => crate::answer::count(name.to_str().unwrap_or_default(), Outcome::Passed),
            false => self.address.store(found, Ordering::Relaxed),
        }
        found
    }
}

/// Entry of the archive's list: a function of the C library that the static linker found.
#[repr(C)]
struct Linked {
    name: *const c_char,
    function: *mut c_void,
}

// SAFETY: written by the linker, never afterwards.
unsafe impl Sync for Linked {}

impl Linked {
    fn is(&self, name: &CStr) -> bool {
        // SAFETY: the archive stores terminated names.
        unsafe { CStr::from_ptr(self.name) == name }
    }
}

// Bounds of the section `cairn_next` in a linked program; both null in the preloaded library.
core::arch::global_asm!(
    ".pushsection .data.rel.ro.cairn_next_bounds, \"aw\"",
    ".weak __start_cairn_next",
    ".hidden __start_cairn_next",
    ".weak __stop_cairn_next",
    ".hidden __stop_cairn_next",
    ".globl __cairn_next_bounds",
    ".hidden __cairn_next_bounds",
    ".balign 8",
    "__cairn_next_bounds:",
    ".quad __start_cairn_next",
    ".quad __stop_cairn_next",
    ".popsection",
);

unsafe extern "C" {
    safe static __cairn_next_bounds: Bounds;
}

#[repr(C)]
struct Bounds {
    start: *const Linked,
    end: *const Linked,
}

// SAFETY: as for `Linked`.
unsafe impl Sync for Bounds {}

fn linked() -> &'static [Linked] {
    let Bounds { start, end } = __cairn_next_bounds;
    let bytes = (end as usize).saturating_sub(start as usize);
    match start.is_null() {
        true => &[],
        // SAFETY: the linker put only entries of this type between the two addresses.
        false => unsafe { core::slice::from_raw_parts(start, bytes / size_of::<Linked>()) },
    }
}

/// The function that the static linker found behind our hook `name`, in a program with the archive.
pub fn from_archive(name: &CStr) -> Option<*mut c_void> {
    linked().iter().find(|linked| linked.is(name)).map(|linked| linked.function)
}

/// Whether this copy of the library was linked into the program from the archive.
pub fn is_linked() -> bool {
    !__cairn_next_bounds.start.is_null()
}

// Functions of the dynamic linker: `dlvsym`, which takes a version, and the plain `dlsym` in a
// program with the archive linked in.
core::arch::global_asm!(
    ".pushsection .data.rel.ro.cairn_linker, \"aw\"",
    ".weak dlvsym",
    ".weak __cairn_dlsym",
    ".hidden __cairn_dlsym",
    ".globl __cairn_linker",
    ".hidden __cairn_linker",
    ".balign 8",
    "__cairn_linker:",
    ".quad dlvsym",
    ".quad __cairn_dlsym",
    ".popsection",
);

unsafe extern "C" {
    safe static __cairn_linker: Linker;
}

type Versioned = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

#[repr(C)]
struct Linker {
    dlvsym: Option<Versioned>,
    dlsym: *mut c_void,
}

// SAFETY: as for `Linked`.
unsafe impl Sync for Linker {}

/// Address of the C library's `dlsym`, which ours interposes.
#[cfg(has_naked_functions)]
pub fn dlsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    match &__cairn_linker {
        Linker { dlsym, .. } if !dlsym.is_null() => *dlsym,
        _ => of_linker(c"dlsym", &FOUND),
    }
}

/// Address of the C library's `dlopen`, which ours interposes.
#[cfg(has_naked_functions)]
pub fn dlopen() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    of_linker(c"dlopen", &FOUND)
}

#[cfg(has_naked_functions)]
fn of_linker(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    /// Symbol versions on x86-64: since the C library contains the linker's functions, and before.
    const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];
    let mut found = known.load(Ordering::Relaxed);
    if let (true, Some(dlvsym)) = (found.is_null(), __cairn_linker.dlvsym) {
        // SAFETY: the names are terminated; dlvsym may be called at any time in a running process.
        let look =
            |version: &CStr| unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        let both = VERSIONS.map(look);
        found = both.into_iter().find(|found| !found.is_null()).unwrap_or_default();
        known.store(found, Ordering::Relaxed);
    }
    found
}

static SUPERSEDED: AtomicBool = AtomicBool::new(false);

/// Records that this library is also loaded in this process as a shared object. That copy serves
/// everything, because calls of other shared objects reach it, too; this copy only passes calls on.
pub fn supersede() {
    SUPERSEDED.store(true, Ordering::Relaxed);
}

/// Whether [`supersede`] was called.
pub fn is_superseded() -> bool {
    SUPERSEDED.load(Ordering::Relaxed)
}

/// Stands in for a function that this C library does not have. Fails with `ENOSYS`.
extern "C" fn absent() -> c_int {
    crate::answer::set_errno(libc::ENOSYS);
    -1
}

/// The function `name` of `next`, as a function pointer of type `F`. Whoever calls the result
/// promises that the function has this type, besides what the function itself demands.
#[inline]
pub fn function<F: Copy>(next: &Next, name: &CStr, is_counted: bool) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = next.address(name, is_counted);
    // SAFETY: `F` is a function pointer, as its only user `next!` writes it, and the address is
    // that of a function.
    unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) }
}

/// An identifier as a C string literal.
macro_rules! c_name {
    ($name:ident) => {
        const {
            match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes())
            {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        }
    };
}

/// The C library's function of this name and type, to be called at once for a foreign file. Calling
/// it is unsafe: the type must be right.
macro_rules! next {
    ($name:ident: fn($($type:ty),*) -> $result:ty) => { next!(@find $name: fn($($type),*) -> $result, true) };
    (@find $name:ident: fn($($type:ty),*) -> $result:ty, $is_counted:literal) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new();
        $crate::next::function::<unsafe extern "C-unwind" fn($($type),*) -> $result>(
            &NEXT,
            c_name!($name),
            $is_counted,
        )
    }};
}

/// As `next!`, for a call that does not tell whether a file is Cairn's. It is not counted.
macro_rules! library {
    ($name:ident: fn($($type:ty),*) -> $result:ty) => { next!(@find $name: fn($($type),*) -> $result, false) };
}
