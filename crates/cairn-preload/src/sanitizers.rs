//! Programs that were built with a sanitizer: its library wants to come first, and is not ready
//! while ours starts.

use core::ffi::c_char;

/// What the address sanitizer's library asks the program for its options: it refuses to run behind
/// a library that was preloaded, though it works there. A program that has this function itself,
/// and `ASAN_OPTIONS`, are asked before or after and may say otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Whether there is one: it reports faults itself, and its own handler is not to be replaced.
pub fn is_there() -> bool {
    // SAFETY: as below.
    let found =
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__sanitizer_set_death_callback".as_ptr()) };
    !found.is_null()
}

/// Whether thread-local variables may be used before `main` is near: the thread sanitizer stands in
/// the way of reaching them, and is not ready then.
pub fn may_use_threads() -> bool {
    // SAFETY: the name is terminated; dlsym may be called at any time in a process that is running.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null()
}
