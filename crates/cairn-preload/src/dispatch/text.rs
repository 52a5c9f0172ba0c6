//! Finds instructions that enter the kernel in the text of a library.
//!
//! Two bytes `0f 05` may be a `syscall` instruction, part of another instruction, or data. So the
//! bytes before them are decoded from several start positions: x86 instructions have different
//! lengths, and a decoder that starts inside one is in step with the others a few instructions
//! later. Data decodes to many instructions that no program executes.
//!
//! Must stay true: whatever cannot be determined counts as a `syscall` instruction, and as a call
//! that may concern files. The only calls left out are those whose number, as the preceding text
//! last loads it into its register, concerns no file. This keeps programs with threads from being
//! caught whenever one thread waits for another. Jumps are not followed: a library with calls about
//! files would have to make all of them where the decoded text suggests another call.

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8,
};
use core::ops::Range;

use libc::c_long;
use yaxpeax_x86::long_mode::{InstDecoder, Instruction, Opcode, Operand, RegSpec, register_class};

/// The `syscall` instruction.
const ENTRY: [u8; 2] = [0x0f, 0x05];
const INSTRUCTION_BYTES_MAX: usize = 15;
/// Bytes before the instruction that are searched for the contents of registers.
const BEFORE: usize = 1024;
/// Bytes after which a decoder is practically always in step.
const IN_STEP: usize = 40;
/// Number of decoders, one for each start position before [`IN_STEP`]. The majority decides.
const DECODERS: usize = 16;
/// Text is data, not a program, if the last `STRETCH` bytes have at least `STRANGE_MIN`
/// instructions that no program executes.
const STRETCH: usize = 256;
const STRANGE_MIN: u32 = 6;

/// System calls that concern no file and that libraries make by their own instructions.
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

/// Whether the text may make system calls about files.
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

/// Position of the next `syscall` byte pair. Compares sixteen positions at a time, because a
/// library may have a hundred megabytes of text.
fn find_entry(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while text.len() - at > size_of::<__m128i>() {
        // SAFETY: more than 16 bytes are left, so both loads are in bounds; SSE2 is part of x86-64.
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
    // Part of another instruction, if most decoders jump over it.
    let recognise_after_failure = |&start: &usize| !Walk::new(text, start).reaches(entry);
    if (first..last).filter(recognise_after_failure).nth((last - first) / 2).is_some() {
        return false;
    }
    let mut walk = Walk::new(text, entry.saturating_sub(STRETCH));
    // Until the decoder is in step, strange instructions prove nothing.
    walk.reaches(entry.saturating_sub(STRETCH - IN_STEP));
    walk.implausible = 0;
    walk.reaches(entry);
    let is_program = walk.implausible < STRANGE_MIN;
    // The earliest start that reaches the instruction knows most about the registers.
    let number = reaching(entry.saturating_sub(BEFORE)..last).next();
    let number = number.and_then(|walk| walk.registers[RAX]);
    is_program && number.is_none_or(|number| !OF_NO_FILE.contains(&number))
}

const RAX: usize = 0;
/// Registers that hold a function's result and first arguments: rax, rdx, rsi and rdi. A call may
/// change more, but compilers do not use their old contents afterwards; text that seems to do so is
/// reached from elsewhere.
const CHANGED_BY_CALLS: [usize; 4] = [RAX, 2, 6, 7];

/// Registers that hold the call number at the start of a function that makes any call: rax, rsi and
/// rdi. The text after a jump or return may be such a function.
const FIRST_OF_ANOTHER: [usize; 3] = [RAX, 6, 7];
/// Registers that instructions change implicitly: rax, rcx, rdx, rsi and rdi.
const CHANGED_BY_OTHERS: [usize; 5] = [RAX, 1, 2, 6, 7];

/// Decodes instructions one after another.
struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    /// Known register contents, in the processor's numbering.
    registers: [Option<c_long>; 16],
    /// Number of instructions seen that no program executes.
    implausible: u32,
}

impl<'a> Walk<'a> {
    fn new(text: &'a [u8], at: usize) -> Walk<'a> {
        Walk { text, at, registers: [None; 16], implausible: 0 }
    }

    /// Decodes up to `end`. Returns whether an instruction begins there.
    fn reaches(&mut self, end: usize) -> bool {
        let decoder = InstDecoder::default();
        while self.at < end {
            let bytes = self.at..self.text.len().min(self.at + INSTRUCTION_BYTES_MAX);
            match decoder.decode_slice(&self.text[bytes]) {
                Ok(instruction) => {
                    self.implausible += u32::from(is_strange(instruction.opcode()));
                    self.follow(&instruction);
                    self.at += length(&instruction);
                }
                // AVX-512 instructions change no general register.
                Err(_) if self.text[self.at] == VECTOR => {
                    self.at += vector_length(&self.text[self.at..]);
                }
                // Undecodable: continue as if an instruction began at the next byte.
                Err(_) => {
                    self.implausible += 1;
                    self.registers = [None; 16];
                    self.at += 1;
                }
            }
        }
        self.at == end
    }

    /// Tracks the register contents over one instruction. Jumps count as not taken, because a
    /// compiler keeps a value in the same register in the whole function. A `pop` at the end of a
    /// function restores its caller's value, so it changes nothing here.
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

/// First byte of an AVX-512 instruction. The decoder does not know all of them.
const VECTOR: u8 = 0x62;

/// Length of an AVX-512 instruction (Intel's manual, volume 2, section 2.7): four bytes of prefix,
/// one of opcode, then operands.
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

/// Number of a general register, or of the one that this register is a part of.
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

/// Whether writing to it changes the whole register.
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

/// Whether the instruction may change registers beyond its operands.
fn changes_all(opcode: Opcode) -> bool {
    use Opcode::{CPUID, HLT, INT, JMPF, LEAVE, RETF, SYSRET, UD2};
    matches!(opcode, CPUID | HLT | INT | JMPF | LEAVE | RETF | SYSRET | UD2)
}

/// Whether the instruction changes nothing but its first operand.
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

/// Whether the instruction is privileged or obsolete.
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
