//! The lock between processes: contention, and every way for its owner to die.

use super::*;

const COUNTER: usize = LOCK_WORDS;

/// Returns one shared page of words, which forked children inherit.
fn shared_words() -> &'static [AtomicU64] {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let page = sys::mmap(4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).unwrap();
    // SAFETY: a fresh zeroed page that is never unmapped.
    unsafe { core::slice::from_raw_parts(page.cast::<AtomicU64>(), 512) }
}

/// Runs `body` in a forked child, which exits with the code that `body` returns.
fn fork_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the bodies below neither allocate nor take locks of the test harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let code = body();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    child
}

fn wait_for(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` receives one int.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: `ends` receives two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    ends
}

/// Starts a child that takes the lock, reports that, and then runs `body`.
fn child_in_the_lock(words: &'static [AtomicU64], body: impl FnOnce() -> i32) -> i32 {
    let ready = pipe();
    let child = fork_child(|| {
        RobustLock::new(words).lock().unwrap();
        sys::write(ready[1], b"x").unwrap();
        body()
    });
    assert_eq!(sys::read(ready[0], &mut [0]), Ok(1));
    sys::close(ready[0]).unwrap();
    sys::close(ready[1]).unwrap();
    child
}

fn pause() -> i32 {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

#[test]
fn lock_taken_twice_by_one_thread_is_busy() {
    let lock = RobustLock::new(shared_words());
    assert_eq!(lock.lock(), Ok(Acquired::Clean));
    assert_eq!(lock.lock(), Err(Error::Busy));
    assert_eq!(lock.holder().unwrap().tid, sys::gettid());
    lock.unlock();
    assert_eq!(lock.holder(), None);
    assert_eq!(lock.lock(), Ok(Acquired::Clean));
    lock.unlock();
}

#[test]
fn contending_processes_lose_no_increment() {
    const ROUNDS: u64 = 50_000;
    let words = shared_words();
    let lock = RobustLock::new(words);
    let increment = || {
        for _ in 0..ROUNDS {
            if lock.lock() != Ok(Acquired::Clean) {
                return 1;
            }
            let value = words[COUNTER].load(Ordering::Relaxed);
            words[COUNTER].store(value + 1, Ordering::Relaxed);
            lock.unlock();
        }
        0
    };
    let children: Vec<i32> = (0..4).map(|_| fork_child(increment)).collect();
    for child in children {
        assert_eq!(wait_for(child), 0);
    }
    assert_eq!(words[COUNTER].load(Ordering::Relaxed), 4 * ROUNDS);
    assert_eq!(lock.statistics().acquisitions, 4 * ROUNDS);
    assert_eq!(lock.statistics().deaths, 0);
}

#[test]
fn owner_killed_in_the_lock_is_reported_to_the_next() {
    let words = shared_words();
    let child = child_in_the_lock(words, pause);
    sys::kill(child as u32, libc::SIGKILL).unwrap();
    let lock = RobustLock::new(words);
    assert_eq!(lock.lock(), Ok(Acquired::OwnerDied));
    lock.unlock();
    assert_eq!(lock.lock(), Ok(Acquired::Clean));
    lock.unlock();
    wait_for(child);
}

#[test]
fn sleeping_waiter_is_woken_by_the_owners_death() {
    let words = shared_words();
    let owner = child_in_the_lock(words, pause);
    let waiter = fork_child(|| i32::from(RobustLock::new(words).lock() != Ok(Acquired::OwnerDied)));
    while words[LOCK].load(Ordering::Relaxed) & WAITERS == 0 {
        sys::sched_yield();
    }
    sys::kill(owner as u32, libc::SIGKILL).unwrap();
    assert_eq!(wait_for(waiter), 0);
    wait_for(owner);
}

#[test]
fn owner_that_executes_another_program_is_reported_while_that_runs() {
    let words = shared_words();
    let hold = pipe();
    let child = child_in_the_lock(words, || {
        sys::dup3(hold[0], 0, 0).unwrap();
        let arguments = [c"cat".as_ptr(), ptr::null()];
        // SAFETY: a NUL-terminated path and a null-terminated vector of such strings.
        unsafe { libc::execv(c"/bin/cat".as_ptr(), arguments.as_ptr()) };
        1
    });
    let lock = RobustLock::new(words);
    assert_eq!(lock.lock(), Ok(Acquired::OwnerDied));
    lock.unlock();
    // `cat` runs until its input ends.
    sys::close(hold[1]).unwrap();
    assert_eq!(wait_for(child), 0);
    sys::close(hold[0]).unwrap();
}

#[test]
fn owner_thread_that_exits_is_reported() {
    let words = shared_words();
    std::thread::spawn(move || assert_eq!(RobustLock::new(words).lock(), Ok(Acquired::Clean)))
        .join()
        .unwrap();
    let lock = RobustLock::new(words);
    assert_eq!(lock.lock(), Ok(Acquired::OwnerDied));
    lock.unlock();
}

#[test]
fn corrupt_word_that_names_nobody_counts_as_a_death() {
    let words = shared_words();
    let lock = RobustLock::new(words);
    let namespace = process::pid_namespace() << 32;
    for corrupt in [namespace | TID_MASK, namespace | 0x3fff_fff0, WAITERS, 0xdead_beef << 32] {
        words[LOCK].store(corrupt, Ordering::Relaxed);
        assert_eq!(lock.lock(), Ok(Acquired::OwnerDied), "{corrupt:#x}");
        lock.unlock();
    }
}

#[test]
fn stale_word_that_names_the_caller_counts_as_a_death() {
    let words = shared_words();
    let lock = RobustLock::new(words);
    let me = u64::from(sys::gettid()) | (process::pid_namespace() << 32);
    words[LOCK].store(me, Ordering::Relaxed);
    assert_eq!(lock.lock(), Ok(Acquired::OwnerDied));
    lock.unlock();
}

#[test]
fn impatient_taker_is_told_who_holds_the_lock_while_the_owner_lives() {
    let words = shared_words();
    let child = child_in_the_lock(words, pause);
    let lock = RobustLock::new(words);
    let held = Err(Error::Held { thread: child as u32 });
    assert_eq!(lock.enter(Some(Duration::from_millis(1))), held);
    // A sleep that lasts longer than the interval of checks is not woken either.
    assert_eq!(lock.enter(Some(CHECK_INTERVAL + Duration::from_millis(1))), held);
    assert_eq!(lock.holder().unwrap().tid, child as u32);
    sys::kill(child as u32, libc::SIGKILL).unwrap();
    assert_eq!(lock.lock(), Ok(Acquired::OwnerDied));
    lock.unlock();
    wait_for(child);
}

#[test]
fn lock_is_tried_in_vain_until_its_owner_is_gone() {
    let words = shared_words();
    let child = child_in_the_lock(words, pause);
    let lock = RobustLock::new(words);
    assert_eq!((lock.try_lock(), lock.is_held(true)), (Ok(false), true));
    sys::kill(child as u32, libc::SIGKILL).unwrap();
    wait_for(child);
    assert!(!lock.is_held(false), "the kernel said so");
    words[LOCK].store(child as u64 | process::pid_namespace() << 32, Ordering::Relaxed);
    assert_eq!((lock.is_held(false), lock.is_held(true)), (true, false));
    words[LOCK].store(0, Ordering::Relaxed);
    assert_eq!((lock.try_lock(), lock.try_lock()), (Ok(true), Err(Error::Busy)));
    lock.unlock();
}

#[test]
fn forked_child_is_not_the_holder_its_parent_was() {
    let words = shared_words();
    let lock = RobustLock::new(words);
    assert_eq!(lock.lock(), Ok(Acquired::Clean));
    let parent = sys::gettid();
    let child = fork_child(|| {
        let held = Err(Error::Held { thread: parent });
        i32::from(lock.enter(Some(Duration::from_millis(1))) != held)
            + i32::from(lock.holder().map(|holder| holder.tid) == Some(sys::gettid()))
    });
    assert_eq!(wait_for(child), 0);
    lock.unlock();
}

#[test]
fn announcement_of_another_robust_mutex_is_restored() {
    let words = shared_words();
    let lock = RobustLock::new(words);
    lock.lock().unwrap();
    lock.unlock();
    let head = sys::get_robust_list().unwrap() as *mut RobustListHead;
    let other = ptr::without_provenance_mut(0x1000);
    // SAFETY: this thread's own list; the announcement is withdrawn before anything can read it.
    unsafe { (*head).list_op_pending = other };
    lock.lock().unwrap();
    lock.unlock();
    // SAFETY: as above.
    let restored = unsafe { core::mem::replace(&mut (*head).list_op_pending, ptr::null_mut()) };
    assert_eq!(restored, other);
}
