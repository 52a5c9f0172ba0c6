//! Hosts that may use a subsystem, and the controller's side of DH-HMAC-CHAP, with which they prove
//! who they are (Base 8.13.5).
//!
//! Must stay true: a queue whose host has proven nothing executes nothing. A host that fails loses
//! the connection. Our own challenge or public value is never accepted from the host.
//!
//! Does not read secrets; `cairn_nvme::secret` does. Does not authenticate a connection twice.

use cairn_nvme::auth::{HASHES, Proof};
use cairn_nvme::crypto::{Exchange, Group, Hash, Wiped};
use cairn_nvme::secret::{HostSecrets, Secrets};
use cairn_nvme::wire::auth::{Content, Failure, Message, group_id, hash_id};
use cairn_nvme::wire::{Nqn, Status};
use cairn_platform::sys::Errno;

/// Groups in order of preference: as strong as the shortest hash, then stronger ones, then the
/// rest.
const GROUPS: [Option<Group>; 6] = [
    Some(Group::Ffdhe3072),
    Some(Group::Ffdhe4096),
    Some(Group::Ffdhe6144),
    Some(Group::Ffdhe8192),
    Some(Group::Ffdhe2048),
    None,
];

/// Hosts that may use a subsystem, and what they must prove.
#[derive(Debug)]
pub struct Guard {
    hosts: Hosts,
    hashes: Vec<Hash>,
    groups: Vec<Option<Group>>,
}

#[derive(Debug)]
enum Hosts {
    /// Hosts prove who they are.
    Proven(HostSecrets),
    /// Hosts only state who they are.
    Named(Vec<Nqn>),
}

impl Guard {
    /// Admits these hosts after a proof.
    pub fn new(hosts: HostSecrets) -> Guard {
        Guard { hosts: Hosts::Proven(hosts), hashes: HASHES.into(), groups: GROUPS.into() }
    }

    /// Admits hosts that state one of these names.
    pub fn named(hosts: Vec<Nqn>) -> Guard {
        Guard { hosts: Hosts::Named(hosts), hashes: Vec::new(), groups: Vec::new() }
    }

    /// The same guard, with proofs without a key exchange.
    pub(super) fn without_exchange(self) -> Guard {
        Guard { groups: vec![None], ..self }
    }

    /// Whether hosts must prove who they are.
    pub fn demands_proof(&self) -> bool {
        matches!(self.hosts, Hosts::Proven(_))
    }

    /// Whether the host is not among those that are admitted.
    pub(super) fn is_stranger(&self, host: &Nqn) -> bool {
        match &self.hosts {
            Hosts::Proven(secrets) => secrets.of(host).is_none(),
            Hosts::Named(names) => !names.contains(host),
        }
    }

    /// Begins the authentication of a new queue; `None`: none is needed. Errors: the host is a
    /// stranger.
    pub(super) fn check(&self, host: &Nqn, subsystem: &Nqn) -> Result<Option<Check>, Status> {
        let secrets = match &self.hosts {
            _ if self.is_stranger(host) => return Err(Status::HOST_INVALID.for_good()),
            Hosts::Proven(secrets) => secrets.of(host),
            Hosts::Named(_) => None,
        };
        Ok(secrets.map(|secrets| Check {
            secrets: secrets.clone(),
            subsystem: subsystem.clone(),
            hashes: self.hashes.clone(),
            groups: self.groups.clone(),
            transaction: 0,
            state: State::Asked,
        }))
    }
}

/// Progress of an authentication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// More messages follow.
    Going,
    /// The host has proven itself.
    Passed,
    /// The host failed, or rejected our proof, and both sides know.
    Failed,
}

enum State {
    /// Waits for the host's negotiation.
    Asked,
    /// Waits for the host to fetch this message. The boxed state follows.
    Answering(Content, Box<State>),
    /// Waits for the reply to this challenge.
    Challenged(Challenge),
    /// Waits for the host to accept our proof.
    Proven,
    /// No more messages follow.
    Ended(Progress),
}

/// A challenge to a host.
struct Challenge {
    hash: Hash,
    exchange: Option<Exchange>,
    challenge: Wiped,
    sequence: u32,
}

/// Authentication of one queue.
pub(super) struct Check {
    secrets: Secrets,
    subsystem: Nqn,
    hashes: Vec<Hash>,
    groups: Vec<Option<Group>>,
    transaction: u16,
    state: State,
}

impl Check {
    pub(super) fn progress(&self) -> Progress {
        match self.state {
            State::Ended(progress) => progress,
            _ => Progress::Going,
        }
    }

    /// Whether the next message needs slow arithmetic.
    pub(super) fn is_costly(&self) -> bool {
        matches!(self.state, State::Asked | State::Challenged(_))
    }

    /// Takes a message of the host.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        let taken = Message::decode(bytes).and_then(|message| self.advance(message));
        self.state = match taken {
            Ok(state) => state,
            Err(failure) => {
                let ended = State::Ended(Progress::Failed);
                State::Answering(Content::Failure1(failure), Box::new(ended))
            }
        };
    }

    /// Returns the message for the host. Errors: there is none, or it is longer than `bytes_max`.
    pub(super) fn answer(&mut self, bytes_max: usize) -> Result<Vec<u8>, Status> {
        let State::Answering(content, _) = &self.state else {
            return Err(Status::SEQUENCE_ERROR.for_good());
        };
        let message = Message { transaction: self.transaction, content: content.clone() };
        let bytes = message.encode();
        if bytes.len() > bytes_max {
            return Err(Status::INVALID_FIELD.for_good());
        }
        if let State::Answering(_, next) =
            core::mem::replace(&mut self.state, State::Ended(Progress::Failed))
        {
            self.state = *next;
        }
        Ok(bytes)
    }

    /// State that follows a message. The old state is left for good, whatever the message is.
    fn advance(&mut self, message: Message) -> Result<State, Failure> {
        let state = core::mem::replace(&mut self.state, State::Ended(Progress::Failed));
        if matches!(state, State::Asked) {
            self.transaction = message.transaction;
        } else if self.transaction != message.transaction {
            return Err(Failure::PAYLOAD);
        }
        match (state, message.content) {
            (State::Asked, Content::Negotiate { concatenation, hashes, groups }) => {
                match concatenation {
                    0 => self.challenge(&hashes, &groups),
                    _ => Err(Failure::CONCATENATION),
                }
            }
            (State::Challenged(asked), Content::Reply { response, challenge, public }) => {
                self.check(&asked, &response, challenge, &public)
            }
            (State::Proven, Content::Success2) => Ok(State::Ended(Progress::Passed)),
            (_, Content::Failure2(_)) => Ok(State::Ended(Progress::Failed)),
            _ => Err(Failure::MESSAGE),
        }
    }

    fn challenge(&self, hashes: &[u8], groups: &[u8]) -> Result<State, Failure> {
        let hash = self.hashes.iter().copied().find(|&hash| hashes.contains(&hash_id(hash)));
        let group = self.groups.iter().copied().find(|&group| groups.contains(&group_id(group)));
        let (hash, group) = (hash.ok_or(Failure::HASH)?, group.ok_or(Failure::GROUP)?);
        let challenge = Wiped::random(hash.bytes()).map_err(randomless)?;
        let sequence = Wiped::random(size_of::<u32>()).map_err(randomless)?;
        let sequence = sequence.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        let exchange = group.map(Exchange::new).transpose().map_err(randomless)?;
        let content = Content::Challenge {
            hash,
            group,
            sequence,
            challenge: challenge.to_vec(),
            public: exchange.as_ref().map_or(Vec::new(), |exchange| exchange.public().to_vec()),
        };
        let asked = Challenge { hash, exchange, challenge, sequence };
        Ok(State::Answering(content, Box::new(State::Challenged(asked))))
    }

    /// Checks the host's proof. Computes ours if the host wants one.
    fn check(
        &self,
        asked: &Challenge,
        response: &[u8],
        wanted: Option<(Vec<u8>, u32)>,
        public: &[u8],
    ) -> Result<State, Failure> {
        let agreed = asked.agree(public)?;
        let (hash, host) = (asked.hash, &self.secrets.name);
        let key = self.secrets.host.key_of(host);
        let proof = Proof {
            hash,
            key: &key,
            challenge: &asked.challenge,
            agreed: agreed.as_deref(),
            sequence: asked.sequence,
            transaction: self.transaction,
            concatenation: 0,
        };
        if !proof.of_host(host, &self.subsystem).is(response) {
            return Err(Failure::FAILED);
        }
        let hash_bytes = hash.bytes() as u8;
        let Some((challenge, sequence)) = wanted else {
            let success = Content::Success1 { response: None, hash_bytes };
            return Ok(State::Answering(success, Box::new(State::Ended(Progress::Passed))));
        };
        let secret = self.secrets.controller.as_ref().ok_or(Failure::FAILED)?;
        if asked.challenge.is(&challenge) {
            return Err(Failure::FAILED);
        }
        let key = secret.key_of(&self.subsystem);
        let proof = Proof { key: &key, challenge: &challenge, sequence, ..proof };
        let response = Some(proof.of_controller(host, &self.subsystem).to_vec());
        let success = Content::Success1 { response, hash_bytes };
        Ok(State::Answering(success, Box::new(State::Proven)))
    }
}

impl Challenge {
    /// Value shared with the host that has sent `public`.
    fn agree(&self, public: &[u8]) -> Result<Option<Wiped>, Failure> {
        match &self.exchange {
            None if public.is_empty() => Ok(None),
            Some(exchange) if exchange.public() != public => {
                exchange.agree(public).map(Some).ok_or(Failure::PAYLOAD)
            }
            _ => Err(Failure::PAYLOAD),
        }
    }
}

/// A controller without random numbers admits nobody.
fn randomless(_: Errno) -> Failure {
    Failure::FAILED
}

#[cfg(test)]
mod tests;
