//! Reads what an ELF file tells about a program without running it.
//!
//! Must stay true: the file may come from anybody. A malformed part is an error or is left out; it
//! is never trusted.
//!
//! Does not judge; `check.rs` does.

use crate::program::confined::{self, Failure};
use crate::program::kernel_calls::{self, KernelCall};
use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, SectionFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// First bytes of an ELF file.
const MAGIC: &[u8] = b"\x7fELF";
/// Sections that every Go program has, even without symbols.
const GO_SECTIONS: [&str; 3] = [".go.buildinfo", ".note.go.buildid", ".gopclntab"];
/// Section that marks a program linked with libcairn.a.
const CAIRN_SECTION: &str = "cairn_next";
/// Owner of the ELF note with a Go program's build id.
const GO_OWNER: &[u8] = b"Go";
/// Maximum number of instructions between the one that sets the system call number and the one that
/// enters the kernel.
const DISTANCE_MAX: usize = 12;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = elf::EM_AARCH64;

type File<'data> = ElfFile<'data, FileHeader64<Endianness>>;

/// Number of instructions that enter the kernel, by system call; None if no instruction shortly
/// before sets the number.
pub type RawCalls = BTreeMap<Option<&'static str>, u64>;

/// A program or a library.
#[derive(Debug, Default)]
pub struct Image {
    /// Dynamic linker it names.
    pub interpreter: Option<PathBuf>,
    /// Whether it is position-independent.
    pub is_relocatable: bool,
    /// Whether the Go compiler made it.
    pub is_go: bool,
    /// Whether libcairn.a is linked into it.
    pub has_cairn: bool,
    /// Functions and variables it imports.
    pub imports: BTreeSet<String>,
    /// System calls in its own code that are about files, or may be.
    pub raw_calls: RawCalls,
}

/// Why a file cannot be read as a program.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is not an ELF file.
    NotElf,
    /// It is for another machine, or for 32 bits.
    OtherMachine,
    /// It is malformed.
    Damaged(String),
}

impl Image {
    /// Whether it takes functions of the C++ library.
    pub fn is_cxx(&self) -> bool {
        self.imports.iter().any(|name| name.starts_with("_ZNSt") || name.starts_with("__cxa_throw"))
    }

    /// Reads the bytes of a file.
    pub fn read(bytes: &[u8]) -> Result<Image, Unreadable> {
        if !bytes.starts_with(MAGIC) {
            return Err(Unreadable::NotElf);
        }
        if bytes.get(elf_class()) != Some(&elf::ELFCLASS64) {
            return Err(Unreadable::OtherMachine);
        }
        Image::of(bytes).map_err(|error| Unreadable::Damaged(error.to_string()))?
    }

    fn of(bytes: &[u8]) -> object::Result<Result<Image, Unreadable>> {
        let file = File::parse(bytes)?;
        let (header, endian) = (file.elf_header(), file.endian());
        if header.e_machine(endian) != MACHINE {
            return Ok(Err(Unreadable::OtherMachine));
        }
        let mut image = Image {
            is_relocatable: header.e_type(endian) == elf::ET_DYN,
            is_go: GO_SECTIONS.iter().any(|name| file.section_by_name(name).is_some()),
            has_cairn: file.section_by_name(CAIRN_SECTION).is_some(),
            ..Image::default()
        };
        let mut budget = Budget(bytes.len() as u64);
        if !find_raw_calls(&file, &mut budget, &mut image.raw_calls)? {
            return Ok(Err(overlapping()));
        }
        let mut budget = Budget(bytes.len() as u64);
        for part in file.elf_program_headers() {
            if let Some(path) = part.interpreter(endian, bytes)? {
                image.interpreter = Some(PathBuf::from(String::from_utf8_lossy(path).into_owned()));
            }
            if let Some(mut notes) = part.notes(endian, bytes)? {
                if !budget.take(part.p_filesz(endian)) {
                    return Ok(Err(overlapping()));
                }
                while let Some(note) = notes.next()? {
                    image.is_go |= note.name() == GO_OWNER;
                }
            }
        }
        let mut budget = Budget(bytes.len() as u64);
        for import in file.imports()? {
            if !budget.take(import.name().len() as u64) {
                return Ok(Err(overlapping()));
            }
            image.imports.insert(String::from_utf8_lossy(import.name()).into_owned());
        }
        Ok(Ok(image))
    }
}

/// Returns the offset of the ELF class, which follows the magic number.
const fn elf_class() -> usize {
    MAGIC.len()
}

/// Number of bytes that may still be read. Starts at the file's size, because sections may overlap,
/// and a small file could otherwise take hours.
struct Budget(u64);

impl Budget {
    fn take(&mut self, bytes: u64) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

fn overlapping() -> Unreadable {
    Unreadable::Damaged("its parts are larger than the file".to_owned())
}

/// Collects the system calls in the code, section by section. Returns false if the sections hold
/// more code than the file has bytes.
fn find_raw_calls(file: &File, budget: &mut Budget, calls: &mut RawCalls) -> object::Result<bool> {
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
        if sh_flags & u64::from(elf::SHF_EXECINSTR) != 0 {
            let code = section.data()?;
            if !budget.take(code.len() as u64) {
                return Ok(false);
            }
            find_calls(code, &mut |number| {
                if let Some(name) = name_of(number) {
                    *calls.entry(name).or_default() += 1;
                }
            });
        }
    }
    Ok(true)
}

/// Returns the name of a call about files; `Some(None)` if the number is unknown; None if the call
/// is not about files.
fn name_of(number: Option<i64>) -> Option<Option<&'static str>> {
    match number {
        None => Some(None),
        Some(number) => kernel_calls::of_number(number).map(|KernelCall { name, .. }| Some(*name)),
    }
}

/// Calls `found` for each instruction that enters the kernel, with the number of the call if an
/// instruction shortly before sets it. Decodes the code from its beginning, as a disassembler does,
/// so that equal bytes within data or other instructions are not mistaken for it, unless there is
/// data in the code.
#[cfg(target_arch = "x86_64")]
fn find_calls(code: &[u8], found: &mut impl FnMut(Option<i64>)) {
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};
    // Register in which the kernel expects the number.
    let is_number =
        |register| matches!(register, Register::RAX | Register::EAX | Register::AX | Register::AL);
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut chosen: Option<(i64, usize)> = None;
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        chosen = chosen.filter(|(_, age)| *age < DISTANCE_MAX).map(|(call, age)| (call, age + 1));
        match instruction.code() {
            Code::Syscall => found(chosen.map(|(call, _)| call)),
            Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 if is_number(instruction.op0_register()) => {
                chosen = Some((i64::from(instruction.immediate32()), 0));
            }
            // Usual way to set 0, which is `read`.
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32
                if instruction.op0_register() == Register::EAX
                    && instruction.op1_register() == Register::EAX =>
            {
                chosen = Some((0, 0));
            }
            _ if is_number(instruction.op0_register()) => chosen = None,
            _ => {}
        }
    }
}

/// Does the same for aarch64, where every instruction is one 32-bit word.
#[cfg(target_arch = "aarch64")]
fn find_calls(code: &[u8], found: &mut impl FnMut(Option<i64>)) {
    const ENTER: u32 = 0xd400_0001;
    /// `movz x8, #number` or `movz w8, #number`.
    const CHOOSE: u32 = 0x5280_0008;
    const CHOOSE_MASK: u32 = 0x7fe0_001f;
    let mut chosen: Option<(i64, usize)> = None;
    for word in
        code.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
    {
        chosen = chosen.filter(|(_, age)| *age < DISTANCE_MAX).map(|(call, age)| (call, age + 1));
        if word == ENTER {
            found(chosen.map(|(call, _)| call));
        } else if word & CHOOSE_MASK == CHOOSE {
            chosen = Some((i64::from(word >> 5 & 0xffff), 0));
        }
    }
}

/// A library as the dynamic linker finds it.
#[derive(Debug, PartialEq, Eq)]
pub struct Library {
    /// Name by which it is requested.
    pub name: String,
    /// Path of its file.
    pub path: PathBuf,
}

/// Returns the libraries that a program needs, directly or indirectly, as its dynamic linker finds
/// them. Errors: those of `confined::output`.
pub fn libraries(interpreter: &Path, program: &Path) -> Result<Vec<Library>, Failure> {
    let mut command = Command::new(interpreter);
    let text = confined::output(command.arg("--list").arg(program).env_remove("LD_PRELOAD"))?;
    let found = text.lines().filter_map(library);
    // The caller reads these files, so anything that is not a regular file is left out.
    Ok(found.filter(|library| library.path != interpreter && library.path.is_file()).collect())
}

/// Parses a line of the dynamic linker: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for a library
/// that is requested by its path.
fn library(line: &str) -> Option<Library> {
    let (found, _) = line.trim().rsplit_once(" (")?;
    let (name, path) = found.split_once(" => ").unwrap_or((found, found));
    let path = PathBuf::from(path);
    let name = Path::new(name).file_name()?.to_string_lossy().into_owned();
    // The kernel's vDSO has no file.
    path.is_absolute().then_some(Library { name, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_dynamic_linker_are_names_and_places() {
        let read = |line| library(line).map(|found| (found.name, found.path));
        let named = |name: &str, path: &str| Some((name.to_owned(), PathBuf::from(path)));
        assert_eq!(
            read("\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)"),
            named("libc.so.6", "/lib/x/libc.so.6")
        );
        assert_eq!(read("\tliba.so => not found"), None);
        assert_eq!(read("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(read("\t/home/a b/libx.so (0x00007f)"), named("libx.so", "/home/a b/libx.so"));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_of_the_kernel_are_known_by_the_number_chosen_before() {
        let calls = |code: &[u8]| {
            let mut found = Vec::new();
            find_calls(code, &mut |number| found.push(number));
            found
        };
        // mov eax, 257; syscall
        assert_eq!(calls(&[0xb8, 1, 1, 0, 0, 0x0f, 5]), [Some(257)]);
        // mov rax, 1; mov edi, 1; syscall
        assert_eq!(calls(&[0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0, 0x0f, 5]), [Some(1)]);
        // xor eax, eax; syscall
        assert_eq!(calls(&[0x31, 0xc0, 0x0f, 5]), [Some(0)]);
        // mov eax, edi; syscall
        assert_eq!(calls(&[0x89, 0xf8, 0x0f, 5]), [None]);
        // mov eax, 0x050f: contains the bytes of `syscall` but is not that instruction
        assert_eq!(calls(&[0xb8, 0x0f, 0x05, 0, 0]), []);
    }

    #[test]
    fn what_is_no_program_of_this_machine_is_said_so() {
        assert_eq!(Image::read(b"#!/bin/sh\n").err(), Some(Unreadable::NotElf));
        assert_eq!(Image::read(b"").err(), Some(Unreadable::NotElf));
        assert_eq!(Image::read(b"\x7fELF\x01").err(), Some(Unreadable::OtherMachine));
        assert!(matches!(Image::read(b"\x7fELF\x02\x01"), Err(Unreadable::Damaged(_))));
    }

    /// Mechanism: every section marked as code was decoded, wherever it lies in the file.
    /// Consequence: a file with thousands of sections that all cover the same megabytes was decoded
    /// for hours. Fix: at most as many bytes are read as the file has.
    #[test]
    fn sections_that_are_the_same_bytes_are_not_read_again_and_again() {
        const HEADER: usize = 64;
        const SECTIONS: u16 = 4;
        const CODE: u64 = 512;
        let mut file = std::fs::read(std::env::current_exe().expect("this program"))
            .expect("reads")[..HEADER]
            .to_vec();
        // No program headers. The section headers follow the file header; section 1 holds their
        // names.
        file[32..40].fill(0);
        file[40..48].copy_from_slice(&(HEADER as u64).to_le_bytes());
        file[56..58].fill(0);
        file[60..62].copy_from_slice(&SECTIONS.to_le_bytes());
        file[62..64].copy_from_slice(&1_u16.to_le_bytes());
        for section in 0..u32::from(SECTIONS) {
            let mut header = [0; HEADER];
            header[4..8].copy_from_slice(&section.min(1).to_le_bytes());
            header[8..16].copy_from_slice(&u64::from(elf::SHF_EXECINSTR).to_le_bytes());
            header[32..40].copy_from_slice(&CODE.to_le_bytes());
            file.extend(header);
        }
        file.resize(2 * CODE as usize, 0x90);
        assert_eq!(Image::read(&file).err(), Some(overlapping()));
        // Code that is as large as the file is read.
        file.resize(4 * CODE as usize, 0x90);
        assert!(Image::read(&file).is_ok());
    }

    #[test]
    fn damaged_programs_are_errors_or_read_as_far_as_they_go() {
        let whole = std::fs::read(std::env::current_exe().expect("this program")).expect("reads");
        let own = Image::read(&whole).expect("this program is one");
        assert!(own.interpreter.is_some() && !own.is_go && own.imports.contains("malloc"));
        // Changes one byte of the headers at a time. The code is left out: in debug builds it is
        // too large to decode that often.
        let head: Vec<u8> = whole.iter().copied().take(4096).collect();
        for index in 0..head.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = head.clone();
                damaged[index] ^= change;
                let _ = Image::read(&damaged);
            }
        }
    }
}
