//! Copies data into a tier while computing its checksum, and out of a tier again.
//!
//! Invariant: the checksum is of the bytes that were stored, even if another thread changes the
//! source during the copy. A bad address of the application yields an error, not a signal: on
//! x86-64 every access is an instruction whose faults are forgiven; on other processors a byte of
//! each page is probed before the copy.
//!
//! Does not decide where bytes go.

#[cfg(target_arch = "x86_64")]
use core::arch::asm;

#[cfg(target_arch = "x86_64")]
use crate::address::forgive;
use crate::fold::{self, Level};
use crate::{address, checksum};

/// Shorter copies use ordinary stores: the fence after streaming stores would cost more than they
/// gain.
#[cfg(target_arch = "x86_64")]
const STREAM_FROM: usize = 4 * 1024;

/// Shorter copies out of a tier do without wide vectors.
#[cfg(target_arch = "x86_64")]
const VECTORS_FROM: usize = 256;
/// From this length on a string instruction is faster than vectors.
#[cfg(target_arch = "x86_64")]
const STRING_FROM: usize = 2048;
/// From this length on the target is written past the caches. After so long a read only the end of
/// the data would still be in the cache. A program that reads less into the same buffer again and
/// again would lose more than the copy gains.
#[cfg(target_arch = "x86_64")]
const STREAM_OUT_FROM: usize = 8 << 20;

/// Copies `length` bytes and returns their raw checksum (`checksum::raw`). Returns `None` if some
/// cannot be read; the bytes before the first unreadable one may have been copied then.
///
/// # Safety
/// `target` is writable for `length` bytes and does not overlap `source`; no Rust reference to them
/// is alive. If `source` is readable memory, the caller may read it.
pub unsafe fn copy_crc(target: *mut u8, source: *const u8, length: usize) -> Option<u32> {
    if !address::is_possible(source) && length > 0 {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let level = fold::level();
        if level != Level::Portable {
            // SAFETY: the level was detected; the caller vouches for the ranges.
            return unsafe {
                if length >= STREAM_FROM && fold::streams_well() {
                    let sum = folded::<{ fold::STREAM }>(level, target, source, length);
                    // Streaming stores are ordered before the commit only by a fence.
                    core::arch::x86_64::_mm_sfence();
                    sum
                } else {
                    folded::<{ fold::STORE }>(level, target, source, length)
                }
            };
        }
    }
    if address::readable(source, length) < length {
        return None;
    }
    // SAFETY: the caller vouches for the target, and the source was probed.
    Some(unsafe { copy_portable(target, source, length) })
}

/// Copies `length` bytes without a checksum, for reading from a tier. Returns false if the target
/// cannot be written; the bytes before the first unwritable one may have been copied then.
///
/// # Safety
/// `source` is readable for `length` bytes and does not overlap `target`. If `target` is writable
/// memory, the caller may overwrite it, and no Rust reference to its bytes is alive.
#[inline]
pub unsafe fn copy_out(target: *mut u8, source: *const u8, length: usize) -> bool {
    if !address::is_possible(target) {
        return length == 0;
    }
    // SAFETY: the caller vouches for the ranges, and that the target's bytes may be overwritten.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        return match length {
            ..VECTORS_FROM => address::copy(target, source, length),
            STREAM_OUT_FROM.. if fold::streams_well() && fold::level() != Level::Portable => {
                copy_streaming(target, source, length)
            }
            // `malloc` places large buffers 16 bytes past a page boundary. There a string
            // instruction runs at half speed.
            STRING_FROM.. if target.addr() % 64 == 0 => copy_string(target, source, length),
            _ if fold::level() == Level::Portable => address::copy(target, source, length),
            _ => copy_by_vectors(target, source, length),
        };
        #[cfg(not(target_arch = "x86_64"))]
        {
            let is_there = address::overwritable(target, length) == length;
            if is_there {
                core::ptr::copy_nonoverlapping(source, target, length);
            }
            is_there
        }
    }
}

/// Prefetches bytes that will be needed soon, at most 4 KiB. A hint: any address is allowed.
#[inline]
pub fn prefetch(source: *const u8, length: usize) {
    /// A longer prefetch would evict the first bytes before they are used.
    const BYTES_MAX: usize = 4096;
    const LINE: usize = 64;
    for at in (0..length.min(BYTES_MAX)).step_by(LINE) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults, whatever the address.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(at).cast());
        }
    }
}

/// # Safety
/// As `copy_out`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_string(target: *mut u8, source: *const u8, length: usize) -> bool {
    let left: usize;
    // SAFETY: the caller vouches for the ranges. After a fault `rcx` counts the bytes left.
    unsafe {
        asm!(
            "2: rep movsb",
            "8:",
            "9:",
            forgive!(),
            inout("rcx") length => left,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags),
        );
    }
    left == 0
}

/// # Safety
/// As `copy_out`; the processor has AVX, and `length` is at least 128.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_by_vectors(target: *mut u8, source: *const u8, length: usize) -> bool {
    const STEP: usize = 128;
    let mut failed = 1_u32;
    // SAFETY: every step lies inside both ranges, for which the caller vouches. The last step may
    // overlap the one before: `left` is at most 0 then and counts from the end of that step.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, [{source}]",
            "vmovdqu ymm1, [{source} + 32]",
            "vmovdqu ymm2, [{source} + 64]",
            "vmovdqu ymm3, [{source} + 96]",
            "vmovdqu [{target}], ymm0",
            "vmovdqu [{target} + 32], ymm1",
            "vmovdqu [{target} + 64], ymm2",
            "vmovdqu [{target} + 96], ymm3",
            "add {source}, 128",
            "add {target}, 128",
            "sub {left}, 128",
            "jg 2b",
            "vmovdqu ymm0, [{source} + {left}]",
            "vmovdqu ymm1, [{source} + {left} + 32]",
            "vmovdqu ymm2, [{source} + {left} + 64]",
            "vmovdqu ymm3, [{source} + {left} + 96]",
            "vmovdqu [{target} + {left}], ymm0",
            "vmovdqu [{target} + {left} + 32], ymm1",
            "vmovdqu [{target} + {left} + 64], ymm2",
            "vmovdqu [{target} + {left} + 96], ymm3",
            "xor {failed:e}, {failed:e}",
            "8:",
            "9: vzeroupper",
            forgive!(),
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            left = inout(reg) length - STEP => _,
            failed = inout(reg) failed,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            options(nostack),
        );
    }
    failed == 0
}

/// # Safety
/// As `copy_out`; the processor has AVX.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_streaming(target: *mut u8, source: *const u8, length: usize) -> bool {
    const STEP: usize = 256;
    let head = target.align_offset(64).min(length);
    let body = (length - head) / STEP * STEP;
    let mut failed = 1_u32;
    // SAFETY: head, body and tail partition the caller's ranges; after the head the target is
    // aligned. A prefetch never faults. The fence orders the streaming stores before the return.
    unsafe {
        if !address::copy(target, source, head) {
            return false;
        }
        if body > 0 {
            asm!(
                "2:",
                "prefetchnta [{source} + 4096]",
                "prefetchnta [{source} + 4160]",
                "prefetchnta [{source} + 4224]",
                "prefetchnta [{source} + 4288]",
                "vmovdqu ymm0, [{source}]",
                "vmovdqu ymm1, [{source} + 32]",
                "vmovdqu ymm2, [{source} + 64]",
                "vmovdqu ymm3, [{source} + 96]",
                "vmovdqu ymm4, [{source} + 128]",
                "vmovdqu ymm5, [{source} + 160]",
                "vmovdqu ymm6, [{source} + 192]",
                "vmovdqu ymm7, [{source} + 224]",
                "vmovntdq [{target}], ymm0",
                "vmovntdq [{target} + 32], ymm1",
                "vmovntdq [{target} + 64], ymm2",
                "vmovntdq [{target} + 96], ymm3",
                "vmovntdq [{target} + 128], ymm4",
                "vmovntdq [{target} + 160], ymm5",
                "vmovntdq [{target} + 192], ymm6",
                "vmovntdq [{target} + 224], ymm7",
                "add {source}, 256",
                "add {target}, 256",
                "sub {left}, 256",
                "jnz 2b",
                "xor {failed:e}, {failed:e}",
                "8:",
                "9: vzeroupper",
                "sfence",
                forgive!(),
                source = inout(reg) source.add(head) => _,
                target = inout(reg) target.add(head) => _,
                left = inout(reg) body => _,
                failed = inout(reg) failed,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                options(nostack),
            );
            if failed != 0 {
                return false;
            }
        }
        let done = head + body;
        address::copy(target.add(done), source.add(done), length - done)
    }
}

/// Copies the head up to the alignment that streaming needs, then whole steps, then the tail.
///
/// # Safety
/// As `copy_crc`; `level` was detected and is not `Portable`.
#[cfg(target_arch = "x86_64")]
unsafe fn folded<const MODE: u8>(
    level: crate::fold::Level,
    target: *mut u8,
    source: *const u8,
    length: usize,
) -> Option<u32> {
    use crate::fold::STEP_MAX;
    let head = match MODE {
        fold::STREAM => target.align_offset(64).min(length),
        _ => 0,
    };
    let body = (length - head) / STEP_MAX * STEP_MAX;
    let tail_start = head + body;
    // SAFETY: head, body and tail partition the caller's ranges; a level other than `Portable`
    // includes SSE4.2; after the head the target is aligned to 64.
    unsafe {
        let mut state = 0;
        if head > 0 {
            state = fold::copy_short(0, target, source, head)?;
        }
        if body > 0 {
            let sum = fold::run::<MODE>(level, target.add(head), source.add(head), body)?;
            state = sum ^ if head > 0 { checksum::shift(state, body as u64) } else { 0 };
        }
        let tail = length - tail_start;
        fold::copy_short(state, target.add(tail_start), source.add(tail_start), tail)
    }
}

/// # Safety
/// As `copy_crc`; `source` is readable.
unsafe fn copy_portable(target: *mut u8, source: *const u8, length: usize) -> u32 {
    const PIECE: usize = 512;
    let mut piece = [0_u8; PIECE];
    let mut state = 0;
    let mut at = 0;
    while at < length {
        let part = &mut piece[..PIECE.min(length - at)];
        // SAFETY: the part lies in the caller's ranges and in `piece`. The checksum is computed
        // over the private piece, so it matches the stored bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(source.add(at), part.as_mut_ptr(), part.len());
            state = checksum::update_portable(state, part);
            core::ptr::copy_nonoverlapping(part.as_ptr(), target.add(at), part.len());
        }
        at += part.len();
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `copy_out` past the caches whatever the length, on processors with such stores.
    unsafe fn streamed_out(target: *mut u8, source: *const u8, length: usize) -> bool {
        // SAFETY: promised by the caller.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if fold::level() != Level::Portable {
                return copy_streaming(target, source, length);
            }
            copy_out(target, source, length)
        }
    }

    #[test]
    fn copy_of_any_length_and_alignment_is_exact_and_summed() {
        let source: Vec<u8> = (0..40_000_u32).map(|i| ((i * i) >> 5) as u8).collect();
        let lengths =
            (0..70).chain([255, 256, 257, 700, 4096, 8192, 16_383, 16_384, 16_447, 20_000, 32_768]);
        for length in lengths {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 63), (64, 17)] {
                let mut target = vec![0xaa_u8; length + 128];
                let expected = &source[from..from + length];
                // SAFETY: both buffers hold `length` bytes past the offsets used.
                let sums = unsafe {
                    let fast =
                        copy_crc(target.as_mut_ptr().add(to), source.as_ptr().add(from), length);
                    assert_eq!(&target[to..to + length], expected);
                    (
                        fast,
                        Some(copy_portable(
                            target.as_mut_ptr().add(to),
                            source.as_ptr().add(from),
                            length,
                        )),
                    )
                };
                let raw = checksum::update_portable(0, expected);
                assert_eq!(sums, (Some(raw), Some(raw)), "{length} {from} {to}");
                for copy in [copy_out, streamed_out] {
                    target.fill(0xaa);
                    // SAFETY: as above.
                    unsafe {
                        let (to, from) = (target.as_mut_ptr().add(to), source.as_ptr().add(from));
                        assert!(copy(to, from, length));
                    }
                    assert_eq!(&target[to..to + length], expected);
                    assert!(
                        target[..to].iter().chain(&target[to + length..]).all(|&byte| byte == 0xaa)
                    );
                }
            }
        }
    }

    /// Does the same as the interposer's handler.
    extern "C" fn forgive_fault(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes the context of this thread. If the fault is not forgiven, the
        // default action ends the process when the instruction runs again.
        unsafe {
            if !address::recover(context) {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }

    fn handle_faults() {
        // SAFETY: plain data, for which zero is a value; the handler takes three arguments.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = forgive_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut());
        }
    }

    #[test]
    fn copy_that_meets_the_end_of_the_memory_says_so_and_stores_nothing_from_beyond() {
        const PAGES: usize = 12 << 12;
        handle_faults();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory =
            crate::sys::mmap(PAGES + 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        let memory = memory.unwrap();
        // SAFETY: the last page of the fresh mapping; the rest has PAGES bytes.
        let end = unsafe {
            libc::mprotect(memory.add(PAGES).cast(), 4096, libc::PROT_NONE);
            memory.write_bytes(7, PAGES);
            memory.add(PAGES)
        };
        let mut own = vec![0_u8; PAGES + 64];
        for there in [0, 1, 7, 8, 63, 64, 300, 2047, 4096, 10_000, 40_000] {
            for beyond in [1, 8, 300, 5000] {
                for start in [0, 16, 63] {
                    own.fill(0xaa);
                    let (bad, good) =
                        (end.wrapping_sub(there), own.as_mut_ptr().wrapping_add(start));
                    let length = (there + beyond).min(PAGES - start);
                    // SAFETY: `own` has that many bytes; the access to inaccessible bytes is the
                    // subject of the test.
                    unsafe {
                        assert_eq!(copy_crc(good, bad, length), None, "{there} {beyond}");
                        assert!(copy_crc(good, bad, there).is_some());
                        for copy in [copy_out, streamed_out] {
                            assert!(!copy(bad, good, length));
                            assert!(copy(bad, good, there));
                        }
                    }
                    assert!(own[start..][..there].iter().all(|&byte| byte == 7));
                    assert!(own[start + there..].iter().all(|&byte| byte == 0xaa));
                }
            }
        }
    }
}
