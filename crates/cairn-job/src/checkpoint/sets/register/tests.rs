//! Register entries of sets that come and go.

use super::*;
use crate::checkpoint::name::Family;
use crate::checkpoint::name::Name;
use crate::checkpoint::name::Step;
use crate::checkpoint::policy::{CheckpointPolicy, Every};
use crate::file::path::FilePath;

const SECOND: i64 = 1_000_000_000;

fn set(step: u64, version: u64, standing: DrainProgress) -> Set {
    let name = Name { family: Family(b"f.{step}".to_vec()), step: Some(step.into()) };
    let path = FilePath::parse(format!("f.{step}").as_bytes()).expect("a path");
    let members = vec![Member { path, inode: step as u32, version, bytes: 10 }];
    Set { name, members, newest_ns: step as i64, standing, families: Vec::new() }
}

fn complete(steps: &[u64]) -> Vec<Set> {
    steps.iter().map(|&step| set(step, 1, DrainProgress::Complete)).collect()
}

fn rules(pfs: Every) -> Rules {
    Rules::of(&CheckpointPolicy { pfs, ..CheckpointPolicy::default() })
}

fn number(known: &Checkpoint) -> u64 {
    known.name.step.as_ref().and_then(Step::whole_number).unwrap_or(0)
}

/// Returns id, step and wanted level of each checkpoint.
fn known(register: &Register) -> Vec<(u64, u64, Level)> {
    let plain = |known: &Checkpoint| (known.id, number(known), known.wanted);
    register.checkpoints().iter().map(plain).collect()
}

#[test]
fn every_second_is_wanted_outside_also_after_older_ones_went() {
    let mut register = Register::default();
    let rules = rules(Every::Count(2));
    register.take(&complete(&[10, 20]), &rules, 1);
    register.take(&complete(&[20, 30]), &rules, 2);
    register.take(&complete(&[30, 40]), &rules, 3);
    assert_eq!(known(&register), [(3, 30, Level::Node), (4, 40, Level::Pfs)]);
    register.take(&complete(&[30, 40, 50]), &rules, 4);
    register.want_newest();
    assert_eq!(known(&register)[2], (5, 50, Level::Pfs));
    assert_eq!(known(&register)[0], (3, 30, Level::Node));
}

#[test]
fn what_went_is_missed_unless_it_was_outside_or_its_files_are_in_another() {
    let mut register = Register::default();
    let rules = rules(Every::Count(1));
    let missed = |register: &mut Register, sets: &[Set]| {
        let gone = register.take(sets, &rules, 1);
        gone.iter().for_each(|known| register.note_gone(known));
        register.lags().behind().iter().map(|behind| behind.missed).sum::<u64>()
    };
    assert_eq!(missed(&mut register, &complete(&[10, 20, 30])), 0);
    register.note_levels(|file| file.inode == 10);
    assert_eq!(missed(&mut register, &complete(&[20, 30])), 0, "it was outside");
    assert_eq!(missed(&mut register, &complete(&[30])), 1);
    let replaced = [set(30, 2, DrainProgress::Complete)];
    assert_eq!(missed(&mut register, &replaced), 2);
    let mut grown = replaced.clone();
    let other = FilePath::parse(b"f.30.more").expect("a path");
    grown[0].members.push(Member { path: other, inode: 31, version: 1, bytes: 1 });
    assert_eq!(missed(&mut register, &grown), 2);
    grown[0].standing = DrainProgress::Waiting(Reason::Open(grown[0].members[0].path.clone()));
    assert_eq!(missed(&mut register, &grown), 2, "it is being written again");
    register.move_beyond(100);
    assert_eq!(missed(&mut register, &[]), 3);
    register.forgive_cleared();
    assert_eq!(missed(&mut register, &[]), 0);
}

#[test]
fn checkpoint_that_is_adopted_twice_is_one_with_the_number_it_had() {
    let rules = rules(Every::Count(1));
    let [set] = &complete(&[10])[..] else { panic!("one was made") };
    let mut register = Register::default();
    register.adopt(&[set], &rules, 1);
    register.adopt(&[set], &rules, 2);
    assert_eq!(known(&register), [(1, 10, Level::Pfs)]);
    // Another process looked meanwhile and found it incomplete.
    let broken = Set { standing: DrainProgress::Broken(Reason::Repair), ..set.clone() };
    register.take(std::slice::from_ref(&broken), &rules, 3);
    assert_eq!(known(&register), []);
    register.adopt(&[&broken], &rules, 4);
    assert_eq!(known(&register), [(1, 10, Level::Pfs)]);
    register.take(std::slice::from_ref(set), &rules, 5);
    assert_eq!(known(&register), [(1, 10, Level::Pfs)]);
}

/// Mechanism: a file that is written in two passes was complete in between, and its checkpoint was
/// registered. The register found the change only after it knew the next checkpoint. Consequence:
/// the checkpoint got a new id and was the newest. Fix: it keeps its id.
#[test]
fn checkpoint_that_was_complete_too_early_is_no_newer_than_the_next_one() {
    let mut register = Register::default();
    let rules = rules(Every::Count(1));
    register.take(&complete(&[10, 20]), &rules, 25);
    let unsettled = DrainProgress::Waiting(Reason::Unsettled(std::time::Duration::ZERO));
    let mut sets = complete(&[10, 20, 30]);
    sets[1] = set(20, 2, unsettled);
    register.take(&sets, &rules, 35);
    assert_eq!(known(&register), [(1, 10, Level::Pfs), (3, 30, Level::Pfs)]);
    sets[1].standing = DrainProgress::Complete;
    register.take(&sets, &rules, 40);
    let expected = [(1, 10, Level::Pfs), (2, 20, Level::Pfs), (3, 30, Level::Pfs)];
    assert_eq!(known(&register), expected);
    // A checkpoint that is rewritten is newer.
    sets[0] = Set { newest_ns: 45, ..set(10, 2, DrainProgress::Complete) };
    register.take(&sets, &rules, 50);
    assert_eq!(known(&register), [expected[1], expected[2], (4, 10, Level::Pfs)]);
}

/// Mechanism: the remainder of a checkpoint of which a file was dropped was a new checkpoint with
/// the highest id. Consequence: it was the newest: it was drained at the end in place of the real
/// newest, and was offered for a restart. Fix: it stays the same checkpoint.
#[test]
fn checkpoint_that_loses_a_file_stays_where_it_is_in_the_order() {
    let mut register = Register::default();
    let rules = rules(Every::Count(10));
    let mut sets = complete(&[10, 20]);
    let path = FilePath::parse(b"f.10.index").expect("a path");
    sets[0].members.push(Member { path, inode: 99, version: 1, bytes: 10 });
    register.take(&sets, &rules, 1);
    let lost = sets[0].members.remove(0);
    register.take(&sets, &rules, 2);
    register.want_newest();
    assert_eq!(known(&register), [(1, 10, Level::Node), (2, 20, Level::Pfs)]);
    assert_eq!(register.checkpoints()[0].files, sets[0].members);
    // With one more file it is another checkpoint.
    sets[0].members.insert(0, lost);
    register.take(&sets, &rules, 3);
    assert_eq!(known(&register), [(2, 20, Level::Pfs), (3, 10, Level::Node)]);
}

#[test]
fn numbers_that_were_given_before_are_not_given_again_and_what_got_one_is_newer() {
    let mut register = Register::default();
    let rules = rules(Every::default());
    register.skip(3);
    register.take(&complete(&[10, 20]), &rules, 1);
    assert_eq!(known(&register), [(4, 10, Level::Pfs), (5, 20, Level::Pfs)]);
    register.move_beyond(5);
    assert_eq!(known(&register), [(4, 10, Level::Pfs), (5, 20, Level::Pfs)]);
    register.move_beyond(7);
    register.take(&complete(&[10, 20, 30]), &rules, 2);
    let ids: Vec<u64> = register.checkpoints().iter().map(|known| known.id).collect();
    assert_eq!(ids, [11, 12, 13]);
}

#[test]
fn checkpoints_that_only_have_another_name_by_now_stay_in_their_order() {
    let mut register = Register::default();
    let rules = rules(Every::default());
    let mut sets = complete(&[10, 20, 30]);
    // The clock was set back while they were written.
    (sets[0].newest_ns, sets[1].newest_ns) = (9, 8);
    register.adopt(&[&sets[0], &sets[1], &sets[2]], &rules, 100);
    let name = |step| Name { family: Family(b"f.{step}.{rank}".to_vec()), step };
    sets.iter_mut().for_each(|set| set.name = name(set.name.step.clone()));
    register.take(&sets, &rules, 100);
    let steps: Vec<u64> = known(&register).into_iter().map(|(_, step, _)| step).collect();
    assert_eq!(steps, [10, 20, 30]);
}

#[test]
fn checkpoint_that_is_written_again_is_another_one_in_the_same_place() {
    let mut register = Register::default();
    let rules = rules(Every::Count(2));
    register.take(&complete(&[10, 20]), &rules, 1);
    let mut sets = complete(&[10]);
    sets.push(set(20, 2, DrainProgress::Complete));
    register.take(&sets, &rules, 2);
    assert_eq!(known(&register), [(1, 10, Level::Node), (3, 20, Level::Node)]);
    // A checkpoint with one more file is counted once.
    let path = FilePath::parse(b"f.20.index").expect("a path");
    sets[1].members.push(Member { path, inode: 99, version: 1, bytes: 10 });
    register.take(&sets, &rules, 3);
    assert_eq!(known(&register), [(1, 10, Level::Node), (4, 20, Level::Node)]);
}

/// Mechanism: a rewritten checkpoint kept its ordinal in its family. Consequence: of a program that
/// writes to two names in turn, no checkpoint was ever wanted in the persist directory. Fix: each
/// rewrite counts.
#[test]
fn one_in_so_many_is_wanted_outside_also_where_names_are_used_again() {
    let mut register = Register::default();
    let rules = rules(Every::Count(3));
    let (mut sets, mut wanted) = (Vec::new(), Vec::new());
    for version in 1..=9 {
        let step = version % 2;
        sets.retain(|one: &Set| one.name.step != Some(step.into()));
        let newest_ns = version as i64;
        sets.push(Set { newest_ns, ..set(step, version, DrainProgress::Complete) });
        register.take(&sets, &rules, newest_ns);
        let newest = register.checkpoints().last().expect("one was taken");
        wanted.extend((newest.wanted == Level::Pfs).then_some(version));
    }
    assert_eq!(wanted, [3, 6, 9]);
}

/// Mechanism: the remainder of a checkpoint that a program was removing was complete. Consequence:
/// it replaced the whole one in the persist directory, and the next one was complete with as few
/// files. Fix: the remainder waits until the other files are gone, too.
#[test]
fn rest_of_a_checkpoint_is_none_until_it_stays() {
    let mut register = Register::default();
    let rules = rules(Every::Count(10));
    let mut sets = complete(&[10, 20]);
    for number in 0..3 {
        let path = FilePath::parse(format!("f.10.{number}").as_bytes()).expect("a path");
        sets[0].members.push(Member { path, inode: 90 + number, version: 1, bytes: 10 });
    }
    let (all, family) = (sets[0].members.clone(), sets[0].name.family.clone());
    register.take(&sets[..1], &rules, 1);
    let leaving = || DrainProgress::Waiting(Reason::Leaving(Duration::from_secs(1)));
    for (left, now) in [(3, 2), (2, 3), (2, 4)] {
        (sets[0].standing, sets[0].members) = (leaving(), all[..left].to_vec());
        register.take(&sets[..1], &rules, now);
        assert_eq!(known(&register), []);
        let since = if left == 3 { 2 } else { 3 };
        assert_eq!(register.left_since(&sets[0].name, &all[..left]), Some(since));
        assert_eq!(register.last_complete()[&sets[0].name], all);
        assert_eq!(register.usual()[&family].len(), 4);
    }
    register.take(&sets, &rules, 5);
    assert_eq!(known(&register), [(2, 20, Level::Node)]);
    sets[0].standing = DrainProgress::Complete;
    register.take(&sets, &rules, 6);
    assert_eq!(known(&register), [(1, 10, Level::Node), (2, 20, Level::Node)]);
    assert_eq!(register.checkpoints()[0].files, all[..2]);
    assert!(register.rests.is_empty() && register.rewritten.is_empty());
}

#[test]
fn clock_that_was_set_back_makes_no_checkpoint_older() {
    let mut register = Register::default();
    let rules = rules(Every::Seconds(60));
    register.take(&complete(&[1]), &rules, 1_000 * SECOND);
    // An hour before.
    let mut sets = complete(&[1, 2]);
    sets[1].newest_ns = -3_600 * SECOND;
    register.take(&sets, &rules, -2_600 * SECOND);
    assert_eq!(known(&register), [(1, 1, Level::Pfs), (2, 2, Level::Pfs)]);
    sets.push(Set { newest_ns: -3_590 * SECOND, ..set(3, 1, DrainProgress::Complete) });
    register.take(&sets, &rules, -2_590 * SECOND);
    assert_eq!(known(&register)[2], (3, 3, Level::Node), "ten seconds later");
    register.want_newest();
    assert_eq!(known(&register)[2], (3, 3, Level::Pfs));

    // All are seen for the first time in the same look.
    let mut register = Register::default();
    sets.iter_mut().zip([2_000, 900, 1_000]).for_each(|(set, second)| {
        set.newest_ns = second * SECOND;
    });
    register.take(&sets, &rules, 1_010 * SECOND);
    let steps: Vec<u64> = known(&register).into_iter().map(|(_, step, _)| step).collect();
    assert_eq!(steps, [1, 2, 3]);
}

#[test]
fn one_in_so_many_seconds_is_wanted_outside() {
    let mut register = Register::default();
    let rules = rules(Every::Seconds(60));
    for (step, second) in [(1, 0), (2, 59), (3, 61), (4, 100), (5, 121)] {
        let steps: Vec<u64> = (1..=step).collect();
        register.take(&complete(&steps), &rules, second * SECOND);
    }
    let wanted = |(_, step, level)| (level == Level::Pfs).then_some(step);
    let wanted: Vec<u64> = known(&register).into_iter().filter_map(wanted).collect();
    assert_eq!(wanted, [1, 3, 5]);
}

/// Mechanism: the time of the last checkpoint wanted in the persist directory came from the
/// checkpoints that still exist. Consequence: of a program that keeps its newest few, nearly every
/// checkpoint was drained, instead of one per interval. Fix: the register records the time.
#[test]
fn one_in_so_many_seconds_is_wanted_outside_also_after_older_ones_went() {
    let mut register = Register::default();
    let rules = rules(Every::Seconds(60));
    let mut wanted = Vec::new();
    for (step, second) in [(1, 0), (2, 59), (3, 61), (4, 100), (5, 121)] {
        register.take(&complete(&[step]), &rules, second * SECOND);
        wanted.push(known(&register)[0].2 == Level::Pfs);
    }
    assert_eq!(wanted, [true, false, true, false, true]);
    register.take(&complete(&[6]), &rules, 130 * SECOND);
    register.want_newest();
    register.take(&complete(&[7]), &rules, 185 * SECOND);
    assert_eq!(known(&register)[0].2, Level::Node, "the sixth was wanted, too");
}

#[test]
fn clock_that_went_back_keeps_nothing_from_being_wanted() {
    let mut register = Register::default();
    let rules = rules(Every::Seconds(60));
    register.take(&complete(&[1]), &rules, 5000 * SECOND);
    register.take(&complete(&[1, 2]), &rules, 10 * SECOND);
    register.take(&complete(&[1, 2, 3]), &rules, 69 * SECOND);
    let wanted: Vec<Level> = known(&register).into_iter().map(|(_, _, wanted)| wanted).collect();
    assert_eq!(wanted, [Level::Pfs, Level::Pfs, Level::Node]);
}

#[test]
fn checkpoint_whose_files_are_being_written_again_is_remembered_until_it_is_complete() {
    let mut register = Register::default();
    let rules = rules(Every::Count(3));
    register.take(&complete(&[10, 20]), &rules, 1);
    let open = DrainProgress::Waiting(Reason::Marks(1, 0));
    let sets = |set| [complete(&[10]), vec![set]].concat();
    let before = set(20, 1, DrainProgress::Complete);
    register.take(&sets(set(20, 2, open)), &rules, 2);
    assert_eq!(known(&register), [(1, 10, Level::Node)]);
    assert_eq!(register.last_complete().get(&before.name), Some(&&before.members[..]));
    register.take(&sets(set(20, 3, DrainProgress::Complete)), &rules, 3);
    assert_eq!(known(&register), [(1, 10, Level::Node), (3, 20, Level::Pfs)]);
    assert!(register.rewritten.is_empty());
    register.take(&complete(&[10]), &rules, 4);
    assert_eq!(register.last_complete().get(&before.name), None);
}

#[test]
fn unfinished_set_of_a_failed_run_is_remembered_until_its_files_change() {
    let mut register = Register::default();
    let waiting = DrainProgress::Waiting(Reason::Ranks(1, 2));
    let sets = [set(10, 1, waiting)];
    register.abandon(&sets);
    register.abandon(&sets);
    assert!(register.was_abandoned(&sets[0].members));
    assert_eq!(register.abandoned.len(), 1);
    register.take(&[set(10, 2, DrainProgress::Complete)], &rules(Every::default()), 1);
    assert!(register.abandoned.is_empty());
    assert_eq!(known(&register), [(1, 10, Level::Pfs)]);
}

/// Mechanism: the files of an unfinished set were compared with all files that exist. Consequence:
/// when a restart script removed one of them, the rest was a checkpoint some seconds later. Fix: a
/// part of an unfinished set is unfinished.
#[test]
fn unfinished_set_stays_so_when_files_of_it_are_removed() {
    let unclean = FilePath::parse(b"f.10").expect("a path");
    let standings = [
        DrainProgress::Waiting(Reason::Unsettled(Duration::ZERO)),
        DrainProgress::Broken(Reason::Unclean(unclean)),
    ];
    for standing in standings {
        let mut register = Register::default();
        let mut left = set(10, 1, DrainProgress::Complete);
        let path = FilePath::parse(b"f.10.index").expect("a path");
        left.members.push(Member { path, inode: 99, version: 1, bytes: 10 });
        left.standing = standing;
        register.abandon(std::slice::from_ref(&left));
        let removed = left.members.remove(0);
        assert!(register.was_abandoned(&left.members));
        left.standing = DrainProgress::Broken(Reason::Abandoned);
        register.take(std::slice::from_ref(&left), &rules(Every::default()), 1);
        assert!(register.was_abandoned(&left.members));
        left.members = vec![Member { version: 2, ..removed }];
        assert!(!register.was_abandoned(&left.members), "it was written again");
    }
}

/// Mechanism: an unfinished set counted as another one when one of its files had changed.
/// Consequence: with the first file that the next run rewrote, it was complete with files of both
/// runs. Fix: all of its files must be rewritten.
#[test]
fn unfinished_set_stays_so_until_all_of_its_files_are_written_again() {
    let mut register = Register::default();
    let path = FilePath::parse(b"f.10.index").expect("a path");
    let with = |version, index_version| {
        let mut found = set(10, version, DrainProgress::Broken(Reason::Abandoned));
        let path = path.clone();
        found.members.push(Member { path, inode: 99, version: index_version, bytes: 10 });
        found
    };
    register.abandon(&[with(1, 1)]);
    let has_left = |register: &Register, found: Set| register.has_abandoned(&found.members);
    register.take(&[with(2, 1)], &rules(Every::default()), 1);
    assert!(has_left(&register, with(2, 1)) && !register.was_abandoned(&with(2, 1).members));
    // That run fails, too.
    register.abandon(&[with(2, 1)]);
    assert!(has_left(&register, with(2, 2)) && !has_left(&register, with(3, 2)));
    // A link to a file of a checkpoint is not half-written.
    let linked = Member { inode: 10, version: 2, ..with(1, 1).members[1].clone() };
    let whole = Set { members: vec![linked], ..set(20, 1, DrainProgress::Complete) };
    register.take(&[whole, with(2, 2)], &rules(Every::default()), 2);
    assert!(!has_left(&register, with(2, 2)));
}
