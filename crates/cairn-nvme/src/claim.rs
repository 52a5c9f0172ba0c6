//! A claim on a namespace for one machine. It is an NVMe reservation that all processes of the
//! machine share.
//!
//! Must stay true: a claim succeeds only if this host holds the reservation at that moment. Another
//! host's reservation is taken over only on request. The controller refuses a preempted host from
//! then on, and its next claim fails.
//!
//! Does nothing if the controller has no reservations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::{Error, Result};
use super::queue::Queue;
use super::transport::{Data, Transport};
use super::wire::reservation::{
    self, REPORT_BYTES, Registrant, Report, Step, WRITE_EXCLUSIVE, encode_keys,
};
use super::wire::{Command, Status};

/// Number of rounds of a claim. A claim starts over when other hosts register or release at the
/// same time.
const TRIES: u32 = 17;
/// A key holds the second of its creation above these bits, and random bits below.
const KEY_CHANCE_BITS: u32 = 24;

const PUT_OUT: &str = "another host has taken the namespace over meanwhile";

/// How a host wants to use a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Shared, without a claim.
    None,
    /// Shared. Fails if another host has an exclusive claim.
    Beside,
    /// As the only writer.
    Exclusive,
    /// As the only writer. A host that holds the namespace is preempted and never writes again.
    TakeOver,
}

/// What a host remembers of its claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Own {
    /// Generation of the reservations when the claim was made. It counts changes of registrations.
    generation: u32,
    /// Whether this call made the claim; false: this host held it before.
    pub is_new: bool,
}

impl Own {
    /// Whether another host has preempted this one since the claim, even if that host is gone by
    /// now. A target that restarts counts generations from zero again, which does not count as
    /// preemption.
    fn was_preempted(&self, host: &[u8; 16], report: &Report) -> bool {
        let changes = report.generation.wrapping_sub(self.generation);
        report.key_of(host).is_none() && (1..=u32::MAX / 2).contains(&changes)
    }
}

/// Holder of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// HOSTID.
    pub host: [u8; 16],
    /// Key that the host has registered.
    pub key: u64,
}

impl Holder {
    /// Time since when the host holds the namespace, if it makes its keys as we do.
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

/// Claims the queue's namespace for `host`. `before` is what the previous claim of this process
/// returned. Returns what the host must remember of the claim; `None`: nothing is reserved. If the
/// host does not hold the reservation yet, `look` first decides whether it may take it. Errors:
/// `Reserved` if another host holds it; `Unsuitable` if another host has preempted this one since
/// `before`; those of `look`.
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
                // Unregister only the key registered here. Another process of this host may have
                // replaced it, and may be about to take the namespace over.
                leave(queue, report.key_of(host).filter(|&key| registered == Some(key)));
                return Err(Error::Reserved { holder: Holder { host: other, key } });
            }
            _ if claim == Claim::Beside => return Ok(None),
            None if before.is_some_and(|own| own.was_preempted(host, &report)) => {
                return Err(Error::Unsuitable { why: PUT_OUT });
            }
            _ if round == 0 => look(queue)?,
            // If another host was faster, the next report shows it.
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
    Err(Error::Unsuitable { why: "several hosts compete for the namespace" })
}

/// Unregisters `key`, if the target lets us. A target has room for a limited number of registrants.
fn leave<T: Transport>(queue: &mut Queue<T>, key: Option<u64>) {
    // Failure does no harm: a host that stays registered can still claim.
    let _ = key.map(|key| step(queue, Step::Register(reservation::UNREGISTER), [key, 0]));
}

/// Gives back a namespace that this host may hold, by unregistering.
pub fn release<T: Transport>(queue: &mut Queue<T>, host: &[u8; 16]) -> Result<()> {
    if !queue.traits().can_reserve {
        return Ok(());
    }
    match report(queue)?.key_of(host) {
        Some(key) => step(queue, Step::Register(reservation::UNREGISTER), [key, 0]),
        None => Ok(()),
    }
}

/// Acquires the reservation, or preempts its holder.
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

/// Reads the registrants and the holder of the reservation.
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

/// Makes a key that no other host has.
pub fn new_key() -> Result<u64> {
    let failed = |errno| Error::System { action: "make a key", errno };
    let chance = cairn_platform::sys::random().map_err(failed)?;
    let [first, second, third, ..] = chance.map(u64::from);
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(seconds << KEY_CHANCE_BITS | first << 16 | second << 8 | third)
}
