//! Programs with the library linked in, statically or dynamically. What the other tests show for
//! the preloaded library holds for them, too.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::{Link, Stage, all_same_when_linked, errors, text};

#[test]
fn static_program_is_served() {
    for program in ["served", "mappings"] {
        all_same_when_linked(program, Link::Static, false);
    }
}

#[test]
fn static_program_has_children_and_threads() {
    for program in ["children", "threads"] {
        all_same_when_linked(program, Link::Static, false);
    }
}

#[test]
fn archive_serves_a_dynamic_program_alone() {
    for program in ["mappings", "threads"] {
        all_same_when_linked(program, Link::Archive, true);
    }
}

#[test]
fn archive_gives_way_to_the_library_that_is_preloaded() {
    for program in ["served", "children", "threads"] {
        all_same_when_linked(program, Link::Archive, false);
    }
}

#[test]
fn shared_library_serves_a_program_alone() {
    for program in ["mappings", "threads"] {
        all_same_when_linked(program, Link::Shared, true);
    }
}

#[test]
fn program_that_asks_for_the_library_that_is_preloaded_has_it_once() {
    for program in ["served", "children"] {
        all_same_when_linked(program, Link::Shared, false);
    }
}

const RANK: &str = r#"
#include <stdio.h>
int MPI_Init(int *count, char ***arguments);
int main(void) { printf("%d\n", MPI_Init(NULL, NULL)); return 0; }
"#;

/// Mechanism: only the dynamic linker was asked for the function behind the hook of MPI_Init.
/// Consequence: in a static program it was not found, and MPI could not be initialised. Fix: the
/// function that the archive's linker found comes first (`from_archive`).
#[test]
fn mpi_that_is_linked_beside_the_archive_is_initialised() {
    let stage = Stage::new();
    let (rank, mpi) = (stage.plain().join("rank.c"), stage.plain().join("mpi.c"));
    fs::write(&rank, RANK).expect("writes");
    fs::write(&mpi, "int MPI_Init(int *c, char ***a) { return c || a; }").expect("writes");
    for link in [Link::Static, Link::Archive] {
        let program = link.compile_source(&stage, &rank, &[mpi.to_str().expect("UTF-8")]);
        let ran = stage.on_cairn(&program, &[]);
        assert_eq!(text(&ran), "0\n", "{link:?}: {}", errors(&ran));
        assert_eq!(text(&stage.on_disk(&program, &[])), "0\n", "{link:?}");
    }
}

const OTHER: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn other() -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let caught = std::panic::catch_unwind(|| panic!("caught here")).is_err();
    caught && std::fs::write("file", "from another library").is_ok()
}
"#;

const PROGRAM: &str = r#"
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>
bool other(void);
int main(int count, char **arguments) {
    char line[64] = "";
    if (chdir(arguments[1]) != 0 || !other()) return 1;
    fgets(line, sizeof line, fopen("file", "r"));
    puts(line);
    return 0;
}
"#;

#[test]
fn another_rust_library_lives_beside_the_archive_and_is_served() {
    let stage = Stage::new();
    let (other, program) = (stage.plain().join("other.rs"), stage.plain().join("program.c"));
    fs::write(&other, OTHER).expect("writes");
    fs::write(&program, PROGRAM).expect("writes");
    let library = stage.plain().join("libother.a");
    let made = Command::new("rustc")
        .args(["--edition=2024", "--crate-type=staticlib", "-o"])
        .args([&library, &other])
        .output()
        .expect("there is a Rust compiler");
    assert!(made.status.success(), "{}", errors(&made));
    for link in [Link::Static, Link::Archive] {
        let linked = link.compile_source(&stage, &program, &[library.to_str().expect("UTF-8")]);
        let (disk, cairn) = (
            stage.on_disk(&linked, &[&path(&stage.plain())]),
            stage.on_cairn(&linked, &["/cairn"]),
        );
        assert_eq!(text(&disk), "from another library\n", "{link:?}: {}", errors(&disk));
        assert_eq!(text(&cairn), "from another library\n", "{link:?}: {}", errors(&cairn));
    }
}

fn path(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// Mechanism: a program with the library linked in took its store from the environment, even if it
/// had gained privileges by being executed (set-user-ID). Consequence: whoever executed it chose
/// the directory that it used with these privileges. Fix: such a program has no mount.
#[test]
fn program_that_gains_rights_has_no_mount() {
    const OTHER: &str = "4711";
    let stage = Stage::new();
    let program = Link::Archive.compile(&stage, "secure");
    let as_other = |mode: u32| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("changes");
        let program = path(&program);
        let change =
            ["setpriv", "--reuid", OTHER, "--clear-groups", "env", "LD_PRELOAD=", &program];
        let command = [&["run", "--discard", "--"], &change[..]].concat();
        stage.cairn(&command)
    };
    let plain = as_other(0o755);
    if !plain.status.success() {
        println!("left out: nobody else to be here: {}", errors(&plain));
        return;
    }
    assert_eq!(text(&plain), "open EACCES, 1\n");
    let secure = as_other(0o4755);
    assert_eq!(text(&secure), "open ENOENT, 0\n", "{}", errors(&secure));
}
