//! Control socket of the agent: it lies in the store directory and serves only the owner and root.
//!
//! Must stay true: the peer's user id is checked on every connection. A slow, silent or dead peer
//! delays no other peer. The length of a request and the number of connections are bounded.

use crate::agent::shared::{FileRequest, Shared, State, What};
use crate::model::drain_task::DrainTask;
use crate::model::error::{Error, Result};
use crate::model::job::AGENT_SOCKET;
use crate::model::log::{self, Level};
use crate::model::protocol::{Answer, LINE_BYTES_MAX, Progress, Request};
use cairn_job::file::path::FilePath;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, mpsc};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Interval at which the listener checks that the store still exists, milliseconds.
const ACCEPT_EVERY_MS: i64 = 500;
/// Maximum number of connections served at a time. Further connections are closed at once.
const CONNECTIONS_MAX: usize = 32;
/// Time a peer may take to send a request or to receive an answer.
const PEER_PATIENCE: Duration = Duration::from_secs(10);
/// Interval between progress messages.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of consecutive passes in which files changed while they were copied.
const PASSES_MAX: u32 = 10;

/// Bound socket of the agent.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// Returns a short path to the socket in `directory`, whatever the length of that path: addresses
/// of Unix sockets hold 107 bytes. The returned descriptor must stay open while the path is used.
pub fn short_socket_path(directory: &Path) -> Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())
        .map_err(Error::file("open", directory))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{AGENT_SOCKET}", opened.as_raw_fd()));
    Ok((opened, path))
}

impl Listener {
    /// Binds the socket of the store in `directory`. The caller holds the agent's lock, so an
    /// existing socket belongs to a dead agent and is removed.
    pub fn bind(directory: &Path) -> Result<Listener> {
        let path = directory.join(AGENT_SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::file("remove", &path)(error));
            }
            _ => {}
        }
        let (_directory, short_path) = short_socket_path(directory)?;
        let bind = || -> io::Result<UnixListener> {
            let socket = UnixListener::bind(&short_path)?;
            rustix::fs::chmod(&path, Mode::from_raw_mode(0o600))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = bind().map_err(Error::file("listen on", &path))?;
        Ok(Listener { socket, path })
    }

    /// Removes the socket. The caller must hold the agent's lock, and the store must exist;
    /// otherwise the socket of that name may belong to another agent.
    pub fn remove(self) {
        // The next agent removes a socket that stays behind.
        let _ = fs::remove_file(&self.path);
    }

    /// Accepts connections until the agent ends. Ends the agent when `is_removed` reports that the
    /// store is gone.
    pub fn serve(&self, shared: &Arc<Shared>, is_removed: &dyn Fn() -> bool) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: ACCEPT_EVERY_MS * 1_000_000 };
        while !shared.is_stopping() {
            if is_removed() {
                return shared.stop();
            }
            // `accept` tells what woke the thread.
            let mut polled = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(shared.stopped(), PollFlags::IN),
            ];
            let _ = rustix::event::poll(&mut polled, Some(&timeout));
            while let Ok((stream, _)) = self.socket.accept() {
                if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                    shared.connections.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let connection_shared = Arc::clone(shared);
                let spawned = thread::Builder::new().name("control".to_string()).spawn(move || {
                    let _end = connection_shared.end_if_panicking();
                    let _connection = Connection(&connection_shared);
                    // An error means that the peer hung up; it wants no answer.
                    let _ = talk(stream, &connection_shared);
                });
                if spawned.is_err() {
                    shared.connections.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// An open connection; its drop decrements the count of connections.
struct Connection<'a>(&'a Shared);

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// Answers the requests of one connection.
fn talk(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PEER_PATIENCE))?;
    stream.set_write_timeout(Some(PEER_PATIENCE))?;
    if !is_allowed(&stream) {
        let reason = "this store belongs to another user".to_string();
        return say(&stream, &Answer::Error { reason });
    }
    let mut lines = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = Vec::new();
        lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let request = serde_json::from_slice(&line);
        if let Ok(request) = &request {
            tell(request);
        }
        let answer = match request {
            Ok(Request::Status) => Answer::Status(Box::new(shared.status())),
            Ok(Request::Drain { settle_ms, told }) => {
                drain(&stream, shared, Duration::from_millis(settle_ms), told)?
            }
            Ok(Request::Ended { told }) => {
                shared.request(told);
                shared.notify();
                Answer::Done
            }
            Ok(Request::Evict { paths, force }) => run_errand(shared, paths, What::Evict { force }),
            Ok(Request::Distrust { paths }) => run_errand(shared, paths, What::Distrust),
            Ok(Request::Archive { newest }) => archive(&stream, shared, newest)?,
            Ok(Request::Hurry) => {
                shared.meter.pace.hurry();
                Answer::Done
            }
            Ok(Request::Stop) => {
                say(&stream, &Answer::Done)?;
                shared.stop();
                return Ok(());
            }
            Err(error) => Answer::Error { reason: format!("not a request: {error}") },
        };
        say(&stream, &answer)?;
    }
}

/// Logs a request, unless it only asks for the status.
fn tell(request: &Request) {
    let wish = match request {
        Request::Status => return,
        Request::Drain { .. } => "to drain",
        Request::Ended { .. } => "to drain by itself: the run has ended",
        Request::Evict { .. } => "to drop files from the store",
        Request::Distrust { .. } => "to make damaged copies again",
        Request::Archive { .. } => "to archive",
        Request::Hurry => "to make haste",
        Request::Stop => "to end",
    };
    log::say(Level::Debug, format_args!("the agent is asked {wish}"));
}

fn say(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Has the archive make a round and waits for its end, sending progress.
fn archive(stream: &UnixStream, shared: &Shared, newest: bool) -> io::Result<Answer> {
    if newest {
        // The newest checkpoint is known only after the passes requested earlier have ended.
        let asked = shared.state().requested;
        drop(follow_pass(stream, shared, asked)?);
    }
    let ticket = shared.archive.ask(newest);
    let mut state = shared.archive.state();
    while state.finished < ticket {
        if shared.is_stopping() {
            return Ok(Answer::Error { reason: "the agent is ending".to_string() });
        }
        let told = state.status.clone().unwrap_or_default();
        drop(state);
        let (bytes_total, bytes_done) = (told.sending_bytes, told.sent_bytes);
        say(
            stream,
            &Answer::Progress(Progress { bytes_total, bytes_done, ..Progress::default() }),
        )?;
        state = shared.archive.wait(shared.archive.state(), PROGRESS_EVERY);
    }
    drop(state);
    Ok(Answer::Archived { status: shared.archive.status() })
}

/// Hands a request about files to the drain thread and waits for the answer.
fn run_errand(shared: &Shared, paths: Vec<FilePath>, what: What) -> Answer {
    let (reply, answer) = mpsc::channel();
    shared.state().errands.push(FileRequest { paths, what, reply });
    shared.notify();
    match answer.recv() {
        Ok(Ok(())) => Answer::Done,
        Ok(Err(error)) => Answer::Error { reason: error.to_string() },
        Err(_) => Answer::Error { reason: "the agent is ending".to_string() },
    }
}

/// Requests passes until one finds no changed files or `PASSES_MAX` passes in a row found some.
/// Gives files that are still open the time `settle` to close.
fn drain(
    stream: &UnixStream,
    shared: &Shared,
    settle: Duration,
    told: DrainTask,
) -> io::Result<Answer> {
    let settled_at = Instant::now() + settle;
    let mut passes = 0;
    loop {
        let ticket = shared.request(told);
        shared.notify();
        let state = follow_pass(stream, shared, ticket)?;
        if let Some(reason) = state.trouble.clone() {
            return Ok(Answer::Error { reason });
        }
        let outcome = state.last.clone();
        drop(state);
        let waits_for_open = !outcome.open.is_empty() && Instant::now() < settled_at;
        passes = if outcome.changed > 0 { passes + 1 } else { 0 };
        // A program that rewrites a file again and again must not prolong the request for ever.
        let follows = outcome.changed > 0 && passes < PASSES_MAX;
        if !follows && !waits_for_open {
            return Ok(Answer::Drained(outcome));
        }
        thread::sleep(PROGRESS_EVERY);
    }
}

/// Waits for the end of the pass that answers request `ticket`, and sends progress. Returns the
/// state at that moment. Errors: `ConnectionAborted`, without an answer, if the agent is ending;
/// the client then starts another agent and repeats the request.
fn follow_pass<'a>(
    stream: &UnixStream,
    shared: &'a Shared,
    ticket: u64,
) -> io::Result<MutexGuard<'a, State>> {
    let mut state = shared.state();
    let mut reported = Instant::now();
    while state.finished < ticket {
        if shared.is_stopping() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        state = shared.wait(state, PROGRESS_EVERY);
        if state.finished < ticket && reported.elapsed() >= PROGRESS_EVERY {
            drop(state);
            say(stream, &Answer::Progress(shared.meter.progress()))?;
            reported = Instant::now();
            state = shared.state();
        }
    }
    Ok(state)
}
