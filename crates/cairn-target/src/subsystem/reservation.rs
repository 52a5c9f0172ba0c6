//! Permission to write to a namespace (Base 8.19): hosts register keys, and one of them may reserve
//! it.
//!
//! Must stay true: once a host has lost the reservation, none of its commands is executed any more.
//! Those that were under way have ended before the command that took the reservation is answered. A
//! registration belongs to the host with the name that it had then.
//!
//! Does not outlive the target. Knows only the type Write Exclusive: the holder writes, everybody
//! reads.

use cairn_nvme::wire::reservation::{
    self, ACTION, ANY_KEY, HOSTS_MAX, KEEP, Registrant, Report, Step, TYPE, WRITE_EXCLUSIVE,
};
use cairn_nvme::wire::{Nqn, Status};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// HOSTID.
pub(crate) type HostId = [u8; 16];

/// Identity of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Host {
    /// HOSTID, which every host sees in reservation reports.
    pub(crate) id: HostId,
    /// HOSTNQN. The host has proven it, where that is demanded.
    pub(crate) name: Nqn,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT;

/// Registrations and reservation of a namespace.
#[derive(Debug, Default)]
pub struct Reservations {
    table: RwLock<Report>,
    /// Names of the registered hosts. Never locked for long, unlike the table, which is locked
    /// while a disk hangs.
    names: Mutex<HashMap<HostId, Nqn>>,
}

/// Permission to write. While it lives, nobody loses the reservation.
pub(crate) struct Permit<'a> {
    _table: RwLockReadGuard<'a, Report>,
}

impl Reservations {
    /// Permits this host to write. Errors: another host holds the reservation.
    pub(crate) fn permit(&self, host: &Host) -> Result<Permit<'_>, Status> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let is_its = |holder: &Registrant| holder.host == host.id && !self.is_anothers(host);
        match table.holder().is_none_or(is_its) {
            true => Ok(Permit { _table: table }),
            false => Err(CONFLICT.for_good()),
        }
    }

    /// Executes a command of a host with its keys, if `may` still allows it. Returns the preempted
    /// hosts whose commands must be aborted.
    pub(crate) fn execute(
        &self,
        host: &Host,
        step: Step,
        keys: [u64; 2],
        may: impl Fn() -> bool,
    ) -> Result<Vec<HostId>, Status> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if self.is_anothers(host) || !may() {
            return Err(CONFLICT.for_good());
        }
        let (before, name, host) = (table.hosts.clone(), &host.name, &host.id);
        let done = match step {
            Step::Register(action) => register(&mut table, host, action, keys),
            Step::Acquire(action) => acquire(&mut table, host, action, keys),
            Step::Release(action) => release(&mut table, host, action, keys[0]),
        };
        done.map_err(Status::for_good)?;
        let mut names = self.names();
        names.retain(|id, _| table.key_of(id).is_some());
        if table.key_of(host).is_some() {
            names.insert(*host, name.clone());
        }
        drop(names);
        let aborts = |action| action & ACTION == reservation::PREEMPT_AND_ABORT;
        let is_out = |other: &Registrant| table.key_of(&other.host).is_none();
        Ok(match step {
            Step::Acquire(action) if aborts(action) => {
                before.into_iter().filter(is_out).map(|other| other.host).collect()
            }
            _ => Vec::new(),
        })
    }

    /// Waits until everything has ended for which there was a permit.
    pub(crate) fn settle(&self) {
        drop(self.table.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Name of the host that has registered under that identifier. Does not wait for a disk.
    pub(crate) fn name_of(&self, id: &HostId) -> Option<Nqn> {
        self.names().get(id).cloned()
    }

    /// Whether a host with another name has registered under this host's identifier.
    fn is_anothers(&self, host: &Host) -> bool {
        self.names().get(&host.id).is_some_and(|name| *name != host.name)
    }

    fn names(&self) -> MutexGuard<'_, HashMap<HostId, Nqn>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While this lives, no command proceeds, as on a disk that hangs.
    #[cfg(test)]
    pub(crate) fn hang(&self) -> impl Drop {
        self.table.write().expect("nobody has panicked")
    }

    /// Reservation report for hosts.
    pub(crate) fn report(&self) -> Vec<u8> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).encode()
    }
}

fn register(
    table: &mut Report,
    host: &HostId,
    action: u32,
    [before, key]: [u64; 2],
) -> Result<(), Status> {
    if action & KEEP == KEEP {
        // Registrations do not outlive the target, so they cannot persist.
        return Err(Status::INVALID_FIELD);
    }
    let place = table.hosts.iter().position(|registrant| registrant.host == *host);
    let is_named = |at: usize| action & ANY_KEY != 0 || table.hosts[at].key == before;
    match (action & ACTION, place) {
        (reservation::REGISTER, Some(at)) if table.hosts[at].key == key => return Ok(()),
        (reservation::REGISTER, None) if table.hosts.len() < HOSTS_MAX => {
            table.hosts.push(Registrant { host: *host, key, is_holder: false });
        }
        (reservation::REGISTER, None) => return Err(Status::INTERNAL_ERROR),
        (reservation::UNREGISTER, Some(at)) if is_named(at) => drop(table.hosts.remove(at)),
        (reservation::REPLACE, Some(at)) if is_named(at) => table.hosts[at].key = key,
        (reservation::REGISTER | reservation::UNREGISTER | reservation::REPLACE, _) => {
            return Err(CONFLICT);
        }
        _ => return Err(Status::INVALID_FIELD),
    }
    table.generation = table.generation.wrapping_add(1);
    Ok(())
}

fn acquire(
    table: &mut Report,
    host: &HostId,
    action: u32,
    [key, victim]: [u64; 2],
) -> Result<(), Status> {
    check_registered(table, host, key)?;
    if action & TYPE != WRITE_EXCLUSIVE {
        return Err(Status::INVALID_FIELD);
    }
    let holder = table.holder().map(|holder| (holder.host, holder.key));
    match (action & ACTION, holder) {
        (reservation::ACQUIRE, None) => {}
        (reservation::ACQUIRE, Some((holder, _))) if holder == *host => {}
        (reservation::ACQUIRE, Some(_)) => return Err(CONFLICT),
        (reservation::PREEMPT | reservation::PREEMPT_AND_ABORT, holder) => {
            let is_other = |registrant: &Registrant| registrant.key != victim;
            if victim == 0 || table.hosts.iter().all(is_other) {
                return Err(CONFLICT);
            }
            table.hosts.retain(|registrant| registrant.host == *host || is_other(registrant));
            table.generation = table.generation.wrapping_add(1);
            if holder.is_none_or(|(_, key)| key != victim) {
                return Ok(());
            }
        }
        _ => return Err(Status::INVALID_FIELD),
    }
    for registrant in &mut table.hosts {
        registrant.is_holder = registrant.host == *host;
    }
    Ok(())
}

fn release(table: &mut Report, host: &HostId, action: u32, key: u64) -> Result<(), Status> {
    check_registered(table, host, key)?;
    match action & ACTION {
        reservation::RELEASE => {
            for registrant in table.hosts.iter_mut().filter(|other| other.host == *host) {
                registrant.is_holder = false;
            }
        }
        reservation::CLEAR => {
            table.hosts.clear();
            table.generation = table.generation.wrapping_add(1);
        }
        _ => return Err(Status::INVALID_FIELD),
    }
    Ok(())
}

/// Errors: the host has not registered this key.
fn check_registered(table: &Report, host: &HostId, key: u64) -> Result<(), Status> {
    if table.key_of(host) == Some(key) { Ok(()) } else { Err(CONFLICT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reservation::{ACQUIRE, CLEAR, PREEMPT_AND_ABORT, REGISTER, RELEASE, REPLACE, UNREGISTER};

    fn host(number: u8) -> Host {
        Host { id: [number; 16], name: Nqn::of_host(&[number; 16]) }
    }

    const REFUSED: Result<(), Status> = Err(CONFLICT);

    fn both_registered() -> Reservations {
        let all = Reservations::default();
        step(&all, &host(1), Step::Register(REGISTER), [0, 11]).unwrap();
        step(&all, &host(2), Step::Register(REGISTER), [0, 22]).unwrap();
        all
    }

    fn step(all: &Reservations, host: &Host, step: Step, keys: [u64; 2]) -> Result<(), Status> {
        all.execute(host, step, keys, || true).map(drop).map_err(Status::code)
    }

    fn may_write(all: &Reservations) -> [bool; 2] {
        [1, 2].map(|number| all.permit(&host(number)).is_ok())
    }

    #[test]
    fn second_host_is_refused_until_the_first_releases() {
        let all = both_registered();
        assert_eq!(may_write(&all), [true, true], "nobody has reserved it");
        let acquire = Step::Acquire(ACQUIRE | WRITE_EXCLUSIVE);
        assert_eq!(step(&all, &host(1), acquire, [11, 0]), Ok(()));
        assert_eq!(step(&all, &host(1), acquire, [11, 0]), Ok(()), "again");
        assert_eq!(step(&all, &host(2), acquire, [22, 0]), REFUSED);
        assert_eq!(may_write(&all), [true, false]);
        assert_eq!(step(&all, &host(2), Step::Release(RELEASE), [22, 0]), Ok(()));
        assert_eq!(may_write(&all), [true, false], "it was not theirs");
        assert_eq!(step(&all, &host(1), Step::Release(RELEASE), [11, 0]), Ok(()));
        assert_eq!(step(&all, &host(2), acquire, [22, 0]), Ok(()));
        assert_eq!(may_write(&all), [false, true]);
    }

    #[test]
    fn host_that_was_put_out_neither_writes_nor_is_registered() {
        let all = both_registered();
        let acquire = Step::Acquire(ACQUIRE | WRITE_EXCLUSIVE);
        step(&all, &host(1), acquire, [11, 0]).unwrap();
        let preempt = Step::Acquire(PREEMPT_AND_ABORT | WRITE_EXCLUSIVE);
        assert_eq!(step(&all, &host(2), preempt, [22, 33]), REFUSED, "nobody has this key");
        assert_eq!(step(&all, &host(2), preempt, [22, 11]), Ok(()));
        assert_eq!(may_write(&all), [false, true]);
        assert_eq!(step(&all, &host(1), acquire, [11, 0]), REFUSED);
        step(&all, &host(1), Step::Register(REGISTER), [0, 11]).unwrap();
        assert_eq!(step(&all, &host(1), acquire, [11, 0]), REFUSED, "registered again");
    }

    #[test]
    fn keys_are_kept_to_and_a_registration_takes_the_reservation_with_it() {
        let all = both_registered();
        let acquire = Step::Acquire(ACQUIRE | WRITE_EXCLUSIVE);
        assert_eq!(step(&all, &host(1), acquire, [12, 0]), REFUSED);
        assert_eq!(step(&all, &host(1), Step::Register(REGISTER), [0, 12]), REFUSED);
        assert_eq!(step(&all, &host(1), Step::Register(REPLACE), [12, 13]), REFUSED);
        assert_eq!(step(&all, &host(1), Step::Register(REPLACE | ANY_KEY), [0, 13]), Ok(()));
        assert_eq!(step(&all, &host(1), acquire, [13, 0]), Ok(()));
        assert_eq!(step(&all, &host(1), Step::Register(UNREGISTER), [13, 0]), Ok(()));
        assert_eq!(may_write(&all), [true, true]);
        assert_eq!(step(&all, &host(2), acquire, [22, 0]), Ok(()));
        assert_eq!(step(&all, &host(2), Step::Release(CLEAR), [22, 0]), Ok(()));
        assert_eq!(may_write(&all), [true, true]);
        let keep = Step::Register(REGISTER | KEEP);
        assert_eq!(step(&all, &host(1), keep, [0, 1]), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn reservation_is_not_taken_in_the_middle_of_a_write() {
        let all = both_registered();
        step(&all, &host(1), Step::Acquire(ACQUIRE | WRITE_EXCLUSIVE), [11, 0]).unwrap();
        let permit = all.permit(&host(1)).unwrap();
        assert!(all.table.try_write().is_err(), "who takes it waits");
        drop(permit);
        assert!(all.table.try_write().is_ok());
    }

    /// Mechanism: a late command of a host that is gone registers it under an identifier that
    /// another host has by then.
    ///
    /// Consequence: that other host got what was reserved.
    ///
    /// Fix: a registration belongs only to the host with the name that it had then.
    #[test]
    fn what_a_host_has_registered_is_of_no_other_with_its_identifier() {
        let all = both_registered();
        let acquire = Step::Acquire(ACQUIRE | WRITE_EXCLUSIVE);
        let impostor = Host { id: host(1).id, name: host(3).name };
        step(&all, &host(1), acquire, [11, 0]).unwrap();
        assert!(all.permit(&impostor).is_err());
        for taken in [acquire, Step::Release(CLEAR), Step::Register(UNREGISTER)] {
            assert_eq!(step(&all, &impostor, taken, [11, 0]), REFUSED);
        }
        assert_eq!(all.name_of(&impostor.id), Some(host(1).name));
        step(&all, &host(2), Step::Acquire(PREEMPT_AND_ABORT | WRITE_EXCLUSIVE), [22, 11]).unwrap();
        assert_eq!(all.name_of(&impostor.id), None);
        assert_eq!(step(&all, &impostor, Step::Register(REGISTER), [0, 33]), Ok(()));
    }
}
