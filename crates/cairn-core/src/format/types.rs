//! Identifiers, attributes and options that cross the boundary of the crate.
//!
//! Different things have different types: an inode number is not a handle, a file block is not a
//! tier block.

/// Number of an inode within its namespace; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(pub u32);

/// The root directory of every namespace.
pub const ROOT: InodeId = InodeId(1);

/// One opening of a file within its namespace: in the low half the number of its description, in
/// the high half which opening of that number it is. So it never stands for what has the number
/// after a close, until 65 536 openings later. Neither 0 nor `u32::MAX` is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u32);

impl HandleId {
    pub(crate) fn new(number: u32, opening: u32) -> HandleId {
        HandleId(opening << 16 | number)
    }

    /// Number of the description, from 1: no other one that is open has it.
    pub fn number(self) -> u32 {
        self.0 & 0xffff
    }
}

/// One use of a process slot within its namespace: its number in the low half, in the high half
/// which use of that number it is. So it never stands for the slot of a process that comes later,
/// until 65 536 uses later. 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

impl SlotId {
    pub(crate) fn new(number: u32, uses: u32) -> SlotId {
        SlotId(uses << 16 | number)
    }

    /// Number of the slot, from 1: no other one that is in use has it.
    pub fn number(self) -> u32 {
        self.0 & 0xffff
    }
}

/// Nanoseconds since the epoch, before it negative: from 1677 to 2262.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    const PER_SECOND: i64 = 1_000_000_000;

    /// The time that is so many seconds and nanoseconds after the epoch, or the nearest one that
    /// there is.
    pub fn from_parts(seconds: i64, nanoseconds: i64) -> Timestamp {
        let exact = i128::from(seconds) * i128::from(Self::PER_SECOND) + i128::from(nanoseconds);
        Timestamp(exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// Seconds since the epoch, rounded down, and the nanoseconds from there.
    pub fn parts(self) -> (i64, i64) {
        (self.0.div_euclid(Self::PER_SECOND), self.0.rem_euclid(Self::PER_SECOND))
    }

    /// The word that stands for it in shared memory and on media.
    pub(crate) fn to_bits(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn from_bits(word: u64) -> Timestamp {
        Timestamp(word as i64)
    }
}

/// Whose rights an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id; 0 passes every check of mode bits.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl Credentials {
    /// As records of the log carry them: user << 32 | group.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.uid) << 32 | u64::from(self.gid)
    }

    pub(crate) fn unpack(word: u64) -> Credentials {
        Credentials { uid: (word >> 32) as u32, gid: word as u32 }
    }
}

/// Who calls, with which rights, and when.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The caller's process slot.
    pub slot: SlotId,
    /// Its rights.
    pub credentials: Credentials,
    /// Its supplementary groups.
    pub groups: &'static [u32],
    /// The time this operation happens at; the core has no clock.
    pub now: Timestamp,
}

impl Caller {
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        gid == self.credentials.gid || self.groups.contains(&gid)
    }

    /// Whether files of that group may get its set-group-ID bit.
    pub(crate) fn may_set_group(&self, gid: u32) -> bool {
        self.credentials.uid == 0 || self.is_in_group(gid)
    }
}

/// What `stat` tells of a file.
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
    /// Bytes of hugeblocks held, or, of an absent file, to be held.
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
    /// The version that was last drained and verified; 0 if none. That of an absent file is.
    pub drained_version: u64,
    /// The last writer died by a signal, or was closed without what it found no room for. Ends when
    /// a later one closes the file in order, or it is truncated to 0.
    pub unclean: bool,
    /// Was unclean since it was last truncated to 0: what is in it may be torn.
    pub torn: bool,
    /// Blocks of it are lost with a tier, so it is unclean, too: reading what is missing and
    /// writing give `Io` until it is truncated to 0.
    pub lost: bool,
    /// The data are still elsewhere: opening the file to read or write gives `Absent`.
    pub absence: Option<Absence>,
    /// Open-file descriptions that may write.
    pub writers: u32,
    /// Open-file descriptions.
    pub opens: u32,
    /// Has extended attributes.
    pub extended: bool,
    /// A directory that got its name by `rename`, in which nothing was made, and of which nothing
    /// was taken, since. Not known any more once the namespace was recovered.
    pub renamed: bool,
}

/// What is known of the data of a file that are still elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Their CRC32C.
    pub crc32c: u32,
    /// Somebody waits for them.
    pub wanted: bool,
    /// They could not be had when that was tried last.
    pub unavailable: bool,
    /// What is there of them is not what it should be.
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
/// Tiers a namespace can have.
pub const TIERS_MAX: usize = 4;

impl Attributes {
    /// Whether nobody may write to it and its newest version is drained. An absent file is, though
    /// who brings it writes to it.
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

/// What tells one process from every other, on this node, since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Process id as seen in `pid_namespace`.
    pub pid: u32,
    /// Inode number of `/proc/self/ns/pid`.
    pub pid_namespace: u64,
    /// Field 22 of `/proc/PID/stat`; 0 when not known yet.
    pub start_time: u64,
}

/// Where a read or write happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// At the shared cursor, which is moved past it at once.
    Cursor,
    /// At this offset; a write through an appending handle goes to the end all the same, as in
    /// Linux.
    At(u64),
    /// Exactly here: the repetition of a plan that could not be committed.
    Again(u64),
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// May read.
    pub read: bool,
    /// May write.
    pub write: bool,
    /// Fail without the rights to read and to write, though neither is asked for.
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
    /// Fail with `BeingWritten` rather than open for writing what others have open for writing.
    pub unless_written: bool,
    /// Fail if the last component is a symbolic link (`O_NOFOLLOW`).
    pub no_follow: bool,
    /// Only name the file, neither read nor write (`O_PATH`): only `directory`, `no_follow` and
    /// `bounds` have an effect then.
    pub path_only: bool,
    /// Which ways the path may take.
    pub bounds: PathBounds,
}

/// Which ways a path may take (`openat2(2)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathBounds {
    /// What becomes of `..` of the directory that it starts from, and of links to absolute paths.
    pub above: Above,
    /// No symbolic link is followed.
    pub no_links: bool,
    /// No link to an absolute path is, unless that stays: the root of all is on another file system
    /// (`RESOLVE_NO_XDEV`).
    pub one_device: bool,
}

impl PathBounds {
    /// Every way.
    pub const NONE: PathBounds =
        PathBounds { above: Above::There, no_links: false, one_device: false };
}

/// What is above the directory that a path starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Above {
    /// What is there.
    #[default]
    There,
    /// Nothing that the path may reach (`RESOLVE_BENEATH`).
    Forbidden,
    /// The directory itself, as above `/` (`RESOLVE_IN_ROOT`).
    Itself,
}

impl OpenOptions {
    /// For neither direction, and whichever way the path takes.
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

    /// Without those that have no effect.
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

/// A file that was opened.
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

/// An open-file description, as seen from outside.
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
    /// What [`crate::Microfs::set_status`] was given last; 0 if never set.
    pub status: u32,
}

/// A regular file that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The process.
    pub process: ProcessIdentity,
    /// Its open-file description, which other processes may have, too.
    pub handle: HandleId,
    /// The file.
    pub inode: InodeId,
    /// May write.
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

/// A slot found or made for a process.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// The slot.
    pub slot: SlotId,
    /// It existed already: the process was executed anew, or its parent prepared the slot.
    pub known: bool,
}

/// A new value for a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUpdate {
    /// Leave it.
    Omit,
    /// The caller's time.
    Now,
    /// This time.
    At(Timestamp),
}

/// Whether an extended attribute that is set must be there before.
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
    /// What it names.
    pub inode: InodeId,
    /// `DT_REG` (8), `DT_DIR` (4) or `DT_LNK` (10).
    pub kind: u8,
    /// Position to continue after; never 0.
    pub cookie: u64,
}
