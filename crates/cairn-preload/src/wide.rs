//! Wide characters on streams of ours. Such a stream is a cookie, and a cookie is a byte stream:
//! most functions of the C library see that and refuse, but those here would read its missing wide
//! buffer and crash.
//!
//! They fail with EOPNOTSUPP, and the stream's error indicator is set: a reader that tests `ferror`
//! is not told that the file ended. So do those that take a list of arguments. Those with any
//! number of them (`fwprintf`) cannot be received whole, and on other streams nothing may be lost;
//! the C library gives -1 for them.

use core::ffi::{c_int, c_void};

use libc::{FILE, size_t, wchar_t};

use crate::answer::{count_refusal, set_errno};
use crate::stdio;
use crate::streams;

/// `wint_t`.
type Wide = u32;
/// `va_list`, which is passed by its address.
type List = *mut c_void;
/// `WEOF`.
const END: Wide = u32::MAX;
/// The error indicator in a stream's first word, as `ferror_unlocked` of the C library's headers
/// has it.
const FAILED: c_int = 0x20;

/// Whether the stream is ours; it has then failed.
unsafe fn refuses(symbol: &str, stream: *mut FILE) -> bool {
    if stdio::descriptor_of(stream).is_none() {
        return false;
    }
    // SAFETY: an open stream of the C library's making, which begins with its flags.
    unsafe { *stream.cast::<c_int>() |= FAILED };
    count_refusal(symbol, libc::EOPNOTSUPP);
    set_errno(libc::EOPNOTSUPP);
    true
}

macro_rules! wide_hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty, on $stream:expr, else $failed:expr;)*) => {$(
        /// As the C library's function of this name; `EOPNOTSUPP` on a stream of ours.
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
