//! Access to addresses that the application passes and that may be invalid.
//!
//! An address in the first page, or above the range that processors give a process, is invalid by
//! its number alone. Any other address is probed by touching it. Assembly copies (`copy.rs`,
//! `fold.rs`) touch it themselves. Before any other copy, one byte of each page is touched. A table
//! lists each instruction that may fault, with the address at which execution resumes after the
//! fault. The interposer's signal handler calls [`recover`]. So a valid address costs nothing, or
//! one access per page.
//!
//! Invariant: a fault of any other instruction is not forgiven, whatever its address.
//!
//! Does not install a handler: without one, a bad address ends the process. Memory that another
//! thread unmaps after the probe counts as a bad address.

use core::arch::{asm, global_asm};
use core::ffi::c_void;

/// Lowest address that the kernel maps (`vm.mmap_min_addr`).
const LOWEST: usize = 4096;
/// End of the address space: processors give a process at most 56 bits.
const END: usize = 1 << 56;
/// Size of the smallest page.
const PAGE_BYTES: usize = 4096;
/// A range of instructions whose faults are forgiven. Each field is a distance: its own address
/// plus its value is the address meant.
#[repr(C)]
struct FaultRange {
    first: i32,
    end: i32,
    goes_on: i32,
}

/// Table entry for the instructions from label 2 up to label 8 of the same assembly. After a fault
/// execution resumes at label 9.
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

// Functions without a stack frame. `cairn_address_write` writes a byte back unchanged, and
// `cairn_address_copy` takes (target, source, length). Both return 0, or 1 after a fault.
// `cairn_address_length` returns the length of a string, or -1 after a fault. The table covers all
// of their instructions.
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
    // Up to 32 bytes: two vectors or words that may overlap, or single bytes.
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
    // Longer: steps of 32 bytes, then a last step that may overlap.
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
    // An aligned vector never crosses into the next page.
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
    /// Start of the table. The linker defines both symbols.
    #[link_name = "__start_cairn_forgiven"]
    static TABLE_START: [FaultRange; 0];
    #[link_name = "__stop_cairn_forgiven"]
    static TABLE_END: [FaultRange; 0];
    fn cairn_address_write(at: *mut c_void) -> u32;
    fn cairn_address_copy(target: *mut c_void, source: *const c_void, length: usize) -> u32;
    fn cairn_address_length(start: *const c_void) -> usize;
}

/// Returns the address that a field of the table means.
fn meant(distance: &i32) -> usize {
    core::ptr::from_ref(distance).addr().wrapping_add_signed(*distance as isize)
}

/// Returns where execution resumes after a fault of the instruction at `at`; `None` if the fault is
/// not forgiven.
fn goes_on(at: usize) -> Option<usize> {
    let (start, end) = (&raw const TABLE_START, &raw const TABLE_END);
    let count = (end.addr() - start.addr()) / size_of::<FaultRange>();
    // SAFETY: the linker puts only entries between its two symbols.
    let table = unsafe { core::slice::from_raw_parts(start.cast::<FaultRange>(), count) };
    let place = table.iter().find(|place| (meant(&place.first)..meant(&place.end)).contains(&at));
    place.map(|place| meant(&place.goes_on))
}

/// Recovers from a fault at an address of the application. A handler of SIGSEGV and SIGBUS calls it
/// with the context that it got from the kernel. Returns whether the fault is forgiven: then the
/// thread resumes at the code that reports the failure. If not, the context is unchanged.
///
/// # Safety
/// `context` is the `ucontext_t` that the kernel gave to the handler.
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

/// Whether the address passes the kernel's range check. A call that uses the address makes this
/// check before it looks at the memory there.
#[inline]
pub fn passes_range_check<T>(address: *const T) -> bool {
    (address as usize) < END
}

/// Whether the address lies in the range that a process can have.
#[inline]
pub fn is_possible<T>(address: *const T) -> bool {
    (LOWEST..END).contains(&(address as usize))
}

/// Returns the byte at an address, or `None` if the address is not readable.
#[inline]
pub fn byte(at: *const u8) -> Option<u8> {
    if !is_possible(at) {
        return None;
    }
    let mut found = u32::MAX;
    // SAFETY: reads one byte; after a fault the register keeps its value.
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

/// Returns the length of the string at an address, or `None` if the readable memory ends before the
/// string does.
#[inline]
pub fn length_of_string(start: *const u8) -> Option<usize> {
    // SAFETY: reads up to the end of the string and never from a page behind it; a fault is
    // reported.
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
    // SAFETY: the owner gave the byte to be overwritten; after a fault the register keeps its
    // value.
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
    // SAFETY: leaves the byte unchanged; a fault is reported.
    is_possible(at as *const u8) && unsafe { cairn_address_write(at as *mut c_void) } == 0
}

/// Number of bytes from an address to the end of its page.
#[inline]
pub fn bytes_in_page<T>(address: *const T) -> usize {
    PAGE_BYTES - address.addr() % PAGE_BYTES
}

/// Number of bytes, up to `length` from `address` on, that lie in pages that `can` touch.
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

/// As `reachable`, for an address at the start of a page.
fn further(address: usize, length: usize, can: impl Fn(usize) -> bool) -> usize {
    let mut pages = (0..length).step_by(PAGE_BYTES);
    pages.find(|at| !can(address + at)).unwrap_or(length)
}

/// Number of bytes, up to `length` at `address`, that the process may read.
#[inline]
pub fn readable<T>(address: *const T, length: usize) -> usize {
    reachable(address as usize, length, can_read)
}

/// Number of bytes, up to `length` at `address`, that the process may write. The caller gives all
/// of them to be overwritten: some become zeros.
#[inline]
pub fn overwritable<T>(address: *mut T, length: usize) -> usize {
    reachable(address as usize, length, can_clear)
}

/// Number of bytes, up to `length` at `address`, that the process may write. Leaves them unchanged.
#[inline]
pub fn writable<T>(address: *mut T, length: usize) -> usize {
    reachable(address as usize, length, can_write)
}

/// Copies bytes between memory of the application and ours. Returns false if some of the
/// application's bytes are not accessible.
///
/// # Safety
/// As `copy_nonoverlapping`, except that the application's address may be invalid.
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
