//! The functions that unwind the stack after a panic, found when that happens (`unwinder.S`): those
//! of the library that the process unwinds with, or else of `libgcc_s.so.1`, which is loaded then,
//! as the C library does when it cancels a thread.
//!
//! Must stay true: all of them are of one library, which alone knows what the others of it have
//! stored. In the archive they are those that the program is linked with.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

const COUNT: usize = 12;

/// As `unwinder.S` numbers them, each with the version that libgcc_s gives it.
const FUNCTIONS: [(&CStr, &CStr); COUNT] = [
    (c"_Unwind_Backtrace", c"GCC_3.3"),
    (c"_Unwind_DeleteException", c"GCC_3.0"),
    (c"_Unwind_GetDataRelBase", c"GCC_3.0"),
    (c"_Unwind_GetIP", c"GCC_3.0"),
    (c"_Unwind_GetIPInfo", c"GCC_4.2.0"),
    (c"_Unwind_GetLanguageSpecificData", c"GCC_3.0"),
    (c"_Unwind_GetRegionStart", c"GCC_3.0"),
    (c"_Unwind_GetTextRelBase", c"GCC_3.0"),
    RAISE,
    (c"_Unwind_Resume", c"GCC_3.0"),
    (c"_Unwind_SetGR", c"GCC_3.0"),
    (c"_Unwind_SetIP", c"GCC_3.0"),
];
const RAISE: (&CStr, &CStr) = (c"_Unwind_RaiseException", c"GCC_3.0");

unsafe extern "C" {
    /// Of the C library: unlike `dlsym` none of our hooks.
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Stands for raising an exception where there is no library that unwinds: `_URC_END_OF_STACK`,
/// nobody catches it. The panic ends the process then.
extern "C" fn cannot_raise() -> c_int {
    5
}

/// Stands for what is called in the course of unwinding alone.
extern "C" fn cannot_go_on() {
    // SAFETY: takes nothing.
    unsafe { libc::abort() }
}

/// Fills the table that `unwinder.S` jumps by, and returns what is at `index`.
#[unsafe(no_mangle)]
extern "C" fn __cairn_unwinder(index: usize, table: &[AtomicPtr<c_void>; COUNT]) -> *mut c_void {
    // SAFETY: the names are terminated.
    let find = |library, (name, version): (&CStr, &CStr)| unsafe {
        dlvsym(library, name.as_ptr(), version.as_ptr())
    };
    let library = match find(libc::RTLD_DEFAULT, RAISE).is_null() {
        // SAFETY: the name is terminated. It stays loaded.
        true => unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_LAZY) },
        false => libc::RTLD_DEFAULT,
    };
    let is_there = !find(library, RAISE).is_null();
    for (place, function) in table.iter().zip(FUNCTIONS) {
        let found = if is_there { find(library, function) } else { core::ptr::null_mut() };
        let found = match found.is_null() {
            false => found,
            true if function == RAISE => cannot_raise as *mut c_void,
            true => cannot_go_on as *mut c_void,
        };
        place.store(found, Ordering::Relaxed);
    }
    table[index].load(Ordering::Relaxed)
}
