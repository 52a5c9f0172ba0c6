//! Diffie-Hellman in the groups of RFC 7919: two who exchange public values know a value that who
//! listens does not.
//!
//! Must stay true: time and memory accesses do not depend on exponents, nor on what is computed
//! with them. Values of others are accepted only from 2 to the prime less 2. Exponents and results
//! are wiped; what `crypto-bigint` computes on the way, powers of a public value, is not.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroizing;

use super::wiped::Wiped;

/// Length of an exponent. More than twice the strength of the largest group, as RFC 7919 asks in
/// its section 5.2.
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

    /// What is added in the formula of RFC 7919 (appendix A) so that the result is prime, and half
    /// of it, too.
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
    field: BoxedMontyParams,
    exponent: Zeroizing<BoxedUint>,
    public: Vec<u8>,
}

impl Exchange {
    /// Chooses an exponent. Errors: the kernel has no random numbers.
    pub fn new(group: Group) -> crate::sys::SysResult<Exchange> {
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

    /// What the other one is told, highest byte first, as long as elements of the group.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// What both know then, as long as elements of the group; none if `public` is no value that the
    /// other one can have.
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

/// A number of so many bytes, from no more of them.
fn number(bytes: &[u8], length: usize) -> Option<BoxedUint> {
    BoxedUint::from_be_slice(bytes, u32::try_from(length * 8).ok()?).ok()
}

/// `base` to the power of `exponent`, as many bytes as the prime has.
fn power(field: &BoxedMontyParams, base: BoxedUint, exponent: &BoxedUint) -> Wiped {
    let power = Zeroizing::new(BoxedMontyForm::new(base, field).pow(exponent));
    let power = Zeroizing::new(power.retrieve());
    Wiped::taken_from(&mut power.to_be_bytes())
}

#[cfg(test)]
mod tests;
