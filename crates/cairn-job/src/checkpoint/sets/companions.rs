//! Joins families whose files of one step lie side by side into one checkpoint, whatever words are
//! in their names: `model.3` and `optim.3`, `ckpt-3.index` and `ckpt-3.data-00000-of-00001`, the
//! `.coor`, `.vel` and `.xsc` of a step.
//!
//! Pure. The evidence is the steps that either of two families in a directory has. The newest step
//! is left out, because it may be unfinished, and so are steps from before both families existed.
//! The families belong together if most of these steps have files of both, written before those of
//! the next step; or if both have only the newest step. Must stay true: a step that lacks files
//! that others have stays joined with them, so it does not count as complete. A family that is
//! written more often than every other step of another is not held back by it.

use super::{Draft, newest_ns};
use crate::checkpoint::name::{Family, Name, Step, Value};
use crate::file::path::FilePath;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Maximum number of families in a directory for which joins are tried, because each pair is
/// compared.
const FAMILIES_MAX: usize = 64;

/// Steps of a family by value, each with its text and the time of the last write to its files.
type Steps = BTreeMap<Value, (Step, i64)>;

/// Directories with the families of their drafts and the steps of these.
type Places = BTreeMap<FilePath, BTreeMap<Family, Steps>>;

/// Joins drafts of one step whose families belong together. A draft for which `is_fixed` is true
/// stays as it is.
pub fn join<'a>(
    mut drafts: BTreeMap<Name, Draft<'a>>,
    is_fixed: &dyn Fn(&Draft<'a>) -> bool,
) -> BTreeMap<Name, Draft<'a>> {
    let mut places = Places::new();
    for (name, draft) in &drafts {
        if let (Some(step), false, Some(place)) = (&name.step, is_fixed(draft), place(draft)) {
            let families = places.entry(place).or_default();
            let steps = families.entry(name.family.clone()).or_default();
            steps.insert(step.value(), (step.clone(), newest_ns(draft)));
        }
    }
    for families in places.into_values().filter(|it| (2..=FAMILIES_MAX).contains(&it.len())) {
        for group in groups(&families) {
            let joined = common(&group);
            let all = group.iter().flat_map(|family| &families[*family]);
            let steps: BTreeMap<&Value, &Step> =
                all.map(|(value, (step, _))| (value, step)).collect();
            for (value, step) in steps {
                let name = |family: &Family, step: &Step| Name {
                    family: family.clone(),
                    step: Some(step.clone()),
                };
                let part = |family: &&Family| {
                    let (step, _) = families[*family].get(value)?;
                    drafts.remove(&name(family, step))
                };
                let parts: Vec<Draft<'a>> = group.iter().filter_map(part).collect();
                let draft = drafts.entry(name(&joined, step)).or_default();
                for part in parts {
                    draft.files.extend(part.files);
                    draft.ranks.extend(part.ranks);
                }
                draft.families = group.iter().map(|family| (*family).clone()).collect();
            }
        }
    }
    drafts
}

/// Returns the directory in which all of a draft lies, and other drafts may lie beside it.
fn place(draft: &Draft<'_>) -> Option<FilePath> {
    let parent = |path: &FilePath| path.split().map(|(parent, _)| parent);
    if let Some(directory) = &draft.directory {
        return parent(directory);
    }
    let mut parents = draft.files.iter().map(|(path, _)| parent(path));
    let first = parents.next()??;
    parents.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// Returns the groups of two or more families of a directory that belong together.
fn groups(families: &BTreeMap<Family, Steps>) -> Vec<Vec<&Family>> {
    let newest = families.values().filter_map(|steps| steps.keys().last()).max();
    let mut groups: Vec<Vec<&Family>> = Vec::new();
    for (family, steps) in families {
        let is_its = |group: &Vec<&Family>| {
            group.iter().any(|other| belong_together(steps, &families[*other], newest))
        };
        let (mut own, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_its);
        own.push(vec![family]);
        groups = others;
        groups.push(own.concat());
    }
    groups.retain(|group| group.len() > 1);
    groups
}

fn belong_together(one: &Steps, other: &Steps, newest: Option<&Value>) -> bool {
    let (Some((first, _)), Some((second, _)), Some(newest)) =
        (one.first_key_value(), other.first_key_value(), newest)
    else {
        return false;
    };
    let begin = first.max(second);
    let range = begin..newest.max(begin);
    let taught: BTreeSet<&Value> = [one, other]
        .into_iter()
        .flat_map(|steps| steps.range(range.clone()))
        .map(|(step, _)| step)
        .collect();
    if taught.is_empty() {
        return one.keys().eq(other.keys());
    }
    let is_before = |step: &Value, these: &Steps, those: &Steps| {
        let next = those.range::<Value, _>((Bound::Excluded(step), Bound::Unbounded)).next();
        these.get(step).is_some_and(|(_, time)| next.is_none_or(|(_, (_, next))| time <= next))
    };
    let both = taught
        .iter()
        .filter(|step| is_before(step, one, other) && is_before(step, other, one))
        .count();
    2 * both > taught.len()
}

/// Returns the common name of the families, with `{any}` for the differences.
fn common(families: &[&Family]) -> Family {
    let first = &families[0].0;
    let alike =
        |text: &[u8], other: &[u8]| text.iter().zip(other).take_while(|(a, b)| a == b).count();
    let mut begin = first.len();
    for family in families {
        begin = begin.min(alike(first, &family.0));
    }
    let reversed = |text: &[u8]| text.iter().rev().copied().collect::<Vec<u8>>();
    let shortest = families.iter().map(|family| family.0.len()).min().unwrap_or(0);
    let mut end = shortest - begin;
    for family in families {
        end = end.min(alike(&reversed(first), &reversed(&family.0)));
    }
    // A placeholder must not be cut.
    let is_cut = |text: &[u8], open: u8, close: u8| {
        let last = text.iter().rposition(|byte| *byte == open || *byte == close);
        last.filter(|&at| text[at] == open)
    };
    if let Some(at) = is_cut(&first[..begin], b'{', b'}') {
        begin = at;
    }
    let tail = &first[first.len() - end..];
    if let Some(at) = is_cut(&reversed(tail), b'}', b'{') {
        end = at;
    }
    let (head, tail) = (&first[..begin], &first[first.len() - end..]);
    let has_step = |text: &[u8]| text.windows(6).any(|part| part == b"{step}");
    match (has_step(head), has_step(tail)) {
        (false, false) => Family([head, b"{any}{step}{any}", tail].concat()),
        _ => Family([head, b"{any}", tail].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns families with their steps, written in ascending order.
    fn families(all: &[(&str, &[u64])]) -> BTreeMap<Family, Steps> {
        let known = all.iter().map(|(family, steps)| {
            let times = steps.iter().map(|&step| {
                let time = step as i64;
                (Step::from(step).value(), (Step::from(step), time))
            });
            (Family(family.as_bytes().to_vec()), times.collect())
        });
        known.collect()
    }

    fn joined(all: &[(&str, &[u64])]) -> Vec<String> {
        groups(&families(all)).iter().map(|group| common(group).to_string()).collect()
    }

    #[test]
    fn families_of_the_same_steps_are_one() {
        for (all, expected) in [
            (&[("model.{step}", &[1, 2][..]), ("optim.{step}", &[1, 2])][..], "{any}.{step}"),
            (
                &[("ckpt-{step}.data-0", &[1, 2, 3]), ("ckpt-{step}.index", &[1, 2])],
                "ckpt-{step}.{any}",
            ),
            (&[("x.{step}.base", &[5]), ("x.{step}.{rank}", &[5])], "x.{step}.{any}"),
            (
                &[("r.{step}.coor", &[1, 2]), ("r.{step}.vel", &[1, 2]), ("r.{step}.xsc", &[1])],
                "r.{step}.{any}",
            ),
            (&[("a{step}", &[1, 2]), ("b{step}x", &[1, 2])], "{any}{step}{any}"),
            // An older step is being removed, and one in the middle was never finished.
            (&[("m.{step}", &[1, 2, 3, 4, 5]), ("o.{step}", &[2, 4, 5])], "{any}.{step}"),
        ] {
            assert_eq!(joined(all), [expected], "{all:?}");
        }
    }

    #[test]
    fn what_is_written_more_often_is_a_family_of_its_own() {
        let dumps: Vec<u64> = (1..=20).map(|step| step * 10).collect();
        for other in [&[100, 200][..], &[200], &[20, 60, 100, 140, 180]] {
            assert_eq!(
                joined(&[("dump.{step}", &dumps), ("restart.{step}", other)]),
                [""; 0],
                "{other:?}"
            );
        }
        assert_eq!(joined(&[("a.{step}", &[3]), ("b.{step}", &[2])]), [""; 0]);
    }

    #[test]
    fn data_that_was_there_before_is_no_part_of_what_is_written_step_by_step() {
        let mut known = families(&[("f.{step}", &[1, 2, 3, 4]), ("other{step}", &[1, 2, 3, 4])]);
        assert_eq!(groups(&known).len(), 1);
        for time in known.values_mut().nth(1).expect("is there").values_mut() {
            time.1 = 0;
        }
        assert_eq!(groups(&known).len(), 0);
    }
}
