//! Devices, and namespaces on other machines, looked at for the last time and claimed because a run
//! is about to use them.
//!
//! Must stay true: what a run has claimed, and nobody had for this machine before, is given back if
//! nothing comes of the run. So whoever claims has looked at everything else before.

use crate::create::request::Request;
use crate::error::Result;
use crate::store::Roots;
use crate::store::tier::{self, Licence, refused_device};
use cairn_agent::model::job::{DeviceKind, Job};
use cairn_device::medium;
use cairn_device::nvme::shared::RemotePath;
use std::path::{Path, PathBuf};

/// Looks at all devices of a store that is made, which are kept as they are if its metadata are.
/// Errors: one cannot be used.
pub fn check(job: &Job, request: &Request, roots: &Roots, are_kept: bool) -> Result<()> {
    let mut devices = job.all_tiers().filter_map(tier::device);
    devices.try_for_each(|path| tier::check_device(path, are_kept, request.licence(path), roots))
}

/// What was claimed, and is given back when this is dropped.
#[derive(Default)]
pub struct ClaimedTiers(Vec<PathBuf>);

impl ClaimedTiers {
    /// Claims those of a store that is made. What nobody has finished on a device goes, unless all
    /// is kept. Errors: another machine has one, and is not to be put out.
    pub fn claim(&mut self, job: &Job, request: &Request, are_kept: bool) -> Result<()> {
        for path in job.all_tiers().filter_map(tier::device).filter(|_| !are_kept) {
            let cleared = medium::clear_unfinished(path, request.licence(path).takes_over);
            cleared.map_err(refused_device)?;
        }
        self.claim_if(job, request, |_| true)
    }

    /// Claims those of a store that is there which are to be taken over; its processes claim the
    /// others when they use them.
    pub fn take_over(&mut self, job: &Job, request: &Request) -> Result<()> {
        self.claim_if(job, request, |licence| licence.takes_over)
    }

    fn claim_if(
        &mut self,
        job: &Job,
        request: &Request,
        is_wanted: impl Fn(Licence) -> bool,
    ) -> Result<()> {
        let remote = job.all_tiers().filter(|tier| tier.device == DeviceKind::Remote);
        for path in remote.filter_map(|tier| tier.path.as_deref()) {
            let licence = request.licence(path);
            if is_wanted(licence) {
                self.claim_one(path, licence)?;
            }
        }
        Ok(())
    }

    fn claim_one(&mut self, path: &Path, licence: Licence) -> Result<()> {
        if medium::claim(path, licence.takes_over).map_err(refused_device)? {
            self.0.push(path.to_path_buf());
        }
        Ok(())
    }

    /// Claims what is at `path`, if that is a namespace, for as long as the result is there.
    /// Errors: another machine has it.
    pub fn for_now(path: &Path) -> Result<ClaimedTiers> {
        let mut claimed = ClaimedTiers::default();
        if RemotePath::is_one(path) {
            claimed.claim_one(path, Licence { may_overwrite: false, takes_over: false })?;
        }
        Ok(claimed)
    }

    /// They are used from now on.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for ClaimedTiers {
    fn drop(&mut self) {
        for path in &self.0 {
            // The error that is reported is the first one. What cannot be given back now can be
            // taken over.
            let _ = medium::give_back(path);
        }
    }
}
