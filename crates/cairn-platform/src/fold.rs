//! CRC32C by carry-less multiplication on x86-64, over data that is read once and may be copied.
//!
//! Four accumulators of one vector each are folded forward over the data. The vector that is folded
//! in is the one that is stored, so checksum and copy agree even if the source changes meanwhile.
//! This is faster than the CRC instruction in three lanes, because it reads one stream with vectors
//! of any width. The loop is in assembly because its wide intrinsics came with Rust 1.89 and Debian
//! 13 has 1.85.
//!
//! Invariant: a kernel runs only where its features were detected.
//!
//! Does not choose between plain and streaming stores; `copy.rs` does.

use core::arch::asm;
use core::arch::x86_64::*;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::address::forgive;
use crate::checksum::power;

/// Mode: only read.
pub const READ: u8 = 0;
/// Mode: copy with ordinary stores.
pub const STORE: u8 = 1;
/// Mode: copy past the caches. The target is aligned to 64 bytes at kernel entry, and the caller
/// fences afterwards.
pub const STREAM: u8 = 2;

/// Distance by which a streaming copy prefetches its source.
const PREFETCH_BYTES: usize = 1024;
/// Longest step of any kernel. Shorter data is not worth one.
pub const STEP_MAX: usize = 256;

/// Widest kernel that this processor runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Level {
    /// None of the required features.
    Portable = 1,
    /// SSE4.2, PCLMULQDQ and AVX: 16 bytes a vector.
    Wide128,
    /// Also AVX2 and VPCLMULQDQ: 32 bytes a vector.
    Wide256,
    /// Also AVX-512F: 64 bytes a vector.
    Wide512,
}

/// Returns the widest level that this processor has; detected once.
#[inline]
pub fn level() -> Level {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        2 => Level::Wide128,
        3 => Level::Wide256,
        4 => Level::Wide512,
        1 => Level::Portable,
        _ => {
            let level = detect();
            KNOWN.store(level as u8, Ordering::Relaxed);
            level
        }
    }
}

#[cold]
fn detect() -> Level {
    let narrow = is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx");
    if !narrow {
        Level::Portable
    } else if !is_x86_feature_detected!("vpclmulqdq") || !is_x86_feature_detected!("avx2") {
        Level::Wide128
    } else if !is_x86_feature_detected!("avx512f") {
        Level::Wide256
    } else {
        Level::Wide512
    }
}

/// Returns the raw checksum of the `length` bytes at `source`, and copies them to `target` unless
/// `MODE` is `READ`. `length` is a positive multiple of `STEP_MAX`. Returns `None` if the source of
/// a copy cannot be read; the bytes before that may have been copied then.
///
/// # Safety
/// This processor has `level`, which is not `Portable`. In mode `READ` the source is readable. Else
/// the target is writable, does not overlap the source, and in mode `STREAM` is aligned to 64.
#[inline]
pub unsafe fn run<const MODE: u8>(
    level: Level,
    target: *mut u8,
    source: *const u8,
    length: usize,
) -> Option<u32> {
    assert!(length > 0 && length % STEP_MAX == 0, "the kernels run whole steps");
    // SAFETY: the caller vouches for the level and the ranges.
    unsafe {
        match level {
            Level::Wide512 => wide512::<MODE>(target, source, length),
            Level::Wide256 => wide256::<MODE>(target, source, length),
            Level::Wide128 | Level::Portable => wide128::<MODE>(target, source, length),
        }
    }
}

/// Copies `length` bytes and returns the state of the bare shift register after them. Returns
/// `None` if some cannot be read; the bytes before the first unreadable one may have been copied
/// then.
///
/// # Safety
/// SSE4.2 was detected; `target` has room for the bytes and does not overlap them.
#[inline]
pub unsafe fn copy_short(
    state: u32,
    target: *mut u8,
    source: *const u8,
    length: usize,
) -> Option<u32> {
    let mut state = u64::from(state);
    let left: usize;
    // SAFETY: the caller vouches for the instruction and the ranges. `left` reaches zero only
    // behind the last instruction that can fault.
    unsafe {
        asm!(
            "cmp {left}, 8",
            "jb 3f",
            "2: mov {word}, [{source}]",
            "mov [{target}], {word}",
            "crc32 {state}, {word}",
            "add {source}, 8",
            "add {target}, 8",
            "sub {left}, 8",
            "cmp {left}, 8",
            "jae 2b",
            "3: test {left}, {left}",
            "jz 8f",
            "4: movzx {word:e}, byte ptr [{source}]",
            "mov [{target}], {word:l}",
            "crc32 {state:e}, {word:l}",
            "inc {source}",
            "inc {target}",
            "dec {left}",
            "jnz 4b",
            "8:",
            "9:",
            forgive!(),
            state = inout(reg) state,
            left = inout(reg) length => left,
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            word = out(reg) _,
            options(nostack),
        );
    }
    (left == 0).then_some(state as u32)
}

/// Returns the state of the bare shift register after `length` bytes.
///
/// # Safety
/// SSE4.2 was detected; the bytes are readable.
#[target_feature(enable = "sse4.2")]
pub unsafe fn short(state: u32, source: *const u8, length: usize) -> u32 {
    let mut state = u64::from(state);
    let mut at = 0;
    while at + 8 <= length {
        // SAFETY: eight bytes from `at` are inside the range.
        unsafe {
            let word = source.add(at).cast::<u64>().read_unaligned();
            state = _mm_crc32_u64(state, word);
        }
        at += 8;
    }
    let mut state = state as u32;
    while at < length {
        // SAFETY: one byte at `at` is inside the range.
        unsafe {
            let byte = source.add(at).read();
            state = _mm_crc32_u8(state, byte);
        }
        at += 1;
    }
    state
}

/// Returns the factors that move the two halves of a 16-byte accumulator over `bytes` of data:
/// powers of x in the reflected representation, one less because a carry-less product is off by
/// one.
const fn factors(bytes: u64) -> [i64; 2] {
    let low = (power(8 * bytes + 63) as u64) << 32;
    let high = (power(8 * bytes - 1) as u64) << 32;
    [low as i64, high as i64]
}

/// Instructions that move one accumulator over the data and join it with the data there. Register 6
/// holds the factors, register 5 is scratch.
macro_rules! fold {
    ($v:tt, $accumulator:literal, $data:literal) => {
        concat!(
            concat!("vpclmulqdq ", $v, "5, ", $v, $accumulator, ", ", $v, "6, 0x00\n"),
            concat!("vpclmulqdq ", $v, $accumulator, ", ", $v, $accumulator, ", ", $v, "6, 0x11\n"),
            join!($v, $accumulator, $data),
        )
    };
}

/// Exclusive or of an accumulator, register 5 and the data.
macro_rules! join {
    ("zmm", $accumulator:literal, $data:literal) => {
        concat!("vpternlogq zmm", $accumulator, ", zmm5, zmm", $data, ", 0x96")
    };
    ($v:tt, $accumulator:literal, $data:literal) => {
        concat!(
            concat!("vpxor ", $v, "5, ", $v, "5, ", $v, $data, "\n"),
            concat!("vpxor ", $v, $accumulator, ", ", $v, $accumulator, ", ", $v, "5"),
        )
    };
}

/// A kernel for one vector width: its bytes, the letters its registers start with (a `tt`, which
/// `join` can still match), and its names of the instructions that differ between widths. Registers
/// 0 to 3 are the accumulators, 4 is the data.
macro_rules! kernel {
    ($name:ident, $vector:literal, $v:tt, $move:literal, $broadcast:literal) => {
        /// As `run`, for this width.
        ///
        /// # Safety
        /// As `run`.
        #[target_feature(enable = "sse4.2")]
        unsafe fn $name<const MODE: u8>(
            target: *mut u8,
            source: *const u8,
            length: usize,
        ) -> Option<u32> {
            static FACTORS: [[i64; 2]; 2] = [factors(4 * $vector), factors($vector)];
            let mut sum = [0_u8; $vector];
            let left: usize;
            // SAFETY: the caller vouches for the instructions. `length` is a positive multiple of
            // the step of four vectors, so every vector lies in both ranges; with STREAM the target
            // is aligned. A prefetch cannot fault. `sum` has room for the final vector.
            unsafe {
                // `.irp` repeats what follows it for each value of its variable.
                asm!(
                    ".irp i,0,1,2,3",
                    // Clears the whole register, whatever its width.
                    "vpxor xmm\\i, xmm\\i, xmm\\i",
                    ".endr",
                    concat!($broadcast, " ", $v, "6, [{factors}]"),
                    "2:",
                    ".irp i,0,1,2,3",
                    concat!($move, " ", $v, "4, [{source} + {vector} * \\i]"),
                    ".if {mode} == {store}",
                    concat!($move, " [{target} + {vector} * \\i], ", $v, "4"),
                    ".elseif {mode} == {stream}",
                    concat!("vmovntdq [{target} + {vector} * \\i], ", $v, "4"),
                    "prefetcht0 [{source} + {vector} * \\i + {ahead}]",
                    ".endif",
                    fold!($v, "\\i", "4"),
                    ".endr",
                    "add {source}, 4 * {vector}",
                    "add {target}, 4 * {vector}",
                    "sub {length}, 4 * {vector}",
                    "jnz 2b",
                    "8:",
                    concat!($broadcast, " ", $v, "6, [{factors} + 16]"),
                    ".irp i,1,2,3",
                    fold!($v, "0", "\\i"),
                    ".endr",
                    concat!($move, " [{sum}], ", $v, "0"),
                    "9: vzeroupper",
                    ".if {mode} != {read}",
                    forgive!(),
                    ".endif",
                    source = inout(reg) source => _,
                    target = inout(reg) target => _,
                    // Zero behind the loop, and never before.
                    length = inout(reg) length => left,
                    factors = in(reg) FACTORS.as_ptr(),
                    sum = in(reg) sum.as_mut_ptr(),
                    vector = const $vector,
                    mode = const MODE,
                    read = const READ,
                    store = const STORE,
                    stream = const STREAM,
                    ahead = const PREFETCH_BYTES,
                    // All registers that `vzeroupper` changes. Naming one needs no feature.
                    out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                    out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                    out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                    out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                    options(nostack),
                );
                // The final vector is congruent to the data.
                (left == 0).then(|| short(0, sum.as_ptr(), sum.len()))
            }
        }
    };
}

kernel!(wide128, 16, "xmm", "vmovdqu", "vmovdqu");
kernel!(wide256, 32, "ymm", "vmovdqu", "vbroadcasti128");
kernel!(wide512, 64, "zmm", "vmovdqu64", "vbroadcasti32x4");

/// Product of `state` and x^33 * `factor`: the carry-less product of two reflected words is off by
/// one power of x, and reducing it with the CRC instruction multiplies by x^32.
///
/// # Safety
/// SSE4.2 and PCLMULQDQ were detected.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
#[allow(unused_unsafe, reason = "these intrinsics are unsafe before Rust 1.87")]
pub unsafe fn multiply33(state: u32, factor: u32) -> u32 {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let state = _mm_cvtsi32_si128(state as i32);
        let factor = _mm_cvtsi32_si128(factor as i32);
        let product = _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(state, factor));
        _mm_crc32_u64(0, product as u64) as u32
    }
}

/// Whether streaming stores beat ordinary ones on this processor. On AMD's they do, by a factor of
/// 1.2 to 1.7 in one thread; on Intel's they lose a fifth. Detected once.
#[inline]
pub fn streams_well() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: every x86-64 processor has the instruction and its leaf 0.
            #[allow(unused_unsafe, reason = "unsafe in older compilers")]
            let vendor = unsafe { __cpuid(0) };
            let amd = (vendor.ebx, vendor.edx, vendor.ecx) == letters(b"AuthenticAMD")
                || (vendor.ebx, vendor.edx, vendor.ecx) == letters(b"HygonGenuine");
            KNOWN.store(1 + u8::from(amd), Ordering::Relaxed);
            amd
        }
        known => known == 2,
    }
}

/// Returns a vendor's name in the register order of `cpuid`.
fn letters(name: &[u8; 12]) -> (u32, u32, u32) {
    let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
    (word(0), word(4), word(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_this_processor_has_agrees_with_the_portable_path() {
        let source: Vec<u8> =
            (0..8192_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let expected = crate::checksum::update_portable(0, &source);
        for level in [Level::Wide128, Level::Wide256, Level::Wide512] {
            if level as u8 > super::level() as u8 {
                continue;
            }
            let mut stored = vec![0_u8; 8192];
            let mut room = vec![0_u8; 8192 + 64];
            let aligned = room.as_ptr().align_offset(64);
            let streamed = &mut room[aligned..][..8192];
            // SAFETY: the level was detected; the buffers hold 8192 bytes each, and the streaming
            // one is aligned.
            let sums = unsafe {
                [
                    run::<READ>(level, core::ptr::null_mut(), source.as_ptr(), 8192),
                    run::<STORE>(level, stored.as_mut_ptr(), source.as_ptr(), 8192),
                    run::<STREAM>(level, streamed.as_mut_ptr(), source.as_ptr(), 8192),
                ]
            };
            assert_eq!(sums, [Some(expected); 3], "{level:?}");
            assert!(stored == source && *streamed == source, "{level:?}");
        }
    }
}
