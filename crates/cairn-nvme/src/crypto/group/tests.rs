//! Primes are compared with RFC 7919, powers with another implementation.

use super::*;
use crate::crypto::Hash;

fn bytes_of_prime(group: Group) -> Vec<u8> {
    group.prime().iter().rev().flat_map(|limb| limb.to_be_bytes()).collect()
}

fn digest(bytes: &[u8]) -> String {
    Hash::Sha256.of(&[bytes]).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The expected digests are of the primes as Python computes them from the formula. That of
/// ffdhe2048 was also compared with the text of RFC 7919. For each prime p, 2^((p-1)/2) is 1.
#[test]
fn primes_are_those_of_rfc_7919() {
    let expected = [
        (Group::Ffdhe2048, "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966"),
        (Group::Ffdhe3072, "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17"),
        (Group::Ffdhe4096, "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e"),
        (Group::Ffdhe6144, "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7"),
        (Group::Ffdhe8192, "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833"),
    ];
    for (group, expected) in expected {
        let prime = bytes_of_prime(group);
        assert_eq!(prime.len(), group.bytes());
        assert_eq!(digest(&prime), expected, "{group:?}");
    }
    let prime = bytes_of_prime(Group::Ffdhe2048);
    assert_eq!(prime[..16], 0xffff_ffff_ffff_ffff_adf8_5458_a2bb_4a9a_u128.to_be_bytes());
    assert_eq!(prime[240..], 0x886b_4238_6128_5c97_ffff_ffff_ffff_ffff_u128.to_be_bytes());
}

/// The first bytes of the expected digests were computed with Python.
#[test]
fn both_sides_agree_on_the_value_that_another_implementation_computes() {
    let expected = [
        (Group::Ffdhe2048, "1908b0773912e53f", "4d094885e416c90e"),
        (Group::Ffdhe3072, "e9f81f609bb558fd", "5bec6b050869236b"),
        (Group::Ffdhe4096, "a53688d3a4d42b2c", "2f17493a0e399f38"),
        (Group::Ffdhe6144, "21ff5bd61a7d69b1", "5adb6b12237c3aa6"),
        (Group::Ffdhe8192, "b2f1e92b44e0a45e", "0138b09210723ee8"),
    ];
    let first: Vec<u8> = (1..=64).collect();
    let second: Vec<u8> = (0..64).map(|index| 255 - index).collect();
    for (group, public, agreed) in expected {
        let first = Exchange::with(group, &first);
        let second = Exchange::with(group, &second);
        assert_eq!(digest(first.public())[..16], *public, "{group:?}");
        let both = [first.agree(second.public()), second.agree(first.public())];
        for one in both {
            assert_eq!(digest(&one.unwrap())[..16], *agreed, "{group:?}");
        }
    }
}

#[test]
fn values_that_nobody_can_have_chosen_are_refused() {
    let group = Group::Ffdhe2048;
    let exchange = Exchange::new(group).unwrap();
    let prime = bytes_of_prime(group);
    let number = |number: u8| {
        let mut bytes = vec![0; group.bytes()];
        bytes[group.bytes() - 1] = number;
        bytes
    };
    let below_prime = |less: u8| {
        let mut bytes = prime.to_vec();
        bytes[group.bytes() - 1] -= less;
        bytes
    };
    let refused = [number(0), number(1), below_prime(0), below_prime(1), vec![0xff; group.bytes()]];
    for public in refused {
        assert!(exchange.agree(&public).is_none(), "{:?}", &public[..8]);
    }
    for length in [0, 1, group.bytes() - 1, group.bytes() + 1, Group::Ffdhe3072.bytes()] {
        assert!(exchange.agree(&vec![2; length]).is_none(), "{length} bytes");
    }
    for public in [number(2), below_prime(2)] {
        assert!(exchange.agree(&public).is_some());
    }
    assert_eq!(exchange.agree(&number(2)).unwrap()[..], *exchange.public());
    assert_eq!(format!("{exchange:?}"), "Exchange(2048 bits)");
}
