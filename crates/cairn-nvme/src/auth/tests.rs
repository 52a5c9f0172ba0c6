//! A host against a controller that misbehaves. Expected proofs come from another implementation.

use super::*;
use crate::secret::Secrets;

const HOST: &str = "nqn.2026-11.io.cairn:host";
const SUBSYSTEM: &str = "nqn.2026-11.io.cairn:target";
const SECRET: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

fn subsystem() -> Nqn {
    Nqn::new(SUBSYSTEM).unwrap()
}

fn secrets(text: &str) -> Secrets {
    Secrets::parse(format!("{HOST}\n{text}").as_bytes()).unwrap()
}

fn both() -> Secrets {
    secrets(&format!("{SECRET}\n{OTHER}"))
}

fn challenge(transaction: u16, group: Option<Group>, public: Vec<u8>) -> Message {
    let (hash, challenge) = (Hash::Sha256, vec![7; 32]);
    let content = Content::Challenge { hash, group, sequence: 5, challenge, public };
    Message { transaction, content }
}

fn plain_challenge(host: &Host<'_>) -> Vec<u8> {
    challenge(host.transaction, None, Vec::new()).encode()
}

fn refused<T>(result: core::result::Result<T, Refusal>) -> Failure {
    match result {
        Err(Refusal::Ours { failure, .. } | Refusal::Theirs(failure)) => failure,
        Err(Refusal::Other(error)) => panic!("{error}"),
        Ok(_) => panic!("accepted"),
    }
}

fn success(host: &Host<'_>, response: Option<Vec<u8>>) -> Vec<u8> {
    let content = Content::Success1 { response, hash_bytes: 32 };
    Message { transaction: host.transaction, content }.encode()
}

/// The expected values were computed with Python.
#[test]
fn proofs_are_those_of_another_implementation() {
    let (host, subsystem) = (Nqn::new(HOST).unwrap(), subsystem());
    let (key, challenge): (Vec<u8>, Vec<u8>) = ((0..32).collect(), (100..148).collect());
    let mut proof = Proof {
        hash: Hash::Sha384,
        key: &key,
        challenge: &challenge,
        agreed: None,
        sequence: 0x0102_0304,
        transaction: 0x0506,
        concatenation: 0,
    };
    let start = |proof: Wiped| u64::from_be_bytes(*proof.first_chunk().unwrap());
    assert_eq!(start(proof.of_host(&host, &subsystem)), 0x33577765218d17f1);
    assert_eq!(start(proof.of_controller(&host, &subsystem)), 0xd43293e24f7ec26b);
    proof.agreed = Some(&[9; 256]);
    assert_eq!(start(proof.of_host(&host, &subsystem)), 0x43bffb51c9000a27);
}

#[test]
fn controller_that_proves_itself_is_accepted_and_told_so() {
    let (secrets, subsystem) = (both(), subsystem());
    let mut host = Host::new(&subsystem, &secrets).unwrap();
    host.reply(&plain_challenge(&host)).unwrap();
    let Some((_, Some(expected))) = &host.expected else { panic!("it is to prove itself") };
    let proof = success(&host, Some(expected.to_vec()));
    let told = host.conclude(&proof).unwrap().expect("it is told");
    assert_eq!(told.content, Content::Success2);
    assert_eq!(refused(host.conclude(&proof)), Failure::MESSAGE, "twice");
}

#[test]
fn controller_without_the_second_secret_is_refused() {
    let (secrets, subsystem) = (both(), subsystem());
    let mut host = Host::new(&subsystem, &secrets).unwrap();
    let replied = |host: &mut Host<'_>| host.reply(&plain_challenge(host)).unwrap().content;
    // Two proofs that were sent before: the host's own, and an older one of the controller.
    let Content::Reply { response: own, .. } = replied(&mut host) else { panic!() };
    let Some((_, Some(old))) = host.expected.clone() else { panic!() };
    for proof in [Some(own), Some(old.to_vec()), Some(vec![0; 32]), None] {
        replied(&mut host);
        let proof = success(&host, proof);
        assert_eq!(refused(host.conclude(&proof)), Failure::FAILED);
    }
}

#[test]
fn challenge_is_never_answered_with_the_same_challenge() {
    let (secrets, subsystem) = (both(), subsystem());
    let mut host = Host::new(&subsystem, &secrets).unwrap();
    let mut asked = || match host.reply(&plain_challenge(&host)).unwrap().content {
        Content::Reply { challenge: Some((challenge, _)), .. } => challenge,
        other => panic!("{other:?}"),
    };
    let (first, second) = (asked(), asked());
    assert!(first != second && first != [7; 32]);
}

#[test]
fn messages_of_another_time_or_transaction_are_refused() {
    let (secrets, subsystem) = (secrets(SECRET), subsystem());
    let mut host = Host::new(&subsystem, &secrets).unwrap();
    let good = plain_challenge(&host);
    let early = success(&host, None);
    assert_eq!(refused(host.conclude(&early)), Failure::MESSAGE, "before the challenge");
    assert_eq!(refused(host.reply(&early)), Failure::MESSAGE);
    let other = challenge(host.transaction ^ 1, None, Vec::new()).encode();
    assert_eq!(refused(host.reply(&other)), Failure::PAYLOAD, "another transaction");
    for length in 0..good.len() {
        assert_eq!(refused(host.reply(&good[..length])), Failure::PAYLOAD, "{length} bytes");
    }
    host.reply(&good).unwrap();
    assert!(host.conclude(&early).unwrap().is_none(), "nobody is told");
}

#[test]
fn public_values_that_give_secrets_away_are_refused() {
    let (secrets, subsystem) = (secrets(SECRET), subsystem());
    let mut host = Host::new(&subsystem, &secrets).unwrap();
    let group = Group::Ffdhe2048;
    let mut one = vec![0; group.bytes()];
    one[group.bytes() - 1] = 1;
    for public in [vec![0; group.bytes()], one, vec![0xff; group.bytes()]] {
        let bytes = challenge(host.transaction, Some(group), public).encode();
        assert_eq!(refused(host.reply(&bytes)), Failure::PAYLOAD);
    }
}

#[test]
fn controller_that_gives_up_says_why() {
    let (secrets, subsystem) = (secrets(SECRET), subsystem());
    let mut host = Host::new(&subsystem, &secrets).unwrap();
    for failure in [Failure::FAILED, Failure::HASH, Failure(99)] {
        let content = Content::Failure1(failure);
        let bytes = Message { transaction: host.transaction, content }.encode();
        assert!(matches!(host.reply(&bytes), Err(Refusal::Theirs(told)) if told == failure));
    }
}

#[test]
fn what_connect_says_of_authentication_is_what_was_expected() {
    let (secrets, subsystem) = (secrets(SECRET), subsystem());
    let settle = |connected, secrets| {
        settle(connected, &subsystem, secrets, |_, _, _| Err(Error::Closed)).unwrap_err()
    };
    assert_eq!(settle(AUTHENTICATION_ALONE, Some(&secrets)), Error::Closed, "it begins");
    for (connected, secrets, problem) in [
        (1, Some(&secrets), "does not ask"),
        (AUTHENTICATION_ALONE, None, "?auth=FILE"),
        (AUTHENTICATION_DEMANDED, None, "?auth=FILE"),
        (AUTHENTICATION_DEMANDED, Some(&secrets), "TLS"),
    ] {
        let error = settle(connected, secrets);
        assert!(!error.may_be_retried() && error.to_string().contains(problem), "{error}");
    }
}
