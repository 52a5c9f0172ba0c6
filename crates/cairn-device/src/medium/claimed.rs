//! Whose a tier on another machine is, where no reservation says that: of parts of a namespace, and
//! of whole ones on targets without reservations.
//!
//! Who wants it looks at the label, writes one with a claim of its own over it, waits, and looks
//! again (Fischer's algorithm).
//! Must stay true: from looking to having written takes less than is waited: it is tried once, on
//! the connection on which was looked. So, when somebody looks again, all have written who saw the
//! label as it was before, and only the last of them finds its own claim.
//! Does not fence: a machine that was put out, or whose write was held up on the way for longer
//! than that, is not kept from writing.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use crate::directory::{StoreError, StoreResult};
use crate::label::{self, Claimed, Label, Wrong};
use crate::media_file::MediaFile;
use crate::nvme::claim::{Holder, new_key};
use crate::nvme::partition::Part;
use crate::sys::Errno;

use super::{PAGE, refused};

/// How long is waited for others, and how long one may take from looking to having written.
const SETTLED: Duration = Duration::from_secs(3);
const HESITATION_MAX: Duration = Duration::from_secs(2);

const TAKEN: &str = "another machine uses it; end that store first, or, if that machine is dead, \
     add take-over=yes to the tier";
const SLOW: &str = "the target is too slow to agree with other machines on whose it is; try again";
const OTHER_PARTS: &str = "its namespace is divided into another number of parts";
const WHOLE: &str = "its namespace holds something that is no part of a store";

/// The mark in the last page of a divided namespace: how many parts it has follows.
pub(super) const DIVIDED: [u8; 8] = *b"cairnpt1";

/// The refusal of what another machine has.
pub(super) fn taken(path: &Path, holder: Holder) -> StoreError {
    StoreError::new("open tier", path, Errno(libc::EBUSY)).advise(TAKEN).held_by(holder)
}

/// How the label is to be before this host may use the tier; None: as it is. Errors: the tier is
/// another host's.
fn wanted(
    label: &Label,
    host: &[u8; 16],
    key: u64,
    takes_over: bool,
) -> Result<Option<Label>, Holder> {
    match label.claim {
        Some(claim) if claim.holder.host == *host => Ok(None),
        Some(claim) if !takes_over => Err(claim.holder),
        claim => {
            let generation = claim.map_or(0, |claim| claim.generation) + 1;
            let claim = Some(Claimed { holder: Holder { host: *host, key }, generation });
            Ok(Some(Label { claim, ..*label }))
        }
    }
}

impl MediaFile {
    /// Makes sure that a tier is this machine's where its label, which was just read, says whose it
    /// is; whether it was not before.
    /// Errors: it is another one's (`EBUSY`).
    pub(crate) fn claim(&self, path: &Path, label: &Label, takes_over: bool) -> StoreResult<bool> {
        let Some(host) = self.claims_by_label() else { return Ok(false) };
        if label.claim.is_some_and(|claim| claim.holder.host == host) {
            return Ok(false);
        }
        let key = new_key().map_err(|error| failed(path, error))?;
        self.settle_label(path, |label| match label {
            Ok(label) => wanted(&label, &host, key, takes_over).map_err(|other| taken(path, other)),
            Err(_) => Ok(None),
        })?;
        Ok(true)
    }

    /// Whether a tier with this label is this machine's, which had claimed it before, or has the
    /// device.
    pub(super) fn is_claimed_here(&self, label: &Label) -> bool {
        match self.claims_by_label() {
            Some(host) => label.claim.is_some_and(|claim| claim.holder.host == host),
            None => self.is_reserved_here(),
        }
    }

    /// Errors: a tier with this label is another machine's (`EBUSY`).
    pub(crate) fn check_claim(&self, path: &Path, label: &Label) -> StoreResult<()> {
        let Some(host) = self.claims_by_label() else { return Ok(()) };
        wanted(label, &host, 0, false).map(drop).map_err(|other| taken(path, other))
    }

    /// Has a tier with this label be nobody's, if the label says that it is this machine's.
    pub(super) fn disclaim(&self, path: &Path, label: &Label) -> StoreResult<()> {
        let host = self.claims_by_label();
        if host.is_none() || label.claim.map(|claim| claim.holder.host) != host {
            return Ok(());
        }
        let page = label::encode(&Label { claim: None, ..*label });
        let put = self.put_label_once(&page, Instant::now() + HESITATION_MAX);
        put.and_then(|()| self.sync()).map_err(|errno| StoreError::new("disclaim", path, errno))
    }

    /// Has the label of a tier that was recovered say from which start of the target's machine on
    /// it is as it is known. Errors: as `claim`, where the label says whose it is.
    pub(crate) fn begin_again(&self, path: &Path) -> StoreResult<()> {
        let start = self.start();
        let with_start = |label: Label| (label.start != start).then_some(Label { start, ..label });
        let wrong = |wrong: Wrong| refused(path, wrong.describe());
        if self.claims_by_label().is_some() {
            return self.settle_label(path, |label| Ok(with_start(label.map_err(wrong)?)));
        }
        let label = label::decode(&self.label_page(path)?).map_err(wrong)?;
        let Some(label) = with_start(label) else { return Ok(()) };
        let put = self.put_bytes(self.label_at(), &label::encode(&label));
        put.and_then(|()| self.sync()).map_err(|errno| StoreError::new("write label", path, errno))
    }

    /// Makes a device that holds nothing, or nothing that counts, a tier of this machine. Errors:
    /// another one was faster (`EBUSY`).
    pub(super) fn make_claimed_label(
        &self,
        path: &Path,
        host: &[u8; 16],
        label: Label,
    ) -> StoreResult<()> {
        let key = new_key().map_err(|error| failed(path, error))?;
        self.settle_label(path, |before| {
            let label = Label { claim: before.unwrap_or_default().claim, ..label };
            // The same host's label is of a store that is made anew.
            let own = wanted(&label, host, key, false).map_err(|other| taken(path, other))?;
            Ok(Some(own.unwrap_or(label)))
        })
    }

    /// Has the label be what `change` makes of it, and nobody else's.
    fn settle_label(
        &self,
        path: &Path,
        change: impl FnOnce(Result<Label, Wrong>) -> StoreResult<Option<Label>>,
    ) -> StoreResult<()> {
        let looked = Instant::now();
        let Some(new) = change(label::decode(&self.label_page(path)?))? else { return Ok(()) };
        let page = label::encode(&new);
        let failed = |errno| StoreError::new("claim", path, errno);
        let put = self.put_label_once(&page, looked + HESITATION_MAX);
        put.map_err(|errno| failed(errno).advise(SLOW))?;
        self.sync().map_err(failed)?;
        std::thread::sleep(SETTLED);
        let now = self.label_page(path)?;
        match label::decode(&now).ok().and_then(|label| label.claim) {
            _ if now == page => Ok(()),
            Some(claim) => Err(taken(path, claim.holder)),
            None => Err(failed(Errno(libc::EBUSY)).advise(TAKEN)),
        }
    }

    fn label_page(&self, path: &Path) -> StoreResult<[u8; PAGE as usize]> {
        let page = self.bytes_at(self.label_at()..self.label_at() + PAGE);
        let page = page.map_err(|errno| StoreError::new("read", path, errno))?;
        Ok(*page.first_chunk().expect("a page was read"))
    }

    /// Of a part of a namespace: why no part like this can be made there.
    pub(super) fn why_not_divided(&self, path: &Path) -> StoreResult<Option<&'static str>> {
        let Some(part) = self.part() else { return Ok(None) };
        let page = self.last_page_of_all().map_err(|errno| StoreError::new("read", path, errno))?;
        Ok(match page == divided(part) {
            true => None,
            false if page.iter().all(|&byte| byte == 0) => None,
            false if page.starts_with(&DIVIDED) => Some(OTHER_PARTS),
            false => Some(WHOLE),
        })
    }

    /// Marks the namespace of a part as divided. Whoever makes a label there waits as for that, and
    /// has `check_divided` look again.
    pub(super) fn divide(&self, path: &Path, may_overwrite: bool) -> StoreResult<()> {
        let Some(part) = self.part() else { return Ok(()) };
        let looked = Instant::now();
        if !may_overwrite {
            self.check_divided(path)?;
        }
        let failed = |errno| StoreError::new("divide", path, errno);
        let put = self.put_last_page_of_all(&divided(part), looked + HESITATION_MAX);
        put.map_err(|errno| failed(errno).advise(SLOW))?;
        self.sync().map_err(failed)
    }

    /// Errors: another machine has divided the namespace in another way meanwhile.
    pub(super) fn check_divided(&self, path: &Path) -> StoreResult<()> {
        match self.why_not_divided(path)? {
            Some(why) => Err(refused(path, why)),
            None => Ok(()),
        }
    }
}

fn failed(path: &Path, error: crate::nvme::Error) -> StoreError {
    StoreError::new("claim", path, cairn_core::Error::from(error))
}

/// The last page of a namespace that has so many parts.
fn divided(part: Part) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    page[..8].copy_from_slice(&DIVIDED);
    page[8..12].copy_from_slice(&part.count().to_le_bytes());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenths of a second.
    type Time = u64;
    const WAITED: Time = 15;
    const HESITATION: Time = 10;

    /// When a host looks, when it has written, when it looks again.
    fn times(start: Time, hesitation: Time) -> [Time; 3] {
        [start, start + hesitation, start + hesitation + WAITED]
    }

    /// Plays two hosts that want one label; which of them get it.
    fn race(hosts: [[Time; 3]; 2], first: usize) -> [bool; 2] {
        let mut page = Label::default();
        let mut written = [None; 2];
        let mut has_it = [false; 2];
        let mut events: Vec<(Time, usize, usize)> = (0..2)
            .flat_map(|host| (0..3).map(move |step| (hosts[host][step], (host + first) % 2, step)))
            .collect();
        events.sort_by_key(|&(time, order, _)| (time, order));
        for (_, order, step) in events {
            let host = (order + 2 - first) % 2;
            let name = [host as u8 + 1; 16];
            match step {
                0 => written[host] = wanted(&page, &name, host as u64, false).unwrap_or(None),
                1 => page = written[host].unwrap_or(page),
                _ => has_it[host] = written[host] == Some(page),
            }
        }
        has_it
    }

    #[test]
    fn one_of_two_hosts_gets_a_label_whenever_they_look_and_write() {
        assert!(SETTLED >= HESITATION_MAX * 3 / 2, "as here");
        for start in 0..60 {
            for hesitations in (0..=HESITATION).flat_map(|a| (0..=HESITATION).map(move |b| (a, b)))
            {
                for first in [0, 1] {
                    let hosts = [times(0, hesitations.0), times(start, hesitations.1)];
                    let have_it = race(hosts, first);
                    assert!(have_it[0] != have_it[1], "{hosts:?} {have_it:?}");
                }
            }
        }
    }

    #[test]
    fn label_of_another_host_is_taken_over_only_if_that_is_wanted() {
        let label = Label { bytes: 4096, ..Label::default() };
        let (one, other) = ([1; 16], [2; 16]);
        let claimed = wanted(&label, &one, 7, false).unwrap().unwrap();
        assert_eq!(wanted(&claimed, &one, 8, false), Ok(None), "its own");
        assert_eq!(wanted(&claimed, &other, 9, false), Err(Holder { host: one, key: 7 }));
        let heir = wanted(&claimed, &other, 9, true).unwrap().unwrap();
        assert_eq!(heir.claim.unwrap().generation, 2);
        assert_eq!((heir.bytes, heir.identity), (label.bytes, label.identity));
        assert!(wanted(&heir, &one, 10, false).is_err(), "it was put out");
    }
}
