//! Sets of synthetic trees.

use super::*;
use crate::checkpoint::name::Family;
use crate::checkpoint::name::Name;

const SECOND: i64 = 1_000_000_000;

fn file(inode: u32, mtime_s: i64) -> Node {
    Node {
        bytes: 10,
        mtime_ns: mtime_s * SECOND,
        written_ns: mtime_s * SECOND,
        ..Node::new(inode, Kind::File)
    }
}

fn tree(files: &[(&str, Node)]) -> Tree {
    let path = |name: &str| FilePath::parse(name.as_bytes()).expect("a path");
    files.iter().map(|(name, node)| (path(name), node.clone())).collect()
}

/// Situation of an ordinary run that began long ago.
struct Known {
    now_s: i64,
    ranks: Option<u32>,
    run: Run,
    /// Files of the newest complete set; none if there is none.
    usual: &'static [&'static str],
    left_s: Option<i64>,
    abandoned: bool,
    /// When the run was last seen alive, if not now.
    alive_s: Option<i64>,
    marks: Vec<Mark>,
    /// Files of the only set when it was last complete.
    last: &'static [(&'static str, u32, u64)],
}

const KNOWN: Known = Known {
    now_s: 100,
    ranks: None,
    run: Run::Running,
    usual: &[],
    left_s: None,
    abandoned: false,
    alive_s: None,
    marks: Vec::new(),
    last: &[],
};

fn ranks(count: u32) -> Ranks {
    Ranks { count, numbers: (0..count.into()).collect() }
}

fn sets(files: &[(&str, Node)], known: &Known) -> Vec<(String, DrainProgress)> {
    let path = |name: &str| FilePath::parse(name.as_bytes()).expect("a path");
    let last = known.last.iter().map(|&(name, inode, version)| Member {
        path: path(name),
        inode,
        version,
        bytes: 10,
    });
    let last: Vec<Member> = last.collect();
    let usual =
        known.usual.iter().map(|name| Member { path: path(name), inode: 1, version: 1, bytes: 1 });
    let usual: Vec<Member> = usual.collect();
    let usual = Some(&usual[..]).filter(|it| !it.is_empty());
    let ranks = known.ranks.map(ranks);
    let situation = Situation {
        now_ns: known.now_s * SECOND,
        ranks: ranks.as_ref(),
        run: known.run,
        alive_ns: known.alive_s.unwrap_or(known.now_s) * SECOND,
        ended_ns: 0,
        settle: Duration::from_secs(5),
        marks: &known.marks,
        is_known: &|_| false,
        usual: &|_| usual,
        last_complete: &|_| Some(&last[..]).filter(|last| !last.is_empty()),
        left_since: &|_, _| known.left_s.map(|left_s| left_s * SECOND),
        was_abandoned: &|_| known.abandoned,
        has_abandoned: &|_| false,
    };
    let tree = tree(files);
    let sets =
        survey(&[(&FilePath::root(), &tree)], &Patterns::with_defaults(Vec::new()), &situation);
    let shown = |name: &Name| match &name.step {
        Some(step) => format!("{} {step}", name.family),
        None => name.family.to_string(),
    };
    sets.into_iter().map(|set| (shown(&set.name), set.standing)).collect()
}

fn only(files: &[(&str, Node)], known: &Known) -> DrainProgress {
    let mut found = sets(files, known);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0).1
}

fn unsettled(seconds: u64) -> DrainProgress {
    DrainProgress::Waiting(Reason::Unsettled(Duration::from_secs(seconds)))
}

const UNPROVEN: DrainProgress = DrainProgress::Waiting(Reason::Unproven(None));

#[test]
fn numbered_files_are_complete_when_they_are_closed() {
    let open = Node { open: true, ..file(3, 100) };
    let files = [("f.1", file(2, 99)), ("f.2", open), ("log", file(4, 1))];
    let path = FilePath::parse(b"f.2").expect("a path");
    let expected = [
        ("f.{step} 1".to_string(), DrainProgress::Complete),
        ("f.{step} 2".to_string(), DrainProgress::Waiting(Reason::Open(path))),
    ];
    assert_eq!(sets(&files, &KNOWN), expected);
}

#[test]
fn directory_is_complete_when_it_is_as_large_as_the_one_before_and_not_because_it_is_quiet() {
    let files = [("ckpt-7/a", file(2, 97)), ("ckpt-7/b", file(3, 98))];
    assert_eq!(only(&files, &KNOWN), unsettled(3));
    assert_eq!(only(&files, &Known { now_s: 103, ..KNOWN }), UNPROVEN);
    let usual = |files| Known { usual: files, ..KNOWN };
    assert_eq!(only(&files, &usual(&["ckpt-6/a", "ckpt-6/b"])), DrainProgress::Complete);
    assert_eq!(only(&files, &usual(&["ckpt-6/a", "ckpt-6/b", "ckpt-6/c"])), unsettled(58));
    assert_eq!(only(&files, &usual(&["ckpt-6/a", "ckpt-6/model"])), unsettled(58), "other files");
    assert_eq!(only(&files, &Known { run: Run::Succeeded, ..KNOWN }), DrainProgress::Complete);
    assert_eq!(only(&files, &Known { run: Run::Failed, ..KNOWN }), unsettled(3));
}

/// Mechanism: a set counted as complete once a `.metadata` was beside its shards. Consequence: half
/// a checkpoint was complete: accelerate writes one for the model and one for the optimizer.
#[test]
fn metadata_of_shards_do_not_end_a_checkpoint() {
    let names = ["x/ckpt-7/model/__0_0.distcp", "x/ckpt-7/model/.metadata"];
    let files = names.map(|name| (name, file(2, 99)));
    assert_eq!(only(&files, &KNOWN), unsettled(4));
}

#[test]
fn directory_is_complete_once_a_later_one_was_begun_or_it_was_renamed_into_place() {
    let open = Node { open: true, ..file(3, 99) };
    let files = [("ckpt-7/a", file(2, 99)), ("ckpt-10/a", open.clone())];
    let standings: Vec<bool> = sets(&files, &KNOWN)
        .iter()
        .map(|(_, standing)| *standing == DrainProgress::Complete)
        .collect();
    assert_eq!(standings, [true, false]);
    // It lacks files that its predecessor had. That a writer has moved on tells nothing of others.
    let files = [("ckpt-7/a", file(2, 98)), ("ckpt-7/b", file(4, 98)), ("ckpt-10/a", file(5, 99))];
    let known = Known { now_s: 900, usual: &["ckpt-6/a", "ckpt-6/b", "ckpt-6/c"], ..KNOWN };
    let first = |files: &[(&str, Node)]| sets(files, &known).remove(0).1;
    assert_eq!(first(&files), UNPROVEN);
    assert_eq!(first(&[&files[..], &[("ckpt-10/b", open)]].concat()), UNPROVEN);
    let directory =
        |renamed: bool| Node { kind: Kind::Directory, bytes: 0, renamed, ..file(9, 99) };
    let with = |renamed| [("x/ckpt-7", directory(renamed)), ("x/ckpt-7/a", file(2, 99))];
    assert_eq!(only(&with(false), &KNOWN), unsettled(4));
    assert_eq!(only(&with(true), &KNOWN), DrainProgress::Complete);
}

#[test]
fn every_rank_must_have_written_its_part() {
    let parts = |count: u32| -> Vec<(String, Node)> {
        (0..count).map(|rank| (format!("s.{}.{rank}", 10), file(2 + rank, 99))).collect()
    };
    let with_next = |count| {
        let mut files = parts(count);
        files.push(("s.20.0".to_string(), file(50, 200)));
        files.push(("s.20.1".to_string(), file(51, 200)));
        files
    };
    let found = |count, run| {
        let files = with_next(count);
        let files: Vec<(&str, Node)> =
            files.iter().map(|(name, node)| (name.as_str(), node.clone())).collect();
        sets(&files, &Known { ranks: Some(4), run, now_s: 155, ..KNOWN })
    };
    let step = |step: u64, standing| (format!("s.{{step}}.{{rank}} {step}"), standing);
    let waits = |there| DrainProgress::Waiting(Reason::Ranks(there, 4));
    assert_eq!(found(3, Run::Running), [step(10, waits(3)), step(20, waits(2))]);
    assert_eq!(found(4, Run::Running), [step(10, DrainProgress::Complete), step(20, waits(2))]);
    // After the end of the run no more parts come.
    let lacks = |there| DrainProgress::Broken(Reason::Ranks(there, 4));
    assert_eq!(found(3, Run::Succeeded), [step(10, lacks(3)), step(20, lacks(2))]);
}

#[test]
fn set_of_a_dead_writer_or_that_a_failed_run_left_is_broken_whatever_follows() {
    let unclean = Node { unclean: true, ..file(3, 1) };
    let files = [("ckpt-7/a", file(2, 1)), ("ckpt-7/b", unclean)];
    let known = Known { run: Run::Succeeded, usual: &["ckpt-6/a"], ..KNOWN };
    assert!(matches!(only(&files, &known), DrainProgress::Broken(Reason::Unclean(_))));
    let files = [("ckpt-7/a", file(2, 1))];
    let known = Known { abandoned: true, usual: &["ckpt-6/a", "ckpt-6/b"], ..known };
    assert_eq!(only(&files, &known), DrainProgress::Broken(Reason::Abandoned));
    // Another one that is whole tells that nothing is missing.
    let known = Known { usual: &["ckpt-8/a"], ..known };
    assert_eq!(only(&files, &known), DrainProgress::Complete);
}

/// Mechanism: time that passed after the death of a run counted as quiet, and its closed parts
/// counted as all. Consequence: long enough after the death, the unfinished set was found complete,
/// was drained, and was offered for a restart. Fix: only time in which programs could have written
/// counts as quiet.
#[test]
fn what_a_run_left_does_not_become_complete_after_its_death() {
    let directory = [("ckpt-7/a", file(2, 90)), ("ckpt-7/b", file(3, 90))];
    let parts = [("rank.0", file(2, 90)), ("rank.1", file(3, 90))];
    let failed = |alive_s| Known { run: Run::Failed, alive_s: Some(alive_s), ..KNOWN };
    for files in [directory, parts] {
        assert_eq!(only(&files, &failed(91)), unsettled(4));
        assert_eq!(only(&files, &failed(i64::MIN / SECOND)), unsettled(5), "nobody knows");
        assert_eq!(only(&files, &failed(95)), UNPROVEN, "it was quiet before");
        // The same holds before the run is known to have failed.
        assert_eq!(only(&files, &Known { now_s: 94, ..KNOWN }), unsettled(1));
    }
}

#[test]
fn what_a_program_marks_is_its_checkpoint_and_complete_when_all_are_done() {
    let mark = |begun, ended| Mark {
        name: Name { family: Family(b"melt".to_vec()), step: Some(5.into()) },
        begun,
        ended,
        expected: 2,
        first_ns: 10 * SECOND,
        last_ns: 20 * SECOND,
        cut_off_ns: None,
    };
    let files = [("ckpt-7/a", file(2, 12)), ("b", file(3, 15)), ("c", file(4, 30))];
    let standing = |begun, ended, run| {
        let known = Known { marks: vec![mark(begun, ended)], run, now_s: 25, ..KNOWN };
        let found = sets(&files, &known);
        assert_eq!(found[0].0, "melt 5");
        found[0].1.clone()
    };
    let waits = |begun, ended| DrainProgress::Waiting(Reason::Marks(begun, ended));
    assert_eq!(standing(2, 2, Run::Running), DrainProgress::Complete);
    assert_eq!(standing(2, 1, Run::Succeeded), waits(2, 1));
    assert_eq!(standing(1, 1, Run::Running), waits(2, 1));
    assert_eq!(standing(1, 1, Run::Succeeded), DrainProgress::Complete);
}

#[test]
fn clock_that_went_back_completes_nothing() {
    let files = [("ckpt-7/a", file(2, 5000))];
    assert_eq!(only(&files, &KNOWN), unsettled(5));
}

/// Mechanism: as many files as the previous checkpoint had, or as there are ranks, counted as all,
/// also where files were rewritten under the same names one after another. Consequence: between two
/// rewrites the store held new and old files, which were drained as one checkpoint. Fix: the files
/// of the last complete version are known. A file that is not rewritten yet is not part of the next
/// checkpoint.
#[test]
fn files_that_are_written_again_are_complete_when_all_of_them_were() {
    const BEFORE: &[(&str, u32, u64)] = &[("ckpt-7/a", 2, 1), ("ckpt-7/b", 3, 1)];
    let again = |inode, version| Node { version, ..file(inode, 97) };
    let known = Known { usual: &["ckpt-7/a", "ckpt-7/b"], last: BEFORE, ..KNOWN };
    let with = |a, b| only(&[("ckpt-7/a", a), ("ckpt-7/b", b)], &known);
    assert_eq!(with(again(2, 1), again(3, 1)), DrainProgress::Complete, "nothing was");
    assert_eq!(with(again(2, 2), again(3, 1)), unsettled(57));
    assert_eq!(with(again(5, 1), again(3, 1)), unsettled(57), "another file");
    assert_eq!(with(again(2, 2), again(3, 2)), DrainProgress::Complete);
    let more = [("ckpt-7/a", again(2, 1)), ("ckpt-7/b", again(3, 1)), ("ckpt-7/c", again(4, 1))];
    assert_eq!(only(&more, &known), DrainProgress::Complete, "nothing was replaced");

    const PARTS: &[(&str, u32, u64)] = &[("state.0", 2, 1), ("state.1", 3, 1)];
    let known = Known { ranks: Some(2), usual: &["state.0", "state.1"], last: PARTS, ..KNOWN };
    let with = |a, b| only(&[("state.0", a), ("state.1", b)], &known);
    assert_eq!(with(again(2, 2), again(3, 1)), unsettled(57));
    assert_eq!(with(again(2, 2), again(3, 2)), DrainProgress::Complete);
}

#[test]
fn what_is_left_of_a_set_is_complete_when_it_has_stayed_or_the_run_has_ended_well() {
    const BEFORE: &[(&str, u32, u64)] = &[("ckpt-7/a", 2, 1), ("ckpt-7/b", 3, 1)];
    let files = [("ckpt-7/b", Node { version: 1, ..file(3, 7) }), ("ckpt-9/a", file(4, 90))];
    let first = |known: Known| sets(&files, &known).remove(0).1;
    let known = || Known { usual: &["ckpt-9/a"], last: BEFORE, ..KNOWN };
    let leaving = |seconds| DrainProgress::Waiting(Reason::Leaving(Duration::from_secs(seconds)));
    assert_eq!(first(known()), leaving(60));
    assert_eq!(first(Known { left_s: Some(70), ..known() }), leaving(30));
    assert_eq!(first(Known { left_s: Some(170), ..known() }), leaving(60), "the clock went back");
    assert_eq!(first(Known { left_s: Some(40), ..known() }), DrainProgress::Complete);
    assert_eq!(first(Known { run: Run::Succeeded, ..known() }), DrainProgress::Complete);
    assert_eq!(first(Known { run: Run::Failed, ..known() }), leaving(60), "which is given up then");
}

/// Mechanism: a set counted as complete as soon as the next one was begun, even with fewer files
/// than its predecessor. Consequence: while some processes had begun the next one and another still
/// wrote to this one, it was drained without that part. Fix: it waits like any other smaller set.
#[test]
fn smaller_set_waits_for_more_though_the_next_one_was_begun() {
    let files = [("ckpt-7/a", file(2, 97)), ("ckpt-10/a", file(3, 99)), ("ckpt-10/b", file(4, 99))];
    let usual: &[_] = &["ckpt-6/a", "ckpt-6/b"];
    let with = |now_s| sets(&files, &Known { now_s, usual, ..KNOWN });
    let standings = |found: Vec<(String, DrainProgress)>| found.into_iter().map(|one| one.1);
    assert!(standings(with(100)).eq([unsettled(57), DrainProgress::Complete]));
    assert!(standings(with(157)).eq([UNPROVEN, DrainProgress::Complete]));
}

/// Mechanism: a set counted as complete as soon as one with a greater step existed. Consequence: a
/// program had gone back to an earlier step and wrote it again, while a later step was there: each
/// of its files was taken for a checkpoint when it was closed. Fix: the later step must be at least
/// as new.
#[test]
fn later_step_that_is_older_was_not_begun_after_this_one() {
    let files = [("ckpt-7/a", file(2, 99)), ("ckpt-10/a", file(3, 50)), ("ckpt-9/a", file(4, 10))];
    let found = sets(&files, &KNOWN);
    let standings = [unsettled(4), DrainProgress::Complete, DrainProgress::Complete];
    assert_eq!(found.into_iter().map(|(_, standing)| standing).collect::<Vec<_>>(), standings);
}

/// Mechanism: a set was complete as soon as the next step was begun, if none before it was known.
/// Consequence: after the loss of a node, the remainder of a checkpoint that was being removed
/// counted as complete. Fix: it needs a counterpart of every file of later sets, except
/// half-written ones.
#[test]
fn followed_set_that_lacks_what_the_next_one_has_waits() {
    let first = |files: &[(&str, Node)]| sets(files, &KNOWN).remove(0).1;
    let (left, next) = (("ckpt-7/b", file(2, 97)), ("ckpt-8/b", file(4, 98)));
    let more = |open| ("ckpt-8/a", Node { open, ..file(3, 99) });
    assert_eq!(first(&[left.clone(), next.clone(), more(false)]), unsettled(57));
    assert_eq!(first(&[left.clone(), next.clone(), more(true)]), DrainProgress::Complete);
    let directory = Node { kind: Kind::Directory, bytes: 0, renamed: true, ..file(9, 90) };
    assert_eq!(first(&[("ckpt-7", directory), left, next, more(false)]), unsettled(57));
}

/// Mechanism: where no complete version of a set was known, nothing told that some of it was old.
/// Consequence: of two directories that are written in turn, one with old and new files was
/// complete. Fix: a set is mixed if another one was written in between.
#[test]
fn set_whose_files_are_older_and_newer_than_another_one_waits() {
    let files = |b_s| {
        let other = [("ckpt-0/a", file(2, 50)), ("ckpt-0/b", file(3, 51))];
        [&other[..], &[("ckpt-1/a", file(4, 99)), ("ckpt-1/b", file(5, b_s))]].concat()
    };
    let known = Known { usual: &["ckpt-0/a", "ckpt-0/b"], ..KNOWN };
    let second = |b_s| sets(&files(b_s), &known).remove(1).1;
    assert_eq!((second(10), second(98)), (unsettled(59), DrainProgress::Complete));
}

/// Mechanism: only the times of files counted. Consequence: a directory was quiet as soon as the
/// first old file was linked into it. Fix: the times of directories count, too.
#[test]
fn directory_into_which_old_files_are_linked_is_not_quiet() {
    let directory = |mtime_s| Node { kind: Kind::Directory, bytes: 0, ..file(9, mtime_s) };
    let with = |mtime_s| [("ckpt-7", directory(mtime_s)), ("ckpt-7/a", file(2, 10))];
    assert_eq!(only(&with(99), &KNOWN), unsettled(4));
    assert_eq!(only(&with(90), &KNOWN), UNPROVEN);
}

/// Mechanism: a set was complete when each rank had a file in it, and after a while even without
/// some. Consequence: it was complete before each rank had begun its second file, and while a rank
/// was late. Fix: a rank must have moved on, and while the run goes on the parts of all ranks must
/// be there.
#[test]
fn ranks_may_write_more_than_one_file_and_late() {
    let ranks = |count| Known { ranks: Some(count), ..KNOWN };
    let files = [("s.10.0", file(2, 98)), ("s.10.1", file(3, 99))];
    assert_eq!(only(&files, &ranks(2)), unsettled(4));
    let usual: &[_] = &["s.9.0", "s.9.1", "t.9.0", "t.9.1"];
    assert_eq!(only(&files, &Known { usual, ..ranks(2) }), unsettled(59));
    let later = |names: &[&'static str], run| {
        let later: Vec<_> = names.iter().map(|name| (*name, file(9, 120))).collect();
        sets(&[&files[..], &later].concat(), &Known { now_s: 900, run, ..ranks(3) }).remove(0).1
    };
    for names in [["s.20.0", "s.20.1"], ["s.20.1", "s.20.2"]] {
        let unproven = DrainProgress::Waiting(Reason::Unproven(Some((2, 3))));
        assert_eq!(later(&names, Run::Running), unproven);
    }
    assert_eq!(
        later(&["s.20.0", "s.20.1"], Run::Succeeded),
        DrainProgress::Complete,
        "two of three write"
    );
    let lacks = DrainProgress::Broken(Reason::Ranks(2, 3));
    assert_eq!(later(&["s.20.1", "s.20.2"], Run::Succeeded), lacks);
}

#[test]
fn namespaces_of_ranks_hold_parts_of_the_same_checkpoints() {
    let of_rank = |rank: u32, names: &[&str]| {
        let files: Vec<(String, Node)> =
            names.iter().map(|name| (format!("rank-{rank}/{name}"), file(2, 99))).collect();
        let files: Vec<(&str, Node)> =
            files.iter().map(|(name, node)| (name.as_str(), node.clone())).collect();
        (FilePath::parse(format!("rank-{rank}").as_bytes()).expect("a path"), tree(&files))
    };
    let groves = [of_rank(0, &["f.1", "f.2", "log"]), of_rank(1, &["f.1", "log"])];
    let groves: Vec<NamespaceTree<'_>> =
        groves.iter().map(|(prefix, tree)| (prefix, tree)).collect();
    let situation = Situation {
        now_ns: 100 * SECOND,
        ranks: Some(&ranks(2)),
        run: Run::Running,
        alive_ns: 100 * SECOND,
        ended_ns: 0,
        settle: Duration::from_secs(5),
        marks: &[],
        is_known: &|_| false,
        usual: &|_| None,
        last_complete: &|_| None,
        left_since: &|_, _| None,
        was_abandoned: &|_| false,
        has_abandoned: &|_| false,
    };
    let sets = survey(&groves, &Patterns::with_defaults(Vec::new()), &situation);
    let plain: Vec<_> = sets
        .iter()
        .map(|set| (set.name.to_string(), set.members.len(), set.is_complete()))
        .collect();
    let name = |step: u32| format!("rank-*/f.{step}");
    assert_eq!(plain, [(name(1), 2, true), (name(2), 1, false)]);
}

/// Mechanism: a set in which one file was rewritten after it had been complete was a mixture, also
/// when the run had ended well. Consequence: a program appended to the last file of its checkpoint
/// while the agent looked; the checkpoint was missing in the list of complete ones, and
/// `--newest-only` took an older one. Fix: a program that ended well has written everything it
/// wanted to.
#[test]
fn what_was_written_again_is_whole_once_the_run_has_ended_well() {
    let files = [("ckpt-2/a", file(1, 98)), ("ckpt-2/b", Node { version: 3, ..file(2, 99) })];
    let known = |run| Known {
        run,
        usual: &["ckpt-1/a", "ckpt-1/b"],
        last: &[("ckpt-2/a", 1, 1), ("ckpt-2/b", 2, 2)],
        ..KNOWN
    };
    assert!(matches!(only(&files, &known(Run::Running)), DrainProgress::Waiting(_)));
    assert_eq!(only(&files, &known(Run::Succeeded)), DrainProgress::Complete);
}
