//! A socket by which its owner tells a running target what to grant and to revoke.
//!
//! Must stay true: nobody but the target's user and root is heard; requests are bounded in length
//! and time.
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
/// How long a peer may take to send a request or to take an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// What can be asked for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum Request {
    /// A namespace for a job.
    Grant {
        /// Which.
        job: String,
        /// How large.
        bytes: u64,
        /// Its host; a name is made if there is none.
        host: Option<String>,
    },
    /// No namespace for the job any more.
    Revoke {
        /// Which.
        job: String,
        /// It is no error if there is none.
        #[serde(default)]
        if_granted: bool,
    },
    /// What there is.
    List,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// There is a namespace, at these addresses.
    Granted {
        /// It, with its secrets.
        grant: Grant,
        /// Where the target listens.
        addresses: Vec<SocketAddr>,
    },
    /// There is none any more.
    Revoked,
    /// What there is.
    Listed {
        /// All of it.
        exported: Vec<Exported>,
    },
    /// It was not done.
    Refused {
        /// Why not.
        reason: String,
    },
}

/// The socket.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    /// Listens at `path`, which is made, for this user alone. Errors: the system's; or another
    /// target listens there.
    pub fn bind(path: &Path) -> Result<Control> {
        if UnixStream::connect(path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        match fs::symlink_metadata(path) {
            // Of a target that was killed.
            Ok(found) if is_socket(&found) => fs::remove_file(path)?,
            Ok(_) => return Err(ErrorKind::AlreadyExists.into()),
            Err(_) => {}
        }
        // Nobody connects before the mode is right: whoever does is asked who he is.
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Control { listener, path: path.to_path_buf() })
    }

    /// Does what is asked, for as long as the process lives.
    pub fn serve(&self, grants: &Grants, addresses: &[SocketAddr]) {
        for stream in self.listener.incoming().flatten() {
            // Who hangs up has lost interest.
            let _ = talk(&stream, grants, addresses);
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // One that stays behind is removed by the next target.
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
            // Nobody knows its secrets. What cannot be revoked now is in the list of what there is.
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

/// Asks the target that listens at `path`.
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

/// The next line; none at the end.
fn receive<T: for<'a> Deserialize<'a>>(stream: &UnixStream) -> Result<Option<T>> {
    let mut line = Vec::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    match line.is_empty() {
        true => Ok(None),
        false => serde_json::from_slice(&line).map(Some).map_err(io::Error::from),
    }
}
