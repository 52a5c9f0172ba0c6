//! The library that unwinds the stack after a panic, `libgcc_s.so.1`, loaded when that happens (`unwinder.S`): the C library does
//! the same when it cancels a thread. In the archive the functions are those that the program is linked with.

use core::ffi::{CStr, c_int, c_void};

/// As `unwinder.S` numbers them.
const NAMES: [&CStr; 12] = [
    c"_Unwind_Backtrace",
    c"_Unwind_DeleteException",
    c"_Unwind_GetDataRelBase",
    c"_Unwind_GetIP",
    c"_Unwind_GetIPInfo",
    c"_Unwind_GetLanguageSpecificData",
    c"_Unwind_GetRegionStart",
    c"_Unwind_GetTextRelBase",
    c"_Unwind_RaiseException",
    c"_Unwind_Resume",
    c"_Unwind_SetGR",
    c"_Unwind_SetIP",
];

/// `_URC_END_OF_STACK`: nobody catches the exception. The panic ends the process then.
extern "C" fn no_unwinder() -> c_int {
    5
}

/// The address of a function of libgcc_s; of one that says that nobody catches anything, where there is no such library.
#[unsafe(no_mangle)]
extern "C" fn __cairn_unwinder(index: usize) -> *mut c_void {
    // SAFETY: the names are terminated. It stays loaded.
    let found = unsafe {
        let library = libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_LAZY);
        match library.is_null() {
            true => library,
            false => libc::dlsym(library, NAMES[index].as_ptr()),
        }
    };
    if found.is_null() { no_unwinder as *mut c_void } else { found }
}
