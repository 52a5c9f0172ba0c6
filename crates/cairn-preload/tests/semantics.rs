//! Checks that the tests named in the rows of docs/semantics exist.
//!
//! Searches the sources for definitions: a function, a scenario of `tests/apps`, a line of a macro
//! that makes tests, a module, a file; `conformance` stands for a row of
//! `conformance/differences.txt`. Does not check that a test proves its row.

use std::fs;
use std::path::{Path, PathBuf};

/// Sections whose rows say where their tests are.
const SECTIONS: [&str; 3] = ["kept", "weakened", "refused"];
/// Words before a colon in that column, each with the directory where its tests are defined.
const PLACES: [(&str, &str); 8] = [
    ("apps", "tests/apps/families"),
    ("cli", "crates/cairn-cli"),
    ("device", "crates/cairn-device"),
    ("posix", "crates/cairn-posix"),
    ("preload", "crates/cairn-preload"),
    ("model", "crates/cairn-testing"),
    ("kernel", "crates/cairn-testing"),
    ("testing", "crates/cairn-testing"),
];

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in crates/")
}

/// Sources below a directory: their paths and texts.
fn sources(below: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).expect("a directory").flatten() {
        let path = entry.path();
        let is_source = path.extension().is_some_and(|kind| kind == "rs" || kind == "sh");
        match (path.is_dir(), is_source) {
            (true, _) => found.extend(sources(&path)),
            (_, true) => {
                let text = fs::read_to_string(&path).expect("UTF-8");
                found.push((path, text));
            }
            _ => {}
        }
    }
    found
}

/// Sources of a crate or of the scenarios.
struct Place {
    name: &'static str,
    sources: Vec<(PathBuf, String)>,
}

impl Place {
    fn all() -> Vec<Place> {
        let place = |(name, below)| Place { name, sources: sources(&workspace().join(below)) };
        PLACES.into_iter().map(place).collect()
    }

    /// Whether a file, module or test of this name exists.
    fn defines(&self, named: &str) -> bool {
        match (named.strip_suffix(".rs"), named.strip_suffix("::*")) {
            (Some(_), _) => self.sources.iter().any(|(path, _)| path.ends_with(named)),
            (_, Some(module)) => self.has_line(|line| line == format!("mod {module} {{")),
            _ => self.has_line(|line| is_definition(line, named)),
        }
    }

    fn has_line(&self, is_it: impl Fn(&str) -> bool) -> bool {
        let mut lines = self.sources.iter().flat_map(|(_, text)| text.lines());
        lines.any(|line| is_it(line.trim()))
    }
}

/// Words with which the families of `tests/apps` declare scenarios.
const DECLARATIONS: [&str; 4] = ["scenario ", "expect ", "expect_on_cairn ", "shared_file "];

/// Whether a line defines the test `name`: `fn name(`, `scenario -u name <<`, or `name: "..."` in a
/// macro.
fn is_definition(line: &str, name: &str) -> bool {
    match DECLARATIONS.iter().find_map(|declaration| line.strip_prefix(declaration)) {
        Some(words) => words.split_whitespace().any(|word| word == name),
        None => {
            let rest = line.strip_prefix("fn ").unwrap_or(line).strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['(', ':']))
        }
    }
}

/// A row of the page: a file of its section.
struct Row {
    section: String,
    /// Name of the file without number and ending.
    name: String,
    tests: String,
}

impl Row {
    /// All rows of a section's directory.
    fn all(section: &str, directory: &Path) -> Vec<Row> {
        let row = |entry: fs::DirEntry| {
            let file = entry.file_name().to_string_lossy().into_owned();
            let name = file.split_once('-')?.1.strip_suffix(".md")?.to_owned();
            let text = fs::read_to_string(entry.path()).expect("UTF-8");
            let tests = text.lines().find_map(|line| line.strip_prefix("test: "))?.to_owned();
            Some(Row { section: section.to_owned(), name, tests })
        };
        fs::read_dir(directory).expect("a section").flatten().filter_map(row).collect()
    }

    /// Whether the conformance test must list a difference for the row.
    fn differs(&self) -> bool {
        self.section != "kept"
    }
}

/// The text without parts in parentheses.
fn plain(cell: &str) -> String {
    let mut depth = 0;
    let mut kept = String::new();
    for letter in cell.chars() {
        depth += i32::from(letter == '(');
        if depth == 0 {
            kept.push(letter);
        }
        depth -= i32::from(letter == ')');
    }
    kept
}

/// Errors in a row's list of tests.
fn complaints(row: &Row, places: &[Place], differences: &str) -> Vec<String> {
    let (first, cell) = (&row.name, plain(&row.tests));
    let mut wrong = Vec::new();
    let mut place = None;
    for part in cell.split("; ") {
        let named = part.split_once(": ").map_or("", |(name, _)| name);
        place = places.iter().find(|place| place.name == named).or(place);
        let Some(place) = place else {
            wrong.push(format!("'{first}': '{part}' says not where"));
            continue;
        };
        let names: Vec<&str> = part.split('`').skip(1).step_by(2).collect();
        let is_listed = part.contains("conformance");
        if is_listed && row.differs() && !differences.contains(&format!("\n[{first}]\n")) {
            wrong.push(format!("'{first}': no difference is listed"));
        }
        if names.is_empty() && !is_listed && !part.trim_end().ends_with("the same") {
            wrong.push(format!("'{first}': '{part}' names no test"));
        }
        let missing = names.into_iter().filter(|name| !place.defines(name));
        wrong.extend(missing.map(|name| format!("'{first}': {} has no '{name}'", place.name)));
    }
    wrong
}

#[test]
fn every_row_of_the_page_names_tests_that_exist() {
    let differences = include_str!("conformance/differences.txt");
    let mut rows = Vec::new();
    for entry in fs::read_dir(workspace().join("docs/semantics")).expect("sections").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let section = SECTIONS.iter().find(|section| name.ends_with(&format!("-{section}")));
        rows.extend(section.iter().flat_map(|section| Row::all(section, &entry.path())));
    }
    let places = Place::all();
    assert!(rows.len() > 80, "{} rows were found", rows.len());
    let wrong: Vec<String> =
        rows.iter().flat_map(|row| complaints(row, &places, differences)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn test_that_is_missing_is_planted_then_the_page_is_wrong() {
    let text = "mod slow {\nfn first(\n    second: \"x\";\nfn thirdly(\n";
    let places = [Place { name: "cli", sources: vec![("a/b.rs".into(), text.to_owned())] }];
    let found = |section: &str, tests: &str, differences| {
        let (section, tests) = (section.to_owned(), tests.to_owned());
        complaints(&Row { section, name: "row".to_owned(), tests }, &places, differences).len()
    };
    let right = "cli: `first`, `second` (`none`), tests of `b.rs`, `slow::*` of `b.rs`";
    assert_eq!(found("weakened", right, ""), 0);
    assert_eq!(found("weakened", "cli: conformance; cli: the same", "\n[row]\n"), 0);
    assert_eq!(found("kept", "cli: conformance", ""), 0);
    for wrong in ["cli: `third`", "`first`", "cli: tests", "cli: conformance", "cli: `c.rs`"] {
        assert_eq!(found("weakened", wrong, ""), 1, "{wrong}");
    }
}
