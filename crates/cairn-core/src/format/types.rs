//! Identifiers, attributes and options that cross the boundary of the crate.
//!
//! Different things have different types: an inode number is not a handle, a file block is not a
//! tier block.

/// Number of an inode within its namespace; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u32);

/// The root directory of every namespace.
pub const ROOT: InodeId = InodeId(1);

/// One opening of a file within its namespace. The low half is the number of the description; the
/// high half counts the openings of that number. So after a close the id does not stand for a later
/// description with the same number, until 65 536 openings later. 0 and `u32::MAX` are never ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u32);

impl HandleId {
    pub(crate) fn new(number: u32, opening: u32) -> HandleId {
        HandleId(opening << 16 | number)
    }

    /// Returns the number of the description, from 1; no other open one has it.
    pub fn number(self) -> u32 {
        self.0 & 0xffff
    }
}

/// One use of a process slot within its namespace. The low half is the number of the slot; the high
/// half counts the uses of that number. So the id does not stand for the slot of a later process,
/// until 65 536 uses later. 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

impl SlotId {
    pub(crate) fn new(number: u32, uses: u32) -> SlotId {
        SlotId(uses << 16 | number)
    }

    /// Returns the number of the slot, from 1; no other slot in use has it.
    pub fn number(self) -> u32 {
        self.0 & 0xffff
    }
}

/// Nanoseconds since the epoch, negative before it: from 1677 to 2262.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    const PER_SECOND: i64 = 1_000_000_000;

    /// Returns the time this many seconds and nanoseconds after the epoch, or the nearest one that
    /// can be represented.
    pub fn from_parts(seconds: i64, nanoseconds: i64) -> Timestamp {
        let exact = i128::from(seconds) * i128::from(Self::PER_SECOND) + i128::from(nanoseconds);
        Timestamp(exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// Returns the seconds since the epoch, rounded down, and the remaining nanoseconds.
    pub fn parts(self) -> (i64, i64) {
        (self.0.div_euclid(Self::PER_SECOND), self.0.rem_euclid(Self::PER_SECOND))
    }

    /// Returns the word that represents it in shared memory and on media.
    pub(crate) fn to_bits(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn from_bits(word: u64) -> Timestamp {
        Timestamp(word as i64)
    }
}

/// User and group whose rights an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id; 0 passes every check of mode bits.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl Credentials {
    /// Encodes as in records of the log: user << 32 | group.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.uid) << 32 | u64::from(self.gid)
    }

    pub(crate) fn unpack(word: u64) -> Credentials {
        Credentials { uid: (word >> 32) as u32, gid: word as u32 }
    }
}

/// Caller of an operation: process, rights and time.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The caller's process slot.
    pub slot: SlotId,
    /// Rights of the caller.
    pub credentials: Credentials,
    /// Supplementary groups of the caller.
    pub groups: &'static [u32],
    /// Time of the operation; the core has no clock.
    pub now: Timestamp,
}

impl Caller {
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        gid == self.credentials.gid || self.groups.contains(&gid)
    }

    /// Whether the caller may set the set-group-ID bit on files of this group.
    pub(crate) fn may_set_group(&self, gid: u32) -> bool {
        self.credentials.uid == 0 || self.is_in_group(gid)
    }
}

/// Attributes of a file, as for `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub inode: InodeId,
    /// Type and permission bits (`S_IFMT` and below).
    pub mode: u32,
    /// Hard links; 0 once unlinked.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes; for a symbolic link the length of its target.
    pub size: u64,
    /// Bytes of the hugeblocks held; of an absent or packed file, of those that its size takes.
    pub allocated_bytes: u64,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of the data.
    pub modified: Timestamp,
    /// Last change of data or attributes.
    pub changed: Timestamp,
    /// Creation; later than that of any earlier file of the same inode number.
    pub born: Timestamp,
    /// Counts changes of the data; never repeats for an inode number.
    pub version: u64,
    /// Version that was last drained and verified; 0 if none. An absent file counts as drained.
    pub drained_version: u64,
    /// The last writer died by a signal, or closed the file without bytes that found no room. Ends
    /// when a later writer closes the file in order, or it is truncated to 0.
    pub unclean: bool,
    /// Was unclean since it was last truncated to 0: its contents may be torn.
    pub torn: bool,
    /// Blocks of the file are lost with a tier, so it is unclean, too. Reads of what is missing,
    /// and writes, fail with `Io` until it is truncated to 0.
    pub lost: bool,
    /// Set if the data are still elsewhere: opening the file to read or write fails with `Absent`.
    pub absence: Option<Absence>,
    /// Number of open-file descriptions that may write.
    pub writers: u32,
    /// Number of open-file descriptions.
    pub opens: u32,
    /// Whether the file has extended attributes.
    pub extended: bool,
    /// A directory that got its name by `rename`, and in which no name was made or removed since.
    /// Recovery forgets it.
    pub renamed: bool,
}

/// What is known of the data of an absent file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// CRC32C of the data.
    pub crc32c: u32,
    /// Somebody waits for the data.
    pub wanted: bool,
    /// The last attempt to get the data failed.
    pub unavailable: bool,
    /// The data that were found are not the expected ones.
    pub damaged: bool,
}

/// `S_IFMT`: the bits of a mode that hold the file type.
pub const MODE_TYPE: u32 = 0o170_000;
/// `S_IFREG`.
pub const MODE_REGULAR: u32 = 0o100_000;
/// `S_IFDIR`.
pub const MODE_DIRECTORY: u32 = 0o040_000;
/// `S_IFLNK`.
pub const MODE_SYMLINK: u32 = 0o120_000;
/// Longest name of one directory entry, bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path or symbolic link target, bytes, without a terminating zero.
pub const PATH_BYTES_MAX: usize = 4095;
/// Maximum number of tiers in a namespace.
pub const TIERS_MAX: usize = 4;

impl Attributes {
    /// Whether nobody may write to the file and its newest version is drained. An absent file
    /// counts as drained, although its stager writes to it.
    pub fn is_drained(&self) -> bool {
        self.absence.is_some() || self.writers == 0 && self.drained_version == self.version
    }

    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & MODE_TYPE == MODE_DIRECTORY
    }

    /// Whether this is a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & MODE_TYPE == MODE_REGULAR
    }

    /// Whether this is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.mode & MODE_TYPE == MODE_SYMLINK
    }
}

/// Identity of a process: no other process on this node has had it since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Process id as seen in `pid_namespace`.
    pub pid: u32,
    /// Inode number of `/proc/self/ns/pid`.
    pub pid_namespace: u64,
    /// Field 22 of `/proc/PID/stat`; 0 when not known yet.
    pub start_time: u64,
}

/// Place of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// At the shared cursor, which moves past it at once.
    Cursor,
    /// At this offset; a write through an appending handle goes to the end nevertheless, as in
    /// Linux.
    At(u64),
    /// At the end of the file, wherever the cursor is and however the file was opened.
    End,
    /// Exactly here: repeats a plan that could not be committed.
    Again(u64),
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// May read.
    pub read: bool,
    /// May write.
    pub write: bool,
    /// Fail without the rights to read and to write, even if neither is asked for.
    pub with_rights: bool,
    /// Writes go to the end (`O_APPEND`).
    pub append: bool,
    /// Create if absent (`O_CREAT`).
    pub create: bool,
    /// Fail if present (`O_EXCL`).
    pub exclusive: bool,
    /// Empty the file (`O_TRUNC`).
    pub truncate: bool,
    /// Fail unless a directory (`O_DIRECTORY`).
    pub directory: bool,
    /// Fail with `BeingWritten` instead of opening for writing while others have the file open for
    /// writing.
    pub unless_written: bool,
    /// Fail if the last component is a symbolic link (`O_NOFOLLOW`).
    pub no_follow: bool,
    /// Only name the file, neither read nor write (`O_PATH`). Only `directory`, `no_follow` and
    /// `bounds` have an effect then.
    pub path_only: bool,
    /// Bounds for resolving the path.
    pub bounds: PathBounds,
}

/// Bounds for resolving a path (`openat2(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathBounds {
    /// Meaning of `..` in the directory that the path starts from, and of links to absolute paths.
    pub above: Above,
    /// Follow no symbolic link.
    pub no_links: bool,
    /// Follow no link to an absolute path, unless it stays inside: `/` is on another file system
    /// (`RESOLVE_NO_XDEV`).
    pub one_device: bool,
}

impl PathBounds {
    /// No bounds.
    pub const NONE: PathBounds =
        PathBounds { above: Above::There, no_links: false, one_device: false };
}

/// What is above the directory that a path starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Above {
    /// Its parent directory.
    #[default]
    There,
    /// Nothing: the path must not go there (`RESOLVE_BENEATH`).
    Forbidden,
    /// The directory itself, as for `/` (`RESOLVE_IN_ROOT`).
    Itself,
}

impl OpenOptions {
    /// Neither reads nor writes, without bounds.
    pub const NONE: OpenOptions = OpenOptions {
        read: false,
        write: false,
        with_rights: false,
        append: false,
        create: false,
        exclusive: false,
        truncate: false,
        directory: false,
        unless_written: false,
        no_follow: false,
        path_only: false,
        bounds: PathBounds::NONE,
    };

    /// Returns the options without those that have no effect.
    pub fn effective(self) -> OpenOptions {
        let naming = OpenOptions {
            directory: self.directory,
            no_follow: self.no_follow,
            path_only: true,
            bounds: self.bounds,
            ..OpenOptions::default()
        };
        if self.path_only { naming } else { self }
    }
}

/// An opened file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The new open-file description; the caller's process holds one reference.
    pub handle: HandleId,
    /// The file.
    pub inode: InodeId,
    /// Whether this call created it.
    pub created: bool,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// State of an open-file description.
#[derive(Clone, Copy, Debug)]
pub struct HandleInfo {
    /// The open file.
    pub inode: InodeId,
    /// May read.
    pub read: bool,
    /// May write.
    pub write: bool,
    /// Writes go to the end.
    pub append: bool,
    /// Opened with `O_PATH`.
    pub path_only: bool,
    /// Whether the file is a directory.
    pub is_directory: bool,
    /// Shared file offset, bytes.
    pub cursor: u64,
    /// Kernel inode number of the placeholder; 0 if never set.
    pub placeholder: u64,
    /// Value last given to [`crate::Microfs::set_status`]; 0 if never set.
    pub status: u32,
}

/// A regular file that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The process.
    pub process: ProcessIdentity,
    /// Its open-file description, which other processes may share.
    pub handle: HandleId,
    /// The file.
    pub inode: InodeId,
    /// Whether the description may write.
    pub write: bool,
    /// Shared file offset, bytes.
    pub cursor: u64,
    /// Length of the file, bytes.
    pub size: u64,
    /// As in [`Attributes`].
    pub version: u64,
    /// As in [`Attributes`].
    pub born: Timestamp,
}

/// Slot that was found or made for a process.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// The slot.
    pub slot: SlotId,
    /// Whether the slot existed: the process replaced its image, or its parent prepared the slot.
    pub known: bool,
}

/// A new value for a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUpdate {
    /// Leave it unchanged.
    Omit,
    /// The caller's time.
    Now,
    /// This time.
    At(Timestamp),
}

/// Whether an extended attribute must exist before it is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedUpdate {
    /// Fails if the attribute exists (`XATTR_CREATE`).
    pub create: bool,
    /// Fails unless it exists (`XATTR_REPLACE`).
    pub replace: bool,
}

/// What a rename does when the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swaps the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// One name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
    /// Inode that it names.
    pub inode: InodeId,
    /// `DT_REG` (8), `DT_DIR` (4) or `DT_LNK` (10).
    pub kind: u8,
    /// Position to continue after; never 0.
    pub cookie: u64,
}
