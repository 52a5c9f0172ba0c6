//! Functions that unwind the stack after a panic, looked up when that happens (`unwinder.S`). They
//! come from the library that the process already unwinds with; if there is none, from
//! `libgcc_s.so.1`, which is loaded then, as the C library does when it cancels a thread.
//!
//! Must stay true: all of them come from one library, because only that library knows its own
//! state. In the archive they are those that the program is linked with.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

const COUNT: usize = 12;

/// Functions in the order of `unwinder.S`, each with its version in libgcc_s.
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
    /// Of the C library. Unlike `dlsym`, it is not hooked by us.
    fn dlvsym(library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// Stands in for raising an exception if there is no unwinding library. Returns
/// `_URC_END_OF_STACK`: nobody catches the exception, so the panic ends the process.
extern "C" fn cannot_raise() -> c_int {
    5
}

/// Stands in for functions that are only called during unwinding.
extern "C" fn cannot_go_on() {
    // SAFETY: takes nothing.
    unsafe { libc::abort() }
}

/// Fills the jump table of `unwinder.S` and returns the function at `index`.
#[unsafe(no_mangle)]
extern "C" fn __cairn_unwinder(index: usize, table: &[AtomicPtr<c_void>; COUNT]) -> *mut c_void {
    // SAFETY: the names are terminated.
    let find = |library, (name, version): (&CStr, &CStr)| unsafe {
        dlvsym(library, name.as_ptr(), version.as_ptr())
    };
    let library = match find(libc::RTLD_DEFAULT, RAISE).is_null() {
        // SAFETY: the name is terminated. The library stays loaded.
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
