//! Keeps the application's signal handlers out of our code.
//!
//! A handler that ran in the middle of a call of ours could make another one, which would find the lock held by its own
//! thread, or leave by `siglongjmp` and hold the lock for ever, for every process of the job. So while a thread is
//! inside, a handler only notes its signal here, and the signal is sent again when the thread leaves.
//! Costs two thread-local writes, where blocking signals would cost two system calls.
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
}

thread_local! {
    static GATE: Gate = const {
        Gate {
            depth: Cell::new(0),
            count: Cell::new(0),
            deferred: UnsafeCell::new([const { MaybeUninit::uninit() }; DEFERRED_MAX]),
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

/// Whether a signal was deferred whose handler is to end a call that waits.
pub fn is_interrupted() -> bool {
    GATE.with(|gate| {
        (0..gate.count.get()).any(|index| {
            // SAFETY: only this thread touches its gate, the first `count` entries are filled, and no reference into the list
            // outlives the statement.
            let signal = unsafe { (*gate.deferred.get())[index].assume_init_ref().si_signo };
            kernel::interrupts(signal)
        })
    })
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
        // SAFETY: only this thread touches its gate, and no reference into the list outlives a statement; `send_again`
        // empties the list before the handler can run again.
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
        // SAFETY: the first `count` entries are filled; a handler that interrupts here finds depth 0 and defers nothing.
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

    /// Mechanism: a signal came while a write that waits for space looked for some, and was deferred; its handler ran before the
    /// wait, which it could not interrupt then.
    /// Consequence: the write went on waiting, for as long as it may.
    /// Fix: whoever waits asks first whether a handler that interrupts was deferred.
    #[test]
    fn deferred_handler_interrupts_unless_it_lets_calls_go_on() {
        extern "C" fn nothing(_: i32) {}
        let install = |flags| {
            // SAFETY: plain data, for which zero is a value; the handler does nothing.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = nothing as *const () as usize;
                action.sa_flags = flags;
                assert_eq!(libc::sigaction(libc::SIGWINCH, &action, core::ptr::null_mut()), 0);
            }
        };
        inside(|| {
            assert!(!is_interrupted());
            install(0);
            assert!(defer(&signal(libc::SIGWINCH)) && is_interrupted());
            install(libc::SA_RESTART);
            assert!(!is_interrupted());
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
