//! Keeps the application's signal handlers out of our code.
//!
//! A handler that ran in the middle of a call of ours could make another one, which would find the
//! lock held by its own thread, or leave by `siglongjmp` and hold the lock for ever, for every
//! process of the job. So while a thread is inside, a handler only notes its signal here, and the
//! signal is sent again when the thread leaves. Costs two thread-local writes, where blocking
//! signals would cost two system calls.
//! Does not install handlers; the interposer does, and asks [`defer`].

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;

use crate::kernel;

/// Signals that one thread can have deferred at a time; a standard signal counts once.
const DEFERRED_MAX: usize = 16;

struct Gate {
    /// Calls of ours that this thread is in.
    depth: Cell<u32>,
    count: Cell<usize>,
    deferred: UnsafeCell<[MaybeUninit<libc::siginfo_t>; DEFERRED_MAX]>,
    /// This thread waits for something that a handler may end.
    waits: Cell<bool>,
    /// Such a handler has run meanwhile.
    interrupted: Cell<bool>,
}

thread_local! {
    static GATE: Gate = const {
        Gate {
            depth: Cell::new(0),
            count: Cell::new(0),
            deferred: UnsafeCell::new([const { MaybeUninit::uninit() }; DEFERRED_MAX]),
            waits: Cell::new(false),
            interrupted: Cell::new(false),
        }
    };
}

/// Runs code of ours, which must not unwind.
#[inline]
pub fn inside<R>(act: impl FnOnce() -> R) -> R {
    GATE.with(|gate| {
        gate.depth.set(gate.depth.get() + 1);
        let result = act();
        gate.depth.set(gate.depth.get() - 1);
        if gate.count.get() > 0 && gate.depth.get() == 0 {
            send_again(gate);
        }
        result
    })
}

/// Runs a system call that may wait long, from inside: handlers run at once.
pub fn outside<R>(wait: impl FnOnce() -> R) -> R {
    GATE.with(|gate| {
        let depth = gate.depth.replace(0);
        if gate.count.get() > 0 {
            send_again(gate);
        }
        let result = wait();
        gate.depth.set(depth);
        result
    })
}

/// As `outside`, for one of many short calls that a long wait is made of; none if a handler that
/// ends such a wait has run, no matter whether before the call, which it then could not interrupt,
/// in it or after it.
pub fn outside_unless_interrupted<R>(wait: impl FnOnce() -> R) -> Option<R> {
    GATE.with(|gate| {
        // Those of a wait in whose handler this one is.
        let (waits, interrupted) = (gate.waits.replace(true), gate.interrupted.replace(false));
        let result = outside(wait);
        gate.waits.set(waits);
        if gate.interrupted.replace(interrupted) { None } else { Some(result) }
    })
}

/// Called before the application's handler of a signal runs.
pub fn begin_handler(signal: i32) {
    GATE.with(|gate| {
        if gate.waits.get() && kernel::interrupts(signal) {
            gate.interrupted.set(true);
        }
    });
}

/// Whether this thread is in a call of ours.
#[inline]
pub fn is_inside() -> bool {
    GATE.with(|gate| gate.depth.get() > 0)
}

/// Called by a signal handler: true if the thread is inside and the signal will come again.
pub fn defer(info: &libc::siginfo_t) -> bool {
    GATE.with(|gate| {
        if gate.depth.get() == 0 {
            return false;
        }
        let count = gate.count.get();
        // SAFETY: only this thread touches its gate, and no reference into the list outlives a
        // statement; `send_again` empties the list before the handler can run again.
        let list = unsafe { &mut *gate.deferred.get() };
        // SAFETY: the first `count` entries are filled.
        let known =
            |entry: &MaybeUninit<libc::siginfo_t>| unsafe { entry.assume_init_ref().si_signo };
        let queues = info.si_signo >= libc::SIGRTMIN();
        if !queues && list[..count].iter().any(|entry| known(entry) == info.si_signo) {
            return true;
        }
        match list.get_mut(count) {
            Some(entry) => {
                entry.write(*info);
                gate.count.set(count + 1);
                true
            }
            None => false,
        }
    })
}

#[cold]
fn send_again(gate: &Gate) {
    while let Some(last) = gate.count.get().checked_sub(1) {
        // SAFETY: the first `count` entries are filled; a handler that interrupts here finds depth
        // 0 and defers nothing.
        let info = unsafe { (*gate.deferred.get())[last].assume_init_read() };
        gate.count.set(last);
        kernel::send_to_self(&info);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(number: i32) -> libc::siginfo_t {
        // SAFETY: plain data, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
        info.si_signo = number;
        info
    }

    /// Mechanism: a write that waits for space sleeps again and again for a moment. A handler that
    /// ran between two sleeps, or when the moment was over and the thread waited for a processor,
    /// interrupted none of them.
    /// Consequence: the write went on waiting, for as long as it may.
    /// Fix: the handler says that it has run, and whoever waits asks after each sleep.
    #[test]
    fn handler_ends_a_wait_whenever_it_runs_unless_it_lets_calls_go_on() {
        extern "C" fn deliver(
            signal: i32,
            info: *const libc::siginfo_t,
            _: *mut core::ffi::c_void,
        ) {
            // SAFETY: the kernel passes valid information.
            if !defer(unsafe { &*info }) {
                begin_handler(signal);
            }
        }
        let install = |flags| {
            // SAFETY: plain data, for which zero is a value; the handler does what handlers may.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = deliver as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | flags;
                assert_eq!(libc::sigaction(libc::SIGWINCH, &action, core::ptr::null_mut()), 0);
            }
        };
        // SAFETY: the handler does what handlers may.
        let raise = || assert_eq!(unsafe { libc::raise(libc::SIGWINCH) }, 0);
        inside(|| {
            assert_eq!(outside_unless_interrupted(|| 1), Some(1));
            for (flags, result) in [(0, None), (libc::SA_RESTART, Some(()))] {
                install(flags);
                raise();
                assert_eq!(outside_unless_interrupted(|| ()), result, "deferred before it");
                assert_eq!(outside_unless_interrupted(raise), result, "in it");
                let nested = || inside(|| outside_unless_interrupted(raise));
                assert_eq!(outside_unless_interrupted(nested), Some(result), "in one in it");
            }
            install(0);
            outside(raise);
            assert_eq!(outside_unless_interrupted(|| 1), Some(1), "before it");
        });
    }

    #[test]
    fn signals_are_deferred_inside_only_and_standard_ones_once() {
        assert!(!defer(&signal(libc::SIGURG)));
        inside(|| {
            // SIGURG is ignored by default, so that sending it again is harmless.
            assert!(defer(&signal(libc::SIGURG)) && defer(&signal(libc::SIGURG)));
            GATE.with(|gate| assert_eq!(gate.count.get(), 1));
            outside(|| assert!(!defer(&signal(libc::SIGURG))));
            GATE.with(|gate| assert_eq!(gate.count.get(), 0));
            inside(|| assert!(defer(&signal(libc::SIGURG))));
        });
        GATE.with(|gate| assert_eq!((gate.count.get(), gate.depth.get()), (0, 0)));
    }
}
