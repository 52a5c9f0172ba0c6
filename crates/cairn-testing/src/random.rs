//! Pseudo-random numbers with a printed seed: the seed is the bug report. A fuzzer supplies its
//! choices as bytes instead.
//!
//! Invariant: the same seed, or the same bytes, give the same numbers on every machine and in every
//! build.
//!
//! Does not serve for numbers that must not be guessed.

/// Environment variable: number of seeds that a randomised test runs.
pub const SEEDS_VARIABLE: &str = "CAIRN_TEST_SEEDS";
/// Environment variable: the only seed that a randomised test runs, to repeat a failure.
pub const SEED_VARIABLE: &str = "CAIRN_TEST_SEED";
/// Environment variable: if set, the crash tests visit every point instead of a sample.
pub const SOAK_VARIABLE: &str = "CAIRN_SOAK";

/// A stream of numbers: pseudo-random (splitmix64), or read from the choices of a fuzzer.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    /// Bytes that replace the state, and the number of them that are used up.
    choices: Option<(Vec<u8>, usize)>,
}

impl Random {
    /// Returns the stream of `seed`.
    pub fn new(seed: u64) -> Random {
        Random { state: seed, choices: None }
    }

    /// Returns the stream of choices that `bytes` encode. A small bound takes one byte, a larger
    /// one as many as it needs. When the bytes are used up, every choice is 0.
    pub fn from_choices(bytes: &[u8]) -> Random {
        Random { state: 0, choices: Some((bytes.to_vec(), 0)) }
    }

    /// Whether the choice bytes are used up.
    pub fn is_used_up(&self) -> bool {
        self.choices.as_ref().is_some_and(|(bytes, used)| *used >= bytes.len())
    }

    /// Returns the next `count` choice bytes as a number; `None` for a seeded stream.
    fn choose(&mut self, count: usize) -> Option<u64> {
        let (bytes, used) = self.choices.as_mut()?;
        let rest = &bytes[(*used).min(bytes.len())..];
        let mut number = [0; 8];
        let taken = count.min(rest.len());
        number[..taken].copy_from_slice(&rest[..taken]);
        *used += count;
        Some(u64::from_le_bytes(number))
    }

    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        if let Some(chosen) = self.choose(8) {
            return chosen;
        }
        self.mix()
    }

    fn mix(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `bound`, which must be positive.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bytes = (64 - (bound - 1).leading_zeros()).div_ceil(8);
        self.choose(bytes as usize).unwrap_or_else(|| self.mix()) % bound
    }

    /// Returns true once in `times` calls on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of `choices`, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns `length` bytes. None is zero, so that data differ from a hole.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        if let Some(seed) = self.choose(1) {
            self.state = seed;
        }
        (0..length).map(|_| (self.mix() % 255 + 1) as u8).collect()
    }
}

/// Returns the value of an environment variable, if it is a number.
pub fn environment_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.trim().parse().ok()
}

/// Whether the environment asks for the long form of a test.
pub fn soaking() -> bool {
    std::env::var_os(SOAK_VARIABLE).is_some()
}

/// Calls `run` with `count` seeds, or with those that the environment asks for, and prints each.
pub fn for_each_seed(count: u64, mut run: impl FnMut(u64)) {
    if let Some(seed) = environment_number(SEED_VARIABLE) {
        println!("{SEED_VARIABLE}={seed}");
        return run(seed);
    }
    for seed in 1..=environment_number(SEEDS_VARIABLE).unwrap_or(count) {
        println!("{SEED_VARIABLE}={seed}");
        run(seed);
    }
}
