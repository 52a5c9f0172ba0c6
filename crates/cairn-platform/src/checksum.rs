//! CRC32C (Castagnoli), the checksum of every hugeblock, and the algebra that composes it.
//!
//! A *raw* checksum is the remainder without the inversions of the standard. It is linear: the
//! checksum of a block is the exclusive or of the checksums of its parts, each shifted over the
//! bytes that follow it. In the words used here the most significant bit is the coefficient of x^0.
//!
//! Invariant: the hardware path and the portable path give the same answers. Code for a processor
//! feature runs only where that feature was detected.
//!
//! Does not copy; `copy.rs` does. The kernels for x86-64 are in `fold.rs`.

/// The Castagnoli polynomial without its leading term, bit-reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^0 in the reflected representation.
const ONE: u32 = 1 << 31;
/// Returns the CRC32C of `bytes`, continued from `seed`: 0 for a fresh checksum, else the checksum
/// of the bytes before.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !update(!seed, bytes)
}

/// Returns the raw checksum: no inversions, zero initial state.
pub fn raw(bytes: &[u8]) -> u32 {
    update(0, bytes)
}

/// Returns the raw checksum of data followed by `zero_bytes` zeros, given that of the data.
pub fn shift(raw: u32, zero_bytes: u64) -> u32 {
    if zero_bytes >> (8 * DIGITS) != 0 {
        return shift_far(raw, zero_bytes);
    }
    #[cfg(target_arch = "x86_64")]
    if crate::fold::level() != crate::fold::Level::Portable {
        // SAFETY: every level but `Portable` has both features.
        return unsafe { hardware::shift(raw, zero_bytes) };
    }
    shift_portable(raw, zero_bytes)
}

/// Does the same for holes that are longer than any tier.
#[cold]
fn shift_far(raw: u32, zero_bytes: u64) -> u32 {
    // x^(8 n) is the eighth power of x^n.
    let octal = (0..3).fold(power(zero_bytes), |square, _| multiply(square, square));
    multiply(raw, octal)
}

/// Returns the raw checksum of data with checksum `before` (0 for none) followed by `bytes` bytes
/// with checksum `sum`.
pub fn join(before: u32, sum: u32, bytes: u64) -> u32 {
    match before {
        0 => sum,
        before => shift(before, bytes) ^ sum,
    }
}

/// Returns the standard checksum of A followed by B, given those of A and B and the length of B in
/// bytes.
pub fn combine(crc_a: u32, crc_b: u32, bytes_b: u64) -> u32 {
    shift(crc_a, bytes_b) ^ crc_b
}

/// Returns the standard checksum of `bytes` zeros.
pub fn zeros(bytes: u64) -> u32 {
    !shift(!0, bytes)
}

/// Returns the standard checksum of a block of `block_bytes` that holds zeros around some data.
/// `raw` is the raw checksum of the data, and `trailing_bytes` follow it in the block.
pub fn of_sparse_block(raw: u32, trailing_bytes: u64, block_bytes: u64) -> u32 {
    zeros(block_bytes) ^ shift(raw, trailing_bytes)
}

/// Returns the state of the bare shift register after `bytes`, continued from `state`.
pub fn update(state: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let level = crate::fold::level();
        if level != crate::fold::Level::Portable {
            // SAFETY: this level was detected.
            return unsafe { hardware::update(level, state, bytes) };
        }
    }
    update_portable(state, bytes)
}

// -- Portable arithmetic, also evaluated at compile time to make the tables --------------------

/// Product of two polynomials modulo the CRC's polynomial.
const fn multiply(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut term = b;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        // All ones if `a` has this coefficient.
        let mask = 0_u32.wrapping_sub(a >> bit & 1);
        product ^= term & mask;
        term = term >> 1 ^ POLYNOMIAL & 0_u32.wrapping_sub(term & 1);
    }
    product
}

/// x to the power of `exponent`.
pub(crate) const fn power(mut exponent: u64) -> u32 {
    let mut result = ONE;
    let mut square = ONE >> 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    result
}

/// Number of bytes in a length that the tables cover.
const DIGITS: usize = 5;

type ShiftTables = [[u32; 256]; DIGITS];

/// `[k][d]` = x^(8 * d * 256^k + offset): one factor for each byte of a length.
const fn shift_tables(offset: u64) -> ShiftTables {
    let mut tables = [[0; 256]; DIGITS];
    let mut digit = 0;
    while digit < DIGITS {
        let step = power(8 << (8 * digit));
        let mut entry = power(offset);
        let mut value = 0;
        while value < 256 {
            tables[digit][value] = entry;
            entry = multiply(entry, step);
            value += 1;
        }
        digit += 1;
    }
    tables
}

static SHIFT: ShiftTables = shift_tables(0);

fn shift_portable(raw: u32, zero_bytes: u64) -> u32 {
    let digits = zero_bytes.to_le_bytes();
    SHIFT.iter().zip(digits).fold(raw, |state, (table, digit)| match digit {
        0 => state,
        _ => multiply(table[digit as usize], state),
    })
}

/// `[k][b]` = state after byte `b` and then `k` zero bytes.
const fn byte_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut value = 0;
    while value < 256 {
        let mut state = value as u32;
        let mut bit = 0;
        while bit < 8 {
            state = state >> 1 ^ POLYNOMIAL & 0_u32.wrapping_sub(state & 1);
            bit += 1;
        }
        tables[0][value] = state;
        value += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut value = 0;
        while value < 256 {
            let before = tables[zeros - 1][value];
            tables[zeros][value] = before >> 8 ^ tables[0][(before & 255) as usize];
            value += 1;
        }
        zeros += 1;
    }
    tables
}

static BYTE: [[u32; 256]; 8] = byte_tables();

pub(crate) fn update_portable(mut state: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    for word in words {
        let word = word.try_into().expect("chunks of eight bytes");
        let mixed = u64::from_le_bytes(word) ^ u64::from(state);
        state = mixed
            .to_le_bytes()
            .iter()
            .zip(BYTE.iter().rev())
            .fold(0, |sum, (&byte, table)| sum ^ table[byte as usize]);
    }
    rest.iter().fold(state, |state, &byte| state >> 8 ^ BYTE[0][(state as u8 ^ byte) as usize])
}

/// Tables and loops for processors with SSE4.2 and carry-less multiplication.
#[cfg(target_arch = "x86_64")]
mod hardware {
    use super::{ShiftTables, shift_tables};
    use crate::fold::{self, Level, READ, STEP_MAX};

    /// x^-33, as a power: the order of x is 2^31 - 1.
    const INVERSE_33: u64 = (1 << 31) - 1 - 33;
    /// The factors that `fold::multiply33` expects.
    static SHIFT: ShiftTables = shift_tables(INVERSE_33);

    /// As `super::shift`.
    ///
    /// # Safety
    /// SSE4.2 and PCLMULQDQ were detected.
    #[inline]
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub unsafe fn shift(raw: u32, zero_bytes: u64) -> u32 {
        let mut state = raw;
        let mut left = zero_bytes;
        for table in &SHIFT {
            if left == 0 {
                break;
            }
            // SAFETY: the caller vouches for the features.
            state = unsafe { fold::multiply33(state, table[(left & 255) as usize]) };
            left >>= 8;
        }
        state
    }

    /// As `super::update`.
    ///
    /// # Safety
    /// `level` was detected and is not `Portable`.
    pub unsafe fn update(level: Level, state: u32, bytes: &[u8]) -> u32 {
        let nowhere = core::ptr::null_mut();
        let (body, tail) = bytes.split_at(bytes.len() / STEP_MAX * STEP_MAX);
        // SAFETY: the level was detected, which includes SSE4.2. Mode READ touches only the bytes
        // of the slices.
        unsafe {
            let mut state = state;
            if !body.is_empty() {
                let sum = fold::run::<READ>(level, nowhere, body.as_ptr(), body.len())
                    .expect("a slice can be read");
                state = sum ^ super::shift(state, body.len() as u64);
            }
            fold::short(state, tail.as_ptr(), tail.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    fn bitwise(seed: u32, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!seed, |state, &byte| {
            (0..8).fold(state ^ u32::from(byte), |state, _| {
                if state & 1 == 1 { state >> 1 ^ POLYNOMIAL } else { state >> 1 }
            })
        })
    }

    /// Mechanism: lengths from 2^40 on were refused by an assertion. Consequence: a sparse file of
    /// 1 TiB, or of more, ended each agent that looked at it: nothing of the job was drained. Fix:
    /// such lengths have a way of their own.
    #[test]
    fn holes_of_any_length_are_as_many_shorter_ones() {
        for far in [1 << 40, (1 << 40) + 77, 3 << 41, 1 << 53, (1 << 60) + 1, u64::MAX >> 1] {
            let (mut left, mut steps) = (far, 0x1234_5678);
            // By halves, as long as each is far.
            while left >= 1 << 40 {
                steps = shift(steps, left / 2);
                left -= left / 2;
            }
            assert_eq!(shift(0x1234_5678, far), shift(steps, left), "{far}");
        }
        let near = (1 << 40) - 1;
        assert_eq!(shift_far(7, near), shift(7, near));
    }

    #[test]
    fn known_vectors_of_rfc_3720_match() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn every_path_agrees_with_the_definition_at_every_length() {
        let bytes = sample(3000);
        for length in (0..200).chain([383, 384, 385, 1000, 1024, 2999]) {
            let bytes = &bytes[..length];
            let expected = bitwise(0, bytes);
            assert_eq!(crc32c(0, bytes), expected, "{length}");
            assert_eq!(!update_portable(!0, bytes), expected, "{length}");
        }
    }

    #[test]
    fn long_data_agrees_with_the_portable_path() {
        let bytes = sample(100_007);
        assert_eq!(crc32c(7, &bytes), !update_portable(!7, &bytes));
    }

    #[test]
    fn continued_checksum_equals_that_of_the_whole() {
        let bytes = sample(5000);
        assert_eq!(crc32c(crc32c(0, &bytes[..1777]), &bytes[1777..]), crc32c(0, &bytes));
    }

    #[test]
    fn shift_equals_appending_zeros() {
        let start = raw(b"cairn");
        for count in [0_u64, 1, 7, 255, 256, 257, 4096, 32_768, 65_535, 65_536, 1_000_003] {
            let expected = update_portable(start, &vec![0; count as usize]);
            assert_eq!(shift(start, count), expected, "{count}");
            assert_eq!(shift_portable(start, count), expected, "{count}");
        }
        assert_eq!(shift(start, u64::from(u32::MAX)), shift_portable(start, u64::from(u32::MAX)));
    }

    #[test]
    fn combined_checksum_equals_that_of_the_concatenation() {
        let bytes = sample(40_000);
        for split in [0, 1, 4096, 39_999, 40_000] {
            let (a, b) = bytes.split_at(split);
            assert_eq!(combine(crc32c(0, a), crc32c(0, b), b.len() as u64), crc32c(0, &bytes));
        }
    }

    #[test]
    fn zeros_and_sparse_blocks_match_the_bytes() {
        assert_eq!(zeros(32_768), crc32c(0, &[0; 32_768]));
        let data = sample(100);
        let mut block = vec![0; 4096];
        block[1000..1100].copy_from_slice(&data);
        assert_eq!(of_sparse_block(raw(&data), 4096 - 1100, 4096), crc32c(0, &block));
    }
}
