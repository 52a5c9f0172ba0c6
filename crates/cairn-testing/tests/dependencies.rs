//! The crates depend exactly on what docs/ARCHITECTURE.md says. Those that run inside an
//! application start no thread, print nothing and never end the process.
//!
//! The tests use cargo's resolved graph (normal dependencies on this system, transitively) and the
//! sources.
//!
//! Does not look at development or build dependencies, at dependencies of other systems (a build
//! fetches none of them), or at the expansion of macros.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates that are loaded into applications.
const INSIDE: [&str; 6] =
    ["cairn-core", "cairn-platform", "cairn-nvme", "cairn-device", "cairn-posix", "cairn-preload"];

/// Crates for authentication to another machine, with everything they need. They are pure, start no
/// threads, and run nothing when they are loaded.
const CRYPTOGRAPHY: [&str; 19] = [
    "base64ct",
    "block-buffer",
    "cfg-if",
    "cmov",
    "cpubits",
    "cpufeatures",
    "crc",
    "crc-catalog",
    "crypto-bigint",
    "crypto-common",
    "ctutils",
    "digest",
    "hmac",
    "hybrid-array",
    "num-traits",
    "sha2",
    "subtle",
    "typenum",
    "zeroize",
];

/// Words forbidden in their sources: threads, output, an end of the application's process.
const FORBIDDEN: [&str; 8] = [
    "thread::spawn",
    "thread::Builder",
    "println!",
    "print!",
    "eprintln!",
    "eprint!",
    "dbg!",
    "process::exit",
];

fn workspace() -> PathBuf {
    let below = Path::new(env!("CARGO_MANIFEST_DIR"));
    below.ancestors().nth(2).expect("the crate lies in crates/").to_owned()
}

/// Returns the names of all packages that `package` is built with, without itself.
fn dependencies(package: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--edges", "normal", "--all-features"])
        .args(["--prefix", "none", "--format", "{p}", "--package", package])
        .current_dir(workspace())
        .output()
        .expect("cargo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree of {package}: {errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let names: BTreeSet<String> =
        text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(names.contains(package), "{package} is not in its own tree: {text}");
    names.into_iter().filter(|name| name != package).collect()
}

fn depends_exactly_on(package: &str, allowed: &[&str]) {
    let expected: BTreeSet<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(dependencies(package), expected, "dependencies of {package}");
}

#[test]
fn core_is_resolved_then_it_depends_on_nothing() {
    depends_exactly_on("cairn-core", &[]);
}

#[test]
fn platform_is_resolved_then_it_depends_on_core_libc_and_a_checksum() {
    depends_exactly_on("cairn-platform", &["cairn-core", "libc"]);
}

/// Returns all of Cairn's crates that the manifest of `package` names.
fn own_direct_dependencies(package: &str) -> BTreeSet<String> {
    let manifest = workspace().join("crates").join(package).join("Cargo.toml");
    let text = std::fs::read_to_string(manifest).expect("each crate has a manifest");
    let normal = text.split("[dependencies]").nth(1).expect("it has dependencies");
    let normal = normal.split("\n[").next().expect("the first part");
    let names = normal.lines().filter_map(|line| line.split(['.', ' ']).next());
    names.filter(|name| name.starts_with("cairn-")).map(str::to_owned).collect()
}

#[test]
fn nvme_and_target_are_resolved_then_neither_knows_a_store() {
    depends_exactly_on(
        "cairn-nvme",
        &[&["cairn-core", "cairn-platform", "libc"], &CRYPTOGRAPHY[..]].concat(),
    );
    assert_eq!(own_direct_dependencies("cairn-nvme"), ["cairn-platform".to_owned()].into());
    let own = ["cairn-nvme", "cairn-platform"].map(str::to_owned);
    assert_eq!(own_direct_dependencies("cairn-target"), own.into());
}

#[test]
fn device_is_resolved_then_it_depends_on_core_platform_and_nvme() {
    let ours = ["cairn-core", "cairn-nvme", "cairn-platform", "libc"];
    depends_exactly_on("cairn-device", &[&ours[..], &CRYPTOGRAPHY].concat());
}

#[test]
fn posix_is_resolved_then_it_adds_what_switches_stacks() {
    let ours = ["cairn-core", "cairn-device", "cairn-nvme", "cairn-platform", "libc", "psm"];
    depends_exactly_on("cairn-posix", &[&ours[..], &CRYPTOGRAPHY].concat());
}

#[test]
fn preload_is_resolved_then_it_depends_on_our_crates_libc_and_a_decoder() {
    // The instruction decoder with what it needs: neither allocates, nor runs anything before it is
    // called.
    let decoder: &[&str] = match cfg!(target_arch = "x86_64") {
        true => &["yaxpeax-arch", "yaxpeax-x86"],
        false => &[],
    };
    let ours = [
        "cairn-core",
        "cairn-device",
        "cairn-nvme",
        "cairn-platform",
        "cairn-posix",
        "libc",
        "psm",
    ];
    depends_exactly_on("cairn-preload", &[&ours[..], decoder, &CRYPTOGRAPHY].concat());
}

/// What a decision must not see: clocks, threads, files, sockets, processes.
const WORLD: [&str; 13] = [
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "Mutex",
    "RwLock",
    "Condvar",
    "Atomic",
    "mpsc",
    "Instant",
    "SystemTime",
    "cairn_platform::sys",
];

#[test]
fn job_is_read_then_it_decides_without_clock_thread_socket_or_file() {
    let own = ["cairn-core", "cairn-platform"].map(str::to_owned);
    assert_eq!(own_direct_dependencies("cairn-job"), own.into());
    let mut files = Vec::new();
    rust_files(&workspace().join("crates/cairn-job/src"), &mut files);
    for file in files.iter().filter(|file| !is_test_module(file)) {
        let source = std::fs::read_to_string(file).expect("is a source");
        for (number, line) in shipped_lines(&source) {
            let code = line.split("//").next().unwrap_or_default();
            let found = WORLD.iter().find(|word| code.contains(**word));
            assert_eq!(found, None, "{}:{number}", file.display());
        }
    }
}

#[test]
fn agent_is_resolved_then_it_depends_on_neither_posix_nor_preload() {
    let found = dependencies("cairn-agent");
    assert!(found.contains("cairn-core") && found.contains("cairn-device"), "{found:?}");
    let ours = found.iter().filter(|name| name.starts_with("cairn-")).count();
    assert_eq!(ours, 5, "of our crates only core, platform, nvme, device and job: {found:?}");
}

#[test]
fn shipped_crates_are_resolved_then_none_depends_on_testing() {
    for package in
        INSIDE.into_iter().chain(["cairn-target", "cairn-job", "cairn-agent", "cairn-cli"])
    {
        let found = dependencies(package);
        assert!(!found.contains("cairn-testing"), "{package} depends on cairn-testing");
        let has_preload = found.contains("cairn-preload");
        assert!(!has_preload, "{package} links the library with the C library's names");
    }
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether the file is a module of unit tests: `tests.rs`, or below `tests/`.
fn is_test_module(path: &Path) -> bool {
    path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests.rs" | "tests")))
}

/// Returns the source without inline modules and items that exist only in tests. Such an item ends
/// at the brace in the column of its attribute, where rustfmt puts it.
fn shipped_lines(source: &str) -> Vec<(usize, &str)> {
    let mut shipped = Vec::new();
    let mut lines = source.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim_start();
        if !trimmed.starts_with("#[cfg(test)]") {
            shipped.push((number + 1, line));
            continue;
        }
        let indent = &line[..line.len() - trimmed.len()];
        let closing = format!("{indent}}}");
        for (_, line) in lines.by_ref() {
            let ends_without_body = line.trim_end().ends_with(';')
                && line.strip_prefix(indent).is_some_and(|rest| !rest.starts_with(' '));
            if line.trim_end() == closing || ends_without_body {
                break;
            }
        }
    }
    shipped
}

/// Whether `word` occurs in `code` other than as the end of a longer name.
fn mentions(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || character == '_')
    })
}

fn offences(source: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (number, line) in shipped_lines(source) {
        // Comments may contain these words.
        let code = line.split("//").next().unwrap_or_default();
        let words = FORBIDDEN.into_iter().filter(|word| mentions(code, word));
        found.extend(words.map(|word| (number, word)));
    }
    found
}

#[test]
fn source_inside_applications_is_read_then_it_spawns_prints_and_exits_nowhere() {
    let mut offenders = Vec::new();
    for package in INSIDE {
        let mut files = Vec::new();
        rust_files(&workspace().join("crates").join(package).join("src"), &mut files);
        assert!(files.len() > 5, "the sources of {package} are found");
        for file in files.iter().filter(|file| !is_test_module(file)) {
            let source = std::fs::read_to_string(file).expect("readable");
            for (number, word) in offences(&source) {
                offenders.push(format!("{}:{number}: {word}", file.display()));
            }
        }
    }
    assert!(offenders.is_empty(), "{}", offenders.join("\n"));
}

#[test]
fn offence_is_planted_then_it_is_found_outside_tests_only() {
    let source = "fn f() {\n    println!();\n}\n#[cfg(test)]\nmod tests {\n    fn g() {\n        \
                  dbg!(1);\n    }\n}\nfn h() { std::process::exit(1) } // print!\n";
    assert_eq!(offences(source), [(2, "println!"), (10, "process::exit")]);
    let declared = "#[cfg(test)]\nmod tests;\nfn f() { dbg!(1); eprintln!() }\n";
    assert_eq!(offences(declared), [(3, "eprintln!"), (3, "dbg!")]);
}
