//! Finding instructions that enter the kernel in the text of a library.
//!
//! Two bytes may be such an instruction, a part of another one, or data. So the bytes before them
//! are decoded from many places: x86 instructions have different lengths, and a decoder that begins
//! in the middle of one is in step with the others a few instructions later. Among data there are
//! many things that no program executes.
//! Must stay true: what cannot be told counts as such an instruction, and as a call about files.
//! Left out are only calls whose number was last written into its register as one that no file is
//! concerned by, as the text before has it: that saves programs with threads from being caught
//! whenever one waits for another. Jumps are not followed: a library that makes calls about files
//! would have to make all of them at places that other calls seem to come to.

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
};
use core::ops::Range;

use libc::c_long;
use yaxpeax_x86::long_mode::{InstDecoder, Instruction, Opcode, Operand, RegSpec, register_class};

/// `syscall`.
const ENTRY: [u8; 2] = [0x0f, 0x05];
const INSTRUCTION_BYTES_MAX: usize = 15;
/// What is in a register is looked for in so many bytes before.
const BEFORE: usize = 1024;
/// A decoder is in step after so many bytes, as good as always.
const IN_STEP: usize = 40;
/// So many decoders are asked, one for each byte before that; half of them decide.
const DECODERS: usize = 16;
/// Where so many bytes before have so many things that no program executes, nothing is a program.
const STRETCH: usize = 256;
const STRANGE_MIN: u32 = 6;

/// Calls that no file is concerned by, and that libraries make by instructions of their own.
const OF_NO_FILE: [c_long; 16] = [
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
    libc::SYS_membarrier,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_tgkill,
];

/// Whether text may make calls that are about files.
pub fn calls_the_kernel(text: &[u8]) -> bool {
    let mut at = 0;
    while let Some(found) = find_entry(&text[at..]) {
        let entry = at + found;
        if may_be_about_files(text, entry) {
            return true;
        }
        at = entry + 1;
    }
    false
}

/// Where the next two such bytes are: sixteen places are looked at at a time, for a library may
/// have a hundred megabytes.
fn find_entry(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while text.len() - at > size_of::<__m128i>() {
        // SAFETY: so many bytes and one are left; these instructions are part of x86-64.
        let found = unsafe {
            let load = |at: usize| _mm_loadu_si128(text.as_ptr().add(at).cast());
            let is = |bytes, wanted: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(wanted as i8));
            _mm_movemask_epi8(_mm_and_si128(is(load(at), ENTRY[0]), is(load(at + 1), ENTRY[1])))
        };
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize);
        }
        at += size_of::<__m128i>();
    }
    text[at..].windows(ENTRY.len()).position(|bytes| bytes == ENTRY).map(|found| at + found)
}

fn may_be_about_files(text: &[u8], entry: usize) -> bool {
    let (first, last) = (entry.saturating_sub(IN_STEP + DECODERS), entry.saturating_sub(IN_STEP));
    let reaching = |starts: Range<usize>| {
        let walks = starts.map(|start| Walk::new(text, start));
        walks.filter_map(|mut walk| walk.reaches(entry).then_some(walk))
    };
    // Part of another instruction, which most decoders jump over.
    let is_missed = |&start: &usize| !Walk::new(text, start).reaches(entry);
    if (first..last).filter(is_missed).nth((last - first) / 2).is_some() {
        return false;
    }
    let mut walk = Walk::new(text, entry.saturating_sub(STRETCH));
    // Before it is in step it finds strange things anywhere.
    walk.reaches(entry.saturating_sub(STRETCH - IN_STEP));
    walk.strange = 0;
    walk.reaches(entry);
    let is_program = walk.strange < STRANGE_MIN;
    // The one that begins the furthest away knows most.
    let number = reaching(entry.saturating_sub(BEFORE)..last).next();
    let number = number.and_then(|walk| walk.registers[RAX]);
    is_program && number.is_none_or(|number| !OF_NO_FILE.contains(&number))
}

const RAX: usize = 0;
/// What a function returns, and what it was given first: rax, rdx, rsi and rdi. Of others that it
/// may change nobody uses what was in them before; who seems to has come from elsewhere.
const CHANGED_BY_CALLS: [usize; 4] = [RAX, 2, 6, 7];

/// Where a function finds the number if what follows is a function that makes any call: rax, rsi
/// and rdi.
const FIRST_OF_ANOTHER: [usize; 3] = [RAX, 6, 7];
/// Those that instructions change without naming them: rax, rcx, rdx, rsi and rdi.
const CHANGED_BY_OTHERS: [usize; 5] = [RAX, 1, 2, 6, 7];

/// Decodes instructions one after the other.
struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    /// What is known to be in the registers, as the processor numbers them.
    registers: [Option<c_long>; 16],
    /// Things that no program executes.
    strange: u32,
}

impl<'a> Walk<'a> {
    fn new(text: &'a [u8], at: usize) -> Walk<'a> {
        Walk { text, at, registers: [None; 16], strange: 0 }
    }

    /// Whether an instruction begins at `end`.
    fn reaches(&mut self, end: usize) -> bool {
        let decoder = InstDecoder::default();
        while self.at < end {
            let bytes = self.at..self.text.len().min(self.at + INSTRUCTION_BYTES_MAX);
            match decoder.decode_slice(&self.text[bytes]) {
                Ok(instruction) => {
                    self.strange += u32::from(is_strange(instruction.opcode()));
                    self.follow(&instruction);
                    self.at += length(&instruction);
                }
                // Such instructions change none of these registers.
                Err(_) if self.text[self.at] == VECTOR => {
                    self.at += vector_length(&self.text[self.at..]);
                }
                // From here on as if one began at the next byte.
                Err(_) => {
                    self.strange += 1;
                    self.registers = [None; 16];
                    self.at += 1;
                }
            }
        }
        self.at == end
    }

    /// What the registers hold after an instruction. Jumps count as if they were not made: what a
    /// compiler holds in a register it holds there in all of a function. What is popped at the end
    /// of a function is what its caller has there.
    fn follow(&mut self, instruction: &Instruction) {
        let operand = |place: u8| match place < instruction.operand_count() {
            true => instruction.operand(place),
            false => Operand::Nothing,
        };
        let opcode = instruction.opcode();
        let register = match operand(0) {
            Operand::Register { reg } => general(&reg).map(|number| (number, is_whole(&reg))),
            _ => None,
        };
        match (opcode, register) {
            (Opcode::CALL, _) => {
                CHANGED_BY_CALLS.into_iter().for_each(|it| self.registers[it] = None)
            }
            (Opcode::SYSCALL, _) => {
                [RAX, 1, 11].into_iter().for_each(|it| self.registers[it] = None)
            }
            _ if changes_nothing(opcode) => {}
            (Opcode::MOV, Some((target, true))) => {
                self.registers[target] = match operand(1) {
                    Operand::Register { reg } if is_whole(&reg) => {
                        general(&reg).and_then(|source| self.registers[source])
                    }
                    source => immediate(&source),
                };
            }
            (Opcode::XOR, Some((target, true))) if operand(0) == operand(1) => {
                self.registers[target] = Some(0);
            }
            (_, register) if changes_the_first(opcode) => {
                if let Some((target, _)) = register {
                    self.registers[target] = None;
                }
            }
            _ if changes_all(opcode) => self.registers = [None; 16],
            (Opcode::JMP | Opcode::RETURN, _) => {
                FIRST_OF_ANOTHER.into_iter().for_each(|it| self.registers[it] = None)
            }
            _ => {
                let named = (0..instruction.operand_count()).filter_map(|place| match instruction
                    .operand(place)
                {
                    Operand::Register { reg } => general(&reg),
                    _ => None,
                });
                named.chain(CHANGED_BY_OTHERS).for_each(|it| self.registers[it] = None);
            }
        }
    }
}

/// An instruction of AVX-512 begins so. The decoder does not know all of them.
const VECTOR: u8 = 0x62;

/// Bytes of an instruction of AVX-512 (Intel's manual, volume 2, section 2.7): four of prefix, one
/// of the operation, then operands.
fn vector_length(text: &[u8]) -> usize {
    let byte = |at: usize| text.get(at).copied().unwrap_or(0);
    let (map, operation, operands) = (byte(1) & 7, byte(4), byte(5));
    let (mode, register) = (operands >> 6, operands & 7);
    let has_index = mode != 3 && register == 4;
    let base = if has_index { byte(6) & 7 } else { register };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    let has_immediate =
        map == 3 || map == 1 && matches!(operation, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6);
    6 + usize::from(has_index) + displacement + usize::from(has_immediate)
}

fn length(instruction: &Instruction) -> usize {
    use yaxpeax_arch::{AddressBase, LengthedInstruction};
    0_u64.wrapping_offset(instruction.len()).to_linear()
}

/// The number of a register of integers, or of the one that this is a part of.
fn general(register: &RegSpec) -> Option<usize> {
    use register_class::{B, D, Q, RB, W};
    let number = register.num().into();
    match register.class() {
        // ah, ch, dh, bh.
        B if number >= 4 => Some(number - 4),
        Q | D | W | B | RB => Some(number),
        _ => None,
    }
}

/// Whether writing to it changes all of the register.
fn is_whole(register: &RegSpec) -> bool {
    [register_class::Q, register_class::D].contains(&register.class())
}

fn changes_nothing(opcode: Opcode) -> bool {
    const JUMPS: [Opcode; 16] = [
        Opcode::JO,
        Opcode::JNO,
        Opcode::JB,
        Opcode::JNB,
        Opcode::JZ,
        Opcode::JNZ,
        Opcode::JA,
        Opcode::JNA,
        Opcode::JS,
        Opcode::JNS,
        Opcode::JP,
        Opcode::JNP,
        Opcode::JL,
        Opcode::JGE,
        Opcode::JLE,
        Opcode::JG,
    ];
    const OTHERS: [Opcode; 6] =
        [Opcode::POP, Opcode::CMP, Opcode::TEST, Opcode::PUSH, Opcode::NOP, Opcode::ENDBR64];
    JUMPS.contains(&opcode) || OTHERS.contains(&opcode)
}

/// Whether more is changed than is said here.
fn changes_all(opcode: Opcode) -> bool {
    use Opcode::{CPUID, HLT, INT, JMPF, LEAVE, RETF, SYSRET, UD2};
    matches!(opcode, CPUID | HLT | INT | JMPF | LEAVE | RETF | SYSRET | UD2)
}

/// Whether nothing but the first operand is changed.
fn changes_the_first(opcode: Opcode) -> bool {
    const ALL: [Opcode; 17] = [
        Opcode::ADD,
        Opcode::AND,
        Opcode::DEC,
        Opcode::INC,
        Opcode::LEA,
        Opcode::MOV,
        Opcode::MOVSX,
        Opcode::MOVSXD,
        Opcode::MOVZX,
        Opcode::NEG,
        Opcode::NOT,
        Opcode::OR,
        Opcode::SAR,
        Opcode::SHL,
        Opcode::SHR,
        Opcode::SUB,
        Opcode::XOR,
    ];
    ALL.contains(&opcode)
}

/// What only the kernel may execute, or nobody does any more.
fn is_strange(opcode: Opcode) -> bool {
    const ALL: [Opcode; 20] = [
        Opcode::CALLF,
        Opcode::CLI,
        Opcode::ENTER,
        Opcode::HLT,
        Opcode::IN,
        Opcode::INS,
        Opcode::INTO,
        Opcode::IRET,
        Opcode::IRETD,
        Opcode::IRETQ,
        Opcode::JMPF,
        Opcode::LOOP,
        Opcode::OUT,
        Opcode::OUTS,
        Opcode::RDMSR,
        Opcode::RETF,
        Opcode::STI,
        Opcode::SYSRET,
        Opcode::WRMSR,
        Opcode::XLAT,
    ];
    ALL.contains(&opcode)
}

fn immediate(operand: &Operand) -> Option<c_long> {
    match *operand {
        Operand::ImmediateI8 { imm } => Some(imm.into()),
        Operand::ImmediateU8 { imm } => Some(imm.into()),
        Operand::ImmediateI16 { imm } => Some(imm.into()),
        Operand::ImmediateU16 { imm } => Some(imm.into()),
        Operand::ImmediateI32 { imm } => Some(imm.into()),
        Operand::ImmediateU32 { imm } => Some(imm.into()),
        Operand::ImmediateI64 { imm } => Some(imm),
        Operand::ImmediateU64 { imm } => c_long::try_from(imm).ok(),
        _ => None,
    }
}
