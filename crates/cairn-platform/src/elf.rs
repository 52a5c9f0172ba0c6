//! Who loads a program, judged by the first bytes of its file (ELF).
//!
//! Must stay true: the file may come from anybody. Numbers in it are checked before use.
//!
//! Does not read anything else of a program.

/// Offset and value of the class of 64-bit files.
const CLASS: (usize, u8) = (4, 2);
/// Type of the program header that names the dynamic linker.
const INTERPRETER: usize = 3;

#[cfg(target_arch = "x86_64")]
const MACHINE: usize = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: usize = 183;

/// What loads a program into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader<'a> {
    /// The dynamic linker at this path.
    Linker(&'a [u8]),
    /// The kernel alone: the program is static, or a dynamic linker itself.
    Kernel,
    /// Whatever loads programs of 32 bits, or of another machine.
    Foreign,
}

/// Returns what loads the program that begins with `bytes`. None if they are no ELF file, or end
/// before they tell.
pub fn loader(bytes: &[u8]) -> Option<Loader<'_>> {
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = bytes.get(at..at.checked_add(length)?)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    };
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    // Little-endian, as both machines are.
    if *bytes.get(CLASS.0)? != CLASS.1 || *bytes.get(5)? != 1 || number(18, 2)? != MACHINE {
        return Some(Loader::Foreign);
    }
    // Offset of the program headers, size of each, number of them (ELF-64, figure 3).
    let (first, length, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for header in 0..count {
        let at = first.checked_add(header * length)?;
        if number(at, 4)? != INTERPRETER {
            continue;
        }
        // Offset and length in the file of what the header is about (ELF-64, figure 6).
        let (start, size) = (number(at.checked_add(8)?, 8)?, number(at.checked_add(32)?, 8)?);
        let path = bytes.get(start..start.checked_add(size)?)?;
        return Some(Loader::Linker(path.strip_suffix(b"\0").unwrap_or(path)));
    }
    Some(Loader::Kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(interpreter: Option<&[u8]>) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&(MACHINE as u16).to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        if let Some(path) = interpreter {
            bytes[64..68].copy_from_slice(&3_u32.to_le_bytes());
            bytes[72..80].copy_from_slice(&120_u64.to_le_bytes());
            bytes[96..104].copy_from_slice(&(path.len() as u64).to_le_bytes());
            bytes.extend_from_slice(path);
        }
        bytes
    }

    #[test]
    fn dynamic_linker_is_named_or_there_is_none() {
        let dynamic = program(Some(b"/lib/ld.so\0"));
        assert_eq!(loader(&dynamic), Some(Loader::Linker(b"/lib/ld.so")));
        assert_eq!(loader(&program(None)), Some(Loader::Kernel));
        let own = std::fs::read("/proc/self/exe").expect("reads");
        assert!(matches!(loader(&own), Some(Loader::Linker(path)) if path.contains(&b'/')));
    }

    #[test]
    fn other_machines_and_other_files_are_told_apart() {
        let (mut narrow, mut other) = (program(None), program(None));
        narrow[4] = 1;
        other[18] = 8;
        assert_eq!(
            (loader(&narrow), loader(&other)),
            (Some(Loader::Foreign), Some(Loader::Foreign))
        );
        assert_eq!((loader(b"#!/bin/sh\n"), loader(b"")), (None, None));
    }

    #[test]
    fn damaged_numbers_are_not_followed() {
        let mut bytes = program(Some(b"/lib/ld.so\0"));
        for length in 0..bytes.len() {
            let told = loader(&bytes[..length]);
            assert!(matches!(told, None | Some(Loader::Foreign)), "{length}: {told:?}");
        }
        for at in [32, 72, 96] {
            let before: [u8; 8] = bytes[at..at + 8].try_into().expect("eight");
            bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert_eq!(loader(&bytes), None);
            bytes[at..at + 8].copy_from_slice(&before);
        }
    }
}
