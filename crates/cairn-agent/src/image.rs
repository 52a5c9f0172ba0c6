//! Image of a store: all its namespaces as they were at one moment, held while they are copied.
//!
//! Must stay true: what was read of an image that was lost meanwhile, because a program needed its
//! space, does not count. The process that takes an image ends it. An image that a dead agent left
//! is ended by the next agent. Files that programs may store to through mappings are copied with
//! their bytes at the moment of the copy; `drain.rs` ensures that the difference is unobservable,
//! or reports it. Does not decide when an image is taken, nor where it goes.

use cairn_core::{Barriers, ImageState, InodeId};
use cairn_device::Store;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::model::error::{Error, Result};
use crate::model::log;
use crate::store::volume::Volume;
use cairn_job::file::node::{Kind, Tree};
use cairn_job::file::path::FilePath;

/// Time limit for writes that were in flight at the cut.
const SETTLE_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Number of threads that read an image: enough to overlap the fsync of one file with the copy of
/// another.
const READERS: usize = 2;
/// Number of attempts to end an image. Each attempt waits for the lock as long as this process may.
const END_ATTEMPTS: u32 = 12;

/// An image that is held until this value is dropped.
pub struct Image {
    live: Vec<Arc<Volume>>,
    /// Views of each namespace, one for each thread that reads.
    views: Vec<Vec<Arc<Volume>>>,
    /// Barrier count of each namespace before the cut.
    barriers: Vec<Barriers>,
}

/// All namespaces of a store as they were at one moment: an image or, where none can be taken, the
/// namespaces themselves, as long as nothing changes.
pub enum Moment {
    /// They are held.
    Held(Image),
    /// They do not change for the time being.
    Quiet {
        /// The namespaces.
        volumes: Vec<Vec<Arc<Volume>>>,
        /// Their files.
        trees: Vec<Tree>,
        /// See [`Image`].
        barriers: Vec<Barriers>,
    },
}

impl Moment {
    /// Takes a moment of the store in `directory`. Errors: a namespace cannot be read; a write in
    /// flight does not end in time.
    pub fn take(directory: &Path, volumes: &[Arc<Volume>]) -> Result<Moment> {
        match Image::take(directory, volumes) {
            // There is no memory, or a device is gone, or a writer does not get on.
            Err(error) if !error.repeats_pass() => Moment::quiet(volumes),
            taken => taken.map(Moment::Held),
        }
    }

    /// Returns a moment that lasts as long as nothing changes.
    pub fn quiet(volumes: &[Arc<Volume>]) -> Result<Moment> {
        let barriers = counted(volumes);
        let trees = volumes.iter().map(|volume| volume.tree()).collect::<Result<_>>()?;
        let volumes = volumes.iter().map(|volume| vec![Arc::clone(volume)]).collect();
        Ok(Moment::Quiet { volumes, trees, barriers })
    }

    /// Returns read-only views of each namespace, one for each thread that reads.
    pub fn views(&self) -> &[Vec<Arc<Volume>>] {
        match self {
            Moment::Held(image) => &image.views,
            Moment::Quiet { volumes, .. } => volumes,
        }
    }

    /// Returns the image's number in each namespace; none if there is no image. Errors: it is not
    /// held any more.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        match self {
            Moment::Held(image) => image.numbers(),
            Moment::Quiet { .. } => Ok(Vec::new()),
        }
    }

    /// Returns the files in `trees` whose bytes may differ from those at the moment, because
    /// programs have them mapped. Errors: the image is not held any more.
    pub fn stored_to(&self, trees: &[(&Arc<Volume>, Tree)]) -> Result<HashSet<FilePath>> {
        match self {
            Moment::Held(image) => image.stored_to(trees),
            Moment::Quiet { .. } => {
                let open = trees.iter().flat_map(|(_, tree)| tree).filter(|(_, node)| node.open);
                Ok(open.map(|(path, _)| path.clone()).collect())
            }
        }
    }

    /// Whether no event that orders stores to mapped files has happened since. If so, the copies of
    /// these files made until this call are no newer than anything else.
    pub fn is_steady(&self) -> bool {
        match self {
            Moment::Held(image) => counted(&image.live) == image.barriers,
            Moment::Quiet { volumes, barriers, .. } => {
                let now = volumes.iter().flatten().map(|volume| volume.fs().barriers());
                now.eq(barriers.iter().copied())
            }
        }
    }

    /// Checks that the moment lasts. Errors: it does not, so data read from it are useless.
    pub fn check(&self) -> Result<()> {
        match self {
            Moment::Held(image) => {
                let mut views = image.views.iter().flatten();
                views.try_for_each(|view| view.fs().require_image().map_err(failed(view)))
            }
            Moment::Quiet { volumes, trees, .. } => {
                for (volume, tree) in volumes.iter().flatten().zip(trees) {
                    if volume.tree()? != *tree {
                        return Err(failed(volume)(cairn_core::Error::ImageLost));
                    }
                }
                Ok(())
            }
        }
    }
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
            let view = |_| Ok(Arc::new(Volume::open_image(&store, volume)?));
            image.views.push((0..READERS).map(view).collect::<Result<_>>()?);
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

    fn numbers(&self) -> Result<Vec<u64>> {
        let number = |volume: &Arc<Volume>| match volume.fs().image() {
            ImageState::Held(number) => Ok(number),
            _ => Err(failed(volume)(cairn_core::Error::ImageLost)),
        };
        self.live.iter().map(number).collect()
    }

    fn stored_to(&self, trees: &[(&Arc<Volume>, Tree)]) -> Result<HashSet<FilePath>> {
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
