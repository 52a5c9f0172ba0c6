//! DH-HMAC-CHAP (Base 8.13.5): host and controller prove to each other that they know a secret,
//! without revealing it.
//!
//! ```text
//! host  AUTH_Negotiate ───────────────────────────────► controller     hashes and groups
//!       ◄──────────── Challenge: C1, public value                      "prove: HMAC(key, C1, …)"
//!       Reply: R1, C2, public value ──────────────────►                R1 is right; C2 is for you
//!       ◄──────────── Success1: R2
//!       Success2 ─────────────────────────────────────►                R2 is right
//! ```
//! Invariant: nothing proceeds before the expected proof was compared in full. Proofs of hosts and
//! of controllers hash different input, so neither can be reflected. Challenges are random, so no
//! proof is valid twice.
//!
//! Does not protect what follows on the connection.

use crate::crypto::{Exchange, Group, Hash, Wiped};

use super::error::{Error, Result};
use super::secret::Secrets;
use super::transport::Data;
use super::wire::auth::{Content, Failure, GROUPS, MESSAGE_BYTES_MAX, Message, group_id, hash_id};
use super::wire::fabrics::{AUTHENTICATION_ALONE, AUTHENTICATION_DEMANDED};
use super::wire::{Command, Nqn};

/// Hashes that host and target support, in order of preference.
pub const HASHES: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

const WITHOUT_SECRET: &str = "the controller demands authentication: write the host's secret into a \
                              file with mode 0600 and give it, as in nvme-tcp://HOST/NQN?auth=FILE";
const NOT_DEMANDED: &str = "a secret was given, but the controller does not ask for it: require \
                            authentication there, or leave out auth=";
const WRONG_CONTROLLER: &str = "the controller could not prove who it is: the second secret is not \
                                the one it has";
const UNPROVEN: &str =
    "the controller did not prove who it is, but the second secret requires that";

/// Input of a proof, except for the names.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    /// Hash that was agreed on.
    pub hash: Hash,
    /// Key of the side that proves itself.
    pub key: &'a [u8],
    /// C1 or C2.
    pub challenge: &'a [u8],
    /// Shared value of the Diffie-Hellman exchange, if there was one.
    pub agreed: Option<&'a [u8]>,
    /// S1 or S2.
    pub sequence: u32,
    /// T_ID.
    pub transaction: u16,
    /// SC_C.
    pub concatenation: u8,
}

impl Proof<'_> {
    /// The host's proof (Base 8.13.5.4).
    pub fn of_host(&self, host: &Nqn, subsystem: &Nqn) -> Wiped {
        self.with(b"HostHost", host, subsystem)
    }

    /// The controller's proof (Base 8.13.5.5).
    pub fn of_controller(&self, host: &Nqn, subsystem: &Nqn) -> Wiped {
        self.with(b"Controller", subsystem, host)
    }

    fn with(&self, role: &[u8], own: &Nqn, other: &Nqn) -> Wiped {
        let challenge = self.augmented_challenge();
        let (sequence, transaction) = (self.sequence.to_le_bytes(), self.transaction.to_le_bytes());
        let own = own.as_str().as_bytes();
        let numbers = [&sequence[..], &transaction, &[self.concatenation]];
        let names = [role, own, &[0], other.as_str().as_bytes()];
        let parts = [&[&challenge[..]][..], &numbers, &names].concat();
        self.hash.mac(self.key, &parts)
    }

    /// The challenge, bound to the key exchange (Base 8.13.5.3).
    fn augmented_challenge(&self) -> Wiped {
        match self.agreed {
            None => Wiped::copy_of(self.challenge),
            Some(agreed) => self.hash.mac(&self.hash.of(&[agreed]), &[self.challenge]),
        }
    }
}

/// Authenticates a queue after Connect, as far as needed. `connected` is the result of Connect.
/// `execute` executes a command of the queue.
pub(super) fn settle(
    connected: u64,
    subsystem: &Nqn,
    secrets: Option<&Secrets>,
    execute: impl FnMut(&'static str, &Command, Data) -> Result<u64>,
) -> Result<()> {
    let refused = |why| Err(Error::Unauthenticated { why });
    match (connected & AUTHENTICATION_DEMANDED, secrets) {
        (0, None) => Ok(()),
        (0, Some(_)) => refused(NOT_DEMANDED),
        (_, None) => refused(WITHOUT_SECRET),
        (AUTHENTICATION_ALONE, Some(secrets)) => {
            authenticate(Host::new(subsystem, secrets)?, execute).map_err(Error::from)
        }
        (_, Some(_)) => refused(Failure::CONCATENATION.explanation()),
    }
}

/// Reason why an authentication ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The controller has sent something unacceptable, and is told so.
    Ours {
        /// Failure that is sent to the controller.
        failure: Failure,
        /// Text for the user.
        why: &'static str,
    },
    /// The controller has ended the authentication.
    Theirs(Failure),
    /// Another error.
    Other(Error),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Ours { failure, why: failure.explanation() }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Other(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Ours { why, .. } => Error::Unauthenticated { why },
            Refusal::Theirs(failure) => Error::Unauthenticated { why: failure.explanation() },
            Refusal::Other(error) => error,
        }
    }
}

/// Exchanges the messages of `host` with the controller.
fn authenticate(
    mut host: Host<'_>,
    mut execute: impl FnMut(&'static str, &Command, Data) -> Result<u64>,
) -> core::result::Result<(), Refusal> {
    let mut converse = || {
        send(&host.negotiate(), &mut execute)?;
        let reply = host.reply(&receive(&mut execute)?)?;
        send(&reply, &mut execute)?;
        if let Some(success) = host.conclude(&receive(&mut execute)?)? {
            send(&success, &mut execute)?;
        }
        Ok(())
    };
    let ended = converse();
    if let Err(Refusal::Ours { failure, .. }) = ended {
        let content = Content::Failure2(failure);
        // The queue is not used any more, whether the controller receives this or not.
        let _ = send(&Message { transaction: host.transaction, content }, &mut execute);
    }
    ended
}

fn send(
    message: &Message,
    mut execute: impl FnMut(&'static str, &Command, Data) -> Result<u64>,
) -> Result<()> {
    let bytes = message.encode();
    let send = Command::AuthenticationSend { bytes: bytes.len() as u32 };
    execute("authentication send", &send, Data::of(&bytes)).map(drop)
}

fn receive(
    mut execute: impl FnMut(&'static str, &Command, Data) -> Result<u64>,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let receive = Command::AuthenticationReceive { bytes: MESSAGE_BYTES_MAX as u32 };
    execute("authentication receive", &receive, Data::into(&mut bytes))?;
    Ok(bytes)
}

/// Host's side of one authentication.
#[derive(Debug)]
pub struct Host<'a> {
    subsystem: &'a Nqn,
    secrets: &'a Secrets,
    transaction: u16,
    /// Hash, and proof expected from the controller. Set when the host has sent its challenge.
    expected: Option<(Hash, Option<Wiped>)>,
}

impl<'a> Host<'a> {
    /// Authentication with a controller of `subsystem`. Errors: the kernel has no random numbers.
    pub fn new(subsystem: &'a Nqn, secrets: &'a Secrets) -> Result<Host<'a>> {
        let [low, high] = random()?;
        let transaction = u16::from_le_bytes([low, high]);
        Ok(Host { subsystem, secrets, transaction, expected: None })
    }

    /// Returns the first message.
    pub fn negotiate(&self) -> Message {
        let hashes = HASHES.map(hash_id).into();
        // Groups with a key exchange come first.
        let groups = GROUPS.iter().rev().map(|&group| group_id(group)).collect();
        self.message(Content::Negotiate { concatenation: 0, hashes, groups })
    }

    /// Returns the answer to a challenge.
    pub fn reply(&mut self, bytes: &[u8]) -> core::result::Result<Message, Refusal> {
        let Content::Challenge { hash, group, sequence, challenge, public } = self.read(bytes)?
        else {
            return Err(Failure::MESSAGE.into());
        };
        let (own, agreed) = exchange(group, &public)?;
        let key = self.secrets.host.key_of(&self.secrets.name);
        let proof = Proof {
            hash,
            key: &key,
            challenge: &challenge,
            agreed: agreed.as_deref(),
            sequence,
            transaction: self.transaction,
            concatenation: 0,
        };
        let response = proof.of_host(&self.secrets.name, self.subsystem).to_vec();
        let (asked, expected) = match &self.secrets.controller {
            Some(secret) => {
                let challenge = Wiped::random(hash.bytes()).map_err(randomless)?;
                let sequence = u32::from_le_bytes(random()?);
                let key = secret.key_of(self.subsystem);
                let proof = Proof { key: &key, challenge: &challenge, sequence, ..proof };
                let expected = proof.of_controller(&self.secrets.name, self.subsystem);
                (Some((challenge.to_vec(), sequence)), Some(expected))
            }
            None => (None, None),
        };
        self.expected = Some((hash, expected));
        Ok(self.message(Content::Reply { response, challenge: asked, public: own }))
    }

    /// Checks the controller's proof. Returns the message to send next, if there is one.
    pub fn conclude(&mut self, bytes: &[u8]) -> core::result::Result<Option<Message>, Refusal> {
        let Content::Success1 { response, hash_bytes } = self.read(bytes)? else {
            return Err(Failure::MESSAGE.into());
        };
        let (hash, expected) = self.expected.take().ok_or(Failure::MESSAGE)?;
        if usize::from(hash_bytes) != hash.bytes() {
            return Err(Failure::PAYLOAD.into());
        }
        let failed = |why| Refusal::Ours { failure: Failure::FAILED, why };
        match (expected, response) {
            (None, _) => Ok(None),
            (Some(expected), Some(response)) if expected.is(&response) => {
                Ok(Some(self.message(Content::Success2)))
            }
            (Some(_), Some(_)) => Err(failed(WRONG_CONTROLLER)),
            (Some(_), None) => Err(failed(UNPROVEN)),
        }
    }

    fn message(&self, content: Content) -> Message {
        Message { transaction: self.transaction, content }
    }

    /// Decodes a message and checks that it belongs to this transaction.
    fn read(&self, bytes: &[u8]) -> core::result::Result<Content, Refusal> {
        let message = Message::decode(bytes)?;
        match message.content {
            _ if message.transaction != self.transaction => Err(Failure::PAYLOAD.into()),
            Content::Failure1(failure) => Err(Refusal::Theirs(failure)),
            content => Ok(content),
        }
    }
}

/// Returns our public value, and the value shared with the sender of `public`.
fn exchange(
    group: Option<Group>,
    public: &[u8],
) -> core::result::Result<(Vec<u8>, Option<Wiped>), Refusal> {
    let Some(group) = group else { return Ok((Vec::new(), None)) };
    let exchange = Exchange::new(group).map_err(randomless)?;
    let agreed = exchange.agree(public).ok_or(Failure::PAYLOAD)?;
    Ok((exchange.public().to_vec(), Some(agreed)))
}

fn randomless(errno: cairn_platform::sys::Errno) -> Error {
    Error::System { action: "get random numbers", errno }
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let random = Wiped::random(BYTES).map_err(randomless)?;
    Ok(*random.first_chunk().expect("as many were asked for"))
}

#[cfg(test)]
mod tests;
