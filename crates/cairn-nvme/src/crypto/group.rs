//! Diffie-Hellman in the groups of RFC 7919: two sides exchange public values and share a value
//! that an eavesdropper does not learn.
//!
//! Invariant: time and memory accesses do not depend on exponents, nor on what is computed with
//! them. Public values of others are accepted only from 2 to the prime minus 2. Exponents and
//! results are wiped. The intermediate values of `crypto-bigint`, powers of a public value, are
//! not.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroizing;

use super::wiped::Wiped;

/// Length of an exponent, bytes. More than twice the strength of the largest group, as RFC 7919
/// asks in section 5.2.
const EXPONENT_BYTES: usize = 64;
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
    /// Length of its elements, bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
            Group::Ffdhe6144 => 768,
            Group::Ffdhe8192 => 1024,
        }
    }

    /// Addend in the formula of RFC 7919 (appendix A). It makes the result p prime, and (p - 1) / 2
    /// as well.
    const fn addend(self) -> u64 {
        match self {
            Group::Ffdhe2048 => 560_316,
            Group::Ffdhe3072 => 2_625_351,
            Group::Ffdhe4096 => 5_736_041,
            Group::Ffdhe6144 => 15_705_020,
            Group::Ffdhe8192 => 10_965_728,
        }
    }

    /// The prime, lowest limb first: 2^b - 2^(b-64) + (floor(2^(b-130) e) + addend) 2^64 - 1 for b
    /// bits.
    fn prime(self) -> Vec<u64> {
        let count = self.bytes() / size_of::<u64>();
        let euler = euler(count);
        let mut prime = vec![u64::MAX; count];
        // The final -1 makes the lowest limb all ones and borrows from the other limbs.
        let mut carry = u128::from(self.addend() - 1);
        for (index, limb) in prime[1..count - 1].iter_mut().enumerate() {
            // The sum needs Euler's number from bit 130 on: two limbs and two bits.
            let shifted = euler[index + 2] >> 2 | euler[index + 3] << (LIMB_BITS - 2);
            let sum = u128::from(shifted) + carry;
            (*limb, carry) = (sum as u64, sum >> LIMB_BITS);
        }
        prime
    }
}

/// Euler's number times 2^(64 `count`), lowest limb first, except for the last bits. Computed as
/// the sum of 1/k!.
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

/// Our side of a key exchange.
pub struct Exchange {
    field: BoxedMontyParams,
    exponent: Zeroizing<BoxedUint>,
    public: Vec<u8>,
}

impl Exchange {
    /// Chooses an exponent. Errors: the kernel has no random numbers.
    pub fn new(group: Group) -> cairn_platform::sys::SysResult<Exchange> {
        Ok(Exchange::with(group, &Wiped::random(EXPONENT_BYTES)?))
    }

    fn with(group: Group, exponent: &[u8]) -> Exchange {
        let prime = Odd::new(BoxedUint::from_words(group.prime()));
        let field = BoxedMontyParams::new(prime.expect("a prime of these is odd"));
        let exponent = Zeroizing::new(number(exponent, EXPONENT_BYTES).expect("it fits"));
        let two = number(&[2], group.bytes()).expect("it fits");
        let public = power(&field, two, &exponent).to_vec();
        Exchange { field, exponent, public }
    }

    /// Public value to send: highest byte first, as long as an element of the group.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Returns the shared value, as long as an element of the group. `None`: `public` is not a
    /// value that the other side can have.
    pub fn agree(&self, public: &[u8]) -> Option<Wiped> {
        let one = BoxedUint::one_with_precision(self.field.bits_precision());
        let greatest = self.field.modulus().as_ref().wrapping_sub(&one);
        let value = number(public, self.public.len())?;
        let is_acceptable = public.len() == self.public.len() && value > one && value < greatest;
        is_acceptable.then(|| power(&self.field, value, &self.exponent))
    }
}

impl core::fmt::Debug for Exchange {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(formatter, "Exchange({} bits)", self.public.len() * 8)
    }
}

/// Converts big-endian bytes to a number of `length` bytes. `None`: it does not fit.
fn number(bytes: &[u8], length: usize) -> Option<BoxedUint> {
    BoxedUint::from_be_slice(bytes, u32::try_from(length * 8).ok()?).ok()
}

/// Returns `base` to the power of `exponent`, as long as the prime.
fn power(field: &BoxedMontyParams, base: BoxedUint, exponent: &BoxedUint) -> Wiped {
    let power = Zeroizing::new(BoxedMontyForm::new(base, field).pow(exponent));
    let power = Zeroizing::new(power.retrieve());
    Wiped::taken_from(&mut power.to_be_bytes())
}

#[cfg(test)]
mod tests;
