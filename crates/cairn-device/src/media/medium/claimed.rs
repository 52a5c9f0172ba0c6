//! Ownership of a tier on another machine where no reservation exists: of parts of a namespace, and
//! of whole namespaces on targets without reservations.
//!
//! A machine that wants the tier reads the label, writes one with its own claim over it, waits, and
//! reads again (Fischer's algorithm).
//!
//! Must stay true: the time from reading to having written is shorter than the wait. So the write
//! is attempted once, on the connection that was read from. Then, at the second read, all machines
//! that saw the old label have written, and only the last of them finds its own claim.
//!
//! Does not fence: a machine that was evicted, or whose write was delayed on the way for longer
//! than the wait, can still write.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use cairn_nvme::claim::{Holder, new_key};
use cairn_nvme::partition::Part;
use cairn_platform::sys::Errno;

use crate::directory::{StoreError, StoreResult};
use crate::media::label::{self, Claimed, Identity, Label, Wrong};
use crate::media::media_file::MediaFile;
use crate::media::media_file::pages::error_of;

use super::{Access, PAGE, refused};

/// Time to wait for the writes of others, and most time from reading the label to having written
/// it.
const SETTLED: Duration = Duration::from_secs(3);
const HESITATION_MAX: Duration = Duration::from_secs(2);

const TAKEN: &str = "another machine uses it; end that store first, or, if that machine is dead, \
     add take-over=yes to the tier";
const SLOW: &str = "the target is too slow for machines to agree on who uses it; try again";
const OTHER_PARTS: &str = "its namespace is divided into another number of parts";
const WHOLE: &str = "its namespace holds data that is not part of a store";

/// Mark in the last page of a divided namespace; the number of its parts follows.
pub(super) const DIVIDED: [u8; 8] = *b"cairnpt1";

/// Returns the refusal of what another machine has.
pub(super) fn taken(path: &Path, holder: Holder) -> StoreError {
    StoreError::new("open tier", path, Errno(libc::EBUSY)).advise(TAKEN).held_by(holder)
}

/// Returns the label that this host has to write before it may use the tier; `None` if the label
/// can stay. Errors: the holder, if the tier is another host's.
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
    /// Claims the tier for this machine if its label names the owner. `label` was just read.
    /// Returns whether the claim is new. Errors: it is another machine's (`EBUSY`).
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

    /// Whether this machine had claimed the tier with this label before, or, where the label does
    /// not name the owner, has the device reserved.
    pub(super) fn is_claimed_here(&self, label: &Label) -> bool {
        match self.claims_by_label() {
            Some(host) => label.claim.is_some_and(|claim| claim.holder.host == host),
            None => self.is_reserved_here(),
        }
    }

    /// Checks the claim in this label. Errors: the tier is another machine's (`EBUSY`).
    pub(crate) fn check_claim(&self, path: &Path, label: &Label) -> StoreResult<()> {
        let Some(host) = self.claims_by_label() else { return Ok(()) };
        wanted(label, &host, 0, false).map(drop).map_err(|other| taken(path, other))
    }

    /// Removes the claim from the label of this tier if it is this machine's.
    pub(super) fn disclaim(&self, path: &Path, label: &Label) -> StoreResult<()> {
        let host = self.claims_by_label();
        if host.is_none() || label.claim.map(|claim| claim.holder.host) != host {
            return Ok(());
        }
        let page = label::encode(&Label { claim: None, ..*label });
        let put = self.put_label_once(&page, Instant::now() + HESITATION_MAX);
        put.and_then(|()| self.sync()).map_err(|errno| StoreError::new("disclaim", path, errno))
    }

    /// Records in the label of a recovered tier the current start of the target's machine. From
    /// that start on the state of the tier is known. Errors: as `claim`, where the label names the
    /// owner.
    pub(crate) fn record_target_start(&self, path: &Path) -> StoreResult<()> {
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

    /// Makes a device that holds nothing, or nothing to be kept, a tier of this machine. Errors:
    /// another machine was faster (`EBUSY`).
    pub(super) fn make_claimed_label(
        &self,
        path: &Path,
        host: &[u8; 16],
        label: Label,
    ) -> StoreResult<()> {
        let key = new_key().map_err(|error| failed(path, error))?;
        self.settle_label(path, |before| {
            let label = Label { claim: before.unwrap_or_default().claim, ..label };
            // A label of this host belongs to a store that is being made again.
            let own = wanted(&label, host, key, false).map_err(|other| taken(path, other))?;
            Ok(Some(own.unwrap_or(label)))
        })
    }

    /// Replaces the label by the result of `change`, and makes sure that no other machine has
    /// replaced it since. Writes nothing if `change` returns `None`.
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

    /// Returns why a part like this one cannot be made in its namespace; `None` if it can, and for
    /// a whole namespace.
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

    /// Marks the namespace of a part as divided. Does not wait: the caller waits when it makes its
    /// label, and then calls `check_divided`.
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

    /// Checks the mark. Errors: another machine has divided the namespace in another way meanwhile.
    pub(super) fn check_divided(&self, path: &Path) -> StoreResult<()> {
        match self.why_not_divided(path)? {
            Some(why) => Err(refused(path, why)),
            None => Ok(()),
        }
    }
}

fn failed(path: &Path, error: cairn_nvme::Error) -> StoreError {
    StoreError::new("claim", path, error_of(error))
}

/// Returns the last page of a namespace that is divided into that many parts.
fn divided(part: Part) -> [u8; PAGE as usize] {
    let mut page = [0; PAGE as usize];
    page[..8].copy_from_slice(&DIVIDED);
    page[8..12].copy_from_slice(&part.count().to_le_bytes());
    page
}

impl MediaFile {
    /// Opens what is at `path` if it is the tier with this identity. Claims nothing else.
    pub(crate) fn open_own(
        path: &Path,
        identity: &Identity,
        sharing: i32,
    ) -> StoreResult<Option<MediaFile>> {
        if MediaFile::open_identified(path, identity, sharing, Access::Read)?.is_none() {
            return Ok(None);
        }
        let opened = MediaFile::open_identified(path, identity, sharing, Access::ReadWrite)?;
        let claim = |(file, label): (MediaFile, Label)| {
            file.claim(path, &label, false)?;
            Ok(file)
        };
        opened.map(claim).transpose()
    }

    fn open_identified(
        path: &Path,
        identity: &Identity,
        sharing: i32,
        access: Access,
    ) -> StoreResult<Option<(MediaFile, Label)>> {
        let (file, label) = MediaFile::open_unclaimed(path, sharing, access)?;
        match label {
            Ok(label) if label.identity == *identity => Ok(Some((file, label))),
            Ok(_) | Err(Wrong::Missing) => Ok(None),
            Err(wrong) => Err(refused(path, wrong.describe())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenths of a second.
    type Time = u64;
    const WAITED: Time = 15;
    const HESITATION: Time = 10;

    /// Returns when a host reads the label, has written it, and reads it again.
    fn times(start: Time, hesitation: Time) -> [Time; 3] {
        [start, start + hesitation, start + hesitation + WAITED]
    }

    /// Simulates two hosts that want one label. Returns which of them get it.
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
