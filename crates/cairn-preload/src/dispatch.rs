//! System calls that libraries make by instructions of their own are caught, and served like those through the C library: by Syscall
//! User Dispatch of the kernel (`prctl(2)`, Linux 5.11), on x86-64.
//!
//! The kernel lets through what comes from the C library's text, and what comes while the thread's selector allows it
//! (`cairn_device::dispatch`): our own. For anything else it raises SIGSYS, whose handler serves the call, or has the thread make it
//! by an instruction of ours, behind the handler's back, so that signal masks and stacks are those of the caller.
//! That makes each call of the kernel a little slower. So it is on only where it is needed: once a library is there that has such
//! instructions (`text.rs`). Libraries that come later are looked at when somebody asks for one of their functions.
//!
//! Must stay true: each thread is armed before it runs anything of the application, and a child after a fork; SIGSYS is never
//! blocked; an application's own handler of it gets what is not ours.
//! Not caught: text that is made at run time; calls of a library's constructors that comes later; a thread that was made by `clone` with
//! a stack of its own. Not on: beside a sanitizer, in programs linked with the archive, where the kernel refuses it, on other
//! processors.

mod text;

use core::cell::Cell;
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cairn_posix::calls::{BY_INSTRUCTION, Outcome};
use cairn_posix::configuration::{self, Configuration};
use cairn_posix::selector::{self, ALLOW};
use cairn_posix::{gate, kernel, unserved};
use libc::{c_char, c_long, dl_phdr_info, siginfo_t, size_t, ucontext_t};

use crate::answer::{errno, set_errno};
use crate::signals::KernelAction;
use crate::{answer, sanitizers, signals, syscalls};

/// Of `linux/prctl.h` and `asm-generic/siginfo.h`.
const PR_SET_SYSCALL_USER_DISPATCH: c_long = 59;
const PR_SYS_DISPATCH_ON: c_long = 1;
const SYS_USER_DISPATCH: c_int = 2;
/// Bytes below the stack pointer that belong to whoever runs.
const RED_ZONE: usize = 128;
/// Bytes of the instruction.
const ENTRY_BYTES: usize = 2;
/// For what is served: handlers may have been given a small stack.
const STACK_BYTES: usize = 256 << 10;
/// Bytes of a library's path that are told.
const PATH_BYTES: usize = 256;
/// Its bit in a set of signals.
const OF_SIGSYS: u64 = 1 << (libc::SIGSYS - 1);

/// It is not to be turned on.
static IS_DECLINED: AtomicBool = AtomicBool::new(false);
/// Text of the C library and of the dynamic linker.
static LIBRARY: Text = Text::nowhere();
static LINKER: Text = Text::nowhere();
/// Where the C library returns to from a handler.
static RESTORER: AtomicUsize = AtomicUsize::new(0);
/// How often libraries had come and gone when they were looked at.
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

/// At the start of the process, when the libraries are there that it needs. Leaves errno as it is.
pub fn begin() {
    let is_impossible = crate::next::is_linked() || sanitizers::is_there();
    if is_impossible || configuration::get().is_none_or(Configuration::passes_raw_calls) {
        IS_DECLINED.store(true, Ordering::Relaxed);
        return;
    }
    look();
    if cfg!(not(has_naked_functions)) {
        // Nobody says when a library comes.
        turn_on();
    }
}

/// Turns it on if a library is there that was not before, and needs it.
fn look() {
    let is_settled = selector::is_on() || IS_DECLINED.load(Ordering::Relaxed);
    if is_settled || configuration::get().is_none() {
        return;
    }
    let before = errno();
    let mut found = Found {
        // The dynamic linker is not to be asked while it goes through its list.
        library: library!(syscall: fn(c_long) -> c_long) as *const () as usize,
        changes: 0,
        calls: false,
        path: [0; PATH_BYTES],
    };
    // SAFETY: the function has the type that is demanded, and its data are those that it takes.
    unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut found).cast()) };
    LOOKED_AT.store(found.changes, Ordering::Relaxed);
    if found.calls && !turn_on() {
        unserved::note_uncaught(CStr::from_bytes_until_nul(&found.path).unwrap_or_default());
    }
    set_errno(before);
}

struct Found {
    /// Address of a function of the C library that enters the kernel.
    library: usize,
    changes: u64,
    /// Some library makes calls of its own.
    calls: bool,
    /// Which, with zeros behind it.
    path: [u8; PATH_BYTES],
}

/// Called for each library; not 0: no other needs to be looked at.
unsafe extern "C" fn look_at(object: *mut dl_phdr_info, _: size_t, found: *mut c_void) -> c_int {
    // SAFETY: the C library passes a valid description; the data are those that `look` passes.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<Found>()) };
    found.changes = object.dlpi_adds.wrapping_mul(1 << 32).wrapping_add(object.dlpi_subs);
    if found.changes == LOOKED_AT.load(Ordering::Relaxed) {
        return 1;
    }
    // SAFETY: takes plain numbers.
    let [linker, kernel] =
        [libc::AT_BASE, libc::AT_SYSINFO_EHDR].map(|what| unsafe { libc::getauxval(what) });
    for range in texts(object) {
        let has = |address: usize| range.contains(&address);
        if has(found.library) {
            LIBRARY.set(&range);
        } else if object.dlpi_addr == linker {
            LINKER.set(&range);
        } else if !has(look_at as *const () as usize)
            && object.dlpi_addr != kernel
            && is_new(object, &range)
        {
            // SAFETY: the dynamic linker has mapped it to be read, and does not unmap it while we are called.
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

fn path(object: &dl_phdr_info) -> &CStr {
    // SAFETY: the C library passes null or a terminated name.
    unsafe { object.dlpi_name.as_ref().map_or(c"", |name| CStr::from_ptr(name)) }
}

/// What was looked at, each as a hash of what it is; 0 is free.
static SEEN: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];
/// Places that are looked at for one.
const PROBES_MAX: usize = 32;

/// Whether this text of a library was not looked at before, or is not known to have been.
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

/// Where the text of a library is that can be read.
fn texts(object: &dl_phdr_info) -> impl Iterator<Item = Range<usize>> {
    const TEXT: u32 = libc::PF_X | libc::PF_R;
    let count = object.dlpi_phnum.into();
    // SAFETY: the C library passes so many.
    let headers = unsafe { core::slice::from_raw_parts(object.dlpi_phdr, count) };
    let base = object.dlpi_addr as usize;
    let is_text = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & TEXT == TEXT
    };
    headers.iter().filter(is_text).map(move |header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.wrapping_add(header.p_memsz as usize)
    })
}

/// Arms every thread of this process. False if the kernel does not let us: it stays as it is then.
fn turn_on() -> bool {
    if selector::is_on() {
        return true;
    }
    if LIBRARY.range().is_empty() {
        return false;
    }
    selector::set_on(true);
    signals::watch(libc::SIGSYS, |_| true);
    signals::let_through();
    RESTORER.store(restorer(), Ordering::Relaxed);
    if RESTORER.load(Ordering::Relaxed) == 0 || !arm() {
        selector::set_on(false);
        IS_DECLINED.store(true, Ordering::Relaxed);
        return false;
    }
    arm_others();
    true
}

/// Where the C library has handlers of SIGSYS return to; 0 if that is unknown.
fn restorer() -> usize {
    // As the kernel has it: the handler, flags, where it returns to, the signals blocked meanwhile.
    let mut action = [0_usize; 4];
    let arguments = [libc::SIGSYS.into(), 0, action.as_mut_ptr() as c_long, 8];
    // SAFETY: room for an action.
    match unsafe { kernel::call(libc::SYS_rt_sigaction, arguments) } {
        Ok(_) if LIBRARY.range().contains(&action[2]) => action[2],
        _ => 0,
    }
}

/// Arms this thread, if that is on; false if the kernel refuses. Leaves errno as it is.
pub fn arm() -> bool {
    if !selector::is_on() {
        return true;
    }
    let set = OF_SIGSYS;
    let unblock = [libc::SIG_UNBLOCK.into(), (&raw const set) as c_long, 0, 8];
    let Range { start, end } = LIBRARY.range();
    let selector = selector::selector() as c_long;
    let length = (end - start) as c_long;
    let arguments =
        [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start as c_long, length, selector];
    // SAFETY: the set is one of signals; the selector lives as long as the thread.
    let is_armed = unsafe {
        kernel::call(libc::SYS_rt_sigprocmask, unblock).is_ok()
            && kernel::call(libc::SYS_prctl, arguments).is_ok()
    };
    selector::set_armed(is_armed);
    is_armed
}

/// In a child after a fork, which the kernel has disarmed.
pub fn in_child() {
    if selector::is_on() {
        selector::set_armed(false);
        arm();
    }
}

/// Has the other threads arm themselves: they get SIGSYS from this process.
fn arm_others() {
    let process = kernel::getpid();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
    let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    for thread in numbers.filter(|&thread: &c_long| thread != kernel::gettid().into()) {
        // SAFETY: passes no pointers. One that has ended needs nothing.
        let _ = unsafe {
            kernel::call(libc::SYS_tgkill, [process.into(), thread, libc::SIGSYS.into()])
        };
    }
}

/// SIGSYS was raised: whether that is for us alone.
///
/// # Safety
/// `info` and `context` are what the kernel passes to a handler.
pub unsafe fn take(info: &siginfo_t, context: *mut c_void) -> bool {
    if !selector::is_on() {
        return false;
    }
    if info.si_code == SYS_USER_DISPATCH {
        // SAFETY: promised by the caller.
        unsafe { serve(&mut *context.cast::<ucontext_t>()) };
        return true;
    }
    // SAFETY: of a signal that a process sent it has the sender.
    let is_own =
        info.si_code == libc::SI_TKILL && unsafe { info.si_pid() } == kernel::getpid() as i32;
    if is_own && !selector::is_armed() {
        arm();
        return true;
    }
    false
}

/// Registers of the caller, as the kernel numbers them for calls.
const ARGUMENTS: [c_int; 6] =
    [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];

/// Serves the call that a thread was about to make when it was stopped in `context`.
unsafe fn serve(context: &mut ucontext_t) {
    let before = errno();
    let registers = &context.uc_mcontext.gregs;
    let words = ARGUMENTS.map(|register| registers[register as usize] as usize);
    let number = registers[libc::REG_RAX as usize];
    let from = registers[libc::REG_RIP as usize] as usize;
    let is_linker = LINKER.range().contains(&from);
    match number {
        // The handler's context is where the stack pointer is: only the C library's own instruction leaves it like that.
        libc::SYS_rt_sigreturn => {
            let restorer = RESTORER.load(Ordering::Relaxed);
            context.uc_mcontext.gregs[libc::REG_RIP as usize] = restorer as i64;
        }
        libc::SYS_rt_sigprocmask => {
            // SAFETY: the caller's own arguments.
            let result = unsafe { change_mask(context, words) };
            context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
        }
        libc::SYS_rt_sigaction => {
            // SAFETY: the caller's own arguments.
            let result = unsafe { change_action(words) };
            context.uc_mcontext.gregs[libc::REG_RAX as usize] = result;
        }
        _ if gate::is_inside() || is_linker => make_outside(context),
        // A child that begins on another stack does not find there how to go on from an instruction of ours.
        libc::SYS_clone if words[1] != 0 => make_in_place(context),
        _ => {
            // SAFETY: the caller's own arguments.
            match unsafe { serve_on_stack(context, number, words) } {
                Some(result) => context.uc_mcontext.gregs[libc::REG_RAX as usize] = result,
                None => make_outside(context),
            }
        }
    }
    set_errno(before);
}

/// Has the thread make the call by the instruction where it stands; it is not armed again before it makes a call of ours.
fn make_in_place(context: &mut ucontext_t) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] -= ENTRY_BYTES as i64;
    selector::select(ALLOW);
}

/// Has the thread make the call by an instruction of ours when the handler has returned.
fn make_outside(context: &mut ucontext_t) {
    let registers = &mut context.uc_mcontext.gregs;
    let from = registers[libc::REG_RIP as usize];
    let stack = registers[libc::REG_RSP as usize] as usize - RED_ZONE - 2 * size_of::<usize>();
    let words = stack as *mut usize;
    // SAFETY: the stack of a thread that stands still, below all that it uses.
    unsafe {
        words.write(selector::selector() as usize);
        words.add(1).write(from as usize);
    }
    registers[libc::REG_RSP as usize] = stack as i64;
    registers[libc::REG_RIP as usize] = &raw const __cairn_enter_kernel as i64;
    selector::select(ALLOW);
}

// Makes a call with all registers but two as they are: those that the kernel changes.
core::arch::global_asm!(
    ".pushsection .text.__cairn_enter_kernel, \"ax\"",
    ".globl __cairn_enter_kernel",
    ".hidden __cairn_enter_kernel",
    ".type __cairn_enter_kernel, @function",
    "__cairn_enter_kernel:",
    "syscall",
    "pop rcx",
    "mov byte ptr [rcx], {block}",
    "pop rcx",
    "lea rsp, [rsp + {red_zone}]",
    "jmp rcx",
    ".popsection",
    block = const selector::BLOCK,
    red_zone = const RED_ZONE,
);

unsafe extern "C" {
    static __cairn_enter_kernel: u8;
}

/// As `rt_sigprocmask`, for a thread that is in a handler: what it blocks is restored from `context` afterwards.
unsafe fn change_mask(context: &mut ucontext_t, [how, new, old, bytes, ..]: [usize; 6]) -> i64 {
    const BAD_ADDRESS: i64 = -(libc::EFAULT as i64);
    let mask = (&raw mut context.uc_sigmask).cast::<u64>();
    if bytes != size_of::<u64>() {
        return -i64::from(libc::EINVAL);
    }
    // SAFETY: the context's set begins with the signals that the kernel has; the caller passes null, a set, or a bad address.
    let (before, new) = unsafe { (mask.read(), answer::given(new as *const u64)) };
    let after = match new {
        Err(_) => return BAD_ADDRESS,
        Ok(None) => before,
        Ok(Some(set)) => match how as c_int {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return -i64::from(libc::EINVAL),
        },
    };
    // SAFETY: as above.
    let is_told = old == 0 || unsafe { answer::deliver(old as *mut u64, before) }.is_ok();
    // SAFETY: as above.
    unsafe { mask.write(after & !OF_SIGSYS) };
    if is_told { 0 } else { BAD_ADDRESS }
}

/// As `rt_sigaction`, but that no handler blocks SIGSYS, and that one of SIGSYS is told to `signals.rs`.
unsafe fn change_action([signal, new, old, bytes, ..]: [usize; 6]) -> i64 {
    const MASK: usize = 3;
    // SAFETY: the caller passes null, an action, or a bad address.
    let Ok(mut action) = (unsafe { answer::given(new as *const KernelAction) }) else {
        return -i64::from(libc::EFAULT);
    };
    if let Some(action) = &mut action {
        action[MASK] &= !OF_SIGSYS as usize;
    }
    if signal as c_int == libc::SIGSYS {
        // SAFETY: as above.
        return unsafe {
            signals::change_by_number(libc::SIGSYS, action, old as *mut KernelAction)
        };
    }
    let new = action.as_ref().map_or(ptr::null(), ptr::from_ref);
    let arguments = [signal as c_long, new as c_long, old as c_long, bytes as c_long];
    // SAFETY: the caller's own arguments, but for a copy of the action.
    match unsafe { kernel::call(libc::SYS_rt_sigaction, arguments) } {
        Ok(_) => 0,
        Err(failed) => -i64::from(failed.0),
    }
}

/// Memory that calls are served on.
struct Stack(Cell<*mut u8>);

impl Stack {
    /// Where it ends; none if there is no memory.
    fn end(&self) -> Option<usize> {
        if self.0.get().is_null() {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let arguments = [0, STACK_BYTES as c_long, protection.into(), flags.into(), -1, 0];
            // SAFETY: asks for new memory.
            let start = unsafe { kernel::call(libc::SYS_mmap, arguments) }.ok()?;
            self.0.set(start as *mut u8);
        }
        Some(self.0.get() as usize + STACK_BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.0.get().is_null() {
            // SAFETY: it is ours, and the thread, which ends, does not stand on it.
            let _ = unsafe {
                kernel::call(libc::SYS_munmap, [self.0.get() as c_long, STACK_BYTES as c_long])
            };
        }
    }
}

thread_local! {
    static STACK: Stack = const { Stack(Cell::new(ptr::null_mut())) };
}

/// A call to be served, and the answer.
struct Errand {
    number: c_long,
    words: [usize; 6],
    result: Option<c_long>,
}

extern "C" fn run(errand: *mut Errand) {
    // SAFETY: whoever calls this passes its own, and waits.
    let errand = unsafe { &mut *errand };
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    /// Of `pthread.h`.
    const PTHREAD_CANCEL_DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: room for a state. A call by an instruction is no point where a thread ends.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    // SAFETY: promised by whoever made the errand.
    errand.result = unsafe { syscalls::serve_instruction(errand.number, errand.words) };
    // SAFETY: as above; the state before is a valid one.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
}

/// The answer of whoever serves such calls; none if nobody does.
unsafe fn serve_on_stack(
    context: &ucontext_t,
    number: c_long,
    words: [usize; 6],
) -> Option<c_long> {
    let mut errand = Errand { number, words, result: None };
    let caller = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    // If the caller stands on it, it goes on from there: a handler that was run in the midst of a call.
    let end = STACK.try_with(Stack::end).ok().flatten();
    let end = end.filter(|end| !(end - STACK_BYTES..*end).contains(&caller));
    match end {
        // SAFETY: nobody uses it: whoever did has left it, by a jump if not otherwise.
        Some(end) => unsafe {
            core::arch::asm!(
                "xchg rsp, r12",
                "call {run}",
                "mov rsp, r12",
                run = sym run,
                inout("r12") end => _,
                in("rdi") &raw mut errand,
                clobber_abi("C"),
            );
        },
        None => run(&raw mut errand),
    }
    let outcome = if errand.result.is_some() { Outcome::Served } else { Outcome::Passed };
    if answer::is_counting() {
        answer::count(BY_INSTRUCTION, outcome);
    }
    errand.result
}

/// Asked by `dlsym`: where the C library's is. A library that somebody asks for a function was loaded by now, and is about to be called.
#[cfg(has_naked_functions)]
extern "C" fn before_dlsym(library: *mut c_void, _: *const c_char) -> *mut c_void {
    if ![libc::RTLD_DEFAULT, libc::RTLD_NEXT].contains(&library) {
        look();
    }
    crate::next::dlsym()
}

/// As `dlsym(3)`, which looks at where it was called from: so it must be this very call that reaches it.
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
