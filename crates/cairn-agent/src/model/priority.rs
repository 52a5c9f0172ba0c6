//! Lowest priority for a thread: nice 19 for processors, idle I/O class for disks.
//!
//! Nice 19 instead of `SCHED_IDLE`: a copying thread holds the store's lock for microseconds, and a
//! program that needs the lock waits until the thread gets a processor again. On a node whose
//! processors are all busy that takes a few milliseconds with nice 19, and hundreds otherwise.
//!
//! Must stay true: only threads that end with the pass are lowered, because an unprivileged process
//! cannot raise them again.

/// From the kernel's `ioprio.h`: the calling thread, and the idle class.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_IDLE: libc::c_int = 3 << 13;
const NICE_LEAST: libc::c_int = 19;

/// Lowers the priority of the calling thread to what other work leaves.
pub fn lower_this_thread() {
    // SAFETY: both calls take plain numbers and change only the calling thread.
    unsafe {
        // If a kernel or sandbox refuses, the thread keeps the priority of a program.
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE_LEAST);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowered_thread_is_nice_and_others_are_not() {
        // SAFETY: both calls take plain numbers and only read.
        let now = || unsafe {
            let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
            (nice, libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0))
        };
        let before = now();
        let lowered = std::thread::spawn(move || {
            lower_this_thread();
            now()
        });
        let lowered = lowered.join().expect("ends");
        assert_eq!(lowered, (NICE_LEAST, libc::c_long::from(IOPRIO_IDLE)));
        assert_eq!(now(), before);
    }
}
