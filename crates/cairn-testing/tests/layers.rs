//! The rooms of each crate use one another in one direction: a folder names only folders below it.
//!
//! Proves it from the sources, parsed: every path that begins with `crate`, in `use` items and in
//! code. Tests are left out, and so is what macros expand to. Arrows that run up are listed with
//! the crate; a new one fails, and so does one that is listed and gone.
//!
//! Within a crate, files may use each other in cycles, but a cycle has no more files than the
//! crate's limit, and a limit is no larger than the cycle that needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// A crate: its rooms from the top to the bottom, and the arrows that run up, as `room/module ->
/// room`.
struct House {
    name: &'static str,
    rooms: &'static [&'static str],
    up: &'static [&'static str],
    /// Files in the largest cycle.
    cycle: usize,
}

const HOUSES: [House; 7] = [
    House {
        name: "cairn-core",
        rooms: &["recovery", "image", "data", "namespace", "process", "space", "engine", "format"],
        up: &[],
        cycle: 4,
    },
    House {
        name: "cairn-device",
        rooms: &["store", "media", "memory", "device", "directory"],
        up: &[],
        cycle: 12,
    },
    House {
        name: "cairn-target",
        rooms: &[
            "inline_target",
            "event_loop",
            "connection",
            "grants",
            "metrics",
            "directory",
            "subsystem",
            "mailbox",
            "guard",
            "notices",
            "workers",
            "counters",
            "pool",
            "socket",
        ],
        up: &[],
        cycle: 2,
    },
    House {
        name: "cairn-posix",
        rooms: &[
            "process",
            "mapping",
            "files",
            "data",
            "descriptors",
            "pages",
            "mount",
            "task",
            "kernel",
            "error",
        ],
        up: &[],
        cycle: 2,
    },
    House {
        name: "cairn-job",
        rooms: &["pass", "outside", "checkpoint", "file"],
        up: &[],
        cycle: 5,
    },
    House {
        name: "cairn-agent",
        rooms: &[
            "agent",
            "archive",
            "bring",
            "timeline",
            "drain",
            "image",
            "persist",
            "checkpoint",
            "store",
            "model",
        ],
        up: &[],
        cycle: 4,
    },
    House {
        name: "cairn-cli",
        rooms: &[
            "commands", "check", "run", "create", "resume", "drain", "claim", "request",
            "settings", "report", "mount", "store", "balancer", "program", "output", "error",
            "size",
        ],
        up: &[],
        cycle: 3,
    },
];

/// The paths of a source file that begin with `crate`, as the names that follow.
#[derive(Default)]
struct Named(BTreeSet<String>);

impl Named {
    fn tree(&mut self, tree: &syn::UseTree, is_in_crate: bool) {
        match tree {
            syn::UseTree::Path(path) if is_in_crate => {
                self.0.insert(path.ident.to_string());
            }
            syn::UseTree::Path(path) => self.tree(&path.tree, path.ident == "crate"),
            syn::UseTree::Name(name) if is_in_crate => {
                self.0.insert(name.ident.to_string());
            }
            syn::UseTree::Rename(name) if is_in_crate => {
                self.0.insert(name.ident.to_string());
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.tree(item, is_in_crate));
            }
            _ => {}
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|named| named.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.tree(&item.tree, false);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut names = path.segments.iter().map(|segment| segment.ident.to_string());
        if names.next().as_deref() == Some("crate") {
            self.0.extend(names.next());
        }
        visit::visit_path(self, path);
    }
}

/// The source files of a crate but those of tests, each with its room and its module within that.
fn sources(directory: &Path) -> Vec<(PathBuf, String, String)> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).expect("the crate has sources").flatten() {
            let path = entry.path();
            let names: Vec<String> = path
                .strip_prefix(directory)
                .expect("it lies there")
                .components()
                .map(|part| part.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned())
                .collect();
            if names
                .iter()
                .any(|name| matches!(name.as_str(), "tests" | "test_store" | "lib" | "main"))
            {
                continue;
            }
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = names.get(1).unwrap_or(&names[0]).clone();
                found.push((path, names[0].clone(), module));
            }
        }
    }
    found
}

/// A module, as the names that lead to it.
type Module = Vec<String>;

/// The paths of a source file to modules of its crate, with `super` and `self` resolved.
struct Reached {
    own: Module,
    paths: BTreeSet<Module>,
}

impl Reached {
    fn note(&mut self, names: &[String]) {
        let mut base = self.own.clone();
        let mut rest = names;
        match rest.first().map(String::as_str) {
            Some("crate") => (base, rest) = (Module::new(), &rest[1..]),
            Some("self") => rest = &rest[1..],
            Some("super") => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            // A path may begin with a module below this one.
            _ => {}
        }
        base.extend_from_slice(rest);
        self.paths.insert(base);
    }

    fn tree(&mut self, before: &mut Module, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.tree(before, item));
            }
            syn::UseTree::Name(name) if name.ident != "self" => {
                before.push(name.ident.to_string());
                self.note(before);
                before.pop();
            }
            syn::UseTree::Rename(name) if name.ident != "self" => {
                before.push(name.ident.to_string());
                self.note(before);
                before.pop();
            }
            _ => self.note(before),
        }
    }
}

impl<'ast> Visit<'ast> for Reached {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.tree(&mut Module::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Module = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names.len() > 1 {
            self.note(&names);
        }
        visit::visit_path(self, path);
    }
}

/// The files of a crate, as modules, and those that each uses.
fn uses(directory: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let files: BTreeMap<Module, PathBuf> = sources(directory)
        .into_iter()
        .map(|(path, ..)| {
            let below = path.strip_prefix(directory).expect("it lies there").with_extension("");
            let names = below.components().map(|part| part.as_os_str().to_string_lossy().into());
            (names.collect(), path)
        })
        .collect();
    let used = |(own, path): (&Module, &PathBuf)| {
        let text = fs::read_to_string(path).expect("a source file is text");
        let mut reached = Reached { own: own.clone(), paths: BTreeSet::new() };
        reached.visit_file(&syn::parse_file(&text).expect("it is Rust"));
        let file = |path: &Module| {
            (1..=path.len())
                .rev()
                .map(|length| path[..length].to_vec())
                .find(|module| files.contains_key(module))
        };
        let used = reached.paths.iter().filter_map(file).filter(|module| module != own);
        (own.clone(), used.collect())
    };
    files.iter().map(used).collect()
}

/// The largest set of modules that all reach each other, sorted.
fn largest_cycle(uses: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<&Module> {
    let reached = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut left: Vec<&Module> = uses[from].iter().collect();
        while let Some(next) = left.pop() {
            if seen.insert(next) {
                left.extend(&uses[next]);
            }
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        uses.keys().map(|module| (module, reached(module))).collect();
    let cycle = |module: &&Module| -> Vec<&Module> {
        let back = |other: &&&Module| reach[**other].contains(*module);
        reach[*module].iter().filter(back).copied().collect()
    };
    let cycles = reach.keys().map(cycle);
    cycles.max_by_key(Vec::len).unwrap_or_default()
}

#[test]
fn cycles_of_files_are_as_small_as_they_are_known_to_be() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    let mut wrong = Vec::new();
    for house in HOUSES {
        let uses = uses(&crates.join(house.name).join("src"));
        let largest = largest_cycle(&uses);
        if largest.len() != house.cycle {
            let names: Vec<String> = largest.iter().map(|module| module.join("/")).collect();
            wrong.push(format!(
                "{}: a cycle of {} files instead of {}: {}",
                house.name,
                names.len(),
                house.cycle,
                names.join(" ")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn cycle_is_planted_then_it_is_found() {
    let module = |names: &str| -> Module { names.split('/').map(str::to_owned).collect() };
    let mut reached = Reached { own: module("a/b"), paths: BTreeSet::new() };
    let text = "use super::c::{self, Thing}; use crate::d; fn call() { below::call() }";
    reached.visit_file(&syn::parse_file(text).expect("it is Rust"));
    let expected = ["a/c", "a/c/Thing", "d", "a/b/below/call"].map(module);
    assert_eq!(reached.paths, expected.into());
    let uses = BTreeMap::from([
        (module("a"), BTreeSet::from([module("b")])),
        (module("b"), BTreeSet::from([module("c")])),
        (module("c"), BTreeSet::from([module("a")])),
        (module("d"), BTreeSet::from([module("a")])),
    ]);
    assert_eq!(largest_cycle(&uses), [&module("a"), &module("b"), &module("c")]);
}

/// The arrows that run up, and the rooms that nobody named.
fn complaints(
    rooms: &[&str],
    named: &BTreeMap<(String, String), BTreeSet<String>>,
) -> BTreeSet<String> {
    let floor = |room: &str| rooms.iter().position(|known| *known == room);
    let mut found = BTreeSet::new();
    for ((room, module), names) in named {
        let Some(own) = floor(room) else {
            found.insert(format!("{room}: a room that has no floor"));
            continue;
        };
        let above = names.iter().filter(|name| floor(name).is_some_and(|floor| floor < own));
        found.extend(above.map(|name| format!("{room}/{module} -> {name}")));
    }
    found
}

#[test]
fn rooms_use_only_rooms_below_them() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    let mut wrong = Vec::new();
    for house in HOUSES {
        let mut named = BTreeMap::<_, BTreeSet<String>>::new();
        for (path, room, module) in sources(&crates.join(house.name).join("src")) {
            let text = fs::read_to_string(&path).expect("a source file is text");
            let file = syn::parse_file(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let mut names = Named::default();
            names.visit_file(&file);
            named.entry((room, module)).or_default().extend(names.0);
        }
        let seen = complaints(house.rooms, &named);
        let listed: BTreeSet<String> = house.up.iter().map(|&arrow| arrow.to_owned()).collect();
        wrong.extend(seen.difference(&listed).map(|arrow| format!("{}: new: {arrow}", house.name)));
        wrong
            .extend(listed.difference(&seen).map(|arrow| format!("{}: gone: {arrow}", house.name)));
    }
    assert!(wrong.is_empty(), "arrows that run up:\n{}", wrong.join("\n"));
}

#[test]
fn arrow_is_planted_that_runs_up_then_it_is_found() {
    let text = "use crate::{low::Thing, high::{self, Other}};\n\
                #[cfg(test)] mod tests { use crate::higher::Unseen; }\n\
                fn call() { crate::highest::call() }";
    let mut names = Named::default();
    names.visit_file(&syn::parse_file(text).expect("it is Rust"));
    assert_eq!(names.0, ["high", "highest", "low"].map(str::to_owned).into());
    let named = BTreeMap::from([(("middle".to_owned(), "one".to_owned()), names.0)]);
    let expected = ["middle/one -> high", "middle/one -> highest"].map(str::to_owned);
    assert_eq!(complaints(&["highest", "high", "middle", "low"], &named), expected.into());
    assert_eq!(
        complaints(&["low"], &named),
        ["middle: a room that has no floor".to_owned()].into()
    );
}
