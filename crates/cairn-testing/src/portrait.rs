//! Everything visible of a namespace without changing it, to compare two moments.

use cairn_core::{
    Attributes, Error, InodeId, Microfs, ProcessIdentity, ROOT, Report, Result, SlotId,
};
use std::collections::BTreeMap;

/// End of the handle numbers looked at; tests open fewer files.
const HANDLES_MAX: u32 = 64;
/// Most blocks of a file whose checksums are read.
const BLOCKS_MAX: usize = 64;

/// A file, directory or symbolic link with everything visible of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Attributes that `stat` shows.
    pub attributes: Attributes,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Checksums of its blocks; `None` for a hole or a stale block.
    pub checksums: Vec<Option<u32>>,
    /// Extended attributes.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The visible state at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleState {
    /// Nodes by path.
    pub tree: BTreeMap<Vec<u8>, Seen>,
    /// Open descriptions by number: file, cursor, and whether it may be read, written, appended to.
    pub handles: BTreeMap<u32, (InodeId, u64, [bool; 3])>,
    /// Attached processes.
    pub processes: Vec<(SlotId, ProcessIdentity)>,
    /// Numbers of blocks, names and inodes.
    pub report: Report,
    /// Number of deleted files whose blocks are not free yet, of writes in flight, and of
    /// attachments ever made.
    pub counts: [u64; 3],
}

/// Checks the namespace and describes it. Errors: those of the check.
pub fn portrait(fs: &Microfs) -> Result<VisibleState> {
    let report = fs.check()?;
    let usage = fs.usage()?;
    let mut tree = BTreeMap::new();
    let root = Seen {
        attributes: fs.attributes(ROOT)?,
        target: Vec::new(),
        checksums: Vec::new(),
        extended: extended(fs, ROOT)?,
    };
    tree.insert(Vec::new(), root);
    describe(fs, ROOT, b"", &mut tree)?;
    let mut handles = BTreeMap::new();
    for number in 1..HANDLES_MAX {
        match fs.handle_numbered(number).and_then(|handle| fs.handle(handle)) {
            Ok(info) => {
                let rights = [info.read, info.write, info.append];
                handles.insert(number, (info.inode, info.cursor, rights));
            }
            Err(Error::BadHandle) => {}
            Err(error) => return Err(error),
        }
    }
    let counts = [usage.orphans, usage.pins, usage.attachments];
    Ok(VisibleState { tree, handles, processes: fs.processes()?, report, counts })
}

fn describe(
    fs: &Microfs,
    directory: InodeId,
    prefix: &[u8],
    tree: &mut BTreeMap<Vec<u8>, Seen>,
) -> Result<()> {
    let caller = cairn_core::Caller {
        slot: SlotId(0),
        credentials: crate::world::SUPERUSER,
        groups: &[],
        now: cairn_core::Timestamp(0),
    };
    let mut entries = Vec::new();
    fs.list(&caller, directory, 0, &mut |entry| {
        entries.push((entry.name.to_vec(), entry.inode));
        true
    })?;
    for (name, inode) in entries {
        let path = [prefix, b"/", &name].concat();
        let attributes = fs.attributes(inode)?;
        let mut target = Vec::new();
        let mut checksums = Vec::new();
        if attributes.is_symlink() {
            fs.read_link(&caller, directory, &name, &mut target)?;
        }
        if attributes.is_regular() {
            checksums.resize(BLOCKS_MAX, None);
            fs.checksums(inode, 0, &mut checksums)?;
        }
        let extended = extended(fs, inode)?;
        tree.insert(path.clone(), Seen { attributes, target, checksums, extended });
        if attributes.is_directory() {
            describe(fs, inode, &path, tree)?;
        }
    }
    Ok(())
}

fn extended(fs: &Microfs, inode: InodeId) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let attributes = fs.all_extended(inode)?;
    Ok(attributes.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
}
