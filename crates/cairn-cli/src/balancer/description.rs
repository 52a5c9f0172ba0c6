//! Description files of a cluster: devices in TOML; the topology in the same file, or in one of
//! Slurm's files.

use super::{
    Description, GroupDescription, SwitchDescription, Target, Topology, TopologyError, hostlist,
};
use crate::error::{Error, Result, SettingError};
use crate::output::toml_file;
use crate::size;
use serde::Deserialize;
use std::path::Path;

/// Placeholder for the node in an address.
const NODE: &str = "{node}";

/// Devices and topology of a cluster.
pub struct Cluster {
    /// The devices.
    pub targets: Vec<Target>,
    /// The topology of the machines.
    pub topology: Topology,
}

/// The TOML file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    target: Vec<TargetDescription>,
    switch: Vec<SwitchDescription>,
    rack: Vec<GroupDescription>,
    power: Vec<GroupDescription>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetDescription {
    /// List of machines with one such device each.
    nodes: String,
    address: String,
    capacity: Option<String>,
}

impl Cluster {
    /// Reads the file at `path`, and the topology from the other file if one is given.
    pub fn read(path: &Path, topology: Option<&Path>) -> Result<Cluster> {
        let file: File = toml_file::parse(path, &toml_file::read(path)?)?;
        let mut targets = Vec::new();
        for target in &file.target {
            targets.extend(target.expand(path)?);
        }
        let File { switch, rack, power, .. } = file;
        let topology = match topology {
            None => Topology::from_description(&Description { switch, rack, power })
                .map_err(wrong(path)),
            Some(path) => read_slurm(path),
        }?;
        Ok(Cluster { targets, topology })
    }
}

/// Reads the topology from a Slurm file. Lines of `SLURM_TOPOLOGY_ADDR` have no `=`; all lines of
/// `topology.conf` do.
fn read_slurm(path: &Path) -> Result<Topology> {
    let text = toml_file::read(path)?;
    let says = text.lines().filter_map(|line| line.split('#').next());
    let read = match says.into_iter().any(|line| line.contains('=')) {
        true => Topology::from_slurm(&text),
        false => Topology::from_addresses(&text),
    };
    read.map_err(wrong(path))
}

fn wrong(path: &Path) -> impl FnOnce(TopologyError) -> Error {
    let path = path.to_path_buf();
    move |error| Error::Setting(SettingError::Configuration { path, problem: error.to_string() })
}

impl TargetDescription {
    fn expand(&self, path: &Path) -> Result<Vec<Target>> {
        let wrong = |problem| {
            Error::Setting(SettingError::Configuration { path: path.to_path_buf(), problem })
        };
        let nodes = hostlist::expand(&self.nodes)
            .map_err(|error| wrong(format!("target {}: {error}", self.address)))?;
        let capacity_bytes = match &self.capacity {
            Some(text) => size::parse(text)
                .ok_or_else(|| Error::Setting(SettingError::Size { text: text.clone() }))?,
            None => 0,
        };
        if nodes.len() > 1 && !self.address.contains(NODE) {
            return Err(wrong(format!(
                "target {}: several nodes need {NODE} in the address",
                self.address
            )));
        }
        let target = |node: String| {
            let address = self.address.replace(NODE, &node);
            Target { address, node, capacity_bytes }
        };
        Ok(nodes.into_iter().map(target).collect())
    }
}
