//! Functions that create descriptors other than files. The table forgets what it knew of the new
//! number.
//!
//! A Cairn descriptor may have been closed past every hook, by an uncaught instruction of a
//! library. If its number comes back from one of these functions, writes to it must not reach the
//! file that had the number before.
//!
//! Must stay true: every function of the C library that returns a descriptor is here, or does the
//! same in the file of its family.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{FILE, mode_t, pid_t, sigset_t, sockaddr, socklen_t};

use crate::answer::{answer, recognise_after_failure};
use crate::open::opened;
use crate::sockets;

/// Called when the C library has opened a stream.
pub fn stream_opened(stream: *mut FILE) {
    if !stream.is_null() && cairn_posix::task::table::in_use() {
        // SAFETY: the C library has just returned it.
        opened(unsafe { library!(fileno: fn(*mut FILE) -> c_int)(stream) });
    }
}

/// As `both_opened`, for two adjacent numbers.
///
/// # Safety
/// As there.
pub unsafe fn pair_opened(result: c_int, numbers: *const c_int) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { both_opened(result, [numbers, numbers.wrapping_add(1)]) }
}

/// Called after a function that creates two descriptors returned `result`. Returns `result`.
///
/// # Safety
/// After success both `numbers` are valid.
unsafe fn both_opened(result: c_int, numbers: [*const c_int; 2]) -> c_int {
    if result == 0 && cairn_posix::task::table::in_use() {
        // SAFETY: promised by the caller.
        for number in numbers.map(|number| unsafe { *number }) {
            opened(number);
        }
    }
    result
}

macro_rules! makers {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's own arguments; variable ones are in the registers of their
            // parameters.
            opened(unsafe { library!($name: fn($($type),*) -> c_int)($($argument),*) })
        }
    )*};
}

makers! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int);
    fn epoll_create(size: c_int);
    fn epoll_create1(flags: c_int);
    fn eventfd(count: c_uint, flags: c_int);
    fn signalfd(descriptor: c_int, signals: *const sigset_t, flags: c_int);
    fn timerfd_create(clock: c_int, flags: c_int);
    fn inotify_init();
    fn inotify_init1(flags: c_int);
    fn fanotify_init(flags: c_uint, event_flags: c_uint);
    fn memfd_create(name: *const c_char, flags: c_uint);
    fn pidfd_open(process: pid_t, flags: c_uint);
    fn posix_openpt(flags: c_int);
    fn getpt();
    fn shm_open(name: *const c_char, flags: c_int, mode: mode_t);
    fn mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void);
    fn __mq_open_2(name: *const c_char, flags: c_int);
    fn fsopen(name: *const c_char, flags: c_uint);
    fn fspick(directory: c_int, path: *const c_char, flags: c_uint);
    fn fsmount(descriptor: c_int, flags: c_uint, attributes: c_uint);
    fn open_tree(directory: c_int, path: *const c_char, flags: c_uint);
}

macro_rules! acceptors {
    ($(fn $name:ident($($more:ident: $type:ty),*);)*) => {$(
        /// As the C library's function of this name; fails on a Cairn file, which is not a socket.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t $(, $more: $type)*
        ) -> c_int {
            let refused = |handle| answer(|| sockets::refused::<c_int>(handle));
            if let Some(handle) = cairn_posix::task::table::lookup(descriptor) {
                return refused(handle);
            }
            let real = next!($name: fn(c_int, *mut sockaddr, *mut socklen_t $(, $type)*) -> c_int);
            // SAFETY: the caller's own arguments.
            let result = unsafe { real(descriptor, address, length $(, $more)*) };
            match cairn_posix::task::table::lookup(descriptor) {
                Some(handle) if result == -1 && recognise_after_failure(descriptor) => refused(handle),
                _ => opened(result),
            }
        }
    )*};
}

acceptors! {
    fn accept();
    fn accept4(flags: c_int);
}

macro_rules! makers_of_pairs {
    ($(fn $name:ident($($argument:ident: $type:ty),*), numbers $numbers:ident;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            let real = library!($name: fn($($type),*) -> c_int);
            // SAFETY: the caller's own arguments, which hold two numbers after success.
            unsafe { pair_opened(real($($argument),*), $numbers) }
        }
    )*};
}

makers_of_pairs! {
    fn pipe(pair: *mut c_int), numbers pair;
    fn __pipe(pair: *mut c_int), numbers pair;
    fn pipe2(pair: *mut c_int, flags: c_int), numbers pair;
    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int), numbers pair;
}

/// As `openpty(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn openpty(
    terminal: *mut c_int,
    other: *mut c_int,
    name: *mut c_char,
    settings: *const c_void,
    size: *const c_void,
) -> c_int {
    let real = library!(openpty: fn(*mut c_int, *mut c_int, *mut c_char, *const c_void, *const c_void) -> c_int);
    // SAFETY: the caller's own arguments, which hold two numbers after success.
    unsafe { both_opened(real(terminal, other, name, settings, size), [terminal, other]) }
}

macro_rules! makers_of_streams {
    ($(fn $name:ident();)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name() -> *mut FILE {
            // SAFETY: takes nothing.
            let stream = unsafe { library!($name: fn() -> *mut FILE)() };
            stream_opened(stream);
            stream
        }
    )*};
}

makers_of_streams! {
    fn tmpfile();
    fn tmpfile64();
}
