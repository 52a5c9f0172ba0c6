//! Secrets for authentication, in the format `DHHC-1:HH:…:` of `nvme gen-dhchap-key` (Base
//! 8.13.5.8), and their sources.
//!
//! Must stay true: no message shows a secret, and a secret is wiped when it is not needed any more.
//! A file of secrets that others than its owner can access is refused. A reconnect uses what was
//! read for the first connection: the program may have changed its user or environment since.

use std::ffi::CString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use base64ct::{Base64, Encoding};
use crc::{CRC_32_ISO_HDLC, Crc};
use zeroize::Zeroize;

use cairn_platform::descriptor::Descriptor;
use cairn_platform::sys::{self, Errno, SysResult};

use crate::crypto::{Hash, Wiped};

use super::error::{Error, Result};
use super::wire::Nqn;
use super::wire::auth::hash_of;

/// Prefix of every secret.
const PREFIX: &[u8] = b"DHHC-1:";
/// Valid lengths of secrets, bytes.
const SECRET_BYTES: [usize; 3] = [32, 48, 64];
/// Length of the checksum behind a secret, bytes.
const CHECKSUM_BYTES: usize = 4;
/// Bytes that are hashed behind a name to transform a secret.
const TRANSFORMATION: &[u8] = b"NVMe-over-Fabrics";
/// Longest file of secrets, with room for comments, bytes.
const FILE_BYTES_MAX: usize = 64 << 10;
/// File in which nvme-cli keeps the machine's name.
const MACHINE_NAME: &str = "/etc/nvme/hostnqn";
/// Action named in the error when a file of secrets cannot be read.
pub const READING: &str = "read the file with the secret";
const NAMELESS: &str = "the host of the secret is not named: write its name, nqn.…, on a line \
                        before the secret, or into /etc/nvme/hostnqn";
/// Prefix that marks the name of an environment variable instead of a path.
const VARIABLE_PREFIX: &[u8] = b"env:";

/// A secret.
#[derive(Clone, Debug)]
pub struct Secret {
    bytes: Wiped,
    /// Hash that transforms the secret; `None`: the secret is used as it is.
    hash: Option<Hash>,
}

impl Secret {
    /// Parses the text form. Errors: the reason, without any part of the secret.
    pub fn parse(text: &[u8]) -> Result<Secret> {
        let refused = |why| Error::Unauthenticated { why };
        let nonsense = "the secret is not one: write DHHC-1:HH:BASE64:, as made by nvme \
                        gen-dhchap-key";
        let rest = text.strip_prefix(PREFIX).ok_or(refused(nonsense))?;
        let [b'0', digit @ b'0'..=b'3', b':', encoded @ .., b':'] = rest else {
            return Err(refused(nonsense));
        };
        let hash = hash_of(digit - b'0');
        let decoded = decode_base64(encoded).ok_or(refused(nonsense))?;
        let length = decoded.len().saturating_sub(CHECKSUM_BYTES);
        let is_length = match hash {
            Some(hash) => length == hash.bytes(),
            None => SECRET_BYTES.contains(&length),
        };
        if !is_length {
            return Err(refused("the secret has another length than its kind has"));
        }
        let (bytes, checksum) = decoded.split_at(length);
        match crc32(bytes).to_le_bytes() == checksum {
            true => Ok(Secret { bytes: Wiped::copy_of(bytes), hash }),
            false => Err(refused("the secret was mistyped: its checksum is wrong")),
        }
    }

    /// Returns the text form of a new secret, which is transformed with SHA-256. Errors: the kernel
    /// has no random numbers.
    pub fn generate() -> SysResult<Wiped> {
        const LENGTH: usize = 32;
        let bytes = Wiped::random(LENGTH)?;
        let mut checked = Wiped::zeros(LENGTH + CHECKSUM_BYTES);
        checked[..LENGTH].copy_from_slice(&bytes);
        checked[LENGTH..].copy_from_slice(&crc32(&bytes).to_le_bytes());
        let mut text = Wiped::zeros(PREFIX.len() + 4 + checked.len().div_ceil(3) * 4);
        let (head, encoded) = text.split_at_mut(PREFIX.len() + 3);
        head.copy_from_slice(b"DHHC-1:01:");
        let (last, encoded) = encoded.split_last_mut().expect("it has a place for the last colon");
        Base64::encode(&checked, encoded).expect("it has room");
        *last = b':';
        Ok(text)
    }

    /// Returns the key of the host or controller `name` that has this secret.
    pub fn key_of(&self, name: &Nqn) -> Wiped {
        match self.hash {
            None => self.bytes.clone(),
            Some(hash) => hash.mac(&self.bytes, &[name.as_str().as_bytes(), TRANSFORMATION]),
        }
    }
}

/// Name of a host, and the secrets that prove it.
#[derive(Clone, Debug)]
pub struct Secrets {
    /// The host's name.
    pub name: Nqn,
    /// The host's secret.
    pub host: Secret,
    /// The controller's secret. `None`: the controller is trusted without proof.
    pub controller: Option<Secret>,
}

impl Secrets {
    /// Parses up to three lines: the host's name, its secret, the controller's secret. Without a
    /// name, the host has this machine's name. Empty lines and lines that begin with `#` are
    /// ignored.
    pub fn parse(text: &[u8]) -> Result<Secrets> {
        let refused = |why| Error::Unauthenticated { why };
        let mut lines = lines(text).peekable();
        let name = lines.next_if(|line| line.starts_with(b"nqn."));
        let name = name.map_or_else(machine_name, to_name);
        let host = lines.next().ok_or(refused("there is no secret after the host's name"))?;
        let host = Secret::parse(host)?;
        let controller = lines.next().map(Secret::parse).transpose()?;
        let why = "there are more than two secrets: the host's, and that of the controller";
        match lines.next() {
            Some(_) => Err(refused(why)),
            None => Ok(Secrets { name: name.ok_or(refused(NAMELESS))?, host, controller }),
        }
    }
}

/// Parses the name of a host.
fn to_name(line: &[u8]) -> Option<Nqn> {
    Nqn::new(core::str::from_utf8(line).ok()?)
}

/// Returns the name that nvme-cli gave to this machine.
fn machine_name() -> Option<Nqn> {
    to_name(read_all(Path::new(MACHINE_NAME), |_| Ok(())).ok()?.trim_ascii())
}

/// Secrets of the hosts that may connect to a target.
#[derive(Clone, Debug)]
pub struct HostSecrets(Vec<Secrets>);

impl HostSecrets {
    /// Parses one line per host: its name, its secret and, if the host demands a proof, the
    /// target's secret.
    pub fn parse(text: &[u8]) -> Result<HostSecrets> {
        let hosts = lines(text).map(HostSecrets::parse_line).collect::<Result<Vec<_>>>()?;
        let why = "there is no host in the file; each line reads: HOSTNQN SECRET [TARGETSECRET]";
        if hosts.is_empty() { Err(Error::Unauthenticated { why }) } else { Ok(HostSecrets(hosts)) }
    }

    /// Reads a file that only its owner may access.
    pub fn read(path: &Path) -> Result<HostSecrets> {
        HostSecrets::parse(&read_private(path)?)
    }

    fn parse_line(line: &[u8]) -> Result<Secrets> {
        let why = "a line of the file does not read: HOSTNQN SECRET [TARGETSECRET]";
        let refused = || Error::Unauthenticated { why };
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let name = words.next().and_then(to_name).ok_or_else(refused)?;
        let host = Secret::parse(words.next().ok_or_else(refused)?)?;
        let controller = words.next().map(Secret::parse).transpose()?;
        match words.next() {
            Some(_) => Err(refused()),
            None => Ok(Secrets { name, host, controller }),
        }
    }

    /// Returns the secrets of the host with that name.
    pub fn of(&self, host: &Nqn) -> Option<&Secrets> {
        self.0.iter().find(|secrets| secrets.name == *host)
    }
}

/// Lines that are neither empty nor comments.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"))
}

/// Where secrets are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SecretSource {
    /// A file that only its owner may access.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
}

impl SecretSource {
    /// Parses an absolute `PATH`, or `env:NAME`.
    pub fn parse(text: &str) -> Option<SecretSource> {
        match text.as_bytes().strip_prefix(VARIABLE_PREFIX) {
            Some(b"") => None,
            Some(_) => Some(SecretSource::Variable(text[VARIABLE_PREFIX.len()..].to_string())),
            None => text.starts_with('/').then(|| SecretSource::File(text.into())),
        }
    }

    /// Reads the secrets of a host.
    pub fn read(&self) -> Result<Secrets> {
        match self {
            SecretSource::File(path) => Secrets::parse(&read_private(path)?),
            SecretSource::Variable(name) => {
                let why = "the environment variable of the secret is not set";
                let text = std::env::var_os(name).ok_or(Error::Unauthenticated { why })?;
                let mut text = text.into_vec();
                let secrets = Secrets::parse(&text);
                text.zeroize();
                secrets
            }
        }
    }
}

/// Secrets that are read once and then kept.
#[derive(Clone, Debug)]
pub struct CachedSecrets {
    source: SecretSource,
    kept: Arc<OnceLock<Secrets>>,
}

impl From<SecretSource> for CachedSecrets {
    fn from(source: SecretSource) -> CachedSecrets {
        CachedSecrets { source, kept: Arc::default() }
    }
}

impl CachedSecrets {
    /// Returns the secrets. Reads them unless an earlier call has.
    pub fn get(&self) -> Result<&Secrets> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let secrets = self.source.read()?;
        Ok(self.kept.get_or_init(|| secrets))
    }
}

impl core::fmt::Display for SecretSource {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SecretSource::File(path) => write!(formatter, "{}", path.display()),
            SecretSource::Variable(name) => write!(formatter, "env:{name}"),
        }
    }
}

/// Reads a file of secrets. Errors: it cannot be read, or others than its owner can access it.
fn read_private(path: &Path) -> Result<Wiped> {
    read_all(path, |mode| match mode & 0o077 {
        0 => Ok(()),
        _ => Err("others may read the file with the secret; run: chmod 600 FILE"),
    })
}

/// Reads a small file whose mode `check` accepts.
fn read_all(
    path: &Path,
    check: impl Fn(u32) -> core::result::Result<(), &'static str>,
) -> Result<Wiped> {
    let refused = |why| Error::Unauthenticated { why };
    let failed = |errno| Error::System { action: READING, errno };
    let name = CString::new(path.as_os_str().as_bytes());
    let name = name.map_err(|_| failed(Errno(libc::EINVAL)))?;
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = Descriptor::open(libc::AT_FDCWD, &name, flags, 0).map_err(failed)?;
    let found = sys::fstat(file.raw()).map_err(failed)?;
    if found.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(refused("the secret must be in a regular file"));
    }
    check(found.st_mode).map_err(refused)?;
    let length = usize::try_from(found.st_size).ok().filter(|&length| length <= FILE_BYTES_MAX);
    let length = length.ok_or(refused("the file with the secret is too large for secrets"))?;
    let mut text = Wiped::zeros(length);
    fill(file.raw(), &mut text).map_err(failed)?;
    Ok(text)
}

/// Reads until the target is full or the file ends.
fn fill(file: i32, mut target: &mut [u8]) -> SysResult<()> {
    while !target.is_empty() {
        match sys::read(file, target) {
            Ok(0) => return Ok(()),
            Ok(count) => target = &mut target[count..],
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Decodes base64 text (RFC 4648) with padding. `None`: the text is not valid base64, or empty.
fn decode_base64(text: &[u8]) -> Option<Wiped> {
    let mut room = Wiped::zeros(text.len());
    let decoded = Base64::decode(text, &mut room).ok().filter(|decoded| !decoded.is_empty())?;
    Some(Wiped::copy_of(decoded))
}

/// CRC-32 of Ethernet, which finds mistyped secrets.
fn crc32(bytes: &[u8]) -> u32 {
    Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(bytes)
}

#[cfg(test)]
mod tests;
