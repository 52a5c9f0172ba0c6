//! The functions that our own stand in front of, looked up when first needed: by the dynamic
//! linker, or, in a program that the archive `libcairn.a` was linked into, in the list that the
//! linker has put together there.
//!
//! The archive (scripts/linked-libraries.sh) adds to each hook an entry of that list. It knows
//! nothing else of us, and we know no more of it than where the list begins and ends.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cairn_posix::process::calls::{self, Outcome};

/// A function of the C library (or of another preloaded library behind us).
///
/// It does not hold the function's name, whose address the dynamic linker would have to fill in at
/// the start of every process.
pub struct Next {
    /// Stays null where calls are counted, so that each is seen by `look_up` and others pay nothing
    /// for that.
    address: AtomicPtr<c_void>,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Not looked up yet.
    pub const fn new() -> Next {
        let null = core::ptr::null_mut();
        Next { address: AtomicPtr::new(null), found: AtomicPtr::new(null) }
    }

    /// Address of the function `name`; that of [`absent`] if there is none. Who asks for one that
    /// is counted calls it.
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
                // SAFETY: the name is NUL-terminated; dlsym may be called at any time in a process
                // that is running.
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

/// A function of the C library that the linker found for us: an entry of the archive's list.
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

// Where the section `cairn_next` of the linked program begins and ends; both null in the library
// that is preloaded.
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

// SAFETY: as `Linked`.
unsafe impl Sync for Bounds {}

fn linked() -> &'static [Linked] {
    let Bounds { start, end } = __cairn_next_bounds;
    let bytes = (end as usize).saturating_sub(start as usize);
    match start.is_null() {
        true => &[],
        // SAFETY: the linker put entries of this type, and nothing else, between the two.
        false => unsafe { core::slice::from_raw_parts(start, bytes / size_of::<Linked>()) },
    }
}

/// What the linker found behind our function of this name, in a program that has the archive.
pub fn from_archive(name: &CStr) -> Option<*mut c_void> {
    linked().iter().find(|linked| linked.is(name)).map(|linked| linked.function)
}

/// Whether this copy of the library was linked into the program from the archive.
pub fn is_linked() -> bool {
    !__cairn_next_bounds.start.is_null()
}

// Functions of the dynamic linker: the one that tells versions apart, and, in a program that has
// the archive, the plain one.
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

// SAFETY: as `Linked`.
unsafe impl Sync for Linker {}

/// The C library's `dlsym`, which our own stands in front of.
#[cfg(has_naked_functions)]
pub fn dlsym() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    match &__cairn_linker {
        Linker { dlsym, .. } if !dlsym.is_null() => *dlsym,
        _ => of_linker(c"dlsym", &FOUND),
    }
}

/// The C library's `dlopen`, which our own stands in front of.
#[cfg(has_naked_functions)]
pub fn dlopen() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    of_linker(c"dlopen", &FOUND)
}

#[cfg(has_naked_functions)]
fn of_linker(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    /// Of the C library for x86-64 in which the linker's functions are its own, and of all others.
    const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];
    let mut found = known.load(Ordering::Relaxed);
    if let (true, Some(dlvsym)) = (found.is_null(), __cairn_linker.dlvsym) {
        // SAFETY: the names are terminated; it may be called at any time in a process that is
        // running.
        let look =
            |version: &CStr| unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) };
        let both = VERSIONS.map(look);
        found = both.into_iter().find(|found| !found.is_null()).unwrap_or_default();
        known.store(found, Ordering::Relaxed);
    }
    found
}

static SUPERSEDED: AtomicBool = AtomicBool::new(false);

/// Says that the library is in this process a second time, as a shared object: that one does
/// everything, because calls of other shared objects reach it, too, and this one only passes on.
pub fn supersede() {
    SUPERSEDED.store(true, Ordering::Relaxed);
}

/// Whether [`supersede`] was called.
pub fn is_superseded() -> bool {
    SUPERSEDED.load(Ordering::Relaxed)
}

/// Stands for a function that this C library does not have.
extern "C" fn absent() -> c_int {
    crate::answer::set_errno(libc::ENOSYS);
    -1
}

/// The function `name`, which `next` is for, as a pointer of type `F`. Whoever calls it promises,
/// besides what the function itself demands, that it has this type.
#[inline]
pub fn function<F: Copy>(next: &Next, name: &CStr, is_counted: bool) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = next.address(name, is_counted);
    // SAFETY: `F` is a function pointer, as the only user of this function writes it (`next!`), and
    // the address is that of a function.
    unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) }
}

/// An identifier as a C string.
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

/// The C library's function of this name and type, to be called now for what is not ours. Calling
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

/// The same for a call that says nothing about whether a file is ours: it is not counted.
macro_rules! library {
    ($name:ident: fn($($type:ty),*) -> $result:ty) => { next!(@find $name: fn($($type),*) -> $result, false) };
}
