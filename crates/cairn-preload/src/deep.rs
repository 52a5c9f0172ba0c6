//! Libraries loaded with `RTLD_DEEPBIND` (Julia, MATLAB, adapters of numerical libraries). Such a
//! library looks up functions in its own dependencies first, and so finds the C library's instead
//! of ours.
//!
//! Its references to functions that we interpose are redirected to ours, as if it had been loaded
//! without that flag. All other references, for which it was loaded so, stay. This happens when the
//! program asks for a function by `dlsym`, and costs nothing if no library is loaded this way.
//!
//! Must stay true:
//! - Only references to the C library, and unbound ones, are changed.
//! - The dynamic linker is not called while it iterates over its list.
//! - Pages that the linker has not protected yet, because another thread is loading the library,
//!   are not protected by us.
//!
//! Not covered: calls in a constructor of such a library, and a library whose functions are reached
//! without `dlsym(3)`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use cairn_posix::kernel;
use libc::{Elf64_Rela, Elf64_Sym, c_long, dl_phdr_info, size_t};

use crate::dispatch::{headers, texts};

/// Relocation types for references to functions (System V ABI, AMD64 supplement, table 4.9).
const R_X86_64_64: u64 = 1;
const R_X86_64_GLOB_DAT: u64 = 6;
const R_X86_64_JUMP_SLOT: u64 = 7;
// Entries of a dynamic section (System V ABI, figure 5-10, and its GNU extensions).
const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_RELACOUNT: i64 = 0x6fff_fff9;
/// Symbol type of a function (System V ABI, figure 4-19).
const STT_FUNC: u8 = 2;
const PAGE: usize = 4096;

/// Whether a library was ever loaded with `RTLD_DEEPBIND`.
static IS_WANTED: AtomicBool = AtomicBool::new(false);
/// Whether an ordinary lookup finds our functions first. Only then may unbound references be
/// redirected to them.
static IS_FIRST: AtomicBool = AtomicBool::new(false);
/// Loads and unloads of libraries ([`changes`]) at the time of the last full scan.
static LOOKED_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// An entry of a dynamic section.
#[repr(C)]
struct Entry {
    tag: i64,
    value: u64,
}

/// Called by `dlopen` below. Returns the address of the C library's.
extern "C" fn before_dlopen(_: *const c_char, flags: c_int) -> *mut c_void {
    let next = match crate::next::is_linked() {
        true => core::ptr::null_mut(),
        false => crate::next::dlopen(),
    };
    if next.is_null() {
        return nothing as *mut c_void;
    }
    if flags & libc::RTLD_DEEPBIND != 0 && !IS_WANTED.load(Ordering::Relaxed) {
        // SAFETY: the name is terminated; dlsym may be called at any time in a running process.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"open".as_ptr()) };
        let is_ours = core::ptr::eq(found, crate::open::open as *const c_void);
        IS_FIRST.store(is_ours, Ordering::Relaxed);
        IS_WANTED.store(true, Ordering::Release);
    }
    next
}

/// Stands in for `dlopen` where there is none, and in programs with the archive linked in, where we
/// do not interpose it.
extern "C" fn nothing(_: *const c_char, _: c_int) -> *mut c_void {
    core::ptr::null_mut()
}

/// As `dlopen(3)`. The C library's function looks at its return address to find its caller, so this
/// one jumps to it instead of calling it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before_dlopen,
    );
}

/// Redirects references of `RTLD_DEEPBIND` libraries loaded since the last scan to our functions.
/// Leaves errno as it is.
pub fn reach() {
    if !IS_WANTED.load(Ordering::Acquire) {
        return;
    }
    let before = crate::answer::errno();
    let mut found = Found {
        library: library!(gnu_get_libc_version: fn() -> *const c_char) as *const () as usize,
        text: 0..0,
        ours: None,
        changes: 0,
        is_all: true,
    };
    // The first pass finds this library and the C library, the second visits all others.
    for visit in [find, turn] {
        // SAFETY: the functions have the required type, and the data pointer is what they expect.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    }
    if found.is_all {
        LOOKED_AT.store(found.changes, Ordering::Release);
    }
    crate::answer::set_errno(before);
}

struct Found {
    /// Address of a function of the C library, and the text segment that contains it.
    library: usize,
    text: Range<usize>,
    ours: Option<Linkage>,
    changes: u64,
    /// No library seems to be in the process of being loaded by another thread.
    is_all: bool,
}

fn changes(object: &dl_phdr_info) -> u64 {
    object.dlpi_adds.wrapping_mul(1 << 32).wrapping_add(object.dlpi_subs)
}

unsafe extern "C" fn find(object: *mut dl_phdr_info, _: size_t, found: *mut c_void) -> c_int {
    // SAFETY: the C library passes a valid description; `reach` passes the data.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<Found>()) };
    found.changes = changes(object);
    if found.changes == LOOKED_AT.load(Ordering::Acquire) {
        return 1;
    }
    for text in texts(object) {
        if text.contains(&found.library) {
            found.text = text;
        } else if text.contains(&(find as *const () as usize)) {
            found.ours = Linkage::of(object);
        }
    }
    0
}

unsafe extern "C" fn turn(object: *mut dl_phdr_info, _: size_t, found: *mut c_void) -> c_int {
    // SAFETY: as in `find`.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<Found>()) };
    let (false, Some(ours)) = (found.text.is_empty(), &found.ours) else { return 1 };
    let Some(linkage) = Linkage::of(object) else { return 0 };
    // The C library's own references, between its own functions, stay.
    if linkage.symbols != ours.symbols && !texts(object).any(|text| text == found.text) {
        found.is_all &= linkage.turn_to(ours, object, &found.text);
    }
    0
}

/// Parts of a library's dynamic section.
struct Linkage {
    base: usize,
    strings: usize,
    symbols: usize,
    hash: usize,
    /// Tables of relocations: address and number of entries.
    tables: [(usize, usize); 2],
}

impl Linkage {
    fn of(object: &dl_phdr_info) -> Option<Linkage> {
        let base = object.dlpi_addr as usize;
        let dynamic = headers(object).iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let mut entry = base.wrapping_add(dynamic.p_vaddr as usize) as *const Entry;
        let (mut strings, mut symbols, mut hash) = (0, 0, 0);
        let (mut relocations, mut bytes, mut relative) = (0, 0, 0);
        let (mut slots, mut slots_bytes) = (0, 0);
        loop {
            // SAFETY: the dynamic linker has mapped the section, which ends with a null entry, and
            // does not unmap it during this callback.
            let Entry { tag, value } = unsafe { entry.read() };
            let value = value as usize;
            // The linker has relocated most of these values to addresses, except in read-only
            // sections.
            let address = if value < base { base.wrapping_add(value) } else { value };
            match tag {
                DT_NULL => break,
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => hash = address,
                DT_RELA => relocations = address,
                DT_RELASZ => bytes = value,
                DT_RELACOUNT => relative = value,
                DT_JMPREL => slots = address,
                DT_PLTRELSZ => slots_bytes = value,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        const EACH: usize = size_of::<Elf64_Rela>();
        // Relative relocations, which name no symbol, come first.
        let named = (bytes / EACH).saturating_sub(relative);
        let tables = [(slots, slots_bytes / EACH), (relocations + relative * EACH, named)];
        (strings != 0 && symbols != 0).then_some(Linkage { base, strings, symbols, hash, tables })
    }

    fn symbol(&self, index: usize) -> Elf64_Sym {
        // SAFETY: the linker has used the same index in the same table.
        unsafe { (self.symbols as *const Elf64_Sym).add(index).read() }
    }

    fn name(&self, symbol: &Elf64_Sym) -> &CStr {
        // SAFETY: the linker has read this name.
        unsafe { CStr::from_ptr((self.strings + symbol.st_name as usize) as *const c_char) }
    }

    /// Address of an exported function. Looks it up in the GNU hash table: a Bloom filter,
    /// buckets, and chains parallel to the symbols.
    fn exported(&self, name: &CStr) -> Option<usize> {
        if self.hash == 0 {
            return None;
        }
        let bytes = name.to_bytes().iter();
        let hash =
            bytes.fold(5381_u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        // SAFETY: reads within the bounds given in the table's own head. The table is this
        // library's, and the linker has used it.
        let word = |index: usize| unsafe { (self.hash as *const u32).add(index).read() };
        let [buckets, first, filters, shift] = [0, 1, 2, 3].map(word);
        // The filter consists of words of 64 bits, behind a head of four words of 32 bits.
        let filter_at = 4 + 2 * (hash / 64 % filters) as usize;
        let filter = u64::from(word(filter_at)) | u64::from(word(filter_at + 1)) << 32;
        if filter >> (hash % 64) & filter >> (hash >> shift & 63) & 1 == 0 {
            return None;
        }
        let buckets_at = 4 + 2 * filters as usize;
        let chains_at = buckets_at + buckets as usize;
        let mut index = word(buckets_at + (hash % buckets) as usize);
        if index < first {
            return None;
        }
        loop {
            let chained = word(chains_at + (index - first) as usize);
            let symbol = self.symbol(index as usize);
            if chained | 1 == hash | 1 && self.name(&symbol) == name {
                let is_function = symbol.st_info & 0xf == STT_FUNC;
                return is_function.then(|| self.base.wrapping_add(symbol.st_value as usize));
            }
            if chained & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }

    /// Redirects references that lead to the C library, whose text is `library`, or are unbound, to
    /// the functions of `ours`. Returns false if the library is still being loaded.
    fn turn_to(&self, ours: &Linkage, object: &dl_phdr_info, library: &Range<usize>) -> bool {
        let mut protection = Protection::of(object);
        for (at, count) in self.tables {
            for index in 0..count {
                // SAFETY: the dynamic linker has used the same table.
                let reference = unsafe { (at as *const Elf64_Rela).add(index).read() };
                let kind = reference.r_info & 0xffff_ffff;
                let is_function =
                    matches!(kind, R_X86_64_64 | R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT);
                if !is_function || kind == R_X86_64_64 && reference.r_addend != 0 {
                    continue;
                }
                let symbol = self.symbol((reference.r_info >> 32) as usize);
                let slot = self.base.wrapping_add(reference.r_offset as usize);
                // SAFETY: the dynamic linker has stored an address there.
                let slot = unsafe { AtomicUsize::from_ptr(slot as *mut usize) };
                let leads_to = slot.load(Ordering::Relaxed);
                let is_bound = library.contains(&leads_to);
                let may_enter = kind == R_X86_64_JUMP_SLOT && IS_FIRST.load(Ordering::Relaxed);
                let is_unbound = || may_enter && texts(object).any(|text| text.contains(&leads_to));
                if symbol.st_shndx != 0 || !is_bound && !is_unbound() {
                    continue;
                }
                let Some(function) = ours.exported(self.name(&symbol)) else { continue };
                protection.store(slot.as_ptr() as usize, function);
            }
        }
        !protection.is_to_come
    }
}

/// Pages that the dynamic linker makes read-only after relocation (RELRO). If they were made
/// writable, they become read-only again on drop.
struct Protection {
    pages: Range<usize>,
    is_lifted: bool,
    /// The linker has not protected the pages yet.
    is_to_come: bool,
}

impl Protection {
    fn of(object: &dl_phdr_info) -> Protection {
        let found = headers(object).iter().find(|header| header.p_type == libc::PT_GNU_RELRO);
        let pages = found.map_or(0..0, |header| {
            let start = (object.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            let end = start.wrapping_add(header.p_memsz as usize);
            start / PAGE * PAGE..end / PAGE * PAGE
        });
        Protection { pages, is_lifted: false, is_to_come: false }
    }

    /// Stores an address, if possible.
    fn store(&mut self, address: usize, value: usize) {
        let is_protected = self.pages.contains(&address);
        if put(address, value) {
            self.is_to_come |= is_protected && !self.is_lifted;
        } else if is_protected && self.protect(libc::PROT_READ | libc::PROT_WRITE) {
            self.is_lifted = true;
            put(address, value);
        }
    }

    fn protect(&self, protection: c_int) -> bool {
        let (start, length) = (self.pages.start as c_long, self.pages.len() as c_long);
        // SAFETY: these pages hold only data that the dynamic linker has written.
        let result = unsafe {
            kernel::call(libc::SYS_mprotect, [start, length, c_long::from(protection), 0])
        };
        result.is_ok()
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        if self.is_lifted {
            self.protect(libc::PROT_READ);
        }
    }
}

/// Stores a word in this process by a system call, so that a read-only page gives false instead of
/// a fault.
fn put(address: usize, value: usize) -> bool {
    let part = |base: *const usize| libc::iovec {
        iov_base: base.cast_mut().cast(),
        iov_len: size_of::<usize>(),
    };
    let (from, to) = (part(&raw const value), part(address as *const usize));
    // SAFETY: takes no pointer.
    let process = unsafe { libc::getpid() };
    // SAFETY: each list has one entry: a word of this frame, and a word that the dynamic linker has
    // written before.
    let written =
        unsafe { libc::process_vm_writev(process, &raw const from, 1, &raw const to, 1, 0) };
    written == size_of::<usize>() as isize
}
