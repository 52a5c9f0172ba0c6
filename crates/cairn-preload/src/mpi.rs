//! The beginning and the end of MPI in a rank.
//!
//! In C and Fortran, of Open MPI and MPICH: the rank announces itself to the store when MPI was
//! initialised, and its files are flushed when it was finalised (NVMe-CR, section III-C). What MPI
//! is asked and answers stays as it is; a store that cannot be reached fails when files are used.
//! Some of these functions call others of them, and each tells `cairn_posix::process::rank`, to
//! which once is enough. No header of MPI is needed: all that is used of their arguments is where
//! Fortran gets its error.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::CString;

use cairn_posix::Result;
use cairn_posix::kernel::configuration;
use cairn_posix::process::rank;

use crate::answer::{errno, guarded, set_errno};
use crate::next;

const SUCCESS: c_int = 0;
/// Not success, of any MPI.
const NOT_FOUND: c_int = -1;

/// Tells the store, if this process has one, when MPI did what it was asked. An error there is none
/// of MPI's: it stands in the rank's record or shows when files are used.
fn tell(result: c_int, act: fn() -> Result<()>) {
    if result == SUCCESS && configuration::get().is_some() {
        let before = errno();
        let _ = guarded(act);
        set_errno(before);
    }
}

/// MPI's function of this name, whose hook is `ours`. A library that was loaded for one module
/// alone, as Python loads what is imported, is not behind us in the order in which names are looked
/// up: then it is looked for in what is loaded.
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

/// The function of this name in a loaded object, or in what that needs; null if there is none.
fn within(object: &CStr, name: &CStr) -> *mut c_void {
    // SAFETY: both names are terminated; nothing is loaded that is not there already, and the
    // handle is used before it is given back. The object stays: whoever calls us uses it.
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
        // The program itself has no name; to it, our own functions are the ones.
        if !name.is_empty() {
            names.push(name.to_owned());
        }
        0
    }
    let mut names = Vec::new();
    // SAFETY: `note` takes what it is given here, and does not unwind: it may abort when there is
    // no memory.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names
}

/// MPI's function of type `F`, as [`find`].
///
/// # Safety
/// The function of this name has this type.
unsafe fn function<F: Copy>(name: &CStr, ours: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: `F` is a pointer to a function, by the caller's promise to this one.
    let typed = |found: *mut c_void| unsafe { core::mem::transmute_copy::<*mut c_void, F>(&found) };
    find(name, ours).map(typed)
}

/// Hooks that call MPI's function of the same name and tell the store.
macro_rules! c_hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) then $act:path;)*) => {$(
        /// As MPI's function of this name.
        #[allow(non_snake_case)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> c_int;
            let ours = $name as Function as *mut c_void;
            // SAFETY: this is its type by the standard of MPI; the caller's own arguments.
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

/// The same for Fortran, where the result is left in the last argument, which programs of `mpi_f08`
/// may leave out.
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
            // SAFETY: this is its type in the bindings of Open MPI and MPICH; the caller's own
            // arguments, or room for one.
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

// Compilers of Fortran call `mpi_init` by any of four names.
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
