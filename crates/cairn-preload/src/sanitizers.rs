//! Programs built with a sanitizer. Its library wants to be loaded first, and is not ready when
//! ours starts.

use core::ffi::c_char;

/// Default options that the address sanitizer's library asks the program for. It refuses to run
/// behind a preloaded library, though it works there, and this option turns that check off. A
/// program's own definition of this function and `ASAN_OPTIONS` still take precedence.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Whether the process has a sanitizer. It reports faults itself, and its handler must not be
/// replaced.
pub fn is_there() -> bool {
    // SAFETY: as below.
    let found =
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__sanitizer_set_death_callback".as_ptr()) };
    !found.is_null()
}

/// Whether thread-local variables may be used before `main`. The thread sanitizer intercepts access
/// to them, and is not ready at that time.
pub fn may_use_threads() -> bool {
    // SAFETY: the name is terminated; dlsym may be called at any time in a running process.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null()
}
