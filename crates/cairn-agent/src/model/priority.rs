//! Working only with what programs leave: processors (nice 19) and disks (idle I/O priority).
//!
//! Nice 19 and not `SCHED_IDLE`: a thread that copies takes the store's lock for microseconds, and
//! a program that meets it there waits until it was given a processor again. On a node whose every
//! processor is busy that takes a few milliseconds so, and hundreds otherwise.
//! Must stay true: only threads that end with the pass are lowered, because nobody without rights
//! can raise them again.

/// From the kernel's `ioprio.h`: the calling thread, the idle class.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_IDLE: libc::c_int = 3 << 13;
const NICE_LEAST: libc::c_int = 19;

/// Has the calling thread work only when nobody else wants to.
pub fn lower_this_thread() {
    // SAFETY: both calls take plain numbers and change the calling thread alone.
    unsafe {
        // A kernel or a sandbox that refuses leaves the thread as it is: then it is no worse than a
        // program.
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE_LEAST);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowered_thread_is_nice_and_others_are_not() {
        // SAFETY: both calls take plain numbers and only ask.
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
