//! Copying data into a tier while computing its checksum, and out of it again.
//!
//! Must stay true: the checksum is of the bytes that were stored, even if another thread changes
//! the source during the copy.
//! Does not decide where bytes go and does not catch faults of bad addresses.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{Ordering, compiler_fence};

use crate::checksum;

/// Shorter copies use ordinary stores: the fence after streaming ones would cost more than it wins.
#[cfg(target_arch = "x86_64")]
const STREAM_FROM: usize = 4 * 1024;

/// Copies `length` bytes and returns their raw checksum (`checksum::raw`).
///
/// # Safety
/// `source` is readable and `target` writable for `length` bytes; they do not overlap, and no Rust
/// reference to the target's bytes is alive.
pub unsafe fn copy_crc(target: *mut u8, source: *const u8, length: usize) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::fold::{self, Level};
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
    // SAFETY: the caller vouches for the ranges.
    unsafe { copy_portable(target, source, length) }
}

/// Copies `length` bytes without a checksum, for reading from a tier. What `malloc` gives for large
/// buffers is 16 bytes past a page, where the string instructions that `memcpy` uses from 2 KiB on
/// run at half speed; there a plain loop takes its place.
///
/// # Safety
/// As `copy_crc`.
pub unsafe fn copy_out(target: *mut u8, source: *const u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    if length >= 2048 && target.addr() % 64 != 0 {
        // SAFETY: the caller vouches for the ranges.
        return unsafe { copy_by_vectors(target, source, length) };
    }
    // SAFETY: the caller vouches for the ranges.
    unsafe { core::ptr::copy_nonoverlapping(source, target, length) };
}

/// Asks for bytes that will be needed soon, at most 4 KiB. A hint: any address will do.
#[inline]
pub fn prefetch(source: *const u8, length: usize) {
    /// More would push the first bytes out again before they are used.
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
/// As `copy_crc`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_by_vectors(target: *mut u8, source: *const u8, length: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
    const LINE: usize = 64;
    let mut at = 0;
    while at + LINE <= length {
        for part in (0..LINE).step_by(size_of::<__m128i>()) {
            // SAFETY: this vector lies inside the line, which lies inside both ranges.
            unsafe {
                let data = _mm_loadu_si128(source.add(at + part).cast());
                _mm_storeu_si128(target.add(at + part).cast(), data);
            }
        }
        // Without this the compiler would recognise a memcpy and call it.
        compiler_fence(Ordering::SeqCst);
        at += LINE;
    }
    // SAFETY: the rest lies inside both ranges.
    unsafe { core::ptr::copy_nonoverlapping(source.add(at), target.add(at), length - at) };
}

/// Head up to the alignment that streaming needs, whole steps, tail.
///
/// # Safety
/// As `copy_crc`; `level` was detected and is not `Portable`.
#[cfg(target_arch = "x86_64")]
unsafe fn folded<const MODE: u8>(
    level: crate::fold::Level,
    target: *mut u8,
    source: *const u8,
    length: usize,
) -> u32 {
    use crate::fold::{self, STEP_MAX};
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
            state = fold::short::<MODE>(0, target, source, head);
        }
        if body > 0 {
            let sum = fold::run::<MODE>(level, target.add(head), source.add(head), body);
            state = sum ^ if head > 0 { checksum::shift(state, body as u64) } else { 0 };
        }
        let tail = length - tail_start;
        fold::short::<MODE>(state, target.add(tail_start), source.add(tail_start), tail)
    }
}

/// # Safety
/// As `copy_crc`.
unsafe fn copy_portable(target: *mut u8, source: *const u8, length: usize) -> u32 {
    const PIECE: usize = 512;
    let mut piece = [0_u8; PIECE];
    let mut state = 0;
    let mut at = 0;
    while at < length {
        let part = &mut piece[..PIECE.min(length - at)];
        // SAFETY: the part lies in the caller's ranges and in `piece`; the checksum is of the
        // private piece, so it is of what is stored.
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
                        copy_portable(
                            target.as_mut_ptr().add(to),
                            source.as_ptr().add(from),
                            length,
                        ),
                    )
                };
                let raw = checksum::update_portable(0, expected);
                target.fill(0xaa);
                // SAFETY: as above.
                unsafe {
                    copy_out(target.as_mut_ptr().add(to), source.as_ptr().add(from), length);
                }
                assert_eq!(sums, (raw, raw), "{length} {from} {to}");
                assert_eq!(&target[to..to + length], expected);
                assert!(
                    target[..to].iter().chain(&target[to + length..]).all(|&byte| byte == 0xaa)
                );
            }
        }
    }
}
