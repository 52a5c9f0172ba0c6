//! Copies between descriptors where the kernel cannot: `copy_file_range` and `sendfile` with a file
//! of ours.
//!
//! The bytes go through a small buffer on the stack.
//!
//! Invariant: bytes that were read but could not be written are given back to the source's cursor.

pub mod check;

use crate::descriptors::description;
use cairn_core::HandleId;
use cairn_platform::sys;

use crate::data::io::{self, At};
use crate::data::transfer::Buffers;
use crate::error::Result;
use crate::kernel;
use crate::kernel::gate;

/// Bytes moved at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Most bytes that one call copies, so that it stays interruptible.
const CALL_BYTES_MAX: usize = 16 << 20;

/// One side of a copy.
#[derive(Clone, Copy)]
pub enum End {
    /// A file of ours.
    Ours(HandleId),
    /// A descriptor of the kernel.
    Kernel(i32),
}

/// Copies up to `length` bytes. Uses and advances an offset that is given instead of the cursor.
/// Returns the number of bytes copied; 0 at the end of the source.
pub fn copy(
    source: End,
    mut source_offset: Option<&mut i64>,
    target: End,
    mut target_offset: Option<&mut i64>,
    length: usize,
) -> Result<usize> {
    let mut piece = [0_u8; PIECE_BYTES];
    let wanted = length.min(CALL_BYTES_MAX);
    let mut done = 0;
    while done < wanted {
        let most = (wanted - done).min(PIECE_BYTES);
        let moved =
            read(source, source_offset.as_deref_mut(), &mut piece[..most]).and_then(|got| {
                let put = write(target, target_offset.as_deref_mut(), &piece[..got]);
                let unused = got - *put.as_ref().unwrap_or(&0);
                if unused > 0 {
                    give_back(source, source_offset.as_deref_mut(), unused)?;
                }
                put.map(|put| (got, put))
            });
        match moved {
            Ok((got, put)) => {
                done += put;
                if got < most || put < got {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

fn advance(offset: &mut i64, bytes: usize) {
    *offset = offset.saturating_add(bytes as i64);
}

fn read(source: End, offset: Option<&mut i64>, target: &mut [u8]) -> Result<usize> {
    let buffer = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let at = offset.as_deref().map_or(Ok(At::Cursor), |offset| At::offset(*offset))?;
    let got = match (source, at) {
        // SAFETY: the buffer is the exclusive slice `target`.
        (End::Ours(handle), at) => io::read(handle, unsafe { Buffers::one(&buffer) }, at)?,
        (End::Kernel(descriptor), At::Cursor) => gate::outside(|| sys::read(descriptor, target))?,
        (End::Kernel(descriptor), At::Offset(at)) => {
            // SAFETY: `target` is an exclusive slice of that length, not read during the call.
            unsafe { sys::pread_raw(descriptor, target.as_mut_ptr(), target.len(), at) }?
        }
    };
    if let Some(offset) = offset {
        advance(offset, got);
    }
    Ok(got)
}

fn write(target: End, offset: Option<&mut i64>, source: &[u8]) -> Result<usize> {
    if source.is_empty() {
        return Ok(0);
    }
    let buffer = libc::iovec { iov_base: source.as_ptr().cast_mut().cast(), iov_len: source.len() };
    let at = offset.as_deref().map_or(Ok(At::Cursor), |offset| At::offset(*offset))?;
    let put = match (target, at) {
        // SAFETY: the buffer is the slice `source`, which writing only reads.
        (End::Ours(handle), at) => io::write(handle, unsafe { Buffers::one(&buffer) }, at)?,
        (End::Kernel(descriptor), At::Cursor) => gate::outside(|| sys::write(descriptor, source))?,
        (End::Kernel(descriptor), At::Offset(at)) => {
            // SAFETY: the kernel reads the slice `source`.
            unsafe { sys::pwrite_raw(descriptor, source.as_ptr(), source.len(), at) }?
        }
    };
    if let Some(offset) = offset {
        advance(offset, put);
    }
    Ok(put)
}

fn give_back(source: End, offset: Option<&mut i64>, bytes: usize) -> Result<()> {
    let back = -(bytes as i64);
    match (source, offset) {
        (_, Some(offset)) => {
            *offset += back;
            Ok(())
        }
        (End::Ours(handle), None) => description::seek(handle, back, libc::SEEK_CUR).map(drop),
        (End::Kernel(descriptor), None) => {
            kernel::lseek(descriptor, back, libc::SEEK_CUR).map(drop)
        }
    }
}

/// Copies a whole file of ours to an anonymous file of the kernel, which stays open across an exec.
/// Returns its descriptor.
pub fn to_memory(handle: HandleId) -> Result<i32> {
    let memory = kernel::memfd_create_executable(c"cairn")?;
    let mut offset = 0;
    loop {
        match copy(End::Ours(handle), Some(&mut offset), End::Kernel(memory), None, CALL_BYTES_MAX)
        {
            Ok(0) => return Ok(memory),
            Ok(_) => {}
            Err(errno) => {
                let _ = sys::close(memory);
                return Err(errno);
            }
        }
    }
}

/// Returns the offset that was given, or else the cursor of an end.
pub fn position(end: End, offset: Option<&i64>) -> Result<i64> {
    match (offset, end) {
        (Some(offset), _) => Ok(*offset),
        (None, End::Ours(handle)) => description::seek(handle, 0, libc::SEEK_CUR),
        // A descriptor that cannot seek is refused later for its kind.
        (None, End::Kernel(descriptor)) => {
            Ok(kernel::lseek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as i64)
        }
    }
}
