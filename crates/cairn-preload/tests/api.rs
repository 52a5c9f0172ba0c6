//! The functions of `cairn.h`: their effects and their errors. The header itself is compiled in
//! each language that it supports.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{Link, Stage, cairn, errors, text};

/// Plays a case of `api.c`, linked in this way, in a run with these options. Returns its output.
fn played(stage: &Stage, link: Link, case: &str, options: &[&str]) -> String {
    let program = link.compile(stage, "api");
    let words = [&["run"], options, &["--", program.to_str().expect("UTF-8"), case, "/cairn"]];
    let mut command = stage.command(cairn());
    let out = stage.plain();
    let output = command.args(words.concat()).env("CAIRN_TEST_OUT", out).output();
    let output = output.expect("cairn starts");
    assert_eq!(output.status.code(), Some(0), "{case}: {}{}", text(&output), errors(&output));
    text(&output)
}

/// Output of a case for every way to link the library: shared, archive and static. All must be
/// equal.
fn printed_by_all(case: &str) -> String {
    let stage = Stage::new();
    let [first, others @ ..] = [Link::Shared, Link::Archive, Link::Static]
        .map(|link| played(&stage, link, case, &["--job", "api", "--discard"]));
    others.iter().for_each(|other| assert_eq!(*other, first, "{case}"));
    first
}

/// Errors of refused calls, each with its count.
fn refusals(printed: &str) -> Vec<(&str, usize)> {
    let refused = printed.lines().filter_map(|line| line.split_once(": -1 ")).map(|(_, why)| why);
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for why in refused {
        match counts.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => counts.push((why, 1)),
        }
    }
    counts
}

fn lines(printed: &str) -> Vec<&str> {
    printed.lines().filter(|line| !line.contains(": -1 ")).collect()
}

#[test]
fn header_is_clean_c99_and_cpp() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/cairn.h");
    for (compiler, language) in [("cc", "-std=c99"), ("c++", "-std=c++11")] {
        let kind = if compiler == "cc" { "c" } else { "c++" };
        let output = Command::new(compiler)
            .args([
                language,
                "-pedantic",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
                "-x",
                kind,
            ])
            .arg(&header)
            .output()
            .expect("there is a compiler");
        assert!(output.status.success(), "{language}: {}", errors(&output));
    }
}

#[test]
fn process_without_a_store_is_told_so_and_goes_on() {
    let stage = Stage::new();
    for link in [Link::Shared, Link::Archive, Link::Static] {
        let program = link.compile(&stage, "api");
        let directory = stage.plain();
        let output =
            stage.on_disk(&program, &["without_a_store", directory.to_str().expect("UTF-8")]);
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(0), "{link:?}: {printed}{}", errors(&output));
        let expected = [("ENODEV", 12), ("EINVAL", 2), ("EFAULT", 2)];
        assert_eq!(refusals(&printed), expected, "{link:?}: {printed}");
        assert_eq!(lines(&printed), ["file: "], "{link:?}");
    }
}

#[test]
fn job_and_prefix_are_told_if_there_is_room() {
    let printed = printed_by_all("job_and_prefix_are_told");
    assert_eq!(
        lines(&printed),
        [
            "job: api",
            "cairn_prefix(name, sizeof name): 6",
            "prefix: /cairn",
            "cairn_prefix(name, 7): 6"
        ]
    );
    assert_eq!(refusals(&printed), [("ERANGE", 2), ("EFAULT", 2), ("ENODEV", 1)], "{printed}");
}

#[test]
fn status_counts_what_is_there_in_structures_of_other_sizes_too() {
    let printed = printed_by_all("status_counts_files_and_bytes");
    let expected = [
        "cairn_status(&status): 0",
        "1 files, 10 bytes, 1 undrained, 0 unclean, flags 0, 1 tiers",
        "cairn_status(&larger.status): 0",
    ];
    assert_eq!(lines(&printed), expected);
    assert_eq!(refusals(&printed), [("EINVAL", 2), ("EFAULT", 1)], "{printed}");
}

fn json(output: &Output) -> String {
    assert!(output.status.success(), "{}", errors(output));
    text(output).split_whitespace().collect()
}

#[test]
fn marks_and_hints_are_shown_by_status_and_ls() {
    let stage = Stage::new();
    let printed = played(&stage, Link::Shared, "marks_and_hints_are_kept", &["--job", "marks"]);
    let refused = [("EINVAL", 6), ("EFAULT", 2), ("ENAMETOOLONG", 1)];
    assert_eq!(refusals(&printed), refused, "{printed}");
    assert_eq!(lines(&printed).len(), 5, "{printed}");
    let status = json(&stage.cairn(&["status", "--json", "marks"]));
    for expected in [
        r#""name":"melt100%","step":7,"begun":1,"ended":1"#,
        r#""name":"melt100%","step":18446744073709551615,"begun":1,"ended":0"#,
        r#""name":"killed","step":1,"begun":1,"ended":0"#,
    ] {
        assert!(status.contains(expected), "{expected} in {status}");
    }
    let listed = json(&stage.cairn(&["ls", "--json", "marks"]));
    assert!(listed.contains(r#""hints":["persistent"]"#), "{listed}");
    assert!(listed.contains(r#""hints":["persistent","offload"]"#), "{listed}");
    let people = text(&stage.cairn(&["status", "marks"]));
    assert!(people.contains("killed, step 1: written by 0 of 1 that began it"), "{people}");
}

#[test]
fn waiting_ends_when_the_copy_is_verified_or_never_will_be() {
    let stage = Stage::new();
    let out = stage.plain();
    let options = ["--job", "wait", "--persist", out.to_str().expect("UTF-8")];
    let printed = played(&stage, Link::Shared, "waiting_ends_when_the_copy_is_there", &options);
    assert_eq!(lines(&printed).len(), 6, "{printed}");
    assert!(printed.contains("verified\n"), "{printed}");
    let refused = [
        ("ETIMEDOUT", 2),
        ("EOPNOTSUPP", 1),
        ("EINVAL", 3),
        ("ENOENT", 1),
        ("EISDIR", 1),
        ("EFAULT", 1),
        ("EIO", 2),
    ];
    assert_eq!(refusals(&printed), refused, "{printed}");
}

#[test]
fn files_that_will_not_be_read_soon_give_up_their_room_until_they_are_read() {
    let stage = Stage::new();
    let out = stage.plain();
    let options = ["--job", "cold", "--persist", out.to_str().expect("UTF-8")];
    let scene = "hinted_files_give_up_their_room_until_they_are_read";
    let printed = played(&stage, Link::Shared, scene, &options);
    assert_eq!(refusals(&printed), [], "{printed}");
    assert_eq!(lines(&printed).len(), 7, "{printed}");
}

#[test]
fn nothing_is_waited_for_that_is_not_drained_anywhere() {
    let printed = printed_by_all("nothing_is_drained_without_a_persist_directory");
    assert_eq!(refusals(&printed), [("EOPNOTSUPP", 1)], "{printed}");
    assert_eq!(lines(&printed).len(), 2, "{printed}");
}

#[test]
fn regions_hold_the_bytes_of_the_file_with_their_checksums() {
    let printed = printed_by_all("regions_are_the_file");
    let expected = [
        "cairn_regions(file, 0, regions, sizeof *regions, REGIONS, &generation): 2",
        "32768 bytes at 0, flags 3",
        "1000 bytes at 98304, flags 3",
        "cairn_regions(file, HUGEBLOCK, regions, sizeof *regions, 1, &generation): 1",
        "cairn_regions(file, 3 * HUGEBLOCK + 999, regions, sizeof *regions, 1, &generation): 1",
        "cairn_regions(file, 4 * HUGEBLOCK, regions, sizeof *regions, 1, &generation): 0",
        "cairn_regions(file, UINT64_MAX, regions, sizeof *regions, 1, &generation): 0",
        "cairn_regions(file, 0, regions, sizeof *regions, 0, &generation): 0",
    ];
    assert_eq!(lines(&printed), expected);
    assert_eq!(
        refusals(&printed),
        [("EINVAL", 6), ("EFAULT", 3), ("EBADF", 2), ("EISDIR", 1)],
        "{printed}"
    );
}

#[test]
fn copy_of_a_file_that_is_written_meanwhile_is_never_torn() {
    let printed = printed_by_all("copies_are_never_torn");
    assert_eq!(printed, "writer: 0\n40 times it kept still, and was copied at once\n");
}

#[test]
fn job_is_mounted_by_a_process_that_was_not_run_in_it() {
    let stage = Stage::new();
    let made = ["sh", "-c", "printf made >/cairn/made"];
    for job in ["first", "second"] {
        let ran = stage.cairn(&[&["run", "--job", job, "--"][..], &made].concat());
        assert!(ran.status.success(), "{}", errors(&ran));
    }
    for link in [Link::Static, Link::Shared] {
        let program = link.compile(&stage, "api");
        let play = |case: &str| {
            let mut command = stage.command(&program);
            command.env("CAIRN_TEST_JOB", "first").env("CAIRN_TEST_OTHER", "second");
            let output = command.args([case, "/"]).output().expect("the program starts");
            assert_eq!(output.status.code(), Some(0), "{}{}", text(&output), errors(&output));
            text(&output)
        };
        let printed = play("job_is_mounted_and_given_up");
        let refused = [("EINVAL", 1), ("EBUSY", 4), ("ENODEV", 1), ("EXDEV", 2)];
        assert_eq!(refusals(&printed), refused, "{link:?}: {printed}");
        let printed = play("job_is_mounted_elsewhere");
        assert!(
            printed.ends_with("/else/where\n/else/where/last: written without a run\n"),
            "{printed}"
        );
        let again = [
            "exec",
            "--job",
            "first",
            "--",
            "sh",
            "-c",
            "cat /cairn/made; printf made >/cairn/made",
        ];
        let seen = text(&stage.cairn(&again));
        assert_eq!(seen, "made, and again", "{link:?}");
        let left = fs::read_dir(stage.plain()).expect("the directory is listed").count();
        assert_eq!(left, 0, "nothing was written beside the store");
    }
}

#[test]
fn example_of_the_page_is_compiled_and_runs() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/C-API.md");
    let page = fs::read_to_string(page).expect("docs/C-API.md is there");
    let code = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let stage = Stage::new();
    let source = stage.plain().join("example.c");
    fs::write(&source, code.expect("an example")).expect("the example is written");
    for link in [Link::Shared, Link::Static] {
        let program =
            link.compile_source(&stage, &source, &["-std=gnu99", "-Wall", "-Wextra", "-Werror"]);
        let (out, program) = (stage.plain(), program.to_str().expect("UTF-8"));
        let alone = stage.on_disk(Path::new(program), &[]);
        assert_eq!(alone.status.code(), Some(1), "{}", errors(&alone));
        let out = out.join(format!("{link:?}"));
        fs::create_dir(&out).expect("a directory to drain to");
        let words = ["run", "--persist", out.to_str().expect("UTF-8"), "--", program];
        let ran = stage.cairn(&words);
        assert_eq!(text(&ran), "safe: step 1\n", "{}", errors(&ran));
        assert_eq!(fs::read(out.join("state.1")).expect("it was drained"), b"step 1\n");
    }
}
