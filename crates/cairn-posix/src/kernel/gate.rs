//! Keeps the application's signal handlers out of Cairn's code.
//!
//! A handler in the middle of a call of ours could make another such call and find the lock held by
//! its own thread. It could also leave by `siglongjmp` and hold the lock for ever, for every
//! process of the job. So while a thread is inside, a handler only records its signal here, and the
//! signal is sent again when the thread leaves. That costs two thread-local writes; blocking
//! signals would cost two system calls.
//!
//! Does not install handlers; the interposer does, and calls [`defer`].

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;

use crate::kernel;

/// Most deferred signals per thread; a standard signal counts once.
const DEFERRED_MAX: usize = 16;

struct Gate {
    /// Nesting depth of this thread's calls into our code.
    depth: Cell<u32>,
    count: Cell<usize>,
    deferred: UnsafeCell<[MaybeUninit<libc::siginfo_t>; DEFERRED_MAX]>,
    /// Whether this thread waits for something that a handler may end.
    waits: Cell<bool>,
    /// Whether such a handler has run during the wait.
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

/// Runs `act` with signals deferred. `act` must not unwind.
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

/// Runs a system call that may block for long, called from inside. Handlers run at once.
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

/// As `outside`, for one of the many short calls of a long wait. Returns none if a handler that
/// ends such a wait has run before, during or after the call. A handler that ran before the call
/// could not interrupt it.
pub fn outside_unless_interrupted<R>(wait: impl FnOnce() -> R) -> Option<R> {
    GATE.with(|gate| {
        // State of an outer wait, if this call is made in a handler that interrupted one.
        let (waits, interrupted) = (gate.waits.replace(true), gate.interrupted.replace(false));
        let result = outside(wait);
        gate.waits.set(waits);
        if gate.interrupted.replace(interrupted) { None } else { Some(result) }
    })
}

/// Records a handler that ends a wait. To be called before the application's handler of a signal
/// runs.
pub fn begin_handler(signal: i32) {
    GATE.with(|gate| {
        if gate.waits.get() && kernel::interrupts(signal) {
            gate.interrupted.set(true);
        }
    });
}

/// Whether this thread is inside a call of ours.
#[inline]
pub fn is_inside() -> bool {
    GATE.with(|gate| gate.depth.get() > 0)
}

/// Defers the signal of a handler if the thread is inside, and returns true if it will be sent
/// again. The signal handler calls this.
pub fn defer(info: &libc::siginfo_t) -> bool {
    GATE.with(|gate| {
        if gate.depth.get() == 0 {
            return false;
        }
        let count = gate.count.get();
        // SAFETY: only this thread touches its gate, and no reference into the list outlives a
        // statement. `send_again` empties the list before the handler can run again.
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
        // SAFETY: the first `count` entries are filled. A handler that interrupts here finds depth
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
        // SAFETY: plain data, for which zero is a valid value.
        let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
        info.si_signo = number;
        info
    }

    /// Mechanism: a write that waits for space sleeps many times for a moment. A handler that ran
    /// between two sleeps, or after a sleep while the thread waited for a processor, interrupted
    /// none.
    ///
    /// Consequence: the write went on waiting for as long as it may.
    ///
    /// Fix: the handler records that it has run, and the waiting thread checks after each sleep.
    #[test]
    fn handler_ends_a_wait_whenever_it_runs_unless_it_lets_calls_go_on() {
        extern "C" fn deliver(
            signal: i32,
            info: *const libc::siginfo_t,
            _: *mut core::ffi::c_void,
        ) {
            // SAFETY: the kernel passes a valid siginfo.
            if !defer(unsafe { &*info }) {
                begin_handler(signal);
            }
        }
        let install = |flags| {
            // SAFETY: plain data, for which zero is a valid value; the handler is
            // async-signal-safe.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = deliver as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | flags;
                assert_eq!(libc::sigaction(libc::SIGWINCH, &action, core::ptr::null_mut()), 0);
            }
        };
        // SAFETY: the handler is async-signal-safe.
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
            // SIGURG is ignored by default, so sending it again is harmless.
            assert!(defer(&signal(libc::SIGURG)) && defer(&signal(libc::SIGURG)));
            GATE.with(|gate| assert_eq!(gate.count.get(), 1));
            outside(|| assert!(!defer(&signal(libc::SIGURG))));
            GATE.with(|gate| assert_eq!(gate.count.get(), 0));
            inside(|| assert!(defer(&signal(libc::SIGURG))));
        });
        GATE.with(|gate| assert_eq!((gate.count.get(), gate.depth.get()), (0, 0)));
    }
}
