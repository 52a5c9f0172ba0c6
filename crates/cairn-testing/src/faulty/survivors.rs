//! Unflushed sectors that survive a power failure.
//!
//! Systematic choices come first, random ones after them. A choice has a short text, which is part
//! of the name of a crash point.

use crate::random::Random;
use std::fmt;
use std::str::FromStr;

/// A choice among the sectors written since the last flush, counted from 0 in the order in which
/// they were written. If a sector was written twice, the last survivor is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// No sector.
    None,
    /// Every sector.
    All,
    /// The given number of sectors from the first on.
    Prefix(usize),
    /// Every sector but one.
    AllBut(usize),
    /// Every write as a whole, except that only the first sectors of one write survive.
    Torn {
        /// Index of the write since the last flush.
        write: usize,
        /// Number of its sectors that survive.
        sectors: usize,
    },
    /// Random sectors or whole writes, few or many, by the seed.
    Random(u64),
}

impl Survivors {
    /// Returns every systematic choice that gives a different image, for writes of these numbers of
    /// sectors.
    pub fn each(writes: &[usize]) -> impl Iterator<Item = Survivors> {
        let total: usize = writes.iter().sum();
        // Tearing the last write is a `Prefix`; tearing off one sector is an `AllBut`.
        let others = &writes[..writes.len().saturating_sub(1)];
        let torn = others.iter().enumerate().flat_map(|(write, &length)| {
            (1..length.saturating_sub(1)).map(move |sectors| Survivors::Torn { write, sectors })
        });
        [Survivors::None]
            .into_iter()
            .chain((total > 0).then_some(Survivors::All))
            .chain((1..total).map(Survivors::Prefix))
            .chain((0..total.saturating_sub(1)).map(Survivors::AllBut))
            .chain(torn)
    }

    /// Number of choices that `each` returns.
    pub fn count(writes: &[usize]) -> usize {
        let total: usize = writes.iter().sum();
        let torn: usize = writes.iter().rev().skip(1).map(|length| length.saturating_sub(2)).sum();
        (2 * total).max(1) + torn
    }

    /// Returns for each sector of such writes whether it survives.
    pub(super) fn mask(&self, writes: &[usize]) -> Vec<bool> {
        let total = writes.iter().sum();
        let mut mask = vec![true; total];
        match *self {
            Survivors::None => mask.fill(false),
            Survivors::All => {}
            Survivors::Prefix(length) => mask[length.min(total)..].fill(false),
            Survivors::AllBut(sector) => mask.iter_mut().skip(sector).take(1).for_each(clear),
            Survivors::Torn { write, sectors } => {
                let first: usize = writes.iter().take(write).sum();
                let length = writes.get(write).copied().unwrap_or(0);
                mask.iter_mut().take(first + length).skip(first + sectors).for_each(clear);
            }
            Survivors::Random(seed) => draw(&mut Random::new(seed), writes, &mut mask),
        }
        mask
    }
}

fn clear(survives: &mut bool) {
    *survives = false;
}

fn draw(random: &mut Random, writes: &[usize], mask: &mut [bool]) {
    let whole_writes = random.one_in(2);
    let eighths = *random.pick(&[1, 4, 7]);
    let mut left = mask;
    for &length in writes {
        let (sectors, rest) = left.split_at_mut(length);
        let survives = random.below(8) < eighths;
        for sector in sectors {
            *sector = if whole_writes { survives } else { random.below(8) < eighths };
        }
        left = rest;
    }
}

impl fmt::Display for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Survivors::None => f.write_str("none"),
            Survivors::All => f.write_str("all"),
            Survivors::Prefix(length) => write!(f, "prefix-{length}"),
            Survivors::AllBut(sector) => write!(f, "allbut-{sector}"),
            Survivors::Torn { write, sectors } => write!(f, "torn-{write}-{sectors}"),
            Survivors::Random(seed) => write!(f, "random-{seed}"),
        }
    }
}

impl FromStr for Survivors {
    type Err = String;

    fn from_str(text: &str) -> Result<Survivors, String> {
        let unknown = || format!("`{text}` is no choice of surviving sectors");
        let mut words = text.split('-');
        let name = words.next().unwrap_or_default();
        let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
        match (name, numbers.map_err(|_| unknown())?.as_slice()) {
            ("none", []) => Ok(Survivors::None),
            ("all", []) => Ok(Survivors::All),
            ("prefix", &[length]) => Ok(Survivors::Prefix(length as usize)),
            ("allbut", &[sector]) => Ok(Survivors::AllBut(sector as usize)),
            ("torn", &[write, sectors]) => {
                Ok(Survivors::Torn { write: write as usize, sectors: sectors as usize })
            }
            ("random", &[seed]) => Ok(Survivors::Random(seed)),
            _ => Err(unknown()),
        }
    }
}
