//! Client of an agent's control socket. Starts an agent if none runs.

use crate::agent::control::short_socket_path;
use crate::model::archive::ArchiveStatus;
use crate::model::drain_task::DrainTask;
use crate::model::error::{Error, Result};
use crate::model::holder::Holder;
use crate::model::protocol::{Answer, LINE_BYTES_MAX, Outcome, Progress, Request, Status};
use cairn_job::file::path::FilePath;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for starting agents that end before they accept a request.
const START_PATIENCE: Duration = Duration::from_secs(30);
const START_EVERY: Duration = Duration::from_millis(5);
/// Time an agent may stay silent during a request.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);
/// Interval at which the client checks whether the agent's process is stopped.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Number of such looks that may find the process stopped before it counts as stopped.
const STOPPED_LOOKS_MAX: u32 = 3;

/// Connection to an agent.
pub struct Client {
    store: PathBuf,
    lines: BufReader<UnixStream>,
    /// Time the agent may stay silent.
    patience: Duration,
}

/// Whether an agent answers on the socket of the store in `directory`.
pub fn is_answering(directory: &Path) -> bool {
    Client::connect(directory).is_some_and(|mut client| client.status().is_ok())
}

impl Client {
    /// Connects to the agent of the store in `directory`. Returns None if there is none.
    pub fn connect(directory: &Path) -> Option<Client> {
        Client::connect_within(directory, ANSWER_PATIENCE)
    }

    /// Connects like [`Client::connect`]. `patience` is the time the agent may stay silent during a
    /// request.
    pub fn connect_within(directory: &Path, patience: Duration) -> Option<Client> {
        let (_directory, path) = short_socket_path(directory).ok()?;
        let stream = UnixStream::connect(path).ok()?;
        stream.set_read_timeout(Some(patience.min(LOOK_EVERY))).ok()?;
        let (store, lines) = (directory.to_path_buf(), BufReader::new(stream));
        Some(Client { store, lines, patience })
    }

    /// Connects to the agent of the store in `directory`. Starts one with `program agent --store
    /// DIR` if necessary.
    pub fn reach(directory: &Path, program: &Path) -> Result<Client> {
        Client::reach_within(directory, program, START_PATIENCE)
    }

    fn reach_within(directory: &Path, program: &Path, patience: Duration) -> Result<Client> {
        let started = Instant::now();
        loop {
            if let Some(mut client) = Client::connect(directory) {
                // An agent that is ending accepts the connection and hangs up.
                match client.ask(&Request::Status, &mut |_| (), true) {
                    Ok(_) => return Ok(client),
                    Err(stopped @ Error::AgentStopped { .. }) => return Err(stopped),
                    Err(_) => {}
                }
            }
            start(directory, program)?;
            // The agent has reported that it is ready, so it is tried before the time limit is
            // checked.
            if let Some(client) = Client::connect(directory) {
                return Ok(client);
            }
            if started.elapsed() > patience {
                let reason = "it does not answer; see agent.log there".to_string();
                return Err(Error::AgentStart { store: directory.to_path_buf(), reason });
            }
            thread::sleep(START_EVERY);
        }
    }

    /// Returns the agent's status.
    pub fn status(&mut self) -> Result<Status> {
        match self.ask(&Request::Status, &mut |_| (), false)? {
            Answer::Status(status) => Ok(*status),
            other => Err(self.unexpected(other)),
        }
    }

    /// Drains all closed files. `progress` is called with each progress message.
    pub fn drain(
        &mut self,
        settle: Duration,
        told: DrainTask,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Outcome> {
        let request = Request::Drain { settle_ms: settle.as_millis() as u64, told };
        match self.ask(&request, progress, true)? {
            Answer::Drained(outcome) => Ok(outcome),
            other => Err(self.unexpected(other)),
        }
    }

    /// Reports how the run ended. The agent drains in the background.
    pub fn tell_end(&mut self, told: DrainTask) -> Result<()> {
        match self.ask(&Request::Ended { told }, &mut |_| (), true)? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Archives the checkpoints that the policy selects, and the newest of each family if `newest`
    /// is set. Returns the status of the archive, or None if the job archives nothing.
    pub fn archive(
        &mut self,
        newest: bool,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Option<ArchiveStatus>> {
        match self.ask(&Request::Archive { newest }, progress, true)? {
            Answer::Archived { status } => Ok(status),
            other => Err(self.unexpected(other)),
        }
    }

    /// Drops files from the store. Their drained copies stay. With `force`, also drops files that
    /// are not drained.
    pub fn evict(&mut self, paths: Vec<FilePath>, force: bool) -> Result<()> {
        match self.ask(&Request::Evict { paths, force }, &mut |_| (), true)? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Reports that the copies of these files are damaged. The agent makes them again.
    pub fn distrust(&mut self, paths: Vec<FilePath>) -> Result<()> {
        match self.ask(&Request::Distrust { paths }, &mut |_| (), true)? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Tells the agent that time is short: it ignores the rate limit and drains the newest files
    /// first.
    pub fn hurry(&mut self) -> Result<()> {
        match self.ask(&Request::Hurry, &mut |_| (), true)? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Ends the agent.
    pub fn stop(&mut self) -> Result<()> {
        match self.ask(&Request::Stop, &mut |_| (), true)? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Sends a request and returns its final answer. If the agent's process is stopped and `wakes`
    /// is set, it gets a SIGCONT.
    fn ask(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(&Progress),
        wakes: bool,
    ) -> Result<Answer> {
        let mut line = serde_json::to_vec(request)
            .map_err(|source| Error::Json { path: self.store.clone(), source })?;
        line.push(b'\n');
        let sent = self.lines.get_mut().write_all(&line);
        sent.map_err(|error| self.answer_error(format!("does not take requests: {error}")))?;
        loop {
            let line = self.hear(wakes)?;
            if line.is_empty() {
                return Err(self.answer_error("ended before it answered".to_string()));
            }
            let answer = serde_json::from_slice(&line)
                .map_err(|error| self.answer_error(format!("answers nonsense: {error}")))?;
            match answer {
                Answer::Progress(so_far) => progress(&so_far),
                Answer::Error { reason } => return Err(Error::AgentRefused { reason }),
                answer => return Ok(answer),
            }
        }
    }

    /// Returns the agent's next line. If its process is stopped and `wakes` is set, it gets a
    /// SIGCONT. Errors: `AgentStopped` if it stays stopped; `AgentAnswer` if it is silent for too
    /// long.
    fn hear(&mut self, wakes: bool) -> Result<Vec<u8>> {
        let (mut line, started, mut stopped) = (Vec::new(), Instant::now(), 0);
        loop {
            let left = LINE_BYTES_MAX.saturating_sub(line.len() as u64);
            let error = match self.lines.by_ref().take(left).read_until(b'\n', &mut line) {
                Ok(_) => return Ok(line),
                Err(error) => error,
            };
            let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            let process = rustix::net::sockopt::socket_peercred(self.lines.get_ref());
            let process = process.ok().map(|peer| peer.pid).filter(|_| is_late);
            let holder = process.map(|process| Holder::look(process.as_raw_nonzero().get() as u32));
            if let (Some(process), Some(true)) = (process, holder.as_ref().map(Holder::is_stopped))
            {
                stopped += 1;
                if stopped > STOPPED_LOOKS_MAX || !wakes && stopped > 1 {
                    return Err(Error::AgentStopped { pid: process.as_raw_nonzero().get() as u32 });
                }
                if wakes {
                    // A missing permission shows at the check above.
                    let _ = rustix::process::kill_process(process, rustix::process::Signal::CONT);
                }
            }
            if !is_late || started.elapsed() >= self.patience {
                return Err(self.answer_error(format!("does not answer: {error}")));
            }
        }
    }

    fn unexpected(&self, answer: Answer) -> Error {
        self.answer_error(format!("answers something else: {answer:?}"))
    }

    fn answer_error(&self, what: String) -> Error {
        Error::AgentAnswer { store: self.store.clone(), what }
    }
}

/// Starts an agent and waits until it is ready.
fn start(directory: &Path, program: &Path) -> Result<()> {
    let failed = |reason: String| Error::AgentStart { store: directory.to_path_buf(), reason };
    let output = Command::new(program)
        .arg("agent")
        .arg("--store")
        .arg(directory)
        // The environment of a Cairn program must not reach the agent.
        .env_remove("LD_PRELOAD")
        .env_remove("CAIRN_MOUNT")
        .env_remove("CAIRN_STORE")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(format!("cannot execute {}: {error}", program.display())))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().trim_start_matches("cairn: ");
            Err(failed(if said.is_empty() { output.status.to_string() } else { said.to_string() }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::job::AGENT_SOCKET;
    use std::ffi::OsStr;
    use std::os::unix::net::UnixListener;

    /// Mechanism: the time limit was checked before the agent that had just reported that it was
    /// ready. Consequence: on a busy node, where the start took longer than the limit, the run
    /// failed. Fix: the agent is tried first.
    #[test]
    fn agent_that_is_ready_is_reached_however_long_its_start_took() {
        let directory = std::env::temp_dir().join(format!("cairn-client.{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let program = directory.join("program");
        // A child process writes it: a descriptor of this process would be inherited by the forks
        // of other tests.
        let text = format!("#!/bin/sh\nmv \"$3/later\" \"$3/{AGENT_SOCKET}\"\n");
        let write = "printf %s \"$1\" >\"$2\" && chmod 700 \"$2\"";
        let words =
            [OsStr::new("-c"), write.as_ref(), "sh".as_ref(), text.as_ref(), program.as_ref()];
        assert!(Command::new("sh").args(words).status().expect("sh starts").success());
        let _agent = UnixListener::bind(directory.join("later")).expect("a socket");
        let reached = Client::reach_within(&directory, &program, Duration::ZERO).map(|_| ());
        std::fs::remove_dir_all(&directory).expect("it can be removed");
        assert!(reached.is_ok(), "{reached:?}");
    }
}
