//! The functions that our own stand in front of, looked up when first needed.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use cairn_posix::calls::{self, Outcome};

/// A function of the C library (or of another preloaded library behind us).
pub struct Next {
    name: &'static CStr,
    /// Stays null where calls are counted, so that each is seen by `look_up` and others pay nothing for that.
    address: AtomicPtr<c_void>,
    found: AtomicPtr<c_void>,
    is_counted: bool,
}

impl Next {
    /// Not looked up yet. Whoever asks for the address of one that is counted calls it.
    pub const fn new(name: &'static CStr, is_counted: bool) -> Next {
        let null = core::ptr::null_mut();
        Next { name, address: AtomicPtr::new(null), found: AtomicPtr::new(null), is_counted }
    }

    /// Its address; that of [`absent`] if there is no such function.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is NUL-terminated; dlsym may be called at any time in a process that is running.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if found.is_null() {
                found = absent as *mut c_void;
            }
            self.found.store(found, Ordering::Relaxed);
        }
        match self.is_counted && calls::is_wanted() {
            true => crate::answer::count(self.name.to_str().unwrap_or_default(), Outcome::Passed),
            false => self.address.store(found, Ordering::Relaxed),
        }
        found
    }
}

/// Stands for a function that this C library does not have.
extern "C" fn absent() -> c_int {
    crate::answer::set_errno(libc::ENOSYS);
    -1
}

/// The function behind `next` as a pointer of type `F`. Whoever calls it promises, besides what the function itself
/// demands, that it has this type.
#[inline]
pub fn function<F: Copy>(next: &Next) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = next.address();
    // SAFETY: `F` is a function pointer, as the only user of this function writes it (`next!`), and the address
    // is that of a function.
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

/// The C library's function of this name and type, to be called now for what is not ours. Calling it is unsafe: the type
/// must be right.
macro_rules! next {
    ($name:ident: fn($($type:ty),*) -> $result:ty) => { next!(@find $name: fn($($type),*) -> $result, true) };
    (@find $name:ident: fn($($type:ty),*) -> $result:ty, $is_counted:literal) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new(c_name!($name), $is_counted);
        $crate::next::function::<unsafe extern "C-unwind" fn($($type),*) -> $result>(&NEXT)
    }};
}

/// The same for a call that says nothing about whether a file is ours: it is not counted.
macro_rules! library {
    ($name:ident: fn($($type:ty),*) -> $result:ty) => { next!(@find $name: fn($($type),*) -> $result, false) };
}
