//! Comments are at most 100 columns wide, like the code; rustfmt checks only the code.
//!
//! Drawings and tables in a code block may be wider.

use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS_MAX: usize = 100;

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the numbers of comment lines that are too wide.
fn too_wide(source: &str) -> Vec<usize> {
    let mut is_drawing = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(source.lines()) {
        let Some(text) = line.trim_start().strip_prefix("//") else {
            is_drawing = false;
            continue;
        };
        if text.trim_start_matches(['/', '!']).trim_start().starts_with("```") {
            is_drawing = !is_drawing;
        } else if !is_drawing && line.chars().count() > COLUMNS_MAX {
            found.push(number);
        }
    }
    found
}

#[test]
fn comments_are_no_wider_than_the_code() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    let mut files = Vec::new();
    rust_files(crates, &mut files);
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let lines = too_wide(&fs::read_to_string(path).expect("a source file is text"));
            lines.into_iter().map(move |line| format!("{}:{line}", path.display()))
        })
        .collect();
    assert!(wrong.is_empty(), "comments of more than {COLUMNS_MAX} columns:\n{}", wrong.join("\n"));
}

#[test]
fn wide_comment_is_planted_then_it_is_found_unless_it_is_drawn() {
    let wide = "x".repeat(COLUMNS_MAX);
    let source = format!(
        "// {wide}\nlet a = \"{wide}\";\n//! ```text\n//! {wide}\n//! ```\n    /// {wide}\n"
    );
    assert_eq!(too_wide(&source), [1, 6]);
}
