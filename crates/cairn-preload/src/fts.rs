//! `fts(3)` for lists that contain a Cairn path. The C library's own would open the directories
//! past our hooks.
//!
//! Such a walk never changes the current directory, which the interface permits: `fts_accpath` is
//! the whole path. All its calls go through hooks, so Cairn files and foreign files may mix.
//! Entries are the C library's structures, because programs read their fields. Each entry is one
//! allocation with its name, attributes and path.
//!
//! Invariant: an entry is freed when the walk has left it, and never before its children.

use core::ffi::{CStr, c_char, c_int, c_long, c_short, c_ushort, c_void};
use core::mem::offset_of;

use cairn_posix::files::path::{Route, route};
use libc::stat as Stat;

use crate::answer::{errno, set_errno};
use crate::walks::{self, Order};
use crate::{directories, stat};

/// `FTSENT` of the C library.
#[repr(C)]
pub struct Entry {
    cycle: *mut Entry,
    parent: *mut Entry,
    link: *mut Entry,
    number: c_long,
    pointer: *mut c_void,
    access_path: *mut c_char,
    path: *mut c_char,
    error: c_int,
    symlink_descriptor: c_int,
    path_length: c_ushort,
    name_length: c_ushort,
    inode: libc::ino_t,
    device: libc::dev_t,
    links: libc::nlink_t,
    level: c_short,
    info: c_ushort,
    flags: c_ushort,
    instruction: c_ushort,
    status: *mut Stat,
    name: [c_char; 1],
}

/// Comparison function of the caller.
type Compare = Option<Order<Entry>>;

/// `FTS` of the C library.
#[repr(C)]
pub struct Walk {
    current: *mut Entry,
    /// Entries of the current directory, as listed by `fts_children`.
    children: *mut Entry,
    array: *mut *mut Entry,
    device: libc::dev_t,
    path: *mut c_char,
    root: c_int,
    path_bytes: c_int,
    items: c_int,
    compare: Compare,
    options: c_int,
}

const _: () = assert!(offset_of!(Entry, name) == 112 && size_of::<Walk>() == 72);

/// Options (`FTS_COMFOLLOW` and so on).
const FOLLOW_ROOTS: c_int = 0x1;
const LOGICAL: c_int = 0x2;
const NO_ATTRIBUTES: c_int = 0x8;
const SEE_DOTS: c_int = 0x20;
const ONE_DEVICE: c_int = 0x40;
const ALL_OPTIONS: c_int = 0xff;
/// Marks a walk of ours in the field of the root's descriptor. The C library has a descriptor or -1
/// there.
const OURS: c_int = -0x0ca1;
/// Kinds of entries (`FTS_D` and so on).
const BEFORE: c_ushort = 1;
const CYCLE: c_ushort = 2;
const OTHER: c_ushort = 3;
const UNREADABLE: c_ushort = 4;
const DOT: c_ushort = 5;
const AFTER: c_ushort = 6;
const ERROR: c_ushort = 7;
const FILE: c_ushort = 8;
const START: c_ushort = 9;
const NO_STATUS: c_ushort = 10;
const NOT_ASKED: c_ushort = 11;
const SYMLINK: c_ushort = 12;
const DANGLING: c_ushort = 13;
/// Instructions of `fts_set`.
const AGAIN: c_ushort = 1;
const FOLLOW: c_ushort = 2;
const NONE: c_ushort = 3;
const SKIP: c_ushort = 4;
/// Level of the entries that the caller listed, and of their common parent.
const ROOT_LEVEL: c_short = 0;
const ABOVE: c_short = -1;

/// Allocates an entry. Null, with errno, on failure.
unsafe fn new_entry(parent: *mut Entry, path: &[u8], name: &[u8], level: c_short) -> *mut Entry {
    let status_at = (offset_of!(Entry, name) + name.len() + 1).next_multiple_of(align_of::<Stat>());
    let path_at = status_at + size_of::<Stat>();
    let (Ok(path_length), Ok(name_length)) =
        (c_ushort::try_from(path.len()), c_ushort::try_from(name.len()))
    else {
        set_errno(libc::ENAMETOOLONG);
        return core::ptr::null_mut();
    };
    // SAFETY: the zeroed memory has room for the parts in this order, each string with its NUL.
    // Zero is a valid value of all fields.
    unsafe {
        let memory = libc::calloc(1, path_at + path.len() + 1).cast::<u8>();
        let entry = memory.cast::<Entry>();
        if let Some(fields) = entry.as_mut() {
            fields.status = memory.add(status_at).cast();
            fields.path = memory.add(path_at).cast();
            fields.access_path = fields.path;
            (fields.path_length, fields.name_length) = (path_length, name_length);
            (fields.parent, fields.level, fields.instruction) = (parent, level, NONE);
            core::ptr::copy_nonoverlapping(path.as_ptr(), memory.add(path_at), path.len());
            core::ptr::copy_nonoverlapping(
                name.as_ptr(),
                memory.add(offset_of!(Entry, name)),
                name.len(),
            );
        }
        entry
    }
}

unsafe fn free_list(mut entry: *mut Entry) {
    while !entry.is_null() {
        // SAFETY: an entry of a list of ours that nobody uses any more.
        unsafe {
            let next = (*entry).link;
            libc::free(entry.cast());
            entry = next;
        }
    }
}

impl Entry {
    fn path_bytes(&self) -> &[u8] {
        // SAFETY: terminated, and lives as long as the entry.
        unsafe { CStr::from_ptr(self.path) }.to_bytes()
    }

    /// Replaces a root's name, which is its whole path, by the last component. Called when the walk
    /// reaches it.
    unsafe fn shorten_name(&mut self) {
        let name = last_name(self.path_bytes());
        let (start, length) = (name.as_ptr(), name.len());
        let target = (&raw mut self.name).cast::<u8>();
        // SAFETY: the name follows the entry and had room for the whole path; the path is stored
        // elsewhere.
        unsafe {
            core::ptr::copy_nonoverlapping(start, target, length);
            target.add(length).write(0);
        }
        self.name_length = length as c_ushort;
    }

    fn is_dot(&self) -> bool {
        // SAFETY: the name follows the entry and is terminated.
        let name = unsafe { CStr::from_ptr((&raw const self.name).cast()) };
        matches!(name.to_bytes(), b"." | b"..")
    }

    /// Reads the attributes and sets the kind of the entry.
    unsafe fn look(&mut self, follow: bool) {
        self.error = 0;
        // SAFETY: the path is terminated, and there is room for the attributes.
        self.info = unsafe {
            let found = follow && stat::stat64(self.path, self.status) == 0;
            if !found && stat::lstat64(self.path, self.status) != 0 {
                self.error = errno();
                NO_STATUS
            } else if !found && follow {
                set_errno(0);
                DANGLING
            } else {
                self.kind()
            }
        };
    }

    /// Kind of an entry according to its attributes, which are also copied to its fields.
    unsafe fn kind(&mut self) -> c_ushort {
        // SAFETY: the attributes are filled.
        let status = unsafe { &*self.status };
        (self.inode, self.device, self.links) = (status.st_ino, status.st_dev, status.st_nlink);
        match status.st_mode & libc::S_IFMT {
            libc::S_IFDIR if self.level > ROOT_LEVEL && self.is_dot() => DOT,
            libc::S_IFDIR => self.directory_kind(),
            libc::S_IFLNK => SYMLINK,
            libc::S_IFREG => FILE,
            _ => OTHER,
        }
    }

    /// Kind of a directory. One that is its own ancestor is a cycle, and is not entered again.
    fn directory_kind(&mut self) -> c_ushort {
        let mut above = self.parent;
        // SAFETY: parents live as long as their children; the chain ends above the roots.
        while let Some(ancestor) = unsafe { above.as_ref() }.filter(|entry| entry.level > ABOVE) {
            if (ancestor.inode, ancestor.device) == (self.inode, self.device) {
                self.cycle = above;
                return CYCLE;
            }
            above = ancestor.parent;
        }
        BEFORE
    }
}

/// Links entries in the walk's order.
unsafe fn in_order(walk: &Walk, mut entries: Vec<*mut Entry>) -> *mut Entry {
    if let Some(compare) = walk.compare {
        // SAFETY: the caller's function, which takes pointers to pointers to entries.
        unsafe { walks::sort(&mut entries, compare) };
    }
    let mut next = core::ptr::null_mut();
    for &entry in entries.iter().rev() {
        // SAFETY: a newly made entry.
        unsafe { (*entry).link = next };
        next = entry;
    }
    next
}

/// Lists a directory. Returns null if it cannot be read, with the reason in its entry.
unsafe fn list(walk: &Walk, directory: &mut Entry) -> *mut Entry {
    let mut entries = Vec::new();
    // SAFETY: the path is terminated; the stream is used only here; an entry is valid until the
    // next is read.
    unsafe {
        let stream = directories::opendir(directory.path);
        if stream.is_null() {
            directory.info = UNREADABLE;
            directory.error = errno();
            return core::ptr::null_mut();
        }
        loop {
            set_errno(0);
            let found = directories::readdir64(stream);
            if found.is_null() {
                directory.error = errno();
                break;
            }
            let name = CStr::from_ptr((*found).d_name.as_ptr()).to_bytes();
            if walk.options & SEE_DOTS == 0 && matches!(name, b"." | b"..") {
                continue;
            }
            let above = directory.path_bytes();
            let separator = if above.ends_with(b"/") { &b""[..] } else { b"/" };
            let path = [above, separator, name].concat();
            let entry = new_entry(&raw mut *directory, &path, name, directory.level + 1);
            let Some(fields) = entry.as_mut() else {
                directory.error = errno();
                break;
            };
            fields.look(walk.options & LOGICAL != 0);
            if walk.options & NO_ATTRIBUTES != 0 && !matches!(fields.info, BEFORE | CYCLE | DOT) {
                fields.info = NOT_ASKED;
            }
            entries.push(entry);
        }
        directories::closedir(stream);
        in_order(walk, entries)
    }
}

/// Whether the walk is ours.
unsafe fn is_ours(walk: *const Walk) -> bool {
    // SAFETY: the caller passes the result of `fts_open`, which has these fields whoever made it.
    unsafe { (*walk).root == OURS }
}

/// Begins a walk. Null, with errno, on failure.
unsafe fn open(paths: &[*mut c_char], options: c_int, compare: Compare) -> *mut Walk {
    // SAFETY: plain data, for which zero is a valid value; freed by `close`, or here.
    unsafe {
        let walk = libc::calloc(1, size_of::<Walk>()).cast::<Walk>();
        let above = new_entry(core::ptr::null_mut(), b"", b"", ABOVE);
        if walk.is_null() || above.is_null() {
            libc::free(walk.cast());
            libc::free(above.cast());
            set_errno(libc::ENOMEM);
            return core::ptr::null_mut();
        }
        let fields = &mut *walk;
        (fields.root, fields.options, fields.compare) = (OURS, options, compare);
        let mut roots = Vec::new();
        for &path in paths {
            let path = CStr::from_ptr(path).to_bytes();
            let root = new_entry(above, path, path, ROOT_LEVEL);
            if let Some(entry) = root.as_mut() {
                entry.look(options & (LOGICAL | FOLLOW_ROOTS) != 0);
                roots.push(root);
            }
        }
        fields.device = roots.first().map_or(0, |&root| (*root).device);
        (*above).link = in_order(fields, roots);
        (*above).info = START;
        fields.current = above;
        walk
    }
}

/// Last component of a path; the path itself if it has only one.
fn last_name(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) if slash > 0 || path.len() > 1 => &path[slash + 1..],
        _ => path,
    }
}

/// Next entry; null, with errno 0, after the last.
unsafe fn read(walk: &mut Walk) -> *mut Entry {
    // SAFETY: the current entry and its parents are valid until the walk leaves them.
    unsafe {
        let Some(current) = walk.current.as_mut() else {
            set_errno(0);
            return core::ptr::null_mut();
        };
        let instruction = core::mem::replace(&mut current.instruction, NONE);
        match (instruction, current.info) {
            (_, START) => {}
            (AGAIN, _) => {
                current.look(walk.options & LOGICAL != 0);
                return current;
            }
            (FOLLOW, SYMLINK | DANGLING) => {
                current.look(true);
                return current;
            }
            (_, BEFORE) => return enter(walk, instruction == SKIP),
            _ => {}
        }
        go_on(walk)
    }
}

/// Enters the current directory, or skips it.
unsafe fn enter(walk: &mut Walk, skip: bool) -> *mut Entry {
    // SAFETY: as in `read`.
    unsafe {
        let directory = &mut *walk.current;
        let elsewhere = walk.options & ONE_DEVICE != 0 && directory.device != walk.device;
        let known = core::mem::replace(&mut walk.children, core::ptr::null_mut());
        if skip || elsewhere {
            free_list(known);
        } else {
            let first = if known.is_null() { list(walk, directory) } else { known };
            if !first.is_null() {
                walk.current = first;
                return arrive(walk);
            }
        }
        if directory.info == BEFORE {
            directory.info = AFTER;
        }
        directory
    }
}

/// Leaves the current entry for its next sibling, or for its parent.
unsafe fn go_on(walk: &mut Walk) -> *mut Entry {
    // SAFETY: as in `read`.
    unsafe {
        let left = walk.current;
        let (next, parent) = ((*left).link, (*left).parent);
        if !next.is_null() {
            walk.current = next;
            match (*left).level {
                // This entry stays until the roots are done, but no longer owns their list.
                ABOVE => (*left).link = core::ptr::null_mut(),
                _ => libc::free(left.cast()),
            }
            return arrive(walk);
        }
        walk.current = parent;
        libc::free(left.cast());
        match parent.as_mut() {
            Some(parent) if parent.level > ABOVE => {
                parent.info = if parent.error != 0 { ERROR } else { AFTER };
                parent
            }
            _ => {
                libc::free(parent.cast());
                walk.current = core::ptr::null_mut();
                set_errno(0);
                core::ptr::null_mut()
            }
        }
    }
}

/// Follows the instruction that an entry got before the walk reached it.
unsafe fn arrive(walk: &mut Walk) -> *mut Entry {
    // SAFETY: as in `read`.
    unsafe {
        let entry = &mut *walk.current;
        if entry.level == ROOT_LEVEL {
            entry.shorten_name();
        }
        match core::mem::replace(&mut entry.instruction, NONE) {
            SKIP => go_on(walk),
            FOLLOW => {
                entry.look(true);
                entry
            }
            _ => entry,
        }
    }
}

/// Entries of the current directory; the roots before the first `fts_read`.
unsafe fn children(walk: &mut Walk) -> *mut Entry {
    set_errno(0);
    // SAFETY: as in `read`.
    unsafe {
        match walk.current.as_mut() {
            Some(current) if current.info == START => current.link,
            Some(current) if current.info == BEFORE => {
                free_list(walk.children);
                walk.children = list(walk, current);
                walk.children
            }
            _ => core::ptr::null_mut(),
        }
    }
}

unsafe fn close(walk: *mut Walk) -> c_int {
    // SAFETY: the walk is not used any more; the parents of the current entry were not freed yet.
    unsafe {
        free_list((*walk).children);
        let mut current = (*walk).current;
        while !current.is_null() {
            let parent = (*current).parent;
            free_list(current);
            current = parent;
        }
        libc::free(walk.cast());
    }
    0
}

macro_rules! walks {
    ($(fn $open:ident, fn $read:ident, fn $children:ident, fn $close:ident;)*) => {$(
        /// As `fts_open(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $open(
            paths: *const *mut c_char, options: c_int, compare: Compare,
        ) -> *mut Walk {
            let mut count = 0;
            let mut any = false;
            // SAFETY: the caller passes a null-terminated list of terminated paths.
            unsafe {
                while !(*paths.add(count)).is_null() {
                    any |= !matches!(route(*paths.add(count)), Route::Libc);
                    count += 1;
                }
                if any && options & !ALL_OPTIONS == 0 {
                    return open(core::slice::from_raw_parts(paths, count), options, compare);
                }
                next!($open: fn(*const *mut c_char, c_int, Compare) -> *mut Walk)(paths, options, compare)
            }
        }

        /// As `fts_read(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $read(walk: *mut Walk) -> *mut Entry {
            // SAFETY: the caller passes an open walk.
            unsafe {
                match is_ours(walk) {
                    true => read(&mut *walk),
                    false => next!($read: fn(*mut Walk) -> *mut Entry)(walk),
                }
            }
        }

        /// As `fts_children(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $children(walk: *mut Walk, options: c_int) -> *mut Entry {
            // SAFETY: the caller passes an open walk.
            unsafe {
                match is_ours(walk) {
                    true => children(&mut *walk),
                    false => next!($children: fn(*mut Walk, c_int) -> *mut Entry)(walk, options),
                }
            }
        }

        /// As `fts_close(3)`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $close(walk: *mut Walk) -> c_int {
            // SAFETY: the caller passes an open walk.
            unsafe {
                match is_ours(walk) {
                    true => close(walk),
                    false => next!($close: fn(*mut Walk) -> c_int)(walk),
                }
            }
        }
    )*};
}

walks! {
    fn fts_open, fn fts_read, fn fts_children, fn fts_close;
    fn fts64_open, fn fts64_read, fn fts64_children, fn fts64_close;
}
