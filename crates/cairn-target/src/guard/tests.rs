//! Our host against our controller, message by message, and hosts that attack it.

use cairn_nvme::auth::{Host, Refusal};

use super::*;

const HOST: &str = "nqn.2026-11.io.cairn:host";
const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
const OTHER: &str = "DHHC-1:01:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

fn subsystem() -> Nqn {
    Nqn::new("nqn.2026-11.io.cairn:target").unwrap()
}

fn secrets(lines: &[&str]) -> Secrets {
    Secrets::parse([&[HOST], lines].concat().join("\n").as_bytes()).unwrap()
}

/// Controller that knows both secrets, and chooses this hash and group.
fn check(hash: Hash, group: Option<Group>) -> Check {
    let hosts = HostSecrets::parse(format!("{HOST} {SECRET} {OTHER}").as_bytes()).unwrap();
    let guard = Guard { hashes: vec![hash], groups: vec![group], ..Guard::new(hosts) };
    guard.check(&Nqn::new(HOST).unwrap(), &subsystem()).unwrap().unwrap()
}

fn plain() -> Check {
    check(Hash::Sha256, None)
}

/// The controller's answer to a message.
fn answered(check: &mut Check, message: &[u8]) -> Vec<u8> {
    check.take(message);
    check.answer(4096).expect("there is an answer")
}

/// Exchanges messages up to the host's reply.
fn up_to_reply(check: &mut Check, host: &mut Host<'_>) -> Result<Vec<u8>, Refusal> {
    let challenge = answered(check, &host.negotiate().encode());
    host.reply(&challenge).map(|message| message.encode())
}

/// Asserts that the controller refuses a message for this reason, and for good.
fn assert_refused(check: &mut Check, message: &[u8], failure: Failure) {
    let answer = Message::decode(&answered(check, message)).unwrap();
    assert_eq!(answer.content, Content::Failure1(failure));
    assert_eq!(check.progress(), Progress::Failed);
}

#[test]
fn host_and_controller_prove_themselves_with_every_hash_and_group() {
    let (subsystem, both) = (subsystem(), secrets(&[SECRET, OTHER]));
    let with_each_group = GROUPS.map(|group| (Hash::Sha256, group));
    let with_each_hash = HASHES.map(|hash| (hash, Some(Group::Ffdhe2048)));
    for (hash, group) in with_each_group.into_iter().chain(with_each_hash) {
        let (mut check, mut host) = (check(hash, group), Host::new(&subsystem, &both).unwrap());
        let reply = up_to_reply(&mut check, &mut host).unwrap();
        let success = answered(&mut check, &reply);
        assert_eq!(check.progress(), Progress::Going, "the host may not believe us");
        let success = host.conclude(&success).unwrap().expect("the target has proven itself");
        check.take(&success.encode());
        assert_eq!(check.progress(), Progress::Passed, "{hash:?} {group:?}");
    }
}

#[test]
fn host_that_wants_no_proof_has_passed_when_it_knows() {
    let (subsystem, secrets) = (subsystem(), secrets(&[SECRET]));
    let (mut check, mut host) = (plain(), Host::new(&subsystem, &secrets).unwrap());
    let reply = up_to_reply(&mut check, &mut host).unwrap();
    check.take(&reply);
    assert_eq!(check.progress(), Progress::Going);
    assert!(host.conclude(&check.answer(4096).unwrap()).unwrap().is_none());
    assert_eq!(check.progress(), Progress::Passed);
}

#[test]
fn wrong_and_old_proofs_are_refused() {
    let (subsystem, good, wrong) = (subsystem(), secrets(&[SECRET]), secrets(&[OTHER]));
    let mut host = Host::new(&subsystem, &wrong).unwrap();
    let mut check = plain();
    let reply = up_to_reply(&mut check, &mut host).unwrap();
    assert_refused(&mut check, &reply, Failure::FAILED);
    // An overheard reply, sent again in a transaction with the same number.
    let mut host = Host::new(&subsystem, &good).unwrap();
    let overheard = up_to_reply(&mut plain(), &mut host).unwrap();
    let mut check = plain();
    answered(&mut check, &host.negotiate().encode());
    assert_refused(&mut check, &overheard, Failure::FAILED);
}

#[test]
fn what_we_have_sent_is_refused_when_it_comes_back() {
    let group = Some(Group::Ffdhe2048);
    let (subsystem, both) = (subsystem(), secrets(&[SECRET, OTHER]));
    let host = Host::new(&subsystem, &both).unwrap();
    let mut check = check(Hash::Sha256, group);
    let bytes = answered(&mut check, &host.negotiate().encode());
    let asked = Message::decode(&bytes).unwrap();
    let Content::Challenge { public, challenge, .. } = asked.content else { panic!() };
    let content =
        Content::Reply { response: challenge.clone(), challenge: Some((challenge, 1)), public };
    let reply = Message { transaction: asked.transaction, content }.encode();
    assert_refused(&mut check, &reply, Failure::PAYLOAD);
    // A host that knows its secret, but returns the controller's own challenge.
    let mut check = plain();
    let mut host = Host::new(&subsystem, &both).unwrap();
    let challenge = answered(&mut check, &host.negotiate().encode());
    let Content::Challenge { challenge: asked, .. } = Message::decode(&challenge).unwrap().content
    else {
        panic!()
    };
    let mut reply = host.reply(&challenge).unwrap();
    let Content::Reply { challenge, .. } = &mut reply.content else { panic!() };
    *challenge = Some((asked, 1));
    assert_refused(&mut check, &reply.encode(), Failure::FAILED);
}

#[test]
fn messages_that_cannot_come_or_are_cut_off_are_refused() {
    let (subsystem, good) = (subsystem(), secrets(&[SECRET]));
    let mut host = Host::new(&subsystem, &good).unwrap();
    let negotiate = host.negotiate();
    let success = Message { content: Content::Success2, ..negotiate.clone() }.encode();
    assert_refused(&mut plain(), &success, Failure::MESSAGE);
    for length in 0..negotiate.encode().len() {
        assert_refused(&mut plain(), &negotiate.encode()[..length], Failure::PAYLOAD);
    }
    let reply = up_to_reply(&mut plain(), &mut host).unwrap();
    for length in 0..reply.len() {
        let mut check = plain();
        answered(&mut check, &negotiate.encode());
        assert_refused(&mut check, &reply[..length], Failure::PAYLOAD);
    }
    let other = Message { transaction: negotiate.transaction ^ 1, content: Content::Success2 };
    let mut check = plain();
    answered(&mut check, &negotiate.encode());
    assert_refused(&mut check, &other.encode(), Failure::PAYLOAD);
}

#[test]
fn hosts_that_can_nothing_that_we_can_or_want_tls_are_told_so() {
    let cases = [
        (0, vec![9], vec![0], Failure::HASH),
        (0, vec![1], vec![9], Failure::GROUP),
        (0, vec![], vec![], Failure::HASH),
        (1, vec![1], vec![0], Failure::CONCATENATION),
    ];
    for (concatenation, hashes, groups, failure) in cases {
        let content = Content::Negotiate { concatenation, hashes, groups };
        assert_refused(&mut plain(), &Message { transaction: 7, content }.encode(), failure);
    }
}

#[test]
fn answers_are_there_once_and_only_whole() {
    let (subsystem, good) = (subsystem(), secrets(&[SECRET]));
    let host = Host::new(&subsystem, &good).unwrap();
    let mut check = plain();
    assert_eq!(check.answer(4096), Err(Status::SEQUENCE_ERROR.for_good()), "nothing was asked");
    check.take(&host.negotiate().encode());
    assert_eq!(check.answer(16), Err(Status::INVALID_FIELD.for_good()), "too little room");
    assert!(check.answer(48).is_ok());
    assert_eq!(check.answer(4096), Err(Status::SEQUENCE_ERROR.for_good()), "twice");
    let content = Content::Failure2(Failure::FAILED);
    check.take(&Message { content, ..host.negotiate() }.encode());
    assert_eq!(check.progress(), Progress::Failed, "the host has given up");
}

#[test]
fn strangers_are_refused_and_secrets_are_not_shown() {
    let hosts = HostSecrets::parse(format!("{HOST} {SECRET}").as_bytes()).unwrap();
    let guard = Guard::new(hosts);
    let stranger = Nqn::new("nqn.stranger").unwrap();
    let refused = guard.check(&stranger, &subsystem()).err();
    assert_eq!(refused, Some(Status::HOST_INVALID.for_good()));
    assert!(!format!("{guard:?}").contains("AQID"));
}
