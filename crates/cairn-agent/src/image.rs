//! Image of a store: all its namespaces as they were at one moment, held while they are copied.
//!
//! Must stay true: a copy of an image that was lost meanwhile, because a program needed its space,
//! does not count as an image. The process that takes an image ends it. An image that a dead agent
//! left is ended by the next agent. Files that programs may store to through mappings are copied
//! with their bytes at the moment of the copy; `drain/whole.rs` ensures that the difference is
//! unobservable, or reports it. Does not decide when an image is taken, nor where it goes.

pub(crate) mod schedule;
use cairn_core::{Barriers, ImageState, InodeId};
use cairn_device::Store;
use cairn_device::store::free_bytes;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::persist::image_place::places;

use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::model::log;
use crate::model::path::FilePath;
use crate::persist::ownership;
use crate::store::node::{Kind, Tree};
use crate::store::volume::Volume;

/// Time limit for writes that were in flight at the cut.
const SETTLE_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Number of attempts to end an image. Each attempt waits for the lock as long as this process may.
const END_ATTEMPTS: u32 = 12;

/// Removes the images of a job whose files are all in their own places. Files in them that somebody
/// changed stay. A failure is only logged: nobody needs the images any more, and the job is sound.
pub fn discard(persist: &Path, job: &Job) {
    places(persist, &job.job)
        .iter()
        .filter(|place| place.exists())
        .for_each(|place| drop_one(place, job));
}

fn drop_one(place: &Path, job: &Job) {
    if let Err(error) = ownership::remove(place, job) {
        log::say(log::Level::Warn, format_args!("cannot remove an image: {error}"));
    }
}

/// Handles an `error` of copying an image to `place` when `left_bytes` were still to be copied. If
/// the file system there is full, removes the incomplete image, because files to be drained need
/// the space, and returns an error with the number of bytes missing.
pub(crate) fn give_up(error: Error, place: &Path, job: &Job, left_bytes: u64) -> Error {
    if !error.is_about_room() {
        return error;
    }
    let free_bytes = free_bytes(place).unwrap_or(0);
    drop_one(place, job);
    let missing_bytes = left_bytes.saturating_sub(free_bytes);
    match missing_bytes {
        // A quota is exceeded, or space was freed meanwhile.
        0 => error,
        missing_bytes => Error::NoRoom { place: place.to_path_buf(), missing_bytes },
    }
}

/// An image that is held until this value is dropped.
pub struct Image {
    live: Vec<Arc<Volume>>,
    views: Vec<Arc<Volume>>,
    /// Barrier count of each namespace before the cut.
    barriers: Vec<Barriers>,
}

impl Image {
    /// Takes an image of the store in `directory`, whose namespaces are `volumes`. Errors: a
    /// namespace cannot hold an image; a write in flight at the cut does not end in time.
    pub fn take(directory: &Path, volumes: &[Arc<Volume>]) -> Result<Image> {
        volumes.iter().try_for_each(|volume| Image::end_left(volume))?;
        let store = Store::open(directory)?;
        let barriers = counted(volumes);
        let mut image = Image { live: volumes.to_vec(), views: Vec::new(), barriers };
        Volume::begin_images(volumes)?;
        for volume in volumes {
            image.views.push(Arc::new(Volume::open_image(&store, volume)?));
        }
        let begun = Instant::now();
        while !image.is_settled()? {
            if begun.elapsed() > SETTLE_PATIENCE {
                let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                let action = "wait for writes that were under way in";
                return Err(Error::file(action, directory)(late));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(image)
    }

    /// Ends an image that a dead agent held. Only agents take images, and a store has one agent at
    /// a time.
    pub fn end_left(volume: &Volume) -> Result<()> {
        match volume.fs().image() {
            ImageState::None => Ok(()),
            _ => volume.fs().end_image().map_err(failed(volume)),
        }
    }

    fn is_settled(&self) -> Result<bool> {
        for volume in &self.live {
            if !volume.fs().image_is_settled().map_err(failed(volume))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns read-only views of the namespaces at the cut.
    pub fn volumes(&self) -> &[Arc<Volume>] {
        &self.views
    }

    /// Returns the image's number in each namespace. Errors: `ImageLost` if it is not held any
    /// more.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        let number = |volume: &Arc<Volume>| match volume.fs().image() {
            ImageState::Held(number) => Ok(number),
            _ => Err(failed(volume)(cairn_core::Error::ImageLost)),
        };
        self.live.iter().map(number).collect()
    }

    /// Returns the files in `trees` whose bytes the image may not have kept, because programs have
    /// them mapped. Errors: the image is not held any more.
    pub fn stored_to(&self, trees: &[(&Arc<Volume>, Tree)]) -> Result<HashSet<FilePath>> {
        let mut stored_to = HashSet::new();
        for (live, (_, tree)) in self.live.iter().zip(trees) {
            for (path, node) in tree.iter().filter(|(_, node)| node.kind == Kind::File) {
                if live.fs().image_may_lack(InodeId(node.inode)).map_err(failed(live))? {
                    stored_to.insert(path.clone());
                }
            }
        }
        Ok(stored_to)
    }

    /// Whether no event that orders stores to mapped files has happened since the cut. If so, the
    /// copies of these files made until this call are no newer than anything outside the image.
    pub fn is_steady(&self) -> bool {
        counted(&self.live) == self.barriers
    }

    /// Checks that the image is still held. Errors: it is not, so data read from it are useless.
    pub fn check(&self) -> Result<()> {
        self.views.iter().try_for_each(|view| view.fs().require_image().map_err(failed(view)))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        for volume in &self.live {
            // A stopped process may hold the lock. While it does, no process can use the namespace.
            let mut ended = volume.fs().end_image();
            for _ in 1..END_ATTEMPTS {
                if ended.is_ok() {
                    break;
                }
                ended = volume.fs().end_image();
            }
            if let Err(error) = ended {
                log::say(log::Level::Warn, format_args!("cannot end an image: {error}"));
            }
        }
    }
}

fn counted(volumes: &[Arc<Volume>]) -> Vec<Barriers> {
    volumes.iter().map(|volume| volume.fs().barriers()).collect()
}

fn failed(volume: &Volume) -> impl FnOnce(cairn_core::Error) -> Error + use<> {
    volume.error("take an image of", &FilePath::root())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_store::TestStore;

    #[test]
    fn image_of_an_agent_that_died_is_ended_by_the_next() {
        let store = TestStore::new();
        store.write("a", b"state", 0o644, 1);
        let volumes = [Arc::clone(&store.volume)];
        // Simulates a death of the agent: the image is never dropped.
        std::mem::forget(Image::take(&store.path, &volumes).expect("takes"));
        assert!(matches!(store.volume.fs().image(), ImageState::Held(_)));
        Image::end_left(&store.volume).expect("ends");
        assert_eq!(store.volume.fs().image(), ImageState::None);
        assert!(Image::take(&store.path, &volumes).is_ok());
    }
}
