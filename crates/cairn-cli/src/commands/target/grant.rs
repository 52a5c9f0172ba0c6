//! `cairn target grant`, `revoke` and `list`: the operator changes what a running target exports.
//!
//! Must stay true: secrets are shown once, to the user who asked for the grant, on standard output
//! or in a file with mode 0600.

use cairn_target::grants::control::{Answer, Request, ask};
use cairn_target::grants::{Exported, Grant, Room};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, SettingError, TargetError};
use crate::size;
use crate::{Context, output};

/// Variable with the path of the control socket.
const CONTROL_VARIABLE: &str = "CAIRN_TARGET_CONTROL";

const GRANT_EXAMPLES: &str = "\
Examples:
  cairn target grant --control /run/cairn/target --job 4711 --size 200G --auth /scratch/4711.key
      prints the tier for `cairn run --tier`, and writes its secrets to the file, with mode 0600
  cairn target grant --control /run/cairn/target --job 4711 --size 200G >4711.key
      prints the same secrets, with the tier in a comment before them
  nvme connect -t tcp -a 10.0.0.5 -s 4420 -n NQN --hostnqn HOSTNQN --dhchap-secret SECRET
      for the kernel's initiator: lines 1 to 3 are the host, its secret, and the target's secret";

const REVOKE_EXAMPLE: &str = "\
Example:
  cairn target revoke --control /run/cairn/target --job 4711";

const LIST_EXAMPLES: &str = "\
Examples:
  cairn target list --control /run/cairn/target
  cairn --json target list --control /run/cairn/target";

/// Action on a running target.
#[derive(Subcommand, Debug)]
pub enum Action {
    Grant(GrantArguments),
    Revoke(RevokeArguments),
    List(ListArguments),
}

/// Create a namespace for a job, and a secret for the one host that may use it.
#[derive(Args, Debug)]
#[command(after_help = GRANT_EXAMPLES)]
pub struct GrantArguments {
    #[command(flatten)]
    socket: Socket,
    /// Name of the job
    #[arg(long, value_name = "NAME")]
    job: String,
    /// Size of the namespace
    #[arg(long, value_name = "SIZE")]
    size: String,
    /// Name of the host [default: one is made for the job]
    #[arg(long, value_name = "NQN")]
    host: Option<String>,
    /// Write the secrets to FILE, which must not exist
    #[arg(long, value_name = "FILE")]
    auth: Option<PathBuf>,
}

/// Remove the namespace of a job, with everything in it, and close the connections to it.
#[derive(Args, Debug)]
#[command(after_help = REVOKE_EXAMPLE)]
pub struct RevokeArguments {
    #[command(flatten)]
    socket: Socket,
    /// Name of the job
    #[arg(long, value_name = "NAME")]
    job: String,
    /// Also exit with 0 if nothing was granted to the job
    #[arg(long)]
    if_granted: bool,
}

/// Show what a target exports, and how many controllers use it.
#[derive(Args, Debug)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArguments {
    #[command(flatten)]
    socket: Socket,
}

#[derive(Args, Debug)]
struct Socket {
    /// Control socket of the target
    #[arg(long, value_name = "SOCKET", env = CONTROL_VARIABLE)]
    control: PathBuf,
}

/// Result of a grant, with the secrets unless they are in a file.
#[derive(Debug, Serialize)]
struct GrantReport {
    job: String,
    nqn: String,
    host: String,
    bytes: u64,
    addresses: Vec<SocketAddr>,
    /// Tier for `cairn run --tier`.
    tier: String,
    auth: Option<PathBuf>,
    secret: Option<String>,
    target_secret: Option<String>,
}

/// Runs the command.
pub fn run(context: &Context, action: &Action) -> Result<()> {
    match action {
        Action::Grant(arguments) => grant(context, arguments),
        Action::Revoke(RevokeArguments { socket, job, if_granted }) => {
            let request = Request::Revoke { job: job.clone(), if_granted: *if_granted };
            socket.ask(&request).map(drop)
        }
        Action::List(ListArguments { socket }) => match socket.ask(&Request::List)? {
            Answer::Listed { exported } => list(context, &exported),
            _ => Err(socket.nonsense()),
        },
    }
}

/// Parses `ram:SIZE` or `dir:DIRECTORY:SIZE`: the kind of space for grants, and its size in bytes.
pub fn parse_room(text: &str) -> Option<(Room, u64)> {
    match text.split_once(':')? {
        ("ram", bytes) => Some((Room::Memory, size::parse(bytes)?)),
        ("dir", rest) => {
            let (directory, bytes) = rest.rsplit_once(':')?;
            Some((Room::Directory(directory.into()), size::parse(bytes)?))
        }
        _ => None,
    }
}

fn grant(context: &Context, arguments: &GrantArguments) -> Result<()> {
    let bytes = size::parse(&arguments.size);
    let bytes =
        bytes.ok_or_else(|| Error::Setting(SettingError::Size { text: arguments.size.clone() }))?;
    // Created before the grant, so that no grant is made whose secrets cannot be stored.
    let file = arguments.auth.as_deref().map(SecretFile::make).transpose()?;
    let (job, host) = (arguments.job.clone(), arguments.host.clone());
    let answer = arguments.socket.ask(&Request::Grant { job, bytes, host });
    let (grant, addresses) = match answer {
        Ok(Answer::Granted { grant, addresses }) => (grant, addresses),
        Ok(_) => return Err(arguments.socket.nonsense()),
        Err(error) => return Err(error),
    };
    let auth = file.map(|file| file.fill(&grant)).transpose()?;
    let address = addresses.first().map(SocketAddr::to_string).unwrap_or_default();
    let named = auth.as_ref().map(|path| format!("?auth={}", path.display())).unwrap_or_default();
    let tier = format!("nvme-tcp://{address}/{}{named}", grant.nqn);
    match (context.json, &auth) {
        (true, _) => {
            let shown = |secret: String| Some(secret).filter(|_| auth.is_none());
            let Grant { job, nqn, bytes, host, secret, target_secret } = grant;
            let (secret, target_secret) = (shown(secret), shown(target_secret));
            let report =
                GrantReport { job, nqn, host, bytes, addresses, tier, auth, secret, target_secret };
            output::json(&report)?;
        }
        (false, Some(_)) => output::line(&tier),
        (false, None) => output::print(format!("# {tier}\n{}", lines(&grant)).as_bytes()),
    }
    Ok(())
}

/// Returns the secrets in the format of `?auth=FILE` of a tier.
fn lines(grant: &Grant) -> String {
    format!("{}\n{}\n{}\n", grant.host, grant.secret, grant.target_secret)
}

fn list(context: &Context, exported: &[Exported]) -> Result<()> {
    if context.json {
        return output::json(&exported);
    }
    for one in exported {
        let sizes: Vec<_> = one.namespace_bytes.iter().map(|&bytes| size::human(bytes)).collect();
        let job = one.job.as_ref().map(|job| format!(" job {job}")).unwrap_or_default();
        let used = output::count(one.controllers as u64, "controller");
        output::line(&format!("{}{job}: {}, {used}", one.nqn, sizes.join(", ")));
    }
    Ok(())
}

impl Socket {
    /// Sends a request to the target. Errors: it does not answer, or refuses.
    fn ask(&self, request: &Request) -> Result<Answer> {
        let failed =
            |source| Error::Target(TargetError::Control { path: self.control.clone(), source });
        match ask(&self.control, request).map_err(failed)? {
            Answer::Refused { reason } => Err(Error::Target(TargetError::TargetRefused { reason })),
            answer => Ok(answer),
        }
    }

    fn nonsense(&self) -> Error {
        let source = std::io::ErrorKind::InvalidData.into();
        Error::Target(TargetError::Control { path: self.control.clone(), source })
    }
}

/// A file for secrets, which is removed on drop unless it was filled.
struct SecretFile {
    path: PathBuf,
    file: std::fs::File,
    is_filled: bool,
}

impl SecretFile {
    fn make(path: &Path) -> Result<SecretFile> {
        let path = std::path::absolute(path).map_err(Error::file("find", path))?;
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(&path);
        let file = made.map_err(Error::file("make", &path))?;
        Ok(SecretFile { path, file, is_filled: false })
    }

    /// Writes the secrets of a grant. Returns the path of the file.
    fn fill(mut self, grant: &Grant) -> Result<PathBuf> {
        let written = self.file.write_all(lines(grant).as_bytes());
        written.and_then(|()| self.file.sync_all()).map_err(Error::file("write to", &self.path))?;
        self.is_filled = true;
        Ok(self.path.clone())
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.is_filled {
            // The file holds nothing.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
