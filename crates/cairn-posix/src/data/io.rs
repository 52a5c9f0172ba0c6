//! Reading and writing: plan, transfer, commit, until the whole request is served.
//!
//! Invariant: if a failure follows a success, the call returns the byte count of the success, as
//! POSIX asks. Nothing here allocates.
//!
//! Does not know where bytes are; the core plans, `transfer.rs` moves.

use cairn_core::{
    Caller, Committed, Error, HandleId, LeasedWrite, Position, ReadPlan, SMALL_BYTES_MAX, WritePlan,
};
use cairn_platform::sys;

use crate::data::transfer::{self, Buffers};
use crate::data::{read_ahead, space};
use crate::descriptors::description;
use crate::error::{Errno, Result};
use crate::mount::{self, Mount};
use crate::pages;
use crate::task::table;

/// Most bytes that one call transfers, as in Linux.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;
/// Most attempts at a plan that other processes keep invalidating.
const REPLANS_MAX: usize = 1000;

/// Position at which a call reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At the shared cursor, which moves.
    Cursor,
    /// At this offset.
    Offset(u64),
}

impl At {
    /// Converts an `off_t`. Errors: `EINVAL` if negative.
    pub fn offset(offset: i64) -> Result<At> {
        u64::try_from(offset).map(At::Offset).map_err(|_| Errno(libc::EINVAL))
    }

    fn after(self, done: usize) -> Position {
        match self {
            At::Cursor => Position::Cursor,
            At::Offset(offset) => Position::At(offset.saturating_add(done as u64)),
        }
    }
}

/// Reads into `buffers` and returns the number of bytes, 0 at the end of the file.
pub fn read(handle: HandleId, mut buffers: Buffers, at: At) -> Result<usize> {
    let mount = mount::current()?;
    let caller = mount.caller();
    let wanted = buffers.remaining().min(TRANSFER_BYTES_MAX);
    let mut plan = ReadPlan::empty();
    let mut done = 0;
    loop {
        let left = (wanted - done) as u64;
        let planned = mount.fs().plan_read_into(&caller, handle, at.after(done), left, &mut plan);
        let moved = planned
            .map_err(Errno::from)
            .and_then(|()| read_planned(mount, &caller, (handle, at), &mut buffers, &mut plan));
        match moved {
            Ok(bytes) => {
                done += bytes;
                if bytes == 0 || done == wanted {
                    return if done == 0 { at_end(mount, handle, at, wanted) } else { Ok(done) };
                }
            }
            Err(_) if done > 0 => return Ok(done),
            // Even for a directory the check of the offset comes first.
            Err(Errno(libc::EISDIR)) => {
                return at_end(mount, handle, at, wanted).and(Err(Errno(libc::EISDIR)));
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns the result of a read that got nothing. Errors: `EINVAL` if no file can reach so far.
#[cold]
fn at_end(mount: &Mount, handle: HandleId, at: At, wanted: usize) -> Result<usize> {
    let offset = match at {
        At::Cursor => mount.fs().handle(handle)?.cursor,
        At::Offset(offset) => offset,
    };
    match offset.checked_add(wanted as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(0),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Transfers one plan to its end, where the cursor already is. A plan that was made again, because
/// blocks moved, may reach less far. Then further plans cover the rest, and bytes that cannot be
/// read are left to the next read.
fn read_planned(
    mount: &Mount,
    caller: &Caller,
    (handle, at): (HandleId, At),
    buffers: &mut Buffers,
    plan: &mut ReadPlan,
) -> Result<usize> {
    read_ahead::follow(mount, caller, handle, plan);
    let (start, end) = (plan.offset, plan.offset + plan.length);
    let mut reached = start;
    let failed = loop {
        match read_as_planned(mount, caller, (handle, at), buffers, plan) {
            Ok(bytes) => reached += bytes,
            Err(errno) => break Some(errno),
        }
        if reached >= end || plan.length == 0 {
            break None;
        }
        let (rest, length) = (Position::Again(reached), end - reached);
        if let Err(error) = mount.fs().plan_read_into(caller, handle, rest, length, plan) {
            break Some(error.into());
        }
    };
    if reached < end && at == At::Cursor {
        mount.fs().step_back(handle, end, reached)?;
    }
    match failed {
        Some(errno) if reached == start => Err(errno),
        _ => Ok((reached - start) as usize),
    }
}

/// Transfers one plan. Plans again at the same offset while blocks move.
fn read_as_planned(
    mount: &Mount,
    caller: &Caller,
    (handle, at): (HandleId, At),
    buffers: &mut Buffers,
    plan: &mut ReadPlan,
) -> Result<u64> {
    for _ in 0..REPLANS_MAX {
        if plan.length == 0 {
            return Ok(0);
        }
        let mut target = *buffers;
        if let Err(errno) = transfer::read(mount, plan, &mut target) {
            shorten(mount, caller, (handle, at), plan, (buffers, errno))?;
            continue;
        }
        if mount.fs().read_is_valid(plan) {
            mount.fs().note_read(plan);
            *buffers = target;
            return Ok(plan.length);
        }
        let (again, length) = (Position::Again(plan.offset), plan.length);
        mount.fs().plan_read_into(caller, handle, again, length, plan)?;
    }
    Err(Errno(libc::EIO))
}

/// Shortens a plan that failed to the part that the buffers can take, and moves the cursor back
/// with it. Errors: `EFAULT` if the buffers can take nothing; the plan's own error if the buffers
/// are not the cause.
#[cold]
fn shorten(
    mount: &Mount,
    caller: &Caller,
    (handle, at): (HandleId, At),
    plan: &mut ReadPlan,
    (buffers, errno): (&Buffers, Errno),
) -> Result<()> {
    if errno != Errno(libc::EFAULT) {
        return Err(errno);
    }
    let length = buffers.overwritable(plan.length as usize) as u64;
    if length == plan.length {
        // The buffers are writable, so the tier's memory failed.
        return Err(Errno(libc::EIO));
    }
    if at == At::Cursor {
        mount.fs().step_back(handle, plan.offset + plan.length, plan.offset + length)?;
    }
    if length == 0 {
        return Err(Errno(libc::EFAULT));
    }
    Ok(mount.fs().plan_read_into(caller, handle, Position::Again(plan.offset), length, plan)?)
}

/// Writes from `buffers`. Errors: as `write(2)`; `EDEADLK` from a signal handler that interrupted a
/// call of ours.
pub fn write(handle: HandleId, buffers: Buffers, at: At) -> Result<usize> {
    write_for(Some(handle), handle, buffers, at)
}

/// As `write`. If there is no space or a tier fails, records through `owner` that bytes are
/// missing.
fn write_for(
    owner: Option<HandleId>,
    handle: HandleId,
    mut buffers: Buffers,
    at: At,
) -> Result<usize> {
    let mut most = TRANSFER_BYTES_MAX;
    let written = loop {
        let written = write_bytes(owner, handle, &mut buffers, at, most);
        let failed = match written {
            Ok(written) => break written,
            Err(Errno(libc::EFAULT)) => match readable(handle, &buffers, most) {
                Ok(fewer) => {
                    most = fewer;
                    continue;
                }
                Err(failed) => failed,
            },
            Err(failed) => failed,
        };
        if leaves_refused_write(failed) {
            note_refused_write(owner, handle, at.after(0))?;
        }
        return Err(failed);
    };
    pages::follow_handle(handle);
    Ok(written)
}

/// Appends to the file, wherever the cursor is and however the file was opened (`RWF_APPEND`). If
/// `moves`, the cursor moves behind the written bytes. Errors: as `write`.
pub fn append(handle: HandleId, buffers: Buffers, moves: bool) -> Result<usize> {
    let (mount, info) = (mount::current()?, description::opened(handle)?);
    if !info.write {
        return Err(Errno(libc::EBADF));
    }
    description::opened_once_more(mount, info.inode, true, |own| {
        let written = write_for(Some(handle), own, buffers, At::Cursor)?;
        mount.fs().forget_refused_write(handle)?;
        if moves && written > 0 {
            let end = i64::try_from(mount.fs().handle(own)?.cursor);
            description::seek(handle, end.map_err(|_| Errno(libc::EFBIG))?, libc::SEEK_SET)?;
        }
        Ok(written)
    })
}

/// Appends through `handle` itself, which was opened for writing. The cursor stays where it is. The
/// buffers are memory of this process. Errors: as `write`.
pub fn write_at_end(handle: HandleId, mut buffers: Buffers) -> Result<usize> {
    let mount = mount::current()?;
    let caller = mount.caller();
    let request = Request { mount, caller: &caller, handle };
    let (wanted, mut done) = (buffers.remaining(), 0);
    while done < wanted {
        match request.write_slice(&mut buffers, Position::End, (wanted - done) as u64) {
            Ok(bytes) => done += bytes,
            Err(failed) => {
                if leaves_refused_write(failed) {
                    note_refused_write(Some(handle), handle, Position::End)?;
                }
                if done == 0 {
                    return Err(failed);
                }
                break;
            }
        }
    }
    pages::follow_handle(handle);
    Ok(done)
}

/// Returns how many bytes can be written when some of the first `most` are not readable. Errors:
/// `EFAULT` for none, `EBADF`.
#[cold]
fn readable(handle: HandleId, buffers: &Buffers, most: usize) -> Result<usize> {
    let wanted = buffers.remaining().min(most);
    match buffers.readable(wanted) {
        0 if !mount::current()?.fs().handle(handle)?.write => Err(Errno(libc::EBADF)),
        0 => Err(Errno(libc::EFAULT)),
        // The buffers are readable, so the tier's memory failed.
        readable if readable == wanted => Err(Errno(libc::EIO)),
        readable => Ok(readable),
    }
}

/// Writes at most `most` bytes. After a failure the buffers are as before.
#[inline]
fn write_bytes(
    owner: Option<HandleId>,
    handle: HandleId,
    buffers: &mut Buffers,
    at: At,
    most: usize,
) -> Result<usize> {
    buffers.prefetch();
    let mount = mount::current()?;
    let caller = mount.caller();
    let wanted = buffers.remaining().min(most);
    if wanted == 0 {
        return match mount.fs().handle(handle)?.write {
            true => Ok(0),
            false => Err(Errno(libc::EBADF)),
        };
    }
    let wanted = match mount.file_size_limit() {
        u64::MAX => wanted,
        limit => within_limit(mount, handle, at, wanted, limit)?,
    };
    let request = Request { mount, caller: &caller, handle };
    if at == At::Cursor {
        if let Some(write) = mount.fs().begin_leased(&caller, handle, wanted as u64) {
            return request.write_leased(write, buffers);
        }
    }
    if at == At::Cursor && wanted <= SMALL_BYTES_MAX {
        let small = transfer::write_small(mount, &caller, handle, buffers, wanted);
        if small? {
            return Ok(wanted);
        }
    }
    if let At::Offset(offset) = at {
        if wanted <= SMALL_BYTES_MAX
            && transfer::overwrite_small(mount, &caller, handle, offset, buffers, wanted)?
        {
            table::mark_unsealed(handle);
            return Ok(wanted);
        }
    }
    let mut done = 0;
    while done < wanted {
        match request.write_slice(buffers, at.after(done), (wanted - done) as u64) {
            Ok(bytes) => done += bytes,
            Err(failed) if done > 0 => {
                if leaves_refused_write(failed) {
                    note_refused_write(owner, handle, at.after(done))?;
                }
                break;
            }
            Err(failed) => return Err(failed),
        }
    }
    Ok(done)
}

/// Whether a failed write leaves bytes missing in the file: the tier has no space, or it failed.
fn leaves_refused_write(failed: Errno) -> bool {
    matches!(failed, Errno(libc::ENOSPC | libc::EIO))
}

/// Records that a write through `handle` at `at` found no space, or a tier that failed.
#[cold]
fn note_refused_write(owner: Option<HandleId>, handle: HandleId, at: Position) -> Result<()> {
    let (Some(owner), mount) = (owner, mount::current()?) else { return Ok(()) };
    let offset = match at {
        Position::At(offset) | Position::Again(offset) => offset,
        Position::Cursor => mount.fs().handle(handle)?.cursor,
        Position::End => mount.fs().attributes(mount.inode_of(handle)?)?.size,
    };
    Ok(mount.fs().note_refused_write(owner, offset)?)
}

/// Returns how many of the `wanted` bytes the process's file size limit allows. Errors: `EFBIG`,
/// and sends the signal that goes with it.
#[cold]
fn within_limit(
    mount: &Mount,
    handle: HandleId,
    at: At,
    wanted: usize,
    limit: u64,
) -> Result<usize> {
    let info = mount.fs().handle(handle)?;
    let offset = match at {
        _ if info.append => mount.fs().attributes(info.inode)?.size,
        At::Cursor => info.cursor,
        At::Offset(offset) => offset,
    };
    match limit.saturating_sub(offset) {
        0 => Err(too_large()),
        left => Ok(usize::try_from(left).map_or(wanted, |left| wanted.min(left))),
    }
}

/// Signals the process that a file would exceed its limit, as the kernel does, and returns `EFBIG`.
#[cold]
pub(crate) fn too_large() -> Errno {
    // A process that ignores or blocks the signal sees only the error.
    let _ = sys::tgkill(sys::getpid(), sys::gettid(), libc::SIGXFSZ);
    Errno(libc::EFBIG)
}

/// Writes one zero byte at `offset`.
pub(crate) fn write_zero(handle: HandleId, offset: u64) -> Result<()> {
    let zero = 0_u8;
    let entry =
        libc::iovec { iov_base: (&raw const zero).cast_mut().cast(), iov_len: size_of_val(&zero) };
    // SAFETY: the entry describes the local, which writing only reads.
    write_for(None, handle, unsafe { Buffers::one(&entry) }, At::Offset(offset)).map(drop)
}

/// Writes zeros to `offset..end`.
pub(crate) fn write_zeros(handle: HandleId, offset: u64, end: u64) -> Result<()> {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let mut at = offset;
    while at < end {
        let length = (end - at).min(ZEROS.len() as u64) as usize;
        let entry = libc::iovec { iov_base: ZEROS.as_ptr().cast_mut().cast(), iov_len: length };
        // SAFETY: the entry describes a part of the static, which writing only reads.
        at += write_for(None, handle, unsafe { Buffers::one(&entry) }, At::Offset(at))? as u64;
    }
    Ok(())
}

/// A write in progress.
struct Request<'a> {
    mount: &'a Mount,
    caller: &'a Caller,
    handle: HandleId,
}

impl Request<'_> {
    /// Writes the range of one plan, with several plans if other processes interfere.
    fn write_slice(&self, buffers: &mut Buffers, at: Position, length: u64) -> Result<usize> {
        let planned = match self.plan(at, length) {
            Err(Errno(libc::ENOSPC)) => space::wait(self.mount, || self.plan(at, length)),
            planned => planned,
        };
        self.write_planned(planned?, buffers)
    }

    /// Writes what was begun under a lease.
    fn write_leased(&self, write: LeasedWrite, buffers: &mut Buffers) -> Result<usize> {
        let fs = self.mount.fs();
        let piece = write.piece();
        let moved = self.mount.namespace().store_leased(&piece, &mut { *buffers });
        match moved {
            Ok(term) if fs.publish_leased(self.caller, &write, term) => Ok(piece.length as usize),
            Ok(_) => self.write_planned(write.into_plan(), buffers),
            Err(errno) => {
                if !fs.withdraw_leased(&write) {
                    // The plan is abandoned at the latest when the process ends.
                    let _ = fs.abort_write(self.caller, &write.into_plan());
                }
                Err(errno.into())
            }
        }
    }

    fn write_planned(&self, mut plan: WritePlan, buffers: &mut Buffers) -> Result<usize> {
        let start = plan.offset;
        let end = start + plan.length;
        let mut reached = start;
        for _ in 0..REPLANS_MAX {
            let moved = self.transfer(&mut plan, buffers);
            if moved == Ok(Committed::Done) {
                reached = plan.offset + plan.length;
            }
            if reached == end {
                return Ok((end - start) as usize);
            }
            let again = moved.and_then(|_| self.plan(Position::Again(reached), end - reached));
            match again {
                Ok(next) => plan = next,
                Err(errno) => return self.give_up(&plan, start, reached, errno),
            }
        }
        self.give_up(&plan, start, reached, Errno(libc::EIO))
    }

    /// Ends a slice of which only the part up to `reached` is in the file. Returns the length of
    /// that part, or the error if it is empty.
    fn give_up(&self, plan: &WritePlan, start: u64, reached: u64, errno: Errno) -> Result<usize> {
        // An append that was to be planned again holds its place in the file until it is aborted.
        let _ = self.mount.fs().abort_write(self.caller, plan);
        match reached > start {
            true => Ok((reached - start) as usize),
            false => Err(errno),
        }
    }

    fn plan(&self, at: Position, length: u64) -> Result<WritePlan> {
        let plan = || self.mount.fs().plan_write(self.caller, self.handle, at, length);
        for _ in 0..REPLANS_MAX {
            match self.mount.retry_while_busy(plan) {
                Err(Error::Unsettled) => self.mount.settle(self.mount.inode_of(self.handle)?)?,
                result => return result.map_err(Errno::from),
            }
        }
        Err(Error::Busy.into())
    }

    /// Moves and commits one plan. `buffers` advance only if it became part of the file.
    fn transfer(&self, plan: &mut WritePlan, buffers: &mut Buffers) -> Result<Committed> {
        let mut source = *buffers;
        let moved = self.mount.namespace().store(plan, &mut source);
        let fs = self.mount.fs();
        let overwrote = moved.inspect_err(|_| {
            // The plan is abandoned at the latest when the process ends.
            let _ = fs.abort_write(self.caller, plan);
        })?;
        if overwrote {
            table::mark_unsealed(self.handle);
        }
        let committed = fs.commit_write(self.caller, plan)?;
        if committed == Committed::Done {
            *buffers = source;
        }
        Ok(committed)
    }
}
