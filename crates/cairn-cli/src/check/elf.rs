//! What an ELF file says about the program in it, without running it.
//!
//! Must stay true: the file may be anybody's; what cannot be read as it should be is an error or
//! left out, never believed.
//! Does not judge; `check.rs` does.

use crate::check::confined::{self, Failure};
use crate::check::kernel_calls::{self, KernelCall};
use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection, SectionFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How the file begins.
const MAGIC: &[u8] = b"\x7fELF";
/// Sections that a Go program has, even one without symbols.
const GO_SECTIONS: [&str; 3] = [".go.buildinfo", ".note.go.buildid", ".gopclntab"];
/// The section that libcairn.a brings into a program.
const CAIRN_SECTION: &str = "cairn_next";
/// Who wrote the note that says a Go program's build.
const GO_OWNER: &[u8] = b"Go";
/// Instructions between the one that chooses the call and the one that enters the kernel, at most.
const DISTANCE_MAX: usize = 12;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = elf::EM_AARCH64;

type File<'data> = ElfFile<'data, FileHeader64<Endianness>>;

/// Instructions that enter the kernel, by the call they make; none if that is not chosen just
/// before.
pub type RawCalls = BTreeMap<Option<&'static str>, u64>;

/// Whether a program names its dynamic linker, by its first bytes; none if they are no 64-bit ELF
/// program of this byte order, or its headers stand elsewhere.
pub fn names_interpreter(bytes: &[u8]) -> Option<bool> {
    const MAGIC_64: &[u8] = b"\x7fELF\x02\x01";
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = bytes.get(at..at.checked_add(length)?)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    };
    // Where the program headers are, how long each is, how many there are (ELF-64, figure 3).
    let (first, length, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    if !bytes.starts_with(MAGIC_64) {
        return None;
    }
    for header in 0..count {
        let at = first.checked_add(header * length)?;
        if number(at, 4)? == elf::PT_INTERP as usize {
            return Some(true);
        }
    }
    Some(false)
}

/// A program or a library.
#[derive(Debug, Default)]
pub struct Image {
    /// The dynamic linker it asks for.
    pub interpreter: Option<PathBuf>,
    /// It may be loaded anywhere.
    pub is_relocatable: bool,
    /// It was made by the Go compiler.
    pub is_go: bool,
    /// It has libcairn.a in it.
    pub has_cairn: bool,
    /// Functions and variables it takes from others.
    pub imports: BTreeSet<String>,
    /// Calls of the kernel in its own code that are about files, or may be.
    pub raw_calls: RawCalls,
}

/// Why a file is no program that can be looked into.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Of another kind.
    NotElf,
    /// For another machine, or for 32 bits.
    OtherMachine,
    /// It contradicts itself.
    Damaged(String),
}

impl Image {
    /// Reads a file's bytes.
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

/// Where in the file its class stands: behind the magic.
const fn elf_class() -> usize {
    MAGIC.len()
}

/// How much of a file is left to be read, if no two of its parts are the same bytes: else a small
/// file could take hours.
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

/// Calls of the kernel in the code, section by section. False: there is more code than the file has
/// bytes.
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

/// The name of a call that is about files, or none if the number is not known; nothing if it is
/// about something else.
fn name_of(number: Option<i64>) -> Option<Option<&'static str>> {
    match number {
        None => Some(None),
        Some(number) => kernel_calls::of_number(number).map(|KernelCall { name, .. }| Some(*name)),
    }
}

/// Tells `found` of each instruction that enters the kernel, with the number of the call if an
/// instruction shortly before it says that. Decoded from the beginning of the code, as a
/// disassembler does: bytes of data or of other instructions that look like such a one are not
/// taken for it, unless there is data in the code.
#[cfg(target_arch = "x86_64")]
fn find_calls(code: &[u8], found: &mut impl FnMut(Option<i64>)) {
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};
    // Where the kernel expects the call's number.
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
            // The usual way to say 0, which is `read`.
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

/// As above; every instruction is a word.
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
    /// As it is asked for.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// What a program needs, directly or not, as its dynamic linker finds it. Errors: those of
/// `confined::output`.
pub fn libraries(interpreter: &Path, program: &Path) -> Result<Vec<Library>, Failure> {
    let mut command = Command::new(interpreter);
    let text = confined::output(command.arg("--list").arg(program).env_remove("LD_PRELOAD"))?;
    let found = text.lines().filter_map(library);
    // What it names is about to be read, and may be anything.
    Ok(found.filter(|library| library.path != interpreter && library.path.is_file()).collect())
}

/// A line of the dynamic linker: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for what is asked
/// for by its path.
fn library(line: &str) -> Option<Library> {
    let (found, _) = line.trim().rsplit_once(" (")?;
    let (name, path) = found.split_once(" => ").unwrap_or((found, found));
    let path = PathBuf::from(path);
    let name = Path::new(name).file_name()?.to_string_lossy().into_owned();
    // The kernel's own is no file.
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
        // mov eax, 0x050f: the bytes of the instruction, but not the instruction
        assert_eq!(calls(&[0xb8, 0x0f, 0x05, 0, 0]), []);
    }

    #[test]
    fn what_is_no_program_of_this_machine_is_said_so() {
        assert_eq!(Image::read(b"#!/bin/sh\n").err(), Some(Unreadable::NotElf));
        assert_eq!(Image::read(b"").err(), Some(Unreadable::NotElf));
        assert_eq!(Image::read(b"\x7fELF\x01").err(), Some(Unreadable::OtherMachine));
        assert!(matches!(Image::read(b"\x7fELF\x02\x01"), Err(Unreadable::Damaged(_))));
    }

    /// Mechanism: every section that says it is code was decoded, wherever it lies in the file.
    /// Consequence: a file of thousands of sections that are all the same megabytes was decoded for
    /// hours.
    /// Fix: no more is read than the file has bytes.
    #[test]
    fn sections_that_are_the_same_bytes_are_not_read_again_and_again() {
        const HEADER: usize = 64;
        const SECTIONS: u16 = 4;
        const CODE: u64 = 512;
        let mut file = std::fs::read(std::env::current_exe().expect("this program"))
            .expect("reads")[..HEADER]
            .to_vec();
        // No program headers; section headers behind the file's, and any section for their names.
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
        // With as much code as there is file it is read.
        file.resize(4 * CODE as usize, 0x90);
        assert!(Image::read(&file).is_ok());
    }

    #[test]
    fn damaged_programs_are_errors_or_read_as_far_as_they_go() {
        let whole = std::fs::read(std::env::current_exe().expect("this program")).expect("reads");
        let own = Image::read(&whole).expect("this program is one");
        assert!(own.interpreter.is_some() && !own.is_go && own.imports.contains("malloc"));
        // The headers, with one byte changed at a time; the code is in debug builds too much to
        // decode so often.
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
