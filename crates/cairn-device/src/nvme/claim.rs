//! A namespace claimed for one machine: by a reservation, which all processes of the machine share.
//!
//! Must stay true: a claim succeeds only if the reservation is this host's when it is made; whose
//! it is is never taken over without being asked to. Who is put out is refused by the controller
//! from then on, and fails when it claims again.
//! Does nothing where the controller has no reservations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::{Error, Result};
use super::queue::Queue;
use super::transport::{Data, Transport};
use super::wire::reservation::{
    self, REPORT_BYTES, Registrant, Report, Step, WRITE_EXCLUSIVE, encode_keys,
};
use super::wire::{Command, Status};

/// How often a claim begins anew because others register or release at the same time.
const TRIES: u32 = 17;
/// A key has the second of its making above these bits, and chance below.
const KEY_CHANCE_BITS: u32 = 24;

const PUT_OUT: &str = "another host has taken the namespace over meanwhile";

/// How a host wants to have a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// As one of many.
    None,
    /// As one of many, unless another host is to be the only one that writes.
    Beside,
    /// To be the only one that writes.
    Exclusive,
    /// The same, even if another host has it: that one never writes again.
    TakeOver,
}

/// What a host remembers of its claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// What the report said then of how often registrations had changed.
    generation: u32,
    /// Whether nobody had made the claim for this host before.
    pub is_new: bool,
}

impl Own {
    /// Whether another host has put this one out since then, and may be gone as well. Not if the
    /// target was started again: then it has begun to count anew.
    fn was_put_out(&self, host: &[u8; 16], report: &Report) -> bool {
        let changes = report.generation.wrapping_sub(self.generation);
        report.key_of(host).is_none() && (1..=u32::MAX / 2).contains(&changes)
    }
}

/// Who has a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// HOSTID.
    pub host: [u8; 16],
    /// The key that it has registered.
    pub key: u64,
}

impl Holder {
    /// Since when, if it is a host that makes keys as we do.
    pub fn since(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.key >> KEY_CHANCE_BITS)
    }
}

impl core::fmt::Display for Holder {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("host ")?;
        self.host.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))?;
        match self.since().elapsed() {
            Ok(time) => write!(formatter, " for {} min", time.as_secs() / 60),
            Err(_) => Ok(()),
        }
    }
}

/// Makes the namespace of a queue this host's, which has claimed it `before` or not; what it is to
/// remember of that. Unless it is, has `look` say first whether it may be. Errors: `Reserved` if it
/// is another one's; it was another one's since then; those of `look`.
pub fn claim<T: Transport>(
    queue: &mut Queue<T>,
    host: &[u8; 16],
    claim: Claim,
    before: Option<Own>,
    look: impl Fn(&mut Queue<T>) -> Result<()>,
) -> Result<Option<Own>> {
    if claim == Claim::None || !queue.traits().can_reserve {
        return Ok(None);
    }
    let may_put_out = claim == Claim::TakeOver && before.is_none();
    let mut registered = None;
    for round in 0..TRIES {
        let report = report(queue)?;
        let holder = report.holder().copied();
        match holder {
            Some(holder) if holder.host == *host => {
                return Ok(Some(Own { generation: report.generation, is_new: round > 1 }));
            }
            Some(Registrant { host: other, key, .. }) if !may_put_out => {
                // Not what another process of this host has registered, which may be about to take
                // the namespace over.
                leave(queue, report.key_of(host).filter(|&key| registered == Some(key)));
                return Err(Error::Reserved { holder: Holder { host: other, key } });
            }
            _ if claim == Claim::Beside => return Ok(None),
            None if before.is_some_and(|own| own.was_put_out(host, &report)) => {
                return Err(Error::Unsuitable { why: PUT_OUT });
            }
            _ if round == 0 => look(queue)?,
            // Whoever was faster is seen in the next report.
            _ => match report.key_of(host) {
                Some(key) => unless_conflict(advance(queue, key, holder))?,
                None => {
                    let key = new_key()?;
                    registered = Some(key);
                    let register = Step::Register(reservation::REGISTER);
                    unless_conflict(step(queue, register, [0, key]))?;
                }
            },
        }
    }
    Err(Error::Unsuitable { why: "hosts fight for the namespace" })
}

/// Is not registered any more, if that can be: a target takes so many hosts.
fn leave<T: Transport>(queue: &mut Queue<T>, key: Option<u64>) {
    // One that stays registered may claim all the same.
    let _ = key.map(|key| step(queue, Step::Register(reservation::UNREGISTER), [key, 0]));
}

/// Gives a namespace back that may be this host's.
pub fn release<T: Transport>(queue: &mut Queue<T>, host: &[u8; 16]) -> Result<()> {
    if !queue.traits().can_reserve {
        return Ok(());
    }
    match report(queue)?.key_of(host) {
        Some(key) => step(queue, Step::Register(reservation::UNREGISTER), [key, 0]),
        None => Ok(()),
    }
}

/// Acquires the reservation, or puts its holder out.
fn advance<T: Transport>(queue: &mut Queue<T>, key: u64, holder: Option<Registrant>) -> Result<()> {
    match holder {
        None => step(queue, Step::Acquire(reservation::ACQUIRE | WRITE_EXCLUSIVE), [key, 0]),
        Some(holder) => {
            let preempt = reservation::PREEMPT_AND_ABORT | WRITE_EXCLUSIVE;
            step(queue, Step::Acquire(preempt), [key, holder.key])
        }
    }
}

fn step<T: Transport>(queue: &mut Queue<T>, step: Step, keys: [u64; 2]) -> Result<()> {
    let reserve = Command::Reserve { namespace: queue.traits().namespace, step };
    let bytes = encode_keys(keys);
    let length = reserve.bytes_out(1) as usize;
    queue.execute("reserve", &reserve, Data::of(&bytes[..length]))
}

/// Who has registered, and who holds the reservation.
pub fn report<T: Transport>(queue: &mut Queue<T>) -> Result<Report> {
    let namespace = queue.traits().namespace;
    let mut bytes = [0; REPORT_BYTES];
    let ask = Command::ReservationReport { namespace, bytes: REPORT_BYTES as u64 };
    queue.execute("report reservations", &ask, Data::into(&mut bytes))?;
    let why = "the report of its reservations makes no sense";
    Report::decode(&bytes).ok_or(Error::Unsuitable { why })
}

fn unless_conflict(result: Result<()>) -> Result<()> {
    match result {
        Err(Error::Refused { status, .. }) if status.code() == Status::RESERVATION_CONFLICT => {
            Ok(())
        }
        result => result,
    }
}

/// A key that no other host has.
pub(crate) fn new_key() -> Result<u64> {
    let failed = |errno| Error::System { action: "make a key", errno };
    let chance = crate::sys::random().map_err(failed)?;
    let [first, second, third, ..] = chance.map(u64::from);
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(seconds << KEY_CHANCE_BITS | first << 16 | second << 8 | third)
}
