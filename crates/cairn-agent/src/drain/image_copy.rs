//! Copies a whole store, as it is at one moment, to a directory of its own: an image, or the
//! leftovers of a killed job.
//!
//! Must stay true: the copy of a file that programs may store to through a mapping contains no
//! store that came after something the image lacks. Such files are copied first. If a call that
//! orders stores ended meanwhile, a new image is taken, a few times. Files that are unsteady after
//! that are reported, and no checkpoint with one of them counts as whole.

use super::unchanged::Since;
use super::{Contents, Drainer, Reason, groves, read};
use crate::drain::checkpoints::View;
use crate::drain::link::Elsewhere;
use crate::drain::meter::Meter;
use crate::drain::plan::Plan;
use crate::image::{self, Image};
use crate::model::drain_task::Delivery;
use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::model::mapping::Mapping;
use crate::model::path::FilePath;
use crate::model::protocol::Outcome;
use crate::persist::{image_place, ownership};
use crate::store::node::Tree;
use crate::store::volume::Volume;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Number of images taken in an attempt to get steady copies of mapped files.
const ATTEMPTS: usize = 3;

/// An image that is being copied.
pub(super) struct Whole<'a> {
    image: &'a Image,
    /// Files that programs could store to when the first of them was copied.
    pub stored_to: HashSet<FilePath>,
    /// Whether the copies of `stored_to` may be newer than something that the image lacks.
    unsteady: Cell<bool>,
    /// Other files whose copies may be too new in that way.
    later: RefCell<HashSet<FilePath>>,
    is_last_attempt: bool,
    /// Unchanged ranges of large files since the image that the directory holds.
    pub since: Since<'a>,
}

impl Whole<'_> {
    /// Takes the steps for mapped files out of `plans`, to be carried out before the rest.
    pub fn take_first(&self, plans: &mut [Plan]) -> Vec<Plan> {
        match self.stored_to.is_empty() {
            true => Vec::new(),
            false => plans.iter_mut().map(|plan| plan.take_first(&self.stored_to)).collect(),
        }
    }

    /// Checks the files that were copied first. Errors: `Unsteady`: the attempt failed, and another
    /// image may be taken.
    pub fn first_are_copied(&self) -> Result<()> {
        self.unsteady.set(!self.stored_to.is_empty() && !self.image.is_steady());
        match self.unsteady.get() && !self.is_last_attempt {
            true => Err(Error::Unsteady),
            false => Ok(()),
        }
    }

    /// Returns the files whose copies may be unsteady. Call it after all copies were made. Errors:
    /// `Unsteady`, unless this is the last attempt.
    pub fn unsteady(&self, trees: &[(&Arc<Volume>, Tree)]) -> Result<Vec<FilePath>> {
        let mut later = self.later.borrow_mut();
        if !self.image.is_steady() {
            later.extend(self.image.stored_to(trees)?.difference(&self.stored_to).cloned());
        }
        if !later.is_empty() && !self.is_last_attempt {
            return Err(Error::Unsteady);
        }
        let first = self.stored_to.iter().filter(|_| self.unsteady.get());
        let unsteady: BTreeSet<&FilePath> = first.chain(&*later).collect();
        Ok(unsteady.into_iter().cloned().collect())
    }
}

impl Drainer {
    /// Copies the whole store, as it is at one moment, to `directory` under the files' own names,
    /// and makes the directory if it is missing. The persist directory and its manifest do not
    /// change.
    pub(super) fn copy_whole(
        &mut self,
        directory: &Path,
        volumes: (&[Arc<Volume>], bool),
        (reason, view): (Reason, View),
        meter: &Meter,
    ) -> Result<Outcome> {
        let mut stored_to = HashSet::new();
        let mut attempts = 1..=ATTEMPTS;
        loop {
            let is_last = attempts.next().is_none_or(|attempt| attempt == ATTEMPTS);
            let (look, attempt) = ((reason, view.clone()), (is_last, &mut stored_to));
            match self.try_whole(directory, volumes, look, attempt, meter) {
                Err(Error::Unsteady) if !is_last => meter.reset(),
                done => return done,
            }
        }
    }

    /// Makes one attempt. `first` collects the files that were stored to; the next attempt copies
    /// them first. Errors: `Unsteady`, unless this is the last attempt.
    fn try_whole(
        &mut self,
        directory: &Path,
        (volumes, all): (&[Arc<Volume>], bool),
        (reason, mut view): (Reason, View),
        (is_last_attempt, first): (bool, &mut HashSet<FilePath>),
        meter: &Meter,
    ) -> Result<Outcome> {
        let told = reason.told();
        let image = Image::take(&self.store, volumes)?;
        let mut trees = read(image.volumes())?;
        // Nobody writes to an image, and all of it is wanted.
        trees.iter_mut().flat_map(|(_, tree)| tree.values_mut()).for_each(|node| node.open = false);
        first.extend(image.stored_to(&trees)?);
        let stored_to = first.clone();
        // `unchanged` is lost if anything fails before it is put back: then all files are compared
        // again.
        let mut unchanged = std::mem::take(&mut self.unchanged);
        unchanged.note(&image, &trees, &stored_to)?;
        let since = unchanged.since(directory);
        let (unsteady, later) = Default::default();
        let whole = Whole { image: &image, stored_to, unsteady, later, is_last_attempt, since };
        view.taken = trees.iter().flat_map(|(_, tree)| tree.keys().cloned()).collect();
        view.held = self.checkpoints()?.unwanted_in(&groves(&trees))?;
        (view.is_of_all, view.repair) = (true, None);
        let job = Job {
            persist: Some(directory.to_path_buf()),
            persist_id: None,
            map: Mapping::default(),
            // No other job uses this directory.
            shared: false,
            ..self.job.clone()
        };
        ownership::clear_of_others(directory, &job)?;
        match std::fs::create_dir(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::file("make", directory)(error));
            }
            _ => {}
        }
        let last = match told.delivery {
            Delivery::Image => image_place::last(directory, &job)?,
            _ => None,
        };
        let failures = std::mem::take(&mut self.failures);
        let (job, ledger) = (std::mem::replace(&mut self.job, job), self.ledger.take());
        let shares = told.delivery == Delivery::Image;
        let here = ledger.as_ref().map(|ledger| (ledger.destination(), ledger.manifest()));
        let last = last.as_ref().map(|(destination, manifest)| (destination, manifest));
        let except = &whole.stored_to;
        let elsewhere: Vec<Elsewhere> = here
            .into_iter()
            .chain(last)
            .map(|(destination, manifest)| Elsewhere { destination, manifest, shares, except })
            .collect();
        let what = Contents {
            trees: &trees,
            all,
            is_over: false,
            elsewhere: &elsewhere,
            whole: Some(&whole),
        };
        let left = self.drain(directory, what, (reason, None), view, meter);
        first.extend(whole.later.take());
        if left.as_ref().is_ok_and(|outcome| outcome.complete) && image.check().is_ok() {
            unchanged.note_copied(directory);
        }
        self.unchanged = unchanged;
        (self.job, self.ledger, self.failures) = (job, ledger, failures);
        let outcome = left.and_then(|outcome| image.check().map(|()| outcome))?;
        if told.delivery == Delivery::Left && outcome.complete {
            let persist = self.job.persist.as_deref().unwrap_or(directory);
            image::discard(persist, &self.job);
        }
        Ok(outcome)
    }
}
