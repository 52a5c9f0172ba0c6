//! Topology of a cluster: switches, and components that several machines share and lose together.
//!
//! Invariant: the switches form trees. A machine that is not in the description has no switch and
//! shares nothing. Switches above the leaves count only for distances: a failure of one takes the
//! network away, not data.

use std::collections::HashMap;

use serde::Deserialize;

use super::hostlist::{self, ListError};

/// Index of a switch in the topology.
pub type SwitchIndex = u32;
/// Index of a component in the topology.
pub type ComponentIndex = u32;
/// Maximum number of levels of switches.
const LEVELS_MAX: usize = 64;

/// Kind of component that machines can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The machine itself, shared by its processes and devices.
    Node,
    /// The switch that machines are connected to.
    Switch,
    /// A rack.
    Rack,
    /// A power supply.
    Power,
}

/// A component whose failure takes everything that depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Component {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

/// Switch and components that a machine depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Switch that it is connected to.
    pub leaf: Option<SwitchIndex>,
    /// Components that it depends on, in ascending order.
    pub components: Vec<ComponentIndex>,
}

#[derive(Debug)]
struct Switch {
    name: String,
    parent: Option<SwitchIndex>,
    /// Whether the description says what is below it.
    is_defined: bool,
}

/// Topology of the machines of a cluster.
#[derive(Debug, Default)]
pub struct Topology {
    switches: Vec<Switch>,
    switch_names: HashMap<String, SwitchIndex>,
    components: Vec<Component>,
    component_indices: HashMap<Component, ComponentIndex>,
    machines: HashMap<String, Machine>,
}

/// Why a text is not a topology.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// An error in a line.
    #[error("line {line}: {source}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// The error.
        source: Box<TopologyError>,
    },
    /// A line of Slurm's file without a switch.
    #[error("{text:?} names no switch; expected SwitchName=NAME and Nodes= or Switches=")]
    NoSwitch {
        /// The line.
        text: String,
    },
    /// A line that is not an address.
    #[error(
        "{text:?} is not an address of a node; expected SWITCH.NODE, with as many switches as there are above it, as in spine.leaf1.n2"
    )]
    Address {
        /// The line.
        text: String,
    },
    /// The text names no switch.
    #[error(
        "it names no switch; expected lines of SwitchName=NAME and Nodes= or Switches=, or addresses of nodes, as in spine.leaf1.n2"
    )]
    Empty,
    /// A switch whose children are not described.
    #[error(
        "switch {name} is named but not defined; expected SwitchName={name} with its Nodes= or Switches=, in TOML a [[switch]]"
    )]
    Undefined {
        /// Its name.
        name: String,
    },
    /// An invalid list of names.
    #[error("{of}: {source}")]
    List {
        /// Owner of the list.
        of: String,
        /// The error.
        source: ListError,
    },
    /// Something is below two switches, or below itself.
    #[error("{name} is below {first} and below {second}; switches have to form a tree")]
    Tree {
        /// What is below both.
        name: String,
        /// One switch.
        first: String,
        /// The other switch.
        second: String,
    },
    /// Too many levels of switches, or a cycle.
    #[error("switch {name} has more than {LEVELS_MAX} switches above it, or is above itself")]
    Levels {
        /// The lowest switch.
        name: String,
    },
}

/// A topology in a description file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Description {
    /// Switches, both those that machines are connected to and those that connect switches.
    pub switch: Vec<SwitchDescription>,
    /// Racks and their machines.
    pub rack: Vec<GroupDescription>,
    /// Power supplies and their machines.
    pub power: Vec<GroupDescription>,
}

/// A switch in a description file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchDescription {
    /// Its name.
    pub name: String,
    /// List of the machines that are connected to it.
    #[serde(default)]
    pub nodes: Option<String>,
    /// List of the switches below it.
    #[serde(default)]
    pub switches: Option<String>,
}

/// Machines that share something, in a description file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupDescription {
    /// Its name.
    pub name: String,
    /// List of the machines.
    pub nodes: String,
}

impl Topology {
    /// Builds the topology that a file describes.
    pub fn from_description(description: &Description) -> Result<Topology, TopologyError> {
        let mut topology = Topology::default();
        for switch in &description.switch {
            topology.add_switch(
                &switch.name,
                switch.nodes.as_deref(),
                switch.switches.as_deref(),
            )?;
        }
        for (kind, groups) in [(Kind::Rack, &description.rack), (Kind::Power, &description.power)] {
            for group in groups {
                topology.add_group(kind, &group.name, &group.nodes)?;
            }
        }
        match topology.undefined() {
            Some((_, undefined)) => Err(undefined),
            None => topology.finish(),
        }
    }

    /// Parses Slurm's `topology.conf`: lines of `SwitchName=… Nodes=…` or `Switches=…`, or of
    /// `BlockName=… Nodes=…` (topology/tree and topology/block, topology.conf(5)).
    pub fn from_slurm(text: &str) -> Result<Topology, TopologyError> {
        let mut topology = Topology::default();
        let mut whole = String::new();
        // Number of switches known after each line.
        let mut known = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(begun) = line.strip_suffix('\\') {
                whole.push_str(begun);
                known.push(topology.switches.len());
                continue;
            }
            whole.push_str(line);
            topology.add_slurm_line(&std::mem::take(&mut whole)).map_err(in_line(at))?;
            known.push(topology.switches.len());
        }
        match topology.undefined() {
            Some((index, undefined)) => {
                let line = known.partition_point(|known| *known <= index);
                Err(in_line(line)(undefined))
            }
            None => topology.finish_named(),
        }
    }

    fn add_slurm_line(&mut self, text: &str) -> Result<(), TopologyError> {
        let (mut name, mut nodes, mut switches) = (None, None, None);
        let mut is_known = true;
        for word in text.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key.to_ascii_lowercase().as_str() {
                "switchname" | "blockname" => name = Some(value),
                "nodes" => nodes = Some(value),
                "switches" => switches = Some(value),
                "linkspeed" | "blocksizes" => {}
                _ => is_known = false,
            }
        }
        match name {
            None if is_known && nodes.is_none() && switches.is_none() => Ok(()),
            Some(name) if is_known && !name.is_empty() && nodes.or(switches).is_some() => {
                self.add_switch(name, nodes, switches)
            }
            _ => Err(TopologyError::NoSwitch { text: text.to_string() }),
        }
    }

    /// Parses values of `SLURM_TOPOLOGY_ADDR`, one line per node, as in `spine.leaf1.n2`.
    pub fn from_addresses(text: &str) -> Result<Topology, TopologyError> {
        let mut topology = Topology::default();
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        for (at, address) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            topology.add_address(address).map_err(in_line(at))?;
        }
        topology.finish_named()
    }

    fn add_address(&mut self, address: &str) -> Result<(), TopologyError> {
        let is_name = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
        let mut names = address.split('.').rev();
        let node = names.next().unwrap_or_default();
        if !address.contains('.') || !address.split('.').all(is_name) {
            return Err(TopologyError::Address { text: address.to_string() });
        }
        let mut below = None;
        for name in names {
            let switch = self.switch(name);
            match below {
                None => self.connect(node, switch)?,
                Some(lower) => self.put_below(lower, switch)?,
            }
            below = Some(switch);
        }
        Ok(())
    }

    fn add_switch(
        &mut self,
        name: &str,
        nodes: Option<&str>,
        switches: Option<&str>,
    ) -> Result<(), TopologyError> {
        let switch = self.switch(name);
        self.switches[switch as usize].is_defined = true;
        let list = |text: Option<&str>| match text {
            Some(text) => hostlist::expand(text)
                .map_err(|source| TopologyError::List { of: format!("switch {name}"), source }),
            None => Ok(Vec::new()),
        };
        for node in list(nodes)? {
            self.connect(&node, switch)?;
        }
        for lower in list(switches)? {
            let lower = self.switch(&lower);
            self.put_below(lower, switch)?;
        }
        Ok(())
    }

    fn add_group(&mut self, kind: Kind, name: &str, nodes: &str) -> Result<(), TopologyError> {
        let component = self.component(Component { kind, name: name.to_string() });
        let nodes = hostlist::expand(nodes).map_err(|source| TopologyError::List {
            of: format!("{} {name}", kind.word()),
            source,
        })?;
        for node in nodes {
            self.machines.entry(node).or_default().components.push(component);
        }
        Ok(())
    }

    fn switch(&mut self, name: &str) -> SwitchIndex {
        if let Some(&known) = self.switch_names.get(name) {
            return known;
        }
        let index = self.switches.len() as SwitchIndex;
        self.switches.push(Switch { name: name.to_string(), parent: None, is_defined: false });
        self.switch_names.insert(name.to_string(), index);
        index
    }

    fn component(&mut self, component: Component) -> ComponentIndex {
        if let Some(&known) = self.component_indices.get(&component) {
            return known;
        }
        let index = self.components.len() as ComponentIndex;
        self.components.push(component.clone());
        self.component_indices.insert(component, index);
        index
    }

    fn connect(&mut self, node: &str, leaf: SwitchIndex) -> Result<(), TopologyError> {
        let name = self.switches[leaf as usize].name.clone();
        let component = self.component(Component { kind: Kind::Switch, name });
        let machine = self.machines.entry(node.to_string()).or_default();
        match machine.leaf {
            Some(other) if other != leaf => Err(self.two_above(node, other, leaf)),
            Some(_) => Ok(()),
            None => {
                machine.leaf = Some(leaf);
                machine.components.push(component);
                Ok(())
            }
        }
    }

    fn put_below(&mut self, lower: SwitchIndex, upper: SwitchIndex) -> Result<(), TopologyError> {
        match self.switches[lower as usize].parent {
            Some(other) if other != upper => {
                let name = self.switches[lower as usize].name.clone();
                Err(self.two_above(&name, other, upper))
            }
            _ => {
                self.switches[lower as usize].parent = Some(upper);
                Ok(())
            }
        }
    }

    fn two_above(&self, name: &str, first: SwitchIndex, second: SwitchIndex) -> TopologyError {
        let switch = |index: SwitchIndex| self.switches[index as usize].name.clone();
        TopologyError::Tree { name: name.to_string(), first: switch(first), second: switch(second) }
    }

    /// Returns the first switch, in the order of naming, whose children are not described.
    fn undefined(&self) -> Option<(usize, TopologyError)> {
        let mut all = self.switches.iter().enumerate();
        let (index, switch) = all.find(|(_, switch)| !switch.is_defined)?;
        Some((index, TopologyError::Undefined { name: switch.name.clone() }))
    }

    /// As `finish`, for a text that describes only the topology: an empty one is an error.
    fn finish_named(self) -> Result<Topology, TopologyError> {
        match self.switches.is_empty() {
            true => Err(TopologyError::Empty),
            false => self.finish(),
        }
    }

    fn finish(mut self) -> Result<Topology, TopologyError> {
        for switch in 0..self.switches.len() as SwitchIndex {
            if self.above(switch).count() > LEVELS_MAX {
                let name = self.switches[switch as usize].name.clone();
                return Err(TopologyError::Levels { name });
            }
        }
        for machine in self.machines.values_mut() {
            machine.components.sort_unstable();
            machine.components.dedup();
        }
        Ok(self)
    }

    /// Returns the switch and those above it, at most one more than the maximum.
    fn above(&self, switch: SwitchIndex) -> impl Iterator<Item = SwitchIndex> {
        let next = |&switch: &SwitchIndex| self.switches[switch as usize].parent;
        std::iter::successors(Some(switch), next).take(LEVELS_MAX + 1)
    }

    /// Whether the description names this machine.
    pub fn knows(&self, name: &str) -> bool {
        self.machines.contains_key(name)
    }

    /// Returns what the machine of this name depends on, itself included. Registers the machine as
    /// a component if it is not one yet.
    pub fn machine(&mut self, name: &str) -> Machine {
        let itself = self.component(Component { kind: Kind::Node, name: name.to_string() });
        let mut machine = self.machines.get(name).cloned().unwrap_or_default();
        if let Err(place) = machine.components.binary_search(&itself) {
            machine.components.insert(place, itself);
        }
        machine
    }

    /// Returns the component at this index.
    pub fn component_at(&self, index: ComponentIndex) -> &Component {
        &self.components[index as usize]
    }

    /// Returns the name of a switch.
    pub fn switch_name(&self, switch: SwitchIndex) -> &str {
        &self.switches[switch as usize].name
    }

    /// Returns the number of links between switches on the path from one leaf to another, 0 for the
    /// same leaf; `None` if no path is known.
    pub fn hops(&self, from: Option<SwitchIndex>, to: Option<SwitchIndex>) -> Option<u32> {
        let (from, to) = (from?, to?);
        self.above(from).enumerate().find_map(|(up, switch)| {
            let down = self.above(to).position(|other| other == switch)?;
            Some((up + down) as u32)
        })
    }
}

/// Adds the line, counted from 0, to an error.
fn in_line(at: usize) -> impl FnOnce(TopologyError) -> TopologyError {
    move |source| TopologyError::Line { line: at + 1, source: Box::new(source) }
}

impl Kind {
    /// Returns the word for this kind, as in "the rack r1".
    pub fn word(self) -> &'static str {
        match self {
            Kind::Node => "node",
            Kind::Switch => "switch",
            Kind::Rack => "rack",
            Kind::Power => "power supply",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLURM: &str = "# two leaves
        SwitchName=leaf1 Nodes=n[1-2] LinkSpeed=100
        switchname=leaf2 \\
            nodes=n[3-4]

        SwitchName=spine Switches=leaf[1-2]";

    fn hops(topology: &mut Topology, from: &str, to: &str) -> Option<u32> {
        let (from, to) = (topology.machine(from), topology.machine(to));
        topology.hops(from.leaf, to.leaf)
    }

    #[test]
    fn slurm_s_file_says_who_is_how_far_from_whom() {
        let mut topology = Topology::from_slurm(SLURM).unwrap();
        assert_eq!(hops(&mut topology, "n1", "n2"), Some(0));
        assert_eq!(hops(&mut topology, "n1", "n3"), Some(2));
        assert_eq!(hops(&mut topology, "n1", "elsewhere"), None);
    }

    #[test]
    fn addresses_of_processes_say_the_same() {
        let text = "spine.leaf1.n1\nspine.leaf1.n2\n\nspine.leaf2.n3\nspine.leaf2.n3\n";
        let mut topology = Topology::from_addresses(text).unwrap();
        assert_eq!(hops(&mut topology, "n1", "n2"), Some(0));
        assert_eq!(hops(&mut topology, "n2", "n3"), Some(2));
    }

    #[test]
    fn machine_depends_on_itself_its_leaf_its_rack_and_its_power() {
        let group = |name: &str, nodes: &str| GroupDescription {
            name: name.to_string(),
            nodes: nodes.to_string(),
        };
        let leaf = SwitchDescription {
            name: "leaf".to_string(),
            nodes: Some("n[1-2]".to_string()),
            switches: None,
        };
        let description = Description {
            switch: vec![leaf],
            rack: vec![group("r1", "n1,n1"), group("r2", "n2")],
            power: vec![group("p1", "n[1-2]")],
        };
        let mut topology = Topology::from_description(&description).unwrap();
        let machine = topology.machine("n1");
        let mut names: Vec<_> = machine
            .components
            .iter()
            .map(|&component| topology.component_at(component).name.as_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["leaf", "n1", "p1", "r1"]);
        assert_eq!(topology.machine("n1"), machine);
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        let two = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1";
        let refused = Topology::from_slurm(two).unwrap_err().to_string();
        assert_eq!(refused, "line 2: n1 is below a and below b; switches have to form a tree");
        let ring = "SwitchName=a Switches=b\nSwitchName=b Switches=a";
        assert!(matches!(Topology::from_slurm(ring), Err(TopologyError::Levels { .. })));
        let itself = "SwitchName=a Switches=a";
        assert!(matches!(Topology::from_slurm(itself), Err(TopologyError::Levels { .. })));
    }

    #[test]
    fn line_that_is_none_is_named() {
        for text in ["\nNodes=n1", "\nSwitchName= Nodes=n1", "\nSwitchName=a Colour=red"] {
            let refused = Topology::from_slurm(text).unwrap_err();
            let TopologyError::Line { line, source } = &refused else { panic!("{refused}") };
            assert!(matches!(**source, TopologyError::NoSwitch { .. }), "{refused}");
            assert_eq!(*line, 2);
        }
        let list = Topology::from_slurm("SwitchName=a Nodes=n[").unwrap_err();
        assert_eq!(list.to_string(), "line 1: switch a: \"n[\" has an unmatched bracket");
    }
}
