//! `dprintf(3)` and other functions that write text to a descriptor. The C library would write past
//! our hooks, so the text is formatted in memory and written here.
//!
//! Stable Rust cannot receive variable arguments. They are received as a fixed number of registers
//! and stack words, and arranged as the ABI's `va_list`. Words after the caller's last argument
//! belong to the caller's stack, and are not used.

use core::ffi::{c_char, c_int, c_void};

use cairn_posix::data::copy::{self, End};
use cairn_posix::task::table;
use cairn_posix::{Errno, kernel};
use libc::size_t;

use crate::answer::{counted_as, is_ours, set_errno};
use crate::io;

/// Number of registers that pass integers and addresses.
#[cfg(target_arch = "x86_64")]
const GENERAL: usize = 6;
#[cfg(target_arch = "aarch64")]
const GENERAL: usize = 8;
/// Number of registers that pass floating-point numbers.
const FLOATING: usize = 8;
/// Number of stack words that the functions here receive.
const STACK_WORDS: usize = 64;
/// Number of stack words for a `long double`, including its alignment.
const LONG_DOUBLE_WORDS: size_t = 3;
/// Maximum length of a backtrace's text.
const TRACE_BYTES_MAX: usize = 1 << 20;
/// Flag of a `long double` in the C library's argument types.
const LONG_DOUBLE: c_int = 1 << 8;

unsafe extern "C-unwind" {
    fn vasprintf(target: *mut *mut c_char, format: *const c_char, list: *mut c_void) -> c_int;
    fn parse_printf_format(format: *const c_char, room: size_t, types: *mut c_int) -> size_t;
}

/// Arguments of a call, laid out as a C function's prologue saves them.
#[repr(C, align(16))]
struct Saved {
    general: [usize; GENERAL],
    floating: [[f64; 2]; FLOATING],
    stack: [usize; STACK_WORDS],
}

/// `va_list` of the ABI.
#[repr(C)]
struct List {
    #[cfg(target_arch = "x86_64")]
    offsets: [c_int; 2],
    stack: *const usize,
    #[cfg(target_arch = "x86_64")]
    registers: *const usize,
    #[cfg(target_arch = "aarch64")]
    register_ends: [*const c_void; 2],
    #[cfg(target_arch = "aarch64")]
    offsets: [c_int; 2],
}

impl Saved {
    /// List of the arguments after the first `named` ones, none of which is floating-point.
    #[cfg(target_arch = "x86_64")]
    fn list(&self, named: usize) -> List {
        const { assert!(core::mem::offset_of!(Saved, floating) == GENERAL * size_of::<usize>()) };
        let offsets = [named, GENERAL].map(|count| (count * size_of::<usize>()) as c_int);
        List { offsets, stack: self.stack.as_ptr(), registers: (&raw const *self).cast() }
    }

    /// As above. On this target the offsets count back from the ends of the register areas.
    #[cfg(target_arch = "aarch64")]
    fn list(&self, named: usize) -> List {
        let ends =
            [self.general.as_ptr_range().end.cast(), self.floating.as_ptr_range().end.cast()];
        let bytes = [(GENERAL - named) * size_of::<usize>(), size_of_val(&self.floating)];
        List {
            stack: self.stack.as_ptr(),
            register_ends: ends,
            offsets: bytes.map(|count| -(count as c_int)),
        }
    }
}

/// Whether all arguments of a format are among those received.
///
/// # Safety
/// `format` is terminated.
unsafe fn is_received(format: *const c_char) -> bool {
    let mut types = [0; STACK_WORDS];
    // SAFETY: promised by the caller; there is room for that many types.
    let count = unsafe { parse_printf_format(format, types.len(), types.as_mut_ptr()) };
    let long = types.iter().take(count).filter(|&kind| kind & LONG_DOUBLE != 0).count();
    // A register that holds a `long double` is truncated to a double when received.
    let cut = cfg!(target_arch = "aarch64") && long > 0;
    count + long * (LONG_DOUBLE_WORDS - 1) <= STACK_WORDS && !cut
}

/// Writes all of `text` to a descriptor of Cairn.
unsafe fn put(descriptor: c_int, text: *const c_char, length: usize) -> c_int {
    let mut done = 0;
    while done < length {
        // SAFETY: the caller passes that many bytes.
        match unsafe { io::write(descriptor, text.add(done).cast(), length - done) } {
            ..=0 => return -1,
            written => done += written as usize,
        }
    }
    length as c_int
}

/// Writes the text that `make` allocates to a descriptor of Cairn.
unsafe fn print(descriptor: c_int, make: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = core::ptr::null_mut();
    let length = make(&raw mut text);
    let Ok(length) = usize::try_from(length) else { return -1 };
    // SAFETY: `make` has succeeded; the text is not used after it is freed.
    unsafe {
        let result = put(descriptor, text, length);
        libc::free(text.cast());
        result
    }
}

/// As `vdprintf(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(
    descriptor: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe {
        match is_ours(descriptor) {
            true => print(descriptor, |text| vasprintf(text, format, list)),
            false => next!(vdprintf: fn(c_int, *const c_char, *mut c_void) -> c_int)(
                descriptor, format, list,
            ),
        }
    }
}

/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    descriptor: c_int,
    checks: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    let make =
        library!(__vasprintf_chk: fn(*mut *mut c_char, c_int, *const c_char, *mut c_void) -> c_int);
    let real = || next!(__vdprintf_chk: fn(c_int, c_int, *const c_char, *mut c_void) -> c_int);
    // SAFETY: the caller's own arguments.
    unsafe {
        match is_ours(descriptor) {
            true => print(descriptor, |text| make(text, checks, format, list)),
            false => real()(descriptor, checks, format, list),
        }
    }
}

macro_rules! backtraces {
    ($(fn $name:ident;)*) => {$(
        /// As `backtrace_symbols_fd(3)`. It may be called where malloc must not be, so the text is
        /// made in a memfd.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(frames: *const *mut c_void, count: c_int, descriptor: c_int) {
            let real = || next!($name: fn(*const *mut c_void, c_int, c_int) -> ());
            if !is_ours(descriptor) {
                // SAFETY: the caller's own arguments.
                return unsafe { real()(frames, count, descriptor) };
            }
            let _ = counted_as(|| stringify!($name), || {
                let handle = table::lookup(descriptor).ok_or(Errno(libc::EBADF))?;
                let memory = kernel::memfd_create(c"cairn", libc::MFD_CLOEXEC)?;
                // SAFETY: the caller's own arguments, except for the descriptor.
                unsafe { real()(frames, count, memory) };
                let (from, to) = (End::Kernel(memory), End::Ours(handle));
                let copied = copy::copy(from, Some(&mut 0), to, None, TRACE_BYTES_MAX);
                let _ = kernel::close(memory);
                copied.map(drop)
            });
        }
    )*};
}

backtraces! {
    fn backtrace_symbols_fd;
    fn __backtrace_symbols_fd;
}

/// Defines a function with variable arguments after the named ones, by its variant that takes a
/// `va_list`.
macro_rules! variadic {
    ($(fn $name:ident($($named:ident: $type:ty),*; $format:ident) [$($general:ident)*] as $listed:ident;)*) => {$(
        variadic!(@one fn $name($($named: $type),*; $format) [$($general)*]
            [f0 f1 f2 f3 f4 f5 f6 f7]
            [s0 s1 s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 s12 s13 s14 s15 s16 s17 s18 s19 s20 s21 s22 s23 s24 s25 s26 s27 s28 s29 s30 s31 s32 s33 s34 s35 s36 s37 s38 s39 s40 s41 s42 s43 s44 s45 s46 s47 s48 s49 s50 s51 s52 s53 s54 s55 s56 s57 s58 s59 s60 s61 s62 s63]
            as $listed;);
    )*};
    (@one fn $name:ident($($named:ident: $type:ty),*; $format:ident) [$($general:ident)*] [$($floating:ident)*] [$($stack:ident)*]
        as $listed:ident;) => {
        /// As the C library's function of this name. Errors: `E2BIG` with more arguments than this
        /// function can receive.
        #[allow(clippy::too_many_arguments, reason = "stands for a variable list")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($named: $type,)* $format: *const c_char, $($general: usize,)* $($floating: f64,)* $($stack: usize,)*
        ) -> c_int {
            // SAFETY: the caller passes a terminated format.
            if !unsafe { is_received($format) } {
                set_errno(libc::E2BIG);
                return -1;
            }
            let saved = Saved {
                general: [$($named as usize,)* $format as usize, $($general),*],
                floating: [$([$floating, 0.0]),*],
                stack: [$($stack),*],
            };
            let mut list = saved.list([$(stringify!($named),)* stringify!($format)].len());
            // SAFETY: the caller's own arguments, in a list with the ABI's layout.
            unsafe { $listed($($named,)* $format, (&raw mut list).cast()) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
variadic! {
    fn dprintf(descriptor: c_int; format) [g2 g3 g4 g5] as vdprintf;
    fn __dprintf_chk(descriptor: c_int, checks: c_int; format) [g3 g4 g5] as __vdprintf_chk;
}

#[cfg(target_arch = "aarch64")]
variadic! {
    fn dprintf(descriptor: c_int; format) [g2 g3 g4 g5 g6 g7] as vdprintf;
    fn __dprintf_chk(descriptor: c_int, checks: c_int; format) [g3 g4 g5 g6 g7] as __vdprintf_chk;
}
