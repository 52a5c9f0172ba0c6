//! Addresses that the application passes, and the few instructions that may fault at them.
//!
//! What no program can have, in the first page and above what processors give a process, is told by
//! the number. What lies between is touched: either by the copy itself, where that is in assembly
//! (`copy.rs`, `fold.rs`), or, before another copy, a byte in each page. Each such place of the
//! code stands in a table with where it goes on after a fault; the interposer's handler asks
//! [`recover`]. So a good address costs nothing, or one access a page.
//! Invariant: no fault of another instruction is forgiven, whatever address it is.
//! Does not install a handler; without one a bad address ends the process. Memory that another
//! thread unmaps after it was looked at is such an address.

use core::arch::{asm, global_asm};
use core::ffi::c_void;

/// The kernel maps nothing below (`vm.mmap_min_addr`).
const LOWEST: usize = 4096;
/// Processors give a process at most 56 bits.
const END: usize = 1 << 56;
/// Memory is mapped by pages at least as long.
const PAGE_BYTES: usize = 4096;
/// One place of the code at which faults are forgiven. Each number is the distance from itself to
/// the address meant.
#[repr(C)]
struct Forgiven {
    first: i32,
    end: i32,
    goes_on: i32,
}

/// An entry of the table for the instructions from label 2 to before label 8 of the same assembly,
/// which go on at label 9.
macro_rules! forgive {
    () => {
        concat!(
            ".pushsection cairn_forgiven, \"aR\", %progbits\n",
            ".p2align 2\n.long 2b - .\n.long 8b - .\n.long 9b - .\n",
            ".popsection"
        )
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use forgive;

// Functions without a stack frame. Storing a byte as it is and copying (target, source, length)
// return 0, or 1 after a fault; the length of a string is -1 then. The table has the place where
// they begin and end.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.cairn_address, \"ax\", @progbits",
    ".globl cairn_address_write, cairn_address_copy, cairn_address_length",
    ".hidden cairn_address_write, cairn_address_copy, cairn_address_length",
    ".hidden __start_cairn_forgiven, __stop_cairn_forgiven",
    ".cfi_startproc",
    ".p2align 4",
    "2:",
    "cairn_address_write:",
    "lock or byte ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    // Short: two vectors or words that may overlap.
    ".p2align 4",
    "cairn_address_copy:",
    "cmp rdx, 16",
    "jb 4f",
    "cmp rdx, 32",
    "ja 3f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    // Long: lines, and a last one that may overlap.
    ".p2align 4",
    "3: lea r8, [rdi + rdx - 32]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "3: movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "add rsi, 32",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rdi, 32",
    "cmp rdi, r8",
    "jb 3b",
    "movups [r8], xmm2",
    "movups [r8 + 16], xmm3",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    "4: cmp edx, 8",
    "jb 5f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "5: cmp edx, 4",
    "jb 6f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "6: test edx, edx",
    "jz 7f",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec edx",
    "jmp 6b",
    "7: xor eax, eax",
    "ret",
    "8:",
    "9: mov eax, 1",
    "ret",
    forgive!(),
    // Aligned vectors do not reach into the next page.
    ".p2align 4",
    "2:",
    "cairn_address_length:",
    "mov rax, rdi",
    "mov ecx, edi",
    "and rax, -16",
    "and ecx, 15",
    "pxor xmm0, xmm0",
    "movdqa xmm1, [rax]",
    "pcmpeqb xmm1, xmm0",
    "pmovmskb edx, xmm1",
    "shr edx, cl",
    "test edx, edx",
    "jnz 4f",
    "3: add rax, 16",
    "movdqa xmm1, [rax]",
    "pcmpeqb xmm1, xmm0",
    "pmovmskb edx, xmm1",
    "test edx, edx",
    "jz 3b",
    "bsf edx, edx",
    "sub rax, rdi",
    "add rax, rdx",
    "ret",
    "4: bsf eax, edx",
    "ret",
    "8:",
    "9: mov rax, -1",
    "ret",
    forgive!(),
    ".cfi_endproc",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.cairn_address, \"ax\", %progbits",
    ".globl cairn_address_write, cairn_address_copy, cairn_address_length",
    ".hidden cairn_address_write, cairn_address_copy, cairn_address_length",
    ".hidden __start_cairn_forgiven, __stop_cairn_forgiven",
    ".cfi_startproc",
    ".p2align 4",
    "2:",
    "cairn_address_write:",
    "3: ldxrb w1, [x0]",
    "stxrb w2, w1, [x0]",
    "cbnz w2, 3b",
    "mov w0, #0",
    "ret",
    "cairn_address_copy:",
    "3: cmp x2, #8",
    "b.lo 4f",
    "ldr x3, [x1], #8",
    "str x3, [x0], #8",
    "sub x2, x2, #8",
    "b 3b",
    "4: cbz x2, 5f",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "sub x2, x2, #1",
    "b 4b",
    "5: mov w0, #0",
    "ret",
    "8:",
    "9: mov w0, #1",
    "ret",
    forgive!(),
    "2:",
    "cairn_address_length:",
    "mov x1, x0",
    "3: ldrb w2, [x1], #1",
    "cbnz w2, 3b",
    "sub x0, x1, x0",
    "sub x0, x0, #1",
    "ret",
    "8:",
    "9: mov x0, #-1",
    "ret",
    forgive!(),
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    /// Of the linker: the table.
    #[link_name = "__start_cairn_forgiven"]
    static TABLE_START: [Forgiven; 0];
    #[link_name = "__stop_cairn_forgiven"]
    static TABLE_END: [Forgiven; 0];
    fn cairn_address_write(at: *mut c_void) -> u32;
    fn cairn_address_copy(target: *mut c_void, source: *const c_void, length: usize) -> u32;
    fn cairn_address_length(start: *const c_void) -> usize;
}

/// The address that is meant by a number of the table.
fn meant(distance: &i32) -> usize {
    core::ptr::from_ref(distance).addr().wrapping_add_signed(*distance as isize)
}

/// Where the code goes on after a fault of the instruction at `at`, if that is forgiven.
fn goes_on(at: usize) -> Option<usize> {
    let (start, end) = (&raw const TABLE_START, &raw const TABLE_END);
    let count = (end.addr() - start.addr()) / size_of::<Forgiven>();
    // SAFETY: all that the linker put between its two symbols are entries.
    let table = unsafe { core::slice::from_raw_parts(start.cast::<Forgiven>(), count) };
    let place = table.iter().find(|place| (meant(&place.first)..meant(&place.end)).contains(&at));
    place.map(|place| meant(&place.goes_on))
}

/// Called by a handler of SIGSEGV and SIGBUS with what the kernel passed it: whether the fault is
/// one at an address of the application, which the code then finds out where it goes on.
///
/// # Safety
/// `context` is the context of a signal that is being handled by this thread.
pub unsafe fn recover(context: *mut c_void) -> bool {
    // SAFETY: promised by the caller.
    let context = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let at = &mut context.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let at = &mut context.pc;
    let Some(next) = goes_on(*at as usize) else { return false };
    *at = next as _;
    true
}

/// Whether the kernel takes an address before it looks what is there, if anything is asked of it at
/// all.
#[inline]
pub fn is_passable<T>(address: *const T) -> bool {
    (address as usize) < END
}

/// Whether a process can have this address.
#[inline]
pub fn is_possible<T>(address: *const T) -> bool {
    (LOWEST..END).contains(&(address as usize))
}

/// The byte at an address, if there is one.
#[inline]
pub fn byte(at: *const u8) -> Option<u8> {
    if !is_possible(at) {
        return None;
    }
    let mut found = u32::MAX;
    // SAFETY: reads one byte, or leaves what was in the register.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "2: movzx {found:e}, byte ptr [{at}]",
            "8:",
            "9:",
            forgive!(),
            at = in(reg) at,
            found = inout(reg) found,
            options(nostack, preserves_flags, readonly),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "2: ldrb {found:w}, [{at}]",
            "8:",
            "9:",
            forgive!(),
            at = in(reg) at,
            found = inout(reg) found,
            options(nostack, preserves_flags, readonly),
        );
    }
    u8::try_from(found).ok()
}

/// Length of the string at an address, if it ends before the memory does.
#[inline]
pub fn length_of_string(start: *const u8) -> Option<usize> {
    // SAFETY: reads up to the end of the string, but not in pages behind it, or says that it
    // cannot.
    let length = unsafe { cairn_address_length(start.cast()) };
    (length != usize::MAX).then_some(length)
}

#[inline]
fn can_read(at: usize) -> bool {
    byte(at as *const u8).is_some()
}

#[inline]
fn can_clear(at: usize) -> bool {
    if !is_possible(at as *const u8) {
        return false;
    }
    let mut failed = 1_u32;
    // SAFETY: the byte is to be overwritten, as its owner said; or what was in the register stays.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!(
            "2: mov byte ptr [{at}], 0",
            "xor {failed:e}, {failed:e}",
            "8:",
            "9:",
            forgive!(),
            at = in(reg) at,
            failed = inout(reg) failed,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        asm!(
            "2: strb wzr, [{at}]",
            "mov {failed:w}, #0",
            "8:",
            "9:",
            forgive!(),
            at = in(reg) at,
            failed = inout(reg) failed,
            options(nostack, preserves_flags),
        );
    }
    failed == 0
}

#[inline]
fn can_write(at: usize) -> bool {
    // SAFETY: leaves the byte as it is, or says that it cannot.
    is_possible(at as *const u8) && unsafe { cairn_address_write(at as *mut c_void) } == 0
}

/// Bytes from an address to the end of its page.
#[inline]
pub fn bytes_in_page<T>(address: *const T) -> usize {
    PAGE_BYTES - address.addr() % PAGE_BYTES
}

/// How many of `length` bytes from `address` on are in pages that `can` touch.
#[inline]
fn reachable(address: usize, length: usize, can: impl Fn(usize) -> bool) -> usize {
    let in_page = bytes_in_page(address as *const u8);
    if length == 0 || !can(address) {
        return 0;
    }
    if length <= in_page {
        length
    } else {
        in_page + further(address + in_page, length - in_page, can)
    }
}

/// The same from the start of a page on.
fn further(address: usize, length: usize, can: impl Fn(usize) -> bool) -> usize {
    let mut pages = (0..length).step_by(PAGE_BYTES);
    pages.find(|at| !can(address + at)).unwrap_or(length)
}

/// How many of `length` bytes at `address` the process may read.
#[inline]
pub fn readable<T>(address: *const T, length: usize) -> usize {
    reachable(address as usize, length, can_read)
}

/// How many of `length` bytes at `address` the process may write, all of which it has given to be
/// overwritten. Some of them become zeros.
#[inline]
pub fn overwritable<T>(address: *mut T, length: usize) -> usize {
    reachable(address as usize, length, can_clear)
}

/// How many of `length` bytes at `address` the process may write. They are as before.
#[inline]
pub fn writable<T>(address: *mut T, length: usize) -> usize {
    reachable(address as usize, length, can_write)
}

/// Copies bytes between memory of the application and ours. False: some of them are missing.
///
/// # Safety
/// As of `copy_nonoverlapping`, but for what is at the address of the application: that is found
/// out.
#[inline]
pub unsafe fn copy(target: *mut u8, source: *const u8, length: usize) -> bool {
    // SAFETY: promised by the caller.
    unsafe { cairn_address_copy(target.cast(), source.cast(), length) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_is_forgiven_at_the_instructions_that_look_and_nowhere_else() {
        // SAFETY: plain data, for which zero is a value.
        let mut context: libc::ucontext_t = unsafe { core::mem::zeroed() };
        let mut forgiven_at = |at: usize| {
            #[cfg(target_arch = "x86_64")]
            let place = &raw mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
            #[cfg(target_arch = "aarch64")]
            let place = &raw mut context.uc_mcontext.pc;
            // SAFETY: a part of the local.
            unsafe {
                *place = at as _;
                (recover((&raw mut context).cast()), *place as usize)
            }
        };
        let look = cairn_address_write as *const () as usize;
        let (is_ours, failed) = forgiven_at(look);
        assert!(is_ours && failed > look);
        assert_eq!(forgiven_at(failed - 1), (true, failed));
        let (is_ours, other) = forgiven_at(cairn_address_length as *const () as usize);
        assert!(is_ours && other != failed);
        for other in [0, look - 1, failed, recover as *const () as usize] {
            assert_eq!(forgiven_at(other), (false, other));
        }
    }
}
