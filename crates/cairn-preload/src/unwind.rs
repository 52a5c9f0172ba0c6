//! The unwinder, for which only a panic or a cancelled thread has any use: loaded then, as the C library does it, not at the
//! start of every process. build.rs has the linker put these functions in the place of those they are named after.
//!
//! What must stay true: a process has one unwinder, the one its other libraries use, because frames of ours are asked about
//! with records that it made. What each function adds is a frame that nothing stops in.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

const LIBRARY: &CStr = c"libgcc_s.so.1";

/// `_URC_END_OF_STACK`: nobody will catch it.
const END_OF_STACK: usize = 5;

/// The address of `name`, which `found` keeps; null if this machine has no unwinder.
fn find(name: &CStr, found: &AtomicPtr<c_void>) -> *mut c_void {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: both names are terminated. The library stays loaded, as it does for the C library.
    let address = unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY);
        match library.is_null() {
            true => library,
            false => libc::dlsym(library, name.as_ptr()),
        }
    };
    found.store(address, Ordering::Relaxed);
    address
}

/// Functions that take and return words (numbers and addresses), and what they return without an unwinder.
macro_rules! unwinder {
    ($(fn $name:ident($($argument:ident),*) else $absent:expr; as $export:literal)*) => {$(
        #[unsafe(export_name = $export)]
        #[allow(non_snake_case)]
        unsafe extern "C-unwind" fn $name($($argument: usize),*) -> usize {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            let address = find(c_name!($name), &FOUND);
            if address.is_null() {
                return $absent;
            }
            type Function = unsafe extern "C-unwind" fn($(word!($argument)),*) -> usize;
            // SAFETY: the unwinder's function of this name takes as many words.
            let function = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
            // SAFETY: the caller's own arguments.
            unsafe { function($($argument),*) }
        }
    )*};
}

macro_rules! word {
    ($argument:ident) => {
        usize
    };
}

unwinder! {
    fn _Unwind_RaiseException(exception) else END_OF_STACK; as "__cairn_Unwind_RaiseException"
    fn _Unwind_Resume(exception) else 0; as "__cairn_Unwind_Resume"
    fn _Unwind_DeleteException(exception) else 0; as "__cairn_Unwind_DeleteException"
    fn _Unwind_Backtrace(visit, data) else END_OF_STACK; as "__cairn_Unwind_Backtrace"
    fn _Unwind_GetLanguageSpecificData(context) else 0; as "__cairn_Unwind_GetLanguageSpecificData"
    fn _Unwind_GetRegionStart(context) else 0; as "__cairn_Unwind_GetRegionStart"
    fn _Unwind_GetTextRelBase(context) else 0; as "__cairn_Unwind_GetTextRelBase"
    fn _Unwind_GetDataRelBase(context) else 0; as "__cairn_Unwind_GetDataRelBase"
    fn _Unwind_GetIP(context) else 0; as "__cairn_Unwind_GetIP"
    fn _Unwind_GetIPInfo(context, is_before) else 0; as "__cairn_Unwind_GetIPInfo"
    fn _Unwind_GetCFA(context) else 0; as "__cairn_Unwind_GetCFA"
    fn _Unwind_FindEnclosingFunction(address) else 0; as "__cairn_Unwind_FindEnclosingFunction"
    fn _Unwind_GetGR(context, register) else 0; as "__cairn_Unwind_GetGR"
    fn _Unwind_SetGR(context, register, value) else 0; as "__cairn_Unwind_SetGR"
    fn _Unwind_SetIP(context, value) else 0; as "__cairn_Unwind_SetIP"
}
