//! Control socket, over which the owner tells a running target what to grant and to revoke.
//!
//! Must stay true: only the target's user and root are heard. Requests are limited in length and
//! time.
//!
//! Does not grant; `grants` does.

use crate::grants::{Exported, Grant, GrantError, Grants};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest request or answer, bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Time for a peer to send a request or to take an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time for an answer to come.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// A request to a target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum Request {
    /// Make a namespace for a job.
    Grant {
        /// The job.
        job: String,
        /// Least size of the namespace, bytes.
        bytes: u64,
        /// The host that may use it. Without one the target makes a name.
        host: Option<String>,
    },
    /// End a job's grant.
    Revoke {
        /// The job.
        job: String,
        /// Whether it is no error if the job has no grant.
        #[serde(default)]
        if_granted: bool,
    },
    /// List all exported subsystems.
    List,
}

/// An answer of a target.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// The namespace exists.
    Granted {
        /// The grant with its secrets.
        grant: Grant,
        /// Addresses at which the target listens.
        addresses: Vec<SocketAddr>,
    },
    /// The grant has ended.
    Revoked,
    /// All exported subsystems.
    Listed {
        /// The subsystems.
        exported: Vec<Exported>,
    },
    /// The request was refused.
    Refused {
        /// Reason.
        reason: String,
    },
}

/// The control socket.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Creates a socket at `path` for this user alone, and listens there. Errors: the system's;
    /// another target listens there.
    pub fn bind(path: &Path) -> Result<Control> {
        if UnixStream::connect(path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        match fs::symlink_metadata(path) {
            // Left behind by a target that was killed.
            Ok(found) if is_socket(&found) => fs::remove_file(path)?,
            Ok(_) => return Err(ErrorKind::AlreadyExists.into()),
            Err(_) => {}
        }
        // A client that connects before the mode is set is rejected by its credentials.
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Control { listener, path: path.to_path_buf() })
    }

    /// Serves requests for as long as the process lives.
    pub fn serve(&self, grants: &Grants, addresses: &[SocketAddr]) {
        for stream in self.listener.incoming().flatten() {
            // A client that hangs up has lost interest.
            let _ = talk(&stream, grants, addresses);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The next target removes a socket that stays behind.
        let _ = fs::remove_file(&self.path);
    }
}

fn is_socket(found: &fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())
}

fn talk(stream: &UnixStream, grants: &Grants, addresses: &[SocketAddr]) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let own = rustix::process::geteuid();
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let answer = match peer.uid == own || peer.uid.is_root() {
        true => match receive(stream)? {
            Some(request) => act(request, grants, addresses),
            None => return Ok(()),
        },
        false => Answer::Refused { reason: "this target belongs to another user".to_string() },
    };
    send(stream, &answer).inspect_err(|_| {
        if let Answer::Granted { grant, .. } = &answer {
            // Nobody knows its secrets. If this fails, the grant still appears in the list.
            let _ = grants.revoke(&grant.job);
        }
    })
}

fn act(request: Request, grants: &Grants, addresses: &[SocketAddr]) -> Answer {
    let done = match request {
        Request::Grant { job, bytes, host } => grants
            .grant(&job, bytes, host.as_deref())
            .map(|grant| Answer::Granted { grant, addresses: addresses.to_vec() }),
        Request::Revoke { job, if_granted } => match grants.revoke(&job) {
            Err(GrantError::Unknown { .. }) if if_granted => Ok(Answer::Revoked),
            revoked => revoked.map(|()| Answer::Revoked),
        },
        Request::List => Ok(Answer::Listed { exported: grants.list() }),
    };
    done.unwrap_or_else(|error| Answer::Refused { reason: error.to_string() })
}

/// Sends a request to the target that listens at `path`. Returns its answer.
pub fn ask(path: &Path, request: &Request) -> Result<Answer> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    send(&stream, request)?;
    receive(&stream)?.ok_or(ErrorKind::UnexpectedEof.into())
}

fn send<T: Serialize>(mut stream: &UnixStream, what: &T) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads the next line; `None` at the end of the stream.
fn receive<T: for<'a> Deserialize<'a>>(stream: &UnixStream) -> Result<Option<T>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    match line.is_empty() {
        true => Ok(None),
        false => serde_json::from_slice(&line).map(Some).map_err(io::Error::from),
    }
}
