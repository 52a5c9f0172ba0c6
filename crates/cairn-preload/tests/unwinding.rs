//! A panic is caught even though the unwinding library is loaded only when it happens. This test
//! program is linked with the functions of `src/unwinder.S`, like the preloaded library.

#[path = "../src/unwinder.rs"]
mod unwinder;

use std::ffi::CStr;
use std::panic::{catch_unwind, panic_any};
use std::sync::atomic::{AtomicU32, Ordering};

#[link(name = "cairn_unwinder", kind = "static", modifiers = "+whole-archive")]
unsafe extern "C" {
    fn _Unwind_RaiseException();
}

static DROPPED: AtomicU32 = AtomicU32::new(0);

struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

fn panic_below(depth: u32) {
    let _guard = Guard;
    match depth {
        0 => panic_any(7_u32),
        _ => panic_below(depth - 1),
    }
}

#[test]
fn panic_is_caught_and_what_is_on_its_way_is_dropped() {
    // SAFETY: plain data, for which zero is a valid value, and room for it.
    let object = unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        assert_ne!(libc::dladdr(_Unwind_RaiseException as *const _, &raw mut found), 0);
        CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned()
    };
    assert!(!object.contains("libgcc_s"), "the functions are the program's own: {object}");
    for round in 1..=2 {
        let caught = catch_unwind(|| panic_below(9)).expect_err("a panic");
        assert_eq!(
            (caught.downcast_ref(), DROPPED.load(Ordering::Relaxed)),
            (Some(&7_u32), 10 * round)
        );
    }
}
