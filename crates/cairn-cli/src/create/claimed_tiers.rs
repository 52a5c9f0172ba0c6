//! Last check and claim of devices, and of namespaces on other machines, just before a run uses
//! them.
//!
//! Must stay true: a claim that this machine did not hold before is given back if the run fails to
//! start. Therefore everything else is checked before a claim.

use cairn_agent::model::job::{DeviceKind, Job};
use cairn_device::media::medium;
use cairn_nvme::shared::RemotePath;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::request::Request;
use crate::store::Roots;
use crate::store::tier::{self, TierPermission, refused_device};

/// Checks all devices of a new store. `are_kept`: they hold the metadata of an earlier store and
/// keep their content. Errors: a device cannot be used.
pub fn check(job: &Job, request: &Request, roots: &Roots, are_kept: bool) -> Result<()> {
    let mut devices = job.all_tiers().filter_map(tier::device);
    devices.try_for_each(|path| tier::check_device(path, are_kept, request.licence(path), roots))
}

/// Claims that are given back on drop.
#[derive(Default)]
pub struct ClaimedTiers(Vec<PathBuf>);

impl ClaimedTiers {
    /// Claims the devices of a new store. Unless everything is kept, unfinished content of a device
    /// is removed. Errors: another machine has a device, and taking over is not allowed.
    pub fn claim(&mut self, job: &Job, request: &Request, are_kept: bool) -> Result<()> {
        for path in job.all_tiers().filter_map(tier::device).filter(|_| !are_kept) {
            let cleared = medium::clear_unfinished(path, request.licence(path).takes_over);
            cleared.map_err(refused_device)?;
        }
        self.claim_if(job, request, |_| true)
    }

    /// Claims the devices of an existing store that are to be taken over from another machine. The
    /// store's processes claim the other devices when they use them.
    pub fn take_over(&mut self, job: &Job, request: &Request) -> Result<()> {
        self.claim_if(job, request, |licence| licence.takes_over)
    }

    fn claim_if(
        &mut self,
        job: &Job,
        request: &Request,
        is_wanted: impl Fn(TierPermission) -> bool,
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

    fn claim_one(&mut self, path: &Path, licence: TierPermission) -> Result<()> {
        if medium::claim(path, licence.takes_over).map_err(refused_device)? {
            self.0.push(path.to_path_buf());
        }
        Ok(())
    }

    /// Claims the namespace at `path`, if it is one, for the lifetime of the result. Errors:
    /// another machine has it.
    pub fn for_now(path: &Path) -> Result<ClaimedTiers> {
        let mut claimed = ClaimedTiers::default();
        if RemotePath::is_one(path) {
            claimed.claim_one(path, TierPermission { may_overwrite: false, takes_over: false })?;
        }
        Ok(claimed)
    }

    /// Keeps the claims: the run uses the devices from here on.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for ClaimedTiers {
    fn drop(&mut self) {
        for path in &self.0 {
            // The first error is the one to report. A claim that cannot be given back here can
            // still be taken over.
            let _ = medium::give_back(path);
        }
    }
}
