//! Builds and installs seccomp filters of system calls.
//!
//! Must stay true: functions that are called between fork and exec allocate nothing.
//!
//! Does not decide what is filtered; `watch.rs` and `confined.rs` do.

use std::{io, thread};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offset of the call's arguments in the data that a filter sees.
const ARGUMENTS: usize = std::mem::offset_of!(libc::seccomp_data, args);

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn load(offset: usize) -> libc::sock_filter {
    step(LOAD, 0, 0, u32::try_from(offset).expect("a small structure"))
}

/// Forbidden values of an argument. Only its lower 32 bits are tested.
pub enum Forbidden {
    /// Any value that has one of these bits.
    AnyBit(u32),
    /// This number and all above it.
    AtLeast(u32),
}

/// A filter under construction. The first rule that matches a call decides.
pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// Starts a filter. `foreign` is the action for calls of another architecture, which have other
    /// numbers.
    pub fn new(foreign: u32) -> Filter {
        Filter(vec![
            load(std::mem::offset_of!(libc::seccomp_data, arch)),
            step(JUMP_IF_EQUAL, 1, 0, ARCHITECTURE),
            step(RETURN, 0, 0, foreign),
            load(std::mem::offset_of!(libc::seccomp_data, nr)),
        ])
    }

    /// Applies `action` to calls with this number.
    pub fn rule(&mut self, number: libc::c_long, action: u32) {
        self.0.extend([step(JUMP_IF_EQUAL, 0, 1, number as u32), step(RETURN, 0, 0, action)]);
    }

    /// Applies `refusal` to calls with this number whose argument at `place` is forbidden; allows
    /// the others.
    pub fn rule_unless(
        &mut self,
        number: libc::c_long,
        (place, forbidden): (usize, Forbidden),
        refusal: u32,
    ) {
        let (test, value) = match forbidden {
            Forbidden::AnyBit(bits) => (JUMP_IF_ANY_BIT, bits),
            Forbidden::AtLeast(number) => (JUMP_IF_AT_LEAST, number),
        };
        // Supported machines are little-endian: the lower half comes first.
        self.0.extend([
            step(JUMP_IF_EQUAL, 0, 4, number as u32),
            load(ARGUMENTS + place * size_of::<u64>()),
            step(test, 0, 1, value),
            step(RETURN, 0, 0, refusal),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ]);
    }

    /// Applies `action` to all other calls and returns the filter.
    pub fn finish(mut self, action: u32) -> Vec<libc::sock_filter> {
        self.0.push(step(RETURN, 0, 0, action));
        self.0
    }
}

/// Installs the filter for this thread and everything it starts; they can gain no privileges from
/// then on. Returns the kernel's answer: 0, or the descriptor that `flags` request.
pub fn install(steps: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: steps.as_ptr().cast_mut(),
    };
    // SAFETY: prctl takes numbers only. `program` and `steps` live until the second call returns,
    // and the kernel only reads them.
    let answer = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Checks that the kernel, or a container's filter, lets this process install filters. Errors: the
/// kernel's answer.
pub fn try_out() -> io::Result<()> {
    let everything = Filter::new(libc::SECCOMP_RET_ALLOW).finish(libc::SECCOMP_RET_ALLOW);
    // The filter belongs to the thread that installs it and ends with that thread.
    let attempt = thread::Builder::new().spawn(move || install(&everything, 0).map(drop))?;
    attempt.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
