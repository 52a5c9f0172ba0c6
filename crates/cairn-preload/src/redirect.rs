//! Calls on the C library's own stdin, stdout or stderr while a Cairn stream replaces it.
//!
//! A program that saved the variable's value (as `std::cout` does) still means its standard stream.
//! Covered are the functions used by the C++ library and common C calls. `fprintf` and similar
//! functions cannot be received in stable Rust, and fail with EBADF on such a saved value.

use core::ffi::{c_char, c_int, c_long, c_void};

use libc::{FILE, size_t};

use crate::streams::current;

macro_rules! redirected {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty, on $stream:ident;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            let $stream = current($stream);
            // SAFETY: the caller's own arguments, on the stream that replaces theirs.
            unsafe { library!($name: fn($($type),*) -> $result)($($argument),*) }
        }
    )*};
}

redirected! {
    fn fwrite(source: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t, on stream;
    fn fread(target: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t, on stream;
    fn fputs(text: *const c_char, stream: *mut FILE) -> c_int, on stream;
    fn fputc(character: c_int, stream: *mut FILE) -> c_int, on stream;
    fn putc(character: c_int, stream: *mut FILE) -> c_int, on stream;
    fn fgets(target: *mut c_char, size: c_int, stream: *mut FILE) -> *mut c_char, on stream;
    fn fgetc(stream: *mut FILE) -> c_int, on stream;
    fn getc(stream: *mut FILE) -> c_int, on stream;
    fn ungetc(character: c_int, stream: *mut FILE) -> c_int, on stream;
    fn fflush(stream: *mut FILE) -> c_int, on stream;
    fn fseek(stream: *mut FILE, offset: c_long, whence: c_int) -> c_int, on stream;
    fn fseeko(stream: *mut FILE, offset: i64, whence: c_int) -> c_int, on stream;
    fn fseeko64(stream: *mut FILE, offset: i64, whence: c_int) -> c_int, on stream;
    fn ftell(stream: *mut FILE) -> c_long, on stream;
    fn ftello(stream: *mut FILE) -> i64, on stream;
    fn ftello64(stream: *mut FILE) -> i64, on stream;
}
