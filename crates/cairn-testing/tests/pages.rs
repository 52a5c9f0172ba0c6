//! docs/FAULTS.md and docs/SEMANTICS.md are generated from one small file per row.
//!
//! A page is a directory: `_page.md`, its head, and a directory per section. A section has
//! `_section.md`, its text, whose last line may name the columns of a table; and a file per row.
//! The file has a line for each column, `name: cell`, and may go on, behind an empty line, with
//! text that the row links to. Set `CAIRN_WRITE_PAGES` to write the pages.
//!
//! Does not check that the tests exist; `semantics.rs` of the preload library does.

use std::fs;
use std::path::{Path, PathBuf};

const PAGES: [(&str, &str); 2] = [("faults", "FAULTS.md"), ("semantics", "SEMANTICS.md")];
/// Most characters in a cell.
const CELL_MAX: usize = 200;
const WRITE: &str = "CAIRN_WRITE_PAGES";

fn docs() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("workspace");
    workspace.join("docs")
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn is_head(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('_'))
}

/// The row of a file, with `link` as the address of the file. Errors: what is wrong with it.
fn row(text: &str, columns: &[&str], link: &str) -> Result<String, String> {
    let (fields, further) = text.split_once("\n\n").unwrap_or((text.trim_end(), ""));
    let fields: Vec<(&str, &str)> =
        fields.lines().map(|line| line.split_once(": ").unwrap_or((line, ""))).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    if names != columns {
        return Err(format!("{link}: has the lines {names:?} instead of {columns:?}"));
    }
    let mut cells = Vec::new();
    for (index, (name, cell)) in fields.into_iter().enumerate() {
        let length = cell.chars().count();
        let mut cell = cell.replace('|', "\\|");
        if name == "test" && length > CELL_MAX {
            // The file has all of them.
            let first = cell.split("`, `").next().expect("a part").trim_end_matches('`').to_owned();
            cell = format!("{first}` and [others]({link})");
        } else if length > CELL_MAX {
            return Err(format!("{link}: {name} has {length} characters, more than {CELL_MAX}"));
        }
        if index == 0 && !further.trim().is_empty() {
            cell = format!("{cell} ([more]({link}))");
        }
        cells.push(cell);
    }
    Ok(format!("| {} |\n", cells.join(" | ")))
}

/// A page as its directory says. Errors: what is wrong, a line each.
fn page(directory: &Path, name: &str) -> Result<String, String> {
    let read = |path: &Path| fs::read_to_string(path).expect("a text");
    let mut page = read(&directory.join("_page.md")).trim_end().to_owned();
    page += "\n\n<!-- Generated from the files of ";
    page += &format!("docs/{name}; see crates/cairn-testing/tests/pages.rs. -->\n");
    let mut wrong = Vec::new();
    for section in sorted(directory).into_iter().filter(|path| path.is_dir()) {
        let head = read(&section.join("_section.md"));
        let (text, columns) = head.split_once("\ncolumns: ").unwrap_or((&head, ""));
        page += &format!("\n{}\n", text.trim());
        if columns.is_empty() {
            continue;
        }
        let columns: Vec<&str> = columns.trim().split(" | ").collect();
        page += &format!("\n| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
        for path in sorted(&section).into_iter().filter(|path| !is_head(path)) {
            let below = path.strip_prefix(docs()).expect("it is below docs");
            match row(&read(&path), &columns, &below.display().to_string()) {
                Ok(row) => page += &row,
                Err(error) => wrong.push(error),
            }
        }
    }
    if wrong.is_empty() { Ok(page) } else { Err(wrong.join("\n")) }
}

#[test]
fn pages_are_what_their_rows_say() {
    for (name, file) in PAGES {
        let page = page(&docs().join(name), name).unwrap_or_else(|wrong| panic!("{wrong}"));
        let path = docs().join(file);
        if std::env::var_os(WRITE).is_some() {
            fs::write(&path, &page).expect("is written");
        }
        let found = fs::read_to_string(&path).expect("the page");
        assert!(found == page, "docs/{file} is another; {WRITE}=1 writes it");
    }
}

#[test]
fn row_is_planted_that_is_too_long_or_lacks_a_column_then_it_is_refused() {
    let columns = ["fault", "test"];
    assert_eq!(
        row("fault: a|b\ntest: `c`\n\nWhy.\n", &columns, "x.md"),
        Ok("| a\\|b ([more](x.md)) | `c` |\n".to_owned())
    );
    assert!(row("fault: a\n", &columns, "x.md").is_err());
    assert!(row(&format!("fault: {}\ntest: c\n", "a".repeat(201)), &columns, "x.md").is_err());
    let tests = format!("fault: a\ntest: cli: `b`, `{}`\n", "c".repeat(200));
    assert_eq!(row(&tests, &columns, "x.md"), Ok("| a | cli: `b` and [others](x.md) |\n".into()));
}
