//! Configuration file of `cairn target --config`: addresses, subsystems, namespaces, and who may
//! use them.
//!
//! Must stay true: an unknown key is an error. Every error names its line and key. Secrets are in
//! files of their own.

use cairn_nvme::secret::HostSecrets;
use cairn_nvme::wire::Nqn;
use cairn_target::grants::Room;
use cairn_target::{Guard, Limits, Namespace, Subsystem};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;

use super::export::{self, Place};
use super::grant::parse_room;
use crate::error::{Error, Result, SettingError};
use crate::output::toml_file;
use crate::size;

/// Settings of the target itself. Command-line options take precedence.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// `--listen`, one or several.
    pub listen: Vec<Spanned<String>>,
    /// `--threads`.
    pub threads: Option<Spanned<u16>>,
    /// `--memory`.
    pub memory: Option<Spanned<String>>,
    /// `--connections`.
    pub connections: Option<Spanned<u32>>,
    /// `--control`.
    pub control: Option<PathBuf>,
    /// `--metrics`.
    metrics: Option<Spanned<String>>,
    /// `--grants`.
    grants: Option<Spanned<String>>,
    subsystem: Vec<SubsystemTable>,
}

/// `[[subsystem]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsystemTable {
    nqn: Spanned<String>,
    /// File with hosts and their secrets.
    auth: Option<Spanned<PathBuf>>,
    /// Hosts that are admitted by their names alone.
    hosts: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    namespace: Vec<Spanned<NamespaceTable>>,
}

/// `[[subsystem.namespace]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceTable {
    /// Size of a namespace in memory.
    ram: Option<Spanned<String>>,
    file: Option<PathBuf>,
    device: Option<PathBuf>,
    /// Size of a file that is created if it does not exist.
    size: Option<Spanned<String>>,
    block_size: Option<Spanned<u64>>,
}

/// The file's text, for messages.
struct Text<'a> {
    path: &'a Path,
    text: &'a str,
}

/// A parsed configuration.
#[derive(Default)]
pub struct Configuration {
    /// Settings of the target itself.
    pub file: File,
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// `memory` in bytes.
    pub memory_bytes: Option<usize>,
    /// Address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// Space for grants and its size in bytes.
    pub grants: Option<(Room, u64)>,
    /// Exported subsystems.
    pub subsystems: Vec<Arc<Subsystem>>,
}

impl Configuration {
    /// Reads the file and opens what it names.
    pub fn read(path: &Path) -> Result<Configuration> {
        let text = toml_file::read(path)?;
        let file: File = toml_file::parse(path, &text)?;
        let text = Text { path, text: &text };
        let listen =
            file.listen.iter().map(|one| text.address("listen", one)).collect::<Result<_>>()?;
        let memory = file.memory.as_ref().map(|memory| text.size("memory", memory)).transpose()?;
        let memory_bytes = memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        if let Some(threads) = file.threads.as_ref().filter(|threads| *threads.get_ref() == 0) {
            return Err(text.wrong(threads, "threads", "there must be at least one"));
        }
        let connections = file.connections.as_ref();
        if let Some(connections) = connections.filter(|connections| *connections.get_ref() == 0) {
            return Err(text.wrong(connections, "connections", "there must be at least one"));
        }
        let subsystems =
            file.subsystem.iter().map(|table| text.subsystem(table)).collect::<Result<_>>()?;
        let grants = file.grants.as_ref().map(|room| text.room(room)).transpose()?;
        if let (Some(room), None) = (&file.grants, &file.control) {
            return Err(text.wrong(room, "grants", "grants need a \"control\" socket; add one"));
        }
        let metrics = file.metrics.as_ref().map(|one| text.address("metrics", one)).transpose()?;
        Ok(Configuration { listen, memory_bytes, metrics, grants, subsystems, file })
    }
}

impl Text<'_> {
    /// Returns an error at that place of the file.
    fn wrong<T>(&self, value: &Spanned<T>, key: &str, problem: &str) -> Error {
        let line = self.text[..value.span().start].matches('\n').count() + 1;
        let problem = format!("line {line}: {key}: {problem}");
        Error::Setting(SettingError::Configuration { path: self.path.to_path_buf(), problem })
    }

    fn address(&self, key: &str, value: &Spanned<String>) -> Result<SocketAddr> {
        let problem = "write an address with a port, as in 10.0.0.5:4420";
        value.get_ref().parse().map_err(|_| self.wrong(value, key, problem))
    }

    fn size(&self, key: &str, value: &Spanned<String>) -> Result<u64> {
        let problem = "this is not a size; write one like 8G";
        size::parse(value.get_ref()).ok_or_else(|| self.wrong(value, key, problem))
    }

    fn room(&self, value: &Spanned<String>) -> Result<(Room, u64)> {
        let problem = "write ram:SIZE or dir:DIRECTORY:SIZE";
        parse_room(value.get_ref()).ok_or_else(|| self.wrong(value, "grants", problem))
    }

    fn name(&self, key: &str, value: &Spanned<String>) -> Result<Nqn> {
        let problem = "this is not a valid name; write one like nqn.2026-11.io.cairn:target";
        Nqn::new(value.get_ref()).ok_or_else(|| self.wrong(value, key, problem))
    }

    fn subsystem(&self, table: &SubsystemTable) -> Result<Arc<Subsystem>> {
        let name = self.name("nqn", &table.nqn)?;
        if table.namespace.is_empty() {
            return Err(self.wrong(
                &table.nqn,
                "nqn",
                "the subsystem has no [[subsystem.namespace]]",
            ));
        }
        let namespaces = table.namespace.iter().map(|one| self.namespace(one));
        let namespaces = namespaces.collect::<Result<Vec<_>>>()?;
        let subsystem = Subsystem::new(name, namespaces, Limits::default());
        Ok(Arc::new(match self.guard(table)? {
            Some(guard) => subsystem.guarded(guard),
            None => subsystem,
        }))
    }

    fn guard(&self, table: &SubsystemTable) -> Result<Option<Guard>> {
        match (&table.auth, &table.hosts) {
            (Some(auth), Some(_)) => {
                Err(self.wrong(auth, "auth", "the file names the hosts; leave out \"hosts\""))
            }
            (Some(auth), None) => {
                let wrong = |source| self.wrong(auth, "auth", &format!("{source}"));
                let secrets = HostSecrets::read(auth.get_ref()).map_err(wrong)?;
                Ok(Some(Guard::new(secrets)))
            }
            (None, Some(hosts)) => {
                let names = hosts.iter().map(|host| self.name("hosts", host));
                Ok(Some(Guard::named(names.collect::<Result<_>>()?)))
            }
            (None, None) => Ok(None),
        }
    }

    fn namespace(&self, value: &Spanned<NamespaceTable>) -> Result<Namespace> {
        let table = value.get_ref();
        let size = table.size.as_ref().map(|size| self.size("size", size)).transpose()?;
        let place = match (&table.ram, &table.file, &table.device) {
            (Some(ram), None, None) if size.is_none() => Place::Memory(self.size("ram", ram)?),
            (None, Some(path), None) => Place::File(path.clone(), size),
            (None, None, Some(path)) if size.is_none() => Place::Device(path.clone()),
            _ => {
                let problem = "write one of ram = SIZE, file = PATH (with size = SIZE to make it), device = PATH";
                return Err(self.wrong(value, "namespace", problem));
            }
        };
        let block_bytes = match &table.block_size {
            Some(size) => export::check_block_bytes(*size.get_ref())
                .map_err(|problem| self.wrong(size, "block_size", &problem))?,
            None => export::BLOCK_BYTES,
        };
        place.open(block_bytes).map_err(|source| {
            let problem =
                format!("cannot export {place}: {}", cairn_agent::model::error::why(&source));
            self.wrong(value, "namespace", &problem)
        })
    }
}
