//! Checks that every function of the C library that takes a file, path, descriptor or stream is
//! decided: served, refused, or passed on for a reason. docs/SYMBOLS.md lists the exports of the
//! preload library and the decisions in `cairn_posix::process::decisions`.
//!
//! `CAIRN_WRITE_SYMBOLS=1 cargo test -p cairn-preload --test symbols` rewrites the document and the
//! list of wrapped functions. Does not test the effect of a hook; the other tests do.

#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cairn_posix::process::decisions::{
    Family, NOT_FILES, PASSED, PAST, REFUSED, WIDE, covers, family_of,
};
use object::elf::{FileHeader64, STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{FileHeader as _, Sym as _};
use object::{Endianness, SymbolIndex};

type Header = FileHeader64<Endianness>;

/// Names of the public functions that a shared object exports.
fn exported(object: &Path) -> BTreeSet<String> {
    let bytes = fs::read(object).expect("the object is readable");
    let data = &*bytes;
    let header = Header::parse(data).expect("an ELF object of 64 bits");
    let endian = header.endian().expect("a byte order");
    let sections = header.sections(endian, data).expect("sections");
    let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM).expect("symbols");
    let versions = sections.versions(endian, data).expect("versions");
    let is_private = |index: SymbolIndex| {
        let Some(versions) = &versions else { return false };
        let version = versions.version(versions.version_index(endian, index));
        version.ok().flatten().is_some_and(|version| version.name() == b"GLIBC_PRIVATE")
    };
    let is_function = |kind: u8| matches!(kind, STT_FUNC | STT_GNU_IFUNC);
    symbols
        .enumerate()
        .filter(|(_, symbol)| is_function(symbol.st_type()) && !symbol.is_undefined(endian))
        .filter(|&(index, _)| !is_private(index))
        .map(|(_, symbol)| symbol.name(endian, symbols.strings()).expect("a name"))
        .map(|name| String::from_utf8(name.to_vec()).expect("ASCII"))
        .collect()
}

fn any_covers(families: &'static [Family], name: &str) -> bool {
    family_of(families, name).is_some()
}

/// Names of the hooks. The library's other exports have names of its own.
fn hooks() -> BTreeSet<String> {
    let mut names = exported(&common::library());
    names.retain(|name| !name.trim_start_matches('_').starts_with("cairn_"));
    names
}

/// Functions left to the C library.
fn left() -> impl Iterator<Item = &'static Family> {
    PASSED.iter().chain(WIDE).chain(PAST)
}

#[test]
fn every_function_of_the_c_library_about_files_is_decided() {
    let hooks = hooks();
    let undecided: Vec<String> = exported(&common::loaded("libc.so.6"))
        .into_iter()
        .filter(|name| !hooks.contains(name))
        .filter(|name| {
            [PASSED, WIDE, PAST, NOT_FILES].iter().all(|families| !any_covers(families, name))
        })
        .collect();
    assert!(undecided.is_empty(), "neither a hook nor a decision (decisions.rs): {undecided:?}");
}

#[test]
fn no_function_is_decided_twice() {
    let hooks = hooks();
    let is_left = |name: &str| left().any(|family| covers(family.names, name));
    // The hook of `dlopen` does nothing with the path.
    let twice: Vec<&String> =
        hooks.iter().filter(|name| is_left(name) && *name != "dlopen").collect();
    assert!(twice.is_empty(), "hooks that decisions.rs says are passed on: {twice:?}");
    for refusal in REFUSED {
        let missing: Vec<&str> =
            refusal.names.split_whitespace().filter(|&name| !hooks.contains(name)).collect();
        assert!(missing.is_empty(), "refused, but there is no hook: {missing:?}");
    }
    for name in left().flat_map(|family| family.names.split_whitespace()) {
        assert!(!any_covers(NOT_FILES, name), "{name} is passed on and not about files");
    }
}

/// Additional names of hooks by which a static C library calls its own functions. It must not reach
/// our hooks there: such calls are made in children that share our memory, or inside functions that
/// we serve as a whole.
const OF_THE_LIBRARY_ITSELF: &str = "_Fork __clone __close __connect __dup2 __fcntl __fork __lseek __open __open64 __poll \
    __pread64 __pwrite64 __read __select __send __sigaction __statfs __vfork __write \
    dlopen dlsym";

/// Hooks that the archive wraps, one per line.
fn wrapped() -> String {
    let own: BTreeSet<&str> = OF_THE_LIBRARY_ITSELF.split_whitespace().collect();
    let hooks = hooks();
    let wrapped = hooks.iter().filter(|name| !own.contains(name.as_str()));
    wrapped.map(|name| format!("{name}\n")).collect()
}

fn list_of_wrapped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("wrapped.txt")
}

/// Asserts that a file contains `expected`. With `CAIRN_WRITE_SYMBOLS` set, writes it first.
fn assert_written(path: &Path, expected: &str) {
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        fs::write(path, expected).expect("the file is writable");
    }
    let written = fs::read_to_string(path).expect("the file is there");
    let advice = "cargo test -p cairn-preload --test symbols";
    assert!(written == expected, "{} is out of date: {WRITE_VARIABLE}=1 {advice}", path.display());
}

#[test]
fn list_of_wrapped_functions_is_what_the_library_exports() {
    assert_written(&list_of_wrapped(), &wrapped());
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Whether a source declares a hook of this name, directly or in a macro's list.
fn declares(source: &str, name: &str) -> bool {
    let declaration = format!("fn {name}");
    source.match_indices(&declaration).any(|(at, _)| {
        let rest = &source[at + declaration.len()..];
        rest.starts_with(['(', ';', ',', ' '])
    })
}

/// Purpose of each source, which is its header's first sentence, and the hooks it declares.
fn families(hooks: &BTreeSet<String>) -> Vec<(String, BTreeSet<String>)> {
    let listing = fs::read_dir(sources()).expect("the sources are listed");
    let paths = listing.map(|entry| entry.expect("an entry").path());
    let paths: BTreeSet<PathBuf> = paths.filter(|path| path.is_file()).collect();
    let mut left = hooks.clone();
    let mut families = Vec::new();
    for path in paths {
        let source = fs::read_to_string(&path).expect("a source is readable");
        let names: BTreeSet<String> =
            left.iter().filter(|name| declares(&source, name)).cloned().collect();
        left.retain(|name| !names.contains(name));
        if !names.is_empty() {
            families.push((purpose(&source), names));
        }
    }
    assert!(left.is_empty(), "exported, but no source declares it: {left:?}");
    families
}

/// First sentence of a source's header.
fn purpose(source: &str) -> String {
    let header: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//! ")).collect();
    let text = header.join(" ");
    let end = text.find(". ").unwrap_or(text.trim_end_matches('.').len());
    text[..end].to_owned()
}

fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let sorted: BTreeSet<&str> = names.into_iter().collect();
    sorted.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" ")
}

const WRITE_VARIABLE: &str = "CAIRN_WRITE_SYMBOLS";
const INTRODUCTION: &str = "\
Which functions are served for files below the mount prefix, which are refused, and which go to the C library as they
are. What the calls do there is in [SEMANTICS.md](SEMANTICS.md).

Written by `CAIRN_WRITE_SYMBOLS=1 cargo test -p cairn-preload --test symbols` from what the preload library exports and from
`crates/cairn-posix/src/process/decisions.rs`. The tests there fail if this page says something else, or if the C
library of the machine exports a function about files that is not decided.";

fn table<'a>(
    title: &str,
    explanation: &str,
    columns: &[&str],
    rows: impl IntoIterator<Item = Vec<String>> + 'a,
) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let columns: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
    let rule = vec!["---"; columns.len()].join("|");
    let rows: String = rows.into_iter().map(|cells| row(&cells)).collect();
    format!("\n## {title}\n\n{explanation}\n\n{}|{rule}|\n{rows}", row(&columns))
}

fn document() -> String {
    let served = families(&hooks())
        .into_iter()
        .map(|(purpose, names)| vec![purpose, list(names.iter().map(String::as_str))]);
    let refused = REFUSED.iter().map(|refusal| {
        let errno = format!("`{}`", refusal.errno);
        vec![list(refusal.names.split_whitespace()), errno, refusal.case.to_owned()]
    });
    let row = |family: &Family| vec![family.why.to_owned(), list(family.names.split_whitespace())];
    [
        format!("# Functions of the C library\n\n{INTRODUCTION}\n"),
        table("Served", "On files of ours.", &["family", "functions"], served),
        table(
            "Refused",
            "Of those above, on files of ours.",
            &["functions", "errno", "when"],
            refused,
        ),
        table(
            "Passed on",
            "About files, and left to the C library. `*` stands for any rest.",
            &["why", "functions"],
            PASSED.iter().map(row),
        ),
        table(
            "Never served",
            "About files, and not ours to serve: below the prefix they fail.",
            &["why", "functions"],
            WIDE.iter().chain(PAST).map(row),
        ),
    ]
    .concat()
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SYMBOLS.md")
}

#[test]
fn page_of_symbols_is_what_the_library_exports() {
    assert_written(&page(), &document());
}
