//! Messages of DH-HMAC-CHAP (Base 8.13.5), transferred as data of Authentication Send and Receive.
//!
//! Invariant: `Message::decode(message.encode())` is the message. Every length in it is checked
//! against the bytes that are there, and against the hash or group that it belongs to.
//!
//! Does not compute proofs; the module `auth` of this crate does.

use core::fmt;

use crate::crypto::{Group, Hash};

use super::{put, u16_at, u32_at};

/// Longest accepted message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;

// AUTH_TYPE.
const COMMON: u8 = 0;
const DH_HMAC_CHAP: u8 = 1;
// AUTH_ID.
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS_1: u8 = 0x03;
const SUCCESS_2: u8 = 0x04;
const FAILURE_2: u8 = 0xf0;
const FAILURE_1: u8 = 0xf1;

/// Length of the head of every message but the negotiation, bytes. Values follow it.
const HEAD_BYTES: usize = 16;
const FAILURE_BYTES: usize = 8;
/// The negotiation, bytes: its head, then one protocol descriptor with two lists of identifiers.
const NEGOTIATE_HEAD_BYTES: usize = 8;
const PROTOCOL_BYTES: usize = 64;
/// Most identifiers in a list, and offsets of the two lists in a protocol descriptor.
const LIST_ENTRIES_MAX: usize = 30;
const AT_HASHES: usize = 4;
const AT_GROUPS: usize = AT_HASHES + LIST_ENTRIES_MAX;
/// Identifier of the protocol.
const PROTOCOL_DH_HMAC_CHAP: u8 = 1;

/// Identifier of a hash. Secrets use the same one.
pub const fn hash_id(hash: Hash) -> u8 {
    match hash {
        Hash::Sha256 => 1,
        Hash::Sha384 => 2,
        Hash::Sha512 => 3,
    }
}

/// Inverse of `hash_id`.
pub fn hash_of(id: u8) -> Option<Hash> {
    [Hash::Sha256, Hash::Sha384, Hash::Sha512].into_iter().find(|&hash| hash_id(hash) == id)
}

/// Identifier of a group; 0: no key exchange.
pub const fn group_id(group: Option<Group>) -> u8 {
    match group {
        None => 0,
        Some(Group::Ffdhe2048) => 1,
        Some(Group::Ffdhe3072) => 2,
        Some(Group::Ffdhe4096) => 3,
        Some(Group::Ffdhe6144) => 4,
        Some(Group::Ffdhe8192) => 5,
    }
}

/// All choices of a group.
pub const GROUPS: [Option<Group>; 6] = [
    None,
    Some(Group::Ffdhe2048),
    Some(Group::Ffdhe3072),
    Some(Group::Ffdhe4096),
    Some(Group::Ffdhe6144),
    Some(Group::Ffdhe8192),
];

/// Reason for which an authentication ends (Base figure "AUTH_Failure reason code explanation").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure(pub u8);

impl Failure {
    /// Authentication failed.
    pub const FAILED: Failure = Failure(1);
    /// Authentication protocol not usable.
    pub const PROTOCOL: Failure = Failure(2);
    /// Secure channel concatenation mismatch.
    pub const CONCATENATION: Failure = Failure(3);
    /// Hash function not usable.
    pub const HASH: Failure = Failure(4);
    /// DH group not usable.
    pub const GROUP: Failure = Failure(5);
    /// Incorrect payload.
    pub const PAYLOAD: Failure = Failure(6);
    /// Incorrect protocol message.
    pub const MESSAGE: Failure = Failure(7);

    /// Text for the user of the host: the meaning, and the remedy.
    pub const fn explanation(self) -> &'static str {
        match self {
            Failure::FAILED => {
                "authentication failed: the secrets of host and controller are not the same; give the \
                 host the one that the target has for it"
            }
            Failure::PROTOCOL => "the controller does not authenticate by DH-HMAC-CHAP",
            Failure::CONCATENATION => "the controller wants authentication to set up TLS",
            Failure::HASH => "the controller uses none of SHA-256, SHA-384, SHA-512",
            Failure::GROUP => "the controller uses none of the groups ffdhe2048 to ffdhe8192",
            Failure::PAYLOAD => "an authentication message that makes no sense",
            Failure::MESSAGE => "an authentication message that cannot come now",
            _ => "authentication failed",
        }
    }
}

/// A message.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// T_ID: the transaction that the message belongs to.
    pub transaction: u16,
    /// Content of the message.
    pub content: Content,
}

/// Content of a message.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    /// AUTH_Negotiate: what the host supports.
    Negotiate {
        /// SC_C: use of the session key; 0: none.
        concatenation: u8,
        /// Identifiers of hashes.
        hashes: Vec<u8>,
        /// Identifiers of groups.
        groups: Vec<u8>,
    },
    /// DH-HMAC-CHAP_Challenge: the controller's choice.
    Challenge {
        /// The hash.
        hash: Hash,
        /// The group, if there is a key exchange.
        group: Option<Group>,
        /// SEQNUM.
        sequence: u32,
        /// C1, as long as a digest.
        challenge: Vec<u8>,
        /// The controller's public value, as long as an element of the group.
        public: Vec<u8>,
    },
    /// DH-HMAC-CHAP_Reply: the host's proof.
    Reply {
        /// R1.
        response: Vec<u8>,
        /// C2 and SEQNUM, if the controller must prove itself as well.
        challenge: Option<(Vec<u8>, u32)>,
        /// The host's public value.
        public: Vec<u8>,
    },
    /// DH-HMAC-CHAP_Success1: the host has proven itself.
    Success1 {
        /// R2, if the host asked for it.
        response: Option<Vec<u8>>,
        /// HL: length of responses, bytes.
        hash_bytes: u8,
    },
    /// DH-HMAC-CHAP_Success2: the controller has proven itself as well.
    Success2,
    /// AUTH_Failure1: the controller ends the authentication.
    Failure1(Failure),
    /// AUTH_Failure2: the host ends the authentication.
    Failure2(Failure),
}

impl Message {
    /// Encodes the message. The length is a multiple of 4.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = match &self.content {
            Content::Negotiate { concatenation, hashes, groups } => {
                negotiate(*concatenation, hashes, groups)
            }
            Content::Challenge { hash, group, sequence, challenge, public } => {
                let mut bytes = head(CHALLENGE, hash.bytes());
                (bytes[8], bytes[9]) = (hash_id(*hash), group_id(*group));
                put(&mut bytes, 10, &length_of(public));
                put(&mut bytes, 12, &sequence.to_le_bytes());
                [&bytes, &challenge[..], public].concat()
            }
            Content::Reply { response, challenge, public } => {
                let none = vec![0; response.len()];
                let mut bytes = head(REPLY, response.len());
                bytes[8] = challenge.is_some().into();
                put(&mut bytes, 10, &length_of(public));
                let (challenge, sequence) = challenge.as_ref().map_or((&none, 0), |(c, s)| (c, *s));
                put(&mut bytes, 12, &sequence.to_le_bytes());
                [&bytes, &response[..], challenge, public].concat()
            }
            Content::Success1 { response, hash_bytes } => {
                let mut bytes = head(SUCCESS_1, (*hash_bytes).into());
                bytes[8] = response.is_some().into();
                [&bytes, response.as_deref().unwrap_or(&[])].concat()
            }
            Content::Success2 => head(SUCCESS_2, 0),
            Content::Failure1(why) => failure(FAILURE_1, *why),
            Content::Failure2(why) => failure(FAILURE_2, *why),
        };
        put(&mut bytes, 4, &self.transaction.to_le_bytes());
        bytes
    }

    /// Decodes a message; other bytes may follow it. Errors: the reason to send to the peer.
    pub fn decode(bytes: &[u8]) -> Result<Message, Failure> {
        let message = *bytes.first_chunk::<FAILURE_BYTES>().ok_or(Failure::PAYLOAD)?;
        let content = match (message[0], message[1]) {
            (COMMON, NEGOTIATE) => decode_negotiate(bytes)?,
            (COMMON, FAILURE_1) => Content::Failure1(Failure(message[7])),
            (COMMON, FAILURE_2) => Content::Failure2(Failure(message[7])),
            (DH_HMAC_CHAP, kind) if bytes.len() >= HEAD_BYTES => decode_values(kind, bytes)?,
            (DH_HMAC_CHAP, _) => return Err(Failure::PAYLOAD),
            _ => return Err(Failure::MESSAGE),
        };
        Ok(Message { transaction: u16_at(bytes, 4), content })
    }
}

/// Names the message and shows no values.
impl fmt::Debug for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Content::Negotiate { .. } => "AUTH_Negotiate",
            Content::Challenge { .. } => "DH-HMAC-CHAP_Challenge",
            Content::Reply { .. } => "DH-HMAC-CHAP_Reply",
            Content::Success1 { .. } => "DH-HMAC-CHAP_Success1",
            Content::Success2 => "DH-HMAC-CHAP_Success2",
            Content::Failure1(why) => return write!(formatter, "AUTH_Failure1({})", why.0),
            Content::Failure2(why) => return write!(formatter, "AUTH_Failure2({})", why.0),
        })
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?} of transaction {}", self.content, self.transaction)
    }
}

fn head(kind: u8, hash_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    (bytes[0], bytes[1], bytes[6]) = (DH_HMAC_CHAP, kind, hash_bytes as u8);
    bytes
}

/// Encodes DHVLEN.
fn length_of(public: &[u8]) -> [u8; 2] {
    (public.len() as u16).to_le_bytes()
}

fn negotiate(concatenation: u8, hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    let most = LIST_ENTRIES_MAX;
    assert!(hashes.len() <= most && groups.len() <= most, "lists have {most} entries");
    let mut bytes = vec![0; NEGOTIATE_HEAD_BYTES + PROTOCOL_BYTES];
    (bytes[0], bytes[1], bytes[6], bytes[7]) = (COMMON, NEGOTIATE, concatenation, 1);
    let protocol = &mut bytes[NEGOTIATE_HEAD_BYTES..];
    protocol[0] = PROTOCOL_DH_HMAC_CHAP;
    (protocol[2], protocol[3]) = (hashes.len() as u8, groups.len() as u8);
    put(protocol, AT_HASHES, hashes);
    put(protocol, AT_GROUPS, groups);
    bytes
}

fn failure(kind: u8, why: Failure) -> Vec<u8> {
    // Reason code 1: authentication failure, the only one.
    vec![COMMON, kind, 0, 0, 0, 0, 1, why.0]
}

fn decode_negotiate(bytes: &[u8]) -> Result<Content, Failure> {
    let (concatenation, protocols) = (bytes[6], usize::from(bytes[7]));
    let all = bytes.get(NEGOTIATE_HEAD_BYTES..NEGOTIATE_HEAD_BYTES + protocols * PROTOCOL_BYTES);
    let mut all = all.ok_or(Failure::PAYLOAD)?.chunks_exact(PROTOCOL_BYTES);
    let protocol = all.find(|protocol| protocol[0] == PROTOCOL_DH_HMAC_CHAP);
    let protocol = protocol.ok_or(Failure::PROTOCOL)?;
    let list = |at: usize, length: u8| match usize::from(length) <= LIST_ENTRIES_MAX {
        true => Ok(protocol[at..at + usize::from(length)].to_vec()),
        false => Err(Failure::PAYLOAD),
    };
    let (hashes, groups) = (list(AT_HASHES, protocol[2])?, list(AT_GROUPS, protocol[3])?);
    Ok(Content::Negotiate { concatenation, hashes, groups })
}

/// Decodes a message with values behind its head. The whole head must be there.
fn decode_values(kind: u8, bytes: &[u8]) -> Result<Content, Failure> {
    let (head, mut values) = bytes.split_at(HEAD_BYTES);
    let mut take = |length: usize| {
        let (value, rest) = values.split_at_checked(length).ok_or(Failure::PAYLOAD)?;
        values = rest;
        Ok(value.to_vec())
    };
    let hash_bytes = usize::from(head[6]);
    let (public_bytes, sequence) = (usize::from(u16_at(head, 10)), u32_at(head, 12));
    match kind {
        CHALLENGE => {
            let hash = hash_of(head[8]).ok_or(Failure::HASH)?;
            let group = GROUPS.into_iter().find(|&group| group_id(group) == head[9]);
            let group = group.ok_or(Failure::GROUP)?;
            if hash_bytes != hash.bytes() || public_bytes != group.map_or(0, Group::bytes) {
                return Err(Failure::PAYLOAD);
            }
            let (challenge, public) = (take(hash_bytes)?, take(public_bytes)?);
            Ok(Content::Challenge { hash, group, sequence, challenge, public })
        }
        REPLY => {
            let (response, challenge) = (take(hash_bytes)?, take(hash_bytes)?);
            let challenge = (head[8] & 1 != 0).then_some((challenge, sequence));
            Ok(Content::Reply { response, challenge, public: take(public_bytes)? })
        }
        SUCCESS_1 => {
            let is_there = head[8] & 1 != 0;
            let response = is_there.then(|| take(hash_bytes)).transpose()?;
            Ok(Content::Success1 { response, hash_bytes: head[6] })
        }
        SUCCESS_2 => Ok(Content::Success2),
        _ => Err(Failure::MESSAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let challenge = |hash: Hash, group: Option<Group>| Content::Challenge {
            hash,
            group,
            sequence: 0x0102_0304,
            challenge: vec![1; hash.bytes()],
            public: vec![2; group.map_or(0, Group::bytes)],
        };
        let reply =
            |challenge| Content::Reply { response: vec![3; 48], challenge, public: vec![4; 256] };
        let success = |response| Content::Success1 { response, hash_bytes: 64 };
        let (hashes, groups) = (vec![1, 2, 3], vec![0, 1, 2, 3, 4, 5]);
        [
            Content::Negotiate { concatenation: 0, hashes, groups },
            challenge(Hash::Sha256, None),
            challenge(Hash::Sha512, Some(Group::Ffdhe8192)),
            reply(None),
            reply(Some((vec![5; 48], 9))),
            success(None),
            success(Some(vec![6; 64])),
            Content::Success2,
            Content::Failure1(Failure::HASH),
            Content::Failure2(Failure::FAILED),
        ]
        .map(|content| Message { transaction: 0xabcd, content })
        .into()
    }

    #[test]
    fn messages_are_read_back_and_what_was_cut_off_is_refused() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() % 4 == 0 && bytes.len() <= MESSAGE_BYTES_MAX, "{message:?}");
            assert!(Message::decode(&bytes) == Ok(message.clone()), "{message:?}");
            let longer = [&bytes[..], &[0xee; 100]].concat();
            assert!(Message::decode(&longer) == Ok(message.clone()), "{message:?}, and more");
            for length in 0..bytes.len() {
                let cut = Message::decode(&bytes[..length]);
                assert_eq!(cut, Err(Failure::PAYLOAD), "{message:?} of {length} bytes");
            }
        }
    }

    #[test]
    fn lengths_that_do_not_fit_what_was_chosen_are_refused() {
        let challenge = all()[2].encode();
        for (at, value, why) in [
            (6, 32, Failure::PAYLOAD),
            (8, 9, Failure::HASH),
            (9, 6, Failure::GROUP),
            (9, 1, Failure::PAYLOAD),
            (11, 0, Failure::PAYLOAD),
            (1, 0x77, Failure::MESSAGE),
            (0, 2, Failure::MESSAGE),
        ] {
            let mut wrong = challenge.clone();
            wrong[at] = value;
            assert_eq!(Message::decode(&wrong), Err(why), "{value} at {at}");
        }
        let negotiate = all()[0].encode();
        for (at, value, why) in [
            (7, 0, Failure::PROTOCOL),
            (7, 2, Failure::PAYLOAD),
            (8, 2, Failure::PROTOCOL),
            (10, 31, Failure::PAYLOAD),
            (11, 255, Failure::PAYLOAD),
        ] {
            let mut wrong = negotiate.clone();
            wrong[at] = value;
            assert_eq!(Message::decode(&wrong), Err(why), "{value} at {at}");
        }
    }

    #[test]
    fn nothing_of_a_message_is_shown() {
        assert_eq!(format!("{:?}", all()[4]), "DH-HMAC-CHAP_Reply of transaction 43981");
    }
}
