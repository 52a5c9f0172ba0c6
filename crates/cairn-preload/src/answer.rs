//! Turns a `Result` into the return value and errno that a C caller expects, and a panic into EIO.
//!
//! Invariant: errno changes only if the call fails. A panic poisons the mount and is never printed.

use core::any::type_name;
use core::cell::Cell;
use core::ffi::{CStr, c_int};
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU8, Ordering};

use cairn_posix::descriptors::recognition;
use cairn_posix::files::place::Place;
use cairn_posix::kernel::calls::{self, Outcome};
use cairn_posix::kernel::{address, configuration, gate, stack};
use cairn_posix::task::table;
use cairn_posix::{Errno, PathError, PathResult, Result, mount};

/// Type that C functions return, with its value for failure.
pub trait Answer: Copy + PartialEq {
    /// Value that tells the caller to look at errno.
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: c_int = -1;
}
impl Answer for isize {
    const FAILED: isize = -1;
}
impl Answer for i64 {
    const FAILED: i64 = -1;
}
impl<T> Answer for *mut T {
    const FAILED: *mut T = core::ptr::null_mut();
}

/// Success value that a C function returns as `R`.
pub trait Success<R> {
    /// The value returned to the caller.
    fn value(self) -> R;
}

impl Success<c_int> for () {
    fn value(self) -> c_int {
        0
    }
}
impl Success<c_int> for c_int {
    fn value(self) -> c_int {
        self
    }
}
impl Success<isize> for usize {
    fn value(self) -> isize {
        self as isize
    }
}
impl Success<i64> for i64 {
    fn value(self) -> i64 {
        self
    }
}
impl<T> Success<*mut T> for *mut T {
    fn value(self) -> *mut T {
        self
    }
}

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: __errno_location returns the calling thread's errno cell, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value };
}

const UNPREPARED: u8 = 0;
const READY: u8 = 1;
const COUNTING: u8 = 2;

/// Whether a call of ours needs more than being served: the first one prepares this library, and
/// with counting on each one is counted.
static STATE: AtomicU8 = AtomicU8::new(UNPREPARED);

/// Whether calls are counted.
#[inline]
pub fn is_counting() -> bool {
    STATE.load(Ordering::Relaxed) != READY && prepare() == COUNTING
}

#[cold]
fn prepare() -> u8 {
    if STATE.load(Ordering::Relaxed) == UNPREPARED {
        // The hook belongs to this library's own copy of the standard library. An application
        // written in Rust keeps its own.
        std::panic::set_hook(Box::new(|_| {}));
        STATE.store(if calls::is_wanted() { COUNTING } else { READY }, Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed)
}

/// Error of a call. A call that goes on elsewhere did not fail: it is counted there.
pub trait Failure: From<Errno> {
    /// The errno; none if the call goes on elsewhere.
    fn errno(&self) -> Option<c_int>;
}

impl Failure for Errno {
    fn errno(&self) -> Option<c_int> {
        Some(self.0)
    }
}
impl Failure for PathError {
    fn errno(&self) -> Option<c_int> {
        match self {
            PathError::Errno(errno) => Some(errno.0),
            PathError::Elsewhere(_) => None,
        }
    }
}

/// Name of the hook that contains the closure of type `F`, directly or in its inner function
/// `any_path`. The type name of a closure contains the path of its enclosing function.
fn hook_of<F>() -> &'static str {
    let name = type_name::<F>();
    let hook = name.split_once("::{{closure}}").map_or(name, |(hook, _)| hook);
    let hook = hook.strip_suffix("::any_path").unwrap_or(hook);
    hook.rsplit("::").next().unwrap_or(hook)
}

/// As [`guarded`], and counts the call under `symbol`, which is evaluated only if calls are
/// counted. For code that several hooks share.
#[inline]
pub fn counted_as<T, E: Failure>(
    symbol: impl FnOnce() -> &'static str,
    act: impl FnOnce() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    let is_counting = is_counting();
    let outcome = run(act);
    if is_counting {
        count_outcome(symbol(), &outcome);
    }
    outcome
}

/// Inlined, because outcomes passed by reference would lie in memory instead of registers.
#[inline(always)]
fn count_outcome<T, E: Failure>(symbol: &'static str, outcome: &core::result::Result<T, E>) {
    match outcome {
        Ok(_) => count(symbol, Outcome::Served),
        Err(failure) => failed(symbol, failure),
    }
}

#[cold]
fn failed<E: Failure>(symbol: &'static str, failure: &E) {
    if let Some(errno) = failure.errno() {
        count(symbol, Outcome::Failed(errno));
    }
}

/// Counts a call, unless Cairn makes it itself while it serves another one.
#[cold]
pub fn count(symbol: &str, outcome: Outcome) {
    let path = PATH.replace([0; PATH_BYTES]);
    let example: &[u8] = if matches!(outcome, Outcome::Failed(_)) { &path } else { b"" };
    if !gate::is_inside() {
        calls::count(symbol, outcome, example);
    }
}

/// If calls are counted: counts a call that a hook refuses without doing any work.
pub fn count_refusal(symbol: &str, errno: c_int) {
    if is_counting() {
        count(symbol, Outcome::Failed(errno));
    }
}

/// Bytes kept of a path.
const PATH_BYTES: usize = 192;

thread_local! {
    /// Path of this thread's current call, padded with zeros.
    static PATH: Cell<[u8; PATH_BYTES]> = const { Cell::new([0; PATH_BYTES]) };
}

/// If calls are counted: keeps the path of a call, with the prefix in front if the path starts
/// there, otherwise as given, relative to its starting directory.
#[inline]
pub fn note_path(place: &Place) {
    if is_counting() {
        keep_path(place);
    }
}

#[cold]
fn keep_path(place: &Place) {
    let mount = configuration::get().map(|found| found.mount()).filter(|_| place.is_from_prefix());
    let parts = [mount.unwrap_or_default(), if mount.is_some() { b"/" } else { b"" }, place.path];
    let mut path = [0; PATH_BYTES];
    for (target, byte) in path.iter_mut().zip(parts.into_iter().flatten()) {
        *target = *byte;
    }
    PATH.set(path);
}

/// Runs code of ours with the application's signal handlers deferred. A panic becomes EIO for this
/// call and all later ones.
pub fn guarded<T, E: From<Errno>>(
    act: impl FnOnce() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    if STATE.load(Ordering::Relaxed) == UNPREPARED {
        prepare();
    }
    run(act)
}

#[inline(always)]
fn run<T, E: From<Errno>>(
    act: impl FnOnce() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    let outcome =
        gate::inside(|| stack::with_room(|| std::panic::catch_unwind(AssertUnwindSafe(act))));
    let outcome = outcome.unwrap_or_else(|panic| {
        mount::poison();
        // Dropping the payload can panic again. Leaking it costs a few bytes.
        core::mem::forget(panic);
        Err(Errno(libc::EIO).into())
    });
    if outcome.is_err() {
        mount::wait_if_ending();
    }
    outcome
}

/// Serves a call on a descriptor and returns what its C caller gets.
pub fn answer<R: Answer, T: Success<R>, F: FnOnce() -> Result<T>>(act: F) -> R {
    answer_as(hook_of::<F>, act)
}

/// As [`answer`], for code that several hooks share. Counts the call under `symbol`.
pub fn answer_as<R: Answer, T: Success<R>>(
    symbol: impl FnOnce() -> &'static str,
    act: impl FnOnce() -> Result<T>,
) -> R {
    let before = errno();
    delivered(counted_as(symbol, act), before)
}

/// Converts the outcome for the caller; `before` is errno at the time of the call.
#[inline]
fn delivered<R: Answer, T: Success<R>>(outcome: Result<T>, before: c_int) -> R {
    match outcome {
        Ok(value) => {
            set_errno(before);
            value.value()
        }
        Err(Errno(number)) => {
            set_errno(number);
            R::FAILED
        }
    }
}

/// As [`answer_as`], for calls that run functions of the application. These may leave by an
/// exception, end the thread or be cancelled, and nothing here catches that, nor a panic.
/// Precondition: `act` consists of calls that are guarded themselves.
pub fn answer_unguarded<R: Answer, T: Success<R>>(
    symbol: &'static str,
    act: impl FnOnce() -> Result<T>,
) -> R {
    let before = errno();
    let outcome = act();
    if is_counting() {
        count_outcome(symbol, &outcome);
    }
    delivered(outcome, before)
}

/// Serves a call on a path. If the path leads out of the mount, calls `elsewhere` with the resolved
/// path.
pub fn answer_path<R: Answer, T: Success<R>, F: FnOnce() -> PathResult<T>>(
    act: F,
    elsewhere: impl FnOnce(&CStr) -> R,
) -> R {
    answer_path_as(hook_of::<F>, act, elsewhere)
}

/// As [`answer_path`], for code that several hooks share. Counts the call under `symbol`.
pub fn answer_path_as<R: Answer, T: Success<R>>(
    symbol: impl FnOnce() -> &'static str,
    act: impl FnOnce() -> PathResult<T>,
    elsewhere: impl FnOnce(&CStr) -> R,
) -> R {
    let before = errno();
    match counted_as(symbol, act) {
        Ok(value) => {
            set_errno(before);
            value.value()
        }
        Err(PathError::Errno(Errno(number))) => {
            set_errno(number);
            R::FAILED
        }
        Err(PathError::Elsewhere(path)) => {
            set_errno(before);
            elsewhere(&path)
        }
    }
}

/// Writes a value to the caller's memory. Errors: `EFAULT` if that memory is not writable.
///
/// # Safety
/// The caller passes room for one value, or a bad address.
pub unsafe fn deliver<T>(target: *mut T, value: T) -> Result<()> {
    address::check_overwritable(target, size_of::<T>())?;
    // SAFETY: promised by the caller; the address was just checked.
    unsafe { target.write(value) };
    Ok(())
}

/// Reads a value that the caller passes; none if the pointer is null. Errors: as [`deliver`].
///
/// # Safety
/// The caller passes null, a valid value, or a bad address.
pub unsafe fn given<T: Copy>(value: *const T) -> Result<Option<T>> {
    // SAFETY: promised by the caller.
    if value.is_null() { Ok(None) } else { unsafe { address::take(value) }.map(Some) }
}

/// Borrows a value that the caller passes to be changed; none if the pointer is null. Errors: as
/// [`deliver`].
///
/// # Safety
/// The caller passes null, a valid value that nobody else uses during the call, or a bad address.
pub unsafe fn lent<'a, T>(value: *mut T) -> Result<Option<&'a mut T>> {
    if !value.is_null() {
        address::check_writable(value, size_of::<T>())?;
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { value.as_mut() })
}

/// Serves a call that returns its error number instead of setting errno.
pub fn number<F: FnOnce() -> Result<()>>(act: F) -> c_int {
    number_as(hook_of::<F>, act)
}

/// As [`number`], for code that several hooks share. Counts the call under `symbol`.
pub fn number_as(symbol: impl FnOnce() -> &'static str, act: impl FnOnce() -> Result<()>) -> c_int {
    let before = errno();
    let result = counted_as(symbol, act);
    set_errno(before);
    match result {
        Ok(()) => 0,
        Err(Errno(number)) => number,
    }
}

/// After a call of the C library failed on `descriptor`: whether that is a Cairn descriptor that
/// was not in the table yet. If so, the hook repeats the call on it. Leaves errno as it is.
#[inline]
pub fn recognise_after_failure(descriptor: c_int) -> bool {
    let number = errno();
    matches!(number, libc::EBADF | libc::ENOTDIR) && recognise(descriptor)
}

/// Whether `descriptor` is Cairn's, in the table already or recognised by this call. For hooks
/// where a failure of the C library's call would not reveal an unknown descriptor of Cairn.
pub fn is_ours(descriptor: c_int) -> bool {
    table::is_ours(descriptor) || recognise(descriptor)
}

/// Whether `descriptor` is a Cairn descriptor that was not in the table yet. Enters it there.
#[cold]
pub fn recognise(descriptor: c_int) -> bool {
    let before = errno();
    let found = guarded(|| Ok::<_, Errno>(recognition::classify(descriptor)));
    set_errno(before);
    found == Ok(true)
}
