//! Catches system calls that libraries make by their own `syscall` instructions, and serves them
//! like calls through the C library. Uses the kernel's Syscall User Dispatch (`prctl(2)`, Linux
//! 5.11) on x86-64.
//!
//! The kernel lets calls from the C library's text through, and calls made while the thread's
//! selector allows them (`cairn_posix::selector`): our own. For all others it raises SIGSYS. The
//! handler does not serve the call: it makes the thread continue in our routine `__cairn_serve`, as
//! if the instruction had been a function call. So the served call can wait, be interrupted, and
//! change signal masks and stacks, outside of any handler.
//!
//! Dispatch makes each call of the kernel a little slower, so it is on only where it is needed:
//! once a library with such instructions is loaded (`text.rs`). Libraries that are loaded later are
//! scanned when the program asks for one of their functions (`dlsym`).
//!
//! Must stay true:
//! - Each thread is armed before it runs code of the application, and so is a child after fork.
//! - SIGSYS is not blocked while code of the application runs.
//! - The application's own SIGSYS handler gets the signals that are not ours.
//!
//! Not caught: code generated at run time; calls made by the constructors of libraries loaded
//! later; a thread or process created with its own stack. Dispatch stays off with a sanitizer, in
//! programs with the archive linked in, in Go programs (their stacks are too small for our code),
//! on kernels that refuse it, and on other processors.

mod text;

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::cell::Cell;
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeSet;

use cairn_posix::kernel;
use cairn_posix::kernel::calls::{BY_INSTRUCTION, Outcome};
use cairn_posix::kernel::configuration::{self, Configuration};
use cairn_posix::kernel::gate;
use cairn_posix::process::unserved;
use cairn_posix::selector::{self, ALLOW};
use libc::{c_char, c_long, dl_phdr_info, siginfo_t, size_t, ucontext_t};

use crate::answer::{errno, set_errno};
use crate::signals::KernelAction;
use crate::{answer, sanitizers, signals, syscalls};

/// From `linux/prctl.h` and `asm-generic/siginfo.h`.
const PR_SET_SYSCALL_USER_DISPATCH: c_long = 59;
const PR_SYS_DISPATCH_ON: c_long = 1;
const SYS_USER_DISPATCH: c_int = 2;
/// From `linux/audit.h`.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Bytes below the stack pointer that the running function may use.
const RED_ZONE: usize = 128;
const ALIGNMENT: usize = 16;
/// Length of the `syscall` instruction.
const ENTRY_BYTES: usize = 2;
/// Size of the stack that calls are served on. Handlers may run on a small one.
const STACK_BYTES: usize = 256 << 10;
/// Maximum reported length of a library's path.
const PATH_BYTES: usize = 256;
/// Bit of SIGSYS in the kernel's signal set.
const OF_SIGSYS: u64 = 1 << (libc::SIGSYS - 1);

/// Dispatch must not be turned on: not yet, or never in this process.
static IS_DECLINED: AtomicBool = AtomicBool::new(true);
/// Text segments of the C library and of the dynamic linker.
static LIBRARY: Text = Text::nowhere();
static LINKER: Text = Text::nowhere();
/// Address of the C library's `rt_sigreturn` trampoline, where its handlers return to.
static RESTORER: AtomicUsize = AtomicUsize::new(0);
/// Loads and unloads of libraries at the time of the last scan.
static LOOKED_AT: AtomicU64 = AtomicU64::new(u64::MAX);

struct Text {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Text {
    const fn nowhere() -> Text {
        Text { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }

    fn set(&self, range: &Range<usize>) {
        self.start.store(range.start, Ordering::Relaxed);
        self.end.store(range.end, Ordering::Relaxed);
    }

    fn range(&self) -> Range<usize> {
        self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)
    }
}

/// Runs at process start, when the program's libraries are loaded. Leaves errno as it is.
pub fn begin() {
    let is_impossible = crate::next::is_linked() || sanitizers::is_there();
    if is_impossible || configuration::get().is_none_or(Configuration::passes_raw_calls) {
        return;
    }
    IS_DECLINED.store(false, Ordering::Relaxed);
    look();
    if cfg!(not(has_naked_functions)) {
        // Nothing reports later loads of libraries on this compiler.
        turn_on();
    }
}

/// Scans libraries loaded since the last scan, and turns dispatch on if one of them needs it.
fn look() {
    let is_settled = selector::is_on() || IS_DECLINED.load(Ordering::Relaxed);
    if is_settled || configuration::get().is_none() {
        return;
    }
    let before = errno();
    // SAFETY: takes a plain number.
    let linker = match unsafe { libc::getauxval(libc::AT_BASE) } as usize {
        // The dynamic linker was started by its own name, as a program. Its functions cannot be
        // looked up while it iterates over its list.
        0 => library!(__tls_get_addr: fn(*const c_void) -> *mut c_void) as *const () as usize,
        base => base,
    };
    let mut found = Found {
        // SAFETY: takes nothing; the returned string is in the C library.
        library: unsafe { libc::gnu_get_libc_version() } as usize,
        threads: libc::pthread_detach as *const () as usize,
        linker,
        is_go: false,
        changes: 0,
        calls: false,
        path: [0; PATH_BYTES],
    };
    // SAFETY: the function has the required type, and the data pointer is what it expects.
    unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut found).cast()) };
    if found.calls && (found.is_go || !turn_on()) {
        IS_DECLINED.store(true, Ordering::Relaxed);
        unserved::note_uncaught(CStr::from_bytes_until_nul(&found.path).unwrap_or_default());
    }
    // Stored last: a thread that finds this value continues as if dispatch were on.
    LOOKED_AT.store(found.changes, Ordering::Release);
    set_errno(before);
}

struct Found {
    /// Addresses within the C library, its part with threads, which is a library of its own before
    /// glibc 2.34, and the dynamic linker.
    library: usize,
    threads: usize,
    linker: usize,
    /// Some object was linked by Go.
    is_go: bool,
    changes: u64,
    /// Some library makes system calls by its own instructions.
    calls: bool,
    /// Path of that library, padded with zeros.
    path: [u8; PATH_BYTES],
}

/// Callback for each loaded object. Returns nonzero to stop the iteration.
unsafe extern "C" fn look_at(object: *mut dl_phdr_info, _: size_t, found: *mut c_void) -> c_int {
    // SAFETY: the C library passes a valid description; `look` passes the data.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<Found>()) };
    found.changes = object.dlpi_adds.wrapping_mul(1 << 32).wrapping_add(object.dlpi_subs);
    if found.changes == LOOKED_AT.load(Ordering::Acquire) {
        return 1;
    }
    // SAFETY: takes a plain number.
    let kernel = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    found.is_go |= is_go(object);
    let is_library = has(object, found.library);
    let is_linker = has(object, found.linker);
    for range in texts(object) {
        let ours = [look_at as *const () as usize, found.threads];
        let is_ours = ours.iter().any(|address| range.contains(address));
        if is_library {
            LIBRARY.set(&range);
        } else if is_linker {
            LINKER.set(&range);
        } else if !is_ours && object.dlpi_addr != kernel && is_new(object, &range) {
            // SAFETY: the dynamic linker has mapped the range readable, and does not unmap it
            // during this callback.
            let text =
                unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) };
            if !found.calls && text::calls_the_kernel(text) {
                found.calls = true;
                let name = path(object).to_bytes();
                let length = name.len().min(PATH_BYTES - 1);
                found.path[..length].copy_from_slice(&name[..length]);
            }
        }
    }
    0
}

/// Whether the address is in a loaded segment of the library.
fn has(object: &dl_phdr_info, address: usize) -> bool {
    let mut loads = headers(object).iter().filter(|header| header.p_type == libc::PT_LOAD);
    loads.any(|load| {
        let offset = address.wrapping_sub((object.dlpi_addr + load.p_vaddr) as usize);
        offset < load.p_memsz as usize
    })
}

fn path(object: &dl_phdr_info) -> &CStr {
    // SAFETY: the C library passes null or a terminated name.
    unsafe { object.dlpi_name.as_ref().map_or(c"", |name| CStr::from_ptr(name)) }
}

/// Hashes of the text ranges scanned so far; 0 marks a free entry.
static SEEN: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];
/// Maximum number of entries probed for one hash.
const PROBES_MAX: usize = 32;

/// Whether this text range must be scanned: it is not in `SEEN`, or `SEEN` has no room for it.
fn is_new(object: &dl_phdr_info, range: &Range<usize>) -> bool {
    let place = [range.start.to_ne_bytes(), range.end.to_ne_bytes()];
    let bytes = place.as_flattened().iter().chain(path(object).to_bytes());
    // FNV-1a.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    for probe in 0..PROBES_MAX {
        let place = &SEEN[(hash as usize).wrapping_add(probe) % SEEN.len()];
        match place.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(known) if known == hash => return false,
            Err(_) => {}
        }
    }
    true
}

/// Whether an object was linked by Go. Go's threads run on stacks of a few kilobytes without a
/// guard page.
fn is_go(object: &dl_phdr_info) -> bool {
    /// An ELF note begins with the length of its name, the length of its text, and its type,
    /// followed by the name.
    const HEAD: [u8; 4] = 4_u32.to_ne_bytes();
    const NAME: &[u8] = b"Go\0\0";
    let is_mapped = |note: &libc::Elf64_Phdr| {
        let mut loads = headers(object).iter().filter(|header| header.p_type == libc::PT_LOAD);
        loads.any(|load| {
            load.p_vaddr <= note.p_vaddr
                && note.p_vaddr + note.p_memsz <= load.p_vaddr + load.p_filesz
        })
    };
    let notes = headers(object).iter().filter(|header| header.p_type == libc::PT_NOTE);
    notes.filter(|note| is_mapped(note)).any(|header| {
        let start = (object.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        // SAFETY: the dynamic linker has mapped it, and does not unmap it during this callback.
        let note =
            unsafe { core::slice::from_raw_parts(start as *const u8, header.p_memsz as usize) };
        note.starts_with(&HEAD) && note.get(12..16) == Some(NAME)
    })
}

/// Program headers of a loaded object.
pub fn headers(object: &dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the C library passes `dlpi_phnum` headers.
    unsafe { core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) }
}

/// Readable text segments of a loaded object.
pub fn texts(object: &dl_phdr_info) -> impl Iterator<Item = Range<usize>> {
    const TEXT: u32 = libc::PF_X | libc::PF_R;
    let base = object.dlpi_addr as usize;
    let is_text = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & TEXT == TEXT
    };
    headers(object).iter().filter(is_text).map(move |header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.wrapping_add(header.p_memsz as usize)
    })
}

/// Arms every thread of this process. Returns false, and leaves dispatch off, if the kernel refuses
/// it or the processor lacks XSAVE.
fn turn_on() -> bool {
    if selector::is_on() {
        return true;
    }
    if LIBRARY.range().is_empty() || !measure_state() {
        return false;
    }
    selector::set_on(true);
    signals::watch(libc::SIGSYS, |_| true);
    RESTORER.store(restorer(), Ordering::Relaxed);
    if RESTORER.load(Ordering::Relaxed) == 0 || !arm() {
        selector::set_on(false);
        IS_DECLINED.store(true, Ordering::Relaxed);
        return false;
    }
    arm_others();
    true
}

/// Address that SIGSYS handlers of the C library return to; 0 if unknown.
fn restorer() -> usize {
    // Layout of the kernel's `sigaction`: handler, flags, restorer, mask.
    let mut action = [0_usize; 4];
    let arguments = [libc::SIGSYS.into(), 0, action.as_mut_ptr() as c_long, 8];
    // SAFETY: there is room for an action.
    match unsafe { kernel::call(libc::SYS_rt_sigaction, arguments) } {
        Ok(_) if LIBRARY.range().contains(&action[2]) => action[2],
        _ => 0,
    }
}

/// Arms this thread if dispatch is on. Returns false if the kernel refuses. Leaves errno as it is.
pub fn arm() -> bool {
    if !selector::is_on() {
        return true;
    }
    unblock();
    let Range { start, end } = LIBRARY.range();
    let selector = selector::selector() as c_long;
    let length = (end - start) as c_long;
    let arguments =
        [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start as c_long, length, selector];
    // SAFETY: the selector lives as long as the thread.
    let is_armed = unsafe { kernel::call(libc::SYS_prctl, arguments) }.is_ok();
    selector::set_armed(is_armed);
    is_armed
}

/// Arms the child after a fork, because the kernel has disarmed it.
pub fn in_child() {
    if selector::is_on() {
        selector::set_armed(false);
        arm();
    }
}

/// Makes all other threads arm themselves by sending each a SIGSYS with [`cookie`]. Repeats until
/// there is no new thread.
fn arm_others() {
    let process = kernel::getpid();
    let mut asked = BTreeSet::from([c_long::from(kernel::gettid())]);
    // SAFETY: plain data, for which all-zero is a valid value.
    let mut info: siginfo_t = unsafe { core::mem::zeroed() };
    (info.si_signo, info.si_code) = (libc::SIGSYS, libc::SI_QUEUE);
    let sent = (&raw mut info).cast::<Sent>();
    // SAFETY: the kernel's layout for such a signal.
    unsafe { ((*sent).process, (*sent).value) = (process as c_int, cookie()) };
    while let Ok(threads) = std::fs::read_dir("/proc/self/task") {
        let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
        let new: Vec<c_long> = numbers.filter(|&thread| asked.insert(thread)).collect();
        if new.is_empty() {
            return;
        }
        for thread in new {
            let arguments =
                [process.into(), thread, libc::SIGSYS.into(), &raw const info as c_long];
            // SAFETY: passes a valid `siginfo_t`. A thread that has ended needs no signal.
            let _ = unsafe { kernel::call(libc::SYS_rt_tgsigqueueinfo, arguments) };
        }
    }
}

/// `siginfo_t` of a signal sent with a value.
#[repr(C)]
struct Sent {
    head: [c_int; 4],
    process: c_int,
    user: c_int,
    value: *mut c_void,
}

/// Unblocks SIGSYS for the duration of a handler. It may be blocked when a handler of the
/// application begins.
pub fn unblock() {
    if selector::is_on() {
        let set = OF_SIGSYS;
        let arguments = [libc::SIG_UNBLOCK.into(), (&raw const set) as c_long, 0, 8];
        // SAFETY: passes a signal set.
        let _ = unsafe { kernel::call(libc::SYS_rt_sigprocmask, arguments) };
    }
}

/// Handles SIGSYS. Returns whether the signal was ours alone.
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler.
pub unsafe fn take(info: &siginfo_t, context: *mut c_void) -> bool {
    // SAFETY: promised by the caller.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    if info.si_code == SYS_USER_DISPATCH && selector::is_on() {
        // SAFETY: the kernel passes this layout for such a signal; the context belongs to the
        // interrupted thread.
        unsafe { redirect((&raw const *info).cast::<Caught>().as_ref(), context) };
        return true;
    }
    // SAFETY: a signal sent with a value has these fields.
    let is_asked = info.si_code == libc::SI_QUEUE
        && unsafe { info.si_pid() } == kernel::getpid() as i32
        && unsafe { info.si_value() }.sival_ptr == cookie();
    if is_asked && !selector::is_armed() {
        arm();
        // SAFETY: the set begins with the signals of the kernel's set.
        unsafe { *(&raw mut context.uc_sigmask).cast::<u64>() &= !OF_SIGSYS };
    }
    is_asked
}

/// Value that identifies our SIGSYS: an address that nobody else has.
fn cookie() -> *mut c_void {
    static COOKIE: AtomicBool = AtomicBool::new(false);
    (&raw const COOKIE).cast_mut().cast()
}

/// `siginfo_t` of a caught system call (`SYS_USER_DISPATCH`).
#[repr(C)]
struct Caught {
    head: [c_int; 4],
    from: usize,
    number: c_int,
    architecture: u32,
}

/// Registers that hold a system call's arguments, in order.
const ARGUMENTS: [c_int; 6] =
    [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];

/// Makes the thread that was about to make a system call continue in `__cairn_serve`. Calls that
/// only the thread's own instruction can make are let through.
unsafe fn redirect(caught: Option<&Caught>, context: &mut ucontext_t) {
    let registers = &mut context.uc_mcontext.gregs;
    let word = |register: c_int| registers[register as usize] as usize;
    let (number, words) = (registers[libc::REG_RAX as usize], ARGUMENTS.map(word));
    let (from, top) = (word(libc::REG_RIP), word(libc::REG_RSP));
    let is_native = caught.is_none_or(|caught| caught.architecture == AUDIT_ARCH_X86_64);
    if number == libc::SYS_rt_sigreturn && is_native {
        // The `sigreturn` frame is at the stack pointer. Only the C library's own instruction
        // leaves it there, so continue at that.
        registers[libc::REG_RIP as usize] = RESTORER.load(Ordering::Relaxed) as i64;
    } else if !is_native || makes_a_thread(number, words) {
        // Dispatch stays off for this thread until it makes a call of ours. The kernel never arms
        // the child.
        registers[libc::REG_RIP as usize] -= ENTRY_BYTES as i64;
        selector::select(ALLOW);
    } else {
        let end = stack_for(top, &mut context.uc_stack).unwrap_or(top - RED_ZONE);
        let place = ((end - size_of::<Place>()) & !(ALIGNMENT - 1)) as *mut Place;
        // SAFETY: nobody uses that stack; or it is the stopped thread's own, below everything in
        // use.
        unsafe { place.write(Place { from, top }) };
        let registers = &mut context.uc_mcontext.gregs;
        registers[libc::REG_RSP as usize] = place as i64;
        registers[libc::REG_RIP as usize] = &raw const __cairn_serve as i64;
    }
}

/// Whether a call creates a thread or process that begins on another stack, or shares the caller's.
/// It could not return from our routine there.
fn makes_a_thread(number: c_long, words: [usize; 6]) -> bool {
    const SHARED: u64 = (libc::CLONE_VM | libc::CLONE_FILES) as u64;
    let (flags, stack) = match number {
        libc::SYS_clone => (words[0] as u64, words[1] as u64),
        libc::SYS_clone3 => {
            // SAFETY: the caller passes a `clone_args` or a bad address. Its first version has this
            // length.
            match unsafe { answer::given(words[0] as *const [u64; 8]) } {
                Ok(Some([flags, .., stack, _, _])) => (flags, stack),
                _ => return false,
            }
        }
        _ => return false,
    };
    stack != 0 || flags & SHARED == SHARED
}

/// Stacks that a thread's calls are served on: one for its ordinary code, one for handlers on an
/// alternate stack.
struct Stacks {
    /// Start addresses; 0 if not mapped yet.
    starts: [Cell<usize>; 2],
    /// Alternate stack that `stack_for` disabled: start and length.
    taken: Cell<(usize, usize)>,
}

thread_local! {
    /// Without a destructor, because threads end in many ways.
    static STACKS: Stacks =
        const { Stacks { starts: [Cell::new(0), Cell::new(0)], taken: Cell::new((0, 0)) } };
}

/// Returns the end of the stack to serve a call on, for a caller whose stack pointer is `top`; none
/// if the caller's own stack is to be used. Separate stacks are needed because callers may have
/// small ones.
///
/// A handler leaves its alternate stack while its call is served here, and the kernel must not give
/// that stack to another handler. So the stack is disabled until the handler returns. If the
/// handler jumps out instead, the stack stays disabled until the program sets it again: we cannot
/// know whether it is still in use.
fn stack_for(top: usize, alternate: &mut libc::stack_t) -> Option<usize> {
    STACKS.with(|stacks| {
        let has = |(start, bytes): (usize, usize)| (start..start + bytes).contains(&top);
        let now = (alternate.ss_sp as usize, alternate.ss_size);
        let is_there = alternate.ss_flags & libc::SS_DISABLE == 0;
        let taken = stacks.taken.get();
        let is_alternate = if is_there { has(now) } else { has(taken) };
        if is_alternate && is_there {
            stacks.taken.set(now);
            alternate.ss_flags = libc::SS_DISABLE;
        }
        // A caller that already stands on one of them stays there: a handler interrupted a served
        // call.
        let is_used = |start: &Cell<usize>| start.get() != 0 && has((start.get(), STACK_BYTES));
        if stacks.starts.iter().any(is_used) {
            return None;
        }
        // Otherwise the stacks are free: a previous user has left, by a jump at the latest.
        let start = &stacks.starts[usize::from(is_alternate)];
        if start.get() == 0 {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let arguments = [0, STACK_BYTES as c_long, protection.into(), flags.into(), -1, 0];
            // SAFETY: requests new memory.
            start.set(unsafe { kernel::call(libc::SYS_mmap, arguments) }.ok()?);
        }
        Some(start.get() + STACK_BYTES)
    })
}

/// Unmaps this thread's stacks when the thread ends by returning.
pub fn thread_ended() {
    STACKS.with(|stacks| {
        for start in stacks.starts.iter().map(|start| start.replace(0)).filter(|&start| start != 0)
        {
            let arguments = [start as c_long, STACK_BYTES as c_long];
            // SAFETY: the mapping is ours, and no code runs on it.
            let _ = unsafe { kernel::call(libc::SYS_munmap, arguments) };
        }
    });
}

/// Written by the handler at the stack pointer where `__cairn_serve` begins: the caller's return
/// address and stack pointer.
#[repr(C)]
struct Place {
    from: usize,
    top: usize,
}

/// System call to be served, as saved by `__cairn_serve` on the stack.
#[repr(C)]
struct Frame {
    flags: usize,
    rbp: usize,
    r9: usize,
    r8: usize,
    r10: usize,
    rdx: usize,
    rsi: usize,
    rdi: usize,
    /// Number of the call, later its result.
    rax: usize,
    place: Place,
}

/// Components of the processor state, in XSAVE's numbering, that functions may change besides the
/// integer registers, and the size of the area that saves them. Matrix registers are left out: no
/// function of ours uses them.
static STATE_PARTS: AtomicU64 = AtomicU64::new(0);
static STATE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Determines the components and the size of the state to save. Returns false if there is no XSAVE.
fn measure_state() -> bool {
    /// x87, SSE, AVX and the three components of AVX-512. Others, such as AMX's, are not touched.
    const USED: u64 = 0b1110_0111;
    const LEAF: u32 = 0xd;
    const HAS_XSAVE: u32 = 1 << 27;
    // Every save area begins with the legacy region and a header.
    const LEAST: u64 = 512 + 64;
    if __cpuid(1).ecx & HAS_XSAVE == 0 {
        return false;
    }
    let (low, high): (u32, u32);
    // SAFETY: reads a register that programs may read if this CPUID bit is set.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    let parts = (u64::from(high) << 32 | u64::from(low)) & USED;
    let end = |part: u32| {
        let found = __cpuid_count(LEAF, part);
        u64::from(found.ebx) + u64::from(found.eax)
    };
    let bytes = (2..8).filter(|part| parts & 1 << part != 0).map(end).max().unwrap_or(0);
    STATE_BYTES.store(bytes.max(LEAST), Ordering::Relaxed);
    STATE_PARTS.store(parts, Ordering::Relaxed);
    true
}

// Like a system call, keeps all registers but three. `rbp` points to the `Frame` meanwhile.
core::arch::global_asm!(
    ".pushsection .text.__cairn_serve, \"ax\"",
    ".globl __cairn_serve",
    ".hidden __cairn_serve",
    ".type __cairn_serve, @function",
    "__cairn_serve:",
    ".cfi_startproc",
    // The unwinder stops here: only the frame says where the caller is.
    ".cfi_undefined rip",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r10",
    "push r8",
    "push r9",
    "push rbp",
    "pushfq",
    "mov rbp, rsp",
    "cld",
    "sub rsp, [rip + {bytes}]",
    "and rsp, -64",
    // Zeroes the XSAVE header, most of which `xsave64` does not write.
    "xor eax, eax",
    "mov [rsp + 512], rax",
    "mov [rsp + 520], rax",
    "mov [rsp + 528], rax",
    "mov [rsp + 536], rax",
    "mov [rsp + 544], rax",
    "mov [rsp + 552], rax",
    "mov [rsp + 560], rax",
    "mov [rsp + 568], rax",
    "mov eax, [rip + {parts}]",
    "xor edx, edx",
    "xsave64 [rsp]",
    "mov rdi, rbp",
    "call {serve}",
    "mov eax, [rip + {parts}]",
    "xor edx, edx",
    "xrstor64 [rsp]",
    "mov rsp, rbp",
    "popfq",
    "pop rbp",
    "pop r9",
    "pop r8",
    "pop r10",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rax",
    "pop rcx",
    "pop rsp",
    "jmp rcx",
    ".cfi_endproc",
    ".popsection",
    bytes = sym STATE_BYTES,
    parts = sym STATE_PARTS,
    serve = sym serve,
);

unsafe extern "C" {
    static __cairn_serve: u8;
}

// May unwind: a thread that is cancelled during the call unwinds from here up to `__cairn_serve`.
extern "C-unwind" fn serve(frame: &mut Frame) {
    let before = errno();
    let number = frame.rax as c_long;
    let words = [frame.rdi, frame.rsi, frame.rdx, frame.r10, frame.r8, frame.r9];
    // SAFETY: the caller's own arguments.
    frame.rax = unsafe { answer_to(number, words, frame.place.from) } as usize;
    set_errno(before);
}

/// Returns the result that the kernel would give: a value, or a negated errno.
unsafe fn answer_to(number: c_long, words: [usize; 6], from: usize) -> c_long {
    // SAFETY: the caller's own arguments, in the whole block.
    unsafe {
        match number {
            libc::SYS_rt_sigprocmask => return change_mask(words),
            libc::SYS_rt_sigaction => return change_action(words),
            _ if gate::is_inside() || LINKER.range().contains(&from) => return pass(number, words),
            _ => {}
        }
        let answer = syscalls::serve_instruction(number, words);
        if answer::is_counting() {
            let outcome = if answer.is_some() { Outcome::Served } else { Outcome::Passed };
            answer::count(BY_INSTRUCTION, outcome);
        }
        answer.unwrap_or_else(|| pass(number, words))
    }
}

/// Makes the call in the kernel and returns its result.
unsafe fn pass(number: c_long, words: [usize; 6]) -> c_long {
    // SAFETY: promised by the caller.
    match unsafe { kernel::call(number, words.map(|word| word as c_long)) } {
        Ok(result) => result as c_long,
        Err(failed) => -c_long::from(failed.0),
    }
}

/// As `rt_sigprocmask`, except that SIGSYS stays unblocked.
unsafe fn change_mask(words: [usize; 6]) -> c_long {
    let [how, new, old, bytes, ..] = words;
    // SAFETY: the caller passes null, a set, or a bad address.
    match unsafe { answer::given(new as *const u64) } {
        Ok(Some(set)) => {
            let set = set & !OF_SIGSYS;
            // SAFETY: as above.
            unsafe {
                pass(libc::SYS_rt_sigprocmask, [how, &raw const set as usize, old, bytes, 0, 0])
            }
        }
        // SAFETY: as above.
        _ => unsafe { pass(libc::SYS_rt_sigprocmask, words) },
    }
}

/// As `rt_sigaction`, through `signals.rs`.
unsafe fn change_action(words: [usize; 6]) -> c_long {
    /// Signals that the C library reserves for itself and that nobody may change.
    const ITS_OWN: [usize; 2] = [32, 33];
    let [signal, new, old, bytes, ..] = words;
    // SAFETY: the caller passes null, an action in the kernel's layout, or a bad address.
    match unsafe { answer::given(new as *const KernelAction) } {
        Ok(action) if bytes == size_of::<u64>() && !ITS_OWN.contains(&signal) => {
            // SAFETY: as above.
            unsafe { signals::change_by_number(signal as c_int, action, old as *mut KernelAction) }
        }
        // SAFETY: as above.
        _ => unsafe { pass(libc::SYS_rt_sigaction, words) },
    }
}

/// Called by `dlsym` below. Returns the address of the C library's. A library whose function is
/// looked up is loaded by now, and about to be called, so scan it here.
#[cfg(has_naked_functions)]
extern "C" fn before_dlsym(library: *mut c_void, _: *const c_char) -> *mut c_void {
    // Allocators look up the next `malloc` before they can allocate anything.
    if library != libc::RTLD_NEXT {
        look();
        crate::deep::reach();
    }
    crate::next::dlsym()
}

/// As `dlsym(3)`. The C library's function looks at its return address to find its caller, so this
/// one jumps to it instead of calling it.
#[cfg(has_naked_functions)]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(_library: *mut c_void, _name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before_dlsym,
    );
}
