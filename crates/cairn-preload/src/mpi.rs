//! Start and end of MPI in a rank.
//!
//! For Open MPI and MPICH, in C and Fortran: the rank registers with the store after MPI is
//! initialised, and its files are flushed after MPI is finalised (NVMe-CR, section III-C). The
//! calls of MPI and their results stay unchanged; if the store cannot be reached, later file calls
//! fail. Some of these functions call one another, so `cairn_posix::process::rank` accepts repeated
//! reports. No MPI header is needed: of the arguments, only the place of Fortran's error code is
//! used.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::CString;

use cairn_posix::Result;
use cairn_posix::kernel::configuration;
use cairn_posix::process::rank;

use crate::answer::{errno, guarded, set_errno};
use crate::next;

const SUCCESS: c_int = 0;
/// Not the success code of any MPI.
const NOT_FOUND: c_int = -1;

/// Runs `act` after MPI succeeded, if this process has a store. Its errors are not MPI's: they are
/// in the rank's record, or show in later file calls.
fn tell(result: c_int, act: fn() -> Result<()>) {
    if result == SUCCESS && configuration::get().is_some() {
        let before = errno();
        let _ = guarded(act);
        set_errno(before);
    }
}

/// Address of MPI's function `name`, whose hook is `ours`. A library loaded for one module alone,
/// as Python loads imports, is not behind us in the lookup order. So the loaded objects are
/// searched, too.
fn find(name: &CStr, ours: *mut c_void) -> Option<*mut c_void> {
    if let Some(next) = next::from_archive(name) {
        return Some(next);
    }
    // SAFETY: the name is terminated.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !next.is_null() {
        return Some(next);
    }
    let is_mpis = |found: &*mut c_void| !found.is_null() && *found != ours;
    loaded().iter().map(|object| within(object, name)).find(is_mpis)
}

/// The function `name` in a loaded object or its dependencies; null if there is none.
fn within(object: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: both names are terminated; `RTLD_NOLOAD` loads nothing; the handle is used before it
    // is closed. The object stays loaded, because our caller uses it.
    unsafe {
        let handle = libc::dlopen(object.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if handle.is_null() {
            return null_mut();
        }
        let found = libc::dlsym(handle, name.as_ptr());
        libc::dlclose(handle);
        found
    }
}

/// Paths of the shared objects of this process.
fn loaded() -> Vec<CString> {
    unsafe extern "C" fn note(
        object: *mut libc::dl_phdr_info,
        _: usize,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: the dynamic linker passes an object with a terminated name, and our own list.
        let (name, names) =
            unsafe { (CStr::from_ptr((*object).dlpi_name), &mut *names.cast::<Vec<CString>>()) };
        // Skips the program itself, which has no name: a lookup there finds our own functions.
        if !name.is_empty() {
            names.push(name.to_owned());
        }
        0
    }
    let mut names = Vec::new();
    // SAFETY: `note` gets the list it expects, and does not unwind: without memory it aborts.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names
}

/// MPI's function of type `F`, found by [`find`].
///
/// # Safety
/// The function of this name has this type.
unsafe fn function<F: Copy>(name: &CStr, ours: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: `F` is a pointer to a function, as the caller promises.
    let typed = |found: *mut c_void| unsafe { core::mem::transmute_copy::<*mut c_void, F>(&found) };
    find(name, ours).map(typed)
}

/// Hooks that call MPI's function of the same name and report to the store.
macro_rules! c_hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) then $act:path;)*) => {$(
        /// As MPI's function of this name.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            let ours = $name as Function as *mut c_void;
            // SAFETY: the type given by the MPI standard; the caller's own arguments.
            let result = unsafe {
                match function::<Function>(c_name!($name), ours) {
                    Some(real) => real($($argument),*),
                    None => NOT_FOUND,
                }
            };
            tell(result, $act);
            result
        }
    )*};
}

c_hooks! {
    fn MPI_Init(count: *mut c_int, arguments: *mut *mut *mut c_char) then rank::initialised;
    fn MPI_Init_thread(count: *mut c_int, arguments: *mut *mut *mut c_char, wanted: c_int, given: *mut c_int)
        then rank::initialised;
    fn MPI_Finalize() then rank::finalised;
}

/// The same for Fortran. The result is in the last argument, which programs with `mpi_f08` may
/// omit.
macro_rules! fortran_hooks {
    ($(fn $name:ident($($argument:ident),*; result) then $act:path;)*) => {$(
        /// As MPI's subroutine of this name.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: *mut c_int,)* result: *mut c_int) {
            type Function = unsafe extern "C-unwind" fn($(fortran_hooks!(@pointer $argument),)* *mut c_int);
            let ours = $name as Function as *mut c_void;
            let mut own = NOT_FOUND;
            let result = if result.is_null() { &raw mut own } else { result };
            // SAFETY: the type in the bindings of Open MPI and MPICH; the caller's own arguments,
            // or a local result.
            let outcome = unsafe {
                match function::<Function>(c_name!($name), ours) {
                    Some(real) => real($($argument,)* result),
                    None => result.write(NOT_FOUND),
                }
                result.read()
            };
            tell(outcome, $act);
        }
    )*};
    (@pointer $argument:ident) => { *mut c_int };
}

// Fortran compilers call `mpi_init` by any of four names.
fortran_hooks! {
    fn mpi_init(; result) then rank::initialised;
    fn mpi_init_(; result) then rank::initialised;
    fn mpi_init__(; result) then rank::initialised;
    fn MPI_INIT(; result) then rank::initialised;
    fn mpi_init_f08_(; result) then rank::initialised;
    fn mpi_init_thread(wanted, given; result) then rank::initialised;
    fn mpi_init_thread_(wanted, given; result) then rank::initialised;
    fn mpi_init_thread__(wanted, given; result) then rank::initialised;
    fn MPI_INIT_THREAD(wanted, given; result) then rank::initialised;
    fn mpi_init_thread_f08_(wanted, given; result) then rank::initialised;
    fn mpi_finalize(; result) then rank::finalised;
    fn mpi_finalize_(; result) then rank::finalised;
    fn mpi_finalize__(; result) then rank::finalised;
    fn MPI_FINALIZE(; result) then rank::finalised;
    fn mpi_finalize_f08_(; result) then rank::finalised;
}
