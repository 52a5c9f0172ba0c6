//! Diffie-Hellman in the groups of RFC 7919: two who exchange public values know a value that who listens does not.
//!
//! Must stay true: time and memory accesses do not depend on exponents, nor on what is computed with them. Values of others
//! are accepted only from 2 to the prime less 2.
//! Does not compute in other groups: that the lowest 64 bits of the primes are ones is relied on.

use super::wiped::Wiped;

/// Length of an exponent. More than twice the strength of the largest group, as RFC 7919 asks in its section 5.2.
const EXPONENT_BYTES: usize = 64;
/// Bits of an exponent that are handled at a time.
const WINDOW_BITS: usize = 4;
const LIMB_BITS: usize = u64::BITS as usize;

/// A group whose elements are powers of 2 modulo a prime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// ffdhe2048.
    Ffdhe2048,
    /// ffdhe3072.
    Ffdhe3072,
    /// ffdhe4096.
    Ffdhe4096,
    /// ffdhe6144.
    Ffdhe6144,
    /// ffdhe8192.
    Ffdhe8192,
}

impl Group {
    /// Length of its elements.
    pub const fn bytes(self) -> usize {
        match self {
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
            Group::Ffdhe6144 => 768,
            Group::Ffdhe8192 => 1024,
        }
    }

    /// What is added in the formula of RFC 7919 (appendix A) so that the result is prime, and half of it, too.
    const fn addend(self) -> u64 {
        match self {
            Group::Ffdhe2048 => 560_316,
            Group::Ffdhe3072 => 2_625_351,
            Group::Ffdhe4096 => 5_736_041,
            Group::Ffdhe6144 => 15_705_020,
            Group::Ffdhe8192 => 10_965_728,
        }
    }

    /// The prime, lowest limb first: 2^b - 2^(b-64) + (floor(2^(b-130) e) + addend) 2^64 - 1 for b bits.
    fn prime(self) -> Vec<u64> {
        let count = self.bytes() / size_of::<u64>();
        let euler = euler(count);
        let mut prime = vec![u64::MAX; count];
        // The last -1 makes the lowest limb all ones, and borrows from the others.
        let mut carry = u128::from(self.addend() - 1);
        for (index, limb) in prime[1..count - 1].iter_mut().enumerate() {
            // From bit 130 on: two limbs and two bits.
            let shifted = euler[index + 2] >> 2 | euler[index + 3] << (LIMB_BITS - 2);
            let sum = u128::from(shifted) + carry;
            (*limb, carry) = (sum as u64, sum >> LIMB_BITS);
        }
        prime
    }
}

/// Euler's number times 2^(64 `count`) but for the last bits, lowest limb first: the sum of 1/k!.
fn euler(count: usize) -> Vec<u64> {
    let mut term = vec![0; count + 1];
    term[count] = 1;
    let mut sum = term.clone();
    for divisor in 1_u64.. {
        let mut rest = 0;
        for limb in term.iter_mut().rev() {
            let dividend = rest << LIMB_BITS | u128::from(*limb);
            (*limb, rest) =
                ((dividend / u128::from(divisor)) as u64, dividend % u128::from(divisor));
        }
        if term.iter().all(|&limb| limb == 0) {
            break;
        }
        let mut carry = false;
        for (limb, &more) in sum.iter_mut().zip(&term) {
            (*limb, carry) = add(*limb, more, carry);
        }
    }
    sum
}

fn add(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let sum = u128::from(a) + u128::from(b) + u128::from(carry);
    (sum as u64, sum >> LIMB_BITS != 0)
}

/// One's own part of an exchange.
pub struct Exchange {
    field: Field,
    exponent: Wiped,
    public: Vec<u8>,
}

impl Exchange {
    /// Chooses an exponent. Errors: the kernel has no random numbers.
    pub fn new(group: Group) -> crate::sys::SysResult<Exchange> {
        Ok(Exchange::with(group, Wiped::random(EXPONENT_BYTES)?))
    }

    fn with(group: Group, exponent: Wiped) -> Exchange {
        let field = Field::new(group.prime());
        let mut two = vec![0; field.modulus.len()];
        two[0] = 2;
        let public = to_bytes(&field.power(&two, &exponent)).to_vec();
        Exchange { field, exponent, public }
    }

    /// What the other one is told, highest byte first, as long as elements of the group.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// What both know then, as long as elements of the group; none if `public` is no value that the other one can have.
    pub fn agree(&self, public: &[u8]) -> Option<Wiped> {
        let count = self.field.modulus.len();
        let limbs: Vec<u64> = public.rchunks(size_of::<u64>()).map(to_limb).collect();
        let is_acceptable = public.len() == self.public.len()
            && self.field.is_below(&limbs)
            && !(limbs[0] <= 1 && limbs[1..].iter().all(|&limb| limb == 0))
            // The prime less 1: the prime is odd.
            && !(limbs[0] == self.field.modulus[0] - 1 && limbs[1..count] == self.field.modulus[1..]);
        is_acceptable.then(|| to_bytes(&self.field.power(&limbs, &self.exponent)))
    }
}

impl core::fmt::Debug for Exchange {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "Exchange({} bits)", self.public.len() * 8)
    }
}

fn to_limb(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |limb, &byte| limb << 8 | u64::from(byte))
}

fn to_bytes(limbs: &[u64]) -> Wiped {
    let mut bytes = Wiped::zeros(size_of_val(limbs));
    for (target, limb) in bytes.chunks_exact_mut(size_of::<u64>()).zip(limbs.iter().rev()) {
        target.copy_from_slice(&limb.to_be_bytes());
    }
    bytes
}

/// Numbers modulo a prime p of one of the groups, in Montgomery's form: a stands for a R mod p, with R = 2^(bits of p).
struct Field {
    modulus: Vec<u64>,
}

impl Field {
    fn new(modulus: Vec<u64>) -> Field {
        assert_eq!(
            modulus[0],
            u64::MAX,
            "so that -1/p modulo 2^64 is 1, which `multiply` relies on"
        );
        assert_eq!(modulus[modulus.len() - 1] >> (LIMB_BITS - 1), 1, "so that R - p is below p");
        Field { modulus }
    }

    fn is_below(&self, limbs: &[u64]) -> bool {
        limbs.iter().rev().lt(self.modulus.iter().rev())
    }

    /// `base` to the power of `exponent`, highest byte first.
    fn power(&self, base: &[u64], exponent: &[u8]) -> Wiped<u64> {
        let one = self.one();
        let base = self.multiply(base, &self.square_of_r());
        let mut powers = vec![one.clone()];
        for index in 1..1 << WINDOW_BITS {
            powers.push(self.multiply(&powers[index - 1], &base));
        }
        let mut result = one;
        for byte in exponent {
            for window in [byte >> WINDOW_BITS, byte & 0xf] {
                for _ in 0..WINDOW_BITS {
                    result = self.multiply(&result, &result);
                }
                result = self.multiply(&result, &select(&powers, window.into()));
            }
        }
        let mut plain_one = Wiped::zeros(self.modulus.len());
        plain_one[0] = 1;
        self.multiply(&result, &plain_one)
    }

    /// R mod p, which is R - p.
    fn one(&self) -> Wiped<u64> {
        let mut one = Wiped::zeros(self.modulus.len());
        let mut carry = true;
        for (limb, &of_modulus) in one.iter_mut().zip(&self.modulus) {
            (*limb, carry) = add(!of_modulus, 0, carry);
        }
        one
    }

    /// R R mod p: R doubled as often as p has bits.
    fn square_of_r(&self) -> Wiped<u64> {
        let mut value = self.one();
        for _ in 0..self.modulus.len() * LIMB_BITS {
            let mut carry = false;
            for limb in value.iter_mut() {
                (*limb, carry) = add(*limb, *limb, carry);
            }
            value = self.reduce(&value, carry.into());
        }
        value
    }

    /// a b / R mod p: one limb of a after the other, and each time a multiple of p that makes the lowest limb zero.
    fn multiply(&self, a: &[u64], b: &[u64]) -> Wiped<u64> {
        let count = self.modulus.len();
        let (mut sum, mut above) = (Wiped::zeros(count), 0_u64);
        for &digit in a {
            let (mut of_product, mut of_modulus) = (0_u128, 0_u128);
            let mut factor = 0;
            for index in 0..count {
                let product = u128::from(digit) * u128::from(b[index]);
                of_product += product + u128::from(sum[index]);
                let limb = of_product as u64;
                of_product >>= LIMB_BITS;
                if index == 0 {
                    factor = limb;
                }
                of_modulus +=
                    u128::from(factor) * u128::from(self.modulus[index]) + u128::from(limb);
                if index > 0 {
                    sum[index - 1] = of_modulus as u64;
                }
                of_modulus >>= LIMB_BITS;
            }
            let top = u128::from(above) + of_product + of_modulus;
            (sum[count - 1], above) = (top as u64, (top >> LIMB_BITS) as u64);
        }
        self.reduce(&sum, above)
    }

    /// `value`, and `above` times R, which together are below 2 p, mod p.
    fn reduce(&self, value: &[u64], above: u64) -> Wiped<u64> {
        let mut less = Wiped::zeros(value.len());
        let mut carry = true;
        for (index, limb) in less.iter_mut().enumerate() {
            (*limb, carry) = add(value[index], !self.modulus[index], carry);
        }
        // Without a borrow, or with one that `above` pays, the difference is the result.
        let mask = 0_u64.wrapping_sub(core::hint::black_box(u64::from(carry) | above));
        for (limb, &other) in less.iter_mut().zip(value) {
            *limb = *limb & mask | other & !mask;
        }
        less
    }
}

/// The entry at `wanted`, for which all are read.
fn select(all: &[Wiped<u64>], wanted: u64) -> Wiped<u64> {
    let mut selected = Wiped::zeros(all[0].len());
    for (index, entry) in (0_u64..).zip(all) {
        let difference = core::hint::black_box(index ^ wanted);
        // All ones if there is no difference; differences are below 2^63.
        let mask = (difference.wrapping_sub(1) >> (u64::BITS - 1)).wrapping_neg();
        for (limb, &other) in selected.iter_mut().zip(entry.iter()) {
            *limb |= other & mask;
        }
    }
    selected
}

#[cfg(test)]
mod tests;
