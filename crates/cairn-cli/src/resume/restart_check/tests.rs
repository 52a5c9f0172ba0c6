use cairn_agent::store::write::NewFile;
use cairn_core::{Geometry, ROOT};
use cairn_device::media::media_file::Allocation;
use cairn_device::store::namespace::{self, Creation};
use cairn_device::{MediumKind, Store, TierPlace};
use cairn_job::checkpoint::name::Name;
use cairn_job::checkpoint::sets::register::Level;
use cairn_job::file::node::Kind;
use cairn_job::file::path::FilePath;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A store with a block of memory and a tier in a file behind it, in a directory that is removed
/// with it.
pub struct Scratch {
    directory: PathBuf,
    pub volume: Volume,
}

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cairn-resumption-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).expect("a scratch directory");
        let store = Store::create(&directory, "job").expect("makes");
        let file = TierPlace::new(MediumKind::File, &directory.join("tier")).expect("a path");
        let creation = Creation {
            geometry: Geometry::new(b"/cairn", [1, 64, 0, 0], 0),
            metadata_bytes: 0,
            places: vec![TierPlace::Ram, file],
            want_huge_pages: false,
            allocation: Allocation::AtOnce,
            may_overwrite: false,
        };
        namespace::create(&store, "node", creation).expect("makes");
        let volume = Volume::open(&store, "node", FilePath::root()).expect("opens");
        Scratch { directory, volume }
    }

    /// Creates or replaces a file and the directories above it.
    pub fn write(&self, name: &str, content: &[u8]) {
        let path = path(name);
        let mut here = FilePath::root();
        let (parent, _) = path.split().expect("a name");
        for name in parent.components() {
            here = here.join(name);
            let (fs, caller) = (self.volume.fs(), self.volume.caller_as_user());
            // The directory may exist.
            let _ = fs.make_directory(&caller, ROOT, here.as_bytes(), 0o755);
        }
        let mut file = NewFile::create(&self.volume, &path).expect("creates");
        file.append(content).expect("writes");
        file.finish(0o644, 1).expect("finishes");
    }

    /// Returns all files with their content.
    pub fn contents(&self) -> Vec<(String, String)> {
        let tree = self.volume.tree().expect("reads");
        let files = tree.iter().filter(|(_, node)| node.kind == Kind::File);
        let files = files.filter_map(|(path, _)| {
            let opened = self.volume.open_file(path).ok()?;
            let mut content = Vec::new();
            let mut take = |chunk: cairn_agent::store::read::Chunk<'_>| {
                content.extend_from_slice(chunk.bytes());
                Ok(())
            };
            read_whole(&opened, &mut Buffer::default(), &mut take).ok()?;
            let text = String::from_utf8(content).expect("UTF-8");
            Some((path.to_lossy().into_owned(), text))
        });
        files.collect()
    }

    /// Returns a checkpoint of these files as the register has it.
    fn checkpoint(&self, names: &[&str]) -> Checkpoint {
        let file = |name: &&str| {
            let found = self.volume.attributes(&path(name)).expect("is there");
            let (inode, version, bytes) = (found.inode.0, found.version, found.size);
            Member { path: path(name), inode, version, bytes }
        };
        Checkpoint {
            id: 1,
            name: Name { family: Family(b"f".to_vec()), step: None },
            ordinal: 1,
            completed_ns: 1,
            modified_ns: 1,
            wanted: Level::Node,
            level: Level::Node,
            files: names.iter().map(file).collect(),
        }
    }

    fn damaged(&self, known: &Checkpoint) -> Result<Vec<String>> {
        let progress = Progress::new("verifying", 0, true);
        let volumes = std::slice::from_ref(&self.volume);
        let damaged = Reader::new(volumes, progress).damaged(known)?;
        Ok(damaged.into_iter().map(|damage| damage.file.path.to_lossy().into_owned()).collect())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn path(text: &str) -> FilePath {
    FilePath::parse(text.as_bytes()).expect("a valid path")
}

/// Mechanism: a device error in reading one file ended the comparison of all files. Consequence: a
/// bad sector under the newest checkpoint prevented a resume although there was a copy. Fix: a part
/// that cannot be read counts as damage of its file, unless nothing on the device can be read.
#[test]
fn part_of_a_device_that_cannot_be_read_is_damage_and_a_device_that_is_gone_is_not() {
    let scratch = Scratch::new();
    let block = vec![7; scratch.volume.hugeblock_bytes() as usize];
    let names = ["memory", "first", "second"];
    names.iter().for_each(|name| scratch.write(name, &block));
    let known = scratch.checkpoint(&names);
    assert!(scratch.damaged(&known).expect("compares").is_empty());
    let tier = File::options().write(true).open(scratch.directory.join("tier")).expect("is there");
    tier.set_len(block.len() as u64).expect("becomes shorter");
    assert_eq!(scratch.damaged(&known).expect("compares"), ["second"]);
    tier.set_len(0).expect("becomes empty");
    assert!(scratch.damaged(&known).is_err(), "nobody can tell");
}
