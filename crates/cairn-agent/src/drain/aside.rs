//! Reads and writes large files in a second thread: while one part travels to or from the device,
//! the caller checks another.
//!
//! Must stay true: at most one call is under way, and its memory belongs to it alone. A caller gets
//! the result of a call before it begins the next one. Files of a single part are read and written
//! in place, without a thread.
//!
//! Does not look at the bytes.

use cairn_platform::direct::{Aligned, Direct};
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope};

/// Name of the threads. They inherit the priority of the thread that starts them.
const THREAD: &str = "copy-aside";

/// A read or write of the file.
struct Call {
    act: Act,
    memory: Aligned,
    length: usize,
    offset: u64,
}

#[derive(Clone, Copy)]
enum Act {
    Read,
    Write,
}

/// Memory and result of a finished call.
type Done = (Aligned, io::Result<usize>);

/// An open file, read and written in another thread if it is large.
pub struct Aside<'a> {
    place: Place<'a>,
    /// Result of a call made in this thread, not collected yet.
    done: Option<Done>,
    /// Whether the thread has a call under way.
    is_busy: bool,
    /// Memory of the last call, for reuse.
    spare: Aligned,
}

enum Place<'a> {
    Here(Direct<'a>),
    Thread(SyncSender<Call>, Receiver<Done>),
}

impl<'a> Aside<'a> {
    /// Opens `file`, which has or will have `bytes` and is used in parts of `part_bytes`. Works in
    /// this thread if the file is a single part, or if no thread can be started.
    pub fn new<'scope>(
        scope: &'scope Scope<'scope, 'a>,
        file: &'a File,
        bytes: u64,
        part_bytes: u64,
    ) -> Aside<'a> {
        let in_thread = || {
            let (calls, ends) = (sync_channel(0), sync_channel(1));
            let work = move || serve(Direct::new(file, bytes), calls.1, ends.0);
            Builder::new().name(THREAD.to_string()).spawn_scoped(scope, work).ok()?;
            Some(Place::Thread(calls.0, ends.1))
        };
        let place = if bytes > part_bytes { in_thread() } else { None };
        let place = place.unwrap_or_else(|| Place::Here(Direct::new(file, bytes)));
        Aside { place, done: None, is_busy: false, spare: Aligned::default() }
    }

    /// Begins to write `length` bytes of `memory` at `offset`. With a thread, `memory` is exchanged
    /// for other memory of the same length and undefined content. Errors: those of the call before;
    /// without a thread, those of this call.
    pub fn write(&mut self, memory: &mut Aligned, length: usize, offset: u64) -> io::Result<()> {
        self.settle()?;
        if let Place::Here(direct) = &mut self.place {
            // Thousands of small files take this path, and none needs memory of its own.
            return direct.write_all_at(&memory[..length], offset);
        }
        self.spare.grow(memory.len());
        let memory = std::mem::replace(memory, std::mem::take(&mut self.spare));
        self.begin(Call { act: Act::Write, memory, length, offset })
    }

    /// Begins to read into `memory` from `offset`; `finish_read` returns the result. Errors: those
    /// of the call before.
    pub fn read(&mut self, memory: Aligned, offset: u64) -> io::Result<()> {
        self.settle()?;
        let length = memory.len();
        self.begin(Call { act: Act::Read, memory, length, offset })
    }

    /// Waits for the read; returns its memory and the number of bytes read, 0 at the end of the
    /// file. Errors: those of the read.
    pub fn finish_read(&mut self) -> io::Result<(Aligned, usize)> {
        let (memory, result) = self.wait()?.ok_or_else(nothing)?;
        Ok((memory, result?))
    }

    /// Waits for the call under way, if any. Errors: those of that call.
    pub fn settle(&mut self) -> io::Result<()> {
        let Some((memory, result)) = self.wait()? else { return Ok(()) };
        self.spare = memory;
        result.map(drop)
    }

    fn begin(&mut self, call: Call) -> io::Result<()> {
        match &mut self.place {
            Place::Here(direct) => self.done = Some(carry_out(direct, call)),
            Place::Thread(calls, _) => {
                calls.send(call).map_err(|_| nothing())?;
                self.is_busy = true;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Option<Done>> {
        match &self.place {
            Place::Thread(_, ends) if std::mem::take(&mut self.is_busy) => {
                ends.recv().map(Some).map_err(|_| nothing())
            }
            _ => Ok(self.done.take()),
        }
    }
}

/// Error if the thread has ended without an answer.
fn nothing() -> io::Error {
    io::Error::other("the thread that reads and writes has ended")
}

fn serve(mut direct: Direct<'_>, calls: Receiver<Call>, ends: SyncSender<Done>) {
    for call in calls {
        if ends.send(carry_out(&mut direct, call)).is_err() {
            return;
        }
    }
}

fn carry_out(direct: &mut Direct<'_>, call: Call) -> Done {
    let Call { act, mut memory, length, offset } = call;
    let result = match act {
        Act::Write => direct.write_all_at(&memory[..length], offset).map(|()| length),
        Act::Read => loop {
            match direct.read_at(&mut memory[..length], offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => break done,
            }
        },
    };
    (memory, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const PART: usize = 64 << 10;

    fn temporary(name: &str) -> (File, std::path::PathBuf) {
        let name = format!("cairn-aside-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        (file.expect("is made"), path)
    }

    fn part(number: usize) -> Aligned {
        let mut memory = Aligned::default();
        memory.grow(PART);
        memory.fill(number as u8 + 1);
        memory
    }

    #[test]
    fn parts_arrive_and_come_back_whether_there_is_a_thread_or_none() {
        for parts in [1, 9] {
            let (file, path) = temporary("both");
            thread::scope(|scope| {
                let mut aside = Aside::new(scope, &file, (parts * PART) as u64, PART as u64);
                assert_eq!(matches!(aside.place, Place::Thread(..)), parts > 1);
                let mut memory = part(0);
                for number in 0..parts {
                    memory.fill(number as u8 + 1);
                    aside.write(&mut memory, PART, (number * PART) as u64).expect("begins");
                    assert_eq!(memory.len(), PART);
                }
                aside.settle().expect("is written");
                for number in 0..parts {
                    aside.read(part(99), (number * PART) as u64).expect("begins");
                    let (found, length) = aside.finish_read().expect("is read");
                    assert!(length == PART && found[..] == part(number)[..]);
                }
                aside.read(part(99), (parts * PART) as u64).expect("begins");
                assert_eq!(aside.finish_read().expect("is read").1, 0);
            });
            std::fs::remove_file(path).expect("is there");
        }
    }

    #[test]
    fn error_of_a_call_is_that_of_the_next_or_of_who_waits() {
        for parts in [1, 9] {
            let (file, path) = temporary("error");
            drop(file);
            let file = File::open(&path).expect("is there");
            thread::scope(|scope| {
                let mut aside = Aside::new(scope, &file, (parts * PART) as u64, PART as u64);
                let refused = |result: io::Result<()>| {
                    assert_eq!(
                        result.expect_err("may not write").raw_os_error(),
                        Some(libc::EBADF)
                    );
                };
                let mut memory = part(0);
                if parts > 1 {
                    aside.write(&mut memory, PART, 0).expect("begins");
                }
                refused(aside.write(&mut memory, PART, 0));
                if parts > 1 {
                    aside.write(&mut memory, PART, 0).expect("begins");
                    refused(aside.settle());
                }
                aside.settle().expect("was told");
                assert_eq!(
                    aside.spare.is_empty(),
                    parts == 1,
                    "memory only where there is a thread"
                );
            });
            std::fs::remove_file(path).expect("is there");
        }
    }
}
