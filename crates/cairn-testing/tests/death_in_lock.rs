//! A process killed at any instruction inside the lock leaves a consistent namespace. The real lock
//! detects the death, the operation happened completely or not at all, and reaping the dead process
//! leaves nothing behind.
//!
//! A child runs one operation under single-stepping and is killed after n instructions, for many n
//! in and around the part where it holds the lock. With `CAIRN_SOAK` set, every n is tried (hours).
//! Where ptrace is forbidden, the test prints that it is skipped.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use cairn_core::{
    Acquired, Caller, HandleId, InodeId, Memory, Microfs, Position, ProcessIdentity, ROOT,
    RenameMode, Result, SlotId, Timestamp, WritePlan,
};
use cairn_device::memory::lock::RobustLock;
use cairn_testing::random::soaking;
use cairn_testing::tier::{CHECKSUM, small_geometry};
use cairn_testing::world::{READ_WRITE, SUPERUSER};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of instructions stepped per operation, over all kills, unless every instruction is
/// visited.
const STEPS_PER_OPERATION: u64 = 40_000;
/// Number of instructions before and after the critical section that are included.
const MARGIN: u64 = 40;
/// Exit status of a child that must not be traced.
const FORBIDDEN: i32 = 77;

/// Words shared with a forked child; never unmapped.
#[derive(Clone, Copy)]
struct SharedWords(&'static [AtomicU64]);

impl SharedWords {
    fn new(count: usize) -> SharedWords {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice; it replaces
        // nothing.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), count * 8, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        // SAFETY: the mapping is page-aligned, `count` words long, zeroed, and never unmapped. All
        // access is atomic.
        SharedWords(unsafe { std::slice::from_raw_parts(address.cast(), count) })
    }

    fn snapshot(&self) -> Vec<u64> {
        self.0.iter().map(|word| word.load(Relaxed)).collect()
    }

    fn restore(&self, snapshot: &[u64]) {
        assert_eq!(self.0.len(), snapshot.len());
        // SAFETY: both areas have that many words and do not overlap. Only this thread uses the
        // shared words during the copy.
        unsafe {
            let target = self.0.as_ptr().cast::<u64>().cast_mut();
            std::ptr::copy_nonoverlapping(snapshot.as_ptr(), target, snapshot.len());
        }
    }

    fn lock(&self) -> RobustLock<'_> {
        RobustLock::new(self.0)
    }

    fn microfs(&self) -> Microfs {
        Microfs::open(Box::new(*self), CHECKSUM).expect("the header is intact")
    }
}

impl Memory for SharedWords {
    fn words(&self) -> &[AtomicU64] {
        self.0
    }

    fn lock(&self) -> Result<Acquired> {
        self.lock().lock()
    }

    fn unlock(&self) {
        self.lock().unlock();
    }

    fn back(&self, _first_word: usize, _word_count: usize) -> Result<()> {
        Ok(())
    }
}

/// What the child knows of the namespace when it is forked.
struct Known {
    caller: Caller,
    /// Handle of the open file `h`.
    handle: HandleId,
    file: InodeId,
    /// A write of new blocks to `h`: transferred, not committed.
    plan: WritePlan,
}

fn identity(pid: u32) -> ProcessIdentity {
    ProcessIdentity { pid, pid_namespace: 1, start_time: 7 }
}

fn populate(words: SharedWords) -> Result<Known> {
    let fs = words.microfs();
    let slot = fs.attach(identity(1))?.slot;
    let caller = Caller { slot, credentials: SUPERUSER, groups: &[], now: Timestamp(5) };
    fs.make_directory(&caller, ROOT, b"d", 0o755)?;
    for (path, bytes) in [(&b"a"[..], 12_000), (b"d/b", 9000), (b"c", 4096)] {
        let opened = fs.open_file(&caller, ROOT, path, READ_WRITE, 0o644)?;
        let plan = fs.plan_write(&caller, opened.handle, Position::At(0), bytes)?;
        fs.commit_write(&caller, &plan)?;
        fs.release(slot, opened.handle, caller.now)?;
    }
    let opened = fs.open_file(&caller, ROOT, b"h", READ_WRITE, 0o644)?;
    let plan = fs.plan_write(&caller, opened.handle, Position::At(0), 20_000)?;
    let file = fs.resolve(&caller, ROOT, b"a", false)?;
    Ok(Known { caller, handle: opened.handle, file, plan })
}

type Operation = (&'static str, fn(&Microfs, &Known) -> Result<()>);

const OPERATIONS: &[Operation] = &[
    ("create", |fs, known| {
        fs.open_file(&known.caller, ROOT, b"d/new", READ_WRITE, 0o644).map(drop)
    }),
    ("plan", |fs, known| {
        fs.plan_write(&known.caller, known.handle, Position::At(40_000), 9000).map(drop)
    }),
    ("commit", |fs, known| fs.commit_write(&known.caller, &known.plan).map(drop)),
    ("rename over a file", |fs, known| {
        fs.rename(&known.caller, (ROOT, b"a"), (ROOT, b"d/b"), RenameMode::Replace)
    }),
    ("unlink", |fs, known| fs.unlink(&known.caller, ROOT, b"a")),
    ("make directory", |fs, known| fs.make_directory(&known.caller, ROOT, b"d/e", 0o755).map(drop)),
    ("truncate", |fs, known| fs.truncate(&known.caller, known.file, 5000).map(drop)),
    ("release", |fs, known| fs.release(known.caller.slot, known.handle, known.caller.now)),
    ("attach", |fs, _| fs.attach(identity(2)).map(drop)),
    ("link", |fs, known| fs.link(&known.caller, (ROOT, b"a"), (ROOT, b"d/l"), false)),
    ("symlink", |fs, known| fs.symlink(&known.caller, &[b'x'; 100], ROOT, b"s").map(drop)),
];

/// Path, kind with permissions, and size of every named node.
type Names = Vec<(Vec<u8>, u32, u64)>;

fn names(fs: &Microfs) -> Result<Names> {
    let caller = Caller { slot: SlotId(0), credentials: SUPERUSER, groups: &[], now: Timestamp(9) };
    let mut found = Vec::new();
    let mut directories = vec![(ROOT, Vec::new())];
    while let Some((directory, path)) = directories.pop() {
        let mut entries = Vec::new();
        fs.list(&caller, directory, 0, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.inode));
            true
        })?;
        for (name, inode) in entries {
            let attributes = fs.attributes(inode)?;
            let path = [&path[..], b"/", &name].concat();
            if attributes.is_directory() {
                directories.push((inode, path.clone()));
            }
            found.push((path, attributes.mode, attributes.size));
        }
    }
    found.sort();
    Ok(found)
}

/// A stopped child about to run an operation.
struct Child(libc::pid_t);

#[derive(PartialEq, Eq)]
enum State {
    Stopped,
    Ended(i32),
}

impl Child {
    /// Forks a child that stops before the operation. Returns `None` where tracing is forbidden.
    fn start(fs: &Microfs, known: &Known, operation: Operation) -> Option<Child> {
        // SAFETY: the child runs only the operation and leaves without unwinding into the harness.
        // The only lock of this process it takes is the allocator's, which the C library makes
        // usable in the child.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: these calls take no pointers; the traced child stops itself for its parent.
            unsafe {
                if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                    libc::_exit(FORBIDDEN);
                }
                libc::raise(libc::SIGSTOP);
            }
            let done = (operation.1)(fs, known).is_ok();
            // SAFETY: ends the child at once; no destructor or exit handler of the parent runs.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        let child = Child(pid);
        match child.wait() {
            State::Stopped => Some(child),
            State::Ended(_) => None,
        }
    }

    fn wait(&self) -> State {
        let mut status = 0;
        // SAFETY: `status` outlives the call. The child is ours, and nobody has waited for it yet.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!(waited, self.0, "{}", std::io::Error::last_os_error());
        match libc::WIFSTOPPED(status) {
            true => State::Stopped,
            false => State::Ended(status),
        }
    }

    fn step(&self) -> State {
        // SAFETY: the child is stopped and traced by this thread; no memory is passed.
        let stepped = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, 0) };
        assert_eq!(stepped, 0, "{}", std::io::Error::last_os_error());
        self.wait()
    }

    fn kill(self) {
        // SAFETY: the child is ours and nobody has waited for it, so its pid is not reused.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        while self.wait() == State::Stopped {}
    }
}

/// Number of instructions of an operation, and the range in which the child held the lock.
struct Length {
    total: u64,
    first_held: u64,
    last_held: u64,
}

fn measure(words: SharedWords, child: &Child) -> Length {
    let mut length = Length { total: 0, first_held: 0, last_held: 0 };
    loop {
        match child.step() {
            State::Stopped => length.total += 1,
            State::Ended(status) => {
                assert_eq!(status, 0, "the operation itself failed");
                return length;
            }
        }
        if words.lock().holder().is_some() {
            length.last_held = length.total;
            if length.first_held == 0 {
                length.first_held = length.total;
            }
        }
    }
}

fn next_prime(from: u64) -> u64 {
    let is_prime =
        |number: u64| (2..).take_while(|by| by * by <= number).all(|by| number % by != 0);
    (from.max(2)..).find(|&number| is_prime(number)).unwrap_or(from)
}

/// Returns the values of n at which to kill.
fn moments(length: &Length) -> Vec<u64> {
    if soaking() {
        return (0..length.total).collect();
    }
    let from = length.first_held.saturating_sub(MARGIN);
    let to = (length.last_held + MARGIN).min(length.total);
    let average = (from + to) / 2;
    let kills = (STEPS_PER_OPERATION / average.max(1)).max(8);
    let stride = next_prime((to - from) / kills);
    // The ends of the critical section are the critical moments.
    let ends = [length.first_held, length.last_held, length.last_held + 1];
    (from..to).step_by(stride as usize).chain(ends).collect()
}

/// Checks the remaining state, before and after the dead process is reaped.
fn verify(words: SharedWords, allowed: [&Names; 2], what: &str) {
    let fs = words.microfs();
    let check = |when: &str| {
        let report = fs.check().unwrap_or_else(|error| panic!("{what}, {when}: {error}"));
        let found = names(&fs).unwrap_or_else(|error| panic!("{what}, {when}: {error}"));
        assert!(allowed.contains(&&found), "{what}, {when}: neither before nor after: {found:?}");
        report
    };
    check("recovered");
    for (slot, dead) in fs.processes().expect("it was checked") {
        fs.reap(slot, dead, Timestamp(10))
            .unwrap_or_else(|error| panic!("{what}, reaping: {error}"));
    }
    while fs.reclaim(None).unwrap_or_else(|error| panic!("{what}, reclaiming: {error}")) {}
    let report = check("reaped");
    assert_eq!((report.handles, report.reserved_blocks), (0, 0), "{what}: left behind");
    assert_eq!(report.orphaned_blocks, 0, "{what}: left behind");
}

/// Keeps this process and its children on one processor. Then a step is only a context switch, and
/// no other processor has to wake up.
fn stay_on_one_processor() {
    // SAFETY: a `cpu_set_t` is plain bits, for which zero is valid; the kernel only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        // If this fails, the test is only slower.
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

#[test]
fn killed_inside_the_lock_then_operation_happened_or_not() {
    stay_on_one_processor();
    let geometry = small_geometry(64, 64);
    let words = SharedWords::new(geometry.segment_bytes() as usize / 8);
    Microfs::format(&words, &geometry, CHECKSUM, SUPERUSER, Timestamp(1))
        .expect("the geometry is valid");
    let known = populate(words).expect("there is space");
    let snapshot = words.snapshot();
    for &operation in OPERATIONS {
        let (name, run) = operation;
        words.restore(&snapshot);
        // Opened before the fork, so that the child is inside the lock for most of its time.
        let fs = words.microfs();
        let before = names(&fs).expect("the namespace is whole");
        words.restore(&snapshot);
        run(&fs, &known).expect("the operation succeeds");
        let after = names(&fs).expect("the namespace is whole");
        words.restore(&snapshot);
        let Some(child) = Child::start(&fs, &known, operation) else {
            eprintln!("SKIPPED: ptrace is not permitted here");
            return;
        };
        let length = measure(words, &child);
        assert!(length.first_held > 0, "{name}: the lock was never seen held");
        let moments = moments(&length);
        let mut held_count = 0;
        for &n in &moments {
            words.restore(&snapshot);
            let child = Child::start(&fs, &known, operation).expect("it was permitted before");
            let mut ended = false;
            for _ in 0..n {
                if child.step() != State::Stopped {
                    ended = true;
                    break;
                }
            }
            let what = format!("{name}, killed after {n} of {} instructions", length.total);
            assert!(!ended || n + 1000 > length.total, "{what}: ended early");
            let held = words.lock().holder().is_some();
            let deaths = words.lock().statistics().deaths;
            if !ended {
                child.kill();
            }
            verify(words, [&before, &after], &what);
            let noticed = words.lock().statistics().deaths - deaths;
            assert_eq!(noticed, u64::from(held), "{what}: deaths that the lock noticed");
            held_count += u64::from(held);
        }
        assert!(held_count > 0, "{name}: nobody died inside the lock");
        println!(
            "{name}: {} instructions, {} kills, {held_count} of them inside the lock",
            length.total,
            moments.len()
        );
    }
}
