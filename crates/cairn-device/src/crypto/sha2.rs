//! SHA-256, SHA-384 and SHA-512 (FIPS 180-4), and HMAC over them (RFC 2104).
//!
//! Must stay true: time and memory accesses depend on lengths alone. What was hashed is wiped from the buffers.

use super::wiped::{Wiped, wipe};

/// The longest block, bytes: of SHA-384 and SHA-512.
const BLOCK_BYTES_MAX: usize = 128;

/// A hash function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// Length of its results.
    pub const fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The hash of the parts, one behind the other.
    pub fn of(self, parts: &[&[u8]]) -> Wiped {
        let mut state = State::new(self);
        parts.iter().for_each(|part| state.take(part));
        state.finish()
    }

    /// The HMAC of the parts, one behind the other, with `key`.
    pub fn mac(self, key: &[u8], parts: &[&[u8]]) -> Wiped {
        let block_bytes = self.block_bytes();
        let mut pad = Wiped::zeros(block_bytes);
        match key.len() <= block_bytes {
            true => pad[..key.len()].copy_from_slice(key),
            false => pad[..self.bytes()].copy_from_slice(&self.of(&[key])),
        }
        pad.iter_mut().for_each(|byte| *byte ^= 0x36);
        let mut inner = State::new(self);
        inner.take(&pad);
        parts.iter().for_each(|part| inner.take(part));
        pad.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
        self.of(&[&pad, &inner.finish()])
    }

    const fn block_bytes(self) -> usize {
        match self {
            Hash::Sha256 => 64,
            Hash::Sha384 | Hash::Sha512 => BLOCK_BYTES_MAX,
        }
    }
}

/// A hash that is being computed. SHA-256 keeps its words in the lower halves.
struct State {
    hash: Hash,
    words: [u64; 8],
    block: [u8; BLOCK_BYTES_MAX],
    /// How many bytes of the block are there.
    filled: usize,
    total_bytes: u128,
}

impl State {
    fn new(hash: Hash) -> State {
        let words = match hash {
            Hash::Sha256 => SQUARE_ROOTS.map(|root| root >> 32),
            Hash::Sha384 => NEXT_SQUARE_ROOTS,
            Hash::Sha512 => SQUARE_ROOTS,
        };
        State { hash, words, block: [0; BLOCK_BYTES_MAX], filled: 0, total_bytes: 0 }
    }

    fn take(&mut self, mut bytes: &[u8]) {
        self.total_bytes += bytes.len() as u128;
        let block_bytes = self.hash.block_bytes();
        while !bytes.is_empty() {
            let (some, rest) = bytes.split_at(bytes.len().min(block_bytes - self.filled));
            self.block[self.filled..self.filled + some.len()].copy_from_slice(some);
            self.filled += some.len();
            bytes = rest;
            if self.filled == block_bytes {
                self.compress();
            }
        }
    }

    fn finish(mut self) -> Wiped {
        let block_bytes = self.hash.block_bytes();
        // The length in bits stands at the end of the last block, in an eighth of it.
        let length_at = block_bytes - block_bytes / 8;
        let bits = (self.total_bytes * 8).to_be_bytes();
        self.take(&[0x80]);
        while self.filled != length_at {
            self.take(&[0]);
        }
        self.take(&bits[bits.len() - block_bytes / 8..]);
        let mut digest = Wiped::zeros(self.hash.bytes());
        let word_bytes = block_bytes / 16;
        for (target, word) in digest.chunks_mut(word_bytes).zip(&self.words) {
            target.copy_from_slice(&word.to_be_bytes()[8 - word_bytes..]);
        }
        digest
    }

    fn compress(&mut self) {
        match self.hash {
            Hash::Sha256 => compress_32(&mut self.words, &self.block),
            Hash::Sha384 | Hash::Sha512 => compress_64(&mut self.words, &self.block),
        }
        self.filled = 0;
    }
}

impl Drop for State {
    fn drop(&mut self) {
        wipe(&mut self.words);
        wipe(&mut self.block);
    }
}

/// Makes the function that takes one block in, for words of a type: FIPS 180-4, 4.1, 6.2.2 and 6.4.2. The two hashes differ
/// in the width of words, the number of rounds, and by how much they rotate and, last in the small sums, shift.
macro_rules! compress {
    ($name:ident, $word:ty, $rounds:literal, $big:expr, $small:expr) => {
        fn $name(words: &mut [u64; 8], block: &[u8; BLOCK_BYTES_MAX]) {
            const BYTES: usize = size_of::<$word>();
            let big_sum = |value: $word, [a, b, c]: [u32; 3]| {
                value.rotate_right(a) ^ value.rotate_right(b) ^ value.rotate_right(c)
            };
            let small_sum = |value: $word, [a, b, c]: [u32; 3]| {
                value.rotate_right(a) ^ value.rotate_right(b) ^ value >> c
            };
            let mut schedule = [0 as $word; $rounds];
            for (word, bytes) in schedule.iter_mut().zip(block.chunks_exact(BYTES).take(16)) {
                *word = bytes.iter().fold(0, |word, &byte| word << 8 | <$word>::from(byte));
            }
            for t in 16..$rounds {
                schedule[t] = small_sum(schedule[t - 2], $small[1])
                    .wrapping_add(schedule[t - 7])
                    .wrapping_add(small_sum(schedule[t - 15], $small[0]))
                    .wrapping_add(schedule[t - 16]);
            }
            let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] =
                words.map(|word| word as $word);
            for (&scheduled, root) in schedule.iter().zip(&CUBE_ROOTS) {
                let first = h
                    .wrapping_add(big_sum(e, $big[1]))
                    .wrapping_add((e & f) ^ (!e & g))
                    .wrapping_add((root >> (u64::BITS - <$word>::BITS)) as $word)
                    .wrapping_add(scheduled);
                let second = big_sum(a, $big[0]).wrapping_add((a & b) ^ (a & c) ^ (b & c));
                (h, g, f, e) = (g, f, e, d.wrapping_add(first));
                (d, c, b, a) = (c, b, a, first.wrapping_add(second));
            }
            for (word, more) in words.iter_mut().zip([a, b, c, d, e, f, g, h]) {
                *word = (*word as $word).wrapping_add(more).into();
            }
            wipe(&mut schedule);
        }
    };
}

compress!(compress_32, u32, 64, [[2, 13, 22], [6, 11, 25]], [[7, 18, 3], [17, 19, 10]]);
compress!(compress_64, u64, 80, [[28, 34, 39], [14, 18, 41]], [[1, 8, 7], [19, 61, 6]]);

/// The first 64 bits of the fractions of the square roots of the first eight primes (FIPS 180-4, 5.3.5; their upper halves
/// are those of 5.3.3), and of the next eight (5.3.4).
const SQUARE_ROOTS: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];
const NEXT_SQUARE_ROOTS: [u64; 8] = [
    0xcbbb_9d5d_c105_9ed8,
    0x629a_292a_367c_d507,
    0x9159_015a_3070_dd17,
    0x152f_ecd8_f70e_5939,
    0x6733_2667_ffc0_0b31,
    0x8eb4_4a87_6858_1511,
    0xdb0c_2e0d_64f9_8fa7,
    0x47b5_481d_befa_4fa4,
];
/// The first 64 bits of the fractions of the cube roots of the first 80 primes (FIPS 180-4, 4.2.3; the upper halves of the
/// first 64 are those of 4.2.2).
const CUBE_ROOTS: [u64; 80] = [
    0x428a_2f98_d728_ae22,
    0x7137_4491_23ef_65cd,
    0xb5c0_fbcf_ec4d_3b2f,
    0xe9b5_dba5_8189_dbbc,
    0x3956_c25b_f348_b538,
    0x59f1_11f1_b605_d019,
    0x923f_82a4_af19_4f9b,
    0xab1c_5ed5_da6d_8118,
    0xd807_aa98_a303_0242,
    0x1283_5b01_4570_6fbe,
    0x2431_85be_4ee4_b28c,
    0x550c_7dc3_d5ff_b4e2,
    0x72be_5d74_f27b_896f,
    0x80de_b1fe_3b16_96b1,
    0x9bdc_06a7_25c7_1235,
    0xc19b_f174_cf69_2694,
    0xe49b_69c1_9ef1_4ad2,
    0xefbe_4786_384f_25e3,
    0x0fc1_9dc6_8b8c_d5b5,
    0x240c_a1cc_77ac_9c65,
    0x2de9_2c6f_592b_0275,
    0x4a74_84aa_6ea6_e483,
    0x5cb0_a9dc_bd41_fbd4,
    0x76f9_88da_8311_53b5,
    0x983e_5152_ee66_dfab,
    0xa831_c66d_2db4_3210,
    0xb003_27c8_98fb_213f,
    0xbf59_7fc7_beef_0ee4,
    0xc6e0_0bf3_3da8_8fc2,
    0xd5a7_9147_930a_a725,
    0x06ca_6351_e003_826f,
    0x1429_2967_0a0e_6e70,
    0x27b7_0a85_46d2_2ffc,
    0x2e1b_2138_5c26_c926,
    0x4d2c_6dfc_5ac4_2aed,
    0x5338_0d13_9d95_b3df,
    0x650a_7354_8baf_63de,
    0x766a_0abb_3c77_b2a8,
    0x81c2_c92e_47ed_aee6,
    0x9272_2c85_1482_353b,
    0xa2bf_e8a1_4cf1_0364,
    0xa81a_664b_bc42_3001,
    0xc24b_8b70_d0f8_9791,
    0xc76c_51a3_0654_be30,
    0xd192_e819_d6ef_5218,
    0xd699_0624_5565_a910,
    0xf40e_3585_5771_202a,
    0x106a_a070_32bb_d1b8,
    0x19a4_c116_b8d2_d0c8,
    0x1e37_6c08_5141_ab53,
    0x2748_774c_df8e_eb99,
    0x34b0_bcb5_e19b_48a8,
    0x391c_0cb3_c5c9_5a63,
    0x4ed8_aa4a_e341_8acb,
    0x5b9c_ca4f_7763_e373,
    0x682e_6ff3_d6b2_b8a3,
    0x748f_82ee_5def_b2fc,
    0x78a5_636f_4317_2f60,
    0x84c8_7814_a1f0_ab72,
    0x8cc7_0208_1a64_39ec,
    0x90be_fffa_2363_1e28,
    0xa450_6ceb_de82_bde9,
    0xbef9_a3f7_b2c6_7915,
    0xc671_78f2_e372_532b,
    0xca27_3ece_ea26_619c,
    0xd186_b8c7_21c0_c207,
    0xeada_7dd6_cde0_eb1e,
    0xf57d_4f7f_ee6e_d178,
    0x06f0_67aa_7217_6fba,
    0x0a63_7dc5_a2c8_98a6,
    0x113f_9804_bef9_0dae,
    0x1b71_0b35_131c_471b,
    0x28db_77f5_2304_7d84,
    0x32ca_ab7b_40c7_2493,
    0x3c9e_be0a_15c9_bebc,
    0x431d_67c4_9c10_0d4c,
    0x4cc5_d4be_cb3e_42b6,
    0x597f_299c_fc65_7e2a,
    0x5fcb_6fab_3ad6_faec,
    0x6c44_198c_4a47_5817,
];

#[cfg(test)]
mod tests;
