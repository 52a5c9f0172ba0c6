//! CRC32C by carry-less multiplication on x86-64, over data that is read once and may be copied.
//!
//! Four accumulators of one vector each are folded forward over the data; the vector that is folded
//! in is the one that is stored, so checksum and copy agree even if the source changes meanwhile.
//! Faster than the CRC instruction in three lanes, because it reads one stream of any width.
//!
//! Must stay true: a kernel runs only where its features were detected.
//! Does not choose between plain and streaming stores; `copy.rs` does.

use core::arch::x86_64::*;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::checksum::power;

/// Only read.
pub const READ: u8 = 0;
/// Copy with ordinary stores.
pub const STORE: u8 = 1;
/// Copy past the caches; the destination is aligned to 64 bytes at kernel entry, and the caller
/// fences afterwards.
pub const STREAM: u8 = 2;

/// How far ahead of a streaming copy the source is fetched.
const PREFETCH_BYTES: usize = 1024;
/// The longest step of any kernel; shorter data is not worth one.
pub const STEP_MAX: usize = 256;

/// Which kernels this processor runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Level {
    /// Not even the CRC instruction.
    Portable = 1,
    /// SSE4.2 and PCLMULQDQ: 16 bytes a vector.
    Wide128,
    /// AVX2 and VPCLMULQDQ.
    Wide256,
    /// AVX-512 and VPCLMULQDQ.
    Wide512,
}

/// The widest level this processor has; detected once.
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
    if !is_x86_feature_detected!("sse4.2") || !is_x86_feature_detected!("pclmulqdq") {
        Level::Portable
    } else if !is_x86_feature_detected!("vpclmulqdq") || !is_x86_feature_detected!("avx2") {
        Level::Wide128
    } else if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512vl") {
        Level::Wide256
    } else {
        Level::Wide512
    }
}

/// Raw checksum of the `length` bytes at `source`, which are also copied to `target` unless `MODE`
/// is `READ`. `length` is a multiple of `STEP_MAX`.
///
/// # Safety
/// This processor has `level`, which is not `Portable`; the source is readable, the target
/// writable and, in mode `STREAM`, aligned to 64; they do not overlap.
#[inline]
pub unsafe fn run<const MODE: u8>(
    level: Level,
    target: *mut u8,
    source: *const u8,
    length: usize,
) -> u32 {
    debug_assert!(length.is_multiple_of(STEP_MAX));
    // SAFETY: the caller vouches for the level and the ranges.
    unsafe {
        match level {
            Level::Wide512 => wide512::<MODE>(target, source, length),
            Level::Wide256 => wide256::<MODE>(target, source, length),
            Level::Wide128 | Level::Portable => wide128::<MODE>(target, source, length),
        }
    }
}

/// State of the bare shift register after `bytes`, each copied to `target` unless `MODE` is `READ`.
///
/// # Safety
/// SSE4.2 was detected; `target` has room for the bytes, which it does not overlap.
#[target_feature(enable = "sse4.2")]
pub unsafe fn short<const MODE: u8>(
    state: u32,
    target: *mut u8,
    source: *const u8,
    length: usize,
) -> u32 {
    let mut state = u64::from(state);
    let mut at = 0;
    while at + 8 <= length {
        // SAFETY: eight bytes from `at` are inside both ranges.
        unsafe {
            let word = source.add(at).cast::<u64>().read_unaligned();
            state = _mm_crc32_u64(state, word);
            if MODE != READ {
                target.add(at).cast::<u64>().write_unaligned(word);
            }
        }
        at += 8;
    }
    let mut state = state as u32;
    while at < length {
        // SAFETY: one byte at `at` is inside both ranges.
        unsafe {
            let byte = source.add(at).read();
            state = _mm_crc32_u8(state, byte);
            if MODE != READ {
                target.add(at).write(byte);
            }
        }
        at += 1;
    }
    state
}

/// The factors that move the two halves of a 16-byte accumulator over `bytes` of data: powers of x
/// in the reflected representation, one short because a carry-less product is one off.
const fn factors(bytes: u64) -> [i64; 2] {
    let low = (power(8 * bytes + 63) as u64) << 32;
    let high = (power(8 * bytes - 1) as u64) << 32;
    [low as i64, high as i64]
}

/// One 16-byte accumulator moved over 16 bytes and joined with what stands there.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn fold128(accumulator: __m128i, factors: __m128i, data: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(accumulator, factors);
    let high = _mm_clmulepi64_si128::<0x11>(accumulator, factors);
    _mm_xor_si128(_mm_xor_si128(low, high), data)
}

/// Remainder of the 16 bytes of an accumulator.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn reduce128(accumulator: __m128i) -> u32 {
    let low = _mm_cvtsi128_si64(accumulator) as u64;
    let high = _mm_extract_epi64::<1>(accumulator) as u64;
    _mm_crc32_u64(_mm_crc32_u64(0, low), high) as u32
}

/// Remainder of consecutive accumulators of 16 bytes.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
fn reduce(accumulators: &[__m128i]) -> u32 {
    let [low, high] = const { factors(16) };
    let factors = _mm_set_epi64x(high, low);
    // A loop, because a closure would not inherit the features.
    let mut sum = _mm_setzero_si128();
    for &accumulator in accumulators {
        sum = fold128(sum, factors, accumulator);
    }
    reduce128(sum)
}

#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold256(accumulator: __m256i, factors: __m256i, data: __m256i) -> __m256i {
    let low = _mm256_clmulepi64_epi128::<0x00>(accumulator, factors);
    let high = _mm256_clmulepi64_epi128::<0x11>(accumulator, factors);
    _mm256_xor_si256(_mm256_xor_si256(low, high), data)
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold512(accumulator: __m512i, factors: __m512i, data: __m512i) -> __m512i {
    /// Truth table of a three-way exclusive or.
    const XOR3: i32 = 0x96;
    let low = _mm512_clmulepi64_epi128::<0x00>(accumulator, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(accumulator, factors);
    _mm512_ternarylogic_epi64::<XOR3>(low, high, data)
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn broadcast128(factors: [i64; 2]) -> __m128i {
    _mm_set_epi64x(factors[1], factors[0])
}

#[inline]
#[target_feature(enable = "avx2")]
fn broadcast256(factors: [i64; 2]) -> __m256i {
    _mm256_broadcastsi128_si256(_mm_set_epi64x(factors[1], factors[0]))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn broadcast512(factors: [i64; 2]) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x(factors[1], factors[0]))
}

/// A kernel for one vector width; the three differ only in their instructions.
macro_rules! kernel {
    ($name:ident, $features:literal, $vector:ty, $lanes:literal, $zero:ident, $load:ident,
     $store:ident, $stream:ident, $broadcast:ident, $fold:ident) => {
        /// As `run`, for this width.
        ///
        /// # Safety
        /// As `run`.
        #[target_feature(enable = $features)]
        unsafe fn $name<const MODE: u8>(target: *mut u8, source: *const u8, length: usize) -> u32 {
            const VECTOR: usize = size_of::<$vector>();
            const STEP: usize = 4 * VECTOR;
            let step_factors = $broadcast(const { factors(STEP as u64) });
            let mut accumulators = [$zero(); 4];
            let mut at = 0;
            while at < length {
                for (index, accumulator) in accumulators.iter_mut().enumerate() {
                    let place = at + index * VECTOR;
                    // SAFETY: `length` is a multiple of STEP, so this vector lies in both ranges;
                    // for MODE STREAM the target is aligned. A prefetch cannot fault.
                    unsafe {
                        let data = $load(source.add(place).cast());
                        if MODE == STORE {
                            $store(target.add(place).cast(), data);
                        } else if MODE == STREAM {
                            $stream(target.add(place).cast(), data);
                            let ahead = source.wrapping_add(place + PREFETCH_BYTES);
                            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                        }
                        *accumulator = $fold(*accumulator, step_factors, data);
                    }
                }
                at += STEP;
            }
            let vector_factors = $broadcast(const { factors(VECTOR as u64) });
            let [first, rest @ ..] = accumulators;
            let mut sum = first;
            for accumulator in rest {
                sum = $fold(sum, vector_factors, accumulator);
            }
            // SAFETY: a vector is exactly its 16-byte parts, in order of address.
            reduce(&unsafe { core::mem::transmute::<$vector, [__m128i; $lanes]>(sum) })
        }
    };
}

kernel!(
    wide128,
    "sse4.2,pclmulqdq",
    __m128i,
    1,
    _mm_setzero_si128,
    _mm_loadu_si128,
    _mm_storeu_si128,
    _mm_stream_si128,
    broadcast128,
    fold128
);
kernel!(
    wide256,
    "sse4.2,pclmulqdq,avx2,vpclmulqdq",
    __m256i,
    2,
    _mm256_setzero_si256,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_stream_si256,
    broadcast256,
    fold256
);
kernel!(
    wide512,
    "sse4.2,pclmulqdq,avx2,vpclmulqdq,avx512f,avx512vl",
    __m512i,
    4,
    _mm512_setzero_si512,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_stream_si512,
    broadcast512,
    fold512
);

/// Product of `state` and x^33 * `factor`: the carry-less product of two reflected words is off by
/// one power of x, and reducing it with the CRC instruction multiplies by x^32.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub fn multiply33(state: u32, factor: u32) -> u32 {
    let state = _mm_cvtsi32_si128(state as i32);
    let factor = _mm_cvtsi32_si128(factor as i32);
    let product = _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(state, factor));
    _mm_crc32_u64(0, product as u64) as u32
}

/// Whether streaming stores beat ordinary ones on this processor: they do on AMD's, by 1.2 to 1.7
/// in one thread; on Intel's they lose a fifth. Detected once.
#[inline]
pub fn streams_well() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let vendor = __cpuid(0);
            let amd = (vendor.ebx, vendor.edx, vendor.ecx) == letters(b"AuthenticAMD")
                || (vendor.ebx, vendor.edx, vendor.ecx) == letters(b"HygonGenuine");
            KNOWN.store(1 + u8::from(amd), Ordering::Relaxed);
            amd
        }
        known => known == 2,
    }
}

/// A vendor's name as `cpuid` returns it.
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
            let mut target = vec![0_u8; 8192];
            // SAFETY: the level was detected; both buffers hold 8192 bytes.
            let sums = unsafe {
                let read = run::<READ>(level, core::ptr::null_mut(), source.as_ptr(), 8192);
                (read, run::<STORE>(level, target.as_mut_ptr(), source.as_ptr(), 8192))
            };
            assert_eq!(sums, (expected, expected), "{level:?}");
            assert_eq!(target, source, "{level:?}");
        }
    }
}
