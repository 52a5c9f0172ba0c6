//! Runs the application's signal handlers between our calls, never during one; see
//! `cairn_posix::kernel::gate`.
//!
//! The kernel gets our handler, which runs the application's or defers the signal. The application
//! sees its own handler when it asks. Invariant: `sigaction` reports what was set through it.
//! Faults (SIGSEGV and similar, raised by the processor) cannot be deferred, and are passed on at
//! once. Faults from our own check of an application's address are ours; see
//! `cairn_posix::kernel::address`.

use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use cairn_posix::files::cwd;
use cairn_posix::kernel::{address, gate};
use cairn_posix::{kernel, selector};
use libc::{sigaction as Action, sighandler_t, siginfo_t};

use crate::dispatch;

/// Number of signals on Linux, plus one.
const SIGNALS: usize = 65;

/// Handler and flags that the application set.
struct Wanted {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static WANTED: [Wanted; SIGNALS] =
    [const { Wanted { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; SIGNALS];

type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

fn wanted(signal: c_int) -> Option<&'static Wanted> {
    WANTED.get(usize::try_from(signal).ok()?)
}

/// Signals raised for a bad address.
const OF_ADDRESSES: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Other signals that end a program with a core file. Watched once the program is in a Cairn
/// directory, where the kernel cannot write one.
const OF_CORES: [c_int; 6] =
    [libc::SIGABRT, libc::SIGFPE, libc::SIGILL, libc::SIGQUIT, libc::SIGXCPU, libc::SIGXFSZ];
static WATCHES_CORES: AtomicBool = AtomicBool::new(false);

/// Called when the program enters a Cairn directory. Installs our handler, which runs before the
/// kernel writes a core file.
pub fn watch_cores() {
    if !WATCHES_CORES.swap(true, Ordering::AcqRel) {
        OF_CORES.into_iter().for_each(|signal| watch(signal, |now| now == libc::SIG_DFL));
    }
}

/// Whether our handler is installed for this signal even where the application sets none.
fn is_watched(signal: c_int) -> bool {
    OF_ADDRESSES.contains(&signal)
        || OF_CORES.contains(&signal) && WATCHES_CORES.load(Ordering::Acquire)
}

/// Runs at start. Turns bad addresses that the application passes into errors, unless somebody else
/// handles these signals already.
pub fn watch_addresses() {
    OF_ADDRESSES.into_iter().for_each(|signal| watch(signal, |now| now == libc::SIG_DFL));
}

/// Installs our handler for a signal if the current action `is_right`. The application's action
/// stays in effect.
pub fn watch(signal: c_int, is_right: impl FnOnce(sighandler_t) -> bool) {
    // SAFETY: plain data, for which zero is a valid value.
    let [mut now, mut before]: [Action; 2] = unsafe { core::mem::zeroed() };
    // SAFETY: our own hook gets room for an action, and then valid ones.
    unsafe {
        let asked = sigaction(signal, core::ptr::null(), &raw mut now) == 0;
        if asked && is_right(now.sa_sigaction) {
            sigaction(signal, &raw const now, &raw mut before);
            // Another thread has set a handler meanwhile: put that back.
            if before.sa_sigaction != now.sa_sigaction {
                sigaction(signal, &raw const before, core::ptr::null_mut());
            }
        }
    }
}

/// Whether SIGSYS is used by syscall dispatch.
fn is_caught(signal: c_int) -> bool {
    signal == libc::SIGSYS && selector::is_on()
}

/// Applies the default action, as if there were no handler. A fault happens again when the thread
/// continues; a sent signal is sent again.
unsafe fn act_by_default(signal: c_int, info: &siginfo_t) {
    // A signal sent to the init process of a namespace does nothing by default.
    if kernel::getpid() == 1 && !is_fault(signal, info.si_code) {
        return;
    }
    cwd::move_to_launch_directory();
    let real = library!(sigaction: fn(c_int, *const Action, *mut Action) -> c_int);
    // SAFETY: plain data, for which zero is a valid value: the default action.
    let default: Action = unsafe { core::mem::zeroed() };
    // SAFETY: a valid action.
    unsafe { real(signal, &raw const default, core::ptr::null_mut()) };
    // A call stopped by a seccomp filter does not happen again.
    if !is_fault(signal, info.si_code) || signal == libc::SIGSYS {
        kernel::send_to_self(info);
    }
}

/// Handler that the kernel calls. Has no destructors, because the application's handler may leave
/// by `siglongjmp`.
unsafe extern "C-unwind" fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes this thread's context.
    if OF_ADDRESSES.contains(&signal) && unsafe { address::recover(context) } {
        return;
    }
    // SAFETY: the kernel passes valid information and this thread's context.
    if signal == libc::SIGSYS && unsafe { dispatch::take(&*info, context) } {
        return;
    }
    let Some(wanted) = wanted(signal) else { return };
    // The default action ends the process, so it need not be deferred.
    if wanted.handler.load(Ordering::Acquire) == libc::SIG_DFL && is_watched(signal) {
        // SAFETY: the kernel passes valid information, because the handler is installed with
        // SA_SIGINFO.
        return unsafe { act_by_default(signal, &*info) };
    }
    // SAFETY: as above.
    if !is_fault(signal, unsafe { (*info).si_code }) && gate::defer(unsafe { &*info }) {
        return;
    }
    gate::begin_handler(signal);
    let handler = wanted.handler.load(Ordering::Acquire);
    if handler == libc::SIG_DFL && is_caught(signal) {
        // SAFETY: as above.
        return unsafe { act_by_default(signal, &*info) };
    }
    if wanted.flags.load(Ordering::Relaxed) & libc::SA_RESETHAND != 0 {
        // SAFETY: plain data, for which zero is a valid value.
        let mut now: Action = unsafe { core::mem::zeroed() };
        // SAFETY: our own hook gets room for an action and then a valid one. The flags and mask
        // stay.
        unsafe {
            if sigaction(signal, core::ptr::null(), &raw mut now) == 0 {
                now.sa_sigaction = libc::SIG_DFL;
                sigaction(signal, &raw const now, core::ptr::null_mut());
            }
        }
    }
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        // The signal may have arrived during a call of ours that the selector allows.
        let selected = selector::is_on().then(selector::rest);
        dispatch::unblock();
        // SAFETY: the application set this handler; one with fewer parameters ignores the rest.
        unsafe { transmute::<usize, Handler>(handler)(signal, info, context) };
        if let Some(selected) = selected {
            selector::select(selected);
        }
    }
}

/// Whether the signal was raised by the thread's own instruction, which would raise it again.
fn is_fault(signal: c_int, code: c_int) -> bool {
    let raised =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    code > 0 && raised.contains(&signal)
}

fn is_handler(action: sighandler_t) -> bool {
    action != libc::SIG_DFL && action != libc::SIG_IGN
}

/// Whether the kernel gets our handler if the application sets this action.
fn is_handled(signal: c_int, action: sighandler_t) -> bool {
    is_handler(action) || action == libc::SIG_DFL && is_watched(signal) || is_caught(signal)
}

macro_rules! actions {
    ($(fn $name:ident;)*) => {$(
        /// As `sigaction(2)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            signal: c_int, new: *const Action, old: *mut Action,
        ) -> c_int {
            let real = library!($name: fn(c_int, *const Action, *mut Action) -> c_int);
            let (Some(wanted), true) = (wanted(signal), cairn_posix::kernel::configuration::get().is_some()) else {
                // SAFETY: the caller's own arguments.
                return unsafe { real(signal, new, old) };
            };
            let before = (wanted.handler.load(Ordering::Relaxed), wanted.flags.load(Ordering::Relaxed));
            // SAFETY: the caller passes null or a valid action.
            let ours = unsafe { new.as_ref() }.filter(|new| is_handled(signal, new.sa_sigaction)).map(|new| {
                wanted.handler.store(new.sa_sigaction, Ordering::Release);
                wanted.flags.store(new.sa_flags, Ordering::Relaxed);
                let mut ours = *new;
                ours.sa_sigaction = deliver as *const () as usize;
                ours.sa_flags = new.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
                if !is_handler(new.sa_sigaction) {
                    ours.sa_flags |= libc::SA_ONSTACK;
                }
                if is_caught(signal) {
                    // A served call may wait, and calls made by handlers meanwhile are caught, too.
                    ours.sa_flags |= libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
                    // SAFETY: a valid signal set.
                    unsafe { libc::sigemptyset(&raw mut ours.sa_mask) };
                }
                ours
            });
            let given = ours.as_ref().map_or(new, core::ptr::from_ref);
            // SAFETY: the caller's own arguments, or an action made from them.
            let result = unsafe { real(signal, given, old) };
            if result != 0 && ours.is_some() {
                wanted.handler.store(before.0, Ordering::Relaxed);
                wanted.flags.store(before.1, Ordering::Relaxed);
            }
            // SAFETY: the caller passes null or room for an action, which a successful call has
            // filled.
            if let Some(old) = unsafe { old.as_mut() }.filter(|_| result == 0) {
                if old.sa_sigaction == deliver as *const () as usize {
                    (old.sa_sigaction, old.sa_flags) = before;
                }
            }
            result
        }
    )*};
}

actions! {
    fn sigaction;
    fn __sigaction;
}

/// The kernel's `sigaction`: handler, flags, restorer, mask.
pub type KernelAction = [usize; 4];

/// Serves `rt_sigaction` called by number. Returns 0 or a negated errno.
///
/// # Safety
/// `old` is null, has room for an action, or is a bad address.
pub unsafe fn change_by_number(
    signal: c_int,
    new: Option<KernelAction>,
    old: *mut KernelAction,
) -> i64 {
    /// Flag: the third word, the restorer, is valid.
    const SA_RESTORER: c_int = 0x0400_0000;
    // SAFETY: plain data, for which zero is a valid value.
    let (mut action, mut before): (Action, Action) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    if let Some([handler, flags, _, mask]) = new {
        action.sa_sigaction = handler;
        action.sa_flags = flags as c_int & !SA_RESTORER;
        // SAFETY: a `sigset_t` begins with the kernel's set.
        unsafe { (&raw mut action.sa_mask).cast::<usize>().write(mask) };
    }
    let given = new.map_or(core::ptr::null(), |_| &raw const action);
    // SAFETY: our own hook gets valid actions.
    if unsafe { sigaction(signal, given, &raw mut before) } != 0 {
        return -i64::from(crate::answer::errno());
    }
    // SAFETY: as above.
    let mask = unsafe { (&raw const before.sa_mask).cast::<usize>().read() };
    let told = [before.sa_sigaction, before.sa_flags as usize, 0, mask];
    // SAFETY: promised by the caller.
    match old.is_null() || unsafe { crate::answer::deliver(old, told) }.is_ok() {
        true => 0,
        false => -i64::from(libc::EFAULT),
    }
}

/// Sets a handler with these flags and returns the previous one, as `signal` and related functions
/// do.
unsafe fn set(signal: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    // SAFETY: plain data, for which zero is a valid value.
    let (mut new, mut old): (Action, Action) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    // SAFETY: both are valid actions. Adding a signal fails only for a bad number, which sigaction
    // then reports.
    unsafe {
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut new.sa_mask, signal);
        }
        match sigaction(signal, &raw const new, &raw mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

macro_rules! simple_actions {
    ($(fn $name:ident, flags $flags:expr;)*) => {$(
        /// As the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            let configured = cairn_posix::kernel::configuration::get().is_some();
            if !configured || !is_handled(signal, handler) {
                // SAFETY: the caller's own arguments.
                let before = unsafe { library!($name: fn(c_int, sighandler_t) -> sighandler_t)(signal, handler) };
                return match wanted(signal) {
                    Some(wanted) if before == deliver as *const () as usize => {
                        wanted.handler.load(Ordering::Relaxed)
                    }
                    _ => before,
                };
            }
            // SAFETY: the caller's own arguments.
            unsafe { set(signal, handler, $flags) }
        }
    )*};
}

simple_actions! {
    fn signal, flags libc::SA_RESTART;
    fn bsd_signal, flags libc::SA_RESTART;
    fn ssignal, flags libc::SA_RESTART;
    fn sysv_signal, flags libc::SA_RESETHAND | libc::SA_NODEFER;
    fn __sysv_signal, flags libc::SA_RESETHAND | libc::SA_NODEFER;
}
