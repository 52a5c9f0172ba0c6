//! Wide characters on Cairn streams. Such a stream is a cookie stream, which is byte-oriented. Most
//! functions of the C library check that and fail, but those here would use its missing wide buffer
//! and crash.
//!
//! They fail with EOPNOTSUPP and set the stream's error indicator, so that a reader that tests
//! `ferror` does not take the failure for the end of the file. The functions with a `va_list` do
//! the same. Variadic functions (`fwprintf`) are not hooked: their arguments cannot all be
//! received, and on other streams none may be lost. The C library returns -1 for them.

use core::ffi::{c_int, c_void};

use libc::{FILE, size_t, wchar_t};

use crate::answer::{count_refusal, set_errno};
use crate::{stdio, streams};

/// `wint_t`.
type Wide = u32;
/// `va_list`, passed by its address.
type List = *mut c_void;
/// `WEOF`.
const END: Wide = u32::MAX;
/// Error indicator in a stream's first word, as in `ferror_unlocked` of the C library's headers.
const FAILED: c_int = 0x20;

/// Whether the stream is Cairn's. If so, sets its error indicator and errno.
unsafe fn refuses(symbol: &str, stream: *mut FILE) -> bool {
    if stdio::descriptor_of(stream).is_none() {
        return false;
    }
    // SAFETY: an open stream made by the C library, which begins with its flags.
    unsafe { *stream.cast::<c_int>() |= FAILED };
    count_refusal(symbol, libc::EOPNOTSUPP);
    set_errno(libc::EOPNOTSUPP);
    true
}

macro_rules! wide_hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty, on $stream:expr, else $failed:expr;)*) => {$(
        /// As the C library's function of this name. Errors: `EOPNOTSUPP` on a Cairn stream.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller passes an open stream, or means a standard one.
            if unsafe { refuses(stringify!($name), streams::current($stream)) } {
                return $failed;
            }
            // SAFETY: the caller's own arguments.
            unsafe { library!($name: fn($($type),*) -> $result)($($argument),*) }
        }
    )*};
}

wide_hooks! {
    fn fgetwc(stream: *mut FILE) -> Wide, on stream, else END;
    fn getwc(stream: *mut FILE) -> Wide, on stream, else END;
    fn fgetwc_unlocked(stream: *mut FILE) -> Wide, on stream, else END;
    fn getwc_unlocked(stream: *mut FILE) -> Wide, on stream, else END;
    fn getwchar() -> Wide, on streams::standard_stream(0), else END;
    fn getwchar_unlocked() -> Wide, on streams::standard_stream(0), else END;
    fn ungetwc(character: Wide, stream: *mut FILE) -> Wide, on stream, else END;
    fn fputwc(character: wchar_t, stream: *mut FILE) -> Wide, on stream, else END;
    fn putwc(character: wchar_t, stream: *mut FILE) -> Wide, on stream, else END;
    fn fputwc_unlocked(character: wchar_t, stream: *mut FILE) -> Wide, on stream, else END;
    fn putwc_unlocked(character: wchar_t, stream: *mut FILE) -> Wide, on stream, else END;
    fn putwchar(character: wchar_t) -> Wide, on streams::standard_stream(1), else END;
    fn putwchar_unlocked(character: wchar_t) -> Wide, on streams::standard_stream(1), else END;
    fn fputws(text: *const wchar_t, stream: *mut FILE) -> c_int, on stream, else -1;
    fn fputws_unlocked(text: *const wchar_t, stream: *mut FILE) -> c_int, on stream, else -1;
    fn fgetws(target: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t,
        on stream, else core::ptr::null_mut();
    fn fgetws_unlocked(target: *mut wchar_t, room: c_int, stream: *mut FILE) -> *mut wchar_t,
        on stream, else core::ptr::null_mut();
    fn __fgetws_chk(target: *mut wchar_t, size: size_t, room: c_int, stream: *mut FILE) -> *mut wchar_t,
        on stream, else core::ptr::null_mut();
    fn __fgetws_unlocked_chk(target: *mut wchar_t, size: size_t, room: c_int, stream: *mut FILE) -> *mut wchar_t,
        on stream, else core::ptr::null_mut();
    fn vfwprintf(stream: *mut FILE, format: *const wchar_t, list: List) -> c_int, on stream, else -1;
    fn vwprintf(format: *const wchar_t, list: List) -> c_int, on streams::standard_stream(1), else -1;
    fn __vfwprintf_chk(stream: *mut FILE, checks: c_int, format: *const wchar_t, list: List) -> c_int,
        on stream, else -1;
    fn __vwprintf_chk(checks: c_int, format: *const wchar_t, list: List) -> c_int,
        on streams::standard_stream(1), else -1;
    fn vfwscanf(stream: *mut FILE, format: *const wchar_t, list: List) -> c_int, on stream, else -1;
    fn vwscanf(format: *const wchar_t, list: List) -> c_int, on streams::standard_stream(0), else -1;
    fn __isoc99_vfwscanf(stream: *mut FILE, format: *const wchar_t, list: List) -> c_int, on stream, else -1;
    fn __isoc99_vwscanf(format: *const wchar_t, list: List) -> c_int,
        on streams::standard_stream(0), else -1;
    fn __isoc23_vfwscanf(stream: *mut FILE, format: *const wchar_t, list: List) -> c_int, on stream, else -1;
    fn __isoc23_vwscanf(format: *const wchar_t, list: List) -> c_int,
        on streams::standard_stream(0), else -1;
}
