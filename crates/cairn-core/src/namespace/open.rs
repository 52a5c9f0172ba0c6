//! Opening a file, which may create or empty it: one walk, one lock.
//!
//! Must stay true: an open that fails, or that only names a file, changes nothing.

use crate::engine::fs::Microfs;
use crate::engine::inode::{ABSENT, EXECUTE, Inode, NAMELESS, PERMISSION_BITS, READ, WRITE};
use crate::engine::transaction::Transaction;
use crate::format::error::{Error, Result};
use crate::format::types::{Caller, InodeId, MODE_REGULAR, OpenOptions, Opened};
use crate::namespace::namei::{log_create, permit_creation};
use crate::namespace::walk::{Last, Spare, Walked};
use crate::process::handle::{APPEND, MAY_READ, MAY_WRITE, PATH_ONLY, WROTE};

impl Microfs {
    /// Opens `path`. `mode`: permission bits of a file that is created, umask applied. Errors:
    /// `Absent`, unless the file is emptied or only named.
    pub fn open_file(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        options: OpenOptions,
        mode: u32,
    ) -> Result<Opened> {
        let options = options.effective();
        let keep_link = options.no_follow || options.create && options.exclusive;
        let last = match (keep_link, options.create) {
            (true, true) => Last::Name,
            (true, false) => Last::Keep,
            (false, true) => Last::Create,
            (false, false) => Last::Follow,
        };
        let spare = Spare::new();
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            let way = (last, options.bounds);
            let walked = self.walk_within(tx, caller, (base, path), way, &spare)?;
            if options.create && walked.trailing_slash && walked.has_ordinary_name() {
                return Err(Error::IsDirectory);
            }
            let (inode, created) = match walked.target {
                Some(inode) => (inode, false),
                None if options.create => (create_file(tx, caller, &walked, mode)?, true),
                None => return Err(Error::NotFound),
            };
            let is_directory = inode.is_directory(tx);
            if !created {
                if options.create && options.exclusive {
                    return Err(Error::Exists);
                }
                if is_directory && options.create {
                    return Err(Error::IsDirectory);
                }
                if (walked.trailing_slash || options.directory) && !is_directory {
                    return Err(Error::NotDirectory);
                }
                if inode.is_symlink(tx) && !options.path_only {
                    return Err(Error::SymlinkLoop);
                }
                let reads = options.read || options.with_rights;
                let writes = options.write || options.truncate || options.with_rights;
                if is_directory && writes {
                    return Err(Error::IsDirectory);
                }
                let wanted = if reads { READ } else { 0 } | if writes { WRITE } else { 0 };
                inode.permit(tx, caller, wanted)?;
            }
            if options.unless_written && options.write && inode.writers(tx) > 0 && !created {
                return Err(Error::BeingWritten);
            }
            let truncates = options.truncate && !created && inode.is_regular(tx);
            if inode.flags(tx) & ABSENT != 0 && !truncates && !options.path_only {
                return Err(Error::Absent { inode: inode.id });
            }
            if options.write && !truncates {
                inode.require_unpacked(tx)?;
            }
            if truncates {
                tx.truncate_to_zero(inode, caller, slot)?;
            }
            let mut flags = 0;
            for (set, flag) in [
                (options.read, MAY_READ),
                (options.write, MAY_WRITE),
                (options.append, APPEND),
                (options.path_only, PATH_ONLY),
                ((created || truncates) && options.write, WROTE),
            ] {
                flags |= if set { flag } else { 0 };
            }
            let handle = tx.new_handle(slot, inode, flags)?;
            Ok(Opened { handle: handle.id, inode: inode.id, created, is_directory })
        })
    }
}

impl Microfs {
    /// Creates a file without a name in the directory at `path` and opens it as `options` say. The
    /// file is freed with its last description, unless it is `linkable` and [`Microfs::link`] gave
    /// it a name. The log records it only from then on. Errors: `Invalid` if it is to be linkable
    /// and the namespace is durable: its blocks would not be in the log.
    pub fn open_nameless(
        &self,
        caller: &Caller,
        base: InodeId,
        path: &[u8],
        options: OpenOptions,
        linkable: bool,
        mode: u32,
    ) -> Result<Opened> {
        let spare = Spare::new();
        self.transact(|tx| {
            let slot = tx.slot(caller.slot)?;
            if linkable && tx.layout.durable {
                return Err(Error::Invalid);
            }
            let way = (Last::Follow, options.bounds);
            let walked = self.walk_within(tx, caller, (base, path), way, &spare)?;
            let directory = walked.existing(tx)?;
            if !directory.is_directory(tx) {
                return Err(Error::NotDirectory);
            }
            if directory.links(tx) == 0 {
                return Err(Error::NotFound);
            }
            directory.permit(tx, caller, WRITE | EXECUTE)?;
            let inode =
                tx.new_inode_in(directory, MODE_REGULAR | mode & PERMISSION_BITS, caller)?;
            if linkable {
                inode.add_flags(tx, NAMELESS);
            }
            let flags = if options.write { MAY_WRITE | WROTE } else { 0 }
                | if options.read { MAY_READ } else { 0 }
                | if options.append { APPEND } else { 0 };
            let handle = tx.new_handle(slot, inode, flags)?;
            Ok(Opened { handle: handle.id, inode: inode.id, created: true, is_directory: false })
        })
    }
}

fn create_file(
    tx: &mut Transaction,
    caller: &Caller,
    walked: &Walked<'_>,
    mode: u32,
) -> Result<Inode> {
    permit_creation(tx, caller, walked)?;
    let inode = tx.new_inode_in(walked.parent, MODE_REGULAR | mode & PERMISSION_BITS, caller)?;
    tx.link_name(walked.parent, walked.name, inode, caller.now)?;
    log_create(tx, caller, walked, inode);
    Ok(inode)
}
