//! An image that is held while processes go on. It must show the namespace as it was at the cut.
//! Blocks that it reports as unchanged since the previous image must be unchanged.

use cairn_core::{HeapMemory, ImageLoss, ImageMemory, ImageState, InodeId, Memory, Microfs, ROOT};
use std::collections::BTreeMap;

use super::{Simulation, facts};
use crate::content::Content;
use crate::model::{Kind, Model, NodeId};
use crate::tier::CHECKSUM;

/// An image, and the state that it must show.
pub(super) struct Cut {
    number: u64,
    model: Model,
    /// Absent files, with the checksums of their future content.
    absent: BTreeMap<NodeId, u32>,
}

/// Copies of files of an image: those that nobody could store to through a mapping.
pub(super) struct Copies {
    number: u64,
    files: BTreeMap<InodeId, Copied>,
}

struct Copied {
    size: u64,
    /// Bytes of each block that is not a hole; bytes beyond the end of the file are zeros.
    blocks: BTreeMap<u32, Vec<u8>>,
}

impl Simulation {
    /// Whether an image is held.
    pub fn has_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Makes a cut.
    pub fn begin_cut(&mut self) {
        let number = self.inspector.fs.begin_image().expect("no image is held");
        self.note(format!("cut {number}"));
        let model = self.reference.model.clone();
        let nodes = model.nodes.keys().copied().filter(|&node| model.is_absent(node));
        let absent = nodes.filter_map(|node| match &model.node(node).kind {
            Kind::File(content) => Some((node, CHECKSUM(0, &content.certain(0, content.size())))),
            _ => None,
        });
        self.cut = Some(Cut { number, absent: absent.collect(), model: model.clone() });
    }

    /// Ends the image that is held.
    pub fn end_cut(&mut self) {
        if self.cut.take().is_some() {
            self.note("end of the cut".to_string());
            self.inspector.fs.end_image().expect("it is held");
            assert_eq!(self.inspector.fs.image(), ImageState::None);
        }
    }

    /// Opens a view of the image that is held.
    pub fn image(&self) -> Microfs {
        let view = HeapMemory::new(self.world.memory.words().len());
        let memory = ImageMemory::new(self.world.memory.clone(), Box::new(view), CHECKSUM);
        let memory = memory.expect("the image is held");
        Microfs::open_image(memory, CHECKSUM).expect("the image is held")
    }

    /// Compares the image with the namespace as it was at the cut.
    pub fn verify_cut(&mut self) {
        let Some(cut) = &self.cut else { return };
        let state = self.inspector.fs.image();
        // Blocks that were replaced while writes were in flight needed an inode to wait in, or a
        // program needed blocks that only the image had.
        let may_be_lost = [ImageLoss::NoRecords, ImageLoss::NoSpace];
        if may_be_lost.iter().any(|&why| state == ImageState::Lost(cut.number, why)) {
            return self.end_cut();
        }
        assert_eq!(state, ImageState::Held(cut.number));
        let image = self.image();
        let inodes = self.verify_image(cut, &image);
        let is_copied = self.copies.as_ref().is_some_and(|copies| copies.number == cut.number);
        if !is_copied && self.inspector.fs.image_is_settled() == Ok(true) {
            let number = cut.number;
            let copies = Copies { number, files: self.copy_image(&image, &inodes) };
            let before = self.copies.replace(copies);
            if let Some(before) = before.filter(|before| before.number + 1 == number) {
                self.verify_unchanged(&image, &before);
            }
        }
    }

    fn copy_image(&self, image: &Microfs, inodes: &[InodeId]) -> BTreeMap<InodeId, Copied> {
        let is_kept = |inode: &InodeId| self.inspector.fs.image_may_lack(*inode) == Ok(false);
        let copy = |inode: &InodeId| {
            let attributes = image.attributes(*inode).expect("it has a name");
            (attributes.is_regular() && attributes.absence.is_none())
                .then(|| (*inode, self.copy_file(image, *inode, attributes.size)))
        };
        inodes.iter().filter(|inode| is_kept(inode)).filter_map(copy).collect()
    }

    fn copy_file(&self, image: &Microfs, inode: InodeId, size: u64) -> Copied {
        let block_bytes = u64::from(image.geometry().hugeblock_bytes);
        let (mut at, mut blocks) = (0, BTreeMap::new());
        while at < size {
            let plan = image.plan_read_of(inode, at, size - at).expect("it can be read");
            for run in plan.runs() {
                let Some((tier, offset)) = run.source else {
                    at += run.bytes;
                    continue;
                };
                let mut bytes = vec![0; run.bytes as usize];
                let start = self.inspector.start_of(tier) + offset;
                self.inspector.fetch(start, &mut bytes).expect("the heap does not fail");
                for part in bytes.chunks(block_bytes as usize) {
                    let mut block = part.to_vec();
                    block.resize(block_bytes as usize, 0);
                    blocks.insert((at / block_bytes) as u32, block);
                    at += part.len() as u64;
                }
            }
        }
        Copied { size, blocks }
    }

    /// Checks that blocks that the image reports as unchanged are the same as in the previous
    /// image.
    fn verify_unchanged(&self, image: &Microfs, before: &Copies) {
        let block_bytes = u64::from(image.geometry().hugeblock_bytes);
        let zeros = vec![0; block_bytes as usize];
        let now = &self.copies.as_ref().expect("it was just copied").files;
        let mut unchanged = Vec::new();
        for (&inode, copied) in now {
            let Some(old) = before.files.get(&inode) else { continue };
            image.unchanged_blocks(inode, &mut unchanged).expect("it is held");
            for (&block, bytes) in &copied.blocks {
                if !unchanged.iter().any(|range| range.contains(&block)) {
                    continue;
                }
                let end = copied.size.min(old.size).saturating_sub(u64::from(block) * block_bytes);
                let end = end.min(block_bytes) as usize;
                let old = old.blocks.get(&block).unwrap_or(&zeros);
                assert!(old[..end] == bytes[..end], "block {block} of {inode:?} changed unnoticed");
            }
        }
    }

    /// Verifies the image. Returns the inodes that have a name.
    fn verify_image(&self, cut: &Cut, image: &Microfs) -> Vec<InodeId> {
        image.check().expect("the image is consistent");
        let mut seen = BTreeMap::new();
        self.verify_image_directory(cut, image, (ROOT, crate::model::ROOT), &mut seen);
        for (&node, &inode) in &seen {
            self.verify_image_node(cut, image, node, inode);
        }
        image.require_image().expect("the image is held");
        seen.into_values().collect()
    }

    fn verify_image_directory(
        &self,
        cut: &Cut,
        image: &Microfs,
        (inode, node): (InodeId, NodeId),
        seen: &mut BTreeMap<NodeId, InodeId>,
    ) {
        assert!(seen.insert(node, inode).is_none(), "a directory is named twice");
        let mut found = BTreeMap::new();
        let caller = self.inspector.caller();
        let listed = image.list(&caller, inode, 0, &mut |entry| {
            found.insert(entry.name.to_vec(), entry.inode);
            true
        });
        listed.expect("root may list every directory");
        let expected = cut.model.list(&caller, node).expect("it is a directory");
        assert!(found.keys().eq(expected.keys()), "{:?}, not {:?}", found.keys(), expected.keys());
        for (name, &child) in expected {
            if cut.model.node(child).is_directory() {
                self.verify_image_directory(cut, image, (found[name], child), seen);
            } else {
                let known = seen.insert(child, found[name]);
                assert!(known.is_none_or(|known| known == found[name]), "hard links");
            }
        }
    }

    fn verify_image_node(&self, cut: &Cut, image: &Microfs, node: NodeId, inode: InodeId) {
        let attributes = image.attributes(inode).expect("it has a name");
        assert_eq!(facts(&attributes), cut.model.facts(node), "attributes of {inode:?}");
        let extended = image.all_extended(inode).expect("it has a name");
        let extended: BTreeMap<_, _> =
            extended.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        assert!(extended == cut.model.node(node).extended, "extended attributes of {inode:?}");
        let absent = attributes.absence.map(|absence| absence.crc32c);
        assert_eq!(absent, cut.absent.get(&node).copied(), "absence of {inode:?}");
        match &cut.model.node(node).kind {
            Kind::File(content) if absent.is_none() => {
                self.verify_image_file(image, inode, content);
            }
            Kind::Symlink(target) => {
                let mut found = Vec::new();
                let read = image.read_link(&self.inspector.caller(), inode, b"", &mut found);
                assert!(read.is_err() || found == *target, "target of {inode:?}");
            }
            _ => {}
        }
    }

    fn verify_image_file(&self, image: &Microfs, inode: InodeId, content: &Content) {
        let size = content.size();
        self.verify_image_range(image, inode, content, (0, size, true));
        for (start, length) in content.data_ranges() {
            let end = size.min(start + length);
            self.verify_image_range(image, inode, content, (start, end, false));
        }
    }

    /// Verifies a range of a file; with `skips`, holes are passed over.
    fn verify_image_range(
        &self,
        image: &Microfs,
        inode: InodeId,
        content: &Content,
        (mut at, end, skips): (u64, u64, bool),
    ) {
        let size = content.size();
        let block_bytes = u64::from(image.geometry().hugeblock_bytes);
        while at < end {
            let plan = image.plan_read_of(inode, at, end - at).expect("it can be read");
            assert!(plan.length > 0, "the file ends at {at}, not {end}");
            for run in plan.runs() {
                let from = at;
                at += run.bytes;
                if run.source.is_none() && skips {
                    continue;
                }
                let mut bytes = vec![0; run.bytes as usize];
                if let Some((tier, offset)) = run.source {
                    let start = self.inspector.start_of(tier) + offset;
                    self.inspector.fetch(start, &mut bytes).expect("the heap does not fail");
                }
                if let Some(difference) = content.first_difference(from, &bytes) {
                    panic!("image of {inode:?}, bytes {from}..{at}: {difference:?}");
                }
                let Some((tier, offset)) = run.source.filter(|_| skips) else { continue };
                for index in 0..run.bytes.div_ceil(block_bytes) {
                    let file_block = (from / block_bytes + index) as u32;
                    let place = (tier, offset + index * block_bytes);
                    let verified =
                        self.inspector.verify_block_of(image, inode, file_block, place, size);
                    verified.expect("checksums of the image stay right");
                }
            }
        }
    }
}
